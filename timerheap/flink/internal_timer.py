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
        """Add a timer unless it is present.

        Parameters
        ----------
        timer : InternalTimer or tuple
            The timestamp, the key and the namespace.

        Returns
        -------
        bool
            Whether the lowest timestamp changed: the timer is new and earlier than all others.

        Raises
        ------
        TypeError, OverflowError
            If the timestamp is not an int64, the queue cannot keep the key or the namespace, or the key has
            no hash code.
        ValueError
            If the key belongs to a key group that the queue does not own.
        OSError
            If a disk cannot be read or written.
        """

    def remove(self, timer: tuple[int, K, N], /) -> bool:
        """Remove a timer if it is present.

        Returns
        -------
        bool
            Whether it was the head, which `peek` returns.

        Raises
        ------
        TypeError, OverflowError, ValueError, OSError
            As for `add`.
        """

    def peek(self) -> InternalTimer[K, N] | None:
        """Return the head, a timer with the lowest timestamp, or None."""

    def poll(self) -> InternalTimer[K, N] | None:
        """Remove and return the head, which `peek` returns, or return None."""

    def add_many(self, timers: Iterable[tuple[int, K, N]], /) -> None:
        """Add every timer that is not present, in bulk; on an error, add none.

        Parameters
        ----------
        timers : iterable of InternalTimer or tuple
            The timestamps, keys and namespaces of the timers.

        Raises
        ------
        TypeError, OverflowError, ValueError, OSError
            As for `add`; no timer is then added.
        """

    def remove_keys(self, keys: Iterable[K], /) -> int:
        """Remove all timers of many keys in one scan.

        Parameters
        ----------
        keys : iterable
            The keys, with or without timers.

        Returns
        -------
        int
            The number of timers removed. O(n), whatever the number of keys.

        Raises
        ------
        TypeError, OverflowError, ValueError, OSError
            As for `add`; no timer is then removed.
        """

    def timers_of_key(self, key: K, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key in firing order. A scan, O(n).

        Raises
        ------
        TypeError, OverflowError, ValueError, OSError
            As for `add`.
        """

    def get_subset_for_key_group(self, key_group: int, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key group in firing order. A scan, O(n).

        Raises
        ------
        ValueError
            If the queue does not own the key group.
        """

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
