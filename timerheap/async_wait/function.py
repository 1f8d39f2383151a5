"""What a user writes: one asynchronous call for each element."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, NoReturn, TypeVar, cast

from timerheap.functions import RuntimeContext

__all__ = ["AsyncFunction", "as_async_function", "finished"]

IN = TypeVar("IN")
OUT = TypeVar("OUT")
T = TypeVar("T")


class AsyncFunction(ABC, Generic[IN, OUT]):
    """One asynchronous call for each element (``pyflink.datastream.AsyncFunction``).

    All methods run in the event loop that makes the calls, so a client session may be made in `open`. All
    but `async_invoke` may be coroutine functions or plain ones.

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
        """Prepare, once, before the first call; there is no state to ask `runtime_context` for."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Release what `open` took, once, after the last call; also if a call has failed."""
        return None

    @abstractmethod
    async def async_invoke(self, value: IN) -> Iterable[OUT]:
        """Make the call for one element.

        Returns
        -------
        iterable
            0 or more results. An exception ends it all, unless a retry strategy takes it.
        """

    def timeout(self, value: IN) -> Iterable[OUT] | Awaitable[Iterable[OUT]]:
        """Give the results of an element whose calls have taken too long; by default a TimeoutError."""
        raise TimeoutError(f"Async function call has timed out for input: {value!r}")


class _Call(AsyncFunction[IN, OUT]):
    """A coroutine function as an AsyncFunction."""

    def __init__(self, call: Callable[[IN], Awaitable[Iterable[OUT]]]) -> None:
        self._call = call

    async def async_invoke(self, value: IN) -> Iterable[OUT]:
        return await self._call(value)


def as_async_function(function: object) -> AsyncFunction[Any, Any]:
    """Give a coroutine function or an `AsyncFunction` as the latter; a TypeError says what `function` is."""
    if isinstance(function, type):
        raise TypeError(
            f"function: {function.__name__} is a class; give an instance of it: {function.__name__}()"
        )
    call = function.async_invoke if isinstance(function, AsyncFunction) else function
    if not any(map(inspect.iscoroutinefunction, (call, type(call).__call__))):
        raise TypeError(
            f"function: {call!r} is no coroutine function; "
            "write it with 'async def' and 'return', or give an AsyncFunction"
        )
    if isinstance(function, AsyncFunction):
        return function
    return _Call(cast(Callable[[Any], Awaitable[Iterable[Any]]], function))


async def finished(result: Awaitable[T] | T) -> T:
    """Give what a method has returned, or what the coroutine that it has returned returns."""
    return await result if inspect.isawaitable(result) else result


class Stateless(RuntimeContext):
    """The context of a function whose stream has no keys."""

    def _refuse(self, state_descriptor: object = None) -> NoReturn:
        raise NotImplementedError(
            "an AsyncFunction has no state, since its stream has no keys; "
            "keep it in a KeyedProcessFunction before or after"
        )

    get_state = get_list_state = get_map_state = _refuse

    def get_max_number_of_parallel_subtasks(self) -> NoReturn:
        """Refused: there are no key groups."""
        self._refuse()
