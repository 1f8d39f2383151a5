"""A query that does not fit its checkpoint raises, and loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from messages import say
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, ValueStateDescriptor, WatermarkStrategy
from timerheap.testing import ProcessTester

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]


class Keeps(KeyedProcessFunction):
    """Counts a key's rows in a state of a given type, and registers a timer in the far future."""

    def __init__(self, type_: str = "bigint") -> None:
        self.type = type_

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", self.type))

    def process_element(self, value: Row, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(10**9)
        yield str(value.k), int(self.count.value())


class Renamed(Keeps):
    """Counts in a state with another name."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("rows", self.type))


def counted(df: DataFrame, function: KeyedProcessFunction, **options: Any) -> DataFrame:
    return timerheap.spark.process(df, "k", function, "k string, n bigint", **options)


def test_an_unused_state_is_reported_once_on_the_driver_and_can_be_dropped(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = pa.schema([("k", pa.int64())])
    warned = []
    for function, options in [
        (Keeps(), {}),
        (Renamed(), {}),
        (Renamed(), {"state_changes": {"count": None}}),
    ]:
        streams.write_batches(tmp_path / "input", [[{"k": k} for k in range(6)]] * 2, schema)
        df = streams.read_stream(spark, tmp_path / "input")
        result = counted(df, function, max_parallelism=2, **options)
        caplog.clear()
        streams.run(result, tmp_path)
        warned.append([record.getMessage() for record in caplog.records])
    assert [len(messages) for messages in warned] == [0, 1, 0], "of two key groups, in two micro-batches"
    assert "state 'count' is in the checkpoint, and the function has not asked for it" in warned[1][0]
    assert "if it was removed, state_changes={'count': None}" in warned[1][0]
    rows = sorted((str(k), n) for k in range(6) for n in (1, 1, 2, 2, 3, 4))
    assert streams.sink(spark, tmp_path) == rows

    with pytest.raises(ValueError, match="state_changes must drop states that the function no longer has"):
        counted(df, Keeps(), state_changes={"count": None})


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "max_parallelism": (
        {"max_parallelism": 5},
        say(
            "max_parallelism must be 3, as in the checkpoint, got 5",
            "pass max_parallelism=3, or go on with its state",
        ),
    ),
    "key": (
        {"key": "text"},
        say("key must have the types of the checkpoint's keys", "int64", "got", "string"),
    ),
    "state": (
        {"function": Keeps("double")},
        "state 'count' must stay a value state of int64, got a value state of double: int64 does not widen",
    ),
    "columns": (
        {"note": "bigint"},
        say("df must have columns that the rows which wait", "others: note: .* does not widen to int64; go"),
    ),
    "order": (
        {"order": "arrival"},
        say("order must be 'event_time' while rows wait in the checkpoint", "got 'arrival'; go back to"),
    ),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_changing_what_a_snapshot_fixes_raises(changed: str) -> None:
    def tester(
        function: Any = None,
        key: str = "k",
        max_parallelism: int = 3,
        note: str = "string",
        order: Any = None,
    ) -> ProcessTester:
        columns = {"k": "bigint", "at": "bigint", "note": note, "text": "string"}
        schema = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
        options = {"order": order, "max_parallelism": max_parallelism}
        return ProcessTester(function or Keeps(), key, schema, "k string, n bigint", "at", **options)

    test = tester()
    test.push([(k, 5 + k, "x", str(k)) for k in range(6)])
    test.advance_watermark(7)
    arguments, message = CHANGES[changed]
    with pytest.raises(ValueError, match=message):
        tester(**arguments).restore(test.snapshot())
    same = tester()
    same.restore(test.snapshot())
    assert same.state("count") == test.state("count") == {0: 1, 1: 1, 2: 1}


def test_changing_what_the_checkpoint_fixes_raises_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each changed query raises; then the original query continues without loss."""
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("note", pa.string())])
    rows = [{"k": k, "at": 5 + k, "note": "x"} for k in range(6)]
    folder = tmp_path / "input"

    def query(max_parallelism: int = 3, note: str = "string") -> None:
        df = streams.read_stream(spark, folder).withColumn(
            "note", F.col("note") if note == "string" else F.lit(1).cast(note)
        )
        timed: dict[str, Any] = {
            "event_time": "at",
            "watermark": WatermarkStrategy.for_monotonous_timestamps(),
        }
        streams.run(counted(df, Keeps(), max_parallelism=max_parallelism, **timed), tmp_path)

    streams.write_batches(folder, [rows], schema)
    query()
    streams.write_batches(folder, [[{**row, "at": row["at"] + 10} for row in rows]], schema)
    for changed in ("max_parallelism", "columns"):
        arguments, message = CHANGES[changed]
        with pytest.raises(StreamingQueryException, match=message):
            query(**arguments)
    with streams.configured(spark, shuffle_partitions=3):  # the checkpoint's number of partitions counts
        query()
    # The last row waits still: the watermark is 19.
    assert streams.sink(spark, tmp_path) == sorted(
        (str(k), n) for k in range(6) for n in (1, 2) if k < 5 or n < 2
    )
