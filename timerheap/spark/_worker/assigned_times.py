"""The event time of rows that a `TimestampAssigner` computes, as a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from timerheap.spark._query import TIME, visible
from timerheap.spark._worker.rows import row_source
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import TimestampAssigner

__all__ = ["AssignedTimes"]


@dataclass(frozen=True)
class AssignedTimes:
    """Appends the column `TIME` to the rows of a task.

    Parameters
    ----------
    assigner : TimestampAssigner
    rows : pyspark.sql.types.StructType
        Type of the rows; the assigner does not see computed columns.
    """

    assigner: TimestampAssigner
    rows: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column."""
        return map(self.timed, batches)

    def timed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the column."""
        seen = StructType([self.rows[name] for name in visible(self.rows.names)])
        rows = pa.Table.from_batches([batch]).select(seen.names)
        times = [self._time(row) for row in row_source(rows, seen).tolist()]
        return batch.append_column(TIME, pa.array(times, pa.int64()))

    def _time(self, row: object) -> int:
        time: object = self.assigner.extract_timestamp(row, MIN_WATERMARK)
        if type(time) is not int or not MIN_WATERMARK <= time < 1 << 63:
            raise ValueError(
                f"extract_timestamp must return epoch milliseconds, an int64, got {time!r} for {row!r}"
            )
        return time
