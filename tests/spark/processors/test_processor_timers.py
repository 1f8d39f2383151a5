"""ProcessorTimers on a handle without Spark: its effect on the state and on Spark's timers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

from timerheap import Timer
from timerheap.spark import ProcessorTimers

raised = partial(pytest.raises, ZeroDivisionError)


class Handle(StatefulProcessorHandle):
    """The state variable and the Spark timers of one key; records the calls."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None
        self.registered: set[int] = set()
        self.calls: list[str] = []

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueState:
        assert (stateName, schema, ttlDurationMs) == ("timerheap", "timers string, wake_up bigint", None)
        return Value(self)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self.calls.append("registerTimer")
        self.registered.add(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self.calls.append("deleteTimer")
        self.registered.discard(expiryTimestampMs)

    @contextmanager
    def firing(self, now: int) -> Iterator[tuple[TimerValues, ExpiredTimerInfo]]:
        """Simulate a call of handleExpiredTimer: Spark removes the expired timer afterwards."""
        (first,) = (timer for timer in self.registered if timer <= now)
        try:
            yield TimerValues(7, now), ExpiredTimerInfo(first)
        finally:
            self.registered.discard(first)


class Value(ValueState):
    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def get(self) -> tuple[Any, ...] | None:
        self.handle.calls.append("get")
        return self.handle.value

    def update(self, newValue: tuple[Any, ...]) -> None:
        self.handle.calls.append("update")
        self.handle.value = newValue

    def clear(self) -> None:
        self.handle.calls.append("clear")
        self.handle.value = None


def at(watermark: int) -> TimerValues:
    return TimerValues(7, watermark)


def test_one_spark_timer_is_registered_for_the_first_timer() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        assert timers is queue
        timers.push_many([300, 200, 400], [1, 2, 3])
    assert handle.registered == {200}
    with queue.open(at(100)) as timers:
        timers.push(150, 4)
    assert handle.registered == {150}
    with queue.open(at(100)) as timers:
        timers.remove(150, 4)
        assert timers.pop() == Timer(200, 2)
    assert handle.registered == {300}
    with handle.firing(350) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(300, 1, 0)]
    assert handle.registered == {400}
    with handle.firing(400) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(400, 3, 0)]
    assert handle.registered == set()
    assert handle.value is None


def test_only_changes_are_written_to_spark() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)):
        pass
    assert handle.calls == ["get"]
    with queue.open(at(100)) as timers:
        timers.push(300, 1)
    assert handle.calls[1:] == ["get", "registerTimer", "update"]
    with queue.open(at(100)) as timers:
        assert not timers.due()
    assert handle.calls[4:] == ["get"]
    with queue.open(at(100)) as timers:
        timers.push(400, 1)
    assert handle.calls[5:] == ["get", "update"]
    with queue.open(at(400)) as timers:
        assert len(timers.due()) == 2
    assert handle.calls[7:] == ["get", "deleteTimer", "clear"]


def test_due_timers_that_stay_in_the_heap_fire_in_a_later_call() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        timers.push(60, 1)
    assert handle.registered == {60}, "fires in the same micro-batch"
    with handle.firing(100) as (values, info), queue.open(values, info) as timers:
        assert len(timers) == 1
    assert handle.registered == {101}, "a new timer, in the next micro-batch"
    with queue.open(at(100)) as timers:
        timers.push(70, 1)
    assert handle.registered == {60}, "after a call with rows: in the same micro-batch"
    with queue.open(at(300)) as timers:
        timers.push(50, 1)
    assert handle.registered == {60}, "the registered timer fires in this micro-batch anyway"
    with handle.firing(300) as (values, info), queue.open(values, info) as timers:
        assert len(timers.due(limit=2)) == 2
        timers.push(info.getExpiryTimeInMs(), 5)
    assert handle.registered == {301}
    with handle.firing(301) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(60, 5, 0), (70, 1, 0)]
    assert handle.registered == set()


def test_timers_that_the_user_registers_with_spark_are_kept() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        timers.push_many([200, 300], 1)
    with queue.open(at(250), ExpiredTimerInfo(150)) as timers:
        assert len(timers) == 2
    assert handle.registered == {200}, "fires next"
    with handle.firing(250) as (values, info), queue.open(values, info) as timers:
        assert len(timers.due()) == 1
    assert handle.registered == {300}


def test_an_exception_keeps_the_timers_and_the_spark_timer() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        timers.push_many([200, 300], [1, 2])
    value = handle.value
    with raised(), queue.open(at(100)) as timers:
        timers.push(150, 1)
        _ = 1 / 0
    assert (handle.value, handle.registered) == (value, {200})
    with raised(), handle.firing(250) as (values, info), queue.open(values, info) as timers:
        timers.due()
        _ = 1 / 0
    assert handle.registered == {251}
    with handle.firing(251) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(200, 1, 0)]
    assert handle.registered == {300}


def test_a_generator_that_is_not_read_to_its_end_writes_nothing() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)

    def rows(values: TimerValues, info: ExpiredTimerInfo | None = None) -> Iterator[int]:
        with queue.open(values, info) as timers:
            timers.push(200, 1)
            yield 1
            yield 2

    reader = rows(at(100))
    next(reader)
    del reader
    assert handle.calls == ["get"]
    assert list(rows(at(100))) == [1, 2]
    assert handle.registered == {200}
    handle.calls.clear()
    reader = rows(at(200), ExpiredTimerInfo(200))
    next(reader)
    del reader
    assert handle.calls == ["get"], "an abandoned call writes nothing"


def test_with_processing_time_timers_fire_by_the_processing_time() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle, processing_time=True, one_timer_per_key=True)
    with queue.open(TimerValues(500, 0)) as timers:
        timers.push(500, 1)
        assert not timers.push(501, 1)
        assert not timers.due()
    assert handle.registered == {501}
    with queue.open(TimerValues(501, -1)) as timers:
        assert list(timers.due()) == [(501, 1, 0)]


def test_wrong_arguments_and_nested_or_missing_blocks_raise() -> None:
    with pytest.raises(TypeError, match=r"handle must be the StatefulProcessorHandle"):
        ProcessorTimers(5)  # type: ignore[arg-type]
    handle = Handle()
    queue = ProcessorTimers(handle)
    with pytest.raises(RuntimeError, match="handle must not have another ProcessorTimers"):
        ProcessorTimers(handle)
    with pytest.raises(TypeError, match="timerValues must be Spark's TimerValues, got 5"):
        queue.open(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expiredTimerInfo must be Spark's ExpiredTimerInfo"):
        queue.open(at(1), 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeMode must be 'EventTime'"):
        queue.open(TimerValues())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"with timers.open\(timerValues\)"), queue:
            pass
        with pytest.raises(RuntimeError, match="must be used inside its `with` block"):
            queue.push(1, 1)
        with queue.open(at(1)) as timers:
            timers.push(50, 1)
            with pytest.raises(RuntimeError, match="already open"):
                queue.open(at(2))
    handle.value = ("foreign", 3)
    with pytest.raises(ValueError, match="state field 'timers' must hold a TimerHeap"), queue.open(at(1)):
        pass
    assert handle.value == ("foreign", 3)
