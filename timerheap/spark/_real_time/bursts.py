"""Rows of a task of the source that were there together, as they are sent to a partition.

The event times go with the rows, since each message costs as much as a row. A message without rows has event
times only, which every partition needs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerheap.spark._exchange.packed import PACKED_SCHEMA
from timerheap.spark._exchange.placement import label_of

_HEAD = struct.Struct("<qq")  # for each input, the largest event time, and the number of rows


class Seen(NamedTuple):
    """What a task has seen of an input: its largest event time, MIN_WATERMARK for none, and how many rows."""

    newest: int
    rows: int


def burst(
    frames: Mapping[int, bytes], targets: Iterable[int], sequence: int, seen: Sequence[Seen]
) -> pa.RecordBatch:
    """Return a message, with the columns of `PACKED`, for each target, with its frame if it has one."""
    head, partitions = b"".join(_HEAD.pack(*each) for each in seen), list(targets)
    columns = [
        pa.array(list(map(label_of, partitions)), pa.int32()),
        pa.array(np.full(len(partitions), sequence)),
        pa.array([head + frames.get(partition, b"") for partition in partitions], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED_SCHEMA)


def opened(
    messages: Iterable[tuple[int, bytes]], inputs: int
) -> tuple[list[tuple[int, bytes]], list[dict[str, Seen]]]:
    """Return the frames of messages in their order, and what each task has seen of each input."""
    frames: list[tuple[int, bytes]] = []
    seen: list[dict[str, Seen]] = [{} for _ in range(inputs)]
    size = inputs * _HEAD.size
    for sequence, blob in messages:
        if len(blob) > size:
            frames.append((sequence, blob[size:]))
        name = str(sequence >> 32)
        for of_input, found in zip(seen, _HEAD.iter_unpack(blob[:size]), strict=True):
            if found[1]:
                of_input[name] = seen_in_both(of_input.get(name), Seen(*found))
    return frames, seen


def seen_in_both(one: Seen | None, other: Seen) -> Seen:
    """Return what a task has seen in both."""
    return other if one is None else Seen(max(one.newest, other.newest), one.rows + other.rows)
