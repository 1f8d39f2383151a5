"""Timers of any key and namespace, and the queue protocol that holds them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)


class InternalTimer(NamedTuple, Generic[K, N]):
    """One timer of one key; its three fields are its identity.

    Attributes
    ----------
    timestamp : int
        The firing time in epoch milliseconds, int64.
    key : hashable
        The key of the timer.
    namespace : hashable
        Distinguishes timers of one key: a window, a name, or None, which is Flink's ``VoidNamespace``.
    """

    timestamp: int
    key: K
    namespace: N


class KeyedTimerQueue(Protocol[K, N]):
    """The interface between a timer service and a queue; implement it to keep timers elsewhere.

    Methods accept any tuple ``(timestamp, key, namespace)`` as a `timer` and return `InternalTimer`. Flink:
    ``KeyGroupedInternalPriorityQueue``.
    """

    def add(self, timer: tuple[int, K, N], /) -> bool:
        """Add a timer unless it is present; return True if the lowest timestamp changed."""

    def remove(self, timer: tuple[int, K, N], /) -> bool:
        """Remove a timer if it is present; return True if it was the head."""

    def peek(self) -> InternalTimer[K, N] | None:
        """Return the head, a timer with the lowest timestamp, or None."""

    def poll(self) -> InternalTimer[K, N] | None:
        """Remove and return the head, which `peek` returns, or return None."""

    def add_many(self, timers: Iterable[tuple[int, K, N]], /) -> None:
        """Add every timer that is not present; on an error, add none."""

    def remove_keys(self, keys: Iterable[K], /) -> int:
        """Remove all timers of many keys in one scan; return their number."""

    def timers_of_key(self, key: K, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key in firing order. A scan."""

    def get_subset_for_key_group(self, key_group: int, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key group."""

    def __iter__(self) -> Iterator[InternalTimer[K, N]]:
        """Iterate over the current timers in any order; the queue may change during the iteration."""

    def __contains__(self, timer: tuple[int, K, N], /) -> bool:
        """Return whether a timer is present."""

    def __len__(self) -> int:
        """Return the number of timers."""


@contextmanager
def all_or_none(*parts: tuple[KeyedTimerQueue[K, N], Iterable[tuple[int, K, N]]]) -> Iterator[None]:
    """Add new timers to several queues; on an error, also in the ``with`` block, remove them again."""
    added: list[tuple[KeyedTimerQueue[K, N], list[tuple[int, K, N]]]] = []
    try:
        for queue, timers in parts:
            new = [timer for timer in timers if timer not in queue]
            queue.add_many(new)
            added.append((queue, new))
        yield
    except BaseException:
        for queue, new in added:
            for timer in new:
                queue.remove(timer)
        raise
