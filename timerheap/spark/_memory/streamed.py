"""Batches that are too large to be in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from timerheap.spark._arrow import concatenated, size_of

_ROWS = 1 << 16  # a multiple of 8, so that bits fill bytes


class Streamed:
    """A record batch of which only some rows are in memory at a time.

    num_rows: how many it has
    size: what `size_of` would return for it
    """

    def __init__(
        self, num_rows: int, batches: Callable[[], Iterator[pa.RecordBatch]], size: int | None = None
    ) -> None:
        self.num_rows = num_rows
        self._batches = batches  # yields the same rows each time that it is called
        self.size = sum(map(size_of, self.of_rows(_ROWS))) if size is None else size

    def spans(self, aim: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches, each of which `fitting` splits further as it would split the whole."""
        if self.num_rows > 1 and self.size > most:
            yield from self.of_rows(-(-self.num_rows // -(-self.size // aim)))
        elif self.num_rows:
            yield from self.of_rows(self.num_rows)

    def of_rows(self, n: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches of `n` rows, the last of which may have fewer."""
        kept: list[pa.RecordBatch] = []
        count = 0
        for batch in self._batches():
            start = 0
            while count + batch.num_rows - start >= n:
                kept.append(batch.slice(start, n - count))
                start += n - count
                yield concatenated(kept)
                kept, count = [], 0
            if start < batch.num_rows:
                kept.append(batch.slice(start))
                count += batch.num_rows - start
        if kept:
            yield concatenated(kept)


def whole(batch: pa.RecordBatch | Streamed) -> pa.RecordBatch:
    """Return a batch that is in memory."""
    return next(batch.of_rows(batch.num_rows)) if isinstance(batch, Streamed) else batch
