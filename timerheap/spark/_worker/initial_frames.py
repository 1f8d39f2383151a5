"""Tables of an initial state, split in tasks by the key groups of a new query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import concatenated, narrow_column
from timerheap.spark._exchange.frames import event_millis, freeze_modules, key_hashes
from timerheap.spark._exchange.placement import Placement, label_of
from timerheap.spark._group.chunks import (
    EVENT_EXPIRIES,
    EVENT_TIMERS,
    PROCESSING_EXPIRIES,
    PROCESSING_TIMERS,
    ROWS,
    TIMER_NAMES,
    USER_STATE,
    pieces,
)
from timerheap.spark._group.growing_state import log_type
from timerheap.spark._group.key_group import contents_of, keyed
from timerheap.spark._group.timers import PUSH, TimerNames, namespace_of
from timerheap.spark._group.timers import SCHEMA as TIMERS
from timerheap.spark._worker.checkpoint_tables import INITIAL_SCHEMA
from timerheap.timer import MAX_WATERMARK

VALUE = "__timerheap_value"
TIMER = ("__timerheap_epoch_ms", "__timerheap_event_time", "__timerheap_name")
"""Names of the columns that `ContentsTable` and `TimerTable` read."""

_ROWS, _BYTES = 1 << 18, 64 << 20  # of a table at once


class Entries(NamedTuple):
    """Rows of chunks, in which the hashes of the keys stand for their ids, and the rows they were made of."""

    kind: int
    name: str
    chunk: pa.RecordBatch
    id_column: int | None  # None for rows that are of no key
    at: np.ndarray


class Table(Protocol):
    """Makes rows of chunks from the rows of a table, given the hashes of their keys."""

    def __call__(self, rows: pa.RecordBatch, hashes: np.ndarray) -> Iterator[Entries]: ...


class Ttl(NamedTuple):
    """When values expire: `after` ms behind the time in a field, of event time or of processing time."""

    field: str
    after: int
    event_time: bool


@dataclass(frozen=True)
class ContentsTable:
    """The contents of a state in the column `VALUE`, a key a row; null and empty ones are left out.

    type: of a key's contents
    schema: of chunks
    namespace: of the expiries
    """

    name: str
    shape: str
    type: pa.DataType
    schema: pa.Schema
    ttl: Ttl | None
    namespace: int

    def __call__(self, rows: pa.RecordBatch, hashes: np.ndarray) -> Iterator[Entries]:
        """Yield the contents, and when they expire."""
        contents = narrow_column(rows.column(VALUE), self.type)
        lengths = np.asarray(contents.is_valid(), np.int64)
        if self.shape != "value":
            lengths = lengths * np.diff(np.asarray(contents.offsets)).astype(np.int64)
        at = np.flatnonzero(lengths)
        contents, lengths = contents.take(pa.array(at)), lengths[at]
        columns, entries = [pa.array(hashes[at])], contents
        if self.shape != "value":
            entries = _entries(contents)
            if self.shape == "list" and entries.null_count:
                raise ValueError(
                    f"states[{self.name!r}] must have no null among the elements of a list, got "
                    f"{entries.null_count}; filter them out"
                )
            columns += [pa.repeat(True, len(at)), self._lists(entries, lengths)]
        else:
            columns.append(contents)
        yield Entries(USER_STATE, self.name, pa.RecordBatch.from_arrays(columns, schema=self.schema), 0, at)
        if self.ttl is not None and len(at):
            kept = entries.field("value") if self.shape == "map" else entries
            times = kept.field(self.ttl.field).to_numpy()
            first = np.minimum.reduceat(times, np.cumsum(lengths) - lengths)
            due = np.minimum(first, MAX_WATERMARK - self.ttl.after) + self.ttl.after
            due, at = due[due < MAX_WATERMARK], at[due < MAX_WATERMARK]
            kind = EVENT_EXPIRIES if self.ttl.event_time else PROCESSING_EXPIRIES
            yield _timers(kind, "", due, hashes, np.full(len(at), self.namespace), at)

    def _lists(self, entries: pa.Array, lengths: np.ndarray) -> pa.Array:
        type_ = self.type
        if self.shape == "map":
            type_ = log_type(type_)
            columns = [pa.repeat(False, len(entries)), entries.field("key"), entries.field("value")]
            entries = pa.StructArray.from_arrays(columns, fields=list(type_.value_type))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, type=type_)


def _entries(contents: pa.Array) -> pa.Array:
    """Return the elements of lists, or the entries of maps, which Arrow does not flatten."""
    if not pa.types.is_map(contents.type):
        return contents.flatten()
    return pa.StructArray.from_arrays([contents.keys, contents.items], ["key", "value"])


@dataclass(frozen=True)
class TimerTable:
    """Timers in the columns `TIMER`; `names` are those of the heaps of processing time and of event time."""

    names: tuple[str, str]

    def __call__(self, rows: pa.RecordBatch, hashes: np.ndarray) -> Iterator[Entries]:
        """Yield the timers of each time domain."""
        times, event_time = (rows.column(name).to_numpy(zero_copy_only=False) for name in TIMER[:2])
        encoded = rows.column(TIMER[2]).dictionary_encode(null_encoding="encode")
        names = encoded.dictionary.to_pylist()
        number = encoded.indices.to_numpy()
        namespaces = np.array([0 if name is None else namespace_of(name) for name in names], np.int64)[number]
        named = np.flatnonzero(namespaces)
        if len(named):
            columns = [
                pa.array(namespaces[named]),
                rows.column(TIMER[2]).take(pa.array(named)).cast(pa.string()),
            ]
            chunk = pa.RecordBatch.from_arrays(columns, schema=TimerNames().part().schema)
            yield Entries(TIMER_NAMES, "", chunk, None, named)
        for kind, name, mine in zip(
            (PROCESSING_TIMERS, EVENT_TIMERS), self.names, (~event_time, event_time), strict=True
        ):
            at = np.flatnonzero(mine)
            yield _timers(kind, name, times[at], hashes, namespaces[at], at)


def _timers(
    kind: int, name: str, times: np.ndarray, hashes: np.ndarray, namespaces: np.ndarray, at: np.ndarray
) -> Entries:
    ops = np.full(len(at), PUSH, np.int8)
    columns = [pa.array(column) for column in (ops, times, hashes[at], namespaces)]
    return Entries(kind, name, pa.RecordBatch.from_arrays(columns, schema=TIMERS), 2, at)


@dataclass(frozen=True)
class RowTable:
    """Rows that wait for the watermark; `schema` is that of their chunks."""

    schema: pa.Schema
    event_time: str
    watermark: int

    def __call__(self, rows: pa.RecordBatch, hashes: np.ndarray) -> Iterator[Entries]:
        """Yield the rows."""
        columns = [narrow_column(rows.column(field.name), field.type) for field in list(self.schema)[:-2]]
        time = rows.column(self.event_time)
        timestamps = event_millis(time)
        early = int(np.count_nonzero(timestamps <= self.watermark))
        if early or time.null_count:
            raise ValueError(
                f"buffered_rows must have event times after the watermark, {self.watermark}, got "
                f"{early + time.null_count} of {rows.num_rows} rows without; filter them out, or pass them "
                "as input"
            )
        columns += [pa.array(hashes), pa.array(timestamps)]
        chunk = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        yield Entries(ROWS, "", chunk, len(self.schema) - 2, np.arange(len(hashes)))


@dataclass(frozen=True)
class TableSplitter:
    """Splits a table by key groups (``mapInArrow``) into rows of `INITIAL`."""

    max_parallelism: int | None
    key: list[pa.Field]  # under their names in the input
    table: Table

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Split the rows of a task."""
        freeze_modules()
        placement = Placement.running(self.max_parallelism)
        held: list[pa.RecordBatch] = []
        for batch in batches:
            held.append(batch)
            if sum(map(len, held)) >= _ROWS or sum(each.nbytes for each in held) >= _BYTES:
                yield self._split(concatenated(held), placement)
                held = []
        if any(map(len, held)):
            yield self._split(concatenated(held), placement)

    def _split(self, rows: pa.RecordBatch, placement: Placement) -> pa.RecordBatch:
        hashes = key_hashes(rows, self.key[0].name)
        keys = [narrow_column(rows.column(field.name), field.type) for field in self.key]
        found: dict[int, list[tuple[int, str, pa.RecordBatch]]] = {}
        for kind, name, chunk, id_column, at in self.table(rows, hashes):
            if not len(at):
                continue
            of_key_groups = np.mod(hashes[at], placement.max_parallelism)
            order = np.argsort(of_key_groups, kind="stable")
            columns = [column.take(pa.array(at[order])) for column in keys]
            whole = chunk.take(pa.array(order))
            if id_column is not None:
                whole = keyed(whole, id_column, columns, self.key)
            key_groups, starts = np.unique(of_key_groups[order], return_index=True)
            stops = [*starts[1:].tolist(), len(order)]
            for key_group, start, stop in zip(key_groups.tolist(), starts.tolist(), stops, strict=True):
                mine = pieces(whole.slice(start, stop - start), whole.schema)
                found.setdefault(key_group, []).extend((kind, name, piece) for piece in mine)
        return _initial(placement, {key_group: contents_of(each) for key_group, each in found.items()})


@dataclass(frozen=True)
class ClockSplitter:
    """Gives all key groups a clock (``mapInArrow``); its input has one row."""

    max_parallelism: int | None
    clock: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each key group."""
        placement = Placement.running(self.max_parallelism)
        for batch in batches:
            if len(batch):
                every = range(placement.max_parallelism)
                yield _initial(placement, dict.fromkeys(every, None), self.clock)


def _initial(
    placement: Placement, contents: dict[int, bytes] | dict[int, None], clock: bytes | None = None
) -> pa.RecordBatch:
    rows = [
        {
            "label": label_of(key_group % placement.partitions),
            "key_group": key_group,
            "clock": clock,
            "contents": each,
        }
        for key_group, each in sorted(contents.items())
    ]
    return pa.RecordBatch.from_pylist(rows, INITIAL_SCHEMA)
