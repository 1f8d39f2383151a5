"""The operator that runs a KeyedCoProcessFunction without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timerheap.flink.internal_timer import KeyedTimerQueue
from timerheap.flink.operators.keyed import KeyedOperator, StreamElement, checked_selector, checked_status
from timerheap.flink.processing_time import ProcessingTimeService
from timerheap.functions import KeyedCoProcessFunction
from timerheap.watermarks.combine import IndexedCombinedWatermarkStatus
from timerheap.watermarks.output import WatermarkStatus

__all__ = ["KeyedCoProcessOperator"]


class KeyedCoProcessOperator(KeyedOperator):
    """Runs a `KeyedCoProcessFunction` in this process, without Spark.

    Like `KeyedProcessOperator`, but with two inputs. Timers fire on the combined watermark, which is also
    sent downstream: the minimum of the watermarks of the two inputs, or the watermark of the active input if
    the other is idle.

    Parameters
    ----------
    function : KeyedCoProcessFunction
    key_selector1, key_selector2 : callable
        A function ``value -> key`` for each input.
    clock, max_parallelism, output, event_time_timers, processing_time_timers
        As in `KeyedProcessOperator`.

    Notes
    -----
    Flink: ``KeyedCoProcessOperator``, ``IndexedCombinedWatermarkStatus`` and the methods of
    ``KeyedTwoInputStreamOperatorTestHarness``.

    Examples
    --------
    >>> from timerheap import Types, ValueStateDescriptor
    >>> class Enrich(KeyedCoProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.model = runtime_context.get_state(ValueStateDescriptor("model", Types.STRING()))
    ...     def process_element1(self, value, ctx):
    ...         yield value["plane"], value["dest"], self.model.value()
    ...     def process_element2(self, value, ctx):
    ...         self.model.update(value["model"])
    >>> plane = lambda value: value["plane"]
    >>> with KeyedCoProcessOperator(Enrich(), plane, plane) as operator:
    ...     operator.process_element2({"plane": "N14228", "model": "737-824"})
    ...     operator.process_element1({"plane": "N14228", "dest": "IAH"}, timestamp=1_000)
    ...     operator.process_watermark1(2_000)
    ...     operator.process_watermark2(1_500)
    ...     operator.process_watermark_status2(WatermarkStatus.IDLE)
    []
    [StreamRecord(value=('N14228', 'IAH', '737-824'), timestamp=1000)]
    []
    [Watermark(timestamp=1500)]
    [Watermark(timestamp=2000)]
    """

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        key_selector1: Callable[[Any], Any],
        key_selector2: Callable[[Any], Any],
        *,
        clock: ProcessingTimeService | None = None,
        max_parallelism: int = 128,
        output: Callable[[StreamElement], object] | None = None,
        event_time_timers: KeyedTimerQueue[Any, None] | None = None,
        processing_time_timers: KeyedTimerQueue[Any, None] | None = None,
    ) -> None:
        if not isinstance(function, KeyedCoProcessFunction):
            raise TypeError(f"function must be a KeyedCoProcessFunction, got {function!r}")
        super().__init__(function, clock, max_parallelism, output, event_time_timers, processing_time_timers)
        self._process_element1 = function.process_element1
        self._process_element2 = function.process_element2
        self._key_selector1 = checked_selector("key_selector1", key_selector1)
        self._key_selector2 = checked_selector("key_selector2", key_selector2)
        self._inputs = IndexedCombinedWatermarkStatus(2)
        self._sent_watermark = self._inputs.combined_watermark

    def process_element1(self, value: Any, timestamp: int | None = None) -> list[StreamElement]:
        """Process an element of the first input; see `KeyedProcessOperator.process_element`."""
        return self._process(self._process_element1, self._key_selector1, value, timestamp)

    def process_element2(self, value: Any, timestamp: int | None = None) -> list[StreamElement]:
        """Process an element of the second input; see `KeyedProcessOperator.process_element`."""
        return self._process(self._process_element2, self._key_selector2, value, timestamp)

    def process_watermark1(self, watermark: int) -> list[StreamElement]:
        """Process a watermark of the first input.

        If the combined watermark rises, the due timers fire, and it is sent downstream.
        Raises as `KeyedProcessOperator.process_watermark`.
        """
        return self._process_watermark(0, watermark)

    def process_watermark2(self, watermark: int) -> list[StreamElement]:
        """Process a watermark of the second input; see `process_watermark1`."""
        return self._process_watermark(1, watermark)

    def process_watermark_status1(self, status: WatermarkStatus) -> list[StreamElement]:
        """Set the status of the first input, idle or active.

        The combined watermark may rise, as in `process_watermark1`. `status` is sent downstream when both
        inputs have become idle, and when one of them becomes active again.
        """
        return self._process_status(0, status)

    def process_watermark_status2(self, status: WatermarkStatus) -> list[StreamElement]:
        """Set the status of the second input; see `process_watermark_status1`."""
        return self._process_status(1, status)

    def _process_watermark(self, index: int, watermark: int) -> list[StreamElement]:
        with self._lock:
            self._expect_open()
            self._inputs.update_watermark(index, watermark)
            self._advance_to_combined()
            return self._take()

    def _process_status(self, index: int, status: WatermarkStatus) -> list[StreamElement]:
        with self._lock:
            self._expect_open()
            was_idle = self._inputs.is_idle
            self._inputs.update_status(index, checked_status(status) is WatermarkStatus.IDLE)
            self._advance_to_combined()
            if self._inputs.is_idle != was_idle:
                self._emit(status)
            return self._take()

    def _advance_to_combined(self) -> None:
        """Advance if the combined watermark has risen, or if an exception stopped the last advance."""
        watermark = self._inputs.combined_watermark
        if watermark > self._sent_watermark:
            self._advance(watermark)
            self._sent_watermark = watermark
