"""What functions on a ProcessTester emit: side outputs, joins, event times that are assigned, counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from unseen_planes import GAP, INPUT, Echo, Overdue, made

import timerheap as flink
from timerheap import (
    BatchProcessFunction,
    DistributionResult,
    IntervalJoin,
    KeyedProcessFunction,
    OutputTag,
    ProcessJoinFunction,
    TimestampAssigner,
    Types,
    WatermarkStrategy,
)
from timerheap.spark import RightInput
from timerheap.testing import PendingTimer, ProcessTester

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
    assert test.buffered_rows() == [Row(plane="b", gate=1, at=0), Row(plane="a", gate=2, at=0)]
    test.advance_watermark(1_000)
    assert test.timers() == [PendingTimer("b", 2_000)]
    assert test.push([("c", 0, 7)]) == []
    assert test.late_rows() == [Row(plane="c", gate=0, at=7, late_by=1_001)]
    assert test.push([]) == []
    test.restore(test.snapshot())
    assert [row[:2] for row in test.finish()] == [("b", 2_000), ("a", 3_000)]


def test_one_of_two_inputs_may_have_a_timestamp_assigner() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondOfGate())
    times = IntervalJoin(0, 10, lambda left, right: left.plane, left_type=ROW, right_type=ROW)
    test = made(times, output_schema="plane string", right_schema=RightInput(INPUT, watermark=strategy))
    test.push([("a", 0, 1_995), ("b", 0, 3_995)])
    assert test.push_right([("a", 2, 0), ("b", 2, 0)]) == [Row(plane="a")]

    both = assigned(times, output_schema="plane string", order="event_time")
    both.push([("a", 2, 0)])
    both.push_right([("a", 2, 0), ("b", 2, 0)])
    assert len(both.buffered_rows()) == 3
    assert both.finish() == [Row(plane="a")]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"event_time": "at"}, ValueError, "watermark must have no timestamp assigner"),
        ({"watermark": 5.5, "event_time": "at"}, TypeError, "watermark must be a WatermarkStrategy, got 5.5"),
        ({"watermark": "5 seconds"}, ValueError, "event_time must name the event-time column"),
        ({"right_schema": "k string"}, ValueError, "right_schema needs a KeyedCoProcessFunction"),
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
