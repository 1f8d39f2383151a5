"""Asynchronous functions on streams: concurrent calls, ordered or not, with timeouts and retries."""

from timerheap._elements import StreamRecord, Watermark
from timerheap.async_io.function import AsyncFunction
from timerheap.async_io.operator import AsyncInput, AsyncWaitOperator
from timerheap.async_io.retry import (
    NO_RETRY_STRATEGY,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    ExponentialBackoffDelayRetryStrategy,
    FixedDelayRetryStrategy,
    NoRetryStrategy,
    RetryPredicate,
    empty_result_predicate,
    exception_type_predicate,
    has_exception_predicate,
)

__all__ = [
    "NO_RETRY_STRATEGY",
    "AsyncFunction",
    "AsyncInput",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "AsyncWaitOperator",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
    "StreamRecord",
    "Watermark",
    "empty_result_predicate",
    "exception_type_predicate",
    "has_exception_predicate",
]
