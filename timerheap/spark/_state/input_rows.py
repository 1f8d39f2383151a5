"""In a task: waiting rows of a query with one input become those of one with two, or the other way round.

Rows of one input have its columns. Those of two have a struct for each input, one of which is null, and the
columns that both have: see `timerheap.spark._process.process.columns_of_two`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import KeyedRows, wide
from timerheap.spark._columns import INPUT, ROW_ID, ROW_TIMESTAMP, SIDES, TIME, shown_name
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import RowBuffer
from timerheap.spark._group.saving import loaded_group
from timerheap.spark._group.stored.chunk_store import ChunkReader
from timerheap.spark._group.stored.kinds import ROWS
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored.stored_runs import described
from timerheap.spark._query import Query


def has_two_inputs(rows: pa.Schema) -> bool:
    """Return whether rows are those of two inputs."""
    return {INPUT, *SIDES} <= {*rows.names}


@dataclass(frozen=True)
class InputRows:
    """Takes the rows that wait in a checkpoint for a query with another number of inputs.

    input: of two inputs, here or there, the number of the one whose rows they are; None to take none
    """

    query: Query
    input: int | None

    def loaded(self, store: ChunkReader, manifest: Manifest) -> KeyGroup:
        """Return a key group of the checkpoint, with the rows that wait in it as those of the query."""
        layout = self.query.layout
        runs = [run for run in manifest.runs if run.kind == ROWS]
        schema = next((schema for _, _, schema in described(store, runs)), None)
        if schema is None or has_two_inputs(schema) == has_two_inputs(layout.rows):
            return loaded_group(store, manifest, layout)[0]
        stored = replace(layout, rows=RowBuffer.rows_of(schema), order="event_time", event_time=None, ties=())
        group = loaded_group(store, manifest, stored)[0]
        waiting = group.rows.waiting()
        group.layout = layout
        group.rows = RowBuffer(
            layout.rows, layout.order, group.memory, ties=layout.ties, time=layout.event_time
        )
        if self.input is not None and len(waiting):
            taken = self._of_two if has_two_inputs(layout.rows) else self._of_one
            group.rows.replay(taken(self.input, group, waiting))
            group.rows.loaded(group.watermark)
        return group

    def _of_two(self, number: int, group: KeyGroup, waiting: KeyedRows) -> pa.RecordBatch:
        """Return rows of one input as those of one of two."""
        rows, schema = waiting.rows, group.layout.rows
        own, other = SIDES[number], SIDES[1 - number]
        columns = {
            **_keys_of_waiting(group, waiting),
            INPUT: pa.repeat(pa.scalar(number, schema.field(INPUT).type), len(rows)),
            own: pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema)),
            other: pa.nulls(len(rows), wide(schema.field(other).type)),
        }
        known = _by_name(rows)
        if TIME in schema.names:
            time = _named_as(known, self.query.times[number].column)
            columns[TIME] = known[TIME] if time is None else time
        return _chunk(waiting, schema, columns, known)

    def _of_one(self, number: int, group: KeyGroup, waiting: KeyedRows) -> pa.RecordBatch:
        """Return those of the rows of two inputs that are of the one which is left."""
        waiting = waiting.where(np.asarray(waiting.rows.column(INPUT)) == number)
        known = _by_name(waiting.rows)
        mine = known[SIDES[number]]
        columns = _keys_of_waiting(group, waiting) | dict(zip(mine.type.names, mine.flatten(), strict=True))
        time = self.query.event_time
        if time is not None and time not in columns:
            columns[time] = known[TIME]
        return _chunk(waiting, group.layout.rows, columns, known)


def _by_name(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(rows.schema.names, rows.columns, strict=True))


def _keys_of_waiting(group: KeyGroup, waiting: KeyedRows) -> dict[str, pa.Array]:
    """Return the key columns of rows, by their names in the query."""
    names = [field.name for field in group.layout.key_fields]
    return dict(zip(names, group.keys.keys(waiting.ids).columns, strict=True))


def _named_as(columns: Mapping[str, pa.Array], name: str) -> pa.Array | None:
    """Return a column by the name that its user knows: computed ones have other numbers in other queries."""
    return next((found for each, found in columns.items() if shown_name(each) == shown_name(name)), None)


def _chunk(
    waiting: KeyedRows, schema: pa.Schema, columns: dict[str, pa.Array], known: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Return rows as `RowBuffer.replay` takes them, with the columns of a schema that are there."""
    every = {name: columns[name] if name in columns else _named_as(known, name) for name in schema.names}
    found = {name: column for name, column in every.items() if column is not None}
    found |= {ROW_ID: pa.array(waiting.ids), ROW_TIMESTAMP: pa.array(waiting.timestamps)}
    return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))
