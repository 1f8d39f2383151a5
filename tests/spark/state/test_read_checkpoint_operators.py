"""`read_checkpoint` shows what each operator holds: two inputs, windows, processors, states that expire."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import streams
from planes import BATCHES, DELAY, END, LATER, SCHEMA, inspected, instant, records, rows_until
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import timerheap.spark
from timerheap import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark import CheckpointState, read_checkpoint, transform_with_state

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]


class Both(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at + LATER)

    def process_element2(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at + LATER)


def test_two_inputs_are_shown_by_name_and_the_silent_one_holds(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "left", BATCHES[:1], SCHEMA)
    streams.write_batches(tmp_path / "right", [[]], SCHEMA)
    left, right = (streams.read_stream(spark, tmp_path / side) for side in ("left", "right"))
    joined = timerheap.spark.process_two(
        left,
        timerheap.spark.RightInput(right.withColumnRenamed("plane", "tail"), key="tail"),
        "plane",
        Both(),
        "at bigint",
        timerheap.spark.EventTime("at", channel="value"),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=2,
    )
    streams.run(joined, tmp_path)
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    waiting = state.buffered_rows()
    assert waiting.columns == ["plane", "left", "right", "event_time", "key_group"]
    found = [(row["plane"], row["left"]["at"], row["right"]) for row in records(waiting)]
    assert sorted(found, key=repr) == sorted([(r["plane"], r["at"], None) for r in BATCHES[0]], key=repr)
    assert state.timers().columns[0] == "plane"
    assert state.timers().count() == 0
    marks = records(state.watermarks())
    ends = {str(side): max(r["at"] for r in BATCHES[0] if r["value"] == side) for side in (0, 1)}
    assert [(row["input"], row["channel"], row["newest"], row["holds"]) for row in marks] == [
        *(("left", channel, instant(newest), False) for channel, newest in sorted(ends.items())),
        ("right", None, None, True),
    ]
    assert [row["behind_ms"] for row in marks[:2]] == [max(ends.values()) - end for end in ends.values()]


def test_open_slices_are_shown_with_their_accumulators(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", BATCHES[:1], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "in").withColumn("at", F.timestamp_millis("at"))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY)
    windows = timerheap.spark.hop(df, "at", slide=400, size=800, watermark=strategy)
    result = windows.groupBy("plane").agg(F.count("*").alias("n"), F.avg("value").alias("mean"))
    streams.run(result, tmp_path)
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    slices = state.windows()
    assert slices.columns == ["plane", "slice_end", "count_0", "sum_1", "count_1", "key_group"]
    ends = (-(-(row["at"] + 1) // 400) * 400 for row in BATCHES[0])
    found = [(row["slice_end"], row["count_0"]) for row in records(slices)]
    late = [instant(end).replace(tzinfo=None) for end in ends if end > rows_until(0)[1]]
    assert sum(count for end, count in found if end in late) == len(late)


def test_open_sessions_are_shown_with_their_bounds(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", BATCHES[:1], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "in").withColumn("at", F.timestamp_millis("at"))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY)
    sessions = timerheap.spark.session(df, "at", 900, watermark=strategy)
    streams.run(sessions.groupBy().agg(F.count("*").alias("n")), tmp_path)
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    assert (state.key, state.states) == ([], [])
    (session,) = records(state.windows())
    times = [row["at"] for row in BATCHES[0]]
    assert session["session_start"] == instant(min(times)).replace(tzinfo=None)
    assert session["session_end"] == instant(max(times) + 900).replace(tzinfo=None)
    with pytest.raises(ValueError, match="name must be left out, since the query has no states, got 'x'"):
        state.state("x")


def test_one_of_several_operators_is_chosen_by_its_number(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", BATCHES[:1], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "in")
    first = timerheap.spark.process(df, "plane", PassOn("seen"), "at bigint", max_parallelism=2)
    both = timerheap.spark.process(first, "at", PassOn("again"), "at bigint", max_parallelism=2)
    streams.run(both, tmp_path)
    described = r"operator 0 '\w+': key \(\w+\), states \w+; operator 1 '\w+': key \("
    several = f"operator must be .*, got None; it has {described}"
    with pytest.raises(ValueError, match=several):
        read_checkpoint(spark, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"operator must be .*, got 2; it has operator 0 .*: key .*"):
        read_checkpoint(spark, tmp_path / "checkpoint", 2)
    keys = {number: read_checkpoint(spark, tmp_path / "checkpoint", number).key for number in (0, 1)}
    assert sorted(keys.values()) == [["at"], ["plane"]]


class PassOn(KeyedProcessFunction):
    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor(self.name, Types.BOOLEAN()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.seen.update(True)
        yield (value.at,)


class Remembers(KeyedProcessFunction):
    """Yields what a key has kept for a second, and registers a timer that never fires."""

    def open(self, runtime_context: Any) -> None:
        last = ValueStateDescriptor("last", Types.LONG())
        second = StateTtlConfig.new_builder(Time.seconds(1))
        event_time = StateTtlConfig.TtlTimeCharacteristic.EventTime
        last.enable_time_to_live(second.set_ttl_time_characteristic(event_time).build())
        self.last = runtime_context.get_state(last)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value.plane, self.last.value()
        self.last.update(value.at)
        ctx.timer_service().register_event_time_timer(END)


def test_state_with_a_time_to_live_expires_after_a_restart_and_its_expiries_are_not_shown(
    spark: SparkSession, tmp_path: Path
) -> None:
    def run(*rows: tuple[str, int]) -> CheckpointState:
        batch = [{"plane": plane, "value": 0, "at": at} for plane, at in rows]
        streams.write_batches(tmp_path / "in", [batch], SCHEMA)
        df = streams.read_stream(spark, tmp_path / "in")
        monotonous = WatermarkStrategy.for_monotonous_timestamps()
        result = timerheap.spark.process(
            df, "plane", Remembers(), "plane string, last long", "at", watermark=monotonous, max_parallelism=2
        )
        progress = streams.run(result, tmp_path)
        metrics = progress[-1].observedMetrics["timerheap"].metrics
        state = read_checkpoint(spark, tmp_path / "checkpoint")
        own = records(state.timers())
        assert {(row["epoch_ms"], row["name"]) for row in own} == {(END, None)}
        assert sum(row["event_time_timers"] for row in records(state.groups())) == len(own)
        assert (metrics["pending_event_time_timers"], metrics["next_event_time_timer"]) == (len(own), END)
        return state

    state = run(("N1", 0), ("N2", 500), ("N3", 501))
    kept = {row["plane"]: row["value"] for row in records(state.state("last"))}
    assert kept == {plane: {"value": at, "at": at} for plane, at in (("N1", 0), ("N2", 500))}
    state = run(("N1", 900), ("N2", 1600), ("N4", 5000))
    assert (len(records(state.timers())), records(state.state("last"))) == (3, [])
    found = spark.read.parquet(str(tmp_path / "sink"))
    assert streams.rows(found.fillna(-1)) == [("N1", -1), ("N1", 0), ("N2", -1), ("N2", -1), ("N3", -1)]


FAR = 4_102_444_800_000  # the year 2100


class Visits(StatefulProcessor):
    """Counts the rows of a key, remembers its last time for an hour, and registers a timer far ahead."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint")
        self.last = handle.getValueState("last", "at bigint", 3_600_000)
        self.seen = handle.getMapState("seen", "at bigint", "value int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Row]:
        for row in rows:
            self.count.update(((self.count.get() or (0,))[0] + 1,))
            self.last.update((row.at,))
            self.seen.updateValue((row.at,), (row.value,))
        self.handle.registerTimer(FAR)
        return iter(())


@pytest.mark.promises("StatefulProcessor", "supported", "Avro as the encoding of states")
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "the state data source and customMetrics",
    note="show chunks; `timerheap.spark.read_checkpoint` shows states and timers",
)
def test_a_stateful_processor_shows_its_timers_and_states(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for row in BATCHES[0] if row["plane"] is not None]
    streams.write_batches(tmp_path / "in", [rows], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "in")
    found = transform_with_state(df, "plane", Visits(), "n bigint", "Append", "ProcessingTime")
    settings = {"streaming_noDataMicroBatches_enabled": False, "streaming_stateStore_encodingFormat": "avro"}
    with streams.configured(spark, **settings):
        streams.run(found, tmp_path)
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    planes = {row["plane"]: [other for other in rows if other["plane"] == row["plane"]] for row in rows}
    assert (state.key, state.states) == (["plane"], ["count", "last", "seen"])
    timers = [(row["plane"], row["epoch_ms"], row["time_domain"]) for row in records(state.timers())]
    assert sorted(timers) == [(plane, FAR, "processing_time") for plane in sorted(planes)]
    counts = {row["plane"]: row["value"] for row in records(state.state("count"))}
    assert counts == {plane: {"n": len(those)} for plane, those in planes.items()}
    last = {row["plane"]: row["value"]["value"]["at"] for row in records(state.state("last"))}
    assert last == {plane: those[-1]["at"] for plane, those in planes.items()}
    assert sum(row["processing_time_timers"] for row in records(state.groups())) == len(planes)
    result = inspected(monkeypatch, spark, tmp_path / "checkpoint")
    assert "operator 0 'timerheap', key: plane" in result.output, result.output
    assert "seen" in result.output
