"""The states of a key group as functions use them: of the current key, or columns of many keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from timerheap._contents import Codec, CurrentKey, KeyedContents, StateBackend
from timerheap._expiry import EXPIRING, Expiring, ExpiringValue, has_event_time
from timerheap._native._core import CurrentKey as NativeKey
from timerheap._native._core import RowValue
from timerheap._states import H, KeyedRuntimeContext, ValueHandle
from timerheap._values import ArrowCodec, ArrowTypes, is_timed
from timerheap.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError
from timerheap.functions import (
    BatchRuntimeContext,
)
from timerheap.spark._arrow import narrow_column, wide
from timerheap.spark._functions.expiry_clocks import GroupExpiryClock
from timerheap.spark._functions.guarded.revocable_states import Steps, revocable
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.user_states import UserState
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._python_rows import changeable_row
from timerheap.spark._worker.column_casts import cast as cast_column
from timerheap.state import BatchValueState, StateDescriptor, ValueState, ValueStateDescriptor
from timerheap.timer import MIN_WATERMARK

CONTENTS: dict[str, Callable[..., pa.DataType]] = {
    "value": lambda type_: type_,
    "list": lambda element: pa.list_(pa.field("element", element)),
    "map": pa.map_,
}
"""The type of a key's contents, by the shape of the state."""


class KeyValueState(RowValue, ValueHandle):
    """The `ValueState` of the current key of a key group."""

    _codec: ArrowCodec
    _contents: KeyedContents

    def __init__(self, contents: KeyedContents, name: str, codecs: Sequence[Codec]) -> None:
        ValueHandle.__init__(self, contents, name, codecs)
        assert isinstance(contents.keys, NativeKey)
        RowValue.__init__(self, contents.keys, self._codec, *self._codec.exact, contents.key)

    def bind_table(self) -> StateTable | None:
        """Use the table of the contents from now on; return it if its values are in native cells."""
        table: StateTable = self._contents.table
        cells = table.cells(cast(NativeKey, self._contents.keys).numbers)
        self.bind(table, *table.at_hand(), cells)
        return None if cells is None else table


class GroupRuntimeContext(KeyedRuntimeContext):
    """Returns handles of states, and binds them all to the group that is being processed, their backend.

    keys: holds the id of the current key
    broadcast: whether the states are broadcast states
    steps: receives how to undo each change of a state, or None
    """

    group: KeyGroup
    steps: Steps | None = None

    def __init__(self, keys: CurrentKey, max_parallelism: int, *, broadcast: bool = False) -> None:
        super().__init__(keys, ArrowTypes(changeable_row, Row), max_parallelism)
        self._broadcast = broadcast

    def bind(self, group: KeyGroup) -> list[UserState]:
        """Bind all handles to this group; return the tables of their states."""
        self.group = group
        return self.bind_backend(self)

    def contents_of(self, name: str, shape: str, types: tuple[pa.DataType, ...]) -> UserState:
        table = self.group.state(name, shape, CONTENTS[shape](*types), broadcast=self._broadcast)
        return table if self.steps is None else revocable(table, self.steps)

    def _bind(self, contents: KeyedContents, backend: StateBackend) -> Any:
        table = super()._bind(contents, backend)
        if isinstance(contents.table, Expiring):
            cast(GroupExpiryClock, self.clock).add(contents.table)
        return table


class RowRuntimeContext(GroupRuntimeContext):
    """A `GroupRuntimeContext` for a `KeyedProcessFunction`, with value states in native code."""

    def bind(self, group: KeyGroup) -> list[UserState]:
        """Bind all handles to this group; return the tables of their states to which keys are announced."""
        tables = super().bind(group)
        handles = [handle for handle, _ in self._handles.values() if isinstance(handle, KeyValueState)]
        in_cells = [handle.bind_table() for handle in handles]
        return [table for table in tables if not any(table is other for other in in_cells)]

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        if getattr(state_descriptor, "ttl_config", None) is not None:
            return self._value_state(ValueHandle, state_descriptor)
        state = self._value_state(KeyValueState, state_descriptor)
        state.steps = self.steps
        if self._backend is not None:
            state.bind_table()
        return state


class ExpiringColumn(ExpiringValue):
    """`ExpiringValue` for many keys, in processing time."""

    table: StateTable

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Return the values of many keys, null for a key without one."""
        now = self._now()
        values, times = self.table.get_many(ids).flatten()
        there = pc.greater(times, max(now - self._ttl, MIN_WATERMARK)).fill_null(False)
        live = there.to_numpy(zero_copy_only=False)
        if self._renews and live.any():
            renewed, first = np.unique(ids[live], return_index=True)
            self._put(renewed, values.take(pa.array(np.flatnonzero(live)[first])), now)
        return values if self._shows else values.take(pa.array(np.arange(len(ids)), mask=~live))

    def put_many(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of many distinct keys; a null removes the key's value."""
        now = self._now()
        new = self.table.get_many(ids).is_null().to_numpy(zero_copy_only=False)
        new &= values.is_valid().to_numpy(zero_copy_only=False)
        cast(GroupExpiryClock, self._clock).purge_all_at(now + self._ttl, ids[new], self.table)
        self._put(ids, values, now)

    def _put(self, ids: np.ndarray, values: pa.Array, now: int) -> None:
        type_ = wide(self.table.type)
        columns = [values.cast(type_.field("value").type), pa.array(np.full(len(ids), now))]
        kept = pa.StructArray.from_arrays(columns, fields=list(type_), mask=values.is_null())
        self.table.put_many(ids, kept)


class BatchGroupRuntimeContext(GroupRuntimeContext, BatchRuntimeContext):
    """A `GroupRuntimeContext` whose value states read and write columns, for a `BatchProcessFunction`."""

    _expiring = EXPIRING | {"value": ExpiringColumn}

    def _handle(self, class_: type[H], descriptor: StateDescriptor, types: tuple[Any, ...]) -> H:
        ttl = descriptor.ttl_config
        if ttl is not None and (class_ is not _BatchValueHandle or has_event_time(ttl)):
            raise UnsupportedError(
                f"state {descriptor.name!r} of a BatchProcessFunction must be a value state to have a time "
                f"to live, in processing time, got a {class_.kind} state with {ttl}; register timers, and "
                "clear the state in on_timers"
            )
        return super()._handle(class_, descriptor, types)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> BatchValueState:
        state = self._value_state(_BatchValueHandle, state_descriptor)
        state.context = self
        return state


class _BatchValueHandle(ValueHandle, BatchValueState):
    context: GroupRuntimeContext
    _contents: KeyedContents

    def values(self, ids: npt.ArrayLike) -> pa.Array:
        return narrow_column(self._contents.table.get_many(_checked_ids(ids)), self._type)

    def update_many(self, ids: npt.ArrayLike, values: object) -> None:
        ids = _checked_ids(ids)
        try:
            column = values if isinstance(values, pa.Array) else pa.array(values)
            column = cast_column(column, wide(self._type))
            if isinstance(column, pa.ChunkedArray):  # of more than 2 GiB
                column = column.combine_chunks()
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise ArgumentValueError(
                f"values must fit {self._type}, the type of state {self._name!r}: {e}"
            ) from None
        if len(column) != len(ids):
            raise ArgumentValueError(
                f"values must have one value for each of the {len(ids)} ids of state {self._name!r}, "
                f"got {len(column)}"
            )
        self.context.group.keys.expect(ids)
        distinct, last = np.unique(ids[::-1], return_index=True)
        self._contents.table.put_many(distinct, column.take(pa.array(len(ids) - 1 - last)))

    @property
    def _type(self) -> pa.DataType:
        (type_,) = self._contents.types
        return type_.field("value").type if is_timed(type_) else type_


def _checked_ids(given: npt.ArrayLike) -> np.ndarray[Any, np.dtype[np.int64]]:
    ids = np.asarray(given)
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise ArgumentTypeError(
            f"ids must be an int64 array of shape (n,), got {ids.dtype} of shape {ids.shape}"
        )
    return ids
