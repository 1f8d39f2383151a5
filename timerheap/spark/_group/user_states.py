"""The tables of user states, by shape."""

from __future__ import annotations

import pyarrow as pa

from timerheap.spark._group.list_state import ListTable
from timerheap.spark._group.map_state import MapTable
from timerheap.spark._group.state_table import StateTable

__all__ = ["UserState", "new_state", "restored_state"]

UserState = StateTable | ListTable | MapTable

_TABLES: dict[str, type[UserState]] = {table.shape: table for table in (StateTable, ListTable, MapTable)}


def new_state(kind: int, name: str, shape: str, type_: pa.DataType) -> UserState:
    """Return an empty state; see `StateTable` and `GrowingState`."""
    return _TABLES[shape](kind, name, type_)


def restored_state(kind: int, name: str, schema: pa.Schema) -> UserState:
    """Return an empty state for chunks of this schema; raise a ValueError if no state has it."""
    table = _TABLES.get(schema.names[-1])
    if table is not None:
        state = table.restored(kind, name, schema)
        if state.schema == schema:
            return state
    raise ValueError(f"a chunk of state {name!r} has the columns {schema}")
