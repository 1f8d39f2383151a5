"""Asynchronous functions on a stream, with a simulated clock that advances only while all tasks wait."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_loop import ms, run

from timerheap.async_io import (
    AsyncFunction,
    AsyncRetryStrategy,
    AsyncWaitOperator,
    StreamRecord,
    Watermark,
    empty_result_predicate,
    exception_type_predicate,
    has_exception_predicate,
)
from timerheap.async_io.operator import QueueElement


async def feed(
    operator: AsyncWaitOperator[Any, Any],
    elements: list[Any],
    output: Callable[[QueueElement], object] | None = None,
) -> list[QueueElement]:
    """Process the elements, ints as watermarks, and return the output."""
    out: list[QueueElement] = []
    async with operator.open(output or out.append) as stream:
        for timestamp, element in enumerate(elements):
            if isinstance(element, int):
                await stream.process_watermark(element)
            else:
                await stream.process_element(element, timestamp)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return out


def values(out: list[QueueElement]) -> list[Any]:
    return [element.timestamp if isinstance(element, Watermark) else element.value for element in out]


@dataclass(frozen=True)
class Attempt:
    takes: int  # ms
    results: int | None  # None: the attempt fails


@dataclass(frozen=True)
class Call:
    """An element of a random stream, with the attempts of its call; the last attempt repeats."""

    name: str
    attempts: tuple[Attempt, ...]

    def attempt(self, number: int) -> Attempt:
        return self.attempts[min(number, len(self.attempts) - 1)]

    def results(self, number: int) -> list[Any]:
        return [(self.name, number, i) for i in range(self.attempt(number).results or 0)]

    def outcome(self, retry: AsyncRetryStrategy | None, timeout: int | None) -> list[Any] | None:
        """Return the results, or None for an error, if empty results and errors are retried."""
        elapsed = 0
        for number in itertools.count():
            elapsed += self.attempt(number).takes
            if timeout is not None and elapsed > timeout:
                return [(self.name, "timeout")]
            if self.attempt(number).results or retry is None or not retry.can_retry(number + 1):
                break
            elapsed += retry.get_backoff_time_millis(number + 1)
        return None if self.attempt(number).results is None else self.results(number)


@dataclass
class Scripted(AsyncFunction[Call, Any]):
    """A function that performs the attempts of its elements and counts calls."""

    attempts: Counter[str] = field(default_factory=Counter)
    running: set[str] = field(default_factory=set)
    most: int = 0
    opened: int = 0
    closed: int = 0

    def open(self, runtime_context: Any) -> None:
        self.opened += 1

    def close(self) -> None:
        assert not self.running
        self.closed += 1

    async def async_invoke(self, value: Call) -> list[Any]:
        number = self.attempts[value.name]
        self.attempts[value.name] += 1
        self.running.add(value.name)
        self.most = max(self.most, len(self.running))
        try:
            await asyncio.sleep(value.attempt(number).takes / 1000)
        finally:
            self.running.remove(value.name)
        if value.attempt(number).results is None:
            raise ConnectionError(value.name)
        return value.results(number)

    def timeout(self, value: Call) -> list[Any]:
        return [(value.name, "timeout")]


# Timeouts are odd and all other durations even, so that no call ends exactly at its timeout.
even = st.integers(0, 50).map(lambda n: 2 * n)

attempts = st.builds(Attempt, even, st.sampled_from([None, 0, 1, 1, 2]))

streams = st.lists(
    st.one_of(st.just(None), st.lists(attempts, min_size=1, max_size=3).map(tuple)), max_size=30
).map(lambda items: [n if item is None else Call(f"e{n}", item) for n, item in enumerate(items)])

retries = st.none() | st.builds(
    AsyncRetryStrategy.exponential_backoff,
    st.integers(1, 3),
    st.integers(1, 20).map(lambda n: 2 * n),
    st.just(40),
    st.just(2),
    st.just(empty_result_predicate),
    st.just(has_exception_predicate),
)

timeouts = st.none() | st.integers(0, 60).map(lambda n: 2 * n + 1)


@settings(max_examples=300)
@given(streams, st.integers(1, 8), st.booleans(), retries, timeouts)
@pytest.mark.promises("PyFlink", "supported", "has_exception_predicate")
def test_results_and_their_order_equal_the_model(
    stream: list[Any],
    capacity: int,
    ordered: bool,
    retry: AsyncRetryStrategy | None,
    timeout: int | None,
) -> None:
    outcomes = {e.name: e.outcome(retry, timeout) for e in stream if isinstance(e, Call)}
    function = Scripted()
    operator = AsyncWaitOperator(function, capacity=capacity, timeout=timeout, ordered=ordered, retry=retry)
    if None in outcomes.values():
        with pytest.raises(ConnectionError) as error:
            run(feed(operator, stream))
        assert outcomes[str(error.value)] is None
    else:
        out = values(run(feed(operator, stream)))
        expected = [r for e in stream for r in ([e] if isinstance(e, int) else outcomes[e.name])]
        if ordered:
            assert out == expected
        else:
            assert between_watermarks(out) == between_watermarks(expected)
    assert function.most <= capacity
    assert (function.opened, function.closed, function.running) == (1, 1, set())


def between_watermarks(elements: list[Any]) -> list[Any]:
    """Return the watermarks and the elements between them, in any order."""
    parts: list[Any] = [Counter()]
    for element in elements:
        if isinstance(element, int):
            parts += [element, Counter()]
        else:
            parts[-1][element] += 1
    return parts


async def sleeping(value: str) -> list[str]:
    """Return the value after 10 ms for each of its letters."""
    await asyncio.sleep(len(value) / 100)
    return [value]


def test_results_are_emitted_as_soon_as_the_order_allows() -> None:
    async def main(ordered: bool) -> list[Any]:
        out: list[Any] = []
        operator = AsyncWaitOperator(sleeping, ordered=ordered)
        await feed(operator, ["aaa", "b", 2, "cc"], lambda e: out.append((ms(), *values([e]))))
        return out

    assert run(main(ordered=True)) == [(30, "aaa"), (30, "b"), (30, 2), (30, "cc")]
    assert run(main(ordered=False)) == [(10, "b"), (30, "aaa"), (30, 2), (30, "cc")]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_element_waits_until_there_is_capacity(ordered: bool) -> None:
    async def main() -> None:
        async with AsyncWaitOperator(sleeping, capacity=2, ordered=ordered).open(print) as stream:
            await stream.process_element("aaa")
            await stream.process_watermark(5)  # a watermark counts toward the capacity
            assert ms() == 0
            await stream.process_element("b")
            assert ms() == 30
        assert ms() == 40

    run(main())


def test_a_function_that_never_awaits_returns_its_results() -> None:
    async def at_once(value: str) -> list[str]:
        return [value] * 2

    out = run(feed(AsyncWaitOperator(at_once, capacity=3), [*"abcdefg", 7]))
    assert out == [
        *(StreamRecord(letter, n) for n, letter in enumerate("abcdefg") for _ in range(2)),
        Watermark(7),
    ]


@pytest.mark.promises("PyFlink", "supported", "AsyncFunction.timeout")
def test_a_timeout_names_the_element_and_cancels_the_call() -> None:
    cancelled = []

    async def slow(value: str) -> list[str]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append((value, ms()))
            raise
        return []

    with pytest.raises(TimeoutError, match="timed out for input: 'N1'") as error:
        run(feed(AsyncWaitOperator(slow, timeout=timedelta(seconds=5)), ["N1", "N2"]))
    assert cancelled == [("N1", 5000), ("N2", 5000)]
    assert error.value.__notes__ == ["timerheap: for the element 'N1'"]


@pytest.mark.parametrize("stubborn", ["returns", "fails"])
def test_a_result_or_an_error_after_the_timeout_is_dropped(stubborn: str) -> None:
    calls = []

    class Stubborn(AsyncFunction[str, str]):
        async def async_invoke(self, value: str) -> list[str]:
            calls.append(value)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
            if stubborn == "fails":
                raise ConnectionError
            return ["too late"]

        async def timeout(self, value: str) -> list[str]:  # type: ignore[override]
            await asyncio.sleep(1)
            return [f"no answer for {value}"]

    retry = AsyncRetryStrategy.fixed_delay(9, 1, exception_predicate=has_exception_predicate)
    assert values(run(feed(AsyncWaitOperator(Stubborn(), timeout=100, retry=retry), ["N1"]))) == [
        "no answer for N1"
    ]
    assert calls == ["N1"]


def test_a_timeout_error_of_the_function_itself_is_raised() -> None:
    async def fails(value: str) -> list[str]:
        raise TimeoutError("the server says so")

    class Fails(AsyncFunction[str, str]):
        async_invoke = staticmethod(fails)  # type: ignore[assignment]

        def timeout(self, value: str) -> list[str]:
            raise AssertionError("this is not our timeout")

    with pytest.raises(TimeoutError, match="the server says so"):
        run(feed(AsyncWaitOperator(Fails(), timeout=100), ["N1"]))


def test_an_error_cancels_all_calls_and_awaits_them() -> None:
    left = []

    async def call(value: str) -> list[str]:
        try:
            await asyncio.sleep(0.1 if value == "bad" else 10)
        finally:
            await asyncio.sleep(0.5)  # a connection that takes time to close
            left.append(value)
        raise ValueError(value)

    with pytest.raises(ValueError, match="bad") as error:
        run(feed(AsyncWaitOperator(call, capacity=4), ["a", "b", "bad", "c", "d"]))
    assert sorted(left) == ["a", "b", "bad", "c"]
    assert error.value.__notes__ == ["timerheap: for the element 'bad'"]
    assert error.value.__context__ is None


def test_a_note_truncates_a_long_element() -> None:
    async def fails(value: str) -> list[str]:
        raise ValueError

    with pytest.raises(ValueError) as error:  # noqa: PT011
        run(feed(AsyncWaitOperator(fails), ["x" * 10_000]))
    assert error.value.__notes__ == [f"timerheap: for the element '{'x' * 499}..."]


def test_an_error_in_the_block_or_the_output_is_raised_and_closes_the_function() -> None:
    function = Scripted()

    async def block() -> None:
        async with AsyncWaitOperator(function).open(print) as stream:
            await stream.process_element(Call("e", (Attempt(10, 1),)))
            await asyncio.sleep(0.001)
            raise LookupError("of the block")

    def output(element: QueueElement) -> None:
        raise LookupError("of the output")

    with pytest.raises(LookupError, match="of the block"):
        run(block())
    with pytest.raises(LookupError, match="of the output"):
        run(feed(AsyncWaitOperator(function), [Call("f", (Attempt(10, 1),))], output))
    assert (function.opened, function.closed, function.running) == (2, 2, set())


def test_a_cancelled_task_cancels_its_calls_and_closes_the_function() -> None:
    function = Scripted()

    async def main() -> None:
        stream = [Call(f"e{n}", (Attempt(1000, 1),)) for n in range(9)]
        task = asyncio.create_task(feed(AsyncWaitOperator(function, capacity=3), stream))
        await asyncio.sleep(0.5)
        assert len(function.running) == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())
    assert (function.closed, function.running) == (1, set())


@pytest.mark.parametrize("where", ["async_invoke", "timeout"])
def test_a_call_cancelled_from_inside_raises_and_loses_no_element(where: str) -> None:
    class Gone(AsyncFunction[str, str]):
        async def async_invoke(self, value: str) -> list[str]:
            await (self.gone() if where == "async_invoke" else asyncio.sleep(60))
            return []

        def timeout(self, value: str) -> Awaitable[list[str]]:
            return self.gone()

        async def gone(self) -> list[str]:
            other = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(other.cancel)
            await other
            return []

    with pytest.raises(RuntimeError, match="cancelled by something inside it") as error:
        run(feed(AsyncWaitOperator(Gone(), timeout=100), ["N1"]))
    assert error.value.__notes__ == ["timerheap: for the element 'N1'"]


def test_open_and_close_may_be_coroutines_and_a_failed_open_is_not_closed() -> None:
    log: list[str] = []

    class Client(AsyncFunction[str, str]):
        async def open(self, runtime_context: Any) -> None:
            log.append("open")
            with pytest.raises(NotImplementedError, match="state must not be used in an AsyncFunction"):
                runtime_context.get_state(None)
            await asyncio.sleep(0.1)
            if len(log) > 3:
                raise ConnectionRefusedError

        async def close(self) -> None:
            await asyncio.sleep(0.1)
            log.append("close")

        async def async_invoke(self, value: str) -> list[str]:
            log.append(value)
            return []

    operator = AsyncWaitOperator(Client())
    assert run(feed(operator, ["a"])) == []
    assert log == ["open", "a", "close"]
    with pytest.raises(ConnectionRefusedError):
        run(feed(operator, ["a"]))
    assert log == ["open", "a", "close", "open"]


@pytest.mark.parametrize("results", [None, "text", b"bytes", 5])
def test_results_that_are_not_a_collection_raise(results: Any) -> None:
    async def call(value: str) -> Any:
        return results

    with pytest.raises(TypeError, match=r"results must be a list, got .*; return \[\] where there are no"):
        run(feed(AsyncWaitOperator(call), ["a"]))


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "AsyncRetryStrategy.fixed_delay",
    "AsyncRetryStrategy.get_retry_predicate",
    "FixedDelayRetryStrategy",
    "AsyncRetryPredicate.result_predicate",
    "AsyncRetryPredicate.exception_predicate",
    "RetryPredicate",
    "exception_type_predicate",
)
def test_a_retry_waits_for_its_delay_and_only_follows_expected_failures() -> None:
    calls: list[Any] = []

    async def call(value: str) -> list[str]:
        calls.append(ms())
        await asyncio.sleep(0.01)
        if len(calls) == 1:
            raise ConnectionResetError
        return [value] * (len(calls) > 2)

    only = partial(exception_type_predicate, expected_error_type=ConnectionError)
    retry = AsyncRetryStrategy.fixed_delay(5, 100, empty_result_predicate, only)
    assert values(run(feed(AsyncWaitOperator(call, retry=retry), ["N1"]))) == ["N1"]
    assert calls == [0, 110, 220]

    calls.clear()
    other = partial(exception_type_predicate, expected_error_type=KeyError)
    retry = AsyncRetryStrategy.fixed_delay(5, 100, exception_predicate=other)
    with pytest.raises(ConnectionResetError):
        run(feed(AsyncWaitOperator(call, retry=retry), ["N1"]))
