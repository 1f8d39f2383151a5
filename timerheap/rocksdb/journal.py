"""What has been acknowledged and waits to be written in bulk: a small file that outlives its process."""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ADDED", "REMOVED", "Journal"]

ADDED, REMOVED = 1, 2

_HEAD = struct.Struct("<IHB")  # checksum, length, kind; then the entry itself
_GENERATION = struct.Struct("<QB")


class Journal:
    """Entries, appended to a file in memory that the operating system keeps when the process is killed.

    An entry costs a copy, where one in a log costs a system call. Entries belong to a generation, which
    goes into their checksums: the next one makes all that there are void, without writing anything.

    Parameters
    ----------
    path : Path
        The file; made if it is not there.
    generation : int
        That of the entries to append from now on, uint64.

    Raises
    ------
    OSError
        If the file cannot be made or there is no room for it on the disk.
    """

    SIZE = 1 << 20

    def __init__(self, path: Path, generation: int) -> None:
        with path.open("a+b") as file:
            # Written, not merely declared: memory that the disk has no room for would end the process.
            file.write(bytes(max(0, self.SIZE - file.tell())))
            file.flush()
            self._memory = mmap.mmap(file.fileno(), 0)
        self.begin(generation)

    def begin(self, generation: int) -> None:
        """Make all entries void and append those of this generation."""
        self._seeds = [zlib.crc32(_GENERATION.pack(generation, kind)) for kind in (0, ADDED, REMOVED)]
        self._memory.seek(0)

    def append(self, kind: int, entry: bytes) -> bool:
        """Append an entry; False if there is no room for it."""
        try:
            head = _HEAD.pack(zlib.crc32(entry, self._seeds[kind]), len(entry), kind)
            self._memory.write(head + entry)
        except (ValueError, struct.error):  # the file's end; more than 65535 bytes
            return False
        return True

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been appended in this generation."""
        return self._memory.tell() == 0

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Read the entries of this generation up to the first that was not written to its end."""
        memory, at = self._memory[:], 0
        while at + _HEAD.size <= len(memory):
            checksum, length, kind = _HEAD.unpack_from(memory, at)
            at += _HEAD.size + length
            entry = memory[at - length : at]
            if kind not in (ADDED, REMOVED) or zlib.crc32(entry, self._seeds[kind]) != checksum:
                return
            yield kind, entry

    def close(self) -> None:
        """Let go of the file."""
        self._memory.close()
