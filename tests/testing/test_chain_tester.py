"""`ChainTester` gives what operators behind each other give in a query."""

from __future__ import annotations

from typing import Any

import pytest

from timerheap import IntervalJoin, KeyedProcessFunction
from timerheap.testing import ChainTester, ProcessTester

SCHEMA = "k string, at bigint"
ROW = "struct<k:string,at:bigint>"


class Echo(KeyedProcessFunction):
    """Passes rows on, and sets a timer a second after each, whose result has the timer's time."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.k, value.at
        ctx.timer_service().register_event_time_timer(value.at + 1_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


class Alarm(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


def echo(**options: Any) -> ProcessTester:
    return ProcessTester(Echo(), "k", SCHEMA, SCHEMA, "at", **options)


def test_the_second_follows_the_first() -> None:
    chain = ChainTester(echo(), echo())
    assert chain.push([("a", 0), ("b", 500)]) == []
    assert chain.advance_watermark(999) == [("a", 0), ("b", 500)]
    assert sorted(chain.advance_watermark(1_000)) == [("a", 1_000), ("a", 1_000)]
    assert chain.testers[1].late_row_count == 0
    assert sorted(chain.finish()) == [("a", 2_000), ("b", 1_500), ("b", 1_500), ("b", 2_500)]


def test_in_order_of_arrival_results_come_before_the_watermark() -> None:
    chain = ChainTester(echo(order="arrival"), echo(order="arrival"), echo(order="arrival"))
    assert chain.push([("a", 0)]) == [("a", 0)]
    assert sorted(chain.advance_watermark(1_000)) == 3 * [("a", 1_000)]


def test_the_clock_goes_to_all_that_have_one() -> None:
    first = ProcessTester(Alarm(), "k", SCHEMA, SCHEMA, processing_time=True)
    chain = ChainTester(first, ProcessTester(Alarm(), "k", SCHEMA, SCHEMA, processing_time=True), echo())
    chain.push([("a", 0)])
    assert chain.advance_clock(11) == []
    chain.advance_watermark(5)
    chain.advance_clock(22)
    assert chain.testers[2].buffered_rows() == [("a", 21)]


def test_pairs_of_an_interval_join_are_in_time() -> None:
    join = IntervalJoin(0, 5_000, lambda left, right: left, left_type=ROW, right_type=ROW)
    first = ProcessTester(join, "k", SCHEMA, SCHEMA, "at")
    chain = ChainTester(first, echo())
    chain.push([("a", 0)])
    chain.advance_watermark(4_000)
    assert chain.testers[1].watermark == -1_000
    assert chain._pass_on(first.push_right([("a", 5_000)]), 0) == []
    assert chain.finish() == [("a", 0), ("a", 1_000)]


def test_what_is_no_chain_is_refused() -> None:
    one = echo()
    with pytest.raises(ValueError, match="testers must be two or more, each once"):
        ChainTester(one)
    with pytest.raises(ValueError, match="testers must be two or more, each once"):
        ChainTester(one, one)
    with pytest.raises(TypeError, match=r"testers\[1\] must be a ProcessTester"):
        ChainTester(one, None)  # type: ignore[arg-type]
