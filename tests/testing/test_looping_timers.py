"""Timers that register the next one: they see the end of the input, and a loop without end is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from timerheap import BatchProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.testing import ProcessTester

SCHEMA = "k string, at bigint"


class Tick(KeyedProcessFunction):
    """Ticks every 10 ms from the first row of a key on, until its input ends if it `asks`."""

    def __init__(self, asks: bool) -> None:
        self.asks = asks

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        if timers.next_event_time_timer(name="tick") is None:
            timers.register_event_time_timer(ctx.timestamp() + 10, name="tick")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp
        if not (self.asks and ctx.input_has_ended()):
            ctx.timer_service().register_event_time_timer(timestamp + 10, name="tick")


class TickTwo(KeyedCoProcessFunction):
    def __init__(self, asks: bool) -> None:
        self.tick = Tick(asks)

    def process_element1(self, value: Any, ctx: Any) -> None:
        return self.tick.process_element(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> None:
        return self.tick.process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        return self.tick.on_timer(timestamp, ctx)


class TickColumns(BatchProcessFunction):
    def __init__(self, asks: bool) -> None:
        self.asks = asks

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        if (batch["at"].to_numpy() < 100).any():
            ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 10, name="tick")

    def on_timers(self, due: Any, ctx: Any) -> Iterator[Any]:
        yield pa.record_batch([ctx.keys(due.ids)["k"], pa.array(due.timestamps)], ["k", "at"])
        if not (self.asks and ctx.input_has_ended()):
            ctx.timer_service().register_event_time_timers(due.ids, due.timestamps + 10, name="tick")


def made(function: Any, order: str) -> ProcessTester:
    return ProcessTester(function, "k", SCHEMA, SCHEMA, "at", order=order)


FUNCTIONS = pytest.mark.parametrize("class_", [Tick, TickTwo, TickColumns])


@FUNCTIONS
@pytest.mark.promises(
    "PyFlink",
    "added",
    "KeyedProcessFunction.OnTimerContext.input_has_ended",
    "BatchProcessFunction.Context.input_has_ended",
)
def test_a_loop_that_asks_ends_with_the_last_row_of_its_key(class_: Any) -> None:
    test = made(class_(True), "event_time")
    assert test.push([("a", 0), ("b", 5), ("a", 125)]) == []
    ticks = [("a", at) for at in range(10, 131, 10)]
    assert sorted(test.finish()) == [Row(k=key, at=at) for key, at in [*ticks, ("b", 15)]]


@pytest.mark.in_turn(5)
@FUNCTIONS
def test_a_loop_goes_on_as_long_as_rows_may_follow(class_: Any) -> None:
    test = made(class_(True), "event_time")
    test.push([("a", 0)])
    assert [row.at for row in test.advance_watermark(1_000_000)] == [*range(10, 1_000_001, 10)]


@pytest.mark.in_turn(5)
@FUNCTIONS
@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_a_loop_without_end_is_an_error(class_: Any, order: str) -> None:
    test = made(class_(False), order)
    test.push([("a", 0)])
    with pytest.raises(RuntimeError, match=r"^Tick(Two|Columns)? must not register timers without end") as e:
        test.finish()
    for part in ("with the name 'tick'", "of key", "'a'", "ctx.input_has_ended() first"):
        assert part in str(e.value)


class Early(KeyedProcessFunction):
    """Registers a timer for the time that is firing, or before."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(min(timestamp, 50))


def test_a_timer_that_registers_itself_is_an_error_on_a_stream_too() -> None:
    for order in ("event_time", "arrival"):
        test = made(Early(), order)
        test.push([("a", 60)])
        with pytest.raises(RuntimeError, match=r"Early must not .* at 50 of key 'a'.* same time"):
            test.advance_watermark(100)


class Heavy(KeyedProcessFunction):
    """Answers each of many timers of a key with two that follow."""

    def process_element(self, value: Any, ctx: Any) -> None:
        for n in range(150_000):
            ctx.timer_service().register_event_time_timer(1_000 + n)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        if timestamp < 10**9:
            ctx.timer_service().register_event_time_timer(timestamp + 10**9)
        else:
            yield ctx.get_current_key(), timestamp


def test_many_pending_timers_are_no_loop() -> None:
    for order in ("event_time", "arrival"):
        test = made(Heavy(), order)
        test.push([("a", 0)])
        assert len(test.finish()) == 150_000
