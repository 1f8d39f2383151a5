"""What the operator runs on each key group: a process function on rows or on columns, or windows."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from timerheap.metrics import Metrics
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import KeyedRows
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.rows_ahead import RowsAhead

__all__ = ["Runner"]


class Runner(Protocol):
    """Runs the work of a query in one task, on one key group after the other.

    The operator calls `open`, then for each key group of each micro-batch `begin`, `process` and `advance` or
    `replay` in their place, and `advance_clock`; finally `close`.

    Attributes
    ----------
    rows_ahead : RowsAhead
        The rows that were processed ahead of due timers.
    """

    rows_ahead: RowsAhead

    @property
    def fired_timers(self) -> int:
        """The number of timers that have fired so far, or of windows."""

    @property
    def metrics(self) -> Metrics | None:
        """The metrics of the function, None if it has none."""

    def open(self) -> None:
        """Prepare for the first key group."""

    def close(self) -> None:
        """End the task."""

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        """Begin a key group, at its watermark.

        Parameters
        ----------
        group : KeyGroup
        now : int or None
            Time of the micro-batch in epoch ms, None in a query without processing time.
        output : ResultBuffer
            Receives the results.
        """

    def process(self, rows: KeyedRows, watermark: int) -> None:
        """Process rows in the order of arrival; `watermark` follows, so that timers up to it are due."""

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Process rows in event-time order, fire timers between them, and advance to `watermark`.

        The watermark is t - 1 while rows of timestamp t are processed.

        Parameters
        ----------
        rows : KeyedRows
        order : ndarray of int64, shape (n,)
            The positions of the rows to process, in event-time order; there may be other rows.
        watermark : int
        """

    def advance(self, watermark: int) -> None:
        """Advance the watermark, and fire the event-time timers that it passes."""

    def advance_clock(self, now: int) -> None:
        """Fire the processing-time timers before `now`."""
