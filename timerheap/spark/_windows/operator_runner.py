"""What `window_operator` runs in tasks: Flink's operator as a function, with labels for its results."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from timerheap._values import records
from timerheap.errors import ArgumentRangeError, ArgumentValueError
from timerheap.functions import KeyedProcessFunction, RuntimeContext
from timerheap.output_tag import OutputTag, is_tagged
from timerheap.row import Row
from timerheap.spark._columns import LATE_ROWS
from timerheap.timer import MAX_WATERMARK
from timerheap.windows import ProcessWindowFunction, WindowOperator

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATE = OutputTag(LATE_ROWS, "null")  # the type is that of the query


class HostedWindows(WindowOperator, KeyedProcessFunction):
    """The window operator as a function that `process` runs."""

    _any_order = True


def late_tagged(value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
    late_by = ctx.timer_service().current_watermark() + 1 - ctx.timestamp()
    return [(_LATE, (*value, min(late_by, MAX_WATERMARK)))]


class Labelled(ProcessWindowFunction):
    """Adds the key and the window to the results of a window function."""

    def __init__(self, function: Any, keys: int, names: list[str]) -> None:
        self._function = function  # None if the elements themselves are the results
        self._keys = keys  # the number of columns
        self._names = names

    def open(self, runtime_context: RuntimeContext) -> None:
        if self._function is not None:
            self._function.open(runtime_context)

    def close(self) -> None:
        if self._function is not None:
            self._function.close()

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        if isinstance(self._function, ProcessWindowFunction):
            self._function.clear(context)

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Any) -> Iterable[Any]:
        function, window = self._function, context.window()
        if isinstance(function, ProcessWindowFunction):
            results = records("process", function.process(key, context, elements))
        elif function is not None:
            results = records("apply", function.apply(key, window, elements))
        else:
            results = elements
        keys = (key,) if self._keys == 1 else key
        label = (*keys, _bound_of(window.start), _bound_of(window.end))
        for result in results:
            if is_tagged(result):
                yield result
                continue
            yield (*label, *self._row(result))

    def _row(self, result: Any) -> tuple[Any, ...]:
        names = self._names
        if isinstance(result, Row):
            result = result.as_dict() if result.has_field_names() else tuple(result)
        if isinstance(result, dict) and result.keys() <= set(names):
            return tuple(result.get(name) for name in names)
        if isinstance(result, tuple if len(names) == 1 else (tuple, list)) and len(result) == len(names):
            return tuple(result)
        if len(names) == 1 and not isinstance(result, (tuple, dict)):
            return (result,)
        raise ArgumentValueError(
            f"the window's function must return results that fit output_schema's columns {names}, got "
            f"{result!r}; return a tuple or Row with {len(names)} values, or a dict with these names"
        )


def _bound_of(millis: int | None) -> datetime | None:
    try:
        return None if millis is None else _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        raise ArgumentRangeError(
            f"window_start and window_end must be between the years 1 and 9999, got {millis} ms"
        ) from None
