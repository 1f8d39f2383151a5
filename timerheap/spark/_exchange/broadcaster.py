"""How rows of a broadcast input reach every key group: copied for each partition, and read there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from timerheap.spark._exchange.packed import OBSERVATION, packed_copies
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._frozen_modules import freeze_modules
from timerheap.spark._query import nullable_arrow_schema

BROADCAST = -(1 << 62)
"""The first position of rows that go to all partitions, all of which are below `OBSERVATION`."""


@dataclass(frozen=True)
class Broadcaster:
    """The function of the stage that copies rows (``mapInArrow``); its output is `PACKED`."""

    max_parallelism: int | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, once for each partition that has key groups."""
        freeze_modules()
        task = TaskContext.get()
        sequence = BROADCAST + ((task.partitionId() if task is not None else 0) << 32)
        everywhere = np.arange(Placement.running(self.max_parallelism).used)
        for batch in batches:
            if batch.num_rows:
                yield packed_copies(everywhere, sequence, pa.Table.from_batches([batch]))
                sequence += 1


def broadcast_rows(type_: StructType, packed: Iterable[tuple[int, bytes]]) -> pa.Table | None:
    """Return the rows of a type that were packed for a partition, in input order; None if there are none."""
    schema = nullable_arrow_schema(type_)
    blobs = sorted((int(sequence), blob) for sequence, blob in packed if sequence < OBSERVATION)
    if not blobs:
        return None
    return pa.concat_tables([pa.ipc.open_stream(blob).read_all().cast(schema) for _, blob in blobs])
