"""Memories for tests: one that catches the use of released blocks, and one that fails."""

from __future__ import annotations

import numpy as np

from timerheap.spark._memory.blocks import Block


class Arena:
    """A memory that can be attached, overwrites released blocks, and fails after `allowed` allocations."""

    def __init__(self, allowed: int | None = None) -> None:
        self.allowed = allowed
        self.blocks: dict[int, Block] = {}
        self._next = 64

    def allocate(self, nbytes: int) -> Block:
        if self.allowed is not None:
            if not self.allowed:
                raise MemoryError("no room")
            self.allowed -= 1
        array = np.full(nbytes + 64, 0xDD, np.uint8)
        start = -array.ctypes.data % 64
        block = Block(array[start : start + nbytes], self._next)
        self._next += -(-nbytes // 64) * 64 + 64
        self.blocks[block.at] = block
        return block

    def release(self, block: Block) -> None:
        assert self.blocks.pop(block.at).bytes is block.bytes, "a block is released once"
        block.bytes[:] = 0xDD

    def attach(self, at: int, nbytes: int) -> Block:
        block = self.blocks[at]
        if len(block.bytes) != nbytes:
            raise ValueError(f"the block at {at} has {len(block.bytes)} bytes, not {nbytes}")
        return Block(block.bytes, at)
