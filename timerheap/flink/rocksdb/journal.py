"""A file of acknowledged entries not yet written in bulk, which survives the end of the process."""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ADDED", "REMOVED", "Journal"]

ADDED, REMOVED = 1, 2

_HEAD = struct.Struct("<IHB")  # checksum, length, kind; the entry follows
_GENERATION = struct.Struct("<QB")


class Journal:
    """A memory-mapped file of entries, which the operating system keeps when the process is killed.

    Appending an entry costs a copy; a log file would cost a system call. Each entry belongs to a generation,
    which is part of its checksum. Starting a new generation invalidates all entries without writing anything.

    Parameters
    ----------
    path : Path
        The file; created if it does not exist.
    generation : int
        The generation of the entries to append, uint64.

    Raises
    ------
    OSError
        If the file cannot be created, or the disk is full.
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
        self._seeds = [zlib.crc32(_GENERATION.pack(generation, kind)) for kind in (0, ADDED, REMOVED)]
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
