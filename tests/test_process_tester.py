"""`ProcessTester` without Spark: rows, time, timers, states, snapshots, and what it refuses."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

import timerheap as flink
from timerheap import (
    BatchProcessFunction,
    DistributionResult,
    IntervalJoin,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    TimestampAssigner,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.testing import PendingTimer, ProcessTester
from timerheap.time import TimeDomain

GAP = 1000
INPUT = "plane string, gate int, at bigint"


class Overdue(KeyedProcessFunction):
    """Yields a plane that has not been seen for a second; keeps where it was seen."""

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))
        self.gates = runtime_context.get_list_state(ListStateDescriptor("gates", Types.INT()))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", Types.INT(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.due.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.due.value())
        self.due.update(ctx.timestamp() + GAP)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP)
        self.gates.add(value.gate)
        self.times.put(value.gate, value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        self.due.clear()
        yield ctx.get_current_key(), timestamp


def made(function: Any = None, **options: Any) -> ProcessTester:
    arguments: dict[str, Any] = {
        "key": "plane",
        "input_schema": INPUT,
        "output_schema": "plane string, at bigint",
        "event_time": "at",
    }
    return ProcessTester(function or Overdue(), **{**arguments, **options})


def test_rows_wait_for_the_watermark_in_event_time_order() -> None:
    test = made()
    assert test.push([("a", 1, 500), ("b", 2, 100)]) == []
    assert test.waiting_rows() == [Row(plane="b", gate=2, at=100), Row(plane="a", gate=1, at=500)]
    assert test.timers() == []
    assert test.advance_watermark(400) == []
    assert test.timers() == [PendingTimer("b", 1100)]
    assert test.waiting_rows() == [Row(plane="a", gate=1, at=500)]
    assert test.advance_watermark(1100) == [Row(plane="b", at=1100)]
    assert (test.watermark, test.timers()) == (1100, [PendingTimer("a", 1500)])
    assert test.finish() == [Row(plane="a", at=1500)]


def test_rows_are_processed_at_once_in_arrival_order() -> None:
    test = made(order="arrival")
    test.push([{"plane": "a", "gate": 1, "at": 500}, Row(plane="a", gate=2, at=100)])
    assert test.timers() == [PendingTimer("a", 1100)]
    assert test.state("due") == {"a": 1100}
    assert test.state("gates") == {"a": [1, 2]}
    assert test.state("times") == {"a": {1: 500, 2: 100}}
    assert test.advance_watermark(1100) == [Row(plane="a", at=1100)]
    assert test.state("due") == {}


def test_late_rows_are_dropped_and_counted_or_returned() -> None:
    test = made()
    test.advance_watermark(100)
    assert test.push([("a", 1, 100)]) == []
    assert (test.late_rows, test.waiting_rows()) == (1, [])
    test = made(late="emit")
    test.advance_watermark(100)
    late = Row(plane="a", gate=1, at=60)
    assert test.push([late]) == [Row(plane=None, at=None, late_by=41, late_row=late)]


def test_a_snapshot_is_restored_with_a_new_copy_of_the_function() -> None:
    test = made()
    test.push([("a", 1, 100), (None, 2, 900)])
    test.advance_watermark(500)
    snapshot, function = test.snapshot(), test.function
    before = test.timers(), test.state("gates"), test.waiting_rows(), test.watermark
    assert test.finish() == [Row(plane="a", at=1100), Row(plane=None, at=1900)]
    test.restore(snapshot)
    assert (test.timers(), test.state("gates"), test.waiting_rows(), test.watermark) == before
    assert test.function is not function
    other = made()
    other.restore(snapshot)
    assert other.finish() == [Row(plane="a", at=1100), Row(plane=None, at=1900)]


class CountsText(Overdue):
    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.STRING()))


def test_a_snapshot_that_does_not_fit_raises_and_changes_nothing() -> None:
    test = made()
    test.push([("a", 1, 100)])
    test.advance_watermark(500)
    other = made(CountsText())
    with pytest.raises(ValueError, match="state 'due' is a value state of int64, not a value state of str"):
        other.restore(test.snapshot())
    assert (other.watermark, other.timers()) == (made().watermark, [])
    assert other.finish() == []
    with pytest.raises(ValueError, match=r"snapshot must be what snapshot\(\) has returned"):
        test.restore(b"nothing")
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
    assert test.timers() == [PendingTimer("a", 110, 0, TimeDomain.PROCESSING_TIME)]
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


class Columns(BatchProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.key_hashes, ctx.timestamps + GAP)
        self.last.update_many(ctx.key_hashes, batch.column("at"))

    def on_timers(self, due: Any, ctx: Any) -> Iterable[pa.RecordBatch]:
        keys = ctx.keys(due.key_hashes)
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
            timers.register_processing_time_timers(ctx.key_hashes, now + wait)
        timers.delete_processing_time_timers(ctx.key_hashes, now + 5)


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
    options: dict[str, Any] = {"right_schema": "tail string, seen bigint", "right_key": "tail"}
    test = made(Meet(), right_event_time="seen", **options)
    test.push_right([("a", 200), ("a", 50)])
    test.push([("a", 1, 100)])
    left, right = Row(plane="a", gate=1, at=100), [Row(tail="a", seen=50), Row(tail="a", seen=200)]
    assert test.waiting_rows() == [right[0], left, right[1]]
    assert test.finish() == [Row(plane="a", at=None), Row(plane="a", at=100)]
    assert test.state("left") == {"a": 100}
    with pytest.raises(ValueError, match="function must be a KeyedCoProcessFunction to have a right input"):
        made().push_right([])
    with pytest.raises(ValueError, match="right_key and right_event_time must have the types of the left"):
        made(Meet(), right_event_time="seen", right_schema="tail int, seen bigint", right_key="tail")


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
    with pytest.raises(ValueError, match="right_event_time and right_watermark need a KeyedCo"):
        made(right_key="plane")
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


class Echo(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value


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


def test_many_rows_of_one_time_come_in_an_order_of_their_own() -> None:
    rows = [("a", gate, 5) for gate in range(20)]
    results = []
    for seed in (1, 2):
        test = ProcessTester(Echo(), "plane", INPUT, INPUT, "at")
        test.push([rows[i] for i in np.random.default_rng(seed).permutation(20)])
        results.append(test.finish())
    assert results[0] == results[1] != rows


LATE = OutputTag("late", Types.ROW_NAMED(["plane", "by"], [Types.STRING(), Types.LONG()]))
GATES = OutputTag("gates", Types.INT())


class Sorted(KeyedProcessFunction):
    """Sends rows to two side outputs, in both ways; the results have two columns like a pair of a tag."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        if value.gate == 0:
            yield LATE, flink.Row(by=7, plane=value.plane)
            return
        ctx.output(GATES, value.gate)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP)
        yield value.plane, value.at

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        return [(LATE, (ctx.get_current_key(), timestamp)), (ctx.get_current_key(), timestamp)]


@pytest.mark.promises("PyFlink", "supported", "OutputTag")
@pytest.mark.promises(
    "PyFlink",
    "added",
    "KeyedProcessFunction.Context.output",
    note="as in Flink's Java API; `yield tag, value` is the same",
)
def test_a_function_sends_to_side_outputs_that_it_refers_to() -> None:
    test = made(Sorted())
    test.push([("a", 1, 0), ("b", 0, 5), ("b", 3, 10)])

    assert test.advance_watermark(20) == [Row(plane="a", at=0), Row(plane="b", at=10)]
    assert test.side_output(GATES) == [1, 3]
    assert test.side_output(LATE) == [Row(plane="b", by=7)]
    assert test.finish() == [Row(plane="a", at=1000), Row(plane="b", at=1010)]
    assert test.side_output(LATE)[1:] == [Row(plane="a", by=1000), Row(plane="b", by=1010)]
    with pytest.raises(ValueError, match="tag must be one of the side outputs"):
        test.side_output(OutputTag("other", "int"))


@pytest.mark.parametrize(
    ("side_outputs", "error", "message"),
    [
        ([GATES], ValueError, "side_outputs must have the tag 'late', to which the function sends values"),
        ([OutputTag("late", "int"), GATES], ValueError, "does not fit the type of the side output 'late'"),
        ([], ValueError, "side_outputs must have the tag 'gates'"),
    ],
)
def test_a_value_for_a_tag_that_does_not_fit_raises(
    side_outputs: Any, error: type[Exception], message: str
) -> None:
    test = made(Sorted(), side_outputs=side_outputs)
    test.push([("a", 1, 0), ("b", 0, 5)])
    with pytest.raises(error, match=message):
        test.finish()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: made(side_outputs=[LATE, LATE]), ValueError, "side_outputs must have different ids"),
        (lambda: made(side_outputs="late"), TypeError, "side_outputs must be a list of OutputTag"),
        (lambda: OutputTag(""), ValueError, "tag_id must be a non-empty str"),
        (lambda: OutputTag("late"), TypeError, "type_info of OutputTag.'late'. must be given"),
        (lambda: made(side_outputs=[OutputTag("late", int)]), TypeError, "side output 'late': the type must"),
    ],
)
def test_a_wrong_tag_raises(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


class SortedColumns(BatchProcessFunction):
    def process_batch(self, batch: Any, ctx: Any) -> Iterable[Any]:
        yield LATE, pa.record_batch({"by": batch["at"], "plane": batch["plane"]})
        yield batch.select(["plane", "at"])


def test_a_function_on_columns_sends_record_batches_to_a_side_output() -> None:
    test = made(SortedColumns())
    test.push([("a", 1, 0)])
    assert test.finish() == [Row(plane="a", at=0)]
    assert test.side_output(LATE) == [Row(plane="a", by=0)]


ROW = f"struct<{INPUT}>"


class Alone(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterable[Any]:
        if right is None:
            ctx.output(LATE, (left.plane, ctx.get_timestamp()))
        else:
            yield left.plane, right.at


def joined(function: Any, **options: Any) -> ProcessTester:
    return made(IntervalJoin(0, 10, function, left_type=ROW, right_type=ROW, **options))


def test_an_interval_join_sends_to_the_side_outputs_of_its_functions() -> None:
    test = joined(Alone(), how="left", late_right=lambda row, ctx: [(GATES, row.gate)])
    test.push([("a", 1, 500), ("b", 2, 500)])
    assert test.push_right([("a", 1, 505)]) == [Row(plane="a", at=505)]
    assert test.advance_watermark(600) == []
    test.push_right([("b", 9, 505)])
    assert test.side_output(LATE) == [Row(plane="b", by=500)]
    assert test.side_output(GATES) == [9]

    test = joined(lambda left, right: (LATE, (left.plane, right.at)))
    test.push([("a", 1, 500)])
    assert test.push_right([("a", 1, 505)]) == []
    assert test.side_output(LATE) == [Row(plane="a", by=505)]


class SecondOfGate(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value.gate * 1000


def assigned(function: Any, **options: Any) -> ProcessTester:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondOfGate())
    return made(function, **{"event_time": None, "watermark": strategy, **options})


def test_a_timestamp_assigner_computes_the_event_time_of_rows() -> None:
    test = assigned(Overdue(), late="emit")
    assert test.push([("a", 2, 0), ("b", 1, 0)]) == []
    assert test.waiting_rows() == [Row(plane="b", gate=1, at=0), Row(plane="a", gate=2, at=0)]
    test.advance_watermark(1_000)
    assert test.timers() == [PendingTimer("b", 2_000)]
    assert test.push([("c", 0, 7)])[0].late_row == Row(plane="c", gate=0, at=7)
    assert test.push([]) == []
    test.restore(test.snapshot())
    assert [row[:2] for row in test.finish()] == [("b", 2_000), ("a", 3_000)]


def test_one_of_two_inputs_may_have_a_timestamp_assigner() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondOfGate())
    times = IntervalJoin(0, 10, lambda left, right: left.plane, left_type=ROW, right_type=ROW)
    test = made(times, output_schema="plane string", right_watermark=strategy)
    test.push([("a", 0, 1_995), ("b", 0, 3_995)])
    assert test.push_right([("a", 2, 0), ("b", 2, 0)]) == [Row(plane="a")]

    both = assigned(times, output_schema="plane string", order="event_time")
    both.push([("a", 2, 0)])
    both.push_right([("a", 2, 0), ("b", 2, 0)])
    assert len(both.waiting_rows()) == 3
    assert both.finish() == [Row(plane="a")]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"event_time": "at"}, ValueError, "watermark must have no timestamp assigner"),
        ({"watermark": 5, "event_time": "at"}, TypeError, "watermark must be a WatermarkStrategy, got 5"),
        ({"watermark": "5 seconds"}, ValueError, "event_time must name the event-time column"),
        ({"right_watermark": "5 seconds"}, ValueError, "right_watermark need a KeyedCoProcessFunction"),
    ],
)
def test_an_assigner_that_cannot_be_used_raises(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        assigned(Overdue(), **options)


def test_a_delay_may_be_the_watermark_as_in_process() -> None:
    assert made(watermark="5 seconds").push([("a", 1, 0)]) == []


def test_an_assigner_that_returns_no_timestamp_raises_before_any_row_is_processed() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.plane)
    test = made(event_time=None, watermark=strategy)
    with pytest.raises(ValueError, match=r"extract_timestamp must return epoch milliseconds, .* got 'a'"):
        test.push([("a", 1, 0)])
    assert test.finish() == []


class Counting(Echo):
    """Counts rows by gate, whose counters are made as the gates come."""

    def open(self, runtime_context: Any) -> None:
        self.metrics = runtime_context.get_metrics_group()
        self.metrics.counter("unused")

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.metrics.add_group("gate", str(value.gate)).counter("rows").inc()
        self.metrics.distribution("at").update(value.at)
        return super().process_element(value, ctx)


class CountingColumns(SortedColumns):
    def open(self, runtime_context: Any) -> None:
        self.rows = runtime_context.get_metrics_group().counter("rows")

    def process_batch(self, batch: Any, ctx: Any) -> Iterable[Any]:
        self.rows.inc(len(batch))
        return super().process_batch(batch, ctx)


def test_counters_are_those_of_all_rows_so_far() -> None:
    test = made(Counting(), output_schema=INPUT)
    assert test.counters == test.distributions == {}
    test.push([("a", 1, 500), ("b", 2, 100)])
    test.advance_watermark(200)
    assert test.counters == {"unused": 0, "gate.2.rows": 1}
    snapshot = test.snapshot()
    test.push([("c", 2, 300)])
    test.finish()
    assert test.counters == {"unused": 0, "gate.1.rows": 1, "gate.2.rows": 2}
    assert test.distributions == {"at": DistributionResult(3, 900, 100, 500)}
    test.restore(snapshot)
    assert test.counters == {}

    columns = made(CountingColumns())
    columns.push([("a", 1, 0), ("b", 2, 0)])
    columns.finish()
    assert columns.counters == {"rows": 2}


def test_an_outer_interval_join_emits_misses_and_late_rows() -> None:
    join = IntervalJoin(
        "-20 milliseconds",
        "30 milliseconds",
        lambda order, visit: (order and order.item, visit and visit.page),
        how="full",
        left_type="struct<customer string, item bigint, at bigint>",
        right_type="struct<customer string, page string, at bigint>",
    )
    with ProcessTester(
        join,
        "customer",
        "customer string, item bigint, at bigint",
        "item bigint, page string",
        "at",
        right_schema="customer string, page string, at bigint",
    ) as test:
        assert test.push([("a", 1, 100), ("b", 2, 100)]) == []
        assert test.push_right([("a", "x", 130), ("c", "y", 131)]) == [(1, "x")]
        assert test.advance_watermark(129) == []
        assert test.advance_watermark(130) == [(2, None)]
        assert test.push([("b", 3, 99), ("a", 4, 105)]) == [
            (3, None),
            (4, "x"),
        ]  # late, and joined all the same
        assert test.advance_watermark(150) == []
        assert test.advance_watermark(151) == [(None, "y")]
        assert test.advance_watermark(1_000) == []
