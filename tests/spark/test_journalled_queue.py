"""The queue of a key group equals the model of a plain queue; replaying its journal restores its timers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from queue_model import QueueModel

from timerheap import TimerHeap
from timerheap.flink import InternalTimer, InternalTimerService, ManualProcessingTimeService
from timerheap.flink.simple_timer_service import SimpleTimerService
from timerheap.spark._group.journalled_timers import JournalledQueue, JournalledTimers
from timerheap.spark._group.timers_of_keys import TimersOfKeys, due_keys

timestamps = st.integers(-2, 12)
key_ids = st.sampled_from([-(2**63), -1, 0, 1, 2, 2**63 - 1])
timers = st.builds(InternalTimer, timestamps, key_ids, st.none())


class Model(QueueModel):
    """A model that orders equal timestamps by key id and holds one key group."""

    def order(self, timer: Any) -> tuple[int, int]:
        return timer.timestamp, timer.key


class AgainstTheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.timers = JournalledTimers(kind=0, one_timer_per_key=False)
        self.queue = JournalledQueue(self.timers)
        self.saved = JournalledTimers(kind=0, one_timer_per_key=False)
        self.model = Model(1)
        self.losses = 0

    def both(self, method: str, *arguments: Any) -> Any:
        before = len(self.model)
        answer = getattr(self.queue, method)(*arguments)
        assert answer == getattr(self.model, method)(*arguments)
        self.losses += max(0, before - len(self.model))

    @rule(method=st.sampled_from(["add", "remove"]), timer=timers)
    def one(self, method: str, timer: InternalTimer[int, None]) -> None:
        self.both(method, timer)

    @rule()
    def poll(self) -> None:
        self.both("poll")

    @rule(many=st.lists(timers, max_size=20))
    def add_many(self, many: list[InternalTimer[int, None]]) -> None:
        self.both("add_many", many)

    @rule(time=timestamps, limit=st.none() | st.integers(0, 4))
    def poll_many(self, time: int, limit: int | None) -> None:
        self.both("poll_many", time, limit)

    @rule(keys=st.lists(key_ids, max_size=4))
    def remove_keys(self, keys: list[int]) -> None:
        self.both("remove_keys", keys)

    @rule(key=key_ids)
    def timers_of_key(self, key: int) -> None:
        self.both("timers_of_key", key)

    @rule()
    def save(self) -> None:
        changes = self.timers.changes()
        if changes is not None:
            self.saved.replay(changes)
        assert sorted(self.saved.heap) == sorted(self.timers.heap)

    @invariant()
    def same(self) -> None:
        assert self.queue.peek() == self.model.peek()
        assert sorted(self.queue) == sorted(self.model.timers)
        assert self.timers.losses == self.losses

    def teardown(self) -> None:
        self.save()


TestAgainstTheModel = AgainstTheModel.TestCase


@given(
    heap=st.lists(st.tuples(timestamps, key_ids), max_size=300, unique=True),
    time=timestamps,
    limit=st.integers(1, 40),
)
def test_the_keys_of_the_first_due_timers_are_found(heap: list[Any], time: int, limit: int) -> None:
    timers = TimerHeap()
    for timestamp, key_id in heap:
        timers.push(timestamp, key_id, 0)
    due = sorted((timestamp, key_id) for timestamp, key_id in heap if timestamp <= time)
    assert sorted(due_keys(timers, time, limit)) == sorted(key_id for _, key_id in due[:limit])


class CountedHeap:
    """A heap that counts how often its timers are looked at as a whole."""

    def __init__(self, heap: TimerHeap) -> None:
        self.heap = heap
        self.scans = 0

    def __getattr__(self, name: str) -> Any:
        self.scans += name == "key_hashes"
        return getattr(self.heap, name)

    def __contains__(self, timer: Any) -> bool:
        return timer in self.heap


def test_the_timers_of_many_keys_are_found_without_a_scan_for_each() -> None:
    journalled = JournalledTimers(kind=0, one_timer_per_key=False)
    queue = JournalledQueue(journalled)
    counted = CountedHeap(journalled.heap)
    queue._of_keys = TimersOfKeys(counted)  # type: ignore[arg-type]
    for key in range(1_000):
        queue.add((key, key, None))
    for key in range(1_000):
        queue.add((key + 5, key, None))
        assert [timer.timestamp for timer in queue.timers_of_key(key)] == [key, key + 5]
        queue.remove((key, key, None))
        assert queue.remove_keys([key]) == 1
    assert not len(queue)
    assert counted.scans < 50


def test_a_function_sees_the_timers_of_its_key_only() -> None:
    journalled = [JournalledTimers(kind, one_timer_per_key=False) for kind in (0, 1)]
    service: InternalTimerService[int, None] = InternalTimerService(
        None,  # type: ignore[arg-type]  # nothing fires
        ManualProcessingTimeService(),
        event_time_timers=JournalledQueue(journalled[0]),
        processing_time_timers=JournalledQueue(journalled[1]),
    )
    timers = SimpleTimerService(service)
    for service.key_context.current_key in (-7, 7):
        for timestamp in (30, 10, 20):
            timers.register_event_time_timer(timestamp)
            timers.register_processing_time_timer(timestamp + 1)
    assert timers.event_time_timers() == [10, 20, 30]
    assert timers.processing_time_timers() == [11, 21, 31]
    assert (timers.next_event_time_timer(), timers.next_processing_time_timer()) == (10, 11)
    assert timers.delete_all_timers() == 6
    assert timers.event_time_timers() == timers.processing_time_timers() == []
    service.key_context.current_key = -7
    for kind, (held, first) in enumerate(zip(journalled, (10, 11), strict=True)):
        assert held.losses == 3
        saved = JournalledTimers(kind, one_timer_per_key=False)
        saved.replay(held.changes())
        assert sorted(saved.heap) == [(first + step, -7, 0) for step in (0, 10, 20)]


@pytest.mark.parametrize(
    ("method", "argument", "error"),
    [
        ("add_many", [(1, 1, None), ("2", 1, None)], TypeError),
        ("add_many", [(1, 1, None), (2**63, 1, None)], OverflowError),
        ("add_many", [(1, 1, None), (2, 1)], ValueError),
        ("remove_keys", [7, "7"], (TypeError, ValueError)),
        ("remove_keys", [7, 2**63], OverflowError),
        ("poll_many", "7", TypeError),
    ],
)
def test_an_error_changes_nothing(method: str, argument: Any, error: type[Exception]) -> None:
    journalled = JournalledTimers(kind=0, one_timer_per_key=False)
    queue = JournalledQueue(journalled)
    queue.add((7, 7, None))
    journalled.changes()
    with pytest.raises(error):
        getattr(queue, method)(argument)
    assert list(queue) == [(7, 7, None)]
    assert journalled.changes() is None
