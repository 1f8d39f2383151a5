"""The timer queue on disk: more timers than memory holds, and none lost when the process is killed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain, compress, islice
from operator import index
from os import PathLike
from types import TracebackType
from typing import Generic, Self, TypeVar

import numpy as np

from timerheap.hashing import java_hash_code
from timerheap.key_groups import OwnedKeyGroups
from timerheap.keys import KeyGroupRange
from timerheap.rocksdb.head import CachedHead
from timerheap.rocksdb.store import Store
from timerheap.serializers import TypeSerializer
from timerheap.timer import MAX_WATERMARK, InternalTimer, int64
from timerheap.timer_bytes import TimerSerializer, timestamp_bytes

__all__ = ["RocksDBTimerQueue"]

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)

_BATCH = 8_192  # timers that are turned into bytes at once
_KEY = 12  # where the key begins, after the timestamp and the hash code


class RocksDBTimerQueue(Generic[K, N]):
    """A timer queue in a directory of RocksDB's, with the answers of `TimerQueue`.

    Parameters
    ----------
    path : path, optional
        The directory; it is made if it is not there, and else holds the timers of before. One queue at a time
        has it open. Without it a temporary directory, which goes with the queue: room for more timers than
        memory holds, and no more than that.
    max_parallelism, key_group_range, hash_code
        As in `TimerQueue`.
    key_serializer, namespace_serializer : str or TypeSerializer, default "any"
        As in `TimerSerializer`. ``"any"`` takes None, bools, ints of 64 bits, floats, strings, bytes and
        tuples of these beside each other; ``"long"``, ``"string"``, ``"void"``, ``"time_window"`` and others
        are Flink's and save bytes.
    sync : bool, default False
        Whether a call returns only once the disk has it, which takes milliseconds.

    Raises
    ------
    ImportError
        If rocksdict is not installed: ``pip install 'timerheap[rocksdb]'``.
    TypeError, ValueError
        If an argument is no such thing, or the directory was made with another `max_parallelism`,
        `key_group_range` or serializer, or holds something else.
    OSError
        If the directory cannot be opened: another queue has it, or it is damaged.

    Notes
    -----
    **What is safe.** What a call did outlives the process, however it ends, from the moment the call returns;
    with ``sync=True`` it outlives the machine's crash too. `add_many`, `poll_many` and `remove_keys` do all
    or nothing. ``close`` only makes the next opening faster; the queue is a context manager.

    **Order.** A timer is stored as its timestamp, its key's hash code, its key and its namespace, each as
    `TimerSerializer` writes it, and timers come in the order of these bytes. In Flink, whose
    ``RocksDBCachingPriorityQueueSet`` this is, the key group comes first, and a heap holds the heads of all
    key groups. Here one scan serves them all, and to find one key group's timers is a scan of all: for that
    the hash code is there, from which the key group follows.

    **Identity** is the bytes' too: 1, 1.0 and True are three keys, and what comes back is what their
    serializer reads.

    **Cost.** The first timers are kept in memory, up to 2048. `add`, `remove`, `peek` and `poll` cost O(log
    n), and a read of the disk every 1024 polls. ``len`` is O(1) until a timer beyond those in memory is added
    or removed, as nothing looks whether it was there; the next ``len`` counts, O(n). Flink's always does.
    `add_many` and `poll_many` cost what they add and return, `clear` nothing; all else is O(n). The process
    takes 200 MB for 20 million timers. One thread at a time. An operation that raises leaves the queue as it
    was.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp()
    >>> with RocksDBTimerQueue(path) as queue:
    ...     queue.add(InternalTimer(2_000, "N14228", None)), queue.add(InternalTimer(1_000, "N14228", None))
    (True, True)
    >>> with RocksDBTimerQueue(path) as queue:
    ...     queue.poll_many(5_000)
    [InternalTimer(timestamp=1000, key='N14228', namespace=None),
     InternalTimer(timestamp=2000, key='N14228', namespace=None)]
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        max_parallelism: int = 128,
        key_group_range: KeyGroupRange | None = None,
        hash_code: Callable[[K], int] = java_hash_code,
        *,
        key_serializer: str | TypeSerializer = "any",
        namespace_serializer: str | TypeSerializer = "any",
        sync: bool = False,
    ) -> None:
        self._key_groups = OwnedKeyGroups(max_parallelism, key_group_range, hash_code)
        self._serializer = TimerSerializer(key_serializer, namespace_serializer)
        owned = self._key_groups.range
        properties = {
            "max_parallelism": max_parallelism,
            "key_group_range": [owned.start_key_group, owned.end_key_group],
            "key_serializer": self._serializer.key_serializer.name,
            "namespace_serializer": self._serializer.namespace_serializer.name,
        }
        self._timers = CachedHead(Store(path, properties, sync))
        try:
            self._check_hash_code()
        except BaseException:
            self.close()
            raise

    def add(self, timer: tuple[int, K, N], /) -> bool:
        """Add a timer unless it is there; True if the head changed, so False on a tie with the head.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If the timestamp is no int64, a serializer does not take the key or the namespace, the key has no
            hash code or belongs to a key group outside `key_group_range`.
        OSError
            If the disk cannot be read or written.
        """
        data = self._bytes_of(timer)
        head = self._timers.add(data)
        return head is None or data[:8] < head[:8]

    def remove(self, timer: tuple[int, K, N], /) -> bool:
        """Remove a timer if it is there; True if it was the head, which `peek` shows.

        Raises
        ------
        TypeError, OverflowError, ValueError, OSError
            As `add`.
        """
        data = self._bytes_of(timer)
        return data == self._timers.remove(data)

    def peek(self) -> InternalTimer[K, N] | None:
        """Return the head, a timer with the lowest timestamp, or None."""
        head = self._timers.first()
        return None if head is None else self._serializer.deserialize(head, _KEY)

    def poll(self) -> InternalTimer[K, N] | None:
        """Remove and return the head that `peek` shows, or None."""
        head = self._timers.first()
        if head is None:
            return None
        timer = self._serializer.deserialize(head, _KEY)
        self._timers.remove(head)
        return timer

    def add_many(self, timers: Iterable[tuple[int, K, N]], /) -> None:
        """Add every timer that is not there, in bulk: all of them or, on an error, none.

        Raises
        ------
        TypeError, OverflowError, ValueError, OSError
            As `add`.
        """
        self._timers.add_many(self._all_bytes_of(timers))

    def poll_many(self, time: int, limit: int | None = None) -> list[InternalTimer[K, N]]:
        """Remove and return the timers with timestamp <= `time`, earliest first, in bulk.

        Parameters
        ----------
        time : int
            Epoch milliseconds, int64.
        limit : int, optional
            Take the first `limit` of them, 0 or more; by default all.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If `time` is no int64, or `limit` no such number.
        OSError
            If the disk cannot be read or written.
        """
        time = int64("time", time)
        most = sys.maxsize if limit is None else int64("limit", limit)
        if most < 0:
            raise ValueError(f"limit must be 0 or more, got {limit!r}")
        due = self._timers.before(None if time == MAX_WATERMARK else timestamp_bytes(time + 1), most)
        timers: list[InternalTimer[K, N]] = self._serializer.deserialize_many(due, _KEY)
        if due:
            self._timers.remove_first(due)
        return timers

    def remove_keys(self, keys: Iterable[K], /) -> int:
        """Remove all timers of many keys in one scan; give how many there were.

        Raises
        ------
        TypeError, OverflowError, ValueError, OSError
            As `add`; then no timer has been removed.
        """
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys must be an iterable of keys, got the one key {keys!r}")
        wanted = {self._bytes_of_key(key) for key in keys}
        lengths = {len(key) for key in wanted}
        gone = [data for data in self._scan() if any(data[8 : 8 + length] in wanted for length in lengths)]
        if gone:
            self._timers.forget()
            self._timers.store.remove_many(gone)
        return len(gone)

    def timers_of_key(self, key: K, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key, in the order in which they would fire. A scan, O(n).

        Raises
        ------
        TypeError, OverflowError, ValueError, OSError
            As `add`.
        """
        part = self._bytes_of_key(key)
        return self._serializer.deserialize_many(
            [data for data in self._scan() if data.startswith(part, 8)], _KEY
        )

    def get_subset_for_key_group(self, key_group: int, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key group, in the order in which they would fire. A scan, O(n).

        Raises
        ------
        ValueError
            If the queue does not own the key group.
        """
        if key_group not in self._key_groups.range:
            raise ValueError(f"key_group must be in {self._key_groups.range}, got {key_group!r}")
        found: list[bytes] = []
        for data in self._timers.scan():
            codes = b"".join([one[8:_KEY] for one in data])
            if len(codes) != 4 * len(data):
                self._serializer.deserialize_many(data, _KEY)  # which says what is no timer
            hash_codes = np.frombuffer(codes, ">u4").astype(np.uint32)
            here = self._key_groups.of_hash_codes(hash_codes) == index(key_group)
            found += compress(data, here.tolist())
        return self._serializer.deserialize_many(found, _KEY)

    def clear(self) -> None:
        """Remove all timers."""
        self._timers.forget()
        self._timers.store.clear()

    def is_empty(self) -> bool:
        """Tell whether there is no timer, as ``not queue`` does; neither needs a count."""
        return self._timers.first() is None

    def close(self) -> None:
        """Let go of the directory, for another to open it; a temporary one is removed. Again is no error."""
        self._timers.store.close()
        self._timers.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[InternalTimer[K, N]]:
        chunks = self._timers.scan()  # now, not when the first is asked for
        return chain.from_iterable(self._serializer.deserialize_many(chunk, _KEY) for chunk in chunks)

    def __len__(self) -> int:
        return len(self._timers)

    def __bool__(self) -> bool:
        return not self.is_empty()

    def __contains__(self, timer: tuple[int, K, N]) -> bool:
        try:
            data = self._bytes_of(timer)
        except ValueError:  # of a key group that is not ours
            return False
        return data in self._timers

    def __repr__(self) -> str:
        store = self._timers.store
        if store.is_closed:
            return f"<RocksDBTimerQueue in {store.path}, closed>"
        return f"<RocksDBTimerQueue in {store.path}, head {self.peek()}, {self._key_groups.range}>"

    # ---- Timers as they are stored: timestamp, hash code, key, namespace. ----

    def _bytes_of(self, timer: tuple[int, K, N]) -> bytes:
        return self._serializer.serialize(timer, self._key_groups.hash_code)

    def _all_bytes_of(self, timers: Iterable[tuple[int, K, N]]) -> list[bytes]:
        remaining = iter(timers)
        data: list[bytes] = []
        while batch := list(islice(remaining, _BATCH)):
            try:
                timestamps = [timestamp for timestamp, _, _ in batch]
                keys = [key for _, key, _ in batch]
                namespaces = [namespace for _, _, namespace in batch]
            except (TypeError, ValueError):
                data += map(self._bytes_of, batch)  # which says what is wrong
                continue
            hash_codes = self._key_groups.hash_codes(keys)
            data += self._serializer.serialize_many(timestamps, keys, namespaces, hash_codes)
        return data

    def _bytes_of_key(self, key: K) -> bytes:
        return self._key_groups.hash_code(key).to_bytes(4, "big") + self._serializer.serialize_key(key)

    def _scan(self) -> Iterator[bytes]:
        return chain.from_iterable(self._timers.scan())

    def _check_hash_code(self) -> None:
        """See whether the first timer lies where its key's hash code says."""
        head = self.peek()
        if head is not None and self._bytes_of(head) != self._timers.first():
            raise ValueError(
                f"hash_code must be the one that the timers were stored with: {head!r} has another hash code"
            )
