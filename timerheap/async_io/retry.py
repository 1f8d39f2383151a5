"""Strategies for retrying asynchronous calls."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from timerheap._arguments import Length, positive, positive_int
from timerheap.errors import ArgumentTypeError, ArgumentValueError

ResultPredicate = Callable[[list[Any]], bool]
ExceptionPredicate = Callable[[Exception], bool]


def empty_result_predicate(result: list[Any]) -> bool:
    """Return whether there are no results; for use as ``result_predicate``."""
    return not result


def has_exception_predicate(error: Exception) -> bool:
    """Return True for any exception; for use as ``exception_predicate``."""
    return True


def exception_type_predicate(error: Exception, expected_error_type: type[Exception]) -> bool:
    """Return whether an exception is of a type; use ``functools.partial`` to make an ``exception_predicate``.

    Examples
    --------
    >>> from functools import partial
    >>> AsyncRetryStrategy.fixed_delay(
    ...     max_attempts=3,
    ...     backoff_time_millis=100,
    ...     exception_predicate=partial(exception_type_predicate, expected_error_type=ConnectionError),
    ... ).get_retry_predicate().exception_predicate()(ConnectionResetError())
    True
    """
    return isinstance(error, expected_error_type)


class AsyncRetryPredicate(ABC):
    """Defines which attempts have failed (``pyflink.datastream.AsyncRetryPredicate``)."""

    @abstractmethod
    def result_predicate(self) -> ResultPredicate | None:
        """Return a function from the list of results to whether to retry; None never retries on results."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """Return a function from the exception to whether to retry; None never retries on exceptions."""


class RetryPredicate(AsyncRetryPredicate):
    """A predicate of two functions (``pyflink.datastream.async_retry_strategies.RetryPredicate``)."""

    def __init__(
        self, result_predicate: ResultPredicate | None, exception_predicate: ExceptionPredicate | None
    ) -> None:
        given = {"result_predicate": result_predicate, "exception_predicate": exception_predicate}
        for argument, value in given.items():
            if value is not None and not callable(value):
                raise ArgumentTypeError(
                    f"{argument} must be a function that returns whether to retry, got {value!r}"
                )
        self._result_predicate = result_predicate
        self._exception_predicate = exception_predicate

    def result_predicate(self) -> ResultPredicate | None:
        return self._result_predicate

    def exception_predicate(self) -> ExceptionPredicate | None:
        return self._exception_predicate


class AsyncRetryStrategy(ABC):
    """Defines whether, when and how often to retry (``pyflink.datastream.AsyncRetryStrategy``).

    One strategy serves all elements, so its results should depend only on its arguments.

    Examples
    --------
    >>> strategy = AsyncRetryStrategy.exponential_backoff(
    ...     max_attempts=3,
    ...     initial_delay=100,
    ...     max_retry_delay=300,
    ...     multiplier=2.0,
    ...     exception_predicate=has_exception_predicate,
    ... )
    >>> [strategy.get_backoff_time_millis(n) for n in (1, 2, 3) if strategy.can_retry(n)]
    [100, 200, 300]
    >>> strategy.can_retry(4)  # three retries, so four attempts in all
    False
    """

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Return whether another attempt may follow `current_attempts`, which is 1 or more."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Return the delay in ms before the attempt that follows `current_attempts`."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Return the predicate that defines a failed attempt."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Return a strategy that never retries."""
        return NO_RETRY_STRATEGY

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: Length,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Return a strategy with a constant delay; see `FixedDelayRetryStrategy`."""
        return FixedDelayRetryStrategy(
            max_attempts, backoff_time_millis, result_predicate, exception_predicate
        )

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: Length,
        max_retry_delay: Length,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Return a strategy with increasing delays; see `ExponentialBackoffDelayRetryStrategy`."""
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class NoRetryStrategy(AsyncRetryStrategy):
    """A strategy that never retries."""

    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return -1  # as in Flink

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return RetryPredicate(None, None)


NO_RETRY_STRATEGY: AsyncRetryStrategy = NoRetryStrategy()


class _Bounded(AsyncRetryStrategy):
    """A strategy with a limited number of retries and two predicate functions."""

    def __init__(
        self,
        max_attempts: int,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        self._max_attempts = positive_int("max_attempts", max_attempts)
        if result_predicate is None and exception_predicate is None:
            raise ArgumentValueError(
                "result_predicate or exception_predicate must be a function, got None for both, which would "
                "never retry; pass one, such as exception_predicate=has_exception_predicate"
            )
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self._predicate


class FixedDelayRetryStrategy(_Bounded):
    """Retries after a constant delay; Flink's class of that name.

    Parameters
    ----------
    max_attempts : int
        The maximum number of retries after the first attempt, 1 or more.
    backoff_time_millis : int, timedelta or str
        The delay before each retry in ms, more than 0.
    result_predicate, exception_predicate : callable, optional
        Functions of the list of results, and of the exception, that return whether to retry. At least one is
        required.
    """

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: Length,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> None:
        super().__init__(max_attempts, result_predicate, exception_predicate)
        self._backoff_time_millis = positive("backoff_time_millis", backoff_time_millis)

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return self._backoff_time_millis


class ExponentialBackoffDelayRetryStrategy(_Bounded):
    """Retries after delays that grow by a factor; Flink's class of that name.

    Flink stores the last delay in the strategy, where concurrent elements overwrite it; here each element has
    its own sequence of delays.

    Parameters
    ----------
    max_attempts : int
        The maximum number of retries after the first attempt, 1 or more.
    initial_delay, max_retry_delay : int, timedelta or str
        The delay before the first retry, and the maximum of the later delays, in ms, more than 0.
    multiplier : float
        The factor from each delay to the next, which is truncated to whole ms; more than 0.
    result_predicate, exception_predicate : callable, optional
        Functions of the list of results, and of the exception, that return whether to retry. At least one is
        required.
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: Length,
        max_retry_delay: Length,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> None:
        super().__init__(max_attempts, result_predicate, exception_predicate)
        self._initial_delay = positive("initial_delay", initial_delay)
        self._max_retry_delay = positive("max_retry_delay", max_retry_delay)
        if not isinstance(multiplier, (int, float)) or isinstance(multiplier, bool):
            raise ArgumentTypeError(f"multiplier must be a number, got {multiplier!r}")
        if not 0 < multiplier < math.inf:
            raise ArgumentValueError(f"multiplier must be more than 0 and finite, got {multiplier!r}")
        self._multiplier = multiplier

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        delay = self._initial_delay
        for _ in range(current_attempts - 1):
            last, delay = delay, int(min(delay * self._multiplier, self._max_retry_delay))
            if delay == last:
                break
        return delay
