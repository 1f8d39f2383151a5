"""Arguments and retries of asynchronous functions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from simulated_loop import run

from timerheap.async_io import (
    NO_RETRY_STRATEGY,
    AsyncFunction,
    AsyncRetryStrategy,
    AsyncWaitOperator,
    empty_result_predicate,
    has_exception_predicate,
)

fixed = partial(AsyncRetryStrategy.fixed_delay, exception_predicate=has_exception_predicate)

backoff = partial(
    AsyncRetryStrategy.exponential_backoff,
    max_attempts=3,
    initial_delay=10,
    max_retry_delay=100,
    multiplier=2,
    exception_predicate=has_exception_predicate,
)


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "AsyncRetryStrategy.can_retry",
    "AsyncRetryStrategy.get_backoff_time_millis",
    "AsyncRetryStrategy.no_restart",
    "AsyncRetryStrategy.exponential_backoff",
    "ExponentialBackoffDelayRetryStrategy",
    "NoRetryStrategy",
    "NO_RETRY_STRATEGY",
    "empty_result_predicate",
)
def test_backoff_delays_equal_javas() -> None:
    """Each delay is the last one times the factor, truncated to whole ms, as in Java."""
    waits = {
        (100, 1000, 2.0): [100, 200, 400, 800, 1000, 1000],
        (100, 1000, 1.5): [100, 150, 225, 337, 505, 757],
        (1, 1000, 1.5): [1, 1, 1, 1, 1, 1],
        (500, 100, 3): [500, 100, 100, 100, 100, 100],
        (100, 1000, 0.1): [100, 10, 1, 0, 0, 0],
        (100, 1000, 1e308): [100, 1000, 1000, 1000, 1000, 1000],
    }
    for (initial, most, factor), expected in waits.items():
        strategy = AsyncRetryStrategy.exponential_backoff(
            6, timedelta(milliseconds=initial), most, factor, empty_result_predicate
        )
        assert [strategy.get_backoff_time_millis(n) for n in (3, 1, 2, 3, 4, 5, 6)][1:] == expected
        assert [strategy.can_retry(n) for n in (1, 6, 7)] == [True, True, False]
    assert AsyncRetryStrategy.no_restart() is NO_RETRY_STRATEGY
    assert not NO_RETRY_STRATEGY.can_retry(1)


class Plain(AsyncFunction[str, str]):
    def async_invoke(self, value: str) -> Any:
        return [value]


async def fine(value: str) -> list[str]:
    return [value]


async def generates(value: str) -> Any:
    yield value


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "not a function": (lambda: AsyncWaitOperator(5), TypeError, "function must be a coroutine .*, got 5"),  # type: ignore[arg-type]
    "plain function": (lambda: AsyncWaitOperator(len), TypeError, "got .*len.*; write it"),  # type: ignore[arg-type]
    "generator": (lambda: AsyncWaitOperator(generates), TypeError, "function must be .*, got .*generates"),  # type: ignore[arg-type]
    "plain method": (lambda: AsyncWaitOperator(Plain()), TypeError, "function must be .*Plain.async_invoke"),
    "class": (lambda: AsyncWaitOperator(Plain), TypeError, r"the class Plain; pass Plain\(\)"),  # type: ignore[arg-type]
    "capacity 0": (lambda: AsyncWaitOperator(fine, capacity=0), ValueError, "capacity must be 1 or more"),
    "capacity 1.5": (lambda: AsyncWaitOperator(fine, capacity=1.5), TypeError, "capacity must be an int"),  # type: ignore[arg-type]
    "timeout 0": (lambda: AsyncWaitOperator(fine, timeout=0), ValueError, "timeout must be 1 ms or more"),
    "timeout -1": (lambda: AsyncWaitOperator(fine, timeout=-1), ValueError, "timeout must be 0 or more"),
    "timeout text": (lambda: AsyncWaitOperator(fine, timeout="5s"), ValueError, "timeout .* got '5s'"),
    "ordered": (lambda: AsyncWaitOperator(fine, ordered="no"), TypeError, "ordered must be True or False"),  # type: ignore[arg-type]
    "retry": (lambda: AsyncWaitOperator(fine, retry=3), TypeError, "retry must be an AsyncRetryStr"),  # type: ignore[arg-type]
    "attempts": (lambda: fixed(0, 10), ValueError, "max_attempts must be 1 or more, got 0"),
    "attempts text": (lambda: fixed("3", 10), TypeError, "max_attempts must be an int, got '3'"),
    "delay 0": (lambda: fixed(3, 0), ValueError, "backoff_time_millis must be more than 0 ms, got 0"),
    "predicates missing": (
        lambda: AsyncRetryStrategy.fixed_delay(3, 10),
        ValueError,
        "got None for both, which would never retry",
    ),
    "predicate not callable": (
        lambda: fixed(3, 10, exception_predicate=OSError("gone")),
        TypeError,
        r"exception_predicate must be a function .* got OSError\('gone'\)",
    ),
    "initial delay": (lambda: backoff(initial_delay=0), ValueError, "initial_delay must be more than 0"),
    "maximum delay": (lambda: backoff(max_retry_delay=1.5), TypeError, "max_retry_delay must be an int of"),
    "multiplier nan": (lambda: backoff(multiplier=float("nan")), ValueError, "multiplier must be more than"),
    "multiplier text": (lambda: backoff(multiplier="2"), TypeError, "multiplier must be a number, got '2'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_argument_raises_an_error_that_names_it(name: str) -> None:
    make, error, message = BAD[name]
    with pytest.raises(error, match=message):
        make()


def test_an_invalid_watermark_raises_and_takes_no_capacity() -> None:
    async def main() -> None:
        async with AsyncWaitOperator(fine, capacity=1).open(print) as stream:
            with pytest.raises(TypeError, match=r"watermark must be an int, got 1\.5"):
                await stream.process_watermark(1.5)  # type: ignore[arg-type]
            await stream.process_watermark(1)
            await stream.process_element("a")

    run(main())
