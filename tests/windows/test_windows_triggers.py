"""Triggers of the end of the stream, deltas and timeouts: Flink's own cases, and similar ones."""

from __future__ import annotations

from typing import Any

import pytest
from running_windows import GLOBAL, LONG, Add, All, Difference, Total, fed, running

from timerheap import MAX_WATERMARK, MIN_WATERMARK, OutputTag, Types
from timerheap.flink import StreamRecord
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    CountTumblingWindowAssigner,
    DeltaTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    ReduceFunction,
    TimeEvictor,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowOperator,
)


@pytest.mark.promises(
    "PyFlink", "supported", "GlobalWindows.create_with_end_of_stream_trigger", "EndOfStreamTrigger"
)
def test_the_end_of_the_stream_fires_the_global_window() -> None:
    assigner = GlobalWindows.create_with_end_of_stream_trigger()
    assert isinstance(assigner.get_default_trigger(), EndOfStreamTrigger)
    assert isinstance(GLOBAL.get_default_trigger(), NeverTrigger)
    assert not assigner.is_event_time()
    with running(assigner, Add()) as operator:
        assert fed(operator, [("a", 1, 0), ("b", 5, 3), ("a", 2, 99)]) == []
        assert operator.process_watermark(MAX_WATERMARK - 1) == [(MAX_WATERMARK - 1,)]
        *results, _ = operator.process_watermark(MAX_WATERMARK)
        assert sorted(results) == [(3, MAX_WATERMARK), (5, MAX_WATERMARK)]


@pytest.mark.parametrize("function", [Difference(), lambda old, new: new - old], ids=["class", "callable"])
@pytest.mark.promises("PyFlink", "supported", "DeltaTrigger.of", "DeltaFunction.get_delta")
def test_a_delta_trigger_fires_beyond_the_threshold(function: Any) -> None:
    with running(GLOBAL, All(), trigger=DeltaTrigger.of(10, function, LONG)) as operator:
        given = [("a", value, 0) for value in (100, 105, 110, 111, 121, 122, 90, 133)]
        found = [values[-1] for (_, values), _ in fed(operator, given)]
        assert found == [111, 122, 133]  # a distance of exactly the threshold does not fire


def test_a_delta_trigger_has_its_own_state_in_each_window() -> None:
    tumbling = TumblingEventTimeWindows.of(10)
    with running(tumbling, All(), trigger=DeltaTrigger.of(0, Difference())) as operator:
        assert fed(operator, [("a", 1, 0), ("a", 5, 11), ("b", 9, 0)]) == []
        assert [values for (_, values), _ in fed(operator, [("a", 2, 5), ("a", 4, 12)])] == [[1, 2]]
        operator.process_watermark(30)
        assert operator.num_keyed_state_entries() == 0


def test_a_delta_trigger_needs_the_type_of_an_element() -> None:
    options: Any = {"accumulator_type": LONG, "element_type": None}
    with (
        running(GLOBAL, Total(), trigger=DeltaTrigger.of(3, Difference()), **options) as operator,
        pytest.raises(TypeError, match="type_info of the state 'last-element' must be the type"),
    ):
        operator.process_element(("a", 1), 0)
    with running(GLOBAL, Total(), trigger=DeltaTrigger.of(3, Difference(), LONG), **options) as operator:
        assert fed(operator, [("a", 1, 0), ("a", 5, 0)]) == [(6, MAX_WATERMARK)]


def test_top_speed_windowing_emits_every_50_metres() -> None:
    """Flink's example: the top speed of the last ten seconds, every 50 metres."""
    row = Types.ROW_NAMED(["speed", "metres"], [LONG, LONG])
    trigger = DeltaTrigger.of(50, lambda old, new: new[1] - old[1], row)
    options: Any = {"trigger": trigger, "evictor": TimeEvictor.of(10_000), "element_type": row}

    class Top(ReduceFunction):
        def reduce(self, value1: Any, value2: Any) -> Any:
            return max(value1, value2)

    with running(GLOBAL, Top(), **options) as operator:
        given = [("car", (speed, metres), at) for speed, metres, at in _DRIVE]
        assert [tuple(result) for result, _ in fed(operator, given)] == [(70, 55), (60, 120)]


_DRIVE = [(50, 0, 0), (70, 55, 4_000), (40, 80, 9_000), (60, 120, 14_000)]


def timing_out(*args: Any, assigner: Any = GLOBAL) -> KeyedProcessOperator:
    return running(assigner, All(), trigger=ProcessingTimeoutTrigger.of(*args))


def counts(emitted: list[Any]) -> list[int]:
    return [len(record.value[1]) for record in emitted if isinstance(record, StreamRecord)]


def test_a_timeout_fires_when_the_nested_trigger_does_not() -> None:
    with timing_out(CountTrigger.of(3), 50, False, True) as operator:
        assert fed(operator, [("a", 1, None)]) == []
        assert counts(operator.set_processing_time(40)) == []
        assert fed(operator, [("a", 1, None)]) == []
        assert operator.num_processing_time_timers() == 1
        assert counts(operator.set_processing_time(50)) == [2]
        assert operator.num_processing_time_timers() == 0
        # The timeout has cleared the count.
        assert fed(operator, [("a", 1, None)] * 2) == []
        assert counts(operator.process_element(("a", 1))) == [5]
        assert operator.num_processing_time_timers() == 0


def test_each_element_may_restart_the_timeout() -> None:
    with timing_out(CountTrigger.of(3), 50, True, True) as operator:
        fed(operator, [("a", 1, None)])
        operator.set_processing_time(10)
        fed(operator, [("a", 1, None)])
        assert operator.num_processing_time_timers() == 1
        assert counts(operator.set_processing_time(50)) == []
        assert counts(operator.set_processing_time(60)) == [2]
        assert operator.num_processing_time_timers() == 0


def test_a_timeout_may_keep_the_state_of_the_nested_trigger() -> None:
    with timing_out(CountTrigger.of(3), 50, False, False) as operator:
        fed(operator, [("a", 1, None)] * 2)
        assert counts(operator.set_processing_time(50)) == [2]
        assert operator.num_processing_time_timers() == 0
        assert counts(operator.process_element(("a", 1))) == [3]  # the third of the count


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "ProcessingTimeoutTrigger.of",
    "TriggerResult.PURGE",
    "TriggerResult.is_fire",
    "TriggerResult.is_purge",
)
def test_a_timeout_purges_only_if_the_nested_trigger_purges() -> None:
    purging = PurgingTrigger.of(CountTrigger.of(3))
    with timing_out(purging, 50, False, False) as operator:
        assert counts([record for _ in range(3) for record in operator.process_element(("a", 1))]) == [3]
        assert operator.process_element(("a", 1)) == []
        assert counts(operator.set_processing_time(50)) == [1]  # the timeout of a CountTrigger does not purge
        assert counts(operator.set_processing_time(100)) == []
    with running(
        GLOBAL, All(), trigger=PurgingTrigger.of(ProcessingTimeoutTrigger.of(CountTrigger.of(3), 50))
    ) as operator:
        fed(operator, [("a", 1, None)])
        assert counts(operator.set_processing_time(50)) == [1]
        fed(operator, [("a", 2, None)])
        assert counts(operator.set_processing_time(100)) == [1]


def test_a_timeout_purges_with_a_nested_trigger_of_processing_time() -> None:
    nested = PurgingTrigger.of(ProcessingTimeTrigger.create())
    assigner = TumblingProcessingTimeWindows.of(1_000)
    with timing_out(nested, 50, False, False, assigner=assigner) as operator:
        fed(operator, [("a", 1, None)] * 2)
        assert operator.num_processing_time_timers() == 2
        assert counts(operator.set_processing_time(50)) == [2]
        assert operator.num_processing_time_timers() == 1
        fed(operator, [("a", 1, None)])
        assert counts(operator.set_processing_time(999)) == [1]
        assert operator.num_keyed_state_entries() == operator.num_processing_time_timers() == 0


class AtTheTimestamp(EventTimeTrigger):
    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        ctx.register_event_time_timer(timestamp + 5)
        return TriggerResult.CONTINUE


def test_an_element_without_a_timestamp_has_the_smallest_for_a_trigger() -> None:
    with running(GLOBAL, All(), trigger=AtTheTimestamp()) as operator:
        assert operator.process_element(("a", 1)) == []
        assert operator.num_event_time_timers() == 1
        operator.process_watermark(MIN_WATERMARK + 5)
        assert operator.num_event_time_timers() == 0


@pytest.mark.parametrize(
    "trigger",
    [
        ContinuousEventTimeTrigger.of(10),
        ContinuousProcessingTimeTrigger.of(10),
        PurgingTrigger.of(ProcessingTimeoutTrigger.of(ContinuousProcessingTimeTrigger.of(10), 5)),
    ],
)
@pytest.mark.parametrize("assigner", [GLOBAL, CountTumblingWindowAssigner.of(3)])
@pytest.mark.promises(
    "PyFlink",
    "refused",
    "GlobalWindows with ContinuousEventTimeTrigger or ContinuousProcessingTimeTrigger",
    note="it fires without end when the input has ended; use windows of time, or `CountTrigger`",
)
def test_a_trigger_that_repeats_in_a_window_without_an_end_raises(assigner: Any, trigger: Any) -> None:
    with pytest.raises(ValueError, match=r"trigger must not repeat by time with .*Window.*, got .*; use win"):
        WindowOperator(assigner, All(), trigger=trigger, element_type=LONG)


class Aside(ProcessWindowFunction):
    """Sends what it has to a side output, also when the window is cleared."""

    tag = OutputTag("aside", LONG)

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        for element in elements:
            context.output(self.tag, element)
        yield key

    def clear(self, context: Any) -> None:
        context.output(self.tag, -1)


def test_a_side_output_of_a_window_has_the_last_timestamp_of_the_window() -> None:
    """Flink: WindowOperatorContractTest.testSideOutput."""
    purging = PurgingTrigger.of(CountTrigger.of(2))
    with running(TumblingEventTimeWindows.of(10), Aside(), trigger=purging) as operator:
        operator.process_element(("a", 1), timestamp=3)
        operator.process_element(("a", 2), timestamp=4)
        operator.process_watermark(30)
        aside = operator.get_side_output(Aside.tag)
    assert [(each.value, each.timestamp) for each in aside] == [(1, 9), (2, 9), (-1, 9)]
