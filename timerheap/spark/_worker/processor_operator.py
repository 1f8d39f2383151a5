"""The operators that run a StatefulProcessor on the key groups of a shuffle partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import StructType

from timerheap.spark._exchange.pack import AT
from timerheap.spark._exchange.placement import key_group_of
from timerheap.spark._exchange.unpack import HashedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import ProcessorWork, Query
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.processor_batch import ProcessorBatch, initial_query
from timerheap.spark._worker.processor_runner import BoundGroup, ProcessorRunner
from timerheap.spark._worker.stateful_operator import StreamingOperator, in_types_of_spark, unpacked_rows
from timerheap.spark._worker.user_errors import reported

__all__ = ["BatchProcessorOperator", "StreamingProcessorOperator"]


class StreamingProcessorOperator(StreamingOperator):
    """Runs a processor on a stream; see `StreamingOperator`."""

    _processors: ProcessorBatch | None = None

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Pass the packed rows of the initial state to the processor."""
        packed = zip(initialState["sequence"], initialState["blob"], strict=True)
        self._begun(timerValues).restore(packed)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Fire the due timers in a partition."""
        fired = expiredTimerInfo.getExpiryTimeInMs()
        return self._begun(timerValues).wake_up(key_group_of(key[0]), fired)

    def close(self) -> None:
        """End the task."""
        if self._processors is not None:
            self._processors.close()

    def _begun(self, timer_values: Any) -> ProcessorBatch:  # type: ignore[override]
        if self._processors is None:
            query = self._query
            groups, placement, _ = self._task()
            assert isinstance(query.work, ProcessorWork)
            self._processors = ProcessorBatch(query, query.work, placement, self._store, groups, timer_values)
        return self._processors


class BatchProcessorOperator:
    """Runs a processor on one partition of a batch DataFrame, as one key group (``applyInArrow``).

    Parameters
    ----------
    query : Query
    """

    def __init__(self, query: Query) -> None:
        assert isinstance(query.work, ProcessorWork)
        self._query = query
        self._work = query.work

    def __call__(self, packed: pa.Table, initial: pa.Table | None = None) -> pa.Table:
        """Run the partition of some packed rows; `initial` are those of the initial state."""
        with reported():
            return self._processed(packed, initial)

    def _processed(self, packed: pa.Table, initial: pa.Table | None) -> pa.Table:
        query = self._query
        rows = unpacked_rows(query, packed)
        of_initial, first = query, None
        if initial is not None:
            of_initial = initial_query(query, self._work)
            first = unpacked_rows(of_initial, initial)
        now = (packed if packed.num_rows or initial is None else initial).column(AT)[0].as_py()
        times = TimerValues() if query.time_mode == "None" else TimerValues(now, -1)
        output = ResultBuffer(query.result_schema)
        runner = ProcessorRunner(self._work, query, times, output)
        runner.open()
        bound = runner.bind(KeyGroup(query.layout))
        runner.initialise(_of(bound, first), of_initial)
        runner.process(_of(bound, rows))
        if query.time_mode == "ProcessingTime":
            runner.fire([bound], times.getCurrentProcessingTimeInMs())
        elif query.time_mode == "EventTime":
            runner.fire([bound], times.getCurrentWatermarkInMs())
        runner.close()
        return in_types_of_spark(output.table(), StructType(query.result.fields), packed)


def _of(bound: BoundGroup, rows: HashedRows | None) -> list[tuple[BoundGroup, HashedRows]]:
    return [] if rows is None else [(bound, rows)]
