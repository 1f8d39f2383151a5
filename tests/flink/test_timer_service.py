"""InternalTimerServiceImpl with timers whose callbacks register and delete timers, on both manual clocks."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from timerheap import (
    InternalTimer,
    InternalTimerService,
    KeyGroupRange,
    ManualProcessingTimeService,
    create_timer_queue,
    java_hash_code,
)


def from_json(value: Any) -> Any:
    return tuple(map(from_json, value)) if isinstance(value, list) else value


class Operator:
    """An operator on one key-group range: its timer service, and callbacks that follow the trace's rules."""

    def __init__(self, trace: dict[str, Any], owned: KeyGroupRange, now: int, backend: str) -> None:
        self.trace = trace
        self.owned = owned
        self.backend = backend
        self.rules: dict[Any, list[Any]] = {}
        for kind, timestamp, key, namespace, acts in trace["rules"]:
            self.rules.setdefault(from_json([kind, timestamp, key, namespace]), []).extend(acts)
        self.fired: list[Any] = []
        self.clock = ManualProcessingTimeService(now, jump=trace["clock"] == "jump")
        self.service: InternalTimerService[Any, Any] = InternalTimerService(
            self, self.clock, event_time_timers=self.new_queue(), processing_time_timers=self.new_queue()
        )

    def new_queue(self) -> Any:
        return create_timer_queue(
            self.backend,
            max_parallelism=self.trace["max_parallelism"],
            key_group_range=self.owned,
            hash_code=partial(java_hash_code, java_type=self.trace["key"]),
        )

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
        (pending,) = self.clock.get_active_timers() or [None]
        assert [
            self.service.num_event_time_timers(),
            self.service.num_processing_time_timers(),
            self.service.current_watermark(),
            pending,
        ] == [*expected[:3], from_json(expected[3])]

    def check_key_groups(self, events: list[Any], processing: list[Any]) -> None:
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

    def check_iteration(self) -> None:
        """Iteration is not in the traces: it must show what the snapshots show."""
        snapshots = [self.service.snapshot_timers_for_key_group(key_group) for key_group in self.owned]
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

    def rescaled(self, owned: KeyGroupRange) -> Operator:
        """A new operator on other key groups, restored from the snapshots of those that both own."""
        restored = Operator(self.trace, owned, self.clock.get_current_processing_time(), self.backend)
        for key_group in owned.intersection(self.owned):
            restored.service.restore_timers(self.service.snapshot_timers_for_key_group(key_group))
        return restored


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_answers(trace: dict[str, Any], backend: str) -> None:
    operator = Operator(trace, KeyGroupRange(0, trace["max_parallelism"] - 1), 0, backend)
    for op in trace["ops"]:
        match op:
            case ["re" | "rp" | "de" | "dp" as act, key, namespace, timestamp, state]:
                operator.service.key_context.current_key = key
                operator.act(act, from_json(namespace), timestamp)
                assert not operator.fired
                operator.check_state(state)
            case ["wm", watermark, fired, state]:
                operator.service.advance_watermark(watermark)
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
                operator.check_key_groups(events, processing)
                operator.check_iteration()
            case ["restore", owned, events, processing, state]:
                operator = operator.rescaled(KeyGroupRange(*owned))
                operator.check_key_groups(events, processing)
                operator.check_state(state)
            case _:
                pytest.fail(f"unknown operation {op}")
