"""Runs the function of a query on tables: its rows, with the key before them and the time behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from timerheap._values import records
from timerheap.errors import ArgumentValueError
from timerheap.functions import (
    Function,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
)
from timerheap.spark._worker.output import RecordShape


class _Called(Function):
    """Opens and closes a function, and completes its rows.

    function: that of the user
    results: the columns of its rows
    keys: the number of columns of PARTITION BY, 0 without it
    times: how often they are before a row: once for each table
    timed: whether ``rowtime`` is behind it
    """

    def __init__(self, function: Any, results: pa.Schema, keys: int, times: int, timed: bool) -> None:
        self._function, self._results = function, results
        self._keys, self._times, self._timed = keys, times, timed
        self._any_order, self._results_behind = function._any_order, function._results_behind
        self._timers_wait = function._timers_wait

    def open(self, runtime_context: RuntimeContext) -> None:
        self._shape = RecordShape(self._results)
        self._function.open(runtime_context)

    def close(self) -> None:
        self._function.close()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        return self._completed("on_timer", self._function.on_timer(timestamp, ctx), ctx)

    def _completed(self, method: str, made: Any, ctx: Any) -> Iterable[Any] | None:
        """Return the rows that a method has made, with the key and the time."""
        if made is None:
            return None
        if not self._keys:
            return self._between(method, made, (), ctx)
        key = ctx.get_current_key()
        return self._between(method, made, (key if self._keys > 1 else (key,)) * self._times, ctx)

    def _between(
        self, method: str, made: Any, before: tuple[Any, ...], ctx: Any
    ) -> Iterator[tuple[Any, ...]]:
        behind = (ctx.timestamp(),) if self._timed else ()
        for row in records(method, made):
            yield (*before, *self._shape.tuple_of(row, method), *behind)


class SingleRows(KeyedProcessFunction):
    """A function that is called for each row by itself, and has neither state nor timers.

    name: that of the query
    """

    def __init__(self, name: str, function: KeyedProcessFunction) -> None:
        self._name, self._function = name, function

    def open(self, runtime_context: RuntimeContext) -> None:
        without: Any = _Without(self._name, runtime_context, "state")
        self._function.open(without)

    def close(self) -> None:
        self._function.close()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        without: Any = _Without(self._name, ctx, "timer_service")
        return self._function.process_element(value, without)


class _Without:
    """Stands for what a function is handed, without what the rows of one key have."""

    def __init__(self, name: str, handed: Any, ending: str) -> None:
        self._name, self._handed, self._ending = name, handed, ending

    def __getattr__(self, asked: str) -> Any:
        if asked.endswith(self._ending):
            raise ArgumentValueError(
                f'functions[{self._name!r}] must have neither state nor timers with partition_by="none", got '
                f'{asked}(); pass partition_by="required", and write PARTITION BY, or "optional"'
            )
        return getattr(self._handed, asked)


class CalledOnTable(_Called, KeyedProcessFunction):
    """Runs a function of one table."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self._completed("process_element", self._function.process_element(value, ctx), ctx)


class CalledOnTwoTables(_Called, KeyedCoProcessFunction):
    """Runs a function of two tables."""

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self._completed("process_element1", self._function.process_element1(value, ctx), ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self._completed("process_element2", self._function.process_element2(value, ctx), ctx)


class CalledOnRow(_Called, KeyedProcessFunction):
    """Runs a function of one table whose rows have all columns of the table's row before them."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        made = self._function.process_element(value, ctx)
        return None if made is None else self._between("process_element", made, tuple(value), ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        made = self._function.on_timer(timestamp, ctx)
        for row in () if made is None else records("on_timer", made):
            raise ArgumentValueError(
                f"on_timer yielded {row!r}, where pass_columns_through has no row whose columns are before "
                "it; yield rows in process_element, or leave pass_columns_through out"
            )
        return None
