"""A query with applyInPandasWithState moves to a process function, with its state and its timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor
from timerheap.spark import GroupStateTimers, InitialState, process

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema({"k": pa.string(), "g": pa.int32(), "at": pa.timestamp("us", "UTC")})
OUTPUT = "k string, g int, n bigint, how string"
MINUTE = 60_000


def row(k: str, seconds: int) -> dict[str, Any]:
    return {"k": k, "g": len(k), "at": (1_000 + seconds) * 1_000_000}


BEFORE = [[row("a", 0), row("bb", 30), row("gone", -35)], [row("a", 40)], [row("a", 41)]]
AFTER = [[row("c", 62)], [row("a", 90)], [row("d", 500)]]


def counted(
    key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Count the rows of a key until it has none for a minute."""
    n, how = state.get if state.exists else (0, None)
    if state.hasTimedOut:
        yield pd.DataFrame({"k": key[0], "g": key[1], "n": [n], "how": how})
        state.remove()
        return
    for batch in batches:
        n += len(batch)
        state.update((n, "few" if n < 2 else None))
        state.setTimeoutTimestamp(int(batch["at"].max().timestamp() * 1000) + MINUTE)


def queued(
    key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Keep a timer for each row."""
    with GroupStateTimers(state) as timers:
        for batch in batches:
            for at in batch["at"]:
                timers.push(int(at.timestamp() * 1000) + MINUTE, key_hash=7, namespace=3)
        due = timers.due()
        timers.state = (len(timers), None)
    yield pd.DataFrame({"k": key[0], "g": key[1], "n": due.timestamps, "how": None})


class Counted(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))
        self.how = runtime_context.get_state(ValueStateDescriptor("how", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> None:
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        self.how.update("few" if n < 2 else None)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + MINUTE, name="timeout")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield *ctx.get_current_key(), self.n.value(), self.how.value()
        self.n.clear()
        self.how.clear()


def old_query(spark: SparkSession, work: Path, function: Any, state: str, timeout: str) -> DataFrame:
    df = streams.read_stream(spark, work / "in").withWatermark("at", "1 second")
    return df.groupBy("k", "g").applyInPandasWithState(function, OUTPUT, state, "append", timeout)


@pytest.fixture
def counted_before(spark: SparkSession, tmp_path: Path) -> Path:
    streams.write_batches(tmp_path / "in", BEFORE, SCHEMA)
    result = old_query(spark, tmp_path, counted, "n bigint, how string", "EventTimeTimeout")
    # The timeout of this key is over in the second micro-batch.
    assert [one for rows in streams.batches(result, tmp_path) for one in rows] == [("gone", 4, 1, "few")]
    return tmp_path / "checkpoint"


def test_a_moved_query_has_the_state_the_timeouts_and_the_watermark(
    spark: SparkSession, tmp_path: Path, counted_before: Path
) -> None:
    old = InitialState.from_spark(spark, counted_before, timeout_conf="EventTimeTimeout")
    assert old.watermarks == 1_040_000
    assert sorted(old.states["n"].collect()) == [("a", 1, 3), ("bb", 2, 1)]
    assert sorted(old.states["how"].collect(), key=lambda one: one.k) == [("a", 1, None), ("bb", 2, "few")]
    timers = old.timers.select("k", "g", "epoch_ms", "name", "time_domain").orderBy("k").collect()
    domain = "event_time"
    assert timers == [("a", 1, 1_101_000, "timeout", domain), ("bb", 2, 1_090_000, "timeout", domain)]

    streams.write_batches(tmp_path / "new" / "in", AFTER, SCHEMA)
    df = streams.read_stream(spark, tmp_path / "new" / "in").withWatermark("at", "1 second")
    moved = process(df.groupBy("k", "g"), function=Counted(), output_schema=OUTPUT, initial_state=old)
    found = sorted(one for rows in streams.batches(moved, tmp_path / "new") for one in rows)
    assert found == [("a", 1, 4, None), ("bb", 2, 1, "few"), ("c", 1, 1, "few")]
    streams.write_batches(tmp_path / "in", AFTER, SCHEMA)
    result = old_query(spark, tmp_path, counted, "n bigint, how string", "EventTimeTimeout")
    assert sorted(one for rows in streams.batches(result, tmp_path) for one in rows) == found


def test_timers_of_a_heap_are_read_with_their_keys(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", [BEFORE[0][:2]], SCHEMA)
    state = "n bigint, how string, timers binary"
    streams.batches(old_query(spark, tmp_path, queued, state, "EventTimeTimeout"), tmp_path)
    for timeout, domain, watermark in [
        ("EventTimeTimeout", "event_time", 1_029_000),
        ("ProcessingTimeTimeout", "processing_time", None),
    ]:
        old = InitialState.from_spark(spark, tmp_path / "checkpoint", batch_id=0, timeout_conf=timeout)
        assert old.states.keys() == {"n", "how"}
        assert old.watermarks == watermark
        timers = old.timers.select("k", "epoch_ms", "key_hash", "namespace", "time_domain").orderBy("k")
        assert timers.collect() == [("a", 1_060_000, 7, 3, domain), ("bb", 1_090_000, 7, 3, domain)]
    unnamed = old.timers.withColumn("name", F.format_string("%d/%d", "key_hash", "namespace"))
    assert [one.name for one in unnamed.collect()] == ["7/3"] * 2


def test_what_the_checkpoint_does_not_say_is_asked(spark: SparkSession, counted_before: Path) -> None:
    for wrong in (None, "EventTime", ["EventTimeTimeout"]):
        with pytest.raises(
            ValueError, match=r"timeout_conf must be .*'EventTimeTimeout', .*, got .*does not"
        ):
            InitialState.from_spark(spark, counted_before, timeout_conf=wrong)
    assert InitialState.from_spark(spark, counted_before, timeout_conf="NoTimeout").timers is None
    with pytest.raises(ValueError, match=r"got 3; it has the operators \(0: applyInPandasWithState\)"):
        InitialState.from_spark(spark, counted_before, 3, timeout_conf="NoTimeout")


def test_another_operator_is_refused_with_the_way_that_works(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", BEFORE[:1], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "in").withWatermark("at", "1 second")
    streams.batches(df.dropDuplicates(["k", "at"]), tmp_path)
    match = r'statestore"\), and pass the tables to InitialState\(states=, timers=, watermarks=\)'
    with pytest.raises(ValueError, match=match):
        InitialState.from_spark(spark, tmp_path / "checkpoint")


def test_an_older_format_is_refused_with_the_way_that_works(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", BEFORE[:1], SCHEMA)
    version = {"spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "1"}
    with streams.with_settings(spark, version):
        result = old_query(spark, tmp_path, counted, "n bigint, how string", "EventTimeTimeout")
        streams.batches(result, tmp_path)
    with pytest.raises(ValueError, match=r"in version 2 of its format, got .*statestore"):
        InitialState.from_spark(spark, tmp_path / "checkpoint", timeout_conf="EventTimeTimeout")
