"""Spark's own means around a checkpoint: names of sources and sinks, snapshots that are repaired."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from streams import configured, rows, run, schema_of, write_batches

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor

pytestmark = [
    pytest.mark.spark,
    pytest.mark.in_turn,
    pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Spark has them from 4.3 on"),
    pytest.mark.usefixtures("one_partition"),
]

SCHEMA = pa.schema([("k", pa.string())])
DRAW = random.Random(3)
KEYS = [[{"k": DRAW.choice("abcd")} for _ in range(9)] for _ in range(30)]
SOURCES = {"streaming_queryEvolution_enableSourceEvolution": True}
SINKS = {"streaming_queryEvolution_enableSinkEvolution": True}


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value.k, self.count.value()


def counted(df: DataFrame) -> DataFrame:
    return timerheap.spark.process(df, "k", Count(), "k string, n long", max_parallelism=3)


def named(spark: SparkSession, work: Path, *names: str) -> DataFrame:
    """Return the rows of sources with these names."""
    found = None
    for name in names:
        reader = spark.readStream.name(name).schema(schema_of(work / name / "00000.parquet"))
        df = reader.parquet(str(work / name))
        found = df if found is None else found.union(df)
    assert found is not None
    return found


def write(work: Path, name: str, number: int) -> None:
    write_batches(work / name, [KEYS[number]], SCHEMA)


def emitted(numbers: Sequence[int], before: Sequence[int] = ()) -> list[tuple[Any, ...]]:
    """Return the counts of the rows of some files, after those of others."""
    counts = Counter(row["k"] for number in before for row in KEYS[number])
    found = []
    for row in (row for number in numbers for row in KEYS[number]):
        counts[row["k"]] += 1
        found.append((row["k"], counts[row["k"]]))
    return sorted(found, key=repr)


def run_into(result: DataFrame, work: Path, sink: str, name: str = "") -> list[tuple[Any, ...]]:
    """Run a query over all there is into a sink, which has a name; return what it has written there."""
    writer = result.writeStream.option("checkpointLocation", str(work / "checkpoint"))
    if name:
        writer._jwrite.name(name)  # type: ignore[attr-defined]
    query = writer.trigger(availableNow=True).start(str(work / sink), format="parquet")
    try:
        query.awaitTermination()
    finally:
        query.stop()
    files = map(str, (work / sink).glob("*.parquet"))
    return rows(result.sparkSession.read.schema(result.schema).parquet(*files))


def test_named_sources_come_and_go_on_the_same_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a", 0)
    write(tmp_path, "b", 1)
    with configured(spark, **SOURCES):
        found = run_into(counted(named(spark, tmp_path, "a", "b")), tmp_path, "sink 1")
        assert found == emitted([0, 1])
        for number, name in enumerate("abc", 2):
            write(tmp_path, name, number)
        found = run_into(counted(named(spark, tmp_path, "c", "b", "a")), tmp_path, "sink 2")
        assert found == emitted([2, 3, 4], [0, 1]), "nothing of a and b is read again, in any order"
        for number, name in enumerate("abc", 5):
            write(tmp_path, name, number)
        found = run_into(counted(named(spark, tmp_path, "a", "c")), tmp_path, "sink 3")
        assert found == emitted([5, 7], [0, 1, 2, 3, 4])


def test_sinks_with_names_change_on_the_same_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a", 0)
    with configured(spark, **SOURCES, **SINKS):
        assert run_into(counted(named(spark, tmp_path, "a")), tmp_path, "sink 1", "one") == emitted([0])
        write(tmp_path, "a", 1)
        found = run_into(counted(named(spark, tmp_path, "a")), tmp_path, "sink 2", "two")
        assert found == emitted([1], [0])


BEHIND: dict[str, tuple[bool, bool, bool, dict[str, bool]]] = {
    "named": (True, True, True, {"one": False, "two": False, "three": True}),
    "named, the last micro-batch unfinished": (True, True, False, {"one": False, "three": True}),
    "named from now on": (False, True, True, {"three": True}),
    "named no more": (True, False, True, {}),
}
"""Whether the old and the new query name sinks, whether the old one has finished, and which are known."""


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("case", BEHIND)
def test_a_query_goes_on_into_sinks_with_names(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """The new checkpoint knows the sinks of the old one, and which of them is active."""

    def query() -> DataFrame:
        return counted(named(spark, tmp_path, "a"))

    old, new = tmp_path / "old/checkpoint", tmp_path / "new/checkpoint"
    before, after, finished, known = BEHIND[case]
    with configured(spark, **SOURCES, **dict.fromkeys(SINKS, before)):
        for number, sink in enumerate(("one", "two")):
            write(tmp_path, "a", number)
            run_into(query(), tmp_path / "old", sink, sink if before else "")
    if not finished:
        for log in (old / "commits").glob("*1*"):
            log.unlink()
    write(tmp_path, "a", 2)
    with configured(spark, **SOURCES, **dict.fromkeys(SINKS, after)):
        result = timerheap.spark.continue_from(spark, old, new, query)
        found = run_into(result, tmp_path / "new", "sink", "three" if after else "")
    assert found == (emitted([2], [0, 1]) if finished else emitted([1, 2], [0]))
    commit = json.loads((new / "commits/2").read_text().split("\n")[1])
    assert {name: one["isActive"] for name, one in commit.get("sinkMetadataMap", {}).items()} == known


def test_a_damaged_snapshot_is_repaired_from_the_changes(spark: SparkSession, tmp_path: Path) -> None:
    """Spark leaves it out, and repeats the micro-batches' changes."""

    def result() -> DataFrame:
        reader = spark.readStream.schema(schema_of(tmp_path / "a/00000.parquet"))
        return counted(reader.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "a")))

    for number in range(6):
        write(tmp_path, "a", number)
    # Then Spark writes a snapshot with every second commit, not some time later, and keeps none in memory.
    with configured(
        spark, streaming_stateStore_unloadOnCommit=True, streaming_stateStore_minDeltasForSnapshot=1
    ):
        run(result(), tmp_path)
        state = tmp_path / "checkpoint/state/0/0"
        snapshots = sorted(
            state.glob("[0-9]*.zip"), key=lambda path: int(path.name.partition("_")[0].split(".")[0])
        )
        assert len(snapshots) > 2, list(state.iterdir())
        for path in snapshots[1:]:
            path.write_bytes(b"damaged")
            (state / f"{path.name}.crc").unlink(missing_ok=True)
        write(tmp_path, "a", 6)
        run(result(), tmp_path)
    files = map(str, (tmp_path / "sink").glob("*.parquet"))
    assert rows(spark.read.parquet(*files)) == emitted(range(7))
