"""Value states: one value for each key id, behind what the current batch has touched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from timerheap._native._core import KeyNumbers, RowCells
from timerheap.errors import DamagedCheckpointError
from timerheap.spark._arrow import wide_rows
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.id_table import IdTable, distinct_ids, last_rows
from timerheap.spark._memory.streamed import Streamed
from timerheap.spark._python_rows import python_values
from timerheap.spark._settling.settled_parts import SettledPart

_CELL_CLASSES: dict[pa.DataType, type] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
    pa.float64(): float,
    pa.bool_(): bool,
}


class StateTable:
    """The values of one state, by key id: a table, behind a cache of what the current batch has touched.

    Implements `timerheap._states.ValueContents`.
    """

    shape = "value"
    id_column = 0
    _losses: int

    def __init__(
        self, kind: int, name: str, type_: pa.DataType, memory: Memory = PROCESS, head: Sequence[Any] = ()
    ) -> None:
        self.kind = kind
        self.name = name
        self.type = type_
        self.schema = pa.schema([pa.field("key_hash", pa.int64()), pa.field(self.shape, type_)])
        self._losses, table = head or (0, ())
        self._table = IdTable(type_, memory, table)
        self.record_type = self._table.type
        self.settled: SettledPart | None = None  # the values that are not in the table
        self._at_hand: list[np.ndarray] = []
        self._loaded: dict[int, Any] = {}
        self._stored: dict[int, Any] = {}  # since then, not yet in the table
        self._cells: RowCells | None = None  # or in these, for a native loop
        self._unsaved: list[tuple[np.ndarray, pa.Array]] = []  # what has been written

    @classmethod
    def restored(cls, kind: int, name: str, schema: pa.Schema, memory: Memory = PROCESS) -> Self:
        return cls(kind, name, schema.field(cls.shape).type, memory)

    def head(self) -> list[Any]:
        return [self.count_losses(), self._table.head()]

    def count_losses(self) -> int:
        return self._losses + (0 if self._cells is None else self._cells.cleared)

    def announce(self, ids: np.ndarray) -> None:
        """Record that the values of these keys may be read; the first read then loads them in one lookup."""
        self._at_hand.append(ids)

    def load(self, key_id: int) -> Any:
        if key_id in self._stored:
            return self._stored[key_id]
        if key_id not in self._loaded:
            ids = np.concatenate([*self._at_hand, [key_id]])
            self._at_hand = []
            self._loaded.update(zip(ids.tolist(), python_values(self._table.get(ids)), strict=True))
        return self._loaded[key_id]

    def store(self, key_id: int, value: Any) -> None:
        self._losses += value is None
        self._stored[key_id] = value

    def at_hand(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the values that have been loaded, and those stored since, which count first, by key id."""
        # Both dicts stay the same objects. A value that is not None may be stored in the second one directly.
        return self._loaded, self._stored

    def cells(self, numbers: KeyNumbers) -> RowCells | None:
        """Return where a native loop reads and writes the values of keys with these numbers."""
        # Cells for other numbers must not be used any more. None means that values of this type are
        # `at_hand`.
        class_ = _CELL_CLASSES.get(self.type)
        if class_ is not None and (self._cells is None or self._cells.numbers is not numbers):
            self._settle()
            self._losses = self.count_losses()
            self._cells = RowCells(numbers, class_, partial(_loaded, self._table))
        return self._cells

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Return the values of many keys, null for a key without one: shape (n,), with 64-bit offsets."""
        self._settle()
        if self.settled is not None:
            self.settled.bring(ids)
        return self._table.get(ids)

    def put_many(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of many distinct keys; a null removes the key's value."""
        self._write()
        self._loaded.clear()
        if self._cells is not None:
            self._cells.forget()
        self._losses += values.null_count
        self._put(ids, values)

    # The methods of `timerheap.spark._settling.settling_parts.SettlingContents`:

    def entries(self, ids: np.ndarray) -> np.ndarray:
        return np.zeros(len(ids), np.int64)  # nobody knows how long a value is before it is copied

    def in_table(self, ids: np.ndarray) -> pa.Array:
        return self._table.get(ids)

    def take_out(self, ids: np.ndarray) -> None:
        self._table.remove(ids)

    def put_back(self, ids: np.ndarray, contents: pa.Array) -> None:
        self._table.put(ids, contents)

    def hot_bytes(self) -> float:
        return self._table.used_bytes()

    def ids(self) -> np.ndarray:
        self._settle()
        return self._table.ids()

    def _settle(self) -> None:
        """Write the stored values to the table, and keep them at hand."""
        self._loaded.update(self._stored)
        self._write()

    def _write(self) -> None:
        if self._stored:
            ids = np.fromiter(self._stored, np.int64, len(self._stored))
            self._put(ids, pa.array(list(self._stored.values()), self._table.type))
            self._stored.clear()
        if self._cells is not None:
            ids, bits, held = self._cells.take()
            if len(ids):
                self._put(ids, _stored(bits, held, self.type))

    def _put(self, ids: np.ndarray, values: pa.Array) -> None:
        self._table.put(ids, values)
        self._unsaved.append((ids, values))

    # The methods of `timerheap.spark._group.stored.parts.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        """Return the values of all keys changed since the last call; null for a key that was cleared."""
        self._write()
        self._loaded.clear()
        self._at_hand = []
        if self._cells is not None:
            self._cells.forget()
        unsaved, self._unsaved = self._unsaved, []
        if not unsaved:
            return None
        ids, values = unsaved[0]
        if len(unsaved) > 1:
            ids = distinct_ids(np.concatenate([ids for ids, _ in unsaved]))
            values = self._table.get(ids)
        return self._batch(ids, values.cast(self._table.type))

    def snapshot(self) -> pa.RecordBatch | Streamed:
        self._settle()
        if self.settled is not None:
            return self.settled.stream(self._table, self._batch)
        return self._batch(*self._table.items())

    def replay(self, batch: pa.RecordBatch) -> None:
        if wide_rows(batch.schema) != wide_rows(self.schema) or batch.column(0).null_count:
            raise DamagedCheckpointError(
                f"a chunk of state {self.name!r} has the columns {batch.schema}, not {self.schema}"
            )
        self._table.put(batch.column(0).to_numpy(), batch.column(1))

    def reserve(self, times: float) -> None:
        self._table.reserve(times)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return last_rows(batches)

    def __len__(self) -> int:
        self._settle()
        return len(self._table) + (0 if self.settled is None else len(self.settled))

    def _batch(self, ids: np.ndarray, values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(ids), values], schema=wide_rows(self.schema))


def _loaded(table: IdTable, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of keys as `RowCells` have them, and which keys have one."""
    places, held = table._index.find_many(ids)
    if not np.count_nonzero(held):
        return places, held
    values = table._slab.take(places).to_numpy(zero_copy_only=False)
    return values.view(np.int64) if values.dtype == np.float64 else values.astype(np.int64), held


def _stored(bits: np.ndarray, held: np.ndarray, type_: pa.DataType) -> pa.Array:
    values = bits.view(np.float64) if pa.types.is_floating(type_) else bits
    mask = None if held.all() else ~held
    return pa.array(values, mask=mask, from_pandas=False).cast(type_)
