"""A stateful processor on one key group, micro-batch by micro-batch, without Spark's JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.codec import hashes_of
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._processors.processor_partition import ProcessorWork
from timerheap.spark._processors.processor_records import FrameSettings
from timerheap.spark._processors.processor_states import DeclaredState
from timerheap.spark._query import Query, TimeMode
from timerheap.spark._worker.output import ResultBuffer

_FRAMES = FrameSettings(rows=3, nbytes=1 << 20)


class Stage:
    """Runs micro-batches whose times the test says; the processor is another copy in each, as in Spark."""

    def __init__(
        self,
        processor: type[StatefulProcessor],
        rows: StructType,
        result: StructType,
        mode: TimeMode = "None",
        style: Literal["rows", "frames"] = "rows",
        zone: str = "UTC",
        frames: FrameSettings | None = None,
        **states: DeclaredState,
    ) -> None:
        self._processor = processor
        self._query = Query(
            work=ProcessorWork(processor(), style, states, (), None, (), zone, frames or _FRAMES),
            key=[rows.names[0]],
            rows=rows,
            result=result,
            event_time=None,
            watermarks=(),
            channels=(),
            order="arrival",
            time_mode=mode,
            max_parallelism=1,
        )
        self.group = KeyGroup(self._query.layout)

    def batch(
        self, rows: Sequence[tuple[Any, ...]], now: int = -1, watermark: int = -1
    ) -> list[tuple[Any, ...]]:
        """Run one micro-batch, and return its results in their order."""
        query, output = self._query, ResultBuffer(self._query.result_schema)
        work = ProcessorWork(**{**vars(query.work), "processor": self._processor()})
        runner = work.runner(query, TimerValues(now, watermark), output)
        runner.open()
        bound = runner.bind(self.group)
        columns = zip(*rows, strict=True) if rows else ([] for _ in query.schema)
        arrays = [pa.array(list(c), f.type) for c, f in zip(columns, query.schema, strict=True)]
        table = pa.RecordBatch.from_arrays(arrays, schema=query.schema)
        if rows:
            hashed = KeyedRows(table, hashes_of(table.column(0)), np.zeros(len(rows), np.int64))
            runner.process([(bound, hashed)])
        if query.time_mode != "None":
            runner.fire([bound], watermark if query.time_mode == "EventTime" else now)
        runner.purge(bound)
        runner.close()
        for part in self.group.parts():
            part.changes()
        return [tuple(row.values()) for row in output.table().to_pylist()]
