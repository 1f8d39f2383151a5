"""One input: a KeyedProcessFunction without Spark."""

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

    Every call gives what has been emitted since the last one, in order: a `StreamRecord` for what the
    function yields, and a `Watermark` behind what it has made fire.

    Parameters
    ----------
    function : KeyedProcessFunction
    key_selector : callable
        value -> key: hashable, equal to itself, not None. With timers, a key that the timer queue takes.
    clock : ProcessingTimeService, optional
        By default a `ManualProcessingTimeService` that `set_processing_time` sets. A
        `SystemProcessingTimeService` fires in its own thread, under its ``lock``, which all calls here hold.
    max_parallelism : int, default 128
        The number of key groups, 1 to 32768.
    output : callable, optional
        Takes each element as it is emitted, in the thread that emits it; then the calls give empty lists.
        For a service: its clock may fire when nobody calls.
    event_time_timers, processing_time_timers : KeyedTimerQueue, optional
        Where the timers are kept; by default two of ``TimerQueue(max_parallelism)``.
        Timers that they hold already are the operator's from its start.

    Raises
    ------
    TypeError, ValueError
        If an argument is no such thing.

    Notes
    -----
    Flink: ``KeyedProcessOperator`` over ``InternalTimerServiceImpl``, and the methods of
    ``KeyedOneInputStreamOperatorTestHarness``. State lives in memory, as copies, and its types are not
    enforced. What a function raises comes through, with a note of its key and timestamp; what it emitted
    before comes with the next call. A watermark that a timer's function has stopped has not gone
    downstream; the timers that are left fire at the next one.

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
        """Hand an element to the function.

        Parameters
        ----------
        value : object
        timestamp : int, optional
            Its event time, epoch milliseconds; what ``ctx.timestamp()`` gives.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If `timestamp` is no int64, or the key none that can be kept; the function has not been called.
        RuntimeError
            If the operator is not open.
        Exception
            What the function raises.
        """
        return self._process(self._process_element, self._key_selector, value, timestamp)

    def process_watermark(self, watermark: int) -> list[StreamElement]:
        """Fire the event-time timers with timestamp <= `watermark`, then send the watermark downstream.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is no int64.
        RuntimeError
            If the operator is not open.
        Exception
            What the function raises.
        """
        with self._lock:
            self._expect_open()
            self._advance(int64("watermark", watermark))
            return self._take()

    def process_watermark_status(self, status: WatermarkStatus) -> list[StreamElement]:
        """Send the input's status, idle or active, downstream."""
        with self._lock:
            self._expect_open()
            self._emit(checked_status(status))
            return self._take()
