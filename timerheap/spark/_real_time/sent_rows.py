"""What an operator in real-time mode sends: results, the watermark behind them, and its metrics."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.types import StructType

from timerheap.spark._columns import MARK, METRICS
from timerheap.spark._compat import to_arrow_schema


class Sent:
    """The record batches of a task.

    sent: the type of the rows, with `METRICS` and `MARK` behind the results
    is_followed: whether one does
    """

    def __init__(self, sent: StructType, *, is_followed: bool) -> None:
        self._schema = to_arrow_schema(sent)
        self._is_followed = is_followed
        self._added = [field for field in self._schema if field.name in (METRICS, MARK)]
        self._results = pa.schema(list(self._schema)[: -len(self._added)])
        self._marked: int | None = None  # the watermark that was sent last

    def batches(self, results: pa.Table | None, reached: int) -> Iterable[pa.RecordBatch]:
        """Return results, and behind them the watermark that they have been followed by, if it is new."""
        found: list[pa.RecordBatch] = []
        if results is not None and results.num_rows:
            if results.schema != self._results:  # a cast costs as much as a short step, also one to the same
                results = results.cast(self._results)
            for batch in results.to_batches():
                nothing = [pa.nulls(batch.num_rows, field.type) for field in self._added]
                found.append(pa.RecordBatch.from_arrays([*batch.columns, *nothing], schema=self._schema))
        if self._is_followed and reached != self._marked:
            self._marked = reached
            found.append(self._row(MARK, pa.array([reached])))
        return found

    def metrics(self, told: pa.Array) -> pa.RecordBatch:
        """Return the metrics of the task."""
        return self._row(METRICS, told)

    def _row(self, name: str, value: pa.Array) -> pa.RecordBatch:
        columns = [value if each.name == name else pa.nulls(1, each.type) for each in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
