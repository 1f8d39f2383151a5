"""Which table the state of a function is, by its shape."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from timerheap.errors import DamagedCheckpointError
from timerheap.spark._group.growing_state import ListTable, MapTable
from timerheap.spark._group.multiset_state import MultisetTable, order_of
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._memory.blocks import PROCESS, Memory

UserState = StateTable | ListTable | MapTable | MultisetTable
_TABLES: dict[str, type[UserState]] = {
    table.shape: table for table in (StateTable, ListTable, MapTable, MultisetTable)
}


def new_state(kind: int, name: str, shape: str, type_: pa.DataType, memory: Memory = PROCESS) -> UserState:
    """Return an empty state; see `StateTable` and `GrowingState`."""
    return _TABLES[shape](kind, name, type_, memory)


def has_type(state: UserState, shape: str, type_: pa.DataType) -> bool:
    """Return whether a state has this shape and type; the order of a multiset is part of its type."""
    same = (state.shape, state.type) == (shape, type_)
    return same and (shape != MultisetTable.shape or order_of(state.type) == order_of(type_))


def restored_state(kind: int, name: str, schema: pa.Schema, memory: Memory = PROCESS) -> UserState:
    """Return an empty state for chunks of this schema; raise DamagedCheckpointError if no state has it."""
    table = _TABLES.get(schema.names[-1])
    if table is not None:
        state = table.restored(kind, name, schema, memory)
        if state.schema == schema:
            return state
    raise DamagedCheckpointError(f"a chunk of state {name!r} has the columns {schema}")


def head_of(state: UserState) -> list[Any]:
    """Return the JSON values that `attached_state` needs."""
    schema = pa.schema([(state.name, state.type)]).serialize().to_pybytes()
    return [state.kind, state.shape, base64.b64encode(schema).decode(), state.head()]


def attached_state(memory: Memory, head: list[Any]) -> UserState:
    """Return the state that `head` describes; O(1)."""
    kind, shape, schema, head = head
    (field,) = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
    return _TABLES[shape](kind, field.name, field.type, memory, head)
