"""State as tables: key groups read as tables, and tables split by key groups, in tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerheap._native._core import from_text
from timerheap.spark._arrow import (
    concatenated,
    event_millis,
    fitting,
    narrow,
    narrow_column,
    wide_rows,
    widen,
)
from timerheap.spark._columns import KEY_HASH, SESSION_START, SLICE_END, TIMER, VALUE
from timerheap.spark._exchange.codec import key_hashes
from timerheap.spark._exchange.packer import freeze_modules
from timerheap.spark._exchange.placement import Placement, key_group_of, label_of
from timerheap.spark._group.checkpoint import (
    EVENT_EXPIRIES,
    EVENT_TIMERS,
    MANIFEST,
    PROCESSING_EXPIRIES,
    PROCESSING_TIMERS,
    ROWS,
    USER_STATE,
    Chunks,
    Manifest,
    pieces,
    read_clock,
)
from timerheap.spark._group.growing_state import log_type
from timerheap.spark._group.key_group import BROADCAST_STATE, StoredGroup, StoredOwn, load_group
from timerheap.spark._group.split import contents_of, keyed, named_timers, split
from timerheap.spark._group.tables import shown_keys
from timerheap.spark._group.timers import PUSH
from timerheap.spark._group.timers import SCHEMA as TIMERS
from timerheap.spark._query import Query
from timerheap.spark._stored_windows import WINDOWS, latest_versions, with_version
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

INITIAL = "label int, key_group int, clock binary, contents binary"
"""What one key group of the checkpoint gives to one of the new query; the clock only once for each.

The label is that of the partition that has the key group; see `timerheap.spark._columns.PACKED`.
"""

INITIAL_SCHEMA = pa.schema(
    [("label", pa.int32()), ("key_group", pa.int32()), ("clock", pa.binary()), ("contents", pa.binary())]
)

_Texts = dict[tuple[int, int], str]  # chunks as they are stored, by kind and id


def stored_chunks(texts: _Texts) -> tuple[Chunks, Manifest]:
    """Return chunks, with the manifest among them; raise ValueError if there is none."""
    chunks = Chunks({at: from_text(text) for at, text in texts.items()})
    manifest = chunks.read_manifest()
    if manifest is None:
        raise ValueError("the checkpoint lacks the manifest of a key group")
    return chunks, manifest


@dataclass(frozen=True)
class Splitter:
    """Splits one key group of a checkpoint (``applyInArrow``) into rows of `INITIAL`, for a new query.

    Its input has the columns label, kind, id and text, and a row for each chunk, also for the manifest.
    """

    query: Query

    def __call__(self, values: pa.Table) -> pa.Table:
        placement = Placement.running(self.query.max_parallelism)
        columns = (values.column(name).to_pylist() for name in ("kind", "id", "text"))
        store, manifest = stored_chunks({(kind, id_): text for kind, id_, text in zip(*columns, strict=True)})
        group, _ = load_group(store, manifest, self.query.layout)
        clocked = key_group_of(values.column("label")[0].as_py()) == 0  # its clock is that of all groups
        found = dict(split(group, placement.max_parallelism, clocked))
        clock = read_clock(manifest, store) if clocked else None
        key_groups = range(placement.max_parallelism) if clocked else found
        contents = {key_group: found.get(key_group) for key_group in key_groups}
        return pa.Table.from_batches([_initial(placement, contents, clock)])


TIMESTAMP = pa.timestamp("us", "UTC")
EVENT_TIME, PROCESSING_TIME = "event_time", "processing_time"
"""The time domains of timers."""

_STEP = 1 << 17  # rows at once
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999

Columns = Iterator[list[pa.Array]]
Table = Callable[[StoredGroup, int], Columns]
"""Yields parts of a table for a key group, given its number; the columns may have 64-bit offsets."""


def readable(millis: np.ndarray, type_: pa.DataType = TIMESTAMP) -> pa.Array:
    """Return epoch ms as timestamps, null outside the years 1 to 9999, which Python cannot represent."""
    outside = (millis < _FIRST) | (millis > _LAST)
    return pa.array(np.where(outside, 0, millis) * 1000, mask=outside).cast(type_)


@dataclass(frozen=True)
class GroupReader:
    """Reads the key groups of a partition of a checkpoint (``mapInArrow``).

    The input has the columns label, kind, id and text, and a row for each chunk. A key group is read as soon
    as its chunks are there, so that only one at a time is in memory if Spark returns them group by group.
    """

    table: Table
    kinds: Collection[int]  # the parts that the table needs
    schema: pa.Schema

    @property
    def chunks(self) -> list[int]:
        """The kinds of the chunks that the input must have."""
        return [MANIFEST, *self.kinds]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun: dict[int, _Texts] = {}
        for batch in batches:
            for label, kind, id_, text in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                begun.setdefault(label, {})[kind, id_] = text
            for label in [label for label, texts in begun.items() if self._has_all(texts)]:
                yield from self._read(label, begun.pop(label))
        for label, texts in begun.items():
            yield from self._read(label, texts)

    def _has_all(self, texts: _Texts) -> bool:
        if (MANIFEST, 0) not in texts:
            return False
        runs = Manifest.from_bytes(from_text(texts[MANIFEST, 0])).runs
        wanted = [run for run in runs if run.kind in self.kinds]
        return all((run.kind, id_) in texts for run in wanted for id_ in range(run.count + 1))

    def _read(self, label: int, texts: _Texts) -> Iterator[pa.RecordBatch]:
        key_group = key_group_of(label)
        try:
            group = StoredGroup(*stored_chunks(texts), self.kinds)
        except ValueError as e:
            raise ValueError(
                f"checkpoint must be whole, got one whose key group {key_group} is damaged: {e}; "
                "pass the batch_id of an older micro-batch"
            ) from e
        wide = wide_rows(self.schema)
        for columns in self.table(group, key_group):
            rows = widen(pa.RecordBatch.from_arrays(columns, names=self.schema.names), wide)
            for start, stop in fitting(rows):
                yield narrow(rows.slice(start, stop - start), self.schema)


def timers(group: StoredGroup, key_group: int) -> Columns:
    """Yield the timers: keys, timestamp, epoch ms, time domain, name, key group."""
    for heap, domain in (
        (group.event_timers.heap, EVENT_TIME),
        (group.processing_timers.heap, PROCESSING_TIME),
    ):
        every = heap.timestamps, heap.key_hashes, heap.namespaces
        for start in range(0, len(heap), _STEP):
            timestamps, ids, namespaces = (column[start : start + _STEP] for column in every)
            n = len(timestamps)
            yield [
                *_keys(group, ids),
                readable(timestamps),
                pa.array(timestamps),
                pa.repeat(domain, n),
                pa.array(group.timer_names.names(namespaces), pa.string()),
                _numbers(key_group, n),
            ]


def state(name: str, keys: Sequence[pa.DataType], group: StoredGroup, key_group: int) -> Columns:
    """Yield the contents of a state: keys, of these types and null for broadcast state, value, key group."""
    table = group.states.get(name)
    if table is None:
        return
    ids = table.ids()
    for start in range(0, len(ids), _STEP):
        step = ids[start : start + _STEP]
        shared = name.startswith(BROADCAST_STATE)
        of_keys = [pa.nulls(len(step), type_) for type_ in keys] if shared else _keys(group, step)
        yield [*of_keys, table.get_many(step), _numbers(key_group, len(step))]


def buffered_rows(names: list[str], group: StoredGroup, key_group: int) -> Columns:
    """Yield the rows that wait for the watermark: their columns `names`, event time, key group."""
    if len(group.rows):
        waiting = group.rows.waiting()
        columns = [waiting.rows.column(name) for name in names]
        yield [*columns, readable(waiting.timestamps), _numbers(key_group, len(waiting))]


def windows(group: StoredGroup, key_group: int) -> Columns:
    """Yield the windows: keys, the start of a session, the end, the accumulators, key group."""
    if WINDOWS not in group.stored_own:
        return
    rows = _accumulators(group.stored_own[WINDOWS])
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    ids, end = (columns.pop(name).to_numpy() for name in (KEY_HASH, SLICE_END))
    bounds = [end]
    if SESSION_START in columns:
        bounds.insert(0, columns.pop(SESSION_START).to_numpy())
    local = pa.timestamp("us")
    yield [
        *_keys(group, ids),
        *(readable(bound, local) for bound in bounds),
        *columns.values(),
        _numbers(key_group, len(ids)),
    ]


def _accumulators(stored: StoredOwn) -> pa.RecordBatch:
    """Return a row for each accumulator of windows, with 64-bit offsets."""
    if not stored.chunks:
        return widen(pa.RecordBatch.from_pylist([], stored.schema))
    sessions = SESSION_START in stored.schema.names
    group, version = (KEY_HASH, SESSION_START) if sessions else (SLICE_END, KEY_HASH)
    return with_version(latest_versions(stored.chunks, group, version), version)


def groups(group: StoredGroup, key_group: int) -> Columns:
    """Yield a row for the group: see `timerheap.spark.CheckpointState.groups`."""
    manifest = group.manifest
    times = [timers.heap.timestamps for timers in (group.event_timers, group.processing_timers)]
    never = MAX_WATERMARK
    sizes = {name: len(state) for name, state in sorted(group.states.items())}
    yield [
        _numbers(key_group, 1),
        _counted(len(group.keys)),
        *(_counted(len(each)) for each in times),
        *(readable(each.min(initial=never, keepdims=True)) for each in times),
        _counted(len(group.rows)),
        _counted(_accumulators(group.stored_own[WINDOWS]).num_rows if WINDOWS in group.stored_own else 0),
        pa.array([list(sizes.items())], pa.map_(pa.string(), pa.int64())),
        _counted(manifest.late_rows),
        _counted(sum(run.nbytes for run in manifest.runs)),
        readable(np.array([manifest.watermark if manifest.watermark > MIN_WATERMARK else never])),
    ]


def _keys(group: StoredGroup, ids: np.ndarray) -> list[pa.Array]:
    keys = group.keys.keys(ids)
    return [keys.column(number) for number in shown_keys(group.keys.schema)]


def _numbers(key_group: int, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(key_group, pa.int32()), n)


def _counted(count: int) -> pa.Array:
    return pa.array([count], pa.int64())


_ROWS, _BYTES = 1 << 18, 64 << 20  # of a table at once


class Entries(NamedTuple):
    """Rows of chunks, in which the hashes of the keys stand for their ids, and the rows they were made of."""

    kind: int
    name: str
    chunk: pa.RecordBatch
    id_column: int | None  # None for rows that are of no key
    at: np.ndarray


Splits = Callable[[pa.RecordBatch, np.ndarray], Iterator[Entries]]
"""Makes rows of chunks from the rows of a table, given the hashes of their keys."""


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
            times = kept.field(self.ttl.field)
            if times.null_count:
                raise ValueError(
                    f"states[{self.name!r}] must have the time {self.ttl.field!r} in each value, epoch ms, "
                    f"got {times.null_count} values with null; fill in a time"
                )
            times = times.to_numpy()
            first = np.minimum.reduceat(times, np.cumsum(lengths) - lengths)
            due = np.minimum(first, MAX_WATERMARK - self.ttl.after) + self.ttl.after
            due, at = due[due < MAX_WATERMARK], at[due < MAX_WATERMARK]
            kind = EVENT_EXPIRIES if self.ttl.event_time else PROCESSING_EXPIRIES
            columns = [np.full(len(at), PUSH, np.int8), due, hashes[at], np.full(len(at), self.namespace)]
            chunk = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=TIMERS)
            yield Entries(kind, "", chunk, 2, at)

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


def timer_entries(rows: pa.RecordBatch, hashes: np.ndarray) -> Iterator[Entries]:
    """Yield the timers in the columns `TIMER`."""
    times, event_time, names = (rows.column(name) for name in TIMER)
    whole = named_timers(times, pa.array(hashes), names.cast(pa.string()))
    event_time = event_time.to_numpy(zero_copy_only=False)
    for kind, mine in ((PROCESSING_TIMERS, ~event_time), (EVENT_TIMERS, event_time)):
        at = np.flatnonzero(mine)
        yield Entries(kind, "", whole.take(pa.array(at)), 1, at)


@dataclass(frozen=True)
class RowTable:
    """Rows that wait for the watermark; `schema` is that of their chunks."""

    schema: pa.Schema
    event_time: str
    watermark: int

    def __call__(self, rows: pa.RecordBatch, hashes: np.ndarray) -> Iterator[Entries]:
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
    table: Splits

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
        placement = Placement.running(self.max_parallelism)
        for batch in batches:
            if len(batch):
                every = range(placement.max_parallelism)
                yield _initial(placement, dict.fromkeys(every, None), self.clock)


def _initial(
    placement: Placement, contents: Mapping[int, bytes | None], clock: bytes | None = None
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
