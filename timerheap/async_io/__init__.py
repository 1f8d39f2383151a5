"""Asynchronous functions on streams: concurrent calls, ordered or not, with timeouts and retries."""

import typing
from inspect import ismodule as _ismodule

from timerheap.async_io.function import AsyncFunction as AsyncFunction
from timerheap.async_io.operator import AsyncInput as AsyncInput
from timerheap.async_io.operator import AsyncWaitOperator as AsyncWaitOperator
from timerheap.async_io.retry import NO_RETRY_STRATEGY as NO_RETRY_STRATEGY
from timerheap.async_io.retry import AsyncRetryPredicate as AsyncRetryPredicate
from timerheap.async_io.retry import AsyncRetryStrategy as AsyncRetryStrategy
from timerheap.async_io.retry import (
    ExponentialBackoffDelayRetryStrategy as ExponentialBackoffDelayRetryStrategy,
)
from timerheap.async_io.retry import FixedDelayRetryStrategy as FixedDelayRetryStrategy
from timerheap.async_io.retry import NoRetryStrategy as NoRetryStrategy
from timerheap.async_io.retry import RetryPredicate as RetryPredicate
from timerheap.async_io.retry import empty_result_predicate as empty_result_predicate
from timerheap.async_io.retry import exception_type_predicate as exception_type_predicate
from timerheap.async_io.retry import has_exception_predicate as has_exception_predicate
from timerheap.watermarks.output import StreamRecord as StreamRecord
from timerheap.watermarks.output import Watermark as Watermark

if not typing.TYPE_CHECKING:  # whose checkers take the imports above for it
    __all__ = [name for name, value in list(globals().items()) if name[0] != "_" and not _ismodule(value)]
