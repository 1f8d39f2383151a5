"""What runs a user's function in a task, of whatever kind: its life, its metrics and what to warn of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timerheap.metrics import Metrics
from timerheap.spark._functions.guarded.dead_letters import Guard
from timerheap.spark._functions.guarded.failed_calls import FailedCalls
from timerheap.spark._functions.rows_ahead import RowsAhead
from timerheap.spark._functions.state_handles import GroupRuntimeContext
from timerheap.spark._query import Query
from timerheap.spark._worker.runner import Runner


class FunctionRunner(Runner):
    """Runs one copy of a function with its states; a kind of function has a class of its own."""

    _function: Any
    _states: GroupRuntimeContext
    rows_ahead: RowsAhead
    _failed: FailedCalls | None = None  # None: an error of the function ends the query

    def guard(self, guard: Guard, query: Query) -> None:
        """Have calls that raise an exception undone, before the function is opened."""
        self._states.metrics = Metrics()
        self._failed = FailedCalls(guard, query, self._states.metrics)
        self._states.steps = self._failed.steps

    @property
    def out_of_order_rows(self) -> int:
        return self.rows_ahead.count

    @property
    def warnings(self) -> Mapping[str, str]:
        return self.rows_ahead.warnings

    @property
    def metrics(self) -> Metrics | None:
        return self._states.metrics

    def open(self) -> None:
        self._function.open(self._states)

    def close(self) -> None:
        self._function.close()
