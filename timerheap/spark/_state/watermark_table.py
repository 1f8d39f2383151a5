"""The channels of a watermark in a checkpoint as rows, and which of them hold it back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._columns import FOLLOWED
from timerheap.spark._group.stored.watermark_bytes import decode_watermark
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._state.state_tables import TIMESTAMP, readable
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks import WatermarkStatus, WatermarkStrategy
from timerheap.watermarks.valve import Explanation

WATERMARKS = pa.schema(
    [
        ("input", pa.string()),
        ("channel_column", pa.string()),
        ("channel", pa.string()),
        ("watermark", TIMESTAMP),
        ("newest", TIMESTAMP),
        ("behind_ms", pa.int64()),
        ("last_row", TIMESTAMP),
        ("status", pa.string()),
        ("aligned", pa.bool_()),
        ("holds", pa.bool_()),
        ("query_watermark", TIMESTAMP),
    ]
)


def explanations(watermark_state: bytes) -> list[Explanation]:
    """Explain for each input of a watermark's state which channels hold its watermark back."""
    inputs = len(decode_watermark(watermark_state).inputs)
    none = WatermarkStrategy.no_watermarks()
    return WatermarkState.from_bytes(watermark_state, (none,) * inputs, (None,) * inputs).explain()


def watermark_rows(watermark_state: bytes) -> list[dict[str, Any]]:
    """Return a row of `WATERMARKS` for each channel, and one for an input without channels."""
    stored, explained = decode_watermark(watermark_state), explanations(watermark_state)
    query = _moment_of(stored.watermark)
    operators = {"input": "operators", "watermark": query, "holds": True, "query_watermark": query}
    if stored.inputs and all(input_.column == FOLLOWED for input_ in stored.inputs):
        return [operators]
    if not any(explanation.channels for explanation in explained):  # Spark's watermark, or no event time
        clocked = any(input_.begun_at > MIN_WATERMARK for input_ in stored.inputs)
        spark = stored.watermark > MIN_WATERMARK and not clocked
        side = "spark" if spark else "df"
        return [{"input": side, "watermark": query, "holds": spark, "query_watermark": query}]
    names = ["df"] if len(explained) == 1 else ["left", "right"]
    counting = [
        one.watermark
        for input_, one in zip(stored.inputs, explained, strict=True)
        if input_.column != FOLLOWED and one.status is not WatermarkStatus.IDLE
    ]
    lowest = min(counting, default=None)
    ended = (channel.watermark for one in explained for channel in one.channels)
    furthest = max((mark for mark in ended if mark < MAX_WATERMARK), default=MIN_WATERMARK)
    rows: list[dict[str, Any]] = []
    for name, input_, one in zip(names, stored.inputs, explained, strict=True):
        if input_.column == FOLLOWED:  # how far the operators are is not stored
            rows.append(operators | {"holds": lowest is None or lowest > stored.watermark})
            continue
        holding = one.status is not WatermarkStatus.IDLE and one.watermark == lowest != MAX_WATERMARK
        if not one.channels:
            status = one.status.name.lower()
            rows.append({"input": name, "status": status, "holds": holding, "query_watermark": query})
        times = zip(input_.max_timestamps.tolist(), input_.active_at.tolist(), strict=True)
        for channel, (newest, active_at) in zip(one.channels, times, strict=True):
            mark = channel.watermark
            rows.append(
                {
                    "input": name,
                    "channel_column": input_.column,
                    "channel": None if channel.name is None else str(channel.name),
                    "watermark": _moment_of(mark),
                    "newest": _moment_of(newest),
                    "behind_ms": None if mark == MIN_WATERMARK else max(furthest - mark, 0),
                    "last_row": _moment_of(active_at),
                    "status": channel.status.name.lower(),
                    "aligned": channel.aligned,
                    "holds": holding and channel.holds,
                    "query_watermark": query,
                }
            )
    return rows


def _moment_of(millis: int) -> datetime | None:
    time: datetime | None = readable(np.array([millis]))[0].as_py()
    return time
