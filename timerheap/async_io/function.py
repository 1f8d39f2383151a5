"""The user's function: one asynchronous call for each element."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, NoReturn, TypeVar, cast

from timerheap.errors import ArgumentTypeError, UnsupportedError
from timerheap.functions import RuntimeContext

IN = TypeVar("IN")
OUT = TypeVar("OUT")
T = TypeVar("T")


class AsyncFunction(ABC, Generic[IN, OUT]):
    """One asynchronous call for each element (``pyflink.datastream.AsyncFunction``).

    All methods run in the event loop that makes the calls, so `open` may create a client session. All methods
    except `async_invoke` may be either coroutine functions or plain functions.

    Examples
    --------
    >>> class Model(AsyncFunction):
    ...     async def open(self, runtime_context):
    ...         self.session = aiohttp.ClientSession("https://planes.example")
    ...     async def close(self):
    ...         await self.session.close()
    ...     async def async_invoke(self, value):
    ...         async with self.session.get(f"/tail/{value}") as response:
    ...             return [(value, (await response.json())["model"])]
    ...     def timeout(self, value):
    ...         return [(value, None)]
    """

    def open(self, runtime_context: RuntimeContext) -> Awaitable[None] | None:
        """Prepare the function, once, before the first call; `runtime_context` has no state."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Release what `open` acquired, once, after the last call or after an error."""
        return None

    @abstractmethod
    async def async_invoke(self, value: IN) -> Iterable[OUT]:
        """Make the call for one element.

        Returns
        -------
        iterable
            0 or more results. An exception stops the stream, unless a retry strategy handles it.
        """

    def timeout(self, value: IN) -> Iterable[OUT] | Awaitable[Iterable[OUT]]:
        """Return the results of an element whose calls have timed out; by default raise a TimeoutError."""
        raise TimeoutError(f"Async function call has timed out for input: {value!r}")


class _Call(AsyncFunction[IN, OUT]):
    """An AsyncFunction that calls a coroutine function."""

    def __init__(self, call: Callable[[IN], Awaitable[Iterable[OUT]]]) -> None:
        self._call = call

    async def async_invoke(self, value: IN) -> Iterable[OUT]:
        return await self._call(value)


def as_async_function(function: object) -> AsyncFunction[Any, Any]:
    """Return a coroutine function or an `AsyncFunction` as the latter, or raise an ArgumentTypeError."""
    if isinstance(function, type):
        raise ArgumentTypeError(
            f"function must be an instance, got the class {function.__name__}; "
            f"pass {function.__name__}() instead"
        )
    call = function.async_invoke if isinstance(function, AsyncFunction) else function
    if not any(map(inspect.iscoroutinefunction, (call, type(call).__call__))):
        raise ArgumentTypeError(
            f"function must be a coroutine function or an AsyncFunction, got {call!r}; "
            "write it with 'async def' and 'return'"
        )
    if isinstance(function, AsyncFunction):
        return function
    return _Call(cast(Callable[[Any], Awaitable[Iterable[Any]]], function))


async def finished(result: Awaitable[T] | T) -> T:
    """Return what a method has returned, or await it if it is a coroutine."""
    return await result if inspect.isawaitable(result) else result


class Stateless(RuntimeContext):
    """The context of a function whose stream is not keyed."""

    def _refuse(self, state_descriptor: object = None) -> NoReturn:
        raise UnsupportedError(
            "state must not be used in an AsyncFunction, because its stream is not keyed; "
            "keep it in a KeyedProcessFunction before or after"
        )

    get_state = get_list_state = get_map_state = get_reducing_state = get_aggregating_state = _refuse
    get_max_number_of_parallel_subtasks = _refuse

    def get_metrics_group(self) -> NoReturn:
        """Raise UnsupportedError: the results have no column for metrics."""
        raise UnsupportedError(
            "get_metrics_group is not supported in an AsyncFunction; count in a KeyedProcessFunction before "
            "or after"
        )
