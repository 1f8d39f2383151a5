"""An older program on the checkpoint of a newer one: it goes on, or an error says how it can."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, ValueStateDescriptor
from timerheap.spark import InitialState, read_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
KEYS = [f"k{n}" for n in range(9)]


class Count(KeyedProcessFunction):
    """Counts the rows of a key, in an integer or in the first field of a row, and again in other states."""

    def __init__(self, type_: str, name: str = "count", *others: str) -> None:
        self.states = [(name, type_), *((other, "bigint") for other in others)]

    def open(self, runtime_context: Any) -> None:
        self.count, *self.others = (
            runtime_context.get_state(ValueStateDescriptor(name, type_)) for name, type_ in self.states
        )

    def process_element(self, value: Any, ctx: Any) -> Any:
        type_ = self.states[0][1]
        fields = type_.startswith("struct") * (1 + type_.count(","))
        before = self.count.value()
        number = 1 + (0 if before is None else before[0] if fields else before)
        self.count.update((number, "note")[:fields] if fields else number)
        for other in self.others:
            other.update(number)
        yield ctx.get_current_key(), number


def run(
    spark: SparkSession, work: Path, function: Count, name: str = "checkpoint", **options: Any
) -> list[int]:
    """Run a query over one more row of each key, and return the counts of all its new rows."""
    batch = [{"k": key, "at": 1_000} for key in KEYS]
    streams.write_batches(work / "in", [batch], SCHEMA)
    df = streams.read_stream(spark, work / "in", files=100)
    result = timerheap.spark.process(df, "k", function, "k string, n bigint", max_parallelism=2, **options)
    found: list[int] = []

    def collect(rows: Any, _: int) -> None:
        found.extend(row.n for row in rows.collect())

    writer = result.writeStream.foreachBatch(collect).trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / name)).start().awaitTermination()
    assert len(found) % len(KEYS) == 0
    return sorted(set(found))


def test_a_narrower_type_is_refused_and_the_newer_program_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert run(spark, tmp_path, Count("int")) == [1]
    assert run(spark, tmp_path, Count("bigint")) == [2]
    with pytest.raises(
        StreamingQueryException,
        match=re.escape(
            "state 'count' must stay a value state of int64, got a value state of int32: int64 does not "
            "widen to int32; keep the type, or choose another name and pass state_changes={'count': None}"
        ),
    ):
        run(spark, tmp_path, Count("int"))
    assert run(spark, tmp_path, Count("bigint")) == [3, 4], "also the row that the older one has not taken"


def test_the_older_program_goes_on_from_values_that_are_cast(spark: SparkSession, tmp_path: Path) -> None:
    assert run(spark, tmp_path, Count("int")) == [1]
    assert run(spark, tmp_path, Count("bigint")) == [2]
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    values = state.state("count").withColumn("value", F.col("value").cast("int"))
    older = InitialState(states={"count": values}, timers=state.timers(), watermarks=state.watermarks())
    (tmp_path / "in").rename(tmp_path / "read")
    assert run(spark, tmp_path, Count("int"), "again", initial_state=older) == [3]
    assert run(spark, tmp_path, Count("int"), "again") == [4]


def test_the_older_program_goes_back_to_a_micro_batch_before_the_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It reads the later input again."""
    assert run(spark, tmp_path, Count("int")) == [1]
    assert run(spark, tmp_path, Count("bigint")) == [2]
    state = read_checkpoint(spark, tmp_path / "checkpoint", batch_id=0)
    (tmp_path / "in").rename(tmp_path / "read")
    assert run(spark, tmp_path, Count("int"), "again", initial_state=state) == [2]


def test_a_field_that_the_older_program_lacks_is_dropped_only_if_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    older, newer = Count("struct<n bigint>"), Count("struct<n bigint, note string>")
    assert run(spark, tmp_path, older) == [1]
    assert run(spark, tmp_path, newer) == [2]
    with pytest.raises(StreamingQueryException, match=r"lose the values of count\.note; pass state_changes="):
        run(spark, tmp_path, older)
    assert run(spark, tmp_path, older, state_changes={"count.note": None}) == [3, 4]


def test_a_state_that_the_older_program_lacks_stays_or_is_dropped(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert run(spark, tmp_path, Count("bigint")) == [1]
    assert run(spark, tmp_path, Count("bigint", "count", "again")) == [2]
    assert run(spark, tmp_path, Count("bigint")) == [3]
    assert read_checkpoint(spark, tmp_path / "checkpoint").states == ["again", "count"]
    assert run(spark, tmp_path, Count("bigint"), state_changes={"again": None}) == [4]
    assert read_checkpoint(spark, tmp_path / "checkpoint").states == ["count"]


def test_a_state_that_was_renamed_gets_its_old_name_back(spark: SparkSession, tmp_path: Path) -> None:
    """Without being told, the older program begins with an empty state, which is why the page says so."""
    assert run(spark, tmp_path, Count("bigint", "old")) == [1]
    assert run(spark, tmp_path, Count("bigint", "new"), state_changes={"old": "new"}) == [2]
    assert run(spark, tmp_path, Count("bigint", "old"), state_changes={"new": "old"}) == [3]
    assert read_checkpoint(spark, tmp_path / "checkpoint").states == ["old"]
