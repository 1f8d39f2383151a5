"""The handle of a StatefulProcessor: its states and its timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from timerheap.spark._query import DeclaredState, TimeMode
from timerheap.spark._worker.processor_errors import refusal
from timerheap.spark._worker.processor_states import STATES, ProcessorState, Scope
from timerheap.spark._worker.row_context import KeyTimerService
from timerheap.spark._worker.unsafe_order import timer_order

__all__ = ["ProcessorHandle"]

Schema = StructType | str
Declare = Callable[[str, str, tuple[Schema, ...], int | None], DeclaredState]
"""Takes a state's name, shape, schemas as they were passed, and time to live."""

_MODES: dict[TimeMode, str] = {"None": "NoTime", "ProcessingTime": "ProcessingTime", "EventTime": "EventTime"}


class ProcessorHandle(StatefulProcessorHandle):
    """What ``init`` of a processor receives, on the driver and in a task.

    Parameters
    ----------
    time_mode : {"None", "ProcessingTime", "EventTime"}
    scope : Scope
    declare : callable
        Returns the declaration of a state.

    Attributes
    ----------
    stage : str
        Spark's name for how far a task has come.
    states : dict of str to ProcessorState
        The states, without those that ``deleteIfExists`` has deleted.
    deleted : set of str
        The names of deleted states.
    """

    def __init__(self, time_mode: TimeMode, scope: Scope, declare: Declare) -> None:
        self.stage = "CREATED"
        self.states: dict[str, ProcessorState] = {}
        self.deleted: set[str] = set()
        self._mode = time_mode
        self._scope = scope
        self._declare = declare

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ValueState:
        """See `pyspark.sql.streaming.StatefulProcessorHandle`."""
        state: ValueState = self._state("value", stateName, (schema,), ttlDurationMs)
        return state

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ListState:
        """See `pyspark.sql.streaming.StatefulProcessorHandle`."""
        state: ListState = self._state("list", stateName, (schema,), ttlDurationMs)
        return state

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> MapState:
        """See `pyspark.sql.streaming.StatefulProcessorHandle`."""
        state: MapState = self._state("map", stateName, (userKeySchema, valueSchema), ttlDurationMs)
        return state

    def _state(self, shape: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        doing = f"initializing {shape} state"
        if self.stage != "CREATED":
            raise refusal(
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
                doing,
                operation=f"get_{shape}_state",
                state=self.stage,
            )
        if ttl and self._mode != "ProcessingTime":
            mode = _MODES[self._mode]
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
        """See `pyspark.sql.streaming.StatefulProcessorHandle`."""
        if self.stage != "CREATED":
            raise refusal(
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
                "deleting state",
                operation="delete_if_exists",
                state=self.stage,
            )
        self.deleted.add(stateName)
        if (state := self.states.pop(stateName, None)) is not None:
            state.deleted = True

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """See `pyspark.sql.streaming.StatefulProcessorHandle`."""
        timers = self._timers("register_timer", "register timer")
        if self._mode == "EventTime":
            timers.register_event_time_timer(expiryTimestampMs)
        else:
            timers.register_processing_time_timer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """See `pyspark.sql.streaming.StatefulProcessorHandle`."""
        timers = self._timers("delete_timer", "deleting timer")
        if self._mode == "EventTime":
            timers.delete_event_time_timer(expiryTimestampMs)
        else:
            timers.delete_processing_time_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """See `pyspark.sql.streaming.StatefulProcessorHandle`."""
        timers = self._timers("list_timers", "")
        event = self._mode == "EventTime"
        found = timers.event_time_timers() if event else timers.processing_time_timers()
        yield from sorted(found, key=timer_order)

    def _timers(self, operation: str, doing: str) -> KeyTimerService:
        if self._mode == "None":
            raise refusal(
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                doing,
                operation=operation,
                mode=_MODES[self._mode],
            )
        if self._scope.keys.current_key is None:
            raise refusal(
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
                doing,
                operation=operation,
                state=self.stage,
            )
        return self._scope.group.service
