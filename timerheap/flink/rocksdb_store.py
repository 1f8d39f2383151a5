"""Sorted byte strings in RocksDB."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rocksdict

# The store uses a key of the database itself, which sorts before the entries.
_FORMAT = b""
FIRST = b"\0"

_FORMAT_NAME = "timerheap timers"
_FORMAT_VERSION = 1


class Store:
    """A sorted set of byte strings on disk, each longer than one byte; see `RocksDBTimerQueue`.

    properties: JSON values on which the contents depend, the same on every opening

    Writes are in RocksDB's write-ahead log, which the operating system keeps when the process is killed. A
    temporary store needs none.
    """

    def __init__(self, path: str | PathLike[str] | None, properties: dict[str, Any], sync: bool) -> None:
        self._rocksdict = rocksdict = _import_rocksdict()
        self.is_closed = False
        temporary = None
        if path is None:
            # Create it before the finalizer: at the interpreter's exit, finalizers run in reverse order.
            temporary = tempfile.TemporaryDirectory(prefix="timerheap-")
            path = temporary.name
        if not isinstance(path, str | PathLike):
            raise TypeError(f"path must be a str or a path, got {path!r}")
        self.path = Path(path)
        self._open = ExitStack()
        self._finalizer = weakref.finalize(self, self._open.close)
        try:
            if temporary is not None:
                self._open.enter_context(temporary)
            self.path.mkdir(parents=True, exist_ok=True)
            self._db = self._call("opened", rocksdict.Rdict, str(self.path), _options(rocksdict))
            self._open.callback(self._db.close)
            how = rocksdict.WriteOptions()
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
                    raise ValueError(
                        f"{name} must be {found[name]!r}, as stored in {self.path}, got {value!r}"
                    )
        except (TypeError, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(
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
        """Add all entries or, on an error, none. Sorted entries take a third of the time."""
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


def _import_rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise ImportError("timers on disk require rocksdict: pip install 'timerheap[rocksdb]'") from error
    return rocksdict


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
