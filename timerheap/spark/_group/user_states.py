"""The tables of user states, by shape."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from timerheap.spark._group.list_state import ListTable
from timerheap.spark._group.map_state import MapTable
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.state_table import StateTable

__all__ = ["UserState", "attached_state", "head_of", "new_state", "restored_state"]

UserState = StateTable | ListTable | MapTable

_TABLES: dict[str, type[UserState]] = {table.shape: table for table in (StateTable, ListTable, MapTable)}


def new_state(kind: int, name: str, shape: str, type_: pa.DataType, memory: Memory = PROCESS) -> UserState:
    """Return an empty state; see `StateTable` and `GrowingState`."""
    return _TABLES[shape](kind, name, type_, memory)


def restored_state(kind: int, name: str, schema: pa.Schema, memory: Memory = PROCESS) -> UserState:
    """Return an empty state for chunks of this schema; raise a ValueError if no state has it."""
    table = _TABLES.get(schema.names[-1])
    if table is not None:
        state = table.restored(kind, name, schema, memory)
        if state.schema == schema:
            return state
    raise ValueError(f"a chunk of state {name!r} has the columns {schema}")


def head_of(state: UserState) -> list[Any]:
    """Return the JSON values that `attached_state` needs."""
    schema = pa.schema([(state.name, state.type)]).serialize().to_pybytes()
    return [state.kind, state.shape, base64.b64encode(schema).decode(), state.head()]


def attached_state(memory: Memory, head: list[Any]) -> UserState:
    """Return the state that `head` describes; O(1)."""
    kind, shape, schema, head = head
    (field,) = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
    return _TABLES[shape].attach(kind, field.name, field.type, memory, head)
