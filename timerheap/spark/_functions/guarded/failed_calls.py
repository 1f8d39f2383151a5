"""Calls of a function that have raised an exception: they are undone, and become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.metrics import Counter, Metrics
from timerheap.output_tag import OutputTag
from timerheap.spark._arrow import narrow_column
from timerheap.spark._columns import LETTERS
from timerheap.spark._functions.guarded.dead_letters import RULE, Failures, Guard, letter_texts
from timerheap.spark._functions.guarded.revocable_states import Steps, undo
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.output import ResultBuffer


class FailedCalls:
    """Takes calls back that have raised an exception, and emits what they were called for.

    metrics: receives the number of dead letters
    steps: how to undo the current call; it is empty between calls
    """

    def __init__(self, guard: Guard, query: Query, metrics: Metrics) -> None:
        self._rule = guard.rule
        (tag,) = (tag for tag in query.side_outputs if tag.tag_id == LETTERS)
        self._tag: OutputTag = tag
        (self._type,) = (field.type for field in query.side_fields if field.name == LETTERS)
        self._columns = list(query.late_columns)
        self._counter = metrics.of(Counter, LETTERS)
        self.steps: Steps = []
        self._failures = Failures(guard.bound)

    def type_of(self, column: str) -> pa.DataType:
        """Return the type of a column of dead letters."""
        return self._type.field(column).type

    def begin(self, group: KeyGroup, output: ResultBuffer) -> None:
        """Begin a key group."""
        self._group, self._output = group, output
        self.steps.clear()

    def undo(self) -> None:
        """Undo the current call."""
        undo(self.steps)

    def send(self, tag: OutputTag, value: Any) -> None:
        """Emit a value of a side output during a call."""
        self.steps.append(self._output.mark_side())
        self._output.side(tag, value)

    def mark(self) -> None:
        """Have what is emitted from now on undone with the call."""
        self.steps.append(self._output.mark())

    def add(
        self,
        error: Exception,
        call: str,
        returned: int,
        ids: np.ndarray,
        timestamps: Sequence[int | None],
        *,
        timers: Sequence[str | None] | None = None,
        rows: pa.RecordBatch | None = None,
        broadcast: pa.StructArray | None = None,
    ) -> None:
        """Undo a call and emit its n rows or timers; raise the error if there are too many.

        call: the method
        returned: for how many rows and timers the function has returned so far
        ids: those of the keys, int64, shape (n,), or (0,) if the call was for no key
        timers: the names of timers
        rows, broadcast: those of the input, or those that go to all keys
        """
        undo(self.steps)
        n = len(timestamps)
        self._counter.inc(n)
        self._failures.add(error, call, returned, n)
        message, trace = letter_texts(error)
        texts = {"call": call, "error": message, "trace": trace}
        if self._rule is not None:
            texts[RULE] = self._rule
        columns: dict[str, pa.Array] = {name: pa.repeat(text, n) for name, text in texts.items()}
        columns["timestamp"] = pa.array(timestamps, pa.int64())
        columns["timer"] = pa.array([None] * n if timers is None else timers, pa.string())
        if len(ids):
            columns["key"] = _structs(self._group.keys.keys(ids), self._type.field("key").type)
        if rows is not None:
            columns["input"] = _structs(rows.select(self._columns), self._type.field("input").type)
        if broadcast is not None:
            columns["broadcast"] = broadcast
        arrays = [columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in self._type]
        letters = pa.RecordBatch.from_arrays(arrays, names=[field.name for field in self._type])
        self._output.batch((self._tag, letters), call)


def call_in_pieces(
    n: int, ids: np.ndarray, call: Callable[[np.ndarray], None], failed: Callable[[Exception, int], None]
) -> None:
    """Call with n rows or timers, given by their places; where that raises, with fewer, in halves.

    A half has the rows of half of the keys, or of one key the first rows, and then the others.

    failed: is called with the error of a call of one row, and its place; and with the others, and -1
    """
    pending = [np.arange(n)]
    while pending:
        piece = pending.pop()
        try:
            call(piece)
        except Exception as error:
            if len(piece) == 1:
                failed(error, int(piece[0]))
                continue
            failed(error, -1)
            pending += _halved_by_key(piece, ids)


def _halved_by_key(piece: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the second and the first half."""
    distinct, numbers = np.unique(ids[piece], return_inverse=True)
    if len(distinct) == 1:
        middle = len(piece) // 2
        return piece[middle:], piece[:middle]
    first = numbers < len(distinct) // 2
    return piece[~first], piece[first]


def _structs(rows: pa.RecordBatch, type_: pa.StructType) -> pa.StructArray:
    """Return the rows as structs of a type, whose fields have names of their own."""
    columns = [narrow_column(column, field.type) for column, field in zip(rows.columns, type_, strict=True)]
    return pa.StructArray.from_arrays(columns, fields=list(type_))
