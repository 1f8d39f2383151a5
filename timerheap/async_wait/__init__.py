"""Asynchronous functions on streams: concurrent calls, ordered or not, with timeouts and retries."""

from timerheap.async_wait.function import AsyncFunction
from timerheap.async_wait.operator import AsyncWaitOperator, Input
from timerheap.async_wait.queue import (
    OrderedStreamElementQueue,
    ResultFuture,
    StreamElement,
    StreamElementQueue,
    StreamRecord,
    UnorderedStreamElementQueue,
    Watermark,
)
from timerheap.async_wait.retry import (
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
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "AsyncWaitOperator",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "Input",
    "NoRetryStrategy",
    "OrderedStreamElementQueue",
    "ResultFuture",
    "RetryPredicate",
    "StreamElement",
    "StreamElementQueue",
    "StreamRecord",
    "UnorderedStreamElementQueue",
    "Watermark",
    "empty_result_predicate",
    "exception_type_predicate",
    "has_exception_predicate",
]
