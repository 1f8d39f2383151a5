"""GroupStateTimers on a GroupState without Spark: its effect on the state and the timeout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import BinaryType, LongType, StructType

from timerheap import MAX_WATERMARK, MIN_WATERMARK, KeyTimerHeap, Timer, TimerHeap
from timerheap.spark import GroupStateTimers

LONG, BINARY = LongType(), BinaryType()
ONLY_TIMERS = StructType().add("timers", BINARY)
COUNTED = StructType().add("count", LONG).add("name", LONG).add("timers", BINARY)


def group_state(
    schema: StructType = ONLY_TIMERS,
    value: tuple[Any, ...] | None = None,
    now: int = 100,
    timeout_conf: str = "EventTimeTimeout",
) -> GroupState:
    """Return a state as Spark passes it to the function, in a call at time `now`."""
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


def test_inside_the_block_timers_have_all_methods_of_the_heap() -> None:
    state = group_state(now=250)
    with GroupStateTimers(state) as timers:
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
        assert repr(timers).startswith("<GroupStateTimers: <timerheap.TimerHeap of 1 timers, first Timer(")
    assert repr(timers) == "<GroupStateTimers: closed>"
    assert TimerHeap.from_bytes(state.get[0]).peek() == Timer(300, 1)


def test_with_one_timer_per_key_a_push_replaces_the_timer() -> None:
    state = group_state()
    with GroupStateTimers(state, one_timer_per_key=True) as timers:
        assert timers.push(300, 1)
        assert not timers.push(400, 1)
        assert timers.timestamp_of(1) == 400
        assert 1 in timers
        with pytest.raises(AttributeError, match="Timers nor its heap has an attribute 'reschedule'"):
            _ = timers.reschedule
    assert KeyTimerHeap.from_bytes(state.get[0]).peek() == Timer(400, 1)
    with (
        pytest.raises(ValueError, match=r"'timers' must hold a TimerHeap.*same one_timer_per_key"),
        GroupStateTimers(state),
    ):
        pass


def test_due_accepts_a_limit_and_returns_timestamps_of_the_whole_int64_range() -> None:
    state = group_state()
    with GroupStateTimers(state) as timers:
        timers.push_many([MIN_WATERMARK, -1, 0, 100, 101, MAX_WATERMARK], 0)
        assert timers.due(limit=2).timestamps.tolist() == [MIN_WATERMARK, -1]
        assert timers.due().timestamps.tolist() == [0, 100]
        with pytest.raises(ValueError, match="limit"):
            timers.due(limit=-1)
    assert timeout(state) == 100
    with GroupStateTimers(state) as timers:
        assert timers.pop() == Timer(101, 0)
    assert timeout(state) == MAX_WATERMARK - 1


@pytest.mark.parametrize(
    ("conf", "now", "timestamp", "expected"),
    [
        ("EventTimeTimeout", 100, 5_000, 4_999),
        ("EventTimeTimeout", 100, 101, 100),
        ("EventTimeTimeout", 100, 99, 100),  # due, but still in the heap: fires when the watermark advances
        ("EventTimeTimeout", 0, -5, 1),  # the smallest timeout that Spark accepts
        ("EventTimeTimeout", 100, MAX_WATERMARK, MAX_WATERMARK - 1),
        ("ProcessingTimeTimeout", 100, 5_000, 4_999),
        ("ProcessingTimeTimeout", 100, 101, 101),  # the smallest duration that Spark accepts
        ("ProcessingTimeTimeout", 100, 99, 101),
        ("ProcessingTimeTimeout", 100, MAX_WATERMARK, MAX_WATERMARK - 1),
    ],
)
def test_the_timeout_is_set_so_that_the_first_timer_fires_when_the_clock_reaches_it(
    conf: str, now: int, timestamp: int, expected: int
) -> None:
    state = group_state(now=now, timeout_conf=conf)
    with GroupStateTimers(state) as timers:
        timers.push_many([timestamp, MAX_WATERMARK], [1, 2])
    assert timeout(state) == expected


def test_no_timers_set_no_timeout_and_no_contents_remove_the_state() -> None:
    state = group_state(COUNTED)
    with GroupStateTimers(state) as timers:
        assert timers.state is None
    assert not state.exists
    assert not state._removed, "there was nothing to remove"

    with GroupStateTimers(state) as timers:
        timers.push(5_000, 1)
    assert state.get[:2] == (None, None)
    assert timeout(state) == 4_999

    with GroupStateTimers(state) as timers:
        assert timers.state is None
        timers.clear()
        timers.state = (3, None)
        assert timers.state == (3, None)
    assert state.get == (3, None, None)
    assert timeout(state) == GroupState.NO_TIMESTAMP

    with GroupStateTimers(state) as timers:
        assert timers.state == (3, None)
        timers.state = None
    assert not state.exists
    assert state._removed


def test_an_exception_keeps_the_state_and_the_timeout() -> None:
    value = (1, 2, heap_of((5_000, 1)))
    state = group_state(COUNTED, value)
    with raised(), GroupStateTimers(state) as timers:
        timers.push(200, 1)
        timers.state = (8, 9)
        _ = 1 / 0
    assert state.get == value
    assert not state._updated
    assert timeout(state) == 4_999, "each call discards the previous timeout"
    with GroupStateTimers(state) as timers:
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
def test_a_state_schema_that_does_not_end_in_timers_raises(schema: StructType, shown: str) -> None:
    with pytest.raises(TypeError, match="must end in a field 'timers binary'.*" + shown):
        GroupStateTimers(group_state(schema))


@pytest.mark.parametrize("data", [b"", b"pickle", heap_of((1, 1))[:-1], heap_of((1, 1))[:-1] + b"\1"])
def test_invalid_timer_bytes_raise_and_stay_in_the_state(data: bytes) -> None:
    state = group_state(value=(data,))
    with (
        pytest.raises(ValueError, match="state field 'timers' must hold a TimerHeap"),
        GroupStateTimers(state),
    ):
        pass
    assert state.get == (data,)
    with pytest.raises(ValueError, match="state field 'timers'"), GroupStateTimers(state):
        pass  # the failed block is not left open


@pytest.mark.parametrize(
    ("value", "error"), [((1,), ValueError), ((1, 2, 3), ValueError), ("ab", TypeError), (5, TypeError)]
)
def test_setting_a_state_of_the_wrong_shape_raises(value: Any, error: type[Exception]) -> None:
    state = group_state(COUNTED)
    with GroupStateTimers(state) as timers:
        with pytest.raises(error, match=r"None or a tuple \(count, name\), got"):
            timers.state = value
        timers.state = [1, 2]  # type: ignore[assignment]
        assert timers.state == (1, 2)


def test_wrong_arguments_and_nested_or_missing_blocks_raise() -> None:
    with pytest.raises(TypeError, match="state must be the GroupState"):
        GroupStateTimers((1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got NoTimeout, with which no timer would ever fire"):
        GroupStateTimers(group_state(timeout_conf="NoTimeout"))

    state = group_state(COUNTED)
    timers = GroupStateTimers(state)
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
            with pytest.raises(RuntimeError, match="must be used inside its `with` block"):
                use()
        with timers:
            for again in (timers, GroupStateTimers(state)):
                with pytest.raises(RuntimeError, match="already open"), again:
                    pass
            timers.push(300, 1)
            with pytest.raises(AttributeError, match="has an attribute 'psuh'"):
                timers.psuh(300, 2)
    with pytest.raises(AttributeError):
        _ = timers.psuh
    assert not hasattr(timers, "__array__")
    with pytest.raises(RuntimeError, match=r"set `timers.state`"), timers:
        state.update((1, 2, None))
