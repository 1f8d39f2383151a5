"""The operator that runs a KeyedProcessFunction without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timerheap._arguments import int64
from timerheap.flink.internal_timer import KeyedTimerQueue
from timerheap.flink.operators.keyed import KeyedOperator, StreamElement, checked_selector, checked_status
from timerheap.flink.processing_time import ProcessingTimeService
from timerheap.functions import KeyedProcessFunction
from timerheap.watermarks.output import WatermarkStatus

__all__ = ["KeyedProcessOperator"]


class KeyedProcessOperator(KeyedOperator):
    """Runs a `KeyedProcessFunction` in this process, without Spark.

    Every call returns the elements emitted since the previous call, in order: a `StreamRecord` for each
    record that the function yields, and a `Watermark` after the records of the timers that it fires.

    Parameters
    ----------
    function : KeyedProcessFunction
    key_selector : callable
        A function ``value -> key``. A key must be hashable, equal to itself and not None. For timers, the
        timer queue must support it.
    clock : ProcessingTimeService, optional
        By default a `ManualProcessingTimeService`, for `set_processing_time`. A `SystemProcessingTimeService`
        fires timers in its own thread and holds its ``lock``, which all methods of the operator acquire.
    max_parallelism : int, default 128
        The number of key groups, 1 to 32768.
    output : callable, optional
        Called with each element when it is emitted, in the thread that emits it; the methods then return
        empty lists. Needed with a clock that fires timers between calls.
    event_time_timers, processing_time_timers : KeyedTimerQueue, optional
        The queues of the timers; by default two new ones, ``TimerQueue(max_parallelism)``. Timers that a
        queue already holds belong to the operator.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    Notes
    -----
    Flink: ``KeyedProcessOperator`` over ``InternalTimerServiceImpl``, and the methods of
    ``KeyedOneInputStreamOperatorTestHarness``. State is kept in memory, with the checks of state on
    Spark; see `MemoryRuntimeContext`.

    An exception of the function is raised with a note that names the key and the timestamp. Elements emitted
    before the exception are returned by the next call. If a timer raises an exception, the watermark is not
    sent downstream, and the remaining timers fire at the next one.

    Examples
    --------
    >>> from timerheap import KeyedProcessFunction
    >>> class Timeout(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), "silent"
    >>> with KeyedProcessOperator(Timeout(), key_selector=lambda value: value["plane"]) as operator:
    ...     operator.process_element({"plane": "N14228"}, timestamp=1_000)
    ...     operator.process_watermark(60_999)
    ...     operator.process_watermark(61_000)
    []
    [Watermark(timestamp=60999)]
    [StreamRecord(value=('N14228', 'silent'), timestamp=61000), Watermark(timestamp=61000)]
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        key_selector: Callable[[Any], Any],
        *,
        clock: ProcessingTimeService | None = None,
        max_parallelism: int = 128,
        output: Callable[[StreamElement], object] | None = None,
        event_time_timers: KeyedTimerQueue[Any, None] | None = None,
        processing_time_timers: KeyedTimerQueue[Any, None] | None = None,
    ) -> None:
        if not isinstance(function, KeyedProcessFunction):
            raise TypeError(f"function must be a KeyedProcessFunction, got {function!r}")
        super().__init__(function, clock, max_parallelism, output, event_time_timers, processing_time_timers)
        self._process_element = function.process_element
        self._key_selector = checked_selector("key_selector", key_selector)

    def process_element(self, value: Any, timestamp: int | None = None) -> list[StreamElement]:
        """Process an element.

        Parameters
        ----------
        value : object
        timestamp : int, optional
            The event time of the element, epoch milliseconds, which ``ctx.timestamp()`` returns.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If `timestamp` is not an int64, or the key is invalid. The function is not called then.
        RuntimeError
            If the operator is not open.
        Exception
            The exception of the function.
        """
        return self._process(self._process_element, self._key_selector, value, timestamp)

    def process_watermark(self, watermark: int) -> list[StreamElement]:
        """Fire the event-time timers with timestamp <= `watermark`, then send the watermark downstream.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is not an int64.
        RuntimeError
            If the operator is not open.
        Exception
            The exception of the function.
        """
        with self._lock:
            self._expect_open()
            self._advance(int64("watermark", watermark))
            return self._take()

    def process_watermark_status(self, status: WatermarkStatus) -> list[StreamElement]:
        """Send the status of the input, idle or active, downstream."""
        with self._lock:
            self._expect_open()
            self._emit(checked_status(status))
            return self._take()
