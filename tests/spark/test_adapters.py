"""GroupTimers and ProcessorTimers by hand: what a block does to a state, and to Spark's timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import BinaryType, LongType, StructType

from timerheap import MAX_WATERMARK, MIN_WATERMARK, KeyTimerHeap, Timer, TimerHeap
from timerheap.spark import GroupTimers, ProcessorTimers

LONG, BINARY = LongType(), BinaryType()
ONLY_TIMERS = StructType().add("timers", BINARY)
COUNTED = StructType().add("count", LONG).add("name", LONG).add("timers", BINARY)


def group_state(
    schema: StructType = ONLY_TIMERS,
    value: tuple[Any, ...] | None = None,
    now: int = 100,
    timeout_conf: str = "EventTimeTimeout",
) -> GroupState:
    """A state as Spark hands it over, in a call whose clock says `now`."""
    by_watermark = timeout_conf == "EventTimeTimeout"
    return GroupState(
        optionalValue=value,  # type: ignore[arg-type]
        batchProcessingTimeMs=7 if by_watermark else now,
        eventTimeWatermarkMs=now if by_watermark else 7,
        timeoutConf=timeout_conf,
        hasTimedOut=False,
        watermarkPresent=True,
        defined=value is not None,
        updated=False,
        removed=False,
        timeoutTimestamp=GroupState.NO_TIMESTAMP,
        keyAsUnsafe=b"",
        valueSchema=schema,
    )


def heap_of(*timers: tuple[int, ...]) -> bytes:
    heap = TimerHeap()
    for timer in timers:
        heap.push(*timer)
    return heap.to_bytes()


raised = partial(pytest.raises, ZeroDivisionError)


def timeout(state: GroupState) -> int:
    return state._timeout_timestamp


def test_the_block_is_the_heap() -> None:
    state = group_state(now=250)
    with GroupTimers(state) as timers:
        assert timers.push(300, 1)
        assert not timers.push(300, 1)
        assert timers.push(timestamp=200, key_hash=2, namespace=9)
        assert timers.push_many([400, 100, 500], [3, 4, 5]).all()
        assert len(timers) == 5
        assert timers
        assert (300, 1) in timers
        assert (300, 2) not in timers
        assert sorted(timers) == [(100, 4, 0), (200, 2, 9), (300, 1, 0), (400, 3, 0), (500, 5, 0)]
        assert timers.peek() == timers.pop() == Timer(100, 4)
        assert timers.reschedule(400, 260, 3)
        assert timers.remove(500, 5)
        assert timers.count_due(260) == 2
        assert timers.timestamps.tolist()[0] == 200
        assert list(timers.due()) == [(200, 2, 9)]
        assert list(timers.pop_due(260)) == [(260, 3, 0)]
        assert not timers.due()
        assert "reschedule_many" in dir(timers)
        assert repr(timers).startswith("<GroupTimers: <timerheap.TimerHeap of 1 timers, first Timer(")
    assert repr(timers) == "<GroupTimers: closed>"
    assert TimerHeap.from_bytes(state.get[0]).peek() == Timer(300, 1)


def test_one_timer_per_key() -> None:
    state = group_state()
    with GroupTimers(state, one_timer_per_key=True) as timers:
        assert timers.push(300, 1)
        assert not timers.push(400, 1)
        assert timers.timestamp_of(1) == 400
        assert 1 in timers
        with pytest.raises(AttributeError, match="no 'reschedule' in GroupTimers"):
            _ = timers.reschedule
    assert KeyTimerHeap.from_bytes(state.get[0]).peek() == Timer(400, 1)
    with (
        pytest.raises(ValueError, match=r"'timers' holds no TimerHeap.*same one_timer_per_key"),
        GroupTimers(state),
    ):
        pass


def test_due_takes_a_limit_and_any_int64() -> None:
    state = group_state()
    with GroupTimers(state) as timers:
        timers.push_many([MIN_WATERMARK, -1, 0, 100, 101, MAX_WATERMARK], 0)
        assert timers.due(limit=2).timestamps.tolist() == [MIN_WATERMARK, -1]
        assert timers.due().timestamps.tolist() == [0, 100]
        with pytest.raises(ValueError, match="limit"):
            timers.due(limit=-1)
    assert timeout(state) == 100
    with GroupTimers(state) as timers:
        assert timers.pop() == Timer(101, 0)
    assert timeout(state) == MAX_WATERMARK - 1


@pytest.mark.parametrize(
    ("conf", "now", "timestamp", "expected"),
    [
        ("EventTimeTimeout", 100, 5_000, 4_999),
        ("EventTimeTimeout", 100, 101, 100),
        ("EventTimeTimeout", 100, 99, 100),  # due, and left in the queue: when the watermark moves
        ("EventTimeTimeout", 0, -5, 1),  # Spark takes no timeout before that
        ("EventTimeTimeout", 100, MAX_WATERMARK, MAX_WATERMARK - 1),
        ("ProcessingTimeTimeout", 100, 5_000, 4_999),
        ("ProcessingTimeTimeout", 100, 101, 101),  # Spark takes no duration of 0
        ("ProcessingTimeTimeout", 100, 99, 101),
        ("ProcessingTimeTimeout", 100, MAX_WATERMARK, MAX_WATERMARK - 1),
    ],
)
def test_the_timeout_lets_the_head_fire_when_the_clock_reaches_it(
    conf: str, now: int, timestamp: int, expected: int
) -> None:
    state = group_state(now=now, timeout_conf=conf)
    with GroupTimers(state) as timers:
        timers.push_many([timestamp, MAX_WATERMARK], [1, 2])
    assert timeout(state) == expected


def test_without_timers_there_is_no_timeout_and_without_anything_no_state() -> None:
    state = group_state(COUNTED)
    with GroupTimers(state) as timers:
        assert timers.state is None
    assert not state.exists
    assert not state._removed, "there was nothing to remove"

    with GroupTimers(state) as timers:
        timers.push(5_000, 1)
    assert state.get[:2] == (None, None)
    assert timeout(state) == 4_999

    with GroupTimers(state) as timers:
        assert timers.state is None
        timers.clear()
        timers.state = (3, None)
        assert timers.state == (3, None)
    assert state.get == (3, None, None)
    assert timeout(state) == GroupState.NO_TIMESTAMP

    with GroupTimers(state) as timers:
        assert timers.state == (3, None)
        timers.state = None
    assert not state.exists
    assert state._removed


def test_an_exception_leaves_the_state_and_its_wake_up() -> None:
    value = (1, 2, heap_of((5_000, 1)))
    state = group_state(COUNTED, value)
    with raised(), GroupTimers(state) as timers:
        timers.push(200, 1)
        timers.state = (8, 9)
        _ = 1 / 0
    assert state.get == value
    assert not state._updated
    assert timeout(state) == 4_999, "Spark forgets the timeout with every call"
    with GroupTimers(state) as timers:
        assert list(timers) == [(5_000, 1, 0)]
        assert timers.state == (1, 2)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (StructType(), "struct<>"),
        (StructType().add("count", LONG), "struct<count:bigint>"),
        (StructType().add("timers", LONG), "struct<timers:bigint>"),
        (StructType().add("timers", BINARY).add("count", LONG), "struct<timers:binary,count:bigint>"),
        (StructType().add("blob", BINARY), "struct<blob:binary>"),
    ],
)
def test_a_state_schema_without_a_place_for_timers(schema: StructType, shown: str) -> None:
    with pytest.raises(TypeError, match="must end in a field 'timers binary'.*" + shown):
        GroupTimers(group_state(schema))


@pytest.mark.parametrize("data", [b"", b"pickle", heap_of((1, 1))[:-1], heap_of((1, 1))[:-1] + b"\1"])
def test_bytes_that_are_not_ours(data: bytes) -> None:
    state = group_state(value=(data,))
    with pytest.raises(ValueError, match="state field 'timers' holds no TimerHeap"), GroupTimers(state):
        pass
    assert state.get == (data,)
    with pytest.raises(ValueError, match="state field 'timers'"), GroupTimers(state):
        pass  # and not "open already"


@pytest.mark.parametrize(
    ("value", "error"), [((1,), ValueError), ((1, 2, 3), ValueError), ("ab", TypeError), (5, TypeError)]
)
def test_a_state_that_is_not_the_users_fields(value: Any, error: type[Exception]) -> None:
    state = group_state(COUNTED)
    with GroupTimers(state) as timers:
        with pytest.raises(error, match=r"None or a tuple \(count, name\), got"):
            timers.state = value
        timers.state = [1, 2]  # type: ignore[assignment]
        assert timers.state == (1, 2)


def test_misuse_of_group_timers() -> None:
    with pytest.raises(TypeError, match="state must be the GroupState"):
        GroupTimers((1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NoTimeout, so that no timer would ever fire"):
        GroupTimers(group_state(timeout_conf="NoTimeout"))

    state = group_state(COUNTED)
    timers = GroupTimers(state)
    uses: list[Callable[[], object]] = [
        lambda: timers.push(1, 1),
        lambda: timers.due(),
        lambda: timers.state,
        lambda: setattr(timers, "state", None),
        lambda: len(timers),
        lambda: list(timers),
        lambda: (1, 1) in timers,
    ]
    for _ in range(2):
        for use in uses:
            with pytest.raises(RuntimeError, match="only inside its `with` block"):
                use()
        with timers:
            for again in (timers, GroupTimers(state)):
                with pytest.raises(RuntimeError, match="open already"), again:
                    pass
            timers.push(300, 1)
            with pytest.raises(AttributeError, match="no 'psuh' in GroupTimers"):
                timers.psuh(300, 2)
    with pytest.raises(AttributeError):
        _ = timers.psuh
    assert not hasattr(timers, "__array__")
    with pytest.raises(RuntimeError, match=r"set `timers.state`"), timers:
        state.update((1, 2, None))


class Handle(StatefulProcessorHandle):
    """One key's state variable and Spark's timers, and what Spark does with them."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None
        self.registered: set[int] = set()
        self.calls: list[str] = []

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueState:
        assert (stateName, schema, ttlDurationMs) == ("timerheap", "timers binary, wake_up bigint", None)
        return Value(self)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self.calls.append("registerTimer")
        self.registered.add(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self.calls.append("deleteTimer")
        self.registered.discard(expiryTimestampMs)

    @contextmanager
    def firing(self, now: int) -> Iterator[tuple[TimerValues, ExpiredTimerInfo]]:
        """A call of handleExpiredTimer: the timer that fires is gone after it."""
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


def test_spark_keeps_one_timer_at_the_head() -> None:
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


def test_only_what_has_changed_costs_a_round_trip() -> None:
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


def test_timers_that_are_due_and_stay_are_called_for() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        timers.push(60, 1)
    assert handle.registered == {60}, "in this micro-batch still"
    with handle.firing(100) as (values, info), queue.open(values, info) as timers:
        assert len(timers) == 1
    assert handle.registered == {101}, "not the one that fires, and not before the next micro-batch"
    with queue.open(at(100)) as timers:
        timers.push(70, 1)
    assert handle.registered == {60}, "a call with rows: in this micro-batch again"
    with queue.open(at(300)) as timers:
        timers.push(50, 1)
    assert handle.registered == {60}, "it is about to fire anyway"
    with handle.firing(300) as (values, info), queue.open(values, info) as timers:
        assert len(timers.due(limit=2)) == 2
        timers.push(info.getExpiryTimeInMs(), 5)
    assert handle.registered == {301}
    with handle.firing(301) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(60, 5, 0), (70, 1, 0)]
    assert handle.registered == set()


def test_a_timer_of_the_users_own_is_left_alone() -> None:
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


def test_an_exception_leaves_the_timers_and_their_wake_up() -> None:
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


def test_a_generator_that_is_not_read_to_its_end_changes_nothing() -> None:
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
    assert handle.calls == ["get"], "Spark has given up this call"


def test_processing_time_of_a_processor() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle, processing_time=True, one_timer_per_key=True)
    with queue.open(TimerValues(500, 0)) as timers:
        timers.push(500, 1)
        assert not timers.push(501, 1)
        assert not timers.due()
    assert handle.registered == {501}
    with queue.open(TimerValues(501, -1)) as timers:
        assert list(timers.due()) == [(501, 1, 0)]


def test_misuse_of_processor_timers() -> None:
    with pytest.raises(TypeError, match=r"handle must be the StatefulProcessorHandle"):
        ProcessorTimers(group_state())  # type: ignore[arg-type]
    handle = Handle()
    queue = ProcessorTimers(handle)
    with pytest.raises(RuntimeError, match="handle has a ProcessorTimers already"):
        ProcessorTimers(handle)
    with pytest.raises(TypeError, match="timerValues must be Spark's TimerValues, got 5"):
        queue.open(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expiredTimerInfo must be Spark's ExpiredTimerInfo"):
        queue.open(at(1), 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start the query with timeMode 'EventTime'"):
        queue.open(TimerValues())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"with timers.open\(timerValues\)"), queue:
            pass
        with pytest.raises(RuntimeError, match="only inside its `with` block"):
            queue.push(1, 1)
        with queue.open(at(1)) as timers:
            timers.push(50, 1)
            with pytest.raises(RuntimeError, match="open already"):
                queue.open(at(2))
    handle.value = (b"foreign", 3)
    with pytest.raises(ValueError, match="state field 'timers' holds no TimerHeap"), queue.open(at(1)):
        pass
    assert handle.value == (b"foreign", 3)
