"""Flink's timers, of any key and namespace; the protocol of their queues, and the one on the native heap."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from timerheap._native._core import TimerHeap
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.flink.java_hashes import java_hash_code
from timerheap.flink.key_groups import KeyGroupRange, OwnedKeyGroups

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)

_NO_ID = 0  # the id of no identity


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
        ArgumentTypeError, ArgumentRangeError
            If the timestamp is not an int64, the queue cannot keep the key or the namespace, or the key has
            no hash code.
        ArgumentValueError
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
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError, OSError
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
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError, OSError
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
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError, OSError
            As for `add`; no timer is then removed.
        """

    def timers_of_key(self, key: K, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key in firing order. A scan, O(n).

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError, OSError
            As for `add`.
        """

    def get_subset_for_key_group(self, key_group: int, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key group in firing order. A scan, O(n).

        Raises
        ------
        ArgumentValueError
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


class _Identity(Generic[K, N]):
    """A key and a namespace that have timers, and their id in the heap."""

    __slots__ = ("id", "key_group", "pair", "timers")

    key_group: int

    def __init__(self, pair: tuple[K, N], id: int) -> None:
        self.pair = pair
        self.id = id
        self.timers = 0


class TimerQueue(KeyedTimerQueue[K, N]):
    """A queue of timers with any hashable keys and namespaces, with the behaviour of Flink's queue.

    Parameters
    ----------
    max_parallelism : int, default 128
        The number of key groups, 1 to 32768.
    key_group_range : KeyGroupRange, optional
        The key groups whose keys are accepted; by default all of them.
    hash_code : callable, default java_hash_code
        A function from a key to an int, whose low 32 bits determine the key group. The default accepts bools,
        ints (as Java's long), floats, strings and tuples of these. If Flink's key is a Java int, pass
        ``lambda key: java_hash_code(key, "int")``. For keys of other types, pass a function that returns the
        same in every process that reads a snapshot.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If `max_parallelism` or `key_group_range` is invalid, or the range exceeds `max_parallelism`.

    Notes
    -----
    Flink: ``HeapPriorityQueueSet`` of ``TimerHeapInternalTimer``. A queue holds each timer at most once.
    Flink does not define the order of timers with equal timestamps; here they are ordered by when their key
    and namespace got their first timer. Keys and namespaces are compared with ``==``, so 1, 1.0 and True are
    one key. The queue references them only while they have timers.

    `add`, `remove` and `poll` cost O(log n), `peek`, ``in`` and ``len`` O(1), and all else O(n). An operation
    that raises leaves the queue unchanged. A queue must be used by one thread at a time.

    Examples
    --------
    >>> queue = TimerQueue()
    >>> queue.add(InternalTimer(1_000, "N14228", None)), queue.add(InternalTimer(2_000, "N14228", None))
    (True, False)
    >>> queue.remove(InternalTimer(1_000, "N14228", None))
    True
    >>> queue.poll()
    InternalTimer(timestamp=2000, key='N14228', namespace=None)
    >>> queue.poll() is None
    True
    """

    def __init__(
        self,
        max_parallelism: int = 128,
        key_group_range: KeyGroupRange | None = None,
        hash_code: Callable[[K], int] = java_hash_code,
    ) -> None:
        self._key_groups = OwnedKeyGroups(max_parallelism, key_group_range, hash_code)
        self._heap = TimerHeap()  # rows of (timestamp, identity's id, its key group)
        self._by_pair: dict[tuple[K, N], _Identity[K, N]] = {}
        self._by_id: dict[int, _Identity[K, N]] = {}
        self._last_id = _NO_ID

    def add(self, timer: tuple[int, K, N], /) -> bool:
        timestamp, pair, identity = self._look_up(timer)
        if identity is None:
            identity = self._new_identity(pair)
            identity.key_group = self._key_groups.of(pair[0])
        head = self._heap.peek()
        if not self._heap.push(timestamp, identity.id, identity.key_group):
            return False
        self._hold(identity)
        return head is None or bool(timestamp < head.timestamp)  # NumPy's bool is not Python's

    def remove(self, timer: tuple[int, K, N], /) -> bool:
        timestamp, pair, identity = self._look_up(timer)
        if identity is None:
            self._key_groups.of(pair[0])  # checks the key
            self._heap.remove(timestamp, _NO_ID)  # checks the timestamp
            return False
        was_head = self._heap.peek() == (timestamp, identity.id, identity.key_group)
        if self._heap.remove(timestamp, identity.id, identity.key_group):
            self._release(identity)
        return was_head

    def peek(self) -> InternalTimer[K, N] | None:
        head = self._heap.peek()
        return None if head is None else InternalTimer(head.timestamp, *self._by_id[head.key_hash].pair)

    def poll(self) -> InternalTimer[K, N] | None:
        if not self._heap:
            return None
        head = self._heap.pop()
        identity = self._by_id[head.key_hash]
        self._release(identity)
        return InternalTimer(head.timestamp, *identity.pair)

    def add_many(self, timers: Iterable[tuple[int, K, N]], /) -> None:
        timestamps: list[int] = []
        identities: list[_Identity[K, N]] = []
        created: dict[tuple[K, N], _Identity[K, N]] = {}
        for timer in timers:
            timestamp, pair, identity = self._look_up(timer)
            identity = identity or created.get(pair)
            if identity is None:
                identity = created[pair] = self._new_identity(pair)
            timestamps.append(timestamp)
            identities.append(identity)
        of_created = self._key_groups.of_many([key for key, _ in created]).tolist()
        for identity, key_group in zip(created.values(), of_created, strict=True):
            identity.key_group = key_group
        if identities:
            ids = [identity.id for identity in identities]
            key_groups = [identity.key_group for identity in identities]
            added = self._heap.push_many(timestamps, ids, key_groups)
            for identity in itertools.compress(identities, added):
                self._hold(identity)

    def remove_keys(self, keys: Iterable[K], /) -> int:
        identities = self._identities_of(keys)
        for identity in identities:
            del self._by_pair[identity.pair], self._by_id[identity.id]
        return self._heap.remove_keys([identity.id for identity in identities])

    def timers_of_key(self, key: K, /) -> list[InternalTimer[K, N]]:
        ids = [identity.id for identity in self._identities_of((key,))]
        return self._in_order(np.isin(self._heap.key_hashes, ids))

    def clear(self) -> None:
        """Remove all timers."""
        self._heap.clear()
        self._by_pair.clear()
        self._by_id.clear()

    def is_empty(self) -> bool:
        """Return whether the queue has no timers, as ``not queue`` does."""
        return not self._heap

    def get_subset_for_key_group(self, key_group: int, /) -> list[InternalTimer[K, N]]:
        if key_group not in self._key_groups.range:
            raise ArgumentValueError(f"key_group must be in {self._key_groups.range}, got {key_group!r}")
        return self._in_order(self._heap.namespaces == key_group)

    def __iter__(self) -> Iterator[InternalTimer[K, N]]:
        return iter(self._timers(self._heap.timestamps, self._heap.key_hashes))

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, timer: tuple[int, K, N]) -> bool:
        timestamp, _, identity = self._look_up(timer)
        return identity is not None and (timestamp, identity.id, identity.key_group) in self._heap

    def __repr__(self) -> str:
        return f"<TimerQueue of {len(self)} timers, head {self.peek()}, {self._key_groups.range}>"

    def _in_order(self, rows: npt.NDArray[np.bool_]) -> list[InternalTimer[K, N]]:
        timestamps, ids = self._heap.timestamps[rows], self._heap.key_hashes[rows]
        order = np.lexsort((ids, timestamps))
        return self._timers(timestamps[order], ids[order])

    def _timers(
        self, timestamps: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]
    ) -> list[InternalTimer[K, N]]:
        by_id = self._by_id
        columns = zip(timestamps.tolist(), ids.tolist(), strict=True)
        return [InternalTimer(timestamp, *by_id[id].pair) for timestamp, id in columns]

    def _look_up(self, timer: tuple[int, K, N]) -> tuple[int, tuple[K, N], _Identity[K, N] | None]:
        try:
            timestamp, key, namespace = timer
            pair = key, namespace
            return timestamp, pair, self._by_pair.get(pair)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"timer must be (timestamp, key, namespace) with a hashable key and namespace, got {timer!r}"
            ) from error

    def _identities_of(self, keys: Iterable[K]) -> list[_Identity[K, N]]:
        if isinstance(keys, str | bytes):
            raise ArgumentTypeError(f"keys must be an iterable of keys, got the single key {keys!r}")
        try:
            wanted = set(keys)
        except TypeError as error:
            raise ArgumentTypeError(f"keys must be an iterable of hashable keys, got {keys!r}") from error
        key_groups = np.unique(self._key_groups.of_many(list(wanted)))
        ids = np.unique(self._heap.key_hashes[np.isin(self._heap.namespaces, key_groups)])
        identities = map(self._by_id.__getitem__, ids.tolist())
        return [identity for identity in identities if identity.pair[0] in wanted]

    def _new_identity(self, pair: tuple[K, N]) -> _Identity[K, N]:
        self._last_id += 1
        return _Identity(pair, self._last_id)

    def _hold(self, identity: _Identity[K, N]) -> None:
        if not identity.timers:
            self._by_pair[identity.pair] = self._by_id[identity.id] = identity
        identity.timers += 1

    def _release(self, identity: _Identity[K, N]) -> None:
        identity.timers -= 1
        if not identity.timers:
            del self._by_pair[identity.pair], self._by_id[identity.id]
