"""A slow and simple model of Flink's timer queue, with which tests compare `TimerQueue`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from timerheap.flink import InternalTimer, assign_to_key_group

Timer = InternalTimer[Any, Any]


class QueueModel:
    """A set of timers that is searched for the first.

    Timers with equal timestamps are ordered by when their key and namespace got their first timer; a key and
    namespace that lose their last timer start again.
    """

    def __init__(self, max_parallelism: int = 128, owned: Iterable[int] | None = None) -> None:
        self.max_parallelism = max_parallelism
        self.owned = set(range(max_parallelism) if owned is None else owned)
        self.timers: set[Timer] = set()
        self.entered: list[tuple[Any, Any]] = []

    def key_group(self, timer: tuple[Any, ...]) -> int:
        return assign_to_key_group(timer[1], self.max_parallelism)

    def check(self, timer: tuple[Any, ...]) -> None:
        if type(timer[0]) is not int:
            raise TypeError(timer)
        if not -(2**63) <= timer[0] < 2**63:
            raise OverflowError(timer)
        if self.key_group(timer) not in self.owned:
            raise ValueError(timer)

    def order(self, timer: Timer) -> tuple[int, int]:
        return timer.timestamp, self.entered.index(timer[1:])

    def discard(self, timer: Timer) -> None:
        self.timers.discard(timer)
        self.entered = [pair for pair in self.entered if any(timer[1:] == pair for timer in self.timers)]

    def add(self, timer: tuple[int, Any, Any], /) -> bool:
        self.check(timer)
        before = self.peek()
        self.timers.add(InternalTimer(*timer))
        if timer[1:] not in self.entered:
            self.entered.append(timer[1:])
        return before is None or timer[0] < before.timestamp

    def remove(self, timer: tuple[int, Any, Any], /) -> bool:
        self.check(timer)
        was_head = self.peek() == timer
        self.discard(InternalTimer(*timer))
        return was_head

    def peek(self) -> Timer | None:
        return min(self.timers, key=self.order, default=None)

    def poll(self) -> Timer | None:
        head = self.peek()
        if head is not None:
            self.discard(head)
        return head

    def add_many(self, timers: Iterable[tuple[int, Any, Any]], /) -> None:
        timers = list(timers)
        for timer in timers:
            self.check(timer)
        for timer in timers:
            self.add(timer)

    def remove_keys(self, keys: Iterable[Any], /) -> int:
        gone = [timer for key in set(keys) for timer in self.timers_of_key(key)]
        for timer in gone:
            self.discard(timer)
        return len(gone)

    def timers_of_key(self, key: Any, /) -> list[Timer]:
        self.check((0, key, None))
        return sorted((timer for timer in self.timers if timer.key == key), key=self.order)

    def clear(self) -> None:
        self.timers.clear()
        self.entered.clear()

    def get_subset_for_key_group(self, key_group: int, /) -> list[Timer]:
        if key_group not in self.owned:
            raise ValueError(key_group)
        return sorted((timer for timer in self.timers if self.key_group(timer) == key_group), key=self.order)

    def __iter__(self) -> Iterator[Timer]:
        return iter(list(self.timers))

    def __len__(self) -> int:
        return len(self.timers)
