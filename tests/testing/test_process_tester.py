"""`ProcessTester` without Spark: rows, time, timers, states, snapshots, and what it refuses."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from unseen_planes import GAP, INPUT, Echo, Overdue, made

from timerheap import (
    BatchProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    StateTtlConfig,
    Types,
    ValueStateDescriptor,
)
from timerheap.spark import EventTime, RightInput
from timerheap.testing import PendingTimer, ProcessTester
from timerheap.time import TimeDomain


def test_rows_wait_for_the_watermark_in_event_time_order() -> None:
    test = made()
    assert test.push([("a", 1, 500), ("b", 2, 100)]) == []
    assert test.buffered_rows() == [Row(plane="b", gate=2, at=100), Row(plane="a", gate=1, at=500)]
    assert test.timers() == []
    assert test.advance_watermark(400) == []
    assert test.timers() == [PendingTimer("b", 1100)]
    assert test.buffered_rows() == [Row(plane="a", gate=1, at=500)]
    assert test.advance_watermark(1100) == [Row(plane="b", at=1100)]
    assert (test.watermark, test.timers()) == (1100, [PendingTimer("a", 1500)])
    assert test.finish() == [Row(plane="a", at=1500)]


def test_rows_without_an_event_time_are_dropped_if_wanted() -> None:
    test = made(event_time=EventTime("at", null="drop"))
    test.push([("a", 1, None), ("b", 2, 100)])
    assert test.buffered_rows() == [Row(plane="b", gate=2, at=100)]
    with pytest.raises(ValueError, match='null must be "error" or "drop", got None'):
        made(event_time=EventTime("at", null=None))


def test_rows_are_processed_at_once_in_arrival_order() -> None:
    test = made(order="arrival")
    test.push([{"plane": "a", "gate": 1, "at": 500}, Row(plane="a", gate=2, at=100)])
    assert test.timers() == [PendingTimer("a", 1100)]
    assert test.state("due") == {"a": 1100}
    assert test.state("gates") == {"a": [1, 2]}
    assert test.state("times") == {"a": {1: 500, 2: 100}}
    assert test.advance_watermark(1100) == [Row(plane="a", at=1100)]
    assert test.state("due") == {}


class Past(KeyedProcessFunction):
    """A row sets a timer 400 ms before it."""

    def process_element(self, value: Row, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at - 400)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


class PastInColumns(BatchProcessFunction):
    """The same for many rows."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps - 400)

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        columns = [ctx.keys(due.ids).column("k"), pa.array(due.timestamps)]
        yield pa.record_batch(columns, names=["k", "at"])


@pytest.mark.parametrize("function", [Past(), PastInColumns()], ids=["rows", "columns"])
@pytest.mark.parametrize("clocked", [False, True])
def test_a_timer_in_the_past_fires_with_the_next_watermark(function: Any, clocked: bool) -> None:
    schema = "k string, at bigint"
    test = ProcessTester(function, "k", schema, schema, "at", order="arrival", processing_time=clocked)
    assert test.advance_watermark(1000) == []
    assert test.push([("a", 1200), ("b", 900)]) == []
    assert test.push([("c", 1300)]) == []
    if clocked:
        assert test.advance_clock(5000) == []
    assert test.advance_watermark(1001) == [Row(k="b", at=500), Row(k="a", at=800), Row(k="c", at=900)]
    assert test.push([("b", 1400)]) == []
    assert test.advance_watermark(1001) == [Row(k="b", at=1000)]


def test_late_rows_are_dropped_and_counted_or_returned() -> None:
    test = made()
    test.advance_watermark(100)
    assert test.push([("a", 1, 100)]) == []
    assert (test.late_row_count, test.buffered_rows()) == (1, [])
    with pytest.raises(ValueError, match='late must be "emit" for a test that returns late rows'):
        test.late_rows()
    test = made(late="emit")
    test.advance_watermark(100)
    late = Row(plane="a", gate=1, at=60)
    assert test.push([late]) == []
    assert test.late_rows() == [Row(plane="a", gate=1, at=60, late_by=41)]


def test_a_snapshot_is_restored_with_a_new_copy_of_the_function() -> None:
    test = made()
    test.push([("a", 1, 100), (None, 2, 900)])
    test.advance_watermark(500)
    snapshot, function = test.snapshot(), test.function
    before = test.timers(), test.state("gates"), test.buffered_rows(), test.watermark
    assert test.finish() == [Row(plane="a", at=1100), Row(plane=None, at=1900)]
    test.restore(snapshot)
    assert (test.timers(), test.state("gates"), test.buffered_rows(), test.watermark) == before
    assert test.function is not function
    other = made()
    other.restore(snapshot)
    assert other.finish() == [Row(plane="a", at=1100), Row(plane=None, at=1900)]


class Counts(KeyedProcessFunction):
    name = "count"

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor(self.name, Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value.k, self.count.value()


class CountsTo(Counts):
    name = "sum"


def test_a_state_that_a_new_version_has_not_asked_for_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def tester(function: KeyedProcessFunction) -> ProcessTester:
        return ProcessTester(function, "k", "k string", "k string, count bigint")

    before, after = tester(Counts()), tester(CountsTo())
    assert before.push([("a",), ("a",)])[-1] == Row(k="a", count=2)
    assert not caplog.messages
    after.restore(before.snapshot())
    assert after.push([("a",)]) == [Row(k="a", count=1)]
    after.push([("a",)])
    (message,) = caplog.messages
    assert message.startswith("state 'count' is in the checkpoint, and the function has not asked for it")
    assert "state_changes={'count': 'the new name'}" in message


class CountsText(Overdue):
    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.STRING()))


def damaged(snapshot: bytes) -> Iterator[bytes]:
    """Yield Arrow streams with other columns, and with offsets beyond the data."""
    batch = pa.ipc.open_stream(snapshot).read_next_batch()
    chunks = batch.column("data")
    offsets = np.array(np.frombuffer(chunks.buffers()[1], np.int32))
    offsets[1] = 2**30
    chunks = pa.Array.from_buffers(
        chunks.type, len(chunks), [None, pa.py_buffer(offsets), chunks.buffers()[2]]
    )
    for columns in (
        [*batch.columns[:2], batch.column("data").cast("large_binary")],
        [*batch.columns[:2], chunks],
    ):
        sink = pa.BufferOutputStream()
        fields = [
            pa.field(name, column.type) for name, column in zip(batch.schema.names, columns, strict=True)
        ]
        schema = pa.schema(fields, batch.schema.metadata)
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        yield sink.getvalue().to_pybytes()


def test_a_snapshot_that_does_not_fit_raises_and_changes_nothing() -> None:
    test = made()
    test.push([("a", 1, 100)])
    test.advance_watermark(500)
    other = made(CountsText())
    with pytest.raises(ValueError, match="state 'due' must stay a value state of int64, got"):
        other.restore(test.snapshot())
    assert (other.watermark, other.timers()) == (made().watermark, [])
    assert other.finish() == []
    for other_bytes in (b"nothing", *damaged(test.snapshot())):
        with pytest.raises(ValueError, match=r"snapshot must be what snapshot\(\) has returned"):
            test.restore(other_bytes)
    with pytest.raises(ValueError, match="max_parallelism must be 16, as in the checkpoint, got 4"):
        made(max_parallelism=4).restore(test.snapshot())
    assert test.timers() == [PendingTimer("a", 1100)]


class Later(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "TimerService.current_processing_time",
    "TimerService.register_processing_time_timer",
)
def test_the_clock_fires_processing_time_timers() -> None:
    test = made(Later(), event_time=None, processing_time=True)
    test.advance_clock(100)
    test.push([("a", 1, 0)])
    assert test.timers() == [PendingTimer("a", 110, None, TimeDomain.PROCESSING_TIME)]
    snapshot = test.snapshot()
    assert test.advance_clock(110) == []
    assert test.advance_clock(111) == [Row(plane="a", at=110)]
    test.restore(snapshot)
    assert test.advance_clock(111) == [Row(plane="a", at=110)]
    with pytest.raises(ValueError, match="now must be at least the present time, 111, got 5"):
        test.advance_clock(5)
    with pytest.raises(RuntimeError, match="processing_time must be True for a test with a clock"):
        made().advance_clock(5)
    with pytest.raises(RuntimeError, match="processing_time must be True for a function that uses it"):
        made(Later(), event_time=None).push([("a", 1, 0)])


class LateFromTheClock(KeyedProcessFunction):
    """Registers an event-time timer behind the watermark when a processing-time timer fires."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(5)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        timers = ctx.timer_service()
        if ctx.time_domain() is TimeDomain.PROCESSING_TIME:
            timers.register_event_time_timer(3)
        else:
            yield ctx.get_current_key(), timers.current_watermark()


class LateFromTheClockInColumns(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timers(ctx.ids, 5)

    def on_timers(self, due: Any, ctx: Any) -> Iterable[pa.RecordBatch]:
        if ctx.time_domain() is TimeDomain.PROCESSING_TIME:
            ctx.timer_service().register_event_time_timers(due.ids, 3)
        else:
            keys = ctx.keys(due.ids).column(0)
            yield pa.RecordBatch.from_arrays([keys, pa.array(ctx.watermarks)], ["plane", "at"])


@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize("function", [LateFromTheClock, LateFromTheClockInColumns])
def test_a_late_timer_of_the_clock_waits_for_the_next_advance(function: Any, order: str) -> None:
    test = made(function(), order=order, processing_time=True)
    test.push([("a", 1, 8)])
    test.advance_watermark(10)
    assert test.advance_clock(20) == []
    assert test.timers() == [PendingTimer("a", 3)]
    test.restore(test.snapshot())
    assert test.timers() == [PendingTimer("a", 3)]
    assert test.advance_watermark(12) == [Row(plane="a", at=10 if order == "event_time" else 12)]


class Columns(BatchProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + GAP)
        self.last.update_many(ctx.ids, batch.column("at"))

    def on_timers(self, due: Any, ctx: Any) -> Iterable[pa.RecordBatch]:
        keys = ctx.keys(due.ids)
        yield pa.RecordBatch.from_arrays([keys.column(0), pa.array(due.timestamps)], ["plane", "at"])


def test_a_batch_function_gets_columns() -> None:
    test = made(Columns())
    schema = pa.schema([("plane", pa.string()), ("gate", pa.int32()), ("at", pa.int64())])
    test.push(pa.table([["a", "b"], [1, 2], [100, 300]], schema=schema))
    test.advance_watermark(200)
    assert test.timers() == [PendingTimer("a", 1100)]
    assert test.state("last") == {"a": 100}
    assert test.finish() == [Row(plane="a", at=1100), Row(plane="b", at=1300)]


class Alarms(Columns):
    """Registers two alarms for each row, and deletes the earlier one."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        timers = ctx.timer_service()
        now = timers.current_processing_time()
        for wait in (5, 10):
            timers.register_processing_time_timers(ctx.ids, now + wait)
        timers.delete_processing_time_timers(ctx.ids, now + 5)


@pytest.mark.promises(
    "PyFlink",
    "added",
    "BatchTimerService.current_processing_time",
    "BatchTimerService.register_processing_time_timers",
    "BatchTimerService.delete_processing_time_timers",
)
def test_the_clock_fires_processing_time_timers_in_columns() -> None:
    test = made(Alarms(), event_time=None, processing_time=True)
    test.advance_clock(100)
    test.push([("a", 1, 0), ("b", 2, 0)])
    assert test.advance_clock(110) == []
    assert test.advance_clock(111) == [Row(plane="a", at=110), Row(plane="b", at=110)]


class Meet(KeyedCoProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.left = runtime_context.get_state(ValueStateDescriptor("left", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.left.update(value.at)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value.tail, self.left.value()


def test_two_inputs_share_state_in_event_time_order() -> None:
    right_input = RightInput("tail string, seen bigint", key="tail", event_time="seen")
    test = made(Meet(), right_schema=right_input)
    test.push_right([("a", 200), ("a", 50)])
    test.push([("a", 1, 100)])
    left, right = Row(plane="a", gate=1, at=100), [Row(tail="a", seen=50), Row(tail="a", seen=200)]
    assert test.buffered_rows() == [right[0], left, right[1]]
    assert test.finish() == [Row(plane="a", at=None), Row(plane="a", at=100)]
    assert test.state("left") == {"a": 100}
    with pytest.raises(ValueError, match="function must be a KeyedCoProcessFunction to have a right input"):
        made().push_right([])
    with pytest.raises(
        ValueError,
        match=r"right\.key must be of type string like column 'plane' of input_schema, got",
    ):
        made(Meet(), right_schema=RightInput("tail int, seen bigint", key="tail", event_time="seen"))


class Fails(Overdue):
    def process_element(self, value: Any, ctx: Any) -> None:
        if value.gate < 0:
            raise KeyError(value.plane)
        super().process_element(value, ctx)


def test_a_function_that_has_failed_needs_a_snapshot() -> None:
    test = made(Fails(), order="arrival")
    test.push([("a", 1, 100)])
    snapshot = test.snapshot()
    with pytest.raises(KeyError, match="b"):
        test.push([("a", 1, 200), ("b", -1, 300)])
    with pytest.raises(RuntimeError, match=r"the function must not have failed before; restore\(\) a snap"):
        test.push([("a", 1, 200)])
    test.restore(snapshot)
    assert test.finish() == [Row(plane="a", at=1100)]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([("a", "1", 5)], ValueError, "rows must fit the schema: column 'gate': '1' \\(str\\) does not fit"),
        ([("a", 1 << 31, 5)], ValueError, r"column 'gate': 2147483648 \(int\) does not fit int32"),
        ([("a", 1)], ValueError, r"rows must be dicts, tuples or Rows with the columns \['plane', 'gate'"),
        ([{"plane": "a", "gat": 1}], ValueError, r"rows must have the columns .*, got \['gat'\]"),
        ([("a", 1, None)], ValueError, "rows must have a value in column 'at', which is the event time"),
        (("a"), TypeError, r"rows must be a list of rows, .* pass \[row\] for one"),
        (Row(plane="a", gate=1, at=5), TypeError, r"rows must be a list of rows"),
        (pa.table({"plane": ["a"]}), ValueError, r"rows must have the columns .*, got \['plane'\]"),
    ],
)
def test_rows_that_do_not_fit_raise_before_any_is_processed(rows: Any, error: Any, message: str) -> None:
    test = made(order="arrival")
    with pytest.raises(error, match=message):
        test.push(rows)
    test.push([("a", 1, 5)])
    assert test.timers() == [PendingTimer("a", 1005)]


def test_wrong_arguments_raise() -> None:
    with pytest.raises(ValueError, match=r"input_schema must be a DDL string .*, got 'plane strin"):
        made(input_schema="plane strinG g")
    with pytest.raises(TypeError, match=r"output_schema must be a DDL string such as .*, got 3"):
        made(output_schema=3)
    with pytest.raises(ValueError, match="key must name one column, got 'x', which names none"):
        made(key="x")
    with pytest.raises(ValueError, match="event_time must be a timestamp or a bigint of epoch milliseconds"):
        made(event_time="plane")
    with pytest.raises(ValueError, match='order must be "event_time" or "arrival", got'):
        made(order="time")
    with pytest.raises(TypeError, match="function must be an instance, got the class Overdue"):
        made(Overdue)
    with pytest.raises(ValueError, match="right_schema needs a KeyedCo"):
        made(right_schema=RightInput("plane string", key="plane"))
    with pytest.raises(ValueError, match=r"name must be one of \['due', 'gates', 'times'\], got 'x'"):
        made().state("x")
    test = made()
    test.advance_watermark(5)
    with pytest.raises(ValueError, match="timestamp must be at least the watermark, 5, got 4"):
        test.advance_watermark(4)


class Wrong(Overdue):
    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), str(timestamp)


def test_results_that_do_not_fit_raise() -> None:
    test = made(Wrong())
    test.push([("a", 1, 5)])
    with pytest.raises(ValueError, match="an output row does not fit output_schema: column 'at'"):
        test.finish()


def test_values_of_all_types_come_as_on_spark() -> None:
    schema = (
        "k decimal(10,2), at timestamp, n timestamp_ntz, d date, x double, b boolean, y binary, "
        "l array<int>, m map<string,bigint>, s struct<a:int,b:string>, t smallint not null"
    )
    test = ProcessTester(Echo(), ["k", "d", "x"], schema, schema, "at")
    at = datetime.datetime(2024, 3, 31, 1, 30, tzinfo=datetime.UTC)
    naive, day = at.replace(tzinfo=None), at.date()
    row = (decimal.Decimal("1.50"), at, naive, day, -0.0, True, b"\0", [1, None], {"a": 2}, (1, "x"), 3)
    test.push([row, (None, at, None, None, None, None, None, None, None, None, 0)])
    first, second = sorted(test.finish(), key=lambda row: row.t, reverse=True)
    assert first.at.astimezone(datetime.UTC) == at
    assert tuple(first)[2:] == (naive, day, 0.0, True, b"\0", [1, None], {"a": 2}, Row(a=1, b="x"), 3)
    assert second.k is None
    with pytest.raises(ValueError, match="column 't', which is not null in the schema"):
        test.push([(*row[:-1], None)])


def test_rows_of_one_time_come_in_the_order_of_their_columns() -> None:
    rows = [("a", gate, 5) for gate in range(20)]
    results = []
    for seed in (1, 2):
        test = ProcessTester(Echo(), "plane", INPUT, INPUT, "at")
        test.push([rows[i] for i in np.random.default_rng(seed).permutation(20)])
        results.append(test.finish())
    assert results[0] == results[1] == rows


class Stray(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.get_state(ValueStateDescriptor("n", Types.LONG()))


class StrayInColumns(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.get_runtime_context()


@pytest.mark.parametrize("function", [Stray(), StrayInColumns()])
def test_a_state_is_asked_for_in_open(function: Any) -> None:
    message = r"must be called in open\(self, runtime_context\).*self.seen = runtime_context.get_state"
    with pytest.raises(AttributeError, match=message):
        ProcessTester(function, "k", "k string", "k string").push([("a",)])


def nested(levels: int) -> str:
    """A type of so many levels of arrays around an int."""
    return "array<" * levels + "int" + ">" * levels


class Deep(KeyedProcessFunction):
    def __init__(self, levels: int) -> None:
        self.levels = levels

    def open(self, runtime_context: Any) -> None:
        descriptor = MapStateDescriptor("deep", Types.LONG(), nested(self.levels))
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(1).build())
        self.deep = runtime_context.get_map_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.deep.put(1, value.x)
        yield value


def test_a_column_or_state_that_is_nested_too_deeply_is_named() -> None:
    def run(levels: int, state: int = 0) -> list[Row]:
        schema = f"k string, x {nested(levels)}, at bigint"
        with ProcessTester(Deep(state or levels), "k", schema, schema, "at", late="emit") as tester:
            tester.push([("a", [], 5)])
            found = tester.advance_watermark(10)
            tester.push([("a", [], 5)])
            tester.restore(tester.snapshot())
            assert len(tester.late_rows()) == 1
            return found

    assert run(56) == [Row(k="a", x=[], at=5)]
    message = "must be nested at most 56 levels deep .*, got 57 levels; flatten it"
    with pytest.raises(ValueError, match=f"input_schema: column 'x' {message}"):
        run(57)
    with pytest.raises(ValueError, match=f"state 'deep'.* {message}"):
        run(1, state=57)
