"""What the key group of a test holds, as the test reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import StructType

from timerheap._values import ArrowTypes
from timerheap.spark._group.key_group import BROADCAST_STATE, KeyGroup
from timerheap.spark._group.offsets import narrow_column
from timerheap.spark._group.user_states import UserState
from timerheap.spark._query import Query
from timerheap.spark._worker.rows import row_source
from timerheap.time import TimeDomain

__all__ = ["GroupContents", "PendingTimer", "rows_of"]


class PendingTimer(NamedTuple):
    """A timer that has not fired.

    Parameters
    ----------
    key : object
        As ``ctx.get_current_key()`` returns it: a value, or a Row of several key columns.
    timestamp : int
        Epoch ms.
    namespace : int
        0 for functions on rows.
    time_domain : TimeDomain
    """

    key: Any
    timestamp: int
    namespace: int = 0
    time_domain: TimeDomain = TimeDomain.EVENT_TIME


class GroupContents:
    """The timers, states and waiting rows of a key group.

    Parameters
    ----------
    query : Query
    group : KeyGroup
    """

    def __init__(self, query: Query, group: KeyGroup) -> None:
        self._query = query
        self._group = group

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
            found += [PendingTimer(key, at, namespace, domain) for at, _, namespace, key in pending]
        return found

    def state(self, name: str) -> dict[Any, Any]:
        """Return the contents of a state by key."""
        keyed = sorted(each for each in self._group.states if not each.startswith(BROADCAST_STATE))
        if name not in keyed:
            raise ValueError(f"name must be one of {keyed}, got {name!r}")
        ids, contents = _contents(self._group.states[name])
        return dict(zip(self._keys(ids), contents, strict=True))

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """Return the entries of a broadcast state; before the function has asked for any, there are none."""
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

    def waiting_rows(self) -> list[Row]:
        """Return the rows that wait for the watermark, by event time, in the columns of the query."""
        waiting = self._group.rows.waiting()
        waiting = waiting.take(np.argsort(waiting.timestamps, kind="stable"))
        seen = self._query.seen_rows
        return rows_of(pa.Table.from_batches([waiting.rows]).select(seen.names), seen)

    def _keys(self, ids: np.ndarray) -> list[Any]:
        key = self._query.key
        type_ = StructType([self._query.rows[name] for name in key])
        return list(row_source(pa.Table.from_batches([self._group.keys.keys(ids)]), type_, key).keys())


def rows_of(table: pa.Table, type_: StructType) -> list[Row]:
    """Return the rows of a table of this type."""
    return ArrowTableToRowsConversion.convert(table, type_)


def _contents(table: UserState) -> tuple[np.ndarray, list[Any]]:
    """Return the ids of the keys that have a state, and their contents as its handle returns them."""
    ids = np.sort(table.ids())
    contents = narrow_column(table.get_many(ids), table.type).to_pylist()
    return ids, list(map(_decoder(table.type, table.shape), contents))


def _decoder(type_: pa.DataType, shape: str) -> Callable[[Any], Any]:
    """Return the function that makes what a handle returns of Arrow's contents of a key."""
    types = ArrowTypes(Row)
    if shape == "map":
        key, value = (types.codec(each, "").decode for each in (type_.key_type, type_.item_type))
        return lambda pairs: {key(k): value(v) for k, v in pairs}
    if shape == "list":
        element = types.codec(type_.value_type, "").decode
        return lambda elements: list(map(element, elements))
    return types.codec(type_, "").decode
