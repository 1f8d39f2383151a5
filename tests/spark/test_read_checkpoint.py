"""`read_checkpoint` shows what a query holds: compared with a computation from its rows alone."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import timerheap.spark
from timerheap import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.__main__ import main
from timerheap._inspect.plot import histogram
from timerheap._native._heap import from_text, to_text
from timerheap.spark import CheckpointState, read_checkpoint, transform_with_state
from timerheap.spark._exchange.placement import label_of
from timerheap.spark._group.manifest import MANIFEST
from timerheap.spark._worker.checkpoint_tables import GroupReader, timers

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("plane", pa.string()), ("value", pa.int32()), ("at", pa.int64())])
DELAY, LATER, END = 500, 3000, (1 << 63) - 1
BATCHES = [
    [
        {"plane": f"N{(n + i * i) % 7}" if i % 6 else None, "value": i % 2, "at": n * 1000 + i * 379 % 1000}
        for i in range(30)
    ]
    for n in range(6)
]
Key = tuple[str | None, int]


class Keeper(KeyedProcessFunction):
    """Registers a timer for each row, and keeps its times in states of all shapes."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(
            ValueStateDescriptor("last", Types.ROW_NAMED(["at"], [Types.INSTANT()]))
        )
        self.times = runtime_context.get_list_state(ListStateDescriptor("times", Types.LONG()))
        self.tens = runtime_context.get_map_state(MapStateDescriptor("tens", Types.LONG(), Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.last.update((datetime.datetime.fromtimestamp(value.at / 1000, datetime.UTC),))
        self.times.add(value.at)
        self.tens.put(value.at % 10, str(value.at))
        if value.at % 5 == 0:
            self.tens.remove(value.at % 10)
        ctx.timer_service().register_event_time_timer(value.at + LATER)
        ctx.timer_service().register_event_time_timer(END)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield (timestamp,)


def kept(df: DataFrame, **options: Any) -> DataFrame:
    return timerheap.spark.process(
        df,
        ["plane", "value"],
        Keeper(),
        "timestamp bigint",
        "at",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=3,
        **options,
    )


@pytest.fixture(scope="module")
def work(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query that has ended after six micro-batches, of which Spark keeps the state of the last ones."""
    work = tmp_path_factory.mktemp("kept")
    streams.write_batches(work / "in", BATCHES, SCHEMA)
    with streams.configured(spark, streaming_minBatchesToRetain=2):
        streams.run(kept(streams.read_stream(spark, work / "in")), work)
    return work


@pytest.fixture(scope="module")
def state(spark: SparkSession, work: Path) -> CheckpointState:
    return read_checkpoint(spark, work / "checkpoint")


def rows_until(batch: int) -> tuple[list[dict[str, Any]], int]:
    """All rows up to a micro-batch in the order in which the function gets them, and the watermark then."""
    rows = sorted((row for rows in BATCHES[: batch + 1] for row in rows), key=lambda row: row["at"])
    return rows, max(row["at"] for row in rows) - DELAY - 1


def key_of(row: dict[str, Any]) -> Key:
    return row["plane"], row["value"]


def pending(batch: int) -> set[tuple[str | None, int, int]]:
    rows, watermark = rows_until(batch)
    done = [row for row in rows if row["at"] <= watermark]
    found = {(*key_of(row), row["at"] + LATER) for row in done if row["at"] + LATER > watermark}
    return found | {(*key_of(row), END) for row in done}


def instant(millis: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(millis / 1000, datetime.UTC)


def records(df: DataFrame) -> list[dict[str, Any]]:
    """The rows by way of Arrow, so that times do not depend on the machine's zone."""
    return df.toArrow().to_pylist()


def test_timers_have_the_query_s_key_columns_and_readable_times(state: CheckpointState) -> None:
    timers = state.timers()
    assert timers.dtypes[:3] == [("plane", "string"), ("value", "int"), ("timestamp", "timestamp")]
    found = records(timers)
    assert {(row["plane"], row["value"], row["epoch_ms"]) for row in found} == pending(5)
    assert {(row["time_domain"], row["namespace"]) for row in found} == {("event_time", 0)}
    assert all(
        row["timestamp"] == (None if row["epoch_ms"] == END else instant(row["epoch_ms"])) for row in found
    )


def test_a_state_has_a_row_for_each_key(state: CheckpointState) -> None:
    assert state.key == ["plane", "value"]
    assert state.states == ["last", "tens", "times"]
    rows, watermark = rows_until(5)
    times: dict[Key, list[int]] = {}
    tens: dict[Key, dict[int, str]] = {}
    for row in rows:
        if row["at"] <= watermark:
            times.setdefault(key_of(row), []).append(row["at"])
            tens.setdefault(key_of(row), {})[row["at"] % 10] = str(row["at"])
            if row["at"] % 5 == 0:
                del tens[key_of(row)][row["at"] % 10]

    def found(name: str) -> dict[Key, Any]:
        # The key column `value` keeps its name, so the state's column has another.
        return {key_of(row): row["timerheap_value"] for row in records(state.state(name))}

    assert found("times") == times
    assert {key: dict(pairs) for key, pairs in found("tens").items()} == {k: v for k, v in tens.items() if v}
    assert found("last") == {key: {"at": instant(values[-1])} for key, values in times.items()}


def test_waiting_rows_are_those_that_the_watermark_has_not_passed(state: CheckpointState) -> None:
    rows, watermark = rows_until(5)
    found = records(state.waiting_rows())
    wanted = [{**row, "event_time": instant(row["at"])} for row in rows if row["at"] > watermark]
    groups = [row.pop("key_group") for row in found]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert set(groups) <= {0, 1, 2}


def test_groups_sum_up_to_the_tables(state: CheckpointState) -> None:
    groups = records(state.groups())
    assert [row["key_group"] for row in sorted(groups, key=lambda row: row["key_group"])] == [0, 1, 2]
    timers, rows = records(state.timers()), records(state.waiting_rows())
    assert sum(row["event_time_timers"] for row in groups) == len(timers)
    assert sum(row["waiting_rows"] for row in groups) == len(rows)
    assert sum(dict(row["states"])["times"] for row in groups) == state.state("times").count()
    firsts = [row["next_event_time_timer"] for row in groups if row["next_event_time_timer"]]
    assert min(firsts) == min(row["timestamp"] for row in timers if row["timestamp"])
    assert {row["watermark"] for row in groups} == {instant(rows_until(5)[1])}
    assert all(row["bytes"] > 0 and row["keys"] > 0 and row["late_rows"] == 0 for row in groups)


def test_a_past_micro_batch_is_read_by_its_id(spark: SparkSession, work: Path) -> None:
    before = read_checkpoint(spark, work / "checkpoint", batch_id=4)
    assert before.batch_id == 4
    timers = records(before.timers())
    assert {(row["plane"], row["value"], row["epoch_ms"]) for row in timers} == pending(4)


def test_a_micro_batch_that_is_gone_raises_and_says_which_are_there(spark: SparkSession, work: Path) -> None:
    for batch in (0, 6):
        with pytest.raises(ValueError, match=rf"batch_id must be from [1-4] to 5, .*, got {batch}$"):
            read_checkpoint(spark, work / "checkpoint", batch_id=batch)
    with pytest.raises(TypeError, match="batch_id must be an int, got '5'"):
        read_checkpoint(spark, work / "checkpoint", batch_id="5")  # type: ignore[arg-type]


def test_an_unknown_state_raises_and_lists_the_names(state: CheckpointState) -> None:
    with pytest.raises(ValueError, match=r"name must be one of \['last', 'tens', 'times'\], got 'time'"):
        state.state("time")
    with pytest.raises(TypeError, match="name must be a str, got None"):
        state.state(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"checkpoint must be that of a query with windows, got '.*', whose"):
        state.windows()


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
        right.withColumnRenamed("plane", "tail"),
        "plane",
        Both(),
        "at bigint",
        "at",
        right_key="tail",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        channel="value",
        max_parallelism=2,
    )
    streams.run(joined, tmp_path)
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    waiting = state.waiting_rows()
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
    windows = timerheap.spark.hop(df, "at", slide=400, size=800, watermark=strategy, local="arrow")
    result = windows.group_by("plane").agg(F.count("*").alias("n"), F.avg("value").alias("mean"))
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
    sessions = timerheap.spark.session(df, "at", 900, watermark=strategy, local="arrow")
    streams.run(sessions.group_by().agg(F.count("*").alias("n")), tmp_path)
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
    several = r"operator_id must be .*, got None; it has 0: key \(\w+\), states \w+; 1: key \("
    with pytest.raises(ValueError, match=several):
        read_checkpoint(spark, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"operator_id must be .*, got 2; it has 0: key .*"):
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


def test_damaged_chunks_raise_and_name_the_key_group(state: CheckpointState) -> None:
    table = state.chunks.toArrow()
    rows = [row for row in table.to_pylist() if row["label"] == label_of(1)]
    reader = GroupReader(timers, [16, 18], pa.schema([]))

    def read(rows: list[dict[str, Any]]) -> None:
        list(reader(iter(pa.Table.from_pylist(rows, table.schema).to_batches())))

    at = next(i for i, row in enumerate(rows) if row["kind"] == 16 and row["id"] == 1)
    data = bytearray(from_text(rows[at]["text"]))
    data[len(data) // 2] ^= 1
    damaged = r"checkpoint must be whole, got one whose key group 1 is damaged: .*; pass the batch_id"
    with pytest.raises(ValueError, match=damaged):
        read([*rows[:at], rows[at] | {"text": to_text(bytes(data))}, *rows[at + 1 :]])
    with pytest.raises(ValueError, match=r"key group 1 is damaged: .*lacks chunk 1 of kind 16"):
        read([row for row in rows if row is not rows[at]])
    with pytest.raises(ValueError, match=r"key group 1 is damaged: .*lacks the manifest"):
        read([row for row in rows if row["kind"] != MANIFEST])


def inspected(monkeypatch: pytest.MonkeyPatch, spark: SparkSession, *arguments: object) -> Result:
    monkeypatch.setattr("timerheap._inspect.command.local_spark", lambda *_: nullcontext(spark))
    monkeypatch.setenv("COLUMNS", "200")
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def test_inspect_prints_tables_and_draws_the_timers(
    spark: SparkSession, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tmp_path / "timers.png"
    result = inspected(monkeypatch, spark, work / "checkpoint", "--plot", picture)
    assert result.exit_code == 0, result.output
    mark = f"{instant(rows_until(5)[1]):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    assert "Checkpoint after micro-batch 5, operator 0, key: plane, value" in result.output
    assert f"Watermark {mark} UTC, held back by the rows" in result.output
    printed = [line.split() for line in result.output.splitlines()]
    total = next(line for line in printed if line[:1] == ["all"])
    assert str(len(pending(5))) in total
    first = min((at, plane or "", value) for plane, value, at in pending(5))[0]
    assert any(f"{instant(first):%H:%M:%S.%f}"[:-3] in line for line in printed)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_inspect_draws_each_timer_once(state: CheckpointState) -> None:
    counts = histogram(state)
    assert counts["timers"].sum() == len(pending(5))
    assert counts["start"].isna().sum() == 3  # the timers at the end of time, in each group
    assert counts["start"].nunique() > 30


def test_inspect_says_what_is_wrong(
    spark: SparkSession, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = inspected(monkeypatch, spark, tmp_path / "nothing")
    assert result.exit_code == 1
    assert "Error: checkpoint must be the checkpoint location" in result.output
    result = inspected(monkeypatch, spark, work / "checkpoint", "--batch", 99)
    assert "Error: batch_id must be from" in result.output
    result = inspected(monkeypatch, spark, work / "checkpoint", "--plot", "timers.svg")
    assert "must end in .png, got timers.svg" in result.output


def test_a_running_query_is_read_between_its_micro_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoint"
    streams.write_batches(tmp_path / "in", BATCHES[:1], SCHEMA)
    with streams.started(kept(streams.read_stream(spark, tmp_path / "in")), tmp_path) as query:
        query.processAllAvailable()
        first = read_checkpoint(spark, checkpoint)
        assert (first.batch_id, timers_of(first)) == (0, pending(0))
        streams.write_batches(tmp_path / "in", BATCHES[1:3], SCHEMA)
        query.processAllAvailable()
        later = read_checkpoint(spark, checkpoint)
        assert (later.batch_id, timers_of(later)) == (2, pending(2))
        assert timers_of(read_checkpoint(spark, checkpoint, batch_id=0)) == timers_of(first) == pending(0)
        result = inspected(monkeypatch, spark, checkpoint)
        assert "Checkpoint after micro-batch 2" in result.output, result.output
        assert query.isActive


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
        (metrics,) = {each.observedMetrics["timerheap"] for each in progress[-1:]}
        state = read_checkpoint(spark, tmp_path / "checkpoint")
        own = records(state.timers())
        assert {(row["epoch_ms"], row["namespace"]) for row in own} == {(END, 0)}
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


def timers_of(state: CheckpointState) -> set[tuple[str | None, int, int]]:
    return {(row["plane"], row["value"], row["epoch_ms"]) for row in records(state.timers())}


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
    assert "operator 0, key: plane" in result.output, result.output
    assert "seen" in result.output
