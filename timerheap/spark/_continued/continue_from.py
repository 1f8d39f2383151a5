"""`continue_from`: a changed query goes on where an old one has stopped, with its state, in a new checkpoint.

The new checkpoint is made by one micro-batch of the new query, over sources without rows, in which each
operator takes the state that the operator of its name has in the old checkpoint. Then its state gets the
number of the old query's last micro-batch, and the positions of the sources are written behind it: so the
numbers of micro-batches go on, by which sinks know what they have.

If the old query was stopped within a micro-batch, that is run without its sink, too: a sink that has its rows
already skips it, and Spark runs nothing then, but needs the state after it.

Until all is done the log of offsets begins with a mark, and at first with one source more than the new query,
which Spark refuses to go on with; the next call begins again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession

from timerheap._arguments import instance, integer
from timerheap.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CheckpointError,
    CheckpointMismatchError,
)
from timerheap.spark._available_now import NO_DATA
from timerheap.spark._compat import name_sink, refuse_connect
from timerheap.spark._continued.checkpoint_files import CheckpointFiles, Planned
from timerheap.spark._continued.continued_sources import BEGIN, NAMED_SOURCES, Positions, Sources
from timerheap.spark._plan.starts import Start, starting_from
from timerheap.spark._real_time.initial_epoch import beginnings
from timerheap.spark._real_time.spark_lookup import operators_before, operators_in
from timerheap.spark._run_settings import start_with
from timerheap.spark._state.changed_inputs import input_names
from timerheap.spark._state.epoch_store import next_run, place_of_state
from timerheap.spark._state.initial_contents import FromCheckpoint
from timerheap.spark._state.read_checkpoint import CheckpointState, states_of
from timerheap.spark._state.stored_operators import operators_of_spark, path_of
from timerheap.spark._worker.driver_mail import CONTINUED_AFTER

_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_NAMED_SINKS = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
_SINKS = "sinkMetadataMap"  # in a commit: the sinks of a query so far, if they have names
_COMMIT = 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}'  # of an epoch, without state of Spark
_log = logging.getLogger("timerheap")


def continue_from(
    spark: SparkSession,
    old: str | PathLike[str],
    new: str | PathLike[str],
    query: Callable[[], DataFrame],
    *,
    sources: Sequence[int | None] | None = None,
    forget: Collection[str] = (),
    batch_id: int | None = None,
    output_mode: str = "append",
) -> DataFrame:
    """Return a changed query that goes on where an old one has stopped, with its state.

    Each operator of the new query takes the state of the operator that has its `name` in the old checkpoint,
    wherever that stands. An operator of a new name begins without state. The sources go on after the last
    row that the old query has read, and micro-batches are numbered on. No row is read again, and the old
    checkpoint stays as it is: to go back, start the old query with it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    old : str or path
        Checkpoint location of the old query, which must have stopped.
    new : str or path
        Checkpoint location of the new query: nothing is there yet. If the new query has begun there, it goes
        on: so a program that calls this can be started again as it is.
    query : callable
        Builds the new query, and returns its result. It is called once.
    sources : list of int or None, optional
        For each source of the new query, in the order in which they stand in it, its number in the old one,
        from 0, or None for a source that begins as a new one. By default all are the same. Sources with
        names (``readStream.name()``) are found by these.
    forget : collection of str, optional
        Names of operators of the old query whose state is given up; and "carts.left" or "carts.right", if the
        operator "carts" has lost this one of two inputs, whose rows may wait for the watermark.
    batch_id : int, optional
        The micro-batch after which to go on, by default the last one that has finished. With an earlier one
        the rows since then are read again; a sink that remembers numbers of micro-batches must be a new one.
        Spark keeps those of ``spark.sql.streaming.minBatchesToRetain`` micro-batches.
    output_mode : str, default "append"
        That of the writer of the new query.

    Returns
    -------
    pyspark.sql.DataFrame
        What `query` has returned. Start it with ``checkpointLocation`` `new`.

    Raises
    ------
    ArgumentError
        If an operator of the old query is neither in the new one nor in `forget`; if the number of sources
        has changed and `sources` does not tell; if the old query runs; if `new` has anything else.
    CheckpointError
        If the old checkpoint has no finished micro-batch, or has begun one over rows of a source that the new
        query does not have; or the state of an operator does not fit.
    UnsupportedError
        On Spark Connect.

    Notes
    -----
    What may change of an operator: its inputs, watermarks, channels and clocks, `max_parallelism`, its states
    as `state_changes` says, whether it works row by row or vectorized, and everything around it. The number
    of partitions is that of ``spark.sql.shuffle.partitions`` now.

    If the old query was stopped within a micro-batch, the new one begins with the same rows. Its id is that
    of the old one, by which sinks tell what they have: do not run both in one Spark application, or into one
    sink.

    It costs O(size of the state): each key group is read and written once; and a micro-batch that has not
    finished is run one time more. If the driver dies meanwhile, call it again.

    Examples
    --------
    ::

        def alerts():
            clicks = spark.readStream.table("clicks")
            carts = timerheap.spark.process(clicks, "user", CartAlerts(), ..., name="carts")
            bursts = timerheap.spark.process(clicks, "user", Bursts(), ..., name="bursts")  # a new rule
            return carts.union(bursts)

        old, new = "/checkpoints/alerts-1", "/checkpoints/alerts-2"
        result = timerheap.spark.continue_from(spark, old, new, alerts, sources=[0, None])
        result.writeStream.option("checkpointLocation", new).toTable("alerts")
    """
    refuse_connect(spark, "continue_from()")
    instance("spark", spark, SparkSession)
    if not callable(query):
        raise ArgumentTypeError(f"query must be a function that returns a DataFrame, got {query!r}")
    names = _operator_names("forget", forget)
    before, after = CheckpointFiles(spark, path_of(old)), CheckpointFiles(spark, path_of(new))
    if _has_begun(after):
        return _streaming(query())
    _expect_stopped(spark, before)
    point = _Stop.of(before, batch_id)
    of_spark = operators_of_spark(spark, before.path)
    taken = _Operators(states_of(spark, before.path, point.batch), of_spark, names)
    with starting_from(taken.start):
        df = _streaming(query())
    taken.expect_all(before.path)
    found = Sources(df)
    folders = before.names("sources")
    positions = Positions.of(found, point.planned, folders, partial(_are_alike, before, folders), sources)
    _expect_read(before, point, positions)
    others = len(found.places) + 1
    marked = Planned("v1", point.metadata(spark), {str(number): BEGIN for number in range(others)})
    after.write("offsets/0", marked.text)
    _clear(after)
    after.write("metadata", before.read("metadata"))  # sinks know a query by its id
    names_sinks = _names_sinks(spark)
    if operators_before(df):
        _write_epoch(df, after, point.batch)
        _go_on(before, after, point, positions, names_sinks=names_sinks)
    else:
        first = {CONTINUED_AFTER: str(point.batch), _CHANGELOG: "false", NAMED_SOURCES: "false"}
        _run_once(found.without_rows(others), after.path, first, output_mode)
        after.number_state(point.batch + 1)
        _go_on(before, after, point, positions, names_sinks=names_sinks)
        if point.unfinished is not None:
            _run_once(df, after.path, {}, output_mode)
            after.remove(f"commits/{point.batch + 1}")
    _unmark(after, point)
    return df


def _are_alike(checkpoint: CheckpointFiles, folders: Sequence[str]) -> bool:
    """Return whether all sources have left the same files."""
    return len({checkpoint.contents(f"sources/{name}") for name in folders}) == 1


def _operator_names(argument: str, names: Any) -> frozenset[str]:
    listed = isinstance(names, Collection) and not isinstance(names, str)
    if not listed or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"{argument} must be a list of names of operators, got {names!r}")
    return frozenset(names)


def _streaming(df: object) -> DataFrame:
    if not isinstance(df, DataFrame) or not df.isStreaming:
        raise ArgumentTypeError(f"query must return a streaming DataFrame, got {df!r}")
    return df


def _has_begun(new: CheckpointFiles) -> bool:
    """Return whether a query has begun with a checkpoint; raise if it is that of anything else."""
    if new.exists("offsets/0"):
        return not _has_mark(new)
    if new.last("offsets") > 0:
        return True
    if others := sorted({*new.names()} - {"offsets"}):  # without the mark, which was not written to the end
        raise ArgumentValueError(
            f"new must be a place where nothing is yet, got {new.path!r}, which has {', '.join(others)}"
        )
    return False


def _has_mark(checkpoint: CheckpointFiles) -> bool:
    return checkpoint.exists("offsets/0") and CONTINUED_AFTER in checkpoint.planned(0).metadata["conf"]


def _clear(new: CheckpointFiles) -> None:
    """Remove what a call that was killed has made, but the mark, so that this may be killed, too."""
    for name in ("metadata", "commits", "sources", "state"):
        new.remove(name)
    for name in new.names("offsets"):
        if name != "0":
            new.remove(f"offsets/{name}")


def _expect_stopped(spark: SparkSession, old: CheckpointFiles) -> None:
    if not old.exists("metadata"):
        return
    id_ = json.loads(old.read("metadata"))["id"]
    for query in spark.streams.active:
        if query.id == id_:
            raise ArgumentValueError(
                f"old must be the checkpoint of a query that has stopped, got {old.path!r}, whose query "
                f"{query.name or query.id} runs; stop it first"
            )


@dataclass(frozen=True)
class _Stop:
    """Where a query has stopped.

    batch: the last micro-batch that has finished
    planned: how it was planned
    around: how the one before it was planned, and the one after it, if it has been and has not finished
    commit: what Spark has written after it
    """

    batch: int
    planned: Planned
    around: dict[int, Planned]
    commit: str

    @classmethod
    def of(cls, old: CheckpointFiles, batch_id: Any) -> _Stop:
        last = old.last("commits")
        if last < 0:
            raise CheckpointError(
                f"old must be the checkpoint of a query with a finished micro-batch, got {old.path!r}; start "
                "the new query without continue_from()"
            )
        if _has_mark(old):
            raise CheckpointError(
                f"old must be the checkpoint of a query that has begun, got {old.path!r}, which "
                "continue_from() has not finished; call it again as before, with this one as new"
            )
        batch = last if batch_id is None else integer("batch_id", batch_id)
        if not old.exists(f"commits/{batch}"):
            first = min(int(name) for name in old.names("commits") if name.isdigit())
            raise ArgumentValueError(f"batch_id must be from {first} to {last}, got {batch_id}")
        beside = [batch - 1, batch + 1] if batch == last else [batch - 1]
        beside = [number for number in beside if old.exists(f"offsets/{number}")]
        around = {number: old.planned(number) for number in beside}
        return cls(batch, old.planned(batch), around, old.read(f"commits/{batch}"))

    @property
    def all(self) -> dict[int, Planned]:
        """All of these micro-batches."""
        return {**self.around, self.batch: self.planned}

    @property
    def unfinished(self) -> Planned | None:
        """The micro-batch that has not finished, if there is one."""
        return self.around.get(self.batch + 1)

    def metadata(self, spark: SparkSession) -> dict[str, Any]:
        """Return what the log says of the last micro-batch, with the settings of a session."""
        metadata = dict(self.planned.metadata)
        metadata["conf"] = {name: spark.conf.get(name, was) for name, was in metadata["conf"].items()}
        metadata["conf"][NAMED_SOURCES] = "false"
        metadata["conf"][CONTINUED_AFTER] = str(self.batch)
        metadata.pop("controlBatchInfo", None)
        return metadata


@dataclass
class _Operators:
    """The operators of an old query: which a new one takes, and which are given up.

    of_spark: the names of operators that are Spark's own, whose state cannot be taken
    """

    states: Sequence[CheckpointState]
    of_spark: Sequence[str]
    forget: Collection[str]
    taken: list[str] = field(default_factory=list)

    def start(self, name: str) -> Start | None:
        """Return the state that the operator of a name begins with."""
        found = [state for state in self.states if state.name in (name, None)]
        if name in self.forget or not found:
            _log.info("operator %s begins without state", name)
            return None
        several = any(not found[0]._is_copy_of(other) for other in found[1:])
        if several or name in self.taken:
            raise CheckpointMismatchError(
                f"name must be that of one operator in each query, got {name!r}, which "
                f"{'the checkpoint' if several else 'the new query'} has more than once; give the operators "
                "names"
            )
        self.taken.append(name)
        gone = {each for name, each in input_names(found[0]).items() if name in self.forget}
        return FromCheckpoint(found[0], frozenset(gone))

    def expect_all(self, path: str) -> None:
        """Raise an error if the state of an operator would be lost."""
        stored = [state.name for state in self.states if state.name is not None]
        inputs = {name for state in self.states if state.name in self.taken for name in input_names(state)}
        unknown = sorted(set(self.forget) - {*stored, *self.of_spark, *inputs})
        if unknown:
            raise ArgumentValueError(
                f"forget must have names of operators in {path!r}, which are "
                f"{sorted([*stored, *self.of_spark])}, got "
                f"{unknown[0]!r}"
            )
        if lost := sorted({*self.of_spark} - {*self.forget}):
            raise ArgumentValueError(
                f"forget must have {lost[0]!r}, an operator of Spark itself in {path!r}, whose state cannot "
                "be taken: it begins without state, if the new query has it; or do without the operator, for "
                f"instance with drop_duplicates() or windows of timerheap, got {sorted(self.forget)}"
            )
        lost = sorted({*stored} - {*self.taken} - {*self.forget})
        if lost:
            raise ArgumentValueError(
                f"query must have the operators of {path!r}, which are {sorted(stored)}, got one without "
                f"{lost[0]!r}; give this name to the operator that has taken its place, or pass "
                f"forget={lost!r} to give up the state"
            )


def _expect_read(old: CheckpointFiles, point: _Stop, positions: Positions) -> None:
    """Raise an error if rows would be lost of a micro-batch that has not finished."""
    after = point.unfinished
    if after is None:
        return
    if lost := [name for name in positions.gone if after.offsets[name] != point.planned.offsets[name]]:
        raise CheckpointError(
            f"old must have finished its last micro-batch if a source goes, got {old.path!r}, which has "
            f"begun one over rows of source {lost[0]}; start the old query for a micro-batch more"
        )


def _run_once(df: DataFrame, checkpoint: str, settings: dict[str, str], output_mode: str) -> None:
    """Run one micro-batch that nothing is written of, for the state after it."""
    writer = df.writeStream.format("noop").outputMode(output_mode)
    writer = writer.option("checkpointLocation", checkpoint).trigger(once=True)
    if _names_sinks(df.sparkSession):
        name_sink(writer, "timerheap")
    query = start_with(df.sparkSession, checkpoint, {NO_DATA: "false", **settings}, writer.start)
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _names_sinks(spark: SparkSession) -> bool:
    return spark.conf.get(_NAMED_SINKS, "false") == "true"


def _write_epoch(df: DataFrame, checkpoint: CheckpointFiles, epoch: int) -> None:
    """Write the state of a query in real-time mode, which is that after an epoch, and commit this."""
    location = place_of_state(df.sparkSession, checkpoint.path)
    run = next_run(*fs.FileSystem.from_uri(location))
    for name in operators_in(df):
        beginning = beginnings.get(name)
        if beginning is None:
            raise CheckpointMismatchError(
                "each operator in real-time mode must have the name of one in the checkpoint, which has its "
                "state"
            )
        beginning.write(location, run, epoch)
    checkpoint.write("commits/0", _COMMIT)


def _go_on(
    old: CheckpointFiles, new: CheckpointFiles, point: _Stop, positions: Positions, *, names_sinks: bool
) -> None:
    """Make a checkpoint after the first micro-batch one that goes on after an old one's last."""
    conf = new.planned(0).metadata["conf"]
    new.remove("sources")
    for folder, copied in positions.folders.items():
        new.copy_from(old, f"sources/{folder}", f"sources/{copied}")
    new.write(f"commits/{point.batch}", _commit(new.read("commits/0"), point.commit, names_sinks))
    named = str(point.planned.version == "v2").lower()
    for batch, planned in sorted(point.all.items(), reverse=True):  # in place of the mark, and so the last
        kept = {name: value for name, value in conf.items() if name != CONTINUED_AFTER or batch == 0}
        metadata = {**planned.metadata, "conf": {**kept, NAMED_SOURCES: named}}
        metadata.pop("controlBatchInfo", None)  # of moved state, which this is not
        new.write(f"offsets/{batch}", positions.placed(replace(planned, metadata=metadata)).text)


def _commit(first: str, last: str, names_sinks: bool) -> str:
    """Return what the log says of the micro-batch after which a query goes on.

    first: what it says of the first micro-batch of the new checkpoint, whose state this is
    last: what the old log says of its last one, whose sinks and watermark of Spark these are
    """
    version, found, *rest = first.split("\n")
    commit, before = json.loads(found), json.loads(last.split("\n")[1])
    commit["nextBatchWatermarkMs"] = before["nextBatchWatermarkMs"]
    if names_sinks and _SINKS in before:
        version, commit[_SINKS] = "v3", before[_SINKS]
    elif commit.pop(_SINKS, None) is not None:
        version = "v2" if "stateUniqueIds" in commit else "v1"  # neither has sinks
    return "\n".join([version, json.dumps(commit), *rest])


def _unmark(new: CheckpointFiles, point: _Stop) -> None:
    """Let a query go on with a checkpoint."""
    if 0 in point.all:
        first = new.planned(0)
        del first.metadata["conf"][CONTINUED_AFTER]
        new.write("offsets/0", first.text)
    else:
        new.remove("commits/0")
        new.remove("offsets/0")
