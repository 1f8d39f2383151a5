"""What tasks tell the driver: warnings, runs of queries, origins of key groups, errors of functions.

There is one accumulator for all queries of a SparkContext, since PySpark keeps each as long as the context.
What only the driver needs is imported where it is used: workers that pack rows import this module, too.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import Any, Literal, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import pyarrow as pa
import pyspark
from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

import timerheap
from timerheap.spark._compat import cancel_jobs, execution_of, hadoop_files, hadoop_path, jvm, on_connect

_log = logging.getLogger("timerheap")

_REMEMBERED = 4096  # letters that are not opened twice
_PAUSE = 60.0  # seconds between two messages about one thing that happens again and again

DRAINED = "spark.timerheap.drained"
"""Name of the setting, in a run of `run_available_now`, with the micro-batch before which all rows were read.

It is empty before that is known.
"""

_OPERATOR = "TransformWithStateIn"  # the beginning of its name, in all versions of PySpark


class Counts(NamedTuple):
    """Numbers of key groups, each counted once in a micro-batch.

    One that is loaded from the state store costs as much as its state; one that is handed over, or continued,
    costs what changed.
    """

    new: int = 0
    continued: int = 0
    handed_over: int = 0
    loaded: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Tally(NamedTuple):
    """A message about what happens again and again; its first "{}" stands for the number of times so far."""

    text: str
    times: int

    def plus(self, other: Tally) -> Tally:
        """Return the later message, with the sum."""
        return Tally(other.text, self.times + other.times)


class TallyLog:
    """Logs messages about one thing once a minute."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}  # when, and the number of times so far

    def add(self, mark: tuple[str, str], tally: Tally) -> None:
        """Log a message unless one of the same mark has been logged within a minute."""
        now = time.monotonic()
        at, times = self._logged.pop(mark, (now - _PAUSE, 0))
        times += tally.times
        if now - at >= _PAUSE:
            _log.warning("%s", tally.text.replace("{}", str(times), 1))
            at = now
        self._logged[mark] = at, times
        if len(self._logged) > _REMEMBERED:
            del self._logged[next(iter(self._logged))]


_in_worker = TallyLog()  # where there is no mail


class QueryRun(NamedTuple):
    """A run of a query, by their ids."""

    query: str
    run: str


Look = Literal["for an end", "at the state"]
"""What the driver does once with each run that it is told of."""


class Letter(NamedTuple):
    """What a task tells the driver."""

    session: str
    owner: str  # the query
    about: str  # of the letters of an owner about one thing, the driver opens the first
    content: str | tuple[Look, QueryRun] | Counts | Tally  # counts are logged each time


class Mail:
    """Sends letters of one query to the driver, which receives them when the task has succeeded.

    The box is None on Spark Connect, where letters are lost, and workers log tallies themselves. Counts are
    sent if they are `logged`: each task that sends letters takes the driver's time in each micro-batch.
    """

    def __init__(
        self, box: Accumulator[tuple[Letter, ...]] | None, session: str, owner: str, logged: bool = True
    ) -> None:
        self._box = box
        self._session = session
        self._owner = owner
        self._logged = logged

    def warn(self, messages: Iterable[str], about: str | None = None) -> None:
        """Have messages logged, each once, or the first about something."""
        for message in messages:
            self._send(message if about is None else about, message)

    def tally(self, about: str, text: str, times: int = 1) -> None:
        """Have a message about something logged once a minute and query; see `Tally`."""
        task = TaskContext.get()
        query = task and task.getLocalProperty("sql.streaming.queryId")
        tally = Tally(f"query {query}: {text}" if query else text, times)
        if self._box is None:
            _in_worker.add((self._owner, f"{about} {query}"), tally)
        else:
            self._send(f"{about} {query}", tally)

    def count(self, counts: Counts) -> None:
        """Tell where key groups came from, which the driver logs if it logs the level DEBUG."""
        if self._logged:
            self._send("", counts)

    def tell(self, look: Look) -> None:
        """Have the driver look at the run of this task.

        The first task of a stage tells for all.
        """
        task = TaskContext.get()
        if task is None or task.partitionId() > 0:
            return
        query = task.getLocalProperty("sql.streaming.queryId")
        if query is not None:
            run = QueryRun(query, task.getLocalProperty("spark.jobGroup.id") or "")
            self._send(f"{look} {run}", (look, run))

    def _send(self, about: str, content: str | tuple[Look, QueryRun] | Counts | Tally) -> None:
        if self._box is not None:
            self._box.add((Letter(self._session, self._owner, about, content),))


class Telling:
    """A stage that tells the driver of its run, before a task can reach the state."""

    def __init__(
        self, stage: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], letters: Mail
    ) -> None:
        self._stage = stage
        self._letters = letters

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of a task."""
        self._letters.tell("at the state")
        return self._stage(batches)


class Opener(AccumulatorParam[tuple[Letter, ...]]):
    """Opens letters on the driver; in a task it collects them."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, str], None] = {}
        self._tallies = TallyLog()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def zero(self, value: tuple[Letter, ...]) -> tuple[Letter, ...]:
        """Return no letters."""
        return ()

    def addInPlace(self, value1: tuple[Letter, ...], value2: tuple[Letter, ...]) -> tuple[Letter, ...]:
        """Add letters to others; on the driver, open them instead."""
        if TaskContext.get() is not None:
            held = {(letter.owner, letter.about): letter for letter in value1}
            for letter in value2:
                first = held.setdefault((letter.owner, letter.about), letter)
                if first is not letter and isinstance(first.content, (Counts, Tally)):
                    content = first.content.plus(cast(Any, letter.content))
                    held[letter.owner, letter.about] = letter._replace(content=content)
            return tuple(held.values())
        for letter in value2:
            self._open(letter)
        return ()

    def _open(self, letter: Letter) -> None:
        if isinstance(letter.content, Counts):
            _log.debug(
                "key groups of a task: %d new, %d continued in the same worker, %d handed over, %d loaded "
                "from the state store",
                *letter.content,
            )
            return
        mark = letter.owner, letter.about
        if isinstance(letter.content, Tally):
            self._tallies.add(mark, letter.content)
            return
        if mark in self._opened:
            return
        self._opened[mark] = None
        if len(self._opened) > _REMEMBERED:
            del self._opened[next(iter(self._opened))]
        if isinstance(letter.content, str):
            _log.warning("%s", letter.content)
        else:
            _look(letter.session, *letter.content)


_boxes: WeakKeyDictionary[SparkContext, Accumulator[tuple[Letter, ...]]] = WeakKeyDictionary()
_sessions: WeakValueDictionary[str, SparkSession] = WeakValueDictionary()


def mail(spark: SparkSession) -> Mail:
    """Return the mail of a new query."""
    owner = uuid.uuid4().hex
    if on_connect(spark):
        return Mail(None, "", owner)
    context, session = spark.sparkContext, str(id(spark))
    _sessions[session] = spark
    if context not in _boxes:
        _boxes[context] = context.accumulator((), Opener())
    return Mail(_boxes[context], session, owner, logged=_log.isEnabledFor(logging.DEBUG))


def _look(session: str, look: Look, run: QueryRun) -> None:
    spark = _sessions.get(session)
    if spark is None:
        return
    try:
        query: Any = spark.streams.get(run.query)
        looks = {"for an end": _warn_if_endless, "at the state": _refuse_foreign_state}
        looks[look](spark, run, execution_of(query))
    except Exception as e:  # it has ended, or Spark's internals differ; the query must go on
        _log.debug("cannot look at query %s: %s", run.query, e)


def _warn_if_endless(spark: SparkSession, run: QueryRun, execution: Any) -> None:
    """Log a warning if ``availableNow`` will not end a run with processing time, or before the clock is read.

    Only a running query knows its trigger.
    """
    conf = execution.sparkSessionForStream().conf()
    if execution.trigger().toString() != "AvailableNowTrigger" or conf.contains(DRAINED):
        return
    _log.warning(
        "query %s must be started with timerheap.spark.run_available_now(writer), got "
        "trigger(availableNow=True).start(): it uses processing time, with_idleness or with_wall_clock, for "
        "which Spark runs micro-batches without rows for ever, or none if "
        "spark.sql.streaming.noDataMicroBatches.enabled is false",
        run.query,
    )


def _refuse_foreign_state(spark: SparkSession, run: QueryRun, execution: Any) -> None:
    """Cancel a run, with an error that says why, if it has begun on the state of another operator.

    Spark compares the kind of an operator and the types of its states, each by name. So it does not tell
    ``transformWithStateInPandas`` of a processor from ours, whose states have other names: without this
    check, the query would begin with no state.

    The driver hears of a run when a task of the stage before the state has ended, and looks at it before it
    starts the next stage: so Spark cancels the micro-batch before a task can end that has reached the state.
    Files that the run has written about its states are deleted, so that the other operator finds its own.
    """
    for state in _states(execution.lastExecution().executedPlan()):
        operator = hadoop_path(spark, f"{state.checkpointLocation()}/{state.operatorId()}")
        files = hadoop_files(spark, operator)
        metadata = _numbered(files, hadoop_path(spark, operator, "_metadata/v2"))
        schemas = _numbered(files, hadoop_path(spark, operator, "_stateSchema/default"))
        begun = max(batch for batch, _ in metadata)  # Spark writes both when a run begins
        before = [path for batch, path in schemas if batch < begun]
        if before and not any(_is_ours(spark, files, path) for path in before):
            why = (
                f"the checkpoint of query {run.query} must be one that timerheap has written, got "
                f"{execution.resolvedCheckpointRoot()!r}, with the state of Spark's own "
                f"transformWithStateInPandas in operator {state.operatorId()}; start a new checkpoint, and "
                'pass the state of the old one, read with spark.read.format("statestore"), as initial_state'
            )
            cancel_jobs(spark, run.run, why)
            for batch, path in [*metadata, *schemas]:
                if batch == begun and _is_ours(spark, files, path):
                    files.delete(path, False)
            return


def _states(plan: Any) -> Iterator[Any]:
    """Return a Java StatefulOperatorStateInfo for each of timerheap's operators in a plan."""
    from timerheap.spark._columns import METRICS

    if plan.nodeName().startswith(_OPERATOR) and METRICS in _names(plan.output()):
        yield plan.stateInfo().get()
    for child in _each(plan.children()):
        yield from _states(child)


def _names(attributes: Any) -> list[str]:
    return [attribute.name() for attribute in _each(attributes)]


def _each(sequence: Any) -> list[Any]:
    """Return the elements of a sequence of Scala's."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _numbered(files: Any, folder: Any) -> list[tuple[int, Any]]:
    """Return the files of a folder whose names begin with the number of a micro-batch, and the numbers."""
    found = files.listStatus(folder) if files.exists(folder) else ()
    paths = [(each.getPath().getName().partition("_")[0], each.getPath()) for each in found]
    return [(int(batch), path) for batch, path in paths if batch.isdecimal()]


def _is_ours(spark: SparkSession, files: Any, path: Any) -> bool:
    """Return whether a file names the state of timerheap's operators, as schemas or metadata do."""
    from timerheap.spark._worker.spark_store import CHUNKS

    name = CHUNKS[0].encode()
    stream = files.open(path)
    try:
        found = bytes(jvm(spark).org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()
    return len(name).to_bytes(2, "big") + name in found or b'\\"' + name + b'\\"' in found


_NOTE = "timerheap: "
_NOT_THE_USERS = tuple(str(Path(str(module.__file__)).parent) for module in (pyspark, timerheap))
_COMPILED = "timerheap/_native/"  # the sources of the compiled module, which are not where it is


@contextmanager
def reported() -> Iterator[None]:
    """Raise an error of a function again: its message, what it was called for, and the user's frames alone.

    Spark surrounds the text with frames and plans of its own, so that the message comes first and last in it.

    An error without a frame or a note of a user's function is not changed.
    """
    try:
        yield
    except Exception as e:
        found = TracebackException.from_exception(e)
        found.stack = StackSummary.from_list([frame for frame in found.stack if _is_users(frame.filename)])
        notes = found.__notes__ or []
        where = [note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)]
        found.__notes__ = [note for note in notes if not note.startswith(_NOTE)]
        if not where and not found.stack:
            raise
        where = where or [f"in {found.stack[0].name}"]
        message = "".join(found.format_exception_only()).rstrip()
        raise RuntimeError("\n".join([message, *where, "".join(found.format()).rstrip()])) from None


def _is_users(filename: str) -> bool:
    return not filename.startswith((*_NOT_THE_USERS, _COMPILED))
