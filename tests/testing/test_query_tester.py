"""`QueryTester` runs whole queries as Spark does: their watermarks, channels, clocks and side outputs."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from labels import UNNAMED, Label

from timerheap import (
    IntervalJoin,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark import EventTime, RightInput, WindowedBy
from timerheap.testing import ProcessTester, QueryOperator, QueryRows, QueryTester
from timerheap.timer import MIN_WATERMARK
from timerheap.windows import AggregateFunction, TumblingEventTimeWindows

SCHEMA = "k string, at bigint"
ROW = "struct<k:string,at:bigint>"
TIMES = OutputTag("times", Types.LONG())
PATIENT = WatermarkStrategy.for_bounded_out_of_orderness(1_000)


class Echo(KeyedProcessFunction):
    """Passes rows on, and sets a timer a second after each, whose result has the timer's time."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.k, value.at
        ctx.timer_service().register_event_time_timer(value.at + 1_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


class Pass(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.k == "bad":
            raise ArithmeticError("bad")
        yield TIMES, value.at
        yield value.k, value.at


class Counts(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value.k, self.count.value()


class CountsTwice(Counts):
    def process_element(self, value: Any, ctx: Any) -> Any:
        for k, count in super().process_element(value, ctx):
            yield k, 2 * count


class Alarm(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


class Limits(KeyedBroadcastProcessFunction):
    limits = MapStateDescriptor("limits", Types.STRING(), Types.LONG())

    def process_element(self, value: Any, ctx: Any) -> Any:
        limit = ctx.get_broadcast_state(self.limits).get("all")
        if limit is not None and value.at > limit:
            yield value.k, value.at

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(self.limits).put("all", value.at)


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def echo(query: QueryTester, rows: QueryRows, watermark: Any = None, **options: Any) -> QueryOperator:
    return query.process(rows, "k", Echo(), SCHEMA, "at", watermark=watermark, **options)


def test_the_second_follows_the_first() -> None:
    query = QueryTester()
    rows = query.source(SCHEMA)
    first = echo(query, rows)
    second = echo(query, first)
    query.push({rows: [("a", 0), ("b", 500), ("c", 1_000)]})
    assert first.take() == [("a", 0), ("b", 500)]
    assert second.take() == [("a", 0), ("b", 500)]
    query.advance_watermark(1_000)
    assert first.take() == [("c", 1_000), ("a", 1_000)]
    assert sorted(second.take()) == [("a", 1_000), ("a", 1_000), ("c", 1_000)]
    assert (first.watermark, second.watermark, second.tester.late_row_count) == (1_000, 1_000, 0)
    query.finish()
    assert sorted(second.take()) == sorted(
        [("a", 2_000), ("b", 1_500), ("b", 1_500), ("b", 2_500), ("c", 2_000), ("c", 2_000), ("c", 3_000)]
    )


def test_in_order_of_arrival_results_come_before_the_watermark() -> None:
    query = QueryTester()
    rows = query.source(SCHEMA)
    last: QueryRows = rows
    for _ in range(3):
        last = echo(query, last, order="arrival")
    assert isinstance(last, QueryOperator)
    query.push({rows: [("a", 0)]})
    assert last.take() == [("a", 0)]
    query.advance_watermark(1_000)
    assert sorted(last.take()) == 3 * [("a", 1_000)]


def test_the_clock_goes_to_all_that_have_one() -> None:
    query = QueryTester(now=5)
    rows = query.source(SCHEMA)
    first = query.process(rows, "k", Alarm(), SCHEMA, processing_time=True)
    second = query.process(first, "k", Alarm(), SCHEMA, processing_time=True)
    third = echo(query, rows)
    query.push({rows: [("a", 0)]})
    query.advance_clock(16)
    assert (first.take(), second.take()) == ([("a", 15)], [])
    query.advance_clock(27)
    assert (first.take(), second.take()) == ([], [("a", 26)])
    assert (first.tester.has_clock, third.tester.has_clock, query.now) == (True, False, 27)


def test_pairs_of_an_interval_join_are_in_time() -> None:
    join = IntervalJoin(0, 5_000, lambda left, right: left, left_type=ROW, right_type=ROW)
    query = QueryTester()
    left, right = query.source(SCHEMA), query.source(SCHEMA)
    pairs = query.process_two(left, right, "k", join, SCHEMA, "at")
    second = echo(query, pairs)
    query.push({left: [("a", 0)]})
    query.advance_watermark(4_000)
    assert second.watermark == -1_000
    query.push({right: [("a", 5_000)]})
    query.finish()
    assert second.take() == [("a", 0), ("a", 1_000)]


def whole() -> tuple[QueryTester, QueryRows, QueryRows, dict[str, Any]]:
    """Two sources, one with channels, a function with a side output, and two operators behind it."""
    query = QueryTester()
    readings = query.source("k string, line int, at bigint")
    names = query.source("k string, at bigint, name string")
    labelled = query.process_two(
        readings,
        RightInput(names, event_time="at", watermark=0),
        "k",
        Label(),
        SCHEMA,
        EventTime("at", channel="line"),
        watermark=PATIENT,
    )
    windows = query.window_operator(
        labelled,
        "k",
        WindowedBy(TumblingEventTimeWindows.of(10_000)),
        Count(),
        "count bigint",
        "at",
        accumulator_type=Types.LONG(),
    )
    counts = query.process(labelled.side_output(UNNAMED), "k", Counts(), "k string, n bigint", "at")
    return query, readings, names, {"labelled": labelled, "windows": windows, "counts": counts}


def test_a_whole_query_with_channels_a_side_output_and_windows() -> None:
    query, readings, names, of = whole()
    query.push({names: [("a", 0, "hall"), ("z", 60_000, "end")]})
    query.push({readings: [("a", 1, 1_000), ("b", 2, 2_000), ("a", 1, 30_000)]})
    assert of["labelled"].watermark == 999  # line 2 is at 2,000, less a second and the ms
    assert of["labelled"].take() == []
    query.push({readings: [("b", 2, 12_000)]})
    assert of["labelled"].watermark == 10_999
    assert of["labelled"].take() == [("hall", 1_000)]
    assert of["labelled"].side_output(UNNAMED).take() == [("b", 2_000)]
    assert of["counts"].take() == [("b", 1)]
    assert [(row.k, row.count) for row in map(_named, of["windows"].take())] == [("hall", 1)]
    query.finish()
    assert of["labelled"].take() == [("hall", 30_000)]
    assert of["counts"].take() == [("b", 2)]
    assert [row.window_end.timestamp() for row in of["windows"].take()] == [40]
    assert of["labelled"].tester.state("name") == {"a": "hall", "z": "end"}


def _named(row: Any) -> Any:
    """Return a row whose column is named like a method of tuples."""
    return type("Named", (), dict(zip(row.__fields__, row, strict=True)))


def test_a_snapshot_of_a_whole_query_goes_on_in_a_new_one() -> None:
    query, readings, names, of = whole()
    query.push({names: [("a", 0, "hall"), ("z", 60_000, "end")]})
    query.push({readings: [("a", 1, 1_000), ("b", 2, 2_000), ("b", 1, 30_000)]})
    snapshot = query.snapshot()
    query.push({readings: [("b", 2, 31_000)]})
    expected = {name: each.take() for name, each in of.items()}
    other, readings, _, of = whole()
    other.restore(snapshot)
    assert of["labelled"].watermark == 999
    other.push({readings: [("b", 2, 31_000)]})
    assert {name: each.take() for name, each in of.items()} == expected
    other.restore(snapshot)
    assert of["labelled"].tester.watermark == 999
    assert of["labelled"].side_output(UNNAMED).take() == []


def test_a_snapshot_is_restored_by_a_new_version() -> None:
    def made(function: KeyedProcessFunction) -> tuple[QueryTester, QueryRows, QueryOperator]:
        query = QueryTester()
        rows = query.source(SCHEMA)
        return query, rows, query.process(rows, "k", function, "k string, n bigint")

    query, rows, counts = made(Counts())
    query.push({rows: [("a", 0)]})
    assert counts.take() == [("a", 1)]
    other, rows, counts = made(CountsTwice())
    other.restore(query.snapshot())
    other.push({rows: [("a", 1)]})
    assert counts.take() == [("a", 4)]
    with pytest.raises(ValueError, match="snapshot must be what snapshot"):
        other.restore(b"no snapshot")
    with pytest.raises(ValueError, match="snapshot must be that of a query with 3 operators, got one of 1"):
        whole()[0].restore(query.snapshot())
    assert counts.tester.state("count") == {"a": 2}


def test_a_silent_channel_becomes_idle_by_the_clock() -> None:
    query = QueryTester(now=1_000)
    rows = query.source("k string, line string, at bigint")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(60_000)
    at = EventTime("at", channel="line")
    passed = query.process(rows, "k", Pass(), SCHEMA, at, watermark=strategy, max_parallelism=1)
    query.push({rows: [("a", "north", 5_000), ("b", "south", 100)]})
    assert passed.watermark == 99
    query.advance_clock(30_000)
    query.push({rows: [("a", "north", 7_000)]})
    assert passed.watermark == 99
    query.advance_clock(61_001)
    assert passed.watermark == 6_999
    assert passed.take() == [("b", 100), ("a", 5_000)]
    assert passed.side_output(TIMES).take() == [(100,), (5_000,)]
    query.advance_clock(90_001)  # all are idle: the furthest counts
    assert passed.watermark == 6_999


def test_silent_sources_follow_the_clock() -> None:
    query = QueryTester(now=100_000)
    rows = query.source(SCHEMA)
    strategy = PATIENT.with_wall_clock(after="10 seconds", lag="5 seconds")
    first = echo(query, rows, strategy)
    second = echo(query, first)
    query.push({rows: [("a", 99_000)]})
    assert (first.watermark, first.take()) == (97_999, [])
    query.advance_clock(109_999)
    assert first.watermark == 97_999
    query.advance_clock(110_000)
    assert (first.watermark, second.watermark) == (105_000, 105_000)
    assert first.take() == [("a", 99_000), ("a", 100_000)]
    assert sorted(second.take()) == [("a", 99_000), ("a", 100_000), ("a", 100_000), ("a", 101_000)]


def test_rows_far_ahead_of_the_clock_are_told(caplog: pytest.LogCaptureFixture) -> None:
    query = QueryTester()
    rows = query.source(SCHEMA)
    first = echo(query, rows, PATIENT.with_idleness(1_000))
    with caplog.at_level(logging.WARNING, "timerheap"):
        query.push({rows: [("a", 200_000_000)]})
    assert first.take() == []
    assert "1970-01-03T07:33:20.000Z is more than a day ahead of the clock" in caplog.text


def test_late_rows_and_dead_letters_are_inputs_too() -> None:
    query = QueryTester()
    rows = query.source(SCHEMA)
    first = query.process(rows, "k", Pass(), SCHEMA, "at", late="emit", errors="emit")
    late = echo(query, query.flat_map(first.late_rows(), lambda row: [row[:2]], SCHEMA))
    query.push({rows: [("a", 1_000), ("bad", 1_500), ("a", 3_000)]})
    assert first.take() == [("a", 1_000)]
    assert [row.error for row in first.dead_letters().take()] == ["ArithmeticError: bad"]
    query.push({rows: [("a", 500), ("a", 700)]})
    assert first.late_rows().take() == [("a", 500, 2_500), ("a", 700, 2_300)]
    assert late.watermark == 699  # that of its own rows
    assert late.take() == [("a", 500)]


def test_windows_return_late_rows_themselves() -> None:
    query = QueryTester()
    rows = query.source(SCHEMA)
    windows = query.window_operator(
        rows,
        "k",
        TumblingEventTimeWindows.of(1_000),
        Count(),
        "n bigint",
        "at",
        accumulator_type=Types.LONG(),
        late="emit",
    )
    query.push({rows: [("a", 100), ("a", 2_000)]})
    assert [(row.k, row.n) for row in windows.take()] == [("a", 1)]
    query.push({rows: [("a", 200), ("a", 2_100)]})
    assert windows.late_rows().take() == [("a", 200, 1_800)]
    query.finish()
    assert [(row.k, row.n) for row in windows.take()] == [("a", 2)]


def test_rules_come_before_the_rows_of_their_micro_batch() -> None:
    query = QueryTester()
    rows, rules = query.source(SCHEMA), query.source(SCHEMA)
    high = query.process_broadcast(rows, rules, "k", Limits(), SCHEMA, "at", order="arrival")
    query.push({rows: [("a", 50), ("a", 5)], rules: [("all", 10)]})
    assert high.take() == [("a", 50)]


def test_a_union_follows_the_lower_one() -> None:
    query = QueryTester()
    one, two = query.source(SCHEMA), query.source(SCHEMA)
    first = query.process(one, "k", Pass(), SCHEMA, "at")
    both = query.union(first, two)
    last = query.process(both, "k", Pass(), SCHEMA, "at")
    query.push({one: [("a", 1_000), ("a", 5_000)], two: [("b", 9_000)]})
    assert both.take() == [("a", 1_000), ("b", 9_000)]
    assert (first.watermark, last.watermark) == (4_999, 4_999)
    assert last.take() == [("a", 1_000)]
    query.finish()
    assert last.take() == [("a", 5_000), ("b", 9_000)]


def test_a_row_that_does_not_fit_changes_nothing() -> None:
    query, readings, names, of = whole()
    for wrong, told in (
        (("a", "x", 1_000), "rows must fit the schema: column 'line'"),
        (("a", 1, None), "rows must have a value in column 'at', which is the event time"),
        (("a", None, 1_000), "channel: a row has null in column 'line'"),
    ):
        with pytest.raises(ValueError, match=told):
            query.push({names: [("a", 0, "hall")], readings: [wrong]})
        tester = of["labelled"].tester
        assert (tester.buffered_rows(), tester.state("name"), tester.watermark) == ([], {}, MIN_WATERMARK)
    query.source(SCHEMA)  # it has not begun
    with pytest.raises(ValueError, match="rows must be by sources of this query"):
        query.push({of["labelled"]: []})
    with pytest.raises(ValueError, match="rows must be by sources of this query"):
        query.push({QueryTester().source(SCHEMA): []})


def test_after_an_error_a_query_goes_on_from_a_snapshot() -> None:
    query = QueryTester()
    rows = query.source(SCHEMA)
    first = query.process(rows, "k", Pass(), SCHEMA)
    before = query.snapshot()
    with pytest.raises(ArithmeticError):
        query.push({rows: [("bad", 0)]})
    for call in (query.push, query.finish, query.snapshot):
        with pytest.raises(RuntimeError, match="no function must have failed before"):
            call()
    query.restore(before)
    query.push({rows: [("a", 0)]})
    assert first.take() == [("a", 0)]


def test_what_is_no_query_is_refused() -> None:
    query = QueryTester(now=7)
    rows = query.source(SCHEMA)
    with pytest.raises(TypeError, match="rows must be a source or results of this query"):
        query.process(ProcessTester(Echo(), "k", SCHEMA, SCHEMA, "at"), "k", Echo(), SCHEMA, "at")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows must be rows of this query, got those of a different one"):
        echo(query, QueryTester().source(SCHEMA))
    with pytest.raises(ValueError, match="parts must be two or more with columns of the same types"):
        query.union(rows)
    with pytest.raises(ValueError, match="now must be at least the present time, 7, got 6"):
        query.advance_clock(6)
    first = echo(query, rows)
    with pytest.raises(ValueError, match='late must be "emit" for an operator that returns late rows'):
        first.late_rows()
    with pytest.raises(ValueError, match='errors must be "emit" for an operator that returns dead letters'):
        first.dead_letters()
    with pytest.raises(ValueError, match="tag must be one of the side outputs"):
        first.side_output(TIMES)
    query.push()
    with pytest.raises(RuntimeError, match="a query must be whole before its first micro-batch"):
        echo(query, rows)
    with query:
        pass
