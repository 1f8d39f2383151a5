"""Record batches in a memory, from which a part is rebuilt by replaying them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from timerheap.spark._group.memory import PROCESS, Block, Memory

__all__ = ["BatchLog"]

_SLACK = 64 << 10


class BatchLog:
    """The changes of a part in a `Memory`, for a part whose own structures are Python objects.

    The log is at most about twice as large as the part. In the memory of a process it stays empty, since
    nobody can attach it there.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of the batches.
    memory : Memory
    """

    def __init__(self, schema: pa.Schema, memory: Memory = PROCESS) -> None:
        self._schema = schema
        self._memory = memory
        self._blocks: list[tuple[Block, int]] = []  # with the number of bytes in use
        self._nbytes = 0

    def append(self, changes: pa.RecordBatch, nbytes: int, snapshot: Callable[[], pa.RecordBatch]) -> None:
        """Append changes, or replace the log by a snapshot if it would outgrow twice `nbytes`."""
        if self._memory is PROCESS:
            return
        data = changes.serialize()
        if self._nbytes + data.size > 2 * nbytes + _SLACK:
            self.replace(snapshot)
        else:
            self._add(data)

    def replace(self, snapshot: Callable[[], pa.RecordBatch]) -> None:
        """Replace the log by a snapshot."""
        if self._memory is not PROCESS:
            data = snapshot().serialize()
            self.clear()
            self._add(data)

    def _add(self, data: pa.Buffer) -> None:
        block = self._memory.allocate(data.size)
        block.bytes[: data.size] = np.frombuffer(data, np.uint8)
        self._blocks.append((block, data.size))
        self._nbytes += data.size

    def clear(self) -> None:
        """Remove all batches."""
        for block, _ in self._blocks:
            self._memory.release(block)
        self._blocks, self._nbytes = [], 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, valid until the next change; raise ValueError for other bytes."""
        for block, size in self._blocks:
            try:
                batch = pa.ipc.read_record_batch(pa.py_buffer(block.bytes[:size]), self._schema)
                batch.validate(full=True)
            except (pa.ArrowException, OSError) as e:
                raise ValueError(f"a block must hold a record batch: {e}") from e
            yield batch

    def head(self) -> list[list[int]]:
        """Return what `attach` needs."""
        return [[block.at, size] for block, size in self._blocks]

    @classmethod
    def attach(cls, schema: pa.Schema, memory: Memory, head: list[list[int]]) -> BatchLog:
        """Return the log that `head` describes; raise ValueError if that cannot be."""
        log = cls(schema, memory)
        for at, size in head:
            log._blocks.append((memory.attach(at, size), size))
            log._nbytes += size
        return log
