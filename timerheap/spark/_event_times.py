"""Event times in columns, as runners of features compute with them: as fine as they are, without overflow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap.timer import MAX_WATERMARK


def units_in_ms(type_: pa.DataType) -> int:
    """Return how many units of an event-time column are 1 ms: 1 for int64, 1000 for microseconds."""
    return 1 if pa.types.is_int64(type_) else 1000


def exact_times(column: pa.Array) -> np.ndarray:
    """Return times in their own unit, which may be finer than the watermark's: int64, 0 for null."""
    times: np.ndarray = column.view(pa.int64()).fill_null(0).to_numpy()
    return times


def times_after(times: np.ndarray, span: int) -> np.ndarray:
    """Return the times of a span after `times`, at most about MAX_WATERMARK; both in ms."""
    after: np.ndarray = times + np.minimum(span, MAX_WATERMARK - np.maximum(times, 0))
    return after
