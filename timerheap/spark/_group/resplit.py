"""Splits the contents of key groups by another number of key groups, and puts them together again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from timerheap.spark._group.checkpoint import CheckpointedPart
from timerheap.spark._group.chunks import KEYS, USER_STATE, pieces
from timerheap.spark._group.key_group import BROADCAST_STATE, KeyGroup
from timerheap.spark._group.user_states import restored_state

__all__ = ["restore", "split"]

_CONTENTS = pa.schema([("kind", pa.int16()), ("name", pa.string()), ("rows", pa.large_binary())])


def split(group: KeyGroup, max_parallelism: int, first: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield the key groups, of `max_parallelism`, that the keys of a group belong to, with their contents.

    O(size of the group). The group has no windows. Its broadcast states are those of every group: the first
    one yields them for all.
    """
    ids = group.keys.snapshot().column("id").to_numpy()
    key_groups = np.mod(group.keys.hashes(ids), max_parallelism)
    order = np.argsort(ids)
    parts: list[tuple[CheckpointedPart, pa.RecordBatch, np.ndarray | None]] = []
    targets = np.unique(key_groups)
    for part in group.parts():
        rows = part.snapshot()
        if part.name.startswith(BROADCAST_STATE):
            if first:
                parts.append((part, rows, None))
                targets = np.arange(max_parallelism)
            continue
        places = np.searchsorted(ids, rows.column(part.id_column).to_numpy(), sorter=order)
        parts.append((part, rows, key_groups[order[places]]))
    for key_group in targets.tolist():
        found: list[tuple[int, str, bytes]] = []
        for part, rows, of_row in parts:
            mine = rows if of_row is None else rows.take(pa.array(np.flatnonzero(of_row == key_group)))
            found += [(part.kind, part.name, _stream(piece)) for piece in pieces(mine, part.schema)]
        columns = zip(zip(*found, strict=True), _CONTENTS.types, strict=True)
        arrays = [pa.array(column, type_) for column, type_ in columns]
        yield key_group, _stream(pa.RecordBatch.from_arrays(arrays, schema=_CONTENTS))


def restore(group: KeyGroup, contents: bytes) -> None:
    """Add what `split` yielded to a group; raise a ValueError if it does not fit the group's query.

    `KeyGroup.loaded` finishes it.
    """
    columns = (column.to_pylist() for column in _batch(contents).columns)
    for kind, name, data in zip(*columns, strict=True):
        rows = _batch(data)
        if kind < USER_STATE:
            _expect_other_keys(group, kind, rows)
            group.part(kind, name, rows.schema).replay(rows)
            continue
        state = group.states.get(name)
        if state is None:
            free = max((one.kind + 1 for one in group.states.values()), default=USER_STATE)
            state = group.states[name] = restored_state(free, name, rows.schema, group.memory)
        state.replay(rows)


def _expect_other_keys(group: KeyGroup, kind: int, rows: pa.RecordBatch) -> None:
    if kind == KEYS and group.keys.table.find(rows.column("id").to_numpy()).any():
        raise ValueError(
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
