"""Rows packed into one blob per shuffle partition, and taken apart again by key group.

A stateful operator in Python has a cost per group and per row of its input, so it is fast with few, large
rows: Spark sees one group per partition. The stage has no state between micro-batches. Beside the rows it
sends what it has observed of their event times.

What a task sends depends on its rows alone. After a lost executor tasks are run again, and Spark ends a query
whose tasks then send anything else, since other tasks may have used what the first attempt sent.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from timerheap.spark._arrow import KeyedRows, event_millis, narrow
from timerheap.spark._columns import AHEAD, CHANNEL, INPUT, KEPT, SEEN, shown_name
from timerheap.spark._exchange.codec import (
    blobs_of,
    counted,
    frames_of,
    key_hashes,
    merged,
    observed,
    rows_of,
)
from timerheap.spark._exchange.placement import Placement, labels_of
from timerheap.spark._query import NullTime, Query, TimeColumn, nullable_arrow_schema

BROADCAST = -(1 << 62)
"""The first position of rows that go to all partitions, all of which are below `OBSERVATION`."""

OBSERVATION = -1
"""The position of event times, a table of `OBSERVED`."""

_SCHEMA = pa.schema([("label", pa.int32()), ("sequence", pa.int64()), ("blob", pa.binary())])
_ROWS = 1 << 19
_BYTES = 64 << 20
_frozen = 0  # 1: by a task that packs rows; 2: by an operator, which imports more


class Reducer(Protocol):
    """Aggregates rows into fewer."""

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add rows, with the hashes of their keys."""

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, and return those they have become, with `HASH`."""


@dataclass(frozen=True)
class Packer:
    """The function of the stage (``mapInArrow``)."""

    key: str  # the key column, if the rows come without `HASH`
    event_time: str | None
    max_parallelism: int | None  # None: the default for the number of partitions
    times: tuple[TimeColumn, ...] = ()  # what `event_time` is called, for each input; without, it may be null
    null_time: NullTime = "error"
    announces: bool = False  # whether the first micro-batch calls every partition even without rows
    reduce: Callable[[], Reducer] | None = None  # its rows are sent instead

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        task = TaskContext.get()
        sequence = (task.partitionId() if task is not None else 0) << 32
        placement = Placement.running(self.max_parallelism)
        seen: list[pa.Table] = []
        reducer = None if self.reduce is None else self.reduce()
        held: list[pa.RecordBatch] = []
        rows = nbytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if self.times and batch.column(self.event_time).null_count:
                seen.append(counted("null_time_rows", self.untimed(batch)))
                batch = batch.filter(batch.column(self.event_time).is_valid())
            seen.append(self._observe(batch))
            names = batch.schema.names
            if AHEAD in names and (ahead := batch.column(AHEAD).true_count):
                seen.append(counted("ahead_rows", ahead))
            if KEPT in names:
                batch = batch.filter(batch.column(KEPT))
            if batch.num_rows:
                batch = batch.drop_columns([name for name in (CHANNEL, AHEAD, KEPT, SEEN) if name in names])
                rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
                if reducer is None:
                    held.append(batch)
                else:
                    reducer.add(batch, key_hashes(batch, self.key))
            if rows >= _ROWS or nbytes >= _BYTES:
                yield self._split(held if reducer is None else [reducer.drain()], sequence, placement)
                held, sequence, rows, nbytes = [], sequence + 1, 0, 0
        if rows:
            yield self._split(held if reducer is None else [reducer.drain()], sequence, placement)
        begins = task is not None and task.getLocalProperty("streaming.sql.batchId") == "0"
        if seen or (self.announces and begins):
            everywhere = np.arange(placement.used)
            yield packed_copies(everywhere, OBSERVATION, merged(seen))

    def untimed(self, batch: pa.RecordBatch) -> int:
        """Return the number of rows without an event time, of which there are some, unless it is an error."""
        none = batch.column(self.event_time).is_null()
        if self.null_time == "drop":
            return int(none.true_count)
        first = none.index(True).as_py()
        time = self.times[batch.column(INPUT)[first].as_py() if INPUT in batch.schema.names else 0]
        name = shown_name(time.column)
        where = f"column {name!r}" + ("" if time.df == "df" else f" of {time.df}")
        column = f"{time.df}[{name!r}]" if name == time.column else f"F.expr({name!r})"
        raise ValueError(
            f"{time.argument} must not be null, got {none.true_count} of {batch.num_rows} rows with null in "
            f"{where}; filter them out ({time.df}.where({column}.isNotNull()), or WHERE in a query), fill in "
            'a value, or pass EventTime(column, null="drop") to a function that takes it'
        )

    def _observe(self, batch: pa.RecordBatch) -> pa.Table:
        names, time = batch.schema.names, self.event_time
        if SEEN in names:
            time, batch = SEEN, batch.filter(batch.column(SEEN).is_valid())
        return observed(
            batch.num_rows,
            None if time is None else event_millis(batch.column(time)),
            ~batch.column(AHEAD).to_numpy(zero_copy_only=False) if AHEAD in names else None,
            batch.column(INPUT).to_numpy() if INPUT in names else None,
            batch.column(CHANNEL) if CHANNEL in names else None,
        )

    def _split(self, batches: list[pa.RecordBatch], sequence: int, placement: Placement) -> pa.RecordBatch:
        hashes = [key_hashes(batch, self.key) for batch in batches]
        present, blobs = frames_of(batches, hashes, placement)
        return _packed(present, sequence, blobs)


@dataclass(frozen=True)
class Broadcaster:
    """The function of the stage that copies rows (``mapInArrow``); its output is `PACKED`."""

    max_parallelism: int | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, once for each partition that has key groups."""
        freeze_modules()
        task = TaskContext.get()
        sequence = BROADCAST + ((task.partitionId() if task is not None else 0) << 32)
        everywhere = np.arange(Placement.running(self.max_parallelism).used)
        for batch in batches:
            if batch.num_rows:
                yield packed_copies(everywhere, sequence, pa.Table.from_batches([batch]))
                sequence += 1


def broadcast_rows(type_: StructType, packed: Iterable[tuple[int, bytes]]) -> pa.Table | None:
    """Return the rows of a type that were packed for a partition, in input order; None if there are none."""
    schema = nullable_arrow_schema(type_)
    blobs = sorted((int(sequence), blob) for sequence, blob in packed if sequence < OBSERVATION)
    if not blobs:
        return None
    return pa.concat_tables([pa.ipc.open_stream(blob).read_all().cast(schema) for _, blob in blobs])


def _packed(partitions: np.ndarray, sequence: int, blobs: pa.Array) -> pa.RecordBatch:
    """Return a row of `PACKED` for each partition; its first key group has its number."""
    columns = [pa.array(labels_of(partitions)), pa.array(np.full(len(partitions), sequence)), blobs]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def packed_copies(partitions: np.ndarray, sequence: int, table: pa.Table) -> pa.RecordBatch:
    """Return a row of `PACKED` for each partition, with a table as an Arrow stream."""
    times = len(partitions)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = np.frombuffer(sink.getvalue(), np.uint8)
    blobs = blobs_of(np.tile(stream, times), np.arange(1, times + 1) * len(stream))
    return _packed(partitions, sequence, blobs)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of one frame."""

    rows: KeyedRows
    key_groups: list[int]  # in the order of their rows
    counts: list[int]  # the number of rows of each


def unpack(query: Query, packed: Iterable[tuple[int, bytes]]) -> tuple[list[Part], pa.Table]:
    """Return a partition's rows in input order, in parts, and the event times that tasks have observed."""
    parts, seen = [], []
    for sequence, blob in sorted(packed, key=lambda pair: int(pair[0])):
        if sequence == OBSERVATION:
            seen.append(pa.ipc.open_stream(blob).read_all())
        elif sequence > OBSERVATION:
            batch, key_groups, counts = rows_of(blob)
            parts.append(Part(_fitted(query, batch), key_groups.tolist(), counts.tolist()))
    return parts, merged(seen)


def _fitted(query: Query, batch: pa.RecordBatch) -> KeyedRows:
    rows = narrow(batch.select(query.schema.names), query.schema)
    timestamps = np.zeros(batch.num_rows, np.int64)
    if query.event_time in rows.schema.names:
        timestamps = event_millis(rows.column(query.event_time))
    return KeyedRows(rows, key_hashes(batch, query.key[0]), timestamps)


def pairs_of(packed: pa.Table | pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Return the sequences and blobs of rows of `PACKED`."""
    return zip(*(packed.column(name).to_pylist() for name in ("sequence", "blob")), strict=True)


def unpacked_rows(query: Query, packed: pa.Table) -> KeyedRows | None:
    """Return the rows of a partition of a batch DataFrame, None if it has none."""
    parts, _ = unpack(query, pairs_of(packed))
    return KeyedRows.concatenated([part.rows for part in parts]) if parts else None


def by_key_group(parts: list[Part]) -> dict[int, KeyedRows]:
    """Return the rows of each key group that has some."""
    found: dict[int, list[KeyedRows]] = {}
    for part in parts:
        start = 0
        for key_group, count in zip(part.key_groups, part.counts, strict=True):
            found.setdefault(key_group, []).append(part.rows.slice(start, start + count))
            start += count
    return {key_group: KeyedRows.concatenated(slices) for key_group, slices in found.items()}


def freeze_modules(load: Callable[[], object] | None = None) -> None:
    """Exempt the modules of the worker from garbage collection; call it before a task makes its objects."""
    # Spark collects garbage after each task. With pandas and PyArrow imported, a collection visits 90,000
    # objects, and takes several times as long as a task of few rows. The objects of modules live as long as
    # the worker anyway. Only the first task of a worker does this, and the first with an operator, since
    # later ones find live state as well. `load` imports the modules of an operator. What it returns is
    # dropped before: a user's function that is exempt and refers to itself would live as long as the worker,
    # with all that it has made.
    global _frozen
    level = 1 if load is None else 2
    if _frozen < level and TaskContext.get() is not None:
        if load is not None:
            gc.disable()  # so that all it makes is in the youngest generation, which is quickly searched
            try:
                load()
            finally:
                gc.enable()
            gc.collect(0)
        gc.freeze()
        _frozen = level
