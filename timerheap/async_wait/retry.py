"""When an asynchronous call is made again, and after how long."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from timerheap.duration import not_negative

__all__ = [
    "NO_RETRY_STRATEGY",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
    "empty_result_predicate",
    "exception_type_predicate",
    "has_exception_predicate",
]

ResultPredicate = Callable[[list[Any]], bool]
ExceptionPredicate = Callable[[Exception], bool]


def empty_result_predicate(result: list[Any]) -> bool:
    """Tell whether there is no result: a ready-made ``result_predicate``."""
    return not result


def has_exception_predicate(error: Exception) -> bool:
    """Tell that there is an exception: a ready-made ``exception_predicate``."""
    return True


def exception_type_predicate(error: Exception, expected_error_type: type[Exception]) -> bool:
    """Tell whether an exception is of a type: ``functools.partial`` makes it an ``exception_predicate``.

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
    """What counts as a failed attempt (``pyflink.datastream.AsyncRetryPredicate``)."""

    @abstractmethod
    def result_predicate(self) -> ResultPredicate | None:
        """Give what tells, of the list of results, whether to try again; None: never for a result."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """Give what tells, of the exception, whether to try again; None: never for an exception."""


class RetryPredicate(AsyncRetryPredicate):
    """Two functions as a predicate (``pyflink.datastream.async_retry_strategies.RetryPredicate``)."""

    def __init__(
        self, result_predicate: ResultPredicate | None, exception_predicate: ExceptionPredicate | None
    ) -> None:
        for argument, value in (
            ("result_predicate", result_predicate),
            ("exception_predicate", exception_predicate),
        ):
            if value is not None and not callable(value):
                raise TypeError(f"{argument}: {value!r} is no function; give one that tells whether to retry")
        self._result_predicate = result_predicate
        self._exception_predicate = exception_predicate

    def result_predicate(self) -> ResultPredicate | None:
        """See `AsyncRetryPredicate.result_predicate`."""
        return self._result_predicate

    def exception_predicate(self) -> ExceptionPredicate | None:
        """See `AsyncRetryPredicate.exception_predicate`."""
        return self._exception_predicate


class AsyncRetryStrategy(ABC):
    """Whether, when and how often to try again (``pyflink.datastream.AsyncRetryStrategy``).

    One object serves all elements at once, so its answers should depend on its arguments alone.

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
        """Tell whether there may be another attempt after `current_attempts`, which is 1 or more."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Give the wait, in ms, before the attempt that follows after `current_attempts`."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Give what counts as a failed attempt."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Never try again."""
        return NO_RETRY_STRATEGY

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int | timedelta,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Try again after a wait that is always the same; see `FixedDelayRetryStrategy`."""
        return FixedDelayRetryStrategy(
            max_attempts, backoff_time_millis, result_predicate, exception_predicate
        )

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int | timedelta,
        max_retry_delay: int | timedelta,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Try again after waits that grow; see `ExponentialBackoffDelayRetryStrategy`."""
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class NoRetryStrategy(AsyncRetryStrategy):
    """Never try again."""

    def can_retry(self, current_attempts: int) -> bool:
        """See `AsyncRetryStrategy.can_retry`."""
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """See `AsyncRetryStrategy.get_backoff_time_millis`; -1, as in Flink."""
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """See `AsyncRetryStrategy.get_retry_predicate`."""
        return RetryPredicate(None, None)


NO_RETRY_STRATEGY: AsyncRetryStrategy = NoRetryStrategy()


class _Bounded(AsyncRetryStrategy):
    """So many retries, of what two functions call a failure."""

    def __init__(
        self,
        max_attempts: int,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        if not isinstance(max_attempts, int) or isinstance(max_attempts, bool):
            raise TypeError(f"max_attempts: {max_attempts!r} is no int; give the number of retries")
        if max_attempts < 1:
            raise ValueError(f"max_attempts: {max_attempts} retries; give 1 or more, or no strategy")
        if result_predicate is None and exception_predicate is None:
            raise ValueError(
                "result_predicate, exception_predicate: both are None, so nothing would ever be retried; "
                "give one, such as exception_predicate=has_exception_predicate"
            )
        self._max_attempts = max_attempts
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        """See `AsyncRetryStrategy.can_retry`."""
        return current_attempts <= self._max_attempts

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """See `AsyncRetryStrategy.get_retry_predicate`."""
        return self._predicate


class FixedDelayRetryStrategy(_Bounded):
    """Retries after a wait that is always the same; Flink's class of that name.

    Parameters
    ----------
    max_attempts : int
        How many retries follow the first attempt, 1 or more.
    backoff_time_millis : int or timedelta
        The wait before each, in ms, more than 0.
    result_predicate : callable, optional
        List of results -> whether to try again.
    exception_predicate : callable, optional
        Exception -> whether to try again. One of the two must be given.
    """

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int | timedelta,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> None:
        super().__init__(max_attempts, result_predicate, exception_predicate)
        self._backoff_time_millis = _positive("backoff_time_millis", backoff_time_millis)

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """See `AsyncRetryStrategy.get_backoff_time_millis`."""
        return self._backoff_time_millis


class ExponentialBackoffDelayRetryStrategy(_Bounded):
    """Retries after waits that grow by a factor; Flink's class of that name.

    Flink keeps the last wait in the strategy, where the elements in flight overwrite each other's; here
    each element has its own row of waits.

    Parameters
    ----------
    max_attempts : int
        How many retries follow the first attempt, 1 or more.
    initial_delay : int or timedelta
        The wait before the first retry, in ms, more than 0.
    max_retry_delay : int or timedelta
        No later wait is longer, in ms, more than 0.
    multiplier : float
        What each wait is multiplied with (and cut to whole ms) for the next, more than 0.
    result_predicate : callable, optional
        List of results -> whether to try again.
    exception_predicate : callable, optional
        Exception -> whether to try again. One of the two must be given.
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: int | timedelta,
        max_retry_delay: int | timedelta,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> None:
        super().__init__(max_attempts, result_predicate, exception_predicate)
        self._initial_delay = _positive("initial_delay", initial_delay)
        self._max_retry_delay = _positive("max_retry_delay", max_retry_delay)
        if not isinstance(multiplier, (int, float)) or isinstance(multiplier, bool):
            raise TypeError(f"multiplier: {multiplier!r} is no number")
        if not 0 < multiplier < math.inf:
            raise ValueError(f"multiplier: {multiplier!r} must be more than 0, and finite")
        self._multiplier = multiplier

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """See `AsyncRetryStrategy.get_backoff_time_millis`; O(`current_attempts`)."""
        delay = self._initial_delay
        for _ in range(current_attempts - 1):
            last, delay = delay, int(min(delay * self._multiplier, self._max_retry_delay))
            if delay == last:
                break
        return delay


def _positive(argument: str, duration: int | timedelta) -> int:
    ms = not_negative(argument, duration)
    if ms == 0:
        raise ValueError(f"{argument}: {duration!r} must be more than 0 ms")
    return ms
