"""The timer queue on disk, in RocksDB, with its first timers cached in memory."""

from __future__ import annotations

import json
import tempfile
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, compress, islice
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from timerheap.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CheckpointMismatchError,
    ForeignCheckpointError,
)
from timerheap.flink.java_hashes import java_hash_code
from timerheap.flink.key_groups import KeyGroupRange, OwnedKeyGroups
from timerheap.flink.timer_bytes import TimerSerializer, TypeSerializer
from timerheap.flink.timer_queue import InternalTimer, K, KeyedTimerQueue, N

if TYPE_CHECKING:
    import rocksdict


# The store uses a key of the database itself, which sorts before the entries.
_FORMAT = b""
FIRST = b"\0"

_FORMAT_NAME = "timerheap timers"
_FORMAT_VERSION = 1

_KEY = 12  # the offset of the key, after the timestamp and the hash code
_CACHED = 1_024  # entries to read at a time
_MOST_CACHED = 2 * _CACHED


class Store:
    """A sorted set of byte strings on disk, each longer than one byte; see `RocksDBTimerQueue`.

    properties: JSON values on which the contents depend, the same on every opening

    Writes are in RocksDB's write-ahead log, which the operating system keeps when the process is killed. A
    temporary store needs none.
    """

    def __init__(self, path: str | PathLike[str] | None, properties: dict[str, Any], sync: bool) -> None:
        try:
            import rocksdict
        except ImportError as error:
            raise ImportError("timers on disk need rocksdict: pip install 'timerheap[rocksdb]'") from error
        self._rocksdict: Any = rocksdict
        self.is_closed = False
        temporary = None
        if path is None:
            # Create it before the finalizer: at the interpreter's exit, finalizers run in reverse order.
            temporary = tempfile.TemporaryDirectory(prefix="timerheap-")
            path = temporary.name
        if not isinstance(path, str | PathLike):
            raise ArgumentTypeError(f"path must be a str or a path, got {path!r}")
        self.path = Path(path)
        self._open = ExitStack()
        self._finalizer = weakref.finalize(self, self._open.close)
        try:
            if temporary is not None:
                self._open.enter_context(temporary)
            self.path.mkdir(parents=True, exist_ok=True)
            self._db = self._call("opened", rocksdict.Rdict, str(self.path), _options(rocksdict))
            self._open.callback(self._db.close)
            how: Any = rocksdict.WriteOptions()
            how.sync = sync
            how.disable_wal = temporary is not None
            self._db.set_write_options(how)
            self._check_properties(properties)
        except BaseException:
            self._finalizer()
            raise

    def _check_properties(self, properties: dict[str, Any]) -> None:
        """Check the stored properties, or store those of a new store."""
        wanted = {"format": _FORMAT_NAME, "version": _FORMAT_VERSION, **properties}
        stored = self._call("read", self._db.get, _FORMAT)
        if stored is None and next(iter(self._db.keys()), None) is None:
            self._call("written", self._db.put, _FORMAT, json.dumps(wanted).encode())
            return
        try:
            found = json.loads(stored)
            for name, value in wanted.items():
                if found[name] != value:
                    raise CheckpointMismatchError(
                        f"{name} must be {found[name]!r}, as stored in {self.path}, got {value!r}"
                    )
        except (TypeError, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ForeignCheckpointError(
                f"path must be a new directory or one of {_FORMAT_NAME}, got {self.path}"
            ) from error

    def close(self) -> None:
        """Close the database; a temporary directory is removed. Closing again has no effect."""
        if not self.is_closed:
            try:
                self._call("closed", self._finalizer)
            finally:
                self.is_closed = True

    def add(self, entry: bytes) -> None:
        self._call("written", self._db.put, entry, b"")

    def remove(self, entry: bytes) -> None:
        self._call("written", self._db.delete, entry)

    def add_many(self, entries: Iterable[bytes]) -> None:
        """Add all entries or, on an error, none. Sorted entries take less time."""
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for entry in entries:
            put(entry, b"")
        self._write(batch)

    def remove_many(self, entries: Sequence[bytes]) -> None:
        """Remove all entries or, on an error, none."""
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        delete = batch.delete
        for entry in entries:
            delete(entry)
        self._write(batch)

    def clear(self) -> None:
        last = self._call("read", lambda: next(self._db.keys(backwards=True), FIRST))
        if last > FIRST:
            batch = self._rocksdict.WriteBatch(raw_mode=True)
            batch.delete_range(FIRST, last + b"\0")
            self._write(batch)

    def scan(self, start: bytes, size: int = 4_096) -> Iterator[list[bytes]]:
        """Return an iterator over chunks of the current entries from `start` on, in order."""
        entries = self._call("read", lambda: self._db.keys(from_key=start))
        return self._chunks(entries, start, size)

    def _chunks(self, entries: Iterator[bytes], start: bytes, size: int) -> Iterator[list[bytes]]:
        chunk = list(islice(entries, size))
        while len(chunk) == size:
            yield chunk
            start = chunk[-1]
            chunk = list(islice(entries, size))
        # That iterator ends silently on an error; another one reports it.
        self._call("read", self._read_on, chunk[-1] if chunk else start)
        if chunk:
            yield chunk

    def _read_on(self, start: bytes) -> None:
        rest = self._db.iter()
        rest.seek(start)
        while rest.valid():
            rest.next()
        rest.status()

    def __contains__(self, entry: bytes) -> bool:
        return self._call("read", self._db.get, entry) is not None

    def _write(self, batch: rocksdict.WriteBatch) -> None:
        self._call("written", self._db.write, batch)

    def _call(self, done: str, call: Callable[..., Any], *arguments: object) -> Any:
        """Call RocksDB, and convert its errors, which have no type of their own, to OSErrors."""
        if self.is_closed:
            raise ValueError(f"the store in {self.path} is closed; open it again with a new queue")
        try:
            return call(*arguments)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"the store in {self.path} could not be {done}: {error}") from error


def _options(rocksdict: Any) -> Any:
    """Return options that keep the memory for many millions of entries to some hundred MB."""
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(64 << 20))
    table.set_cache_index_and_filter_blocks(True)  # otherwise they grow with the number of entries
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(32 << 20)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    # Damage in the log is an error, except for a last write that is incomplete.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    # Compact files of mostly removed entries early, so that scans do not iterate over them.
    options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


class CachedHead:
    """A cache of the first entries of a store (Flink: ``RocksDBCachingPriorityQueueSet``).

    A failing write leaves the store unchanged and empties the cache, which is then read again.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.forget()

    def forget(self) -> None:
        """Empty the cache."""
        self._cache: list[bytes] = []
        self._through: bytes | None = FIRST  # the last entry of the cache; None if it has all
        self._beyond: int | None = None  # the number of entries that are not cached, or None if unknown

    def first(self) -> bytes | None:
        """Return the first entry, or None."""
        if not self._cache and self._through is not None:
            # Continue where the last read ended; RocksDB would iterate over everything removed since.
            self._cache = next(self.store.scan(self._through, size=_CACHED), [])
            if len(self._cache) < _CACHED:
                self._through, self._beyond = None, 0
            else:
                self._through = self._cache[-1]
                if self._beyond is not None:
                    self._beyond -= _CACHED
        return self._cache[0] if self._cache else None

    def add(self, entry: bytes) -> bytes | None:
        """Add an entry unless it is present; return the previous first entry."""
        return self._write(entry, self.store.add, True)

    def remove(self, entry: bytes) -> bytes | None:
        """Remove an entry if it is present; return the previous first entry."""
        return self._write(entry, self.store.remove, False)

    def _write(self, entry: bytes, write: Callable[[bytes], None], present: bool) -> bytes | None:
        first = self._cache[0] if self._cache else self.first()
        if self._through is not None and entry > self._through:
            write(entry)
            self._beyond = None  # whether the entry was present is unknown
            return first
        at = bisect_left(self._cache, entry)
        if (self._cache[at : at + 1] == [entry]) is present:
            return first
        try:
            self._cache[at : at + (not present)] = [entry] * present
            write(entry)
        except BaseException:
            self.forget()
            raise
        self._shorten()
        return first

    def add_many(self, entries: Sequence[bytes]) -> None:
        """Add the entries that are not present; on an error, add none."""
        entries = sorted(entries)
        self.first()
        near = len(entries) if self._through is None else bisect_right(entries, self._through)
        try:
            self.store.add_many(entries)
            self._add_to_cache(entries[:near])
            if near < len(entries):
                self._beyond = None
        except BaseException:
            self.forget()
            raise

    def scan(self) -> Iterator[list[bytes]]:
        """Return an iterator over chunks of the current entries, in order."""
        self.first()
        return iter([self._cache[:]]) if self._through is None else self.store.scan(FIRST)

    def __contains__(self, entry: bytes) -> bool:
        self.first()
        if self._through is not None and entry > self._through:
            return entry in self.store
        at = bisect_left(self._cache, entry)
        return self._cache[at : at + 1] == [entry]

    def __len__(self) -> int:
        self.first()
        if self._beyond is None:
            self._beyond = sum(map(len, self.store.scan((self._through or b"") + b"\0")))
        return len(self._cache) + self._beyond

    def _add_to_cache(self, near: list[bytes]) -> None:
        """Add sorted new entries to the cache, as many as fit."""
        taken = near[:_MOST_CACHED]
        self._cache = sorted({*self._cache, *taken})
        if len(taken) < len(near):
            self._through, self._beyond = taken[-1], None
            del self._cache[bisect_right(self._cache, self._through) :]
        self._shorten()

    def _shorten(self) -> None:
        if len(self._cache) > _MOST_CACHED:
            if self._beyond is not None:
                self._beyond += len(self._cache) - _CACHED
            del self._cache[_CACHED:]
            self._through = self._cache[-1]


class RocksDBTimerQueue(KeyedTimerQueue[K, N]):
    """A timer queue in a RocksDB directory, with the interface of `TimerQueue`.

    Parameters
    ----------
    path : path, optional
        The directory: a new one is created, an existing one holds the timers of an earlier queue. Only one
        queue at a time may open it. By default a temporary directory, which is removed with the queue.
    max_parallelism, key_group_range, hash_code
        As in `TimerQueue`.
    key_serializer, namespace_serializer : str or TypeSerializer, default "any"
        The serializers of keys and namespaces. Flink's own formats are ``"long"``, ``"int"``, ``"short"``,
        ``"byte"``, ``"double"``, ``"boolean"``, ``"string"``, ``"bytes"``, ``"void"`` (None, Flink's
        ``VoidNamespace``) and ``"time_window"`` (a tuple of start and end). ``"any"`` is timerheap's own
        format for values of different types: None, bools, ints of 64 bits, floats, strings, bytes and tuples
        of these, each after a byte that names its type. A `TypeSerializer` is used unchanged.
    sync : bool, default False
        Whether each call waits until its changes are on disk, which takes milliseconds.

    Raises
    ------
    ImportError
        If rocksdict is not installed: ``pip install 'timerheap[rocksdb]'``.
    ArgumentTypeError, ArgumentValueError, CheckpointError
        If an argument is invalid, the directory was created with another `max_parallelism`,
        `key_group_range` or serializer, or the directory holds other data.
    OSError
        If the directory cannot be opened because another queue has opened it or it is damaged.

    Notes
    -----
    **Durability.** When a call has returned, its changes survive the end of the process; with ``sync=True``
    they also survive a crash of the machine. `add_many` and `remove_keys` are atomic. ``close``
    only makes the next opening faster. The queue is a context manager.

    **Order.** A timer is stored as its timestamp, its key's hash code, its key and its namespace, and timers
    are ordered by these bytes. In Flink's ``RocksDBCachingPriorityQueueSet`` the key group comes first, and a
    heap holds the first timers of all key groups. Here one scan serves all key groups; to find the timers of
    one key group, all timers are scanned.

    **Identity.** Timers are compared by these bytes: 1, 1.0 and True are three keys. The queue returns keys
    as their serializer reads them.

    **Cost.** Up to 2048 of the first timers are kept in memory. `add`, `remove`, `peek` and `poll` cost O(log
    n), plus one read of the disk per 1024 polls. ``len`` is O(1), except after a timer beyond those in memory
    has been added or removed: whether it was present is unknown, so the next ``len`` counts all timers, O(n).
    Flink always counts. `add_many` costs what it adds, `clear` is O(1), and all
    else is O(n). The timers are on disk, and the process needs little memory. A queue must be
    used by one thread at a time. An operation that raises leaves the queue unchanged.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp()
    >>> with RocksDBTimerQueue(path) as queue:
    ...     queue.add(InternalTimer(2_000, "N14228", None)), queue.add(InternalTimer(1_000, "N14228", None))
    (True, True)
    >>> with RocksDBTimerQueue(path) as queue:
    ...     queue.poll(), len(queue)
    (InternalTimer(timestamp=1000, key='N14228', namespace=None), 1)
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
        data = self._bytes_of(timer)
        head = self._timers.add(data)
        return head is None or data[:8] < head[:8]

    def remove(self, timer: tuple[int, K, N], /) -> bool:
        data = self._bytes_of(timer)
        return data == self._timers.remove(data)

    def peek(self) -> InternalTimer[K, N] | None:
        head = self._timers.first()
        return None if head is None else self._timer_of(head)

    def poll(self) -> InternalTimer[K, N] | None:
        head = self._timers.first()
        if head is None:
            return None
        timer = self._timer_of(head)
        self._timers.remove(head)
        return timer

    def add_many(self, timers: Iterable[tuple[int, K, N]], /) -> None:
        self._timers.add_many([self._bytes_of(timer) for timer in timers])

    def remove_keys(self, keys: Iterable[K], /) -> int:
        if isinstance(keys, str | bytes):
            raise ArgumentTypeError(f"keys must be an iterable of keys, got the single key {keys!r}")
        wanted = {self._bytes_of_key(key) for key in keys}
        lengths = {len(key) for key in wanted}
        gone = [data for data in self._scan() if any(data[8 : 8 + length] in wanted for length in lengths)]
        if gone:
            self._timers.forget()
            self._timers.store.remove_many(gone)
        return len(gone)

    def timers_of_key(self, key: K, /) -> list[InternalTimer[K, N]]:
        part = self._bytes_of_key(key)
        return [self._timer_of(data) for data in self._scan() if data.startswith(part, 8)]

    def get_subset_for_key_group(self, key_group: int, /) -> list[InternalTimer[K, N]]:
        if key_group not in self._key_groups.range:
            raise ArgumentValueError(f"key_group must be in {self._key_groups.range}, got {key_group!r}")
        found: list[InternalTimer[K, N]] = []
        for chunk in self._timers.scan():
            timers = [self._timer_of(data) for data in chunk]
            key_groups = self._key_groups.of_many([timer.key for timer in timers])
            found += compress(timers, (key_groups == index(key_group)).tolist())
        return found

    def clear(self) -> None:
        """Remove all timers."""
        self._timers.forget()
        self._timers.store.clear()

    def is_empty(self) -> bool:
        """Return whether the queue has no timers, as ``not queue`` does, without counting them."""
        return self._timers.first() is None

    def close(self) -> None:
        """Close the queue, for another to open its directory; a temporary directory is removed.

        Closing a closed queue has no effect.
        """
        self._timers.store.close()
        self._timers.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[InternalTimer[K, N]]:
        return map(self._timer_of, self._scan())  # the scan starts now, not at the first timer

    def __len__(self) -> int:
        return len(self._timers)

    def __bool__(self) -> bool:
        return not self.is_empty()

    def __contains__(self, timer: tuple[int, K, N]) -> bool:
        try:
            data = self._bytes_of(timer)
        except OverflowError:
            raise
        except ValueError:  # the key belongs to a key group outside the range
            return False
        return data in self._timers

    def __repr__(self) -> str:
        store = self._timers.store
        if store.is_closed:
            return f"<RocksDBTimerQueue in {store.path}, closed>"
        return f"<RocksDBTimerQueue in {store.path}, head {self.peek()}, {self._key_groups.range}>"

    # ---- The stored bytes of a timer: timestamp, hash code, key, namespace. ----

    def _bytes_of(self, timer: tuple[int, K, N]) -> bytes:
        return self._serializer.serialize(timer, self._key_groups.hash_code)

    def _timer_of(self, data: bytes) -> InternalTimer[K, N]:
        return self._serializer.deserialize(data, _KEY)

    def _bytes_of_key(self, key: K) -> bytes:
        return self._key_groups.hash_code(key).to_bytes(4, "big") + self._serializer.serialize_key(key)

    def _scan(self) -> Iterator[bytes]:
        return chain.from_iterable(self._timers.scan())

    def _check_hash_code(self) -> None:
        """Check that the first timer was stored with the same hash code function."""
        head = self.peek()
        if head is not None and self._bytes_of(head) != self._timers.first():
            raise CheckpointMismatchError(
                f"hash_code must be the one that the timers were stored with, got another hash of {head!r}"
            )
