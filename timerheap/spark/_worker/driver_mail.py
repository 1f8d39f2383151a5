"""Letters of tasks to the driver: warnings and runs of queries."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

_log = logging.getLogger("timerheap")
_REMEMBERED = 4096  # letters that are not opened twice
_PARTS = 1000  # channels whose numbers are kept
_NAMED = 5  # channels in a message
_PAUSE = 60.0  # seconds between two messages about one thing that happens again and again

DRAINED = "spark.timerheap.drained"
"""Name of the setting, in a run of `run_available_now`, with the micro-batch before which all rows were read.

It is empty before that is known.
"""
REPEATED = "spark.timerheap.repeated"
"""Name of the setting, in a run, with the micro-batch that an earlier run has begun, as in `repeated_run`."""

CONTINUED_AFTER = "spark.timerheap.continuedAfter"
"""Name of the setting, in the run that gives a query its first state, with the micro-batch of that state."""

Look = Literal["for an end", "at the state"]
"""What the driver does once with each run that it is told of."""


Parts = tuple[tuple[str, int], ...]
"""How often something has happened by channel."""


class Tally(NamedTuple):
    """A message about what happens again and again; its first "{}" stands for the number of times so far.

    weight: of two messages of a micro-batch, the one that weighs more is logged, or else the later
    parts: how often it has happened by channel, if that is known; the message ends with the sums so far
    """

    text: str
    times: int
    weight: int = 0
    parts: Parts = ()

    def plus(self, other: Tally) -> Tally:
        """Return the message that weighs more, with the sums."""
        more = self if self.weight > other.weight else other
        parts = _sums(self.parts, other.parts)
        return Tally(more.text, self.times + other.times, more.weight, parts)


def _sums(*parts: Parts) -> Parts:
    """Return the sums by channel, the largest first."""
    sums: Counter[str] = Counter()
    for each in parts:
        sums.update(dict(each))
    return tuple(sums.most_common(_PARTS))


class TallyLog:
    """Logs messages about one thing once a minute."""

    def __init__(self) -> None:
        # When, and the number of times so far, in all and by channel.
        self._logged: dict[tuple[str, str], tuple[float, int, Parts]] = {}

    def add(self, mark: tuple[str, str], tally: Tally) -> None:
        """Log a message unless one of the same mark has been logged within a minute."""
        now = time.monotonic()
        at, times, parts = self._logged.pop(mark, (now - _PAUSE, 0, ()))
        times, parts = times + tally.times, _sums(parts, tally.parts)
        if now - at >= _PAUSE:
            _log.warning("%s%s", tally.text.replace("{}", str(times), 1), _by_channel(parts))
            at = now
        self._logged[mark] = at, times, parts
        if len(self._logged) > _REMEMBERED:
            del self._logged[next(iter(self._logged))]


def _by_channel(parts: Parts) -> str:
    if not parts:
        return ""
    named = [f"{name!r} {times}" for name, times in parts[:_NAMED]]
    others = sum(times for _, times in parts[_NAMED:])
    return f"; by channel: {', '.join(named)}" + (f", others {others}" if others else "")


_in_worker = TallyLog()  # where there is no mail


class QueryRun(NamedTuple):
    """A run of a query, by their ids."""

    query: str
    run: str


class Letter(NamedTuple):
    """What a task tells the driver."""

    session: str
    owner: str  # the query
    about: str  # of the letters of an owner about one thing, the driver opens the first
    content: str | tuple[Look, QueryRun] | Tally


class Mail:
    """Sends letters of one query to the driver, which receives them when the task has succeeded.

    The box is None on Spark Connect, where letters are lost, and workers log tallies themselves.
    """

    def __init__(self, box: Accumulator[tuple[Letter, ...]] | None, session: str, owner: str) -> None:
        self._box = box
        self._session = session
        self._owner = owner

    @property
    def has_driver(self) -> bool:
        """Whether letters reach the driver, which looks at what they tell of."""
        return self._box is not None

    def warn(self, messages: Iterable[str], about: str | None = None) -> None:
        """Have messages logged, each once, or the first about something."""
        for message in messages:
            self._send(message if about is None else about, message)

    def tally(self, about: str, text: str, times: int = 1, weight: int = 0, parts: Parts = ()) -> None:
        """Have a message about something logged once a minute and query; see `Tally`."""
        task = TaskContext.get()
        query = task and task.getLocalProperty("sql.streaming.queryId")
        tally = Tally(f"query {query}: {text}" if query else text, times, weight, parts)
        if self._box is None:
            _in_worker.add((self._owner, f"{about} {query}"), tally)
        else:
            self._send(f"{about} {query}", tally)

    def tell(self, look: Look) -> None:
        """Have the driver look at the run of this task."""
        # The first task of a stage tells for all.
        task = TaskContext.get()
        if task is None or task.partitionId() > 0:
            return
        query = task.getLocalProperty("sql.streaming.queryId")
        if query is not None:
            run = QueryRun(query, task.getLocalProperty("spark.jobGroup.id") or "")
            self._send(f"{look} {run}", (look, run))

    def _send(self, about: str, content: str | tuple[Look, QueryRun] | Tally) -> None:
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
        self._letters.tell("at the state")
        return self._stage(batches)


class Opener(AccumulatorParam[tuple[Letter, ...]]):
    """Opens letters on the driver; in a task it collects them."""

    def __init__(self, look: Callable[[str, Look, QueryRun], None] | None = None) -> None:
        self._look = look  # what the driver does with a run, by the session and the query
        self._opened: dict[tuple[str, str], None] = {}
        self._tallies = TallyLog()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def zero(self, value: tuple[Letter, ...]) -> tuple[Letter, ...]:
        return ()

    def addInPlace(self, value1: tuple[Letter, ...], value2: tuple[Letter, ...]) -> tuple[Letter, ...]:
        """Add letters to others; on the driver, open them instead."""
        if TaskContext.get() is not None:
            held = {(letter.owner, letter.about): letter for letter in value1}
            for letter in value2:
                first = held.setdefault((letter.owner, letter.about), letter)
                if first is not letter and isinstance(first.content, Tally):
                    content = first.content.plus(cast(Tally, letter.content))
                    held[letter.owner, letter.about] = letter._replace(content=content)
            return tuple(held.values())
        for letter in value2:
            self._open(letter)
        return ()

    def _open(self, letter: Letter) -> None:
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
        elif self._look is not None:
            self._look(letter.session, *letter.content)
