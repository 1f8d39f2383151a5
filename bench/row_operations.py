"""The row loop's operations for the instruction gate: run under callgrind, by instructions.py.

Run as ``python bench/row_operations.py LIBRARY``, a shared library with the functions ``begin()`` and
``end(name)``, between which instructions count. Uses the compiled module alone, without Spark.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from timerheap._native._core import (
    FIXED,
    ArrayView,
    ColumnReader,
    CurrentKey,
    KnownKeys,
    RecordColumns,
    RowCells,
    RowContext,
    RowLoop,
    RowSource,
    RowTimers,
    RowTimerService,
    RowValue,
    TimerChanges,
    TimerHeap,
)

NAMES = SimpleNamespace(known={})
ROWS, KEYS, GAP = 10_000, 6_000, 150_000


class Moves:
    """The session timeout, with the timestamp of its timer in a value state."""

    timer: RowValue

    def process_element(self, value: Any, ctx: Any) -> None:
        old = self.timer.value()
        if old is not None:
            ctx.timer_service().delete_event_time_timer(old)
        new = ctx.timestamp() + GAP
        ctx.timer_service().register_event_time_timer(new)
        self.timer.update(new)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, int]]:
        self.timer.clear()
        yield ctx.get_current_key(), timestamp


class Answers(Moves):
    """Has a result for each row."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        return [(value[0], value[1])]


class Row(tuple[Any, ...]):
    """What pyspark's Row is to the loop."""


class Group:
    """A key group with a function."""

    def __init__(self, function: Moves) -> None:
        self.keys, self.heap = CurrentKey(), TimerHeap()
        timers, service = RowTimers(self.heap, TimerChanges(), self.keys, NAMES), RowTimerService()
        service.bind(timers, timers, -(2**63), None)
        function.timer = RowValue(self.keys, None, int, 64, list)
        cells = RowCells(self.keys.numbers, int, lambda ids: (ids, np.zeros(len(ids), bool)))
        function.timer.bind(None, {}, {}, cells)
        self.loop = RowLoop(function, RowContext(service), service, self.keys, "event", "processing")
        self.columns, self.seen = RecordColumns([("integer", 8)] * 2, 10**6, str), KnownKeys()
        output = SimpleNamespace(rows=None, columns=self.columns)
        self.loop.begin(output, KnownKeys(), self.seen, None)

    def replay(self, start: int) -> None:
        """Process rows of random keys, one a ms."""
        ids = np.random.default_rng(start).integers(0, KEYS, ROWS)
        at = np.arange(start, start + ROWS)
        columns = [
            ColumnReader("integer", ArrayView(FIXED, 8, 0, ROWS, None, None, values)) for values in (ids, at)
        ]
        source = RowSource(Row, ["key", "at"], columns, [0])
        self.loop.replay(source, ids, at, start + ROWS)
        self.seen.add(ids, source)


def main(library: str) -> None:
    callgrind = ctypes.CDLL(library)
    gc.disable()
    for name, function in (("rows", Moves()), ("rows with results", Answers())):
        group = Group(function)
        group.replay(0)  # imports, caches and first allocations
        callgrind.begin()
        group.replay(ROWS)
        callgrind.end(name.encode())
        if name == "rows":
            callgrind.begin()
            group.loop.advance(2 * ROWS + GAP)
            callgrind.end(b"timers of rows")
            assert len(group.columns) == group.loop.fired > KEYS / 2


if __name__ == "__main__":
    main(sys.argv[1])
