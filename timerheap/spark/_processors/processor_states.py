"""What a StatefulProcessor reads and writes: the handle that its ``init`` receives, and the states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import ListState, MapState, StatefulProcessorHandle, ValueState

from timerheap._key_timers import KeyTimerService
from timerheap._native._core import CurrentKey
from timerheap.errors import ArgumentValueError
from timerheap.spark._functions.state_handles import CONTENTS
from timerheap.spark._processors.state_codec import LONG, StructCodec, UnsafeOrder, refusal
from timerheap.spark._query import TimeMode
from timerheap.state_ttl import StateTtlConfig

Schema = T.StructType | str


@dataclass(frozen=True)
class DeclaredState:
    """A state that a processor has asked its handle for."""

    shape: Literal["value", "list", "map"]
    schemas: tuple[T.StructType, ...]  # of the values; of a map, of its keys and of its values
    ttl: int | None  # ms


Declare = Callable[[str, str, tuple[Schema, ...], int | None], DeclaredState]
"""Takes a state's name, shape, schemas as they were passed, and time to live."""


class Group(Protocol):
    """What a key group has.

    service: of the timers of the query's time mode, which it has for both domains
    tables: the contents of the states, by name, without what has expired
    """

    service: KeyTimerService
    tables: dict[str, Any]


class Scope:
    """What all states of a processor share: the current key and its key group.

    keys: the id of the current key, None outside the calls for a key
    group: the key group of the current key. One assignment changes it for all states: keys come in their
        order, so it is mostly another one for each key.
    """

    group: Group

    def __init__(self) -> None:
        self.keys = CurrentKey()


class ProcessorState:
    """One state of a processor.

    type: of a key's contents
    """

    shape: ClassVar[str]

    def __init__(self, name: str, declared: DeclaredState, scope: Scope) -> None:
        self.name = name
        self.deleted = False
        self._scope = scope
        self.ttl = None if declared.ttl is None else StateTtlConfig.new_builder(declared.ttl).build()
        *self._key_codecs, self._codec = map(StructCodec, declared.schemas)
        kept: pa.DataType = self._codec.type
        if declared.ttl is not None:
            kept = pa.struct([("value", kept), ("expires", pa.int64())])
        self.type = CONTENTS[self.shape](*(codec.type for codec in self._key_codecs), kept)

    @property
    def _table(self) -> Any:
        return self._scope.group.tables[self.name]

    def _key(self, doing: str) -> int:
        """Return the current key's id; an error says what was being done, in Spark's words."""
        id_: int | None = self._scope.keys.current_key
        if id_ is not None and not self.deleted:
            return id_
        if self.deleted:
            raise PySparkRuntimeError(
                f"Error {doing}: {self.shape.capitalize()} state {self.name} is not initialized."
            )
        raise refusal("INTERNAL_ERROR_TWS", doing, name=self.name)


class _ValueState(ProcessorState, ValueState):
    shape = "value"

    def exists(self) -> bool:
        key_id = self._key("checking value state exists")
        return self._table.load(key_id) is not None

    def get(self) -> tuple[Any, ...] | None:
        key_id = self._key("getting value state")
        kept = self._scope.group.tables[self.name].load(key_id)  # the most frequent call: without a property
        return None if kept is None else self._codec.decode(kept)

    def update(self, newValue: Any) -> None:
        key_id = self._key("updating value state")
        self._table.store(key_id, self._codec.encode(newValue))

    def clear(self) -> None:
        key_id = self._key("clearing value state")
        self._table.store(key_id, None)


class _ListState(ProcessorState, ListState):
    shape = "list"

    def exists(self) -> bool:
        key_id = self._key("checking value state exists")
        return not self._table.is_empty(key_id)

    def get(self) -> Iterator[tuple[Any, ...]]:
        if self.deleted:
            return
        key_id = self._key("getting value state")
        yield from map(self._codec.decode, list(self._table.load(key_id)))

    def put(self, newState: Iterable[Any]) -> None:
        self._write(newState, "replace")

    def appendValue(self, newState: Any) -> None:
        self._write((newState,), "append")

    def appendList(self, newState: Iterable[Any]) -> None:
        self._write(newState, "append")

    def _write(self, values: Iterable[Any], how: str) -> None:
        key_id, kept = self._key("updating value state"), list(map(self._codec.encode, values))
        if not kept:
            raise refusal(
                "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE", "updating value state", name=self.name
            )
        getattr(self._table, how)(key_id, kept)

    def clear(self) -> None:
        key_id = self._key("clearing value state")
        self._table.replace(key_id, [])


class _MapState(ProcessorState, MapState):
    shape = "map"

    def __init__(self, name: str, declared: DeclaredState, scope: Scope) -> None:
        super().__init__(name, declared, scope)
        for field in declared.schemas[0]:
            if isinstance(field.dataType, (T.ArrayType, T.MapType, T.StructType)):
                raise ArgumentValueError(
                    f"state {name!r}: the fields of a map's keys must be of atomic types, got {field.name!r} "
                    f"of type {field.dataType.simpleString()}; use several fields, or a string"
                )
        (self._keys,) = self._key_codecs
        self._row = Row(*declared.schemas[1].names)
        self._order = UnsafeOrder(declared.schemas[0])

    def exists(self) -> bool:
        key_id = self._key("checking map state exists")
        return not self._table.is_empty(key_id)

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        key_id = self._key("getting value")
        found, kept = self._table.find(key_id, self._keys.encode_key(key))
        return self._row(*self._codec.decode(kept)) if found else None

    def containsKey(self, key: Any) -> bool:
        key_id = self._key("checking if map state contains key")
        found: bool = self._table.find(key_id, self._keys.encode_key(key))[0]
        return found

    def updateValue(self, key: Any, value: Any) -> None:
        key_id = self._key("updating map state value")
        self._table.put(key_id, {self._keys.encode_key(key): self._codec.encode(value)})

    def removeKey(self, key: Any) -> None:
        key_id = self._key("removing key from map state")
        self._table.remove(key_id, self._keys.encode_key(key))

    def clear(self) -> None:
        key_id = self._key("clearing map state")
        self._table.remove_all(key_id)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for key, kept in self._entries():
            yield self._keys.decode_key(key), self._codec.decode(kept)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        for key, _ in self._entries():
            yield self._keys.decode_key(key)

    def values(self) -> Iterator[tuple[Any, ...]]:
        for _, kept in self._entries():
            yield self._codec.decode(kept)

    def _entries(self) -> list[tuple[tuple[Any, ...], Any]]:
        """Return the entries of now, in the order of Spark's state store."""
        if self.deleted:
            return []
        key_id = self._key("getting map state")
        entries = self._table.load(key_id)
        return sorted(entries.items(), key=lambda entry: self._order.bytes_of(entry[0]))


STATES: dict[str, type[ProcessorState]] = {"value": _ValueState, "list": _ListState, "map": _MapState}
"""The classes of states by shape."""


class ProcessorHandle(StatefulProcessorHandle):
    """What ``init`` of a processor receives, on the driver and in a task.

    time_mode ({"None", "ProcessingTime", "EventTime"})
    declare: returns the declaration of a state
    stage: Spark's name for how far a task has come
    states: the states, without those that ``deleteIfExists`` has deleted
    deleted: the names of deleted states
    """

    def __init__(self, time_mode: TimeMode, scope: Scope, declare: Declare) -> None:
        self.stage = "CREATED"
        self.states: dict[str, ProcessorState] = {}
        self.deleted: set[str] = set()
        self._mode = time_mode
        self._scope = scope
        self._declare = declare

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ValueState:
        state: ValueState = self._state("value", stateName, (schema,), ttlDurationMs)
        return state

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ListState:
        state: ListState = self._state("list", stateName, (schema,), ttlDurationMs)
        return state

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> MapState:
        state: MapState = self._state("map", stateName, (userKeySchema, valueSchema), ttlDurationMs)
        return state

    def _state(self, shape: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        doing = f"initializing {shape} state"
        if self.stage != "CREATED":
            raise self._invalid(doing, f"get_{shape}_state")
        if ttl and self._mode != "ProcessingTime":
            mode = "NoTime" if self._mode == "None" else self._mode
            raise refusal("STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL", doing, name=name, mode=mode)
        if ttl and ttl < 0:
            raise refusal(
                "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE", doing, operation="update", name=name
            )
        if name in self.states:
            raise refusal("STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED", doing, name=name)
        if name in ("", "default") or name != name.strip():
            raise refusal("STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME", doing, name=name)
        if name.startswith("$"):
            raise refusal("STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS", doing, name=name)
        declared = self._declare(name, shape, schemas, ttl or None)
        state = self.states[name] = STATES[shape](name, declared, self._scope)
        return state

    def deleteIfExists(self, stateName: str) -> None:
        if self.stage != "CREATED":
            raise self._invalid("deleting state", "delete_if_exists")
        self.deleted.add(stateName)
        if (state := self.states.pop(stateName, None)) is not None:
            state.deleted = True

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timers("register_timer", "register timer").register_event_time_timer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers("delete_timer", "deleting timer").delete_event_time_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        found = self._timers("list_timers", "").event_time_timers()
        yield from sorted(found, key=LONG.pack)  # as Spark lists them

    def _timers(self, operation: str, doing: str) -> KeyTimerService:
        if self._mode == "None":
            raise refusal(
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                doing,
                operation=operation,
                mode="NoTime",
            )
        if self._scope.keys.current_key is None:
            raise self._invalid(doing, operation)
        return self._scope.group.service

    def _invalid(self, doing: str, operation: str) -> PySparkRuntimeError:
        error = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"
        return refusal(error, doing, operation=operation, state=self.stage)
