"""InternalTimerService compared with traces of Flink's, whose callbacks register and delete timers.

What runs on Spark replays all that it can in test_process_functions.py; here are the classes that only
`timerheap.flink` has: a service over any queue, its key groups, and a manager.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import chain
from typing import Any

import pytest

from timerheap.flink import (
    InternalTimer,
    InternalTimerService,
    InternalTimeServiceManager,
    KeyGroupRange,
    ManualProcessingTimeService,
    RocksDBTimerQueue,
    TimerQueue,
    java_hash_code,
)
from timerheap.flink.processing_time import ProcessingTimeCallback


def from_json(value: Any) -> Any:
    return tuple(map(from_json, value)) if isinstance(value, list) else value


class ProductionClock(ManualProcessingTimeService):
    """A clock whose callbacks are due 1 ms after their timestamp, like the clock of the traces.

    Flink: ``ProcessingTimeServiceUtil.getProcessingTimeDelay``.
    """

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback, /) -> Future[None]:
        now = self.get_current_processing_time()
        self.last = timestamp, timestamp + 1 if timestamp >= now else now
        return super().register_timer(self.last[1], lambda _: callback(timestamp))

    def pending(self) -> tuple[int, int] | None:
        """Return the timestamp and the due time of the waiting callback."""
        if not self.get_active_timers():
            return None
        ((due, _),) = self.get_active_timers()
        assert due == self.last[1]
        return self.last


class Operator:
    """An operator with one key-group range: its timer service, and the callbacks of the trace."""

    def __init__(
        self,
        trace: dict[str, Any],
        owned: KeyGroupRange,
        queue_class: Any,
        now: int = 0,
        former: Any = None,
    ) -> None:
        self.trace = trace
        self.owned = owned
        self.queue_class = queue_class
        self.rules: dict[Any, list[Any]] = {}
        for kind, timestamp, key, namespace, acts in trace["rules"]:
            self.rules.setdefault(from_json([kind, timestamp, key, namespace]), []).extend(acts)
        self.fired: list[Any] = []
        self.clock = ProductionClock(now, jump=trace["clock"] == "jump")
        self.service = self.new_service(former)

    def new_service(self, former: Operator | None) -> InternalTimerService[Any, Any]:
        """Return a service restored from the snapshots of the key groups that both operators own."""
        service: InternalTimerService[Any, Any] = InternalTimerService(
            self, self.clock, event_time_timers=self.new_queue(), processing_time_timers=self.new_queue()
        )
        if former is not None:
            for key_group in self.owned.intersection(former.owned):
                service.restore_timers(former.service.snapshot_timers_for_key_group(key_group))
        return service

    def new_queue(self) -> Any:
        return self.queue_class(**self.key_groups())

    def key_groups(self) -> dict[str, Any]:
        return {
            "max_parallelism": self.trace["max_parallelism"],
            "key_group_range": self.owned,
            "hash_code": partial(java_hash_code, java_type=self.trace["key"]),
        }

    def on_event_time(self, timer: InternalTimer[Any, Any]) -> None:
        self.on_timer("e", timer)

    def on_processing_time(self, timer: InternalTimer[Any, Any]) -> None:
        self.on_timer("p", timer)

    def on_timer(self, kind: str, timer: InternalTimer[Any, Any]) -> None:
        assert self.service.key_context.current_key == timer.key
        self.fired.append((kind, *timer))
        for act, namespace, timestamp in self.rules.get((kind, *timer), []):
            self.act(act, from_json(namespace), timestamp)

    def act(self, act: str, namespace: Any, timestamp: int) -> None:
        call = {
            "re": self.service.register_event_time_timer,
            "rp": self.service.register_processing_time_timer,
            "de": self.service.delete_event_time_timer,
            "dp": self.service.delete_processing_time_timer,
        }[act]
        call(namespace, timestamp)

    def check_fired(self, expected: list[Any]) -> None:
        fired, self.fired = self.fired, []
        assert Counter(fired) == Counter(map(from_json, expected))
        if self.trace["order"] == "exact":
            assert fired == list(map(from_json, expected))

    def check_state(self, expected: list[Any]) -> None:
        assert [
            self.service.num_event_time_timers(),
            self.service.num_processing_time_timers(),
            self.service.current_watermark(),
            self.clock.pending(),
        ] == [*expected[:3], from_json(expected[3])]

    def check_key_groups(self, events: list[Any], processing: list[Any]) -> list[Any]:
        """Check the timers of each key group, and return the snapshots."""
        snapshots = {
            key_group: self.service.snapshot_timers_for_key_group(key_group) for key_group in self.owned
        }
        for part, expected in enumerate((events, processing)):
            held = {
                group: sorted(snapshot[part], key=repr)
                for group, snapshot in snapshots.items()
                if snapshot[part]
            }
            assert held == {group: sorted(map(from_json, timers), key=repr) for group, timers in expected}
        return list(snapshots.values())

    def check_iteration(self, snapshots: list[Any]) -> None:
        """Check that iteration shows the timers of the snapshots; the traces do not contain iteration."""
        seen: list[Any] = []

        def see(namespace: Any, timestamp: int) -> None:
            seen.append((timestamp, self.service.key_context.current_key, namespace))

        self.service.for_each_event_time_timer(see)
        assert Counter(seen) == Counter(
            timer for snapshot in snapshots for timer in snapshot.event_time_timers
        )
        seen.clear()
        self.service.for_each_processing_time_timer(see)
        assert Counter(seen) == Counter(
            timer for snapshot in snapshots for timer in snapshot.processing_time_timers
        )

    def advance_watermark(self, watermark: int) -> None:
        self.service.advance_watermark(watermark)

    def rescaled(self, owned: KeyGroupRange) -> Operator:
        """Return a new operator with other key groups."""
        return type(self)(self.trace, owned, self.queue_class, self.clock.get_current_processing_time(), self)


class ManagedOperator(Operator):
    """An operator with a manager: advances in pieces of a few timers and restores from bytes."""

    def new_service(self, former: ManagedOperator | None) -> InternalTimerService[Any, Any]:
        self.manager: InternalTimeServiceManager[Any] = InternalTimeServiceManager(
            self.clock, **self.key_groups()
        )
        if former is not None:
            self.manager.restore(former.manager.snapshot())
        return self.manager.get_internal_timer_service("timers", self, key_serializer=self.trace["key"])

    def advance_watermark(self, watermark: int) -> None:
        before = self.manager.current_output_watermark()
        while not self.manager.try_advance_watermark(watermark, limit=1 + watermark % 3):
            assert self.manager.current_output_watermark() == before
        assert self.manager.current_output_watermark() == max(before, watermark)


class RocksDBQueues:
    """Queues that one trace uses after the other, each empty at first: opening one takes 6 ms."""

    def __init__(self) -> None:
        self.free: defaultdict[Any, list[RocksDBTimerQueue[Any, Any]]] = defaultdict(list)
        self.taken: list[tuple[Any, RocksDBTimerQueue[Any, Any]]] = []

    def __call__(self, **options: Any) -> RocksDBTimerQueue[Any, Any]:
        which = (
            options["max_parallelism"],
            options["key_group_range"],
            options["hash_code"].keywords["java_type"],
        )
        queue = self.free[which].pop() if self.free[which] else RocksDBTimerQueue(**options)
        self.taken.append((which, queue))
        return queue

    def clear(self) -> None:
        for which, queue in self.taken:
            queue.clear()
            self.free[which].append(queue)
        self.taken.clear()

    def close(self) -> None:
        self.clear()
        for queue in chain(*self.free.values()):
            queue.close()
        self.free.clear()


QUEUES = RocksDBQueues()


@pytest.fixture(scope="module", autouse=True)
def closed_queues() -> Iterator[None]:
    yield
    QUEUES.close()


def replay(trace: dict[str, Any], kind: type[Operator], queue_class: Any) -> None:
    QUEUES.clear()
    operator = kind(trace, KeyGroupRange(0, trace["max_parallelism"] - 1), queue_class)
    for op in trace["ops"]:
        match op:
            case ["re" | "rp" | "de" | "dp" as act, key, namespace, timestamp, state]:
                operator.service.key_context.current_key = key
                operator.act(act, from_json(namespace), timestamp)
                assert not operator.fired
                operator.check_state(state)
            case ["wm", watermark, fired, state]:
                operator.advance_watermark(watermark)
                operator.check_fired(fired)
                operator.check_state(state)
            case ["pt", now, fired, state]:
                operator.clock.set_current_time(now)
                assert operator.service.current_processing_time() == now
                operator.check_fired(fired)
                operator.check_state(state)
            case ["count", namespace, events, processing]:
                assert operator.service.num_event_time_timers(from_json(namespace)) == events
                assert operator.service.num_processing_time_timers(from_json(namespace)) == processing
            case ["groups", events, processing]:
                operator.check_iteration(operator.check_key_groups(events, processing))
            case ["restore", owned, events, processing, state]:
                operator = operator.rescaled(KeyGroupRange(*owned))
                operator.check_key_groups(events, processing)
                operator.check_state(state)
            case _:
                pytest.fail(f"unknown operation {op}")


WAYS = {
    "heap": (Operator, TimerQueue),
    "rocksdb": (Operator, QUEUES),
    "manager": (ManagedOperator, TimerQueue),
}


@pytest.mark.parametrize("way", WAYS)
def test_timers_fire_as_in_flink(traces: Any, way: str) -> None:
    kind, queue_class = WAYS[way]
    traces.replay_share(partial(replay, kind=kind, queue_class=queue_class), way)
