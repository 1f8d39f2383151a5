"""Memory for the live structures of a key group, in the process or in a file that workers hand over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = ["PROCESS", "Block", "Memory", "ProcessMemory"]

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A piece of memory.

    Parameters
    ----------
    bytes : ndarray of uint8, shape (n,)
        Writable; starts at a multiple of 64 bytes.
    at : int
        Where `Memory.attach` finds it; of no meaning in the memory of a process.
    """

    bytes: np.ndarray
    at: int


class Memory(Protocol):
    """Hands out blocks.

    A structure on this memory keeps all its contents in blocks, and describes itself in a head: JSON values
    that hold the `at` and the size of each block and whatever else it takes to build the structure again on
    the same bytes, in any process, in O(1).
    """

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` bytes, whose contents are undefined; raise MemoryError."""

    def release(self, block: Block) -> None:
        """Release a block, whose bytes may then be allocated again."""

    def attach(self, at: int, nbytes: int) -> Block:
        """Return a block that was allocated before; raise ValueError if it lies outside of the memory."""


class ProcessMemory:
    """The memory of this process."""

    def allocate(self, nbytes: int) -> Block:
        """See `Memory.allocate`."""
        array = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -array.ctypes.data % _ALIGNMENT
        return Block(array[start : start + nbytes], 0)

    def release(self, block: Block) -> None:
        """See `Memory.release`."""

    def attach(self, at: int, nbytes: int) -> Block:
        """See `Memory.attach`."""
        raise ValueError("the memory of a process cannot be attached")


PROCESS = ProcessMemory()
