"""The local stage: aggregates the rows of one partition by key and slice before they are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timerheap._arguments import int64
from timerheap.timer import MIN_WATERMARK
from timerheap.tvf.aggregate import Aggregate
from timerheap.tvf.arithmetic import Int64s, column
from timerheap.tvf.partials import Aggregation, Partials
from timerheap.tvf.slices import SliceAssigner

__all__ = ["LocalWindowAggregate"]


class LocalWindowAggregate:
    """A buffer of accumulators by key and slice, emptied when it is full or when a slice has ended.

    Parameters
    ----------
    assigner : SliceAssigner
        The windows.
    aggregates : sequence of Aggregate
        The aggregates to compute for each window.
    memory_budget : int, default 64 MiB
        The number of bytes of accumulators to hold before emitting them.

    Attributes
    ----------
    aggregation : Aggregation
    watermark : int
        Epoch ms.

    Notes
    -----
    Flink: ``LocalSlicingWindowAggOperator`` and ``RecordsWindowBuffer``. Each batch is aggregated at once.
    Batches are merged when they exceed the budget, and emitted if the merged batch is still too large. No row
    is dropped as late: the global stage does that.

    Examples
    --------
    >>> from timerheap.tvf import Count, TumblingSliceAssigner
    >>> local = LocalWindowAggregate(TumblingSliceAssigner(60_000), [Count()])
    >>> len(local.add([7, 7, 8], [1_000, 2_000, 61_000]))
    0
    >>> local.advance_watermark(60_000).rows
    array([2, 1])
    """

    def __init__(
        self, assigner: SliceAssigner, aggregates: Sequence[Aggregate], memory_budget: int = 64 << 20
    ) -> None:
        self.assigner = assigner
        self.aggregation = Aggregation(aggregates)
        self.memory_budget = int64("memory_budget", memory_budget)
        if self.memory_budget < 1:
            raise ValueError(f"memory_budget must be a positive number of bytes, got {memory_budget}")
        self.watermark = MIN_WATERMARK
        self._buffered: list[Partials] = []
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """The size of the buffered accumulators in bytes."""
        return self._nbytes

    def add(
        self,
        key_ids: Int64s,
        timestamps: Int64s | int,
        inputs: Mapping[str, object] | None = None,
        signs: object = None,
    ) -> Partials:
        """Add a batch of rows.

        Parameters
        ----------
        key_ids : array_like of int64, shape (n,)
            The keys of the rows.
        timestamps : array_like of int64, shape (n,), or int
            Epoch ms; in processing time, the clock's reading; for rows that already have windows, the
            windows' ends in local ms.
        inputs : mapping of str to array_like, shape (n,) each
            The columns that the aggregates need; a masked array where there are nulls.
        signs : array_like of int, shape (n,), optional
            1 for a row that is added, -1 for a row that is retracted; by default all rows are added.

        Returns
        -------
        Partials
            The accumulators that exceed the budget; usually none.

        Raises
        ------
        KeyError, TypeError, ValueError, OverflowError
            If a column is missing or invalid; the buffer is then unchanged.
        Exception
            If a Python aggregate raises; the buffer is then unchanged.
        """
        times = column("timestamps", timestamps, len(key_ids))
        slice_ends = self.assigner.assign_slice_ends(times)
        batch = self.aggregation.accumulate(key_ids, slice_ends, inputs, signs)
        if self._nbytes + batch.nbytes <= self.memory_budget:
            self._keep([*self._buffered, batch])
            return self.aggregation.empty()
        merged = self._merge([*self._buffered, batch])
        # A merged batch that nearly fills the budget would be merged again with every further batch.
        full = merged.nbytes > self.memory_budget // 2
        self._keep([] if full else [merged])
        return merged if full else self.aggregation.empty()

    def advance_watermark(self, watermark: int) -> Partials:
        """Set the watermark, and return the whole buffer if the watermark ends a slice in it.

        Send the result before the watermark, so that rows on time do not become late.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is not an int64.
        """
        self.watermark = max(self.watermark, int64("watermark", watermark))
        passed = self.assigner.last_passed(self.watermark)
        over = any(part.slice_ends.min() <= passed for part in self._buffered)
        return self.drain() if over else self.aggregation.empty()

    def drain(self) -> Partials:
        """Empty the buffer and return its contents: at a checkpoint, or at the end of a micro-batch."""
        drained = self._merge(self._buffered)
        self._keep([])
        return drained

    def _merge(self, parts: list[Partials]) -> Partials:
        # A single batch already has one accumulator per key and slice; merging would only sort it again.
        return parts[0] if len(parts) == 1 else self.aggregation.merge(parts)

    def _keep(self, parts: list[Partials]) -> None:
        self._buffered = [part for part in parts if len(part)]
        self._nbytes = sum(part.nbytes for part in self._buffered)
