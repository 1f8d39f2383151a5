"""State that is lost, old or in the wrong place is an error, when a query loads it and when it is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from processors import OUTPUT, Commands, random_batches
from processors import SCHEMA as COMMANDS
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor
from timerheap.spark import InitialState, read_checkpoint
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._worker.ledger import Audit, Ledger, expect_whole

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
KEYS = [f"k{n}" for n in range(20)]
NOW = Placement(2, 5)


class Count(KeyedProcessFunction):
    """Counts the rows of a key."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.n.update((self.n.value() or 0) + 1)
        yield ctx.get_current_key(), self.n.value()


def run(spark: SparkSession, work: Path, keys: list[str]) -> list[tuple[Any, ...]]:
    """Run one micro-batch of rows; a row without a key does not reach the function."""
    streams.write_batches(work / "in", [[{"k": key, "at": 1_000} for key in keys]], SCHEMA)
    rows = streams.read_stream(spark, work / "in").where("k <> ''")
    streams.run(timerheap.spark.process(rows, "k", Count(), "k string, n bigint", max_parallelism=2), work)
    return streams.sink(spark, work)


@pytest.fixture(scope="module", autouse=True)
def plain_names(spark: SparkSession) -> Iterator[None]:
    """Let files be found by their numbers: with version 2 of the format, Spark notices other ones itself."""
    with streams.configured(spark, streaming_stateStore_checkpointFormatVersion="1"):
        yield


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query with micro-batches without rows, also the first, and with a partition without key groups."""
    work = tmp_path_factory.mktemp("foreign") / "whole"
    with streams.configured(spark, shuffle_partitions=3):
        for keys in ([""], KEYS, [""], KEYS):
            run(spark, work, keys)
    return work


def newest(partition: Path) -> list[Path]:
    """Return the changelogs of a partition, without checksums."""
    for path in partition.glob(".*"):
        path.unlink()
    return sorted(partition.glob("*.changelog"), key=lambda path: int(path.name.partition(".")[0]))


def exchanged(state: Path) -> None:
    for old, new in (("0", "x"), ("1", "0"), ("x", "1")):
        (state / old).rename(state / new)


def outdated(state: Path) -> None:
    *_, before, last = newest(state / "0")
    shutil.copy(before, last)


def of_another_partition(state: Path) -> None:
    shutil.copy(newest(state / "1")[-1], newest(state / "0")[-1])


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize(
    ("damage", "in_query", "in_reader"),
    [
        (lambda state: None, None, None),
        (exchanged, r"the state of partition \d where that of \d must be", None),
        (outdated, "state after micro-batch 2 where that after 3 must be", "state after micro-batch 2 where"),
        (
            of_another_partition,
            "the state of partition 1 where that of 0 must be",
            "key group 1 more than once",
        ),
        (lambda state: shutil.rmtree(state / "1"), "STREAM_FAILED", "lacks 1; put back a whole copy"),
        (lambda state: shutil.rmtree(state / "2"), "STREAM_FAILED", "lacks 2; put back a whole copy"),
        (lambda state: (state / "0").rename(state / "9"), "STREAM_FAILED", "lacks 0; put back a whole copy"),
    ],
)
def test_a_checkpoint_with_state_that_is_not_its_own_raises(
    spark: SparkSession,
    whole: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    in_query: str | None,
    in_reader: str | None,
) -> None:
    shutil.copytree(whole, tmp_path / "kept")
    try:
        damage(whole / "checkpoint" / "state" / "0")
        spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
        if in_reader is None:
            assert read_checkpoint(spark, whole / "checkpoint").state("n").count() == len(KEYS)
        else:
            with pytest.raises(ValueError, match=in_reader):
                read_checkpoint(spark, whole / "checkpoint")
        if in_query is None:
            assert run(spark, whole, KEYS) == sorted((key, n) for key in KEYS for n in (1, 2, 3))
        else:
            with pytest.raises(StreamingQueryException, match=in_query):
                run(spark, whole, KEYS)
    finally:
        shutil.rmtree(whole)
        (tmp_path / "kept").rename(whole)


@pytest.mark.spark
def test_a_copy_is_read_as_long_as_the_original_exists_or_its_path_is_replaced(
    spark: SparkSession, whole: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(whole / "checkpoint", tmp_path / "copy", ignore=shutil.ignore_patterns(".*.crc"))
    assert read_checkpoint(spark, copy).state("n").count() == len(KEYS)
    (whole / "checkpoint").rename(whole / "elsewhere")
    try:
        with pytest.raises(ValueError, match="checkpoint must be where its query has written it"):
            read_checkpoint(spark, copy)
        for metadata in (copy / "state" / "0" / "_metadata" / "v2").iterdir():
            metadata.write_text(metadata.read_text().replace(f"{whole}/checkpoint", str(copy)))
        assert read_checkpoint(spark, copy).state("n").count() == len(KEYS)
    finally:
        (whole / "elsewhere").rename(whole / "checkpoint")


@pytest.mark.spark
def test_a_checkpoint_of_spark_that_lacks_a_partition_raises(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", random_batches(seed=1, batches=1), COMMANDS)
    df = streams.read_stream(spark, tmp_path / "in").withWatermark("at", "2 seconds")
    streams.run(df.groupBy("k").transformWithState(Commands("rows"), OUTPUT, "Append", "EventTime"), tmp_path)
    shutil.rmtree(tmp_path / "checkpoint" / "state" / "0" / "1")
    with pytest.raises(ValueError, match=r"must have the state of all 2 partitions, .*lacks 1;"):
        InitialState.from_spark(spark, tmp_path / "checkpoint")


def ledger(batch: int, partitions: int) -> Ledger:
    return Ledger.of("q", batch, partitions, "o")


def audit(batch: int, before: Ledger | None, placement: Placement = NOW) -> Audit:
    return Audit(ledger(batch, placement.partitions), placement, before, begins=batch == 0)


def test_a_task_finds_what_the_last_one_has_left() -> None:
    """Partition 1 has the key groups 1 and 3; ledgers stay whole over tasks that see some groups or none."""
    first = audit(0, None)
    assert first.ledger() == ledger(0, 2)
    second = audit(1, Ledger.from_bytes(first.ledger().to_bytes()))
    for group in (1, 3):
        second.found(group, None)
        second.saved(group)
    third = audit(2, second.ledger())
    third.found(3, 1)
    third.saved(3)
    fourth = audit(3, third.ledger())
    left = fourth.ledger()
    assert (left.batch, left.partition, left.groups) == (3, 1, third.ledger().groups)
    assert Ledger.from_bytes(left.to_bytes()) == left
    idle = ledger(3, 2)
    expect_whole([idle, left], "q", 3, 2, {1: 1, 3: 2})
    for found in ({1: 1, 3: 1}, {1: 1}, {1: 1, 3: 2, 0: 2}):
        with pytest.raises(ValueError, match=r"got other key groups in partition \d than were saved there"):
            expect_whole([idle, left], "q", 3, 2, found)
    for batch, query, groups, message in (
        (5, "q", {1: 1, 3: 2}, "state after micro-batch 3 where that after 4 must be"),
        (4, "other", {1: 1, 3: 2}, "the state of a different query"),
        (4, "q", {0: 1}, "the state of partition 1 where that of 0 must be"),
        (4, "q", {1: 1, 3: None}, "other key groups in partition 1 than were saved there"),
        (4, "q", {1: 1, 3: 1}, "other key groups in partition 1 than were saved there"),
    ):
        with pytest.raises(ValueError, match=f"as its query has left it, got {message}"):
            check(Audit(Ledger.of(query, batch, 2, "o"), NOW, left, begins=batch == 0), groups)
    check(audit(4, left), {1: 1, 3: 2})


def test_a_task_must_find_state_where_the_driver_cannot_look() -> None:
    """As on Spark Connect, where the query had one of Spark's own operators."""

    def unwatched(batch: int, before: Ledger | None) -> Audit:
        return Audit(ledger(batch, 2), NOW, before, begins=batch == 0, watched=False)

    for groups in ({1: None, 3: None}, {3: None}):
        check(unwatched(0, None), groups)
        check(audit(7, None), groups)  # Spark may have repartitioned it
        with pytest.raises(ValueError, match=r"got no state of this operator in partition 1 before .* 7, as"):
            check(unwatched(7, None), groups)
    check(unwatched(7, None), {1: 6, 3: 6})
    check(unwatched(7, None), {1: 6, 3: None})
    check(unwatched(7, None), {})
    check(unwatched(7, ledger(6, 4)), {1: None, 3: None})


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        ("a", "a", True),
        ("timerheap", "a", True),
        ("timerheap_2", "a", True),
        ("a", "b", False),
        ("a", "timerheap", False),
        ("timerheaps", "a", False),
    ],
)
def test_an_operator_keeps_its_name_once_it_has_one(before: str, now: str, kept: bool) -> None:
    left = Ledger.from_bytes(Ledger.of("q", 3, 2, before).to_bytes())
    if kept:
        assert Audit(Ledger.of("q", 4, 2, now), NOW, left, begins=False).ledger().operator == now
    else:
        with pytest.raises(
            ValueError, match=f"name must be '{before}', as that of this operator .* got '{now}'"
        ):
            Audit(Ledger.of("q", 4, 2, now), NOW, left, begins=False)


def check(task: Audit, groups: dict[int, int | None]) -> None:
    for group, batch in groups.items():
        task.found(group, batch)
    task.ledger()


def test_a_ledger_begins_anew_after_spark_has_repartitioned_a_checkpoint() -> None:
    for before in (None, ledger(3, 4)):
        task = audit(5, before)
        task.found(1, 3)
        task.saved(1)
        left = task.ledger()
        assert left.groups is None, "it has not seen key group 3"
        expect_whole([left, ledger(5, 2)], "q", 5, 2, {1: 5, 3: 2})
        task = audit(6, left)
        task.found(1, 5)
        task.found(3, 2)
        task.saved(3)
        assert task.ledger().groups is not None
        expect_whole([task.ledger(), ledger(6, 2)], "q", 6, 2, {1: 5, 3: 6})
    expect_whole([ledger(3, 4)], "q", 5, 2, {1: 3, 3: 2})
