"""Keyed state in the key group that is being processed, for functions that run on Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Row

from timerheap._expiring import Expiring
from timerheap._state_contents import CurrentKey, KeyedContents, StateBackend
from timerheap._state_handles import H, KeyedRuntimeContext, ValueHandle
from timerheap._values import ArrowTypes
from timerheap.functions import BatchRuntimeContext
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.offsets import narrow_column, wide
from timerheap.spark._group.state_table import StateTable
from timerheap.spark._group.user_states import UserState
from timerheap.spark._group.value_columns import cast as cast_column
from timerheap.spark._worker.expiry_clock import GroupExpiryClock
from timerheap.spark._worker.row_context import KeyValueState
from timerheap.state import BatchValueState, StateDescriptor, ValueState, ValueStateDescriptor

__all__ = ["BatchGroupRuntimeContext", "GroupRuntimeContext", "RowRuntimeContext"]

# The type of a key's contents, by the shape of the state.
_CONTENTS: dict[str, Callable[..., pa.DataType]] = {
    "value": lambda type_: type_,
    "list": lambda element: pa.list_(pa.field("element", element)),
    "map": pa.map_,
}


class _GroupBackend:
    """Stores states in a key group."""

    def __init__(self, group: KeyGroup, broadcast: bool) -> None:
        self._group = group
        self._broadcast = broadcast

    def contents_of(self, name: str, shape: str, types: tuple[pa.DataType, ...]) -> UserState:
        return self._group.state(name, shape, _CONTENTS[shape](*types), broadcast=self._broadcast)


class GroupRuntimeContext(KeyedRuntimeContext):
    """Returns handles of states, and binds them all to the group that is being processed.

    Parameters
    ----------
    keys : CurrentKey
        Holds the id of the current key.
    max_parallelism : int
    broadcast : bool, default False
        Whether the states are broadcast states.
    """

    group: KeyGroup

    def __init__(self, keys: CurrentKey, max_parallelism: int, *, broadcast: bool = False) -> None:
        super().__init__(keys, ArrowTypes(Row), max_parallelism)
        self._broadcast = broadcast

    def bind(self, group: KeyGroup) -> list[UserState]:
        """Bind all handles to this group; return the tables of their states."""
        self.group = group
        return self.bind_backend(_GroupBackend(group, self._broadcast))


class RowRuntimeContext(GroupRuntimeContext):
    """A `GroupRuntimeContext` for a `KeyedProcessFunction`, with value states in native code."""

    def bind(self, group: KeyGroup) -> list[UserState]:
        """Bind all handles to this group; return the tables of their states to which keys are announced."""
        tables = super().bind(group)
        handles = [handle for handle, _ in self._handles.values() if isinstance(handle, KeyValueState)]
        in_cells = [handle.bind_table() for handle in handles]
        return [table for table in tables if not any(table is other for other in in_cells)]

    def _bind(self, contents: KeyedContents, backend: StateBackend) -> Any:
        table = super()._bind(contents, backend)
        if isinstance(contents.table, Expiring):
            cast(GroupExpiryClock, self.clock).add(contents.table)
        return table

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """See `timerheap.RuntimeContext`."""
        if getattr(state_descriptor, "ttl_config", None) is not None:
            return self._value_state(ValueHandle, state_descriptor)
        state = self._value_state(KeyValueState, state_descriptor)
        if self._backend is not None:
            state.bind_table()
        return state


class BatchGroupRuntimeContext(GroupRuntimeContext, BatchRuntimeContext):
    """A `GroupRuntimeContext` whose value states read and write columns, for a `BatchProcessFunction`."""

    def _handle(self, class_: type[H], descriptor: StateDescriptor, types: tuple[Any, ...]) -> H:
        if descriptor.ttl_config is not None:
            raise NotImplementedError(
                f"state {descriptor.name!r} of a BatchProcessFunction must have no time to live; register "
                "timers, and clear the state in on_timers"
            )
        return super()._handle(class_, descriptor, types)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> BatchValueState:
        """See `timerheap.BatchRuntimeContext`."""
        state = self._value_state(_BatchValueHandle, state_descriptor)
        state.context = self
        return state


class _BatchValueHandle(ValueHandle, BatchValueState):
    context: GroupRuntimeContext
    _contents: KeyedContents

    def values(self, key_hashes: npt.ArrayLike) -> pa.Array:
        return narrow_column(self._table().get_many(_ids(key_hashes)), self._type)

    def update_many(self, key_hashes: npt.ArrayLike, values: object) -> None:
        ids = _ids(key_hashes)
        try:
            column = values if isinstance(values, pa.Array) else pa.array(values)
            column = cast_column(column, wide(self._type))
            if isinstance(column, pa.ChunkedArray):  # of more than 2 GiB
                column = column.combine_chunks()
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise ValueError(f"values must fit {self._type}, the type of state {self._name!r}: {e}") from None
        if len(column) != len(ids):
            raise ValueError(
                f"values must have one value for each of the {len(ids)} key_hashes of state {self._name!r}, "
                f"got {len(column)}"
            )
        self.context.group.keys.expect(key_hashes)
        distinct, last = np.unique(ids[::-1], return_index=True)
        self._table().put_many(distinct, column.take(pa.array(len(ids) - 1 - last)))

    @property
    def _type(self) -> pa.DataType:
        (type_,) = self._contents.types
        return type_

    def _table(self) -> StateTable:
        return cast(StateTable, self._contents.table)


def _ids(key_hashes: npt.ArrayLike) -> np.ndarray[Any, np.dtype[np.int64]]:
    ids = np.asarray(key_hashes)
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise TypeError(
            f"key_hashes must be an int64 array of shape (n,), got {ids.dtype} of shape {ids.shape}"
        )
    return ids
