"""The contents of key groups, split by the key groups of another parallelism, and restored there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import numpy as np
import pyarrow as pa

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import OF_KEY
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.state_names import BROADCAST_STATE
from timerheap.spark._group.stored.chunks import pieces
from timerheap.spark._group.stored.kinds import EVENT_TIMERS, KEYS, PROCESSING_TIMERS, TIMER_NAMES, USER_STATE
from timerheap.spark._group.stored.parts import CheckpointedPart
from timerheap.spark._group.user_states import UserState, restored_state

_CONTENTS = pa.schema([("kind", pa.int16()), ("name", pa.string()), ("rows", pa.large_binary())])
_TIMERS = (EVENT_TIMERS, PROCESSING_TIMERS)
_ID_COLUMN = b"id_column"  # in the metadata of chunks with keys


def named_timers(timestamps: pa.Array, ids: pa.Array, names: pa.Array) -> pa.RecordBatch:
    """Return timers as `restore` reads them: each key group has namespaces of its own for names."""
    return pa.RecordBatch.from_arrays([timestamps, ids, names], names=["timestamp", "key_hash", "name"])


def split(group: KeyGroup, max_parallelism: int, first: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield the key groups, of `max_parallelism`, that the keys of a group belong to, with their contents."""
    # O(size of the group). Its broadcast states are those of every group: the first one yields them for all.
    ids = cast(pa.RecordBatch, group.keys.snapshot()).column("id").to_numpy()
    key_groups = np.mod(group.keys.hashes(ids), max_parallelism)
    order = np.argsort(ids)
    parts: list[tuple[CheckpointedPart, pa.RecordBatch, np.ndarray | None]] = []
    targets = np.unique(key_groups)
    for part in group.parts():
        if part.kind == TIMER_NAMES:  # each timer goes with its name
            continue
        rows = cast(pa.RecordBatch, part.snapshot())  # nothing has settled
        if part.name.startswith(BROADCAST_STATE):
            if first:
                parts.append((part, rows, None))
                targets = np.arange(max_parallelism)
            continue
        places = np.searchsorted(ids, rows.column(part.id_column).to_numpy(), sorter=order)
        if part.kind in _TIMERS:
            names = group.timer_names.names(rows.column(3).to_numpy())
            rows = named_timers(rows.column(1), rows.column(2), pa.array(names, pa.string()))
        parts.append((part, rows, key_groups[order[places]]))
    for key_group in targets.tolist():
        found: list[tuple[int, str, pa.RecordBatch]] = []
        for part, rows, of_row in parts:
            mine = rows if of_row is None else rows.take(pa.array(np.flatnonzero(of_row == key_group)))
            found += [
                (part.kind, part.name, piece)
                for piece in pieces(mine, rows.schema if part.kind in _TIMERS else part.schema)
            ]
        yield key_group, contents_of(found)


def contents_of(parts: Iterable[tuple[int, str, pa.RecordBatch]]) -> bytes:
    """Return what `restore` reads: kinds, names and rows of chunks."""
    rows = [{"kind": kind, "name": name, "rows": _stream(batch)} for kind, name, batch in parts]
    return _stream(pa.RecordBatch.from_pylist(rows, _CONTENTS))


def keyed(
    chunk: pa.RecordBatch, id_column: int, keys: list[pa.Array], fields: list[pa.Field]
) -> pa.RecordBatch:
    """Return rows of a chunk with their keys, given hashes of keys in place of ids; see `restore`."""
    named = [field.with_name(f"{OF_KEY}{number}") for number, field in enumerate(fields)]
    schema = pa.schema([*chunk.schema, *named], metadata={_ID_COLUMN: str(id_column).encode()})
    return pa.RecordBatch.from_arrays([*chunk.columns, *keys], schema=schema)


def _identified(group: KeyGroup, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the chunk that `keyed` was given, with the ids of the keys, which are added to the group."""
    at, own = int(rows.schema.metadata[_ID_COLUMN]), rows.num_columns - len(group.layout.key_fields)
    columns = rows.columns[:own]
    columns[at] = pa.array(group.keys.resolve(columns[at].to_numpy(), rows.columns[own:]))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(rows.schema)[:own]))


def restore(group: KeyGroup, contents: bytes) -> None:
    """Add what `split` yielded to a group; raise an error if it does not fit the group's query.

    The rows of chunks may also be `keyed`: their keys then get ids here. `KeyGroup.loaded` finishes it.
    """
    columns = (column.to_pylist() for column in _batch(contents).columns)
    for kind, name, data in zip(*columns, strict=True):
        rows = _batch(data)
        name = group.layout.rename_state.get(name, name)
        by_key = _ID_COLUMN in (rows.schema.metadata or ())
        if by_key:
            rows = _identified(group, rows)
        if kind in _TIMERS:
            _restore_timers(group, kind, *rows.columns)
            continue
        if kind < USER_STATE:
            _expect_other_keys(group, kind, rows)
            group.part(kind, name, rows.schema).replay(rows)
            continue
        state = group.states.get(name)
        if state is None:
            free = max((one.kind + 1 for one in group.states.values()), default=USER_STATE)
            state = group.states[name] = restored_state(free, name, rows.schema, group.memory)
        if by_key:
            _expect_new(state, rows.column(0).to_numpy())
        state.replay(rows)


def _restore_timers(group: KeyGroup, kind: int, timestamps: pa.Array, ids: pa.Array, names: pa.Array) -> None:
    timers = group.event_timers if kind == EVENT_TIMERS else group.processing_timers
    columns = timestamps.to_numpy(), ids.to_numpy(), group.timer_names.new_many(names)
    twice = ~timers.heap.push_many(*columns) & np.asarray(names.is_valid())
    if twice.any():
        raise ArgumentValueError(
            "timers must have one row for each key, time_domain and name, got more for the name "
            f"{names[int(twice.argmax())].as_py()!r}; keep one of them"
        )


def _expect_new(state: UserState, ids: np.ndarray) -> None:
    twice = len(ids) - len(np.unique(ids)) + int(np.count_nonzero(np.isin(ids, state.ids())))
    if twice:
        raise ArgumentValueError(
            f"states[{state.name!r}] must have one row for each key, got more for {twice}; aggregate them by "
            "key"
        )


def _expect_other_keys(group: KeyGroup, kind: int, rows: pa.RecordBatch) -> None:
    if kind == KEYS and group.keys.table.find(rows.column("id").to_numpy()).any():
        raise ArgumentValueError(
            "initial_state must have key groups whose keys have different ids, but the hashes of two keys "
            "collide; pass the max_parallelism of the checkpoint"
        )


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _batch(data: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(data).read_next_batch()
