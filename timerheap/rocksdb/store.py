"""Byte strings in order in a directory of RocksDB's, every one of them safe once it is put."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timerheap.rocksdb.journal import ADDED, REMOVED, Journal

if TYPE_CHECKING:
    import rocksdict

__all__ = ["FIRST", "Store"]

# Two keys of the database are the store's own; they sort before what it holds.
_FORMAT, _GENERATION = b"", b"\0"
FIRST = b"\0\0"

_FORMAT_NAME = "timerheap timers"
_FORMAT_VERSION = 1
_JOURNAL = "timerheap.journal"
_MOST_PENDING = 8_192


class Store:
    """A sorted set of byte strings on disk, each longer than one byte.

    Parameters
    ----------
    path : path, optional
        The directory, made if it is not there; without one a temporary directory, which goes with the store.
    properties : dict
        What the contents depend on, JSON. They are kept in the store and must be the same to open it again.
    sync : bool
        Whether each write waits for the disk, and so outlives the machine's crash, too.

    Raises
    ------
    ImportError
        If rocksdict is not installed.
    OSError
        If RocksDB cannot open the directory: it is in use, damaged, or not RocksDB's.
    ValueError
        If the directory holds something else, or was made with other properties.

    Notes
    -----
    Single writes wait in memory, as in Flink's ``RocksDBWriteBatchWrapper``, for others or for the next scan;
    until then a `Journal` keeps them. A temporary store needs neither that nor RocksDB's own log.
    """

    def __init__(self, path: str | PathLike[str] | None, properties: dict[str, Any], sync: bool) -> None:
        self._rocksdict = rocksdict = _import_rocksdict()
        self.is_closed = False
        temporary = None
        if path is None:
            # Before there is a finalizer of ours: when the interpreter ends, the latest goes first.
            temporary = tempfile.TemporaryDirectory(prefix="timerheap-")
            path = temporary.name
        if not isinstance(path, str | PathLike):
            raise TypeError(f"path must be a str or a path, got {path!r}")
        self.path = Path(path)
        self._open = ExitStack()
        self._let_go = weakref.finalize(self, self._open.close)
        try:
            if temporary is not None:
                self._open.enter_context(temporary)
            with self._errors("opened"):
                self.path.mkdir(parents=True, exist_ok=True)
                self._db = rocksdict.Rdict(str(self.path), _options(rocksdict))
            self._open.callback(self._db.close)
            how = rocksdict.WriteOptions()
            how.sync = sync
            how.disable_wal = temporary is not None
            self._db.set_write_options(how)
            self._pending: dict[bytes, int] = {}
            self._sync = sync
            self._generation = self._enter(properties)
            self._journal: Journal | None = None
            if temporary is None:
                self._journal = Journal(self.path / _JOURNAL, self._generation)
                self._open.callback(self._journal.close)
                self._pending.update((entry, kind) for kind, entry in self._journal.entries())
                self.flush()
        except BaseException:
            self._let_go()
            raise

    def _enter(self, properties: dict[str, Any]) -> int:
        """Check what the store says about itself, or say it if it is new; give the journal's generation."""
        wanted = {"format": _FORMAT_NAME, "version": _FORMAT_VERSION, **properties}
        with self._errors("read"):
            stored = self._db.get(_FORMAT)
            generation = self._db.get(_GENERATION) or bytes(8)
            if stored is None and next(iter(self._db.keys()), None) is None:
                self._db.put(_FORMAT, json.dumps(wanted).encode())
                return 0
        try:
            found = json.loads(stored)
            for name, value in wanted.items():
                if found[name] != value:
                    raise ValueError(
                        f"{name} must be {found[name]!r}, as the store in {self.path} has it, got {value!r}"
                    )
        except (TypeError, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"path must name a new directory or one of {_FORMAT_NAME}, got {self.path}"
            ) from error
        return int.from_bytes(generation, "big")

    def close(self) -> None:
        """Write what waits and let go of the directory; a temporary one is removed. Again is no error."""
        if not self.is_closed:
            try:
                self.flush()
            finally:
                self.is_closed = True
                with self._errors("closed"):
                    self._let_go()

    def add(self, entry: bytes) -> None:
        """Put one entry, if it is not there."""
        if self._sync:
            self.add_many([entry])
        else:
            self._write_soon(ADDED, entry)

    def remove(self, entry: bytes) -> None:
        """Remove one entry, if it is there."""
        if self._sync:
            self.remove_many([entry])
        else:
            self._write_soon(REMOVED, entry)

    def add_many(self, entries: Iterable[bytes]) -> None:
        """Put all entries or, on an error, none. In order they cost a third."""
        self.flush()
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for entry in entries:
            put(entry, b"")
        self._write(batch)

    def remove_many(self, entries: Sequence[bytes]) -> None:
        """Remove all entries or, on an error, none."""
        self.flush()
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        delete = batch.delete
        for entry in entries:
            delete(entry)
        self._write(batch)

    def remove_range(self, first: bytes, last: bytes) -> None:
        """Remove `first`, `last` and what is between them, whatever that is, at the price of one."""
        self.flush()
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        batch.delete_range(first, last + b"\0")
        self._write(batch)

    def clear(self) -> None:
        """Remove all entries."""
        self.flush()
        last = next(self._db.keys(backwards=True), FIRST)
        if last > FIRST:
            self.remove_range(FIRST, last)

    def scan(self, start: bytes, stop: bytes | None = None, size: int = 4_096) -> Iterator[list[bytes]]:
        """Read the entries from `start` to before `stop`, in order, `size` at a time, as they are now."""
        self.flush()
        options = self._rocksdict.ReadOptions()
        if stop is not None:
            options.set_iterate_upper_bound(stop)
        return self._chunks(self._db.keys(from_key=start, read_opt=options), start, options, size)

    def _chunks(
        self, entries: Iterator[bytes], start: bytes, options: Any, size: int
    ) -> Iterator[list[bytes]]:
        chunk = list(islice(entries, size))
        while len(chunk) == size:
            yield chunk
            start = chunk[-1]
            chunk = list(islice(entries, size))
        with self._errors("read"):  # an iterator ends where it fails, and only another one says so
            rest = self._db.iter(options)
            rest.seek(chunk[-1] if chunk else start)
            while rest.valid():
                rest.next()
            rest.status()
        if chunk:
            yield chunk

    def __contains__(self, entry: bytes) -> bool:
        if self.is_closed:
            self.flush()  # which says so
        waiting = self._pending.get(entry)
        if waiting is not None:
            return waiting == ADDED
        with self._errors("read"):
            return self._db.get(entry) is not None

    def flush(self) -> None:
        """Write what waits."""
        if self.is_closed:
            raise ValueError(f"the store in {self.path} is closed")
        if not self._pending and (self._journal is None or self._journal.is_empty):
            return
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for entry in sorted(self._pending):  # in order they cost a third
            if self._pending[entry] == ADDED:
                batch.put(entry, b"")
            else:
                batch.delete(entry)
        batch.put(_GENERATION, (self._generation + 1).to_bytes(8, "big"))
        self._write(batch)
        self._pending.clear()
        self._generation += 1
        if self._journal is not None:
            self._journal.begin(self._generation)

    def _write_soon(self, kind: int, entry: bytes) -> None:
        if self.is_closed or len(self._pending) >= _MOST_PENDING:
            self.flush()
        journal = self._journal
        if journal is not None and not journal.append(kind, entry):
            self.flush()
            if not journal.append(kind, entry):  # no room even in an empty one
                return self.add_many([entry]) if kind == ADDED else self.remove_many([entry])
        self._pending[entry] = kind

    def _write(self, batch: rocksdict.WriteBatch) -> None:
        with self._errors("written"):
            self._db.write(batch)

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turn RocksDB's errors, which have no type of their own, into OSErrors."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"the store in {self.path} could not be {done}: {error}") from error


def _import_rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise ImportError("timers on disk need rocksdict: pip install 'timerheap[rocksdb]'") from error
    return rocksdict


def _options(rocksdict: Any) -> Any:
    """Choose what keeps many millions of entries within some hundred MB of memory."""
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(64 << 20))
    table.set_cache_index_and_filter_blocks(True)  # or they grow with the entries
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(32 << 20)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    # What the log cannot give back is an error, but for a last write that was cut off.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    # Files of mostly removed entries are compacted early, so that scans need not walk over them.
    options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options
