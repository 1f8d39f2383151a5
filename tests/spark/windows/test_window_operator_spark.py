"""Compares windows on Spark with the operator without Spark, which is tested against Flink's traces."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from queries import query_of

import timerheap.spark
from timerheap import (
    MAX_WATERMARK,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    WatermarkStrategy,
)
from timerheap.flink import KeyContext, StreamRecord
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.spark import WindowedBy
from timerheap.spark._functions.state_handles import GroupRuntimeContext
from timerheap.spark._group.key_group import KeyGroup
from timerheap.windows import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    GlobalWindow,
    GlobalWindows,
    ProcessWindowFunction,
    ReduceFunction,
    SlidingEventTimeWindows,
    TimeEvictor,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowFunction,
    WindowOperator,
    count_window,
)
from timerheap.windows.states import WindowStates

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

DELAY = 20
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("g", pa.int64()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.struct([("name", pa.string()), ("since", pa.timestamp("us", "UTC"))]))),
    ]
)
DELAYED = WatermarkStrategy.for_bounded_out_of_orderness(DELAY)


def make_rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Return rows that are up to 40 ms late, while time advances by 2 ms per row."""
    rng = random.Random(seed)
    rows = []
    for n in range(count):
        at = EPOCH + timedelta(milliseconds=10_000 + 2 * n - rng.randrange(41))
        tags = [{"name": f"t{n}", "since": at}][: n % 2]
        rows.append({"k": rng.choice("abc"), "g": rng.randrange(2), "n": n, "at": at, "tags": tags})
    return rows


def millis(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass


class Hosted(KeyedProcessFunction):
    def __init__(self, windows: WindowOperator) -> None:
        self.windows = windows

    def open(self, runtime_context: Any) -> None:
        self.windows.open(runtime_context)

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.windows.process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return self.windows.on_timer(timestamp, ctx)


def expected(
    batches: Sequence[Sequence[dict[str, Any]]], windows: WindowOperator, *, ends: bool = False
) -> list[Any]:
    """Compute the results of the micro-batches without Spark: rows first, then the watermark."""
    found, latest = [], 0
    with KeyedProcessOperator(Hosted(windows), key_selector=lambda row: (row["k"], row["g"])) as operator:
        for batch in batches:
            for row in batch:
                found += operator.process_element(row, millis(row["at"]))
                latest = max(latest, millis(row["at"]))
            found += operator.process_watermark(latest - DELAY - 1)
        if ends:
            found += operator.process_watermark(MAX_WATERMARK)
    return sorted((r.value for r in found if isinstance(r, StreamRecord)), key=repr)


class Shown(ProcessWindowFunction):
    """Yields the rows of a window."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        since = [tag["since"] for row in elements for tag in row["tags"]]
        latest = max(since, default=None)
        if latest is not None and latest.tzinfo is None:
            latest = latest.astimezone(UTC)
        yield len(elements), [row["n"] for row in elements], latest


class Label(ProcessWindowFunction):
    """Adds the key and the window to results, like `window_operator`."""

    def __init__(self, function: Any, *behind: Any) -> None:
        self.function = function
        self.behind = behind

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        times = context.window().start, context.window().end
        bounds = (None if time is None else EPOCH + timedelta(milliseconds=time) for time in times)
        for result in self.function.process(key, context, elements):
            yield (*key, *bounds, *result, *self.behind)


class Total(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value["n"]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return [a + b for a, b in zip(acc_a, acc_b, strict=True)]


class Same(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return elements


TOTAL = "struct<count: bigint, total: bigint>"


def test_sessions_and_late_rows_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    data = make_rows(1, 320)
    batches = [data[start : start + 80] for start in range(0, 320, 80)]
    batches[3] += batches[0][::10]
    sessions = EventTimeSessionWindows.with_gap(15)

    def windows(df: DataFrame) -> DataFrame:
        found = timerheap.spark.window_operator(
            df, ["k", "g"], WindowedBy(sessions, allowed_lateness=5), Shown(),
            "rows bigint, ids array<bigint>, latest timestamp", "at", late="emit", watermark=DELAYED,
            max_parallelism=3,
        )  # fmt: skip
        return streams.with_late(found)

    folder = tmp_path / "input"
    for part in (batches[:2], batches[2:]):
        streams.write_batches(folder, part, SCHEMA)
        found = streams.stream(spark, windows, folder, tmp_path)

    def late(row: Any, ctx: Any) -> Any:
        late_by = ctx.timer_service().current_watermark() + 1 - ctx.timestamp()
        yield (*[None] * 7, late_by, row)

    function = Label(Shown(), None, None)
    assert found == expected(
        batches,
        WindowOperator(sessions, function, allowed_lateness=5, late=late, element_type=pa.struct(SCHEMA)),
    )
    late_by = [row[-2] for row in found if row[-2] is not None]
    assert len(late_by) >= 8
    assert min(late_by) > 0


def test_sliding_windows_return_early_sums(spark: SparkSession, tmp_path: Path) -> None:
    """A batch DataFrame is one micro-batch and ends all windows."""
    data = make_rows(2, 300)
    streams.write_batches(tmp_path / "input", [data], SCHEMA)
    df = spark.read.parquet(str(tmp_path / "input")).coalesce(1)
    sliding, trigger = SlidingEventTimeWindows.of(60, 25, -5), ContinuousEventTimeTrigger.of(20)
    found = streams.rows(
        timerheap.spark.window_operator(
            df, ["k", "g"], WindowedBy(sliding, trigger=trigger), Total(), "count bigint, total bigint", "at",
            accumulator_type=TOTAL, watermark=DELAYED, max_parallelism=2,
        )
    )  # fmt: skip
    operator = WindowOperator(sliding, Total(), Label(Same()), trigger=trigger, accumulator_type=TOTAL)
    assert found == expected([data], operator, ends=True)


def test_in_event_time_order_results_depend_only_on_the_data(spark: SparkSession, tmp_path: Path) -> None:
    data = make_rows(3, 300)
    tumbling, total = TumblingEventTimeWindows.of(50), WatermarkStrategy.for_bounded_out_of_orderness(50)

    def windows(df: DataFrame) -> DataFrame:
        found = timerheap.spark.window_operator(
            df, "k", WindowedBy(tumbling, trigger=CountTrigger.of(3)), Total(),
            "count bigint, total bigint", "at", accumulator_type=TOTAL, order="event_time", late="emit",
            watermark=total, max_parallelism=2,
        )  # fmt: skip
        return streams.with_late(found)

    found = []
    for work, cut in (("one", 300), ("three", 100)):
        folder = tmp_path / work / "input"
        streams.write_batches(folder, [data[i : i + cut] for i in range(0, 300, cut)], SCHEMA)
        found.append(streams.stream(spark, windows, folder, tmp_path / work))
    assert found[0] == found[1]
    assert len(found[0]) > 50
    assert all(count % 3 == 0 and late_by is None for *_, count, _, late_by, _ in found[0])


def test_evictors_and_delta_triggers_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    data = make_rows(5, 160)
    batches = [data[:80], data[80:]]
    assigner = GlobalWindows.create()
    windows: dict[str, Any] = {
        "trigger": DeltaTrigger.of(7, lambda old, new: new["n"] - old["n"]),
        "evictor": TimeEvictor.of(60),
    }
    for batch in batches:
        streams.write_batches(tmp_path / "input", [batch], SCHEMA)
        found = streams.stream(
            spark,
            lambda df: timerheap.spark.window_operator(
                df, ["k", "g"], WindowedBy(assigner, **windows), Total(), "count bigint, total bigint", "at",
                watermark=DELAYED, max_parallelism=2,
            ),
            tmp_path / "input",
            tmp_path,
        )  # fmt: skip
    assert len(found) > 10
    assert {bound for row in found for bound in row[2:4]} == {None}
    operator = WindowOperator(assigner, Total(), Label(Same()), element_type=pa.struct(SCHEMA), **windows)
    assert found == expected(batches, operator)


def test_count_windows_equal_those_of_the_operator(spark: SparkSession, tmp_path: Path) -> None:
    data = make_rows(6, 90)
    streams.write_batches(tmp_path / "input", [data], SCHEMA)
    df = spark.read.parquet(str(tmp_path / "input")).coalesce(1)
    totals: dict[str, Any] = {"function": Total(), "accumulator_type": TOTAL}
    for assigner in (count_window(4, 3), GlobalWindows.create_with_end_of_stream_trigger()):
        found = streams.rows(
            timerheap.spark.window_operator(
                df, ["k", "g"], assigner, output_schema="count bigint, total bigint", event_time="at",
                watermark=DELAYED, max_parallelism=2, **totals,
            )
        )  # fmt: skip
        assert len(found) >= 6
        operator = WindowOperator(assigner, window_function=Label(Same()), **totals)
        assert found == expected([data], operator, ends=True)
    without_event_time = timerheap.spark.window_operator(
        df, "k", count_window(30), output_schema="count bigint, total bigint", max_parallelism=2, **totals
    )
    assert {row[3] for row in streams.rows(without_event_time)} <= {30}


def test_processing_time_windows_end_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    class Largest(ReduceFunction):
        def reduce(self, value1: Any, value2: Any) -> Any:
            return max(value1, value2, key=lambda row: row["n"])

    class Its(WindowFunction):
        def apply(self, key: Any, window: Any, inputs: Any) -> Any:
            return [{"n": row["n"], "k2": row["k"]} for row in inputs]

    streams.write_batches(tmp_path / "input", [make_rows(4, 60)], SCHEMA)
    result = timerheap.spark.window_operator(
        streams.read_stream(spark, tmp_path / "input"), "k", TumblingProcessingTimeWindows.of(400), Largest(),
        "n bigint, k2 string", window_function=Its(), processing_time=True, max_parallelism=2,
    )  # fmt: skip
    found = streams.run_until(result, lambda found: len(found) >= 3, tmp_path)
    largest = {row["k"]: row["n"] for row in make_rows(4, 60)}
    assert [(k, n, k2) for k, _, _, n, k2 in found] == [(k, largest[k], k) for k in "abc"]
    assert all(end - start == timedelta(milliseconds=400) for _, start, end, _, _ in found)


def test_window_states_are_stored_by_type() -> None:
    """Each is a map state whose keys are windows; runs without a query."""
    key = StructType().add("k", "string")
    query = query_of(Silent(), key, key, event_time=None, order="arrival")
    keys: KeyContext[int] = KeyContext()
    keys.current_key = 1
    group = KeyGroup(query.layout)
    contexts = [GroupRuntimeContext(keys, 1) for _ in range(2)]
    contexts[0].bind(group)
    one, whole = TimeWindow(0, 5), GlobalWindow.get()
    log, book = ListStateDescriptor("log", TOTAL), MapStateDescriptor("book", "string", pa.int64())
    largest = ReducingStateDescriptor("largest", max, "bigint")
    states = WindowStates(contexts[0], "states")
    for window, n in ((one, 1), (whole, 2)):
        states.of(log, window).add_all([(n, n), {"count": 5, "total": n}])
        states.of(book, window).put("n", n)
        states.of(largest, window).add(n)
        states.of(largest, window).add(-n)
    for part in group.parts():
        part.changes()  # ends a micro-batch: empties the caches and converts values to Arrow
    contexts[1].bind(group)
    states = WindowStates(contexts[1], "states")
    for window, n in ((one, 1), (whole, 2)):
        assert list(states.of(log, window)) == [(n, n), (5, n)]
        assert dict(states.of(book, window).items()) == {"n": n}
        assert states.of(largest, window).get() == n
    with pytest.raises(ValueError, match=r"state 'states.largest', a value: 'x' .* does not fit int64"):
        states.of(ReducingStateDescriptor("largest", lambda a, b: "x", "bigint"), one).add(1)


def test_an_invalid_argument_raises_before_the_query_starts(spark: SparkSession) -> None:
    df = spark.createDataFrame([], "k string, g bigint, at timestamp, late_row string")
    good: dict[str, Any] = {
        "df": df,
        "key": "k",
        "assigner": TumblingEventTimeWindows.of(5),
        "function": Total(),
        "output_schema": "count bigint, total bigint",
        "event_time": "at",
        "accumulator_type": TOTAL,
        "watermark": DELAYED,
    }

    def refused(error: type[Exception], message: str, **arguments: Any) -> None:
        with pytest.raises(error, match=message):
            timerheap.spark.window_operator(**{**good, **arguments})

    by_clock, sessions = TumblingProcessingTimeWindows.of(5), EventTimeSessionWindows.with_gap(5)
    refused(TypeError, r"df must be a pyspark\.sql\.DataFrame, got \[\]", df=[])
    refused(ValueError, "key must name one column, got 'x'", key="x")
    refused(TypeError, "assigner must be a WindowAssigner, got 60000", assigner=60000)
    refused(TypeError, "function must be an instance, got the class Total", function=Total)
    refused(TypeError, "accumulator_type must be a type for Total", accumulator_type=None)
    refused(ValueError, "accumulator_type must be None for Shown", function=Shown())
    refused(ValueError, "window_function must be None with Shown", function=Shown(),
            accumulator_type=None, window_function=Shown())  # fmt: skip
    refused(TypeError, "trigger must be a Trigger, got 5", assigner=WindowedBy(sessions, trigger=5))
    refused(
        ValueError,
        "event_time must name the event-time column with Tumbling.*, got None",
        event_time=None,
        watermark=None,
    )
    refused(TypeError, "watermark must be a WatermarkStrategy, got None", watermark=None)
    refused(ValueError, "processing_time must be True with TumblingProc.*, got False", assigner=by_clock)
    refused(ValueError, "processing_time must be False for a batch", assigner=by_clock, processing_time=True)
    refused(ValueError, 'late must be "drop" with GlobalWindows', assigner=GlobalWindows(), late="emit")
    refused(
        ValueError,
        'allowed_lateness must be 0 with order="event_time", got 5',
        assigner=WindowedBy(sessions, allowed_lateness=5),
        order="event_time",
    )
    refused(ValueError, "trigger must support merging", assigner=WindowedBy(sessions, trigger=Never()))
    refused(ValueError, "output_schema must not repeat .*, got 'k'", output_schema="k string")
    refused(
        ValueError,
        "output_schema must not repeat .*, got 'window_end'",
        output_schema="n int, window_end timestamp",
    )
    refused(
        ValueError,
        "output_schema must not have a column 'side_output' in a query with side outputs or late rows",
        output_schema="side_output bigint",
        late="emit",
        function=Shown(),
        accumulator_type=None,
    )
    refused(
        ValueError,
        "output_schema must be a DDL string .*, got 'count bigint total'",
        output_schema="count bigint total",
    )
    late = timerheap.spark.late_rows(timerheap.spark.window_operator(**good, late="emit"))
    assert late.columns == [*df.columns, "late_by"]


class Never(CountTrigger):
    def __init__(self) -> None:
        super().__init__(1)

    def can_merge(self) -> bool:
        return False


@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.usefixtures("one_partition")
def test_sessions_that_touch_are_one_however_the_micro_batches_are_cut(
    spark: SparkSession, tmp_path: Path, order: str
) -> None:
    """Spark's own session_window is the reference; no row is late."""
    draw = random.Random(0)
    times = sorted(draw.choices(range(0, 400, 2), k=270))
    rows = [{"k": draw.choice("abcdef"), "at": at} for at in times]
    if order == "arrival":
        rows.sort(key=lambda row: row["at"] + draw.randrange(DELAY))
    cuts = sorted(draw.sample(range(1, 270), 5))
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    batches = [rows[start:stop] for start, stop in zip([0, *cuts], [*cuts, 270], strict=True)]
    streams.write_batches(tmp_path / "in", batches, schema)
    delay = WatermarkStrategy.for_bounded_out_of_orderness(0 if order == "event_time" else DELAY)
    sessions = EventTimeSessionWindows.with_gap(2)
    result = timerheap.spark.window_operator(
        streams.read_stream(spark, tmp_path / "in"), "k", sessions, Counted(), "n long", "at",
        order=order, watermark=delay, max_parallelism=2,
    )  # fmt: skip
    streams.run(result, tmp_path)
    found = {(row[0], row[1], row[-1]) for row in streams.sink(spark, tmp_path)}
    df = spark.read.parquet(str(tmp_path / "in")).withColumn("time", F.timestamp_millis("at"))
    window = F.session_window("time", "2 milliseconds")
    whole = df.groupBy("k", window).count().select("k", "session_window.start", "session_window.end", "count")
    last = max(times) - (0 if order == "event_time" else DELAY)
    wanted = {(k, start, n) for k, start, end, n in streams.rows(whole) if millis(end) <= last - 1}
    assert wanted <= found
    assert all(millis(start) >= last - 4 - DELAY for _, start, _ in found - wanted)


class Counted(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        yield (len(inputs),)
