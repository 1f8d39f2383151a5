"""State as tables: key groups read as tables, and tables split by key groups, in tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._expiry import Expiry
from timerheap._native._core import from_text
from timerheap.errors import ArgumentValueError, DamagedCheckpointError
from timerheap.spark._arrow import (
    concatenated,
    event_millis,
    fitting,
    narrow,
    narrow_column,
    wide_rows,
    widen,
)
from timerheap.spark._columns import KEY_HASH, SESSION_START, SLICE_END, TIME, TIMER, VALUE
from timerheap.spark._exchange.codec import key_hashes
from timerheap.spark._exchange.placement import Placement, key_group_of, label_of
from timerheap.spark._frozen_modules import freeze_modules
from timerheap.spark._group.growing_state import log_type
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.key_table import shown_keys
from timerheap.spark._group.split import contents_of, keyed, named_timers, split
from timerheap.spark._group.state_names import BROADCAST_ID, BROADCAST_STATE
from timerheap.spark._group.stored.chunk_store import ChunkReader, Chunks
from timerheap.spark._group.stored.chunks import pieces
from timerheap.spark._group.stored.kinds import (
    EVENT_EXPIRIES,
    EVENT_TIMERS,
    MANIFEST,
    PROCESSING_EXPIRIES,
    PROCESSING_TIMERS,
    ROWS,
    USER_STATE,
)
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored_watermark import read_watermark
from timerheap.spark._group.timers import PUSH, JournalledTimers, TimerNames
from timerheap.spark._group.timers import SCHEMA as TIMERS
from timerheap.spark._rule_timers import RULE_TIMERS, RuleTimers, of_rule
from timerheap.spark._state.stored_group import StoredGroup, StoredOwn
from timerheap.spark._stored_windows import UNSHOWN, WINDOWS, latest_versions, with_version
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

INITIAL = "label int, key_group int, watermark binary, contents binary"
"""What one key group of the checkpoint gives to one of the new query; the watermark only once for each.

The label is that of the partition that has the key group; see `timerheap.spark._columns.PACKED`.
"""

INITIAL_SCHEMA = pa.schema(
    [("label", pa.int32()), ("key_group", pa.int32()), ("watermark", pa.binary()), ("contents", pa.binary())]
)

_Texts = dict[tuple[int, int], str]  # chunks as they are stored, by kind and id


def chunks_of_group(texts: _Texts) -> tuple[Chunks, Manifest]:
    """Return chunks, with the manifest among them; raise DamagedCheckpointError if there is none."""
    chunks = Chunks({at: from_text(text) for at, text in texts.items()})
    manifest = chunks.read_manifest()
    if manifest is None:
        raise DamagedCheckpointError("the checkpoint lacks the manifest of a key group")
    return chunks, manifest


@dataclass(frozen=True)
class Splitter:
    """Splits one key group of a checkpoint (``applyInArrow``) into rows of `INITIAL`, for a new query.

    Its input has the columns label, kind, id and text, and a row for each chunk, also for the manifest.

    max_parallelism: of the new query
    load: makes the key group of what is stored, as the new query has it
    """

    max_parallelism: int | None
    load: Callable[[ChunkReader, Manifest], KeyGroup]

    def __call__(self, values: pa.Table) -> pa.Table:
        placement = Placement.running(self.max_parallelism)
        columns = (values.column(name).to_pylist() for name in ("kind", "id", "text"))
        store, manifest = chunks_of_group(
            {(kind, id_): text for kind, id_, text in zip(*columns, strict=True)}
        )
        group = self.load(store, manifest)
        clocked = key_group_of(values.column("label")[0].as_py()) == 0  # its watermark is that of all groups
        found = dict(split(group, placement.max_parallelism, clocked))
        watermark_state = read_watermark(manifest, store) if clocked else None
        key_groups = range(placement.max_parallelism) if clocked else found
        contents = {key_group: found.get(key_group) for key_group in key_groups}
        return pa.Table.from_batches([_initial(placement, contents, watermark_state)])


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
            group = StoredGroup(*chunks_of_group(texts), self.kinds)
        except ValueError as e:
            raise DamagedCheckpointError(
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
    for event_time, rule, timers, found in _timers_of_all(group):
        heap = timers.heap
        every = heap.timestamps, heap.key_hashes, heap.namespaces
        for start in range(0, len(heap), _STEP):
            timestamps, ids, namespaces = (column[start : start + _STEP] for column in every)
            n = len(timestamps)
            names = pa.array(found.names(namespaces), pa.string())
            if rule is not None:
                names = pc.binary_join_element_wise(of_rule(rule), names.fill_null(""), "")
            yield [
                *_keys(group, ids),
                readable(timestamps),
                pa.array(timestamps),
                pa.repeat(EVENT_TIME if event_time else PROCESSING_TIME, n),
                names,
                _numbers(key_group, n),
            ]


def _timers_of_all(group: StoredGroup) -> Iterator[tuple[bool, str | None, JournalledTimers, TimerNames]]:
    """Yield whether timers are of event time, their rule or None, they themselves and their names."""
    yield True, None, group.event_timers, group.timer_names
    yield False, None, group.processing_timers, group.timer_names
    if RULE_TIMERS in group.stored_own:
        of_rules = RuleTimers()
        for chunk in group.stored_own[RULE_TIMERS].chunks:
            of_rules.replay(chunk)
        for rule, event_time, found in of_rules.each():
            yield event_time, rule, found, of_rules.names


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
        times = readable(waiting.timestamps)
        exact = waiting.rows.schema.get_field_index(TIME)
        if exact >= 0 and pa.types.is_timestamp(waiting.rows.schema.field(exact).type):
            times = waiting.rows.column(exact).cast(TIMESTAMP)
        yield [*columns, times, _numbers(key_group, len(waiting))]


def windows(marked: bool, group: StoredGroup, key_group: int) -> Columns:
    """Yield the windows: keys, the start of a session, the end, the accumulators, key group.

    marked: whether a column before the key group says if windows show the rows of an accumulator
    """
    for kind in (WINDOWS, UNSHOWN):
        if kind not in group.stored_own:
            continue
        rows = _accumulators(group.stored_own[kind])
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
            *([pa.repeat(kind == WINDOWS, len(ids))] if marked else []),
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
    heaps = [(event_time, found.heap.timestamps) for event_time, _, found, _ in _timers_of_all(group)]
    times = [np.concatenate([each for domain, each in heaps if domain == wanted]) for wanted in (True, False)]
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
    ttl: Expiry | None
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
            entries = _entries_of(contents)
            if self.shape != "map" and entries.null_count:
                raise ArgumentValueError(
                    f"states[{self.name!r}] must have no null among the elements of a list, got "
                    f"{entries.null_count}; filter them out"
                )
            if self.shape == "multiset" and entries.field("weight").null_count:
                raise ArgumentValueError(
                    f"states[{self.name!r}] must have a weight for each value, got "
                    f"{entries.field('weight').null_count} without; fill in how often each is there"
                )
            columns += [pa.repeat(True, len(at)), self._lists(entries, lengths)]
        else:
            columns.append(contents)
        yield Entries(USER_STATE, self.name, pa.RecordBatch.from_arrays(columns, schema=self.schema), 0, at)
        if self.ttl is not None and len(at):
            kept = entries.field("value") if self.shape == "map" else entries
            times = kept.field(self.ttl.field)
            if times.null_count:
                raise ArgumentValueError(
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


def _entries_of(contents: pa.Array) -> pa.Array:
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


def rule_timer_entries(rows: pa.RecordBatch, hashes: np.ndarray) -> Iterator[Entries]:
    """Yield the timers of rules in the columns `TIMER`, whose names begin with that of their rule."""
    times, event_time, names = (rows.column(name) for name in TIMER)
    known = pc.split_pattern(names.cast(pa.string()), of_rule(""), max_splits=1)
    of_none = len(rows) - int(np.count_nonzero(known.value_lengths().fill_null(0).to_numpy() == 2))
    if of_none:
        raise ArgumentValueError(
            "timers must have a name such as 'spikes/due', with that of their rule, or 'spikes/' without one "
            f"of their own, got {of_none} of {len(rows)} timers without; rename them"
        )
    rules, own = (pc.list_element(known, at) for at in range(2))
    columns = {
        "rule": rules,
        "event_time": event_time,
        "op": pa.repeat(pa.scalar(PUSH, pa.int8()), len(rows)),
        "timestamp": times,
        "key_hash": pa.array(hashes),
        "name": pc.if_else(pc.equal(own, ""), None, own),
    }
    schema = RuleTimers.schema
    chunk = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    yield Entries(RULE_TIMERS, RuleTimers.name, chunk, RuleTimers.id_column, np.arange(len(rows)))


@dataclass(frozen=True)
class PartTable:
    """A part of a key group whose chunks, of this kind, name and schema, have a row for each entry."""

    kind: int
    name: str
    schema: pa.Schema
    id_column: int

    def __call__(self, rows: pa.RecordBatch, hashes: np.ndarray) -> Iterator[Entries]:
        columns = [
            pa.array(hashes)
            if number == self.id_column
            else narrow_column(rows.column(field.name), field.type)
            for number, field in enumerate(self.schema)
        ]
        chunk = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        yield Entries(self.kind, self.name, chunk, self.id_column, np.arange(len(hashes)))


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
            raise ArgumentValueError(
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
class BroadcastSplitter:
    """Gives all key groups the contents of a broadcast state (``mapInArrow``); its input is one partition."""

    max_parallelism: int | None
    table: ContentsTable

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        placement = Placement.running(self.max_parallelism)
        held = [batch for batch in batches if len(batch)]
        if not held:
            return
        rows = concatenated(held)
        distinct = {repr(sorted(value or (), key=repr)) for value in rows.column(VALUE).to_pylist()}
        if len(distinct) > 1:
            raise ArgumentValueError(
                f"states[{self.table.name!r}] must have the same value in each row, since it is that of all "
                f"key groups, got {len(distinct)} different ones; keep one row"
            )
        found = self.table(rows.slice(0, 1), np.array([BROADCAST_ID]))
        data = contents_of([(kind, name, chunk) for kind, name, chunk, _, at in found if len(at)])
        yield _initial(placement, dict.fromkeys(range(placement.max_parallelism), data))


@dataclass(frozen=True)
class WatermarkSplitter:
    """Gives all key groups a watermark (``mapInArrow``); its input has one row."""

    max_parallelism: int | None
    watermark_state: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        placement = Placement.running(self.max_parallelism)
        for batch in batches:
            if len(batch):
                every = range(placement.max_parallelism)
                yield _initial(placement, dict.fromkeys(every, None), self.watermark_state)


def _initial(
    placement: Placement, contents: Mapping[int, bytes | None], watermark_state: bytes | None = None
) -> pa.RecordBatch:
    rows = [
        {
            "label": label_of(key_group % placement.partitions),
            "key_group": key_group,
            "watermark": watermark_state,
            "contents": each,
        }
        for key_group, each in sorted(contents.items())
    ]
    return pa.RecordBatch.from_pylist(rows, INITIAL_SCHEMA)
