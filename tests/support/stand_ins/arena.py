"""A Memory, as the Spark layer lends it to the heaps and the index, that is strict and can fail."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    bytes: np.ndarray
    at: int


class Arena:
    """Blocks one after the other, of which each is used once, full of junk before and after.

    Parameters
    ----------
    path : str, optional
        A file to map; by default, memory of the process.
    top : int
        Where the first new block may start.
    size : int
        Number of bytes.
    """

    def __init__(self, path=None, top=0, size=1 << 23):
        if path is None:
            memory = np.empty(size + 64, np.uint8)
            self.bytes = memory[-memory.ctypes.data % 64 :][:size]
        else:
            self.bytes = np.memmap(path, np.uint8, "r+" if top else "w+", shape=(size,)).view(np.ndarray)
        self.top, self.sizes = top, {}
        self.calls, self.fails_at, self.error = 0, 0, MemoryError

    def allocate(self, nbytes):
        self.calls += 1
        if self.calls == self.fails_at:
            raise self.error("no memory is left")
        at, self.top = self.top, self.top + (nbytes + 63) // 64 * 64
        assert self.top <= len(self.bytes)
        self.sizes[at] = nbytes
        block = Block(self.bytes[at : at + nbytes], at)
        block.bytes[:] = 0xA5
        return block

    def release(self, block):
        assert self.sizes.pop(block.at) == len(block.bytes)
        block.bytes[:] = 0xA5

    def attach(self, at, nbytes):
        if at % 64 or at + nbytes > len(self.bytes):
            raise ValueError(f"a block must lie within the memory, got {nbytes} bytes at {at}")
        self.sizes[at] = nbytes
        return Block(self.bytes[at : at + nbytes], at)
