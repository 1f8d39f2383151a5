"""Sorted byte strings in RocksDB, with a file of entries that are not yet written in bulk."""

from __future__ import annotations

import json
import mmap
import struct
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rocksdict

ADDED, REMOVED = 1, 2

_HEAD = struct.Struct("<IHB")  # checksum, length, kind; the entry follows
_JOURNAL_GENERATION = struct.Struct("<QB")

# The store uses two keys of the database itself; they sort before the entries.
_FORMAT, _GENERATION = b"", b"\0"
FIRST = b"\0\0"

_FORMAT_NAME = "timerheap timers"
_FORMAT_VERSION = 1
_JOURNAL = "timerheap.journal"
_MOST_PENDING = 8_192


class Journal:
    """A memory-mapped file of entries, which the operating system keeps when the process is killed.

    Appending an entry costs a copy; a log file would cost a system call. Each entry belongs to a generation,
    which is part of its checksum. Starting a new generation invalidates all entries without writing anything.

    path: the file; created if it does not exist
    generation: the generation of the entries to append, uint64
    OSError: if the file cannot be created, or the disk is full
    """

    SIZE = 1 << 20

    def __init__(self, path: Path, generation: int) -> None:
        with path.open("a+b") as file:
            # Write zeros to allocate the disk space: without space, writing to the mapping ends the process.
            file.write(bytes(max(0, self.SIZE - file.tell())))
            file.flush()
            self._memory = mmap.mmap(file.fileno(), 0)
        self.begin(generation)

    def begin(self, generation: int) -> None:
        """Invalidate all entries and start the given generation."""
        self._seeds = [zlib.crc32(_JOURNAL_GENERATION.pack(generation, kind)) for kind in (0, ADDED, REMOVED)]
        self._memory.seek(0)

    def append(self, kind: int, entry: bytes) -> bool:
        """Append an entry; return False if it does not fit."""
        try:
            head = _HEAD.pack(zlib.crc32(entry, self._seeds[kind]), len(entry), kind)
            self._memory.write(head + entry)
        except (ValueError, struct.error):  # the end of the file; an entry of more than 65535 bytes
            return False
        return True

    @property
    def is_empty(self) -> bool:
        """Whether the current generation has no entries."""
        return self._memory.tell() == 0

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Yield the entries of the current generation, up to the first incomplete one."""
        memory, at = self._memory[:], 0
        while at + _HEAD.size <= len(memory):
            checksum, length, kind = _HEAD.unpack_from(memory, at)
            at += _HEAD.size + length
            entry = memory[at - length : at]
            if kind not in (ADDED, REMOVED) or zlib.crc32(entry, self._seeds[kind]) != checksum:
                return
            yield kind, entry

    def close(self) -> None:
        """Close the file."""
        self._memory.close()


class Store:
    """A sorted set of byte strings on disk, each longer than one byte.

    path: the directory, created if it does not exist; by default a temporary one, removed with the store
    properties: JSON values on which the contents depend. They are stored, and must be the same on every
        opening.
    sync: whether each write waits for the disk and so also survives a crash of the machine
    ImportError: if rocksdict is not installed
    OSError: if RocksDB cannot open the directory: it is in use, damaged, or holds another kind of database
    ValueError: if the directory holds other data, or was created with other properties

    Single writes are collected, as in Flink's ``RocksDBWriteBatchWrapper``, and written in bulk or before the
    next scan; until then they are in a `Journal`. A temporary store needs no journal and no write-ahead log.
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
            self._generation = self._check_properties(properties)
            self._journal: Journal | None = None
            if temporary is None:
                self._journal = Journal(self.path / _JOURNAL, self._generation)
                self._open.callback(self._journal.close)
                self._pending.update((entry, kind) for kind, entry in self._journal.entries())
                self.flush()
        except BaseException:
            self._finalizer()
            raise

    def _check_properties(self, properties: dict[str, Any]) -> int:
        """Check the stored properties, or store those of a new store; return the journal's generation."""
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
                        f"{name} must be {found[name]!r}, as stored in {self.path}, got {value!r}"
                    )
        except (TypeError, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"path must be a new directory or one of {_FORMAT_NAME}, got {self.path}"
            ) from error
        return int.from_bytes(generation, "big")

    def close(self) -> None:
        """Flush, and close the database; a temporary directory is removed. Closing again has no effect."""
        if not self.is_closed:
            try:
                self.flush()
            finally:
                self.is_closed = True
                with self._errors("closed"):
                    self._finalizer()

    def add(self, entry: bytes) -> None:
        """Add one entry unless it is present."""
        if self._sync:
            self.add_many([entry])
        else:
            self._write_soon(ADDED, entry)

    def remove(self, entry: bytes) -> None:
        """Remove one entry if it is present."""
        if self._sync:
            self.remove_many([entry])
        else:
            self._write_soon(REMOVED, entry)

    def add_many(self, entries: Iterable[bytes]) -> None:
        """Add all entries or, on an error, none. Sorted entries take a third of the time."""
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

    def clear(self) -> None:
        """Remove all entries."""
        self.flush()
        last = next(self._db.keys(backwards=True), FIRST)
        if last > FIRST:
            batch = self._rocksdict.WriteBatch(raw_mode=True)
            batch.delete_range(FIRST, last + b"\0")
            self._write(batch)

    def scan(self, start: bytes, size: int = 4_096) -> Iterator[list[bytes]]:
        """Return an iterator over chunks of the current entries from `start` on, in order."""
        self.flush()
        return self._chunks(self._db.keys(from_key=start), start, size)

    def _chunks(self, entries: Iterator[bytes], start: bytes, size: int) -> Iterator[list[bytes]]:
        chunk = list(islice(entries, size))
        while len(chunk) == size:
            yield chunk
            start = chunk[-1]
            chunk = list(islice(entries, size))
        with self._errors("read"):  # this iterator ends silently on an error; another one reports it
            rest = self._db.iter()
            rest.seek(chunk[-1] if chunk else start)
            while rest.valid():
                rest.next()
            rest.status()
        if chunk:
            yield chunk

    def __contains__(self, entry: bytes) -> bool:
        if self.is_closed:
            self.flush()  # raises an error
        waiting = self._pending.get(entry)
        if waiting is not None:
            return waiting == ADDED
        with self._errors("read"):
            return self._db.get(entry) is not None

    def flush(self) -> None:
        """Write the pending entries to the database."""
        if self.is_closed:
            raise ValueError(f"the store in {self.path} is closed; open it again with a new queue")
        if not self._pending and (self._journal is None or self._journal.is_empty):
            return
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for entry in sorted(self._pending):  # sorted entries take a third of the time
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
            if not journal.append(kind, entry):  # the entry is larger than the journal
                return self.add_many([entry]) if kind == ADDED else self.remove_many([entry])
        self._pending[entry] = kind

    def _write(self, batch: rocksdict.WriteBatch) -> None:
        with self._errors("written"):
            self._db.write(batch)

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Convert RocksDB's errors, which have no type of their own, to OSErrors."""
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
