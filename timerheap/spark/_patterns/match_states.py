"""The state of a key of MATCH_RECOGNIZE: partial matches and the rows that they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import Attempt, Matcher
from timerheap.errors import CheckpointMismatchError
from timerheap.spark._columns import HIDDEN
from timerheap.spark._patterns.pattern import ACCEPT
from timerheap.timer import MIN_WATERMARK

THREAD = pa.struct({"start": pa.int32(), "next": pa.int32(), "taken": pa.list_(pa.int32())})
"""A partial match: its first row, its next instruction, and what its rows are taken as."""

TIME, BITS, MICROS = f"{HIDDEN}time", f"{HIDDEN}bits", f"{HIDDEN}micros"
"""Of the rows of a state: the ms, which variables they can be, null for those that wait for others, and the
microseconds of the ms."""

StoredRows = Callable[[np.ndarray, np.ndarray], pa.StructArray]


class HeldStates:
    """The states of keys.

    lengths: the number of rows of each key; -1 without a state
    waiting: how many of them have not been looked at
    waits: whether a key has rows, and so perhaps a timer
    """

    def __init__(self, states: pa.StructArray, mark: int) -> None:
        valid = np.asarray(states.is_valid())
        marks = states.field("mark").filter(pa.array(valid))
        if len(marks) and not (np.asarray(marks) == mark).all():
            raise CheckpointMismatchError(
                "query: MATCH_RECOGNIZE must have the pattern, conditions and SKIP of the checkpoint, and "
                "read the same columns; keep these, or start with a new checkpoint"
            )
        self.numbers = states.field("number").fill_null(0).to_pylist()
        lengths = states.field("rows").value_lengths().fill_null(0)
        self.counts = np.asarray(lengths).astype(np.int64) * valid
        self.rows = states.field("rows").flatten()
        self.lengths = np.where(valid, self.counts, -1)
        self.waiting = np.asarray(states.field("waiting").fill_null(0)).astype(np.int64)
        self.waits = self.counts > 0
        self._threads = states.field("threads").to_pylist()

    def times(self, unit: int) -> np.ndarray:
        """Return the times of the rows, in their own unit."""
        times = np.asarray(self.rows.field(TIME))
        return times if unit == 1 else times * unit + np.asarray(self.rows.field(MICROS).fill_null(0))

    def attempts(self, key: int, low: int, times: np.ndarray, matcher: Matcher) -> list[Attempt]:
        """Return the partial matches of a key, whose rows begin at `low`."""
        found: list[Attempt] = []
        for start, follows, all_taken in map(dict.values, self._threads[key] or ()):
            if not found or found[-1].start != start + low:
                found.append(Attempt(start + low, times[start + low]))
            cell: Any = None
            registers = matcher.nothing
            for row, taken in enumerate(all_taken, start + low):
                cell = cell, row, taken
                registers = registers and matcher.taken_with(registers, row, taken >> 1)
            if follows == ACCEPT:
                found[-1].best, found[-1].complete = cell, True
            else:
                found[-1].threads.append((follows, cell, registers))
        return found


class KeptStates:
    """Collects the states of keys.

    ends: the watermark for which each key waits, `MIN_WATERMARK` if it does not wait
    """

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self.ends: list[int] = []
        self._spans: list[tuple[int, int, int, int]] = []
        self._threads: list[list[dict[str, Any]]] = []

    def add(self, attempts: list[Attempt], low: int, stop: int, high: int, number: int, end: int) -> None:
        """Add the state of the next key, whose rows are those from `low` to `high`.

        stop: the first of them that has not been looked at
        """
        self.ends.append(end)
        self._spans.append((low, high, number, high - stop))
        self._threads.append(
            [
                {"start": one.start - low, "next": pc, "taken": _rows_taken(cell)}
                for one in attempts
                for pc, cell, _ in [*one.threads, *([(ACCEPT, one.best, ())] if one.complete else [])]
            ]
        )

    def states(self, stored: StoredRows, type_: pa.StructType) -> pa.StructArray:
        """Return the states, null for a key that needs none.

        stored: returns rows as the state has them, given their positions and which of them wait
        """
        lows, highs, numbers, waiting = (np.array(one, np.int64) for one in zip(*self._spans, strict=True))
        counts = highs - lows
        bounds = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
        at = np.concatenate([np.arange(low, high) for low, high, *_ in self._spans])
        rows = stored(at, at >= np.repeat(highs - waiting, counts))
        lists = [pa.ListArray.from_arrays(bounds, rows), pa.array(self._threads, pa.list_(THREAD))]
        marks = pa.array(np.full(len(counts), self._mark))
        columns = [marks, pa.array(numbers), pa.array(waiting), *lists]
        fields = [field.with_type(one.type) for field, one in zip(type_, columns, strict=True)]
        empty = (counts == 0) & (numbers == 0) & (np.array(self.ends) == MIN_WATERMARK)
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(empty)).cast(type_)


def _rows_taken(cell: Any) -> list[int]:
    """Return what the rows of a partial match are taken as."""
    found = []
    while cell is not None:
        cell, _, taken = cell
        found.append(taken)
    return found[::-1]
