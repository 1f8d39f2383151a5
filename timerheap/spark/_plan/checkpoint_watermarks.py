"""The channels of a stored clock as rows: which of them hold the watermark back, and how far."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.flink import Explanation
from timerheap.spark._group.clock_bytes import decode_clock
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._worker.checkpoint_tables import TIMESTAMP, readable
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks import WatermarkStatus, WatermarkStrategy

__all__ = ["WATERMARKS", "explanations", "watermark_rows"]

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


def explanations(clock: bytes) -> list[Explanation]:
    """Explain for each input of a clock which channels hold its watermark back."""
    inputs = len(decode_clock(clock).inputs)
    none = WatermarkStrategy.no_watermarks()
    return WatermarkState.from_bytes(clock, (none,) * inputs, (None,) * inputs).explain()


def watermark_rows(clock: bytes) -> list[dict[str, Any]]:
    """Return a row of `WATERMARKS` for each channel, and one for an input without channels."""
    stored, explained = decode_clock(clock), explanations(clock)
    query = _time(stored.watermark)
    if not any(explanation.channels for explanation in explained):  # Spark's watermark, or no event time
        clocked = any(input_.begun_at > MIN_WATERMARK for input_ in stored.inputs)
        spark = stored.watermark > MIN_WATERMARK and not clocked
        return [
            {
                "input": "spark" if spark else "df",
                "watermark": query,
                "holds": spark,
                "query_watermark": query,
            }
        ]
    names = ["df"] if len(explained) == 1 else ["left", "right"]
    counting = [one.watermark for one in explained if one.status is not WatermarkStatus.IDLE]
    lowest = min(counting, default=None)
    ended = (channel.watermark for one in explained for channel in one.channels)
    furthest = max((mark for mark in ended if mark < MAX_WATERMARK), default=MIN_WATERMARK)
    rows: list[dict[str, Any]] = []
    for name, input_, one in zip(names, stored.inputs, explained, strict=True):
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
                    "watermark": _time(mark),
                    "newest": _time(newest),
                    "behind_ms": None if mark == MIN_WATERMARK else max(furthest - mark, 0),
                    "last_row": _time(active_at),
                    "status": channel.status.name.lower(),
                    "aligned": channel.aligned,
                    "holds": holding and channel.holds,
                    "query_watermark": query,
                }
            )
    return rows


def _time(millis: int) -> datetime | None:
    found: datetime | None = readable(np.array([millis]))[0].as_py()
    return found
