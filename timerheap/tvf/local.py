"""The local stage: rows of one partition, put together by key and slice before they are sent anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timerheap.timer import MIN_WATERMARK, int64
from timerheap.tvf.aggregate import Aggregate
from timerheap.tvf.arithmetic import Int64s, column
from timerheap.tvf.partials import Aggregation, Partials
from timerheap.tvf.slices import SliceAssigner

__all__ = ["LocalWindowAggregate"]


class LocalWindowAggregate:
    """A buffer of accumulators by key and slice; it is emptied when it is full, or when a slice is over.

    Parameters
    ----------
    assigner : SliceAssigner
        The windows.
    aggregates : sequence of Aggregate
        What is computed of each.
    memory_budget : int, default 64 MiB
        How many bytes of accumulators it may hold before it lets them go.

    Attributes
    ----------
    aggregation : Aggregation
    watermark : int
        Epoch ms.

    Notes
    -----
    Flink: ``LocalSlicingWindowAggOperator`` and ``RecordsWindowBuffer``. Each batch is put together at once;
    batches are merged when they exceed the budget, and handed on if that does not help. Nothing is dropped as
    late: that is for the global stage to say.

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
        """What the buffer holds, bytes."""
        return self._nbytes

    def add(
        self,
        key_ids: Int64s,
        timestamps: Int64s | int,
        inputs: Mapping[str, object] | None = None,
        signs: object = None,
    ) -> Partials:
        """Take a batch of rows.

        Parameters
        ----------
        key_ids : array_like of int64, shape (n,)
            The rows' keys.
        timestamps : array_like of int64, shape (n,), or int
            Epoch ms; in processing time the clock's reading; for rows that are in windows already the ends of
            those, local ms.
        inputs : mapping of str to array_like, shape (n,) each
            The columns that the aggregates take; masked arrays where there are nulls.
        signs : array_like of int, shape (n,), optional
            -1 for a row that is taken back, else 1.

        Returns
        -------
        Partials
            What the budget forces out: mostly nothing.

        Raises
        ------
        KeyError, TypeError, ValueError, OverflowError
            If a column is missing, or not what is asked for; then the buffer is as before.
        Exception
            What a Python aggregate raises; then, too.
        """
        times = column("timestamps", timestamps, len(key_ids))
        slice_ends = self.assigner.assign_slice_ends(times)
        batch = self.aggregation.accumulate(key_ids, slice_ends, inputs, signs)
        if self._nbytes + batch.nbytes <= self.memory_budget:
            self._keep([*self._buffered, batch])
            return self.aggregation.empty()
        merged = self.aggregation.merge([*self._buffered, batch])
        # What is nearly full even so would be merged again for every batch.
        full = merged.nbytes > self.memory_budget // 2
        self._keep([] if full else [merged])
        return merged if full else self.aggregation.empty()

    def advance_watermark(self, watermark: int) -> Partials:
        """Set the watermark, and give all that there is if it ends a slice that is in the buffer.

        Send the result on before the watermark: then nothing is late that was in time.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is no int64.
        """
        self.watermark = max(self.watermark, int64("watermark", watermark))
        passed = self.assigner.last_passed(self.watermark)
        over = any(part.slice_ends.min() <= passed for part in self._buffered)
        return self.drain() if over else self.aggregation.empty()

    def drain(self) -> Partials:
        """Give all that there is, and forget it: at a checkpoint, or at the end of a micro-batch."""
        drained = self.aggregation.merge(self._buffered)
        self._keep([])
        return drained

    def _keep(self, parts: list[Partials]) -> None:
        self._buffered = [part for part in parts if len(part)]
        self._nbytes = sum(part.nbytes for part in self._buffered)
