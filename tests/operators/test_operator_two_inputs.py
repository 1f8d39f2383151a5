"""An operator with two inputs: shared state and timers, and the combined watermark."""

from operator import itemgetter

import pytest

from timerheap import MAX_WATERMARK, KeyedProcessFunction, ListStateDescriptor, Types
from timerheap.flink import StreamRecord, Watermark
from timerheap.flink.operators import KeyedCoProcessOperator
from timerheap.functions import KeyedCoProcessFunction
from timerheap.watermarks.output import WatermarkStatus

first = itemgetter(0)


class Two(KeyedCoProcessFunction):
    """Records the rows of both inputs in one state; a row (key, timer) registers the timer."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.INT()))

    def process_element1(self, value, ctx):
        return self.take(1, value, ctx)

    def process_element2(self, value, ctx):
        return self.take(2, value, ctx)

    def take(self, input_, value, ctx):
        self.seen.add(input_)
        for timestamp in value[1:]:
            ctx.timer_service().register_event_time_timer(timestamp)
        yield ctx.get_current_key(), list(self.seen), ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), list(self.seen), timestamp
        self.seen.clear()


@pytest.fixture
def two():
    with KeyedCoProcessOperator(Two(), first, lambda value: value[0].lower()) as operator:
        yield operator


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "KeyedCoProcessFunction.process_element1",
    "KeyedCoProcessFunction.process_element2",
    "KeyedCoProcessFunction.on_timer",
    "KeyedCoProcessFunction.Context",
    "KeyedCoProcessFunction.OnTimerContext",
)
def test_both_inputs_share_the_state_and_the_timers_of_a_key(two):
    assert two.process_element1(("a", 10), 1) == [StreamRecord(("a", [1], 1), 1)]
    assert two.process_element2(("A", 10), 2) == [StreamRecord(("a", [1, 2], 2), 2)]
    assert two.process_element2(("B",)) == [StreamRecord(("b", [2], None), None)]
    assert two.num_event_time_timers() == 1
    assert two.num_keyed_state_entries() == 2
    assert two.process_watermark1(20) == []
    assert two.process_watermark2(9) == [Watermark(9)]
    assert two.process_watermark2(15) == [StreamRecord(("a", [1, 2], 10), 10), Watermark(15)]
    assert two.num_keyed_state_entries() == 1


def test_the_combined_watermark_is_the_minimum_of_both_inputs(two):
    assert two.process_watermark1(5) == []
    assert two.process_watermark2(3) == [Watermark(3)]
    assert two.process_watermark2(2) == []  # the watermark of an input never decreases
    assert two.process_watermark2(MAX_WATERMARK) == [Watermark(5)]
    assert two.process_watermark1(MAX_WATERMARK) == [Watermark(MAX_WATERMARK)]


def test_an_idle_input_does_not_hold_the_watermark_back(two):
    two.process_element1(("a", 10), 1)
    two.process_watermark1(12)
    assert two.process_watermark_status2(WatermarkStatus.IDLE) == [
        StreamRecord(("a", [1], 10), 10),
        Watermark(12),
    ]
    assert two.process_watermark_status1(WatermarkStatus.IDLE) == [WatermarkStatus.IDLE]
    assert two.process_watermark_status1(WatermarkStatus.IDLE) == []
    assert two.process_watermark_status2(WatermarkStatus.ACTIVE) == [WatermarkStatus.ACTIVE]
    assert two.process_watermark2(20) == [Watermark(20)]
    with pytest.raises(TypeError, match="status"):
        two.process_watermark_status1("idle")


def test_a_watermark_stopped_by_an_exception_is_processed_again():
    function = Two()
    with KeyedCoProcessOperator(function, first, first) as two:
        two.process_element1(("a", 5, 6), 1)
        two.process_watermark1(MAX_WATERMARK)
        seen, function.seen = function.seen, None
        with pytest.raises(TypeError):
            two.process_watermark2(MAX_WATERMARK)
        function.seen = seen
        assert two.process_watermark2(MAX_WATERMARK) == [
            StreamRecord(("a", [1], 6), 6),
            Watermark(MAX_WATERMARK),
        ]


class One(KeyedProcessFunction):
    def process_element(self, value, ctx):
        pass


def test_invalid_arguments_raise():
    with pytest.raises(TypeError, match="function must be a KeyedCoProcessFunction"):
        KeyedCoProcessOperator(One(), first, first)
