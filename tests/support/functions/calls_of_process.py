"""A feature whose results are the calls of `process`: how many rows and keys each has had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._functions.rows_ahead import RowsAhead
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import marked
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.inputs import Input
from timerheap.spark._query import Query
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner

RESULT = StructType([StructField("rows", LongType()), StructField("keys", LongType())])


def calls_of_process(df: DataFrame, key: Any, event_time: Any, *, max_parallelism: int) -> DataFrame:
    """Return the numbers of rows and of keys of each call, in order of arrival."""
    source = Input.checked(Columns("df", df), key, event_time, "1 hour", order="arrival")
    query = query_of(CallsWork(), RESULT, source, order="arrival", max_parallelism=max_parallelism)
    return build(query, marked(source))


@dataclass(frozen=True)
class CallsWork(KeyedWork):
    def runner(self, query: Query, placement: Placement) -> Runner:
        return CallsRunner()


class CallsRunner(Runner):
    fired_timers = 0

    def __init__(self) -> None:
        self.rows_ahead = RowsAhead()

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        self._output = output

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        raise AssertionError("a query in order of arrival must not be replayed")

    def process(self, rows: KeyedRows, watermark: int) -> None:
        counts = [pa.array([len(rows)]), pa.array([len(np.unique(rows.ids))])]
        self._output.batch(pa.RecordBatch.from_arrays(counts, names=RESULT.names), "calls_of_process")

    def advance(self, watermark: int) -> None:
        pass
