"""Blocks of a memory that structures lie in, and growing buffers of them, also of bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

ALIGNMENT = 64
"""What the start of each block is a multiple of."""

_NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A piece of memory, which starts at a multiple of 64 bytes."""

    bytes: np.ndarray  # uint8, shape (n,), writable
    at: int  # where `Memory.attach` finds it; of no meaning in the memory of a process


class Memory(Protocol):
    """Hands out blocks.

    A structure on this memory keeps all its contents in blocks, and describes itself in a head: JSON values
    that hold the `at` and the size of each block and whatever else it takes to build the structure again on
    the same bytes, in any process, in O(1); its class takes it as an argument.
    """

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` bytes, whose contents are undefined; raise MemoryError."""

    def release(self, block: Block) -> None:
        """Release a block, whose bytes may then be allocated again."""

    def attach(self, at: int, nbytes: int) -> Block:
        """Return a block that was allocated before; raise an error if it lies outside of the memory."""


class ProcessMemory:
    """The memory of this process."""

    def allocate(self, nbytes: int) -> Block:
        array = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -array.ctypes.data % ALIGNMENT
        return Block(array[start : start + nbytes], 0)

    def release(self, block: Block) -> None:
        """See `Memory.release`."""

    def attach(self, at: int, nbytes: int) -> Block:
        raise ValueError("the memory of a process cannot be attached")


PROCESS = ProcessMemory()


class Buffer:
    """Bytes in one block, which is replaced by a larger one when it is full; `used` of them are in use."""

    __slots__ = ("_block", "_bytes", "_memory", "used")

    def __init__(self, memory: Memory, head: Sequence[int] = ()) -> None:
        self._memory = memory
        self._block: Block | None = None
        self._bytes = _NOTHING
        self.used = 0
        if head:
            at, nbytes, self.used = head
            self._block = memory.attach(at, nbytes)
            self._bytes = self._block.bytes
            if not 0 <= self.used <= nbytes:
                raise ValueError(f"a buffer of {nbytes} bytes cannot have {self.used} in use")

    def head(self) -> list[int]:
        return [] if self._block is None else [self._block.at, len(self._bytes), self.used]

    def reserve(self, more: int) -> None:
        """Make room for `more` bytes; amortised O(more). A MemoryError leaves the buffer as it was."""
        wanted = self.used + more
        if wanted > len(self._bytes):
            nbytes = max(wanted, len(self._bytes) + (len(self._bytes) >> 1))
            block = self._memory.allocate(rounded_up(nbytes, ALIGNMENT))
            block.bytes[: self.used] = self._bytes[: self.used]
            if self._block is not None:
                self._memory.release(self._block)
            self._block, self._bytes = block, block.bytes

    def append(self, values: np.ndarray) -> None:
        """Append the bytes of a contiguous array, for which there is room."""
        end = self.used + values.nbytes
        self._bytes[self.used : end].view(values.dtype)[:] = values
        self.used = end

    def view(self, dtype: Any = np.uint8) -> np.ndarray:
        """Return the bytes in use, without copying."""
        return self._bytes[: self.used].view(dtype)

    def as_arrow(self) -> pa.Buffer:
        """Return the bytes in use as a buffer of Arrow, without copying."""
        return pa.py_buffer(self._bytes[: self.used])

    def clear(self) -> None:
        if self._block is not None:
            self._memory.release(self._block)
        self._block, self._bytes, self.used = None, _NOTHING, 0


def nbytes_of_bits(n: int) -> int:
    """Return how many bytes `n` bits take."""
    return (n + 7) >> 3


def bits_of(bitmap: pa.Buffer, start: int, n: int) -> np.ndarray:
    """Return `n` bits of an Arrow bitmap from bit `start`: shape (n,), uint8."""
    touched = np.frombuffer(bitmap, np.uint8)[start >> 3 : nbytes_of_bits(start + n)]
    return np.unpackbits(touched, bitorder="little")[start & 7 : (start & 7) + n]


def append_bits(buffer: Buffer, n: int, bits: np.ndarray) -> None:
    """Append bits to a bitmap of `n` bits, which has room for them."""
    if n & 7:
        buffer.used -= 1
        last = buffer._bytes[buffer.used : buffer.used + 1]
        bits = np.concatenate([np.unpackbits(last, bitorder="little")[: n & 7], bits])
    buffer.append(np.packbits(bits, bitorder="little"))


def set_bits(buffer: Buffer, places: np.ndarray, bits: np.ndarray) -> None:
    """Overwrite the bits at distinct `places`."""
    bitmap = buffer.view()
    at, masks = places >> 3, np.left_shift(1, places & 7).astype(np.uint8)
    np.bitwise_and.at(bitmap, at, ~masks)
    ones = bits.astype(bool)
    np.bitwise_or.at(bitmap, at[ones], masks[ones])


def rounded_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
