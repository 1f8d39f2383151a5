"""The event times that a timestamp assigner computes, appended to the rows before they are packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import COMPUTED, TIME
from timerheap.spark._row_objects import row_source
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import TimestampAssigner


@dataclass(frozen=True)
class AssignedTimes:
    """Appends the column `TIME` to the rows of a task.

    rows: type of the rows; the assigner does not see computed columns
    """

    assigner: TimestampAssigner
    rows: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(self.timed, batches)

    def timed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the column."""
        seen = StructType([field for field in self.rows if not field.name.startswith(COMPUTED)])
        times = [self._time(row) for row in row_source(batch.select(seen.names), seen).tolist()]
        return batch.append_column(TIME, pa.array(times, pa.int64()))

    def _time(self, row: object) -> int:
        time: object = self.assigner.extract_timestamp(row, MIN_WATERMARK)
        if type(time) is not int or not MIN_WATERMARK <= time < 1 << 63:
            raise ArgumentValueError(
                f"extract_timestamp must return epoch milliseconds, an int64, got {time!r} for {row!r}"
            )
        return time
