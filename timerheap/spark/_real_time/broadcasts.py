"""What tasks of a broadcast input send to every partition in real-time mode: their rows, and that they run.

The watermark of a query is made of the tasks that send rows by key. Those of a broadcast input have no event
times: they say once that nobody has to wait for theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from timerheap.spark._exchange.broadcaster import BROADCAST, broadcast_rows
from timerheap.spark._exchange.packed import OBSERVATION, packed_blobs


class Parted(NamedTuple):
    """Messages to a partition, taken apart.

    keyed: those with rows by key
    rows: of the broadcast input, in the order in which each task has sent its own; None if there are none
    tasks: the names of the tasks of the broadcast input that have been heard of
    """

    keyed: list[tuple[int, bytes]]
    rows: pa.Table | None
    tasks: set[str]


def first_position(task: int) -> int:
    """Return the position of the first message of a task, below those of rows by key."""
    return BROADCAST + (task << 32)


def announcement(partitions: np.ndarray, task: int) -> pa.RecordBatch:
    """Return a message without rows for each partition, with the columns of `PACKED`."""
    nothing = pa.array([b""] * len(partitions), pa.binary())
    return packed_blobs(partitions, first_position(task), nothing)


def parted(type_: StructType, messages: list[tuple[int, bytes]]) -> Parted:
    """Return messages taken apart; the rows of the broadcast input are of a type."""
    keyed = [message for message in messages if message[0] >= OBSERVATION]
    others = [message for message in messages if message[0] < OBSERVATION]
    tasks = {str((position - BROADCAST) >> 32) for position, _ in others}
    return Parted(keyed, broadcast_rows(type_, (each for each in others if each[1])), tasks)
