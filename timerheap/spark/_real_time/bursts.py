"""Rows of a task of the source that were there together, as they are sent to a partition.

The event times go with the rows, since each message costs as much as a row. A message without rows has event
times only, which every partition needs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerheap.spark._exchange.packed import PACKED_SCHEMA
from timerheap.spark._exchange.placement import label_of

_HEAD = struct.Struct("<qq")  # the largest event time, and the number of rows


class Seen(NamedTuple):
    """What a task has seen: its largest event time, MIN_WATERMARK for none, and how many rows."""

    newest: int
    rows: int


def burst(
    frames: Mapping[int, bytes], targets: Iterable[int], sequence: int, newest: int, count: int
) -> pa.RecordBatch:
    """Return a message, with the columns of `PACKED`, for each target, with its frame if it has one."""
    head, partitions = _HEAD.pack(newest, count), list(targets)
    columns = [
        pa.array(list(map(label_of, partitions)), pa.int32()),
        pa.array(np.full(len(partitions), sequence)),
        pa.array([head + frames.get(partition, b"") for partition in partitions], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED_SCHEMA)


def opened(messages: Iterable[tuple[int, bytes]]) -> tuple[list[tuple[int, bytes]], dict[str, Seen]]:
    """Return the frames of messages in their order, and what each task has seen."""
    frames: list[tuple[int, bytes]] = []
    seen: dict[str, Seen] = {}
    for sequence, blob in messages:
        newest, count = _HEAD.unpack_from(blob)
        if len(blob) > _HEAD.size:
            frames.append((sequence, blob[_HEAD.size :]))
        name = str(sequence >> 32)
        seen[name] = seen_in_both(seen.get(name), Seen(newest, count))
    return frames, seen


def seen_in_both(one: Seen | None, other: Seen) -> Seen:
    """Return what a task has seen in both."""
    return other if one is None else Seen(max(one.newest, other.newest), one.rows + other.rows)
