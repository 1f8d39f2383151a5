"""The handle of a StatefulProcessor, which its ``init`` receives: it makes states, and has the timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from timerheap.spark._processors.declared import DeclaredState
from timerheap.spark._processors.spark_refusals import refusal
from timerheap.spark._processors.spark_values import LONG
from timerheap.spark._processors.value_list_map_states import STATES, ProcessorState, Scope
from timerheap.spark._query import TimeMode
from timerheap.spark._worker.states import KeyTimerService

Schema = StructType | str
Declare = Callable[[str, str, tuple[Schema, ...], int | None], DeclaredState]
"""Takes a state's name, shape, schemas as they were passed, and time to live."""


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
