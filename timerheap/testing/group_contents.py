"""What the key group of a test holds, and its snapshots: the chunks of a checkpoint in one Arrow stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from timerheap._values import ArrowTypes
from timerheap.spark._arrow import narrow_column
from timerheap.spark._compat import to_rows
from timerheap.spark._group import key_group
from timerheap.spark._group.checkpoint import Chunks, Manifest, Stored
from timerheap.spark._group.columns import python_values
from timerheap.spark._group.key_group import BROADCAST_STATE, KeyGroup, UserState
from timerheap.spark._query import Query
from timerheap.spark._worker.row_runner import row_source
from timerheap.time import TimeDomain

_SCHEMA = pa.schema([("kind", pa.int16()), ("id", pa.int32()), ("data", pa.binary())])
_CLOCK = b"timerheap.now"


class PendingTimer(NamedTuple):
    """A timer that has not fired.

    Parameters
    ----------
    key : object
        As ``ctx.get_current_key()`` returns it: a value, or a Row of several key columns.
    timestamp : int
        Epoch ms.
    name : str or None, default None
    time_domain : TimeDomain
    """

    key: Any
    timestamp: int
    name: str | None = None
    time_domain: TimeDomain = TimeDomain.EVENT_TIME


class GroupContents:
    """What a test reads of its key group: timers, states and waiting rows."""

    _current: Query
    _group: KeyGroup

    def timers(self) -> list[PendingTimer]:
        """Return the pending timers in the order in which they fire, those of event time first."""
        found = []
        for domain, timers in (
            (TimeDomain.EVENT_TIME, self._group.event_timers),
            (TimeDomain.PROCESSING_TIME, self._group.processing_timers),
        ):
            ids = timers.heap.key_hashes
            columns = (timers.heap.timestamps.tolist(), ids.tolist(), timers.heap.namespaces.tolist())
            pending = list(zip(*columns, self._keys(ids), strict=True))
            pending = sorted(pending, key=lambda timer: timer[:3])
            name = self._group.timer_names.name
            found += [PendingTimer(key, at, name(namespace), domain) for at, _, namespace, key in pending]
        return found

    def state(self, name: str) -> dict[Any, Any]:
        """Return the contents of a state: by key, its value, list or dict."""
        keyed = sorted(each for each in self._group.states if not each.startswith(BROADCAST_STATE))
        if name not in keyed:
            raise ValueError(f"name must be one of {keyed}, got {name!r}")
        ids, contents = _contents(self._group.states[name])
        return dict(zip(self._keys(ids), contents, strict=True))

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """Return the entries of a broadcast state.

        Parameters
        ----------
        name : str
            The name in its descriptor. Until the function calls ``get_broadcast_state`` for the first time,
            no name is known, and all broadcast states are empty.

        Raises
        ------
        ValueError
            If the function has asked for other broadcast states only.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r}")
        states = {
            each.removeprefix(BROADCAST_STATE): table
            for each, table in self._group.states.items()
            if each.startswith(BROADCAST_STATE)
        }
        if not states:
            return {}
        if name not in states:
            raise ValueError(
                "name must be one of the broadcast states that the function has asked for so far, "
                f"{sorted(states)}, got {name!r}"
            )
        _, contents = _contents(states[name])
        return contents[0] if contents else {}

    def buffered_rows(self) -> list[Row]:
        """Return the rows that wait for the watermark, by event time; of two inputs, those of both."""
        waiting = self._group.rows.waiting()
        waiting = waiting.take(np.argsort(waiting.timestamps, kind="stable"))
        seen = self._current.seen_rows
        return to_rows(pa.Table.from_batches([waiting.rows]).select(seen.names), seen)

    def _keys(self, ids: np.ndarray) -> list[Any]:
        key = self._current.key
        type_ = StructType([self._current.rows[name] for name in key])
        return list(row_source(pa.Table.from_batches([self._group.keys.keys(ids)]), type_, key).keys())


def _contents(table: UserState) -> tuple[np.ndarray, list[Any]]:
    """Return the ids of the keys that have a state, and their contents as its handle returns them."""
    ids = np.sort(table.ids())
    contents = python_values(narrow_column(table.get_many(ids), table.type))
    return ids, list(map(_decoder(table.type, table.shape), contents))


def _decoder(type_: pa.DataType, shape: str) -> Callable[[Any], Any]:
    """Return the function that makes what a handle returns of Arrow's contents of a key."""
    types = ArrowTypes(Row, Row)
    if shape == "map":
        key, value = (types.codec(each, "").decode for each in (type_.key_type, type_.item_type))
        return lambda pairs: {key(k): value(v) for k, v in pairs}
    if shape == "list":
        element = types.codec(type_.value_type, "").decode
        return lambda elements: list(map(element, elements))
    return types.codec(type_, "").decode


def save_group(group: KeyGroup, max_parallelism: int, now: int | None) -> bytes:
    """Return a key group as bytes, which `load_group` reads."""
    store = Chunks()
    stored = Stored(Manifest(max_parallelism))
    stored.save(store, group, b"", whole=True)
    rows = [{"kind": kind, "id": id_, "data": data} for (kind, id_), data in sorted(store.items())]
    schema = _SCHEMA.with_metadata({_CLOCK: b"" if now is None else str(now).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
    return bytes(sink.getvalue())


def load_group(query: Query, max_parallelism: int, data: bytes) -> tuple[KeyGroup, int | None]:
    """Return the key group of a query and the time that `save_group` has written."""
    try:
        stream = pa.ipc.open_stream(data)
        now = (stream.schema.metadata or {}).get(_CLOCK)
        if now is None or stream.schema.remove_metadata() != _SCHEMA:
            raise ValueError("got another Arrow stream")
        batch = stream.read_next_batch()
        batch.validate(full=True)
    except (ValueError, pa.ArrowException, OSError, StopIteration) as e:
        raise ValueError(f"snapshot must be what snapshot() has returned: {e}") from e
    store = Chunks(((row["kind"], row["id"]), row["data"]) for row in batch.to_pylist())
    manifest = store.read_manifest()
    if manifest is None:
        raise ValueError("snapshot must be what snapshot() has returned, got one without a manifest")
    manifest.check(max_parallelism)
    group, _ = key_group.load_group(store, manifest, query.layout)
    return group, int(now) if now else None
