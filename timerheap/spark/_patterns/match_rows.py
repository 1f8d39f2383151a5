"""The rows that MATCH_RECOGNIZE looks at in one call: those of the states of its keys, and new ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import row_order
from timerheap.spark._patterns.conditions import OPERATORS, Column, Term
from timerheap.spark._patterns.match_states import BITS, HeldStates
from timerheap.timer import MAX_WATERMARK


class Arrived(NamedTuple):
    """The rows that came, with their key ids and their times; no batch if only timers fire."""

    batch: pa.RecordBatch | None
    ids: np.ndarray
    times: np.ndarray


NOTHING = Arrived(None, np.empty(0, np.int64), np.empty(0, np.int64))


class Rows:
    """The rows of keys, those of the state and those that came, by key and time.

    times: of all rows; `unit` of them are 1 ms
    within: the ms that rows which are read are at most behind a row, and before it
    """

    def __init__(
        self,
        keys: np.ndarray,
        held: HeldStates,
        arrived: Arrived,
        within: tuple[int | None, int | None],
        unit: int,
    ) -> None:
        batch, ids, times = arrived
        self._held, self._batch, self._count, self._unit = held, batch, len(held.rows), unit
        self._within = [None if one is None else min(one * unit, MAX_WATERMARK) for one in within]
        all_ids = np.concatenate([np.repeat(keys, held.counts), ids])
        all_times = np.concatenate([held.times(unit), times])
        order = row_order(all_ids, all_times, all_times)  # stable: what has come is in its order
        self._order, self.times = pa.array(order), all_times[order]
        self._bounds = np.searchsorted(all_ids[order], keys), np.searchsorted(all_ids[order], keys, "right")
        self._of_key = [np.repeat(one, self._bounds[1] - self._bounds[0]) for one in self._bounds]
        self._columns: dict[Column, pa.Array] = {}
        self.bits = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.times)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield where the rows of each key begin, those that are to be looked at, and where they end."""
        lows, highs = self._bounds
        news = lows + self._held.counts - self._held.waiting
        yield from zip(lows.tolist(), news.tolist(), highs.tolist(), strict=True)

    def column(self, column: Column) -> pa.Array:
        """Return a column, null in rows of the state that do not have it, and beyond the rows of the key."""
        found = self._columns.get(column)
        if found is None:
            name, back = column
            if back:
                at, (low, high) = np.arange(len(self)) - back, self._of_key
                none = (at < low) | (at >= high)
                if (within := self._within[back > 0]) is not None:
                    none |= np.abs(self.times[np.where(none, 0, at)] - self.times) > within
                found = self.column((name, 0)).take(pa.array(at, mask=none))
            else:
                found = self._whole(name).take(self._order)
            self._columns[column] = found
        return found

    def computed(self, term: Term) -> pa.Array:
        """Return a term `of_rows` for all rows."""
        if term[0] == "row":
            return self.column((term[1], term[2]))
        return OPERATORS[term[0]][1](*map(self.computed, term[1:]))

    def _whole(self, name: str) -> pa.Array:
        rows, parts = self._held.rows, []
        if self._batch is not None:
            parts.append(self._batch.column(name))
        if name in [field.name for field in rows.type]:
            parts.insert(0, rows.field(name))
        elif parts:
            parts.insert(0, pa.nulls(self._count, parts[0].type))
        else:
            return pa.nulls(self._count, pa.bool_())  # no row has come, so no condition is asked
        return pa.concat_arrays([part.cast(parts[0].type) for part in parts])

    def known_bits(self, bits: np.ndarray) -> np.ndarray:
        """Return the bits of rows, for those that were looked at as the state has them."""
        known = pa.concat_arrays([self._held.rows.field(BITS), pa.nulls(len(self) - self._count, pa.int64())])
        return np.asarray(pc.coalesce(known.take(self._order), pa.array(bits)))

    def stored(self, at: np.ndarray, waits: np.ndarray) -> pa.StructArray:
        """Return rows as the state has them."""
        fields = list(self._held.rows.type)
        times = self.times[at]
        columns = [pa.array(times // self._unit), pa.array(self.bits[at], mask=waits)]
        columns += [pa.array(times % self._unit)] if self._unit > 1 else []
        columns += [self.column((field.name, 0)).take(pa.array(at)) for field in fields[len(columns) :]]
        return pa.StructArray.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, fields, strict=True)], fields=fields
        )
