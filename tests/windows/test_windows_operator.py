"""The window operator compared with a simple model, and its use inside a function."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_model import LONG, Budget, Gap, Host, Pane, SlowOperator, results, running

from timerheap import (
    MAX_WATERMARK,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.windows import (
    AggregateFunction,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    ReduceFunction,
    SlidingEventTimeWindows,
    TimeWindow,
    Trigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowFunction,
    WindowOperator,
)

ASSIGNERS = st.one_of(
    st.integers(1, 30).map(TumblingEventTimeWindows.of),
    st.tuples(st.integers(1, 30), st.integers(1, 12)).map(lambda p: SlidingEventTimeWindows.of(*p)),
    st.integers(1, 15).map(EventTimeSessionWindows.with_gap),
    st.just(EventTimeSessionWindows.with_dynamic_gap(Gap())),
)

# The timestamp of an element is relative to the watermark, so that few are late and many share a window.
ELEMENTS = st.tuples(st.just("e"), st.sampled_from("aab"), st.integers(0, 9), st.integers(-15, 40))

EVENTS = st.lists(ELEMENTS | ELEMENTS | st.tuples(st.just("w"), st.integers(0, 12)), min_size=15, max_size=40)


@settings(max_examples=120, deadline=None)
@given(ASSIGNERS, EVENTS, st.integers(0, 12), st.integers(5, 60))
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "Trigger.on_element",
    "Trigger.on_event_time",
    "Trigger.on_processing_time",
    "Trigger.can_merge",
    "Trigger.on_merge",
    "Trigger.clear",
    "Trigger.TriggerContext.register_event_time_timer",
    "Trigger.TriggerContext.delete_event_time_timer",
    "Trigger.TriggerContext.get_partitioned_state",
    "Trigger.TriggerContext.get_current_watermark",
    "Trigger.OnMergeContext.merge_partitioned_state",
    "TriggerResult.CONTINUE",
    "TriggerResult.FIRE",
    "TriggerResult.FIRE_AND_PURGE",
    "ReducingStateDescriptor",
    "ReducingState.get",
    "ReducingState.add",
    "TimeWindow.max_timestamp",
)
def test_results_with_a_custom_trigger_equal_the_model(
    assigner: WindowAssigner, events: list[Any], lateness: int, limit: int
) -> None:
    slow = SlowOperator(
        lambda element, timestamp: assigner.assign_windows(element, timestamp, None),  # type: ignore[arg-type, return-value]
        isinstance(assigner, MergingWindowAssigner),
        limit=limit,
        lateness=lateness,
    )
    watermark = -40  # the operators start with a lower one
    with running(
        assigner,
        Pane(),
        trigger=Budget(limit),
        allowed_lateness=lateness,
        late=lambda value, ctx: [("late", value)],
        element_type=Types.TUPLE([LONG, LONG]),
    ) as operator:
        for number, event in enumerate([*events, ("w", None)]):
            if event[0] == "e":
                _, key, value, ahead = event
                timestamp = watermark + ahead
                found = results(operator.process_element((key, number, value), timestamp))
                expected = slow.element(key, (number, value), timestamp)
            else:
                watermark = MAX_WATERMARK if event[1] is None else watermark + event[1]
                found = results(operator.process_watermark(watermark))
                expected = slow.advance(watermark)
            assert Counter(map(repr, found)) == Counter(map(repr, expected)), number
        assert operator.num_keyed_state_entries() == 0
        assert operator.num_event_time_timers() == 0


class Count(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class Bounds(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        return [(key, *window, *inputs)]


def test_the_timestamp_of_a_result_is_the_last_of_its_window() -> None:
    tumbling = TumblingEventTimeWindows.of(2_000)

    def timestamps(emitted: list[Any]) -> list[Any]:
        return [record.timestamp for record in emitted if hasattr(record, "value")]

    with running(tumbling, Count(), trigger=CountTrigger.of(1), accumulator_type=LONG) as operator:
        assert timestamps(operator.process_element(("a", "row"), 100)) == [1_999]
    with running(tumbling, Count(), allowed_lateness=5_000, accumulator_type=LONG) as operator:
        operator.process_element(("a", "row"), 100)
        assert timestamps(operator.process_watermark(2_500)) == [1_999]
        assert timestamps(operator.process_element(("a", "late"), 200)) == [1_999]
    sliding, each = SlidingEventTimeWindows.of(2_000, 1_000), CountTrigger.of(1)
    with running(sliding, Count(), trigger=each, accumulator_type=LONG) as operator:
        assert timestamps(operator.process_element(("a", "row"), 1_100)) == [2_999, 1_999]
    with running(
        EventTimeSessionWindows.with_gap(50), Count(), trigger=each, accumulator_type=LONG
    ) as operator:
        operator.process_element(("a", "row"), 100)
        assert timestamps(operator.process_element(("a", "row"), 120)) == [169]
    with running(TumblingProcessingTimeWindows.of(2_000), Count(), accumulator_type=LONG) as operator:
        operator.process_element(("a", "row"))
        assert timestamps(operator.set_processing_time(5_000)) == [1_999]
    with running(GlobalWindows.create(), Count(), trigger=each, accumulator_type=LONG) as operator:
        assert timestamps(operator.process_element(("a", "row"), 100)) == [MAX_WATERMARK]


def test_records_of_the_function_and_late_elements_keep_their_timestamp() -> None:
    class Talkative(Host):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield "before"
            yield from super().process_element(value, ctx)
            yield "after"

    windows = WindowOperator(
        TumblingEventTimeWindows.of(10),
        Count(),
        trigger=CountTrigger.of(1),
        late=lambda value, ctx: ["late"],
        accumulator_type=LONG,
    )
    with KeyedProcessOperator(Talkative(windows), key_selector=lambda value: value[0]) as operator:
        assert operator.process_element(("a", "row"), 3) == [("before", 3), (1, 9), ("after", 3)]
        operator.process_watermark(9)
        assert operator.process_element(("a", "row"), 4) == [("before", 4), ("late", 4), ("after", 4)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 40)), max_size=30), st.integers(2, 50))
@pytest.mark.promises("PyFlink", "supported", "ProcessingTimeSessionWindows.with_gap")
def test_sessions_in_processing_time_equal_the_model(steps: list[tuple[str, int]], gap: int) -> None:
    sessions: dict[str, list[list[int]]] = {"a": [], "b": []}
    found, now = [], 0
    assigner = ProcessingTimeSessionWindows.with_gap(gap)
    with running(assigner, Count(), Bounds(), accumulator_type=LONG) as operator:
        for key, step in steps:
            now += step
            found += operator.set_processing_time(now)
            found += operator.process_element((key, "row"))
            # A session ends when the manual clock reaches its last millisecond, end - 1.
            if not sessions[key] or sessions[key][-1][-1] + gap - 1 <= now:
                sessions[key].append([])
            sessions[key][-1].append(now)
        found += operator.set_processing_time(now + gap + 1)
        assert operator.num_keyed_state_entries() == operator.num_processing_time_timers() == 0
    expected = [(key, s[0], s[-1] + gap, len(s)) for key in sessions for s in sessions[key]]
    assert sorted(results(found)) == sorted(expected)


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "ContinuousProcessingTimeTrigger.of",
    "Trigger.TriggerContext.get_current_processing_time",
    "Trigger.TriggerContext.register_processing_time_timer",
    "Trigger.TriggerContext.delete_processing_time_timer",
)
def test_a_continuous_trigger_fires_early_in_processing_time() -> None:
    trigger = ContinuousProcessingTimeTrigger.of(10)
    assigner = TumblingProcessingTimeWindows.of(25)
    with running(assigner, Count(), Bounds(), trigger=trigger, accumulator_type=LONG) as operator:
        seen = []
        for now in range(60):
            seen += [(now, result) for result in results(operator.set_processing_time(now))]
            if now in (3, 4, 12):
                operator.process_element(("a", now))
    assert seen == [(10, ("a", 0, 25, 2)), (20, ("a", 0, 25, 3)), (24, ("a", 0, 25, 3))]


class Latest(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2)


@pytest.mark.promises("PyFlink", "supported", "ReduceFunction.reduce")
@pytest.mark.parametrize("function", [Latest(), lambda value1, value2: max(value1, value2)])
def test_a_count_trigger_fires_a_reduced_global_window(function: Any) -> None:
    element = Types.TUPLE([LONG])
    with running(
        GlobalWindows.create(), function, trigger=CountTrigger.of(2), element_type=element
    ) as operator:
        found = [results(operator.process_element(("a", value))) for value in (5, 9, 1, 2)]
        assert results(operator.process_watermark(MAX_WATERMARK)) == []
    assert found == [[], [(9,)], [], [(9,)]]


def test_a_global_window_may_fire_at_the_end_of_the_input() -> None:
    trigger = EventTimeTrigger.create()
    with running(GlobalWindows.create(), Count(), trigger=trigger, accumulator_type=LONG) as operator:
        for timestamp in (5, 1):
            operator.process_element(("a",), timestamp)
        assert results(operator.process_watermark(MAX_WATERMARK - 1)) == []
        assert results(operator.process_watermark(MAX_WATERMARK)) == [2]


def test_dropped_late_elements_are_counted() -> None:
    with running(TumblingEventTimeWindows.of(10), Count(), accumulator_type=LONG) as operator:
        operator.process_watermark(9)
        for timestamp in (9, 10, 3):
            operator.process_element(("a",), timestamp)
        assert operator._function.windows.num_late_records_dropped == 2
        assert results(operator.process_watermark(19)) == [1]


class Memory(ProcessWindowFunction):
    """Counts the firings of a window and of all windows of its key."""

    fired = ValueStateDescriptor("fired", LONG)
    book = MapStateDescriptor("book", Types.STRING(), LONG)
    log = ListStateDescriptor("log", LONG)

    def open(self, runtime_context: Any) -> None:
        self.life = ["open"]

    def close(self) -> None:
        self.life.append("close")

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        fired = context.window_state().get_state(self.fired)
        fired.update((fired.value() or 0) + 1)
        context.window_state().get_list_state(self.log).add(len(elements))
        context.window_state().get_map_state(self.book).put("n", len(elements))
        total = context.global_state().get_state(ValueStateDescriptor("total", LONG))
        total.update((total.value() or 0) + 1)
        log = list(context.window_state().get_list_state(self.log))
        yield context.window().start, fired.value(), total.value(), log

    def clear(self, context: Any) -> None:
        self.life.append(f"clear {context.window().start}")
        context.window_state().get_state(self.fired).clear()
        context.window_state().get_list_state(self.log).clear()
        context.window_state().get_map_state(self.book).clear()


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "ProcessWindowFunction.clear",
    "ProcessWindowFunction.Context.window_state",
    "ProcessWindowFunction.Context.global_state",
    "ProcessWindowFunction.Context.current_processing_time",
)
def test_a_window_function_has_state_per_window_and_per_key() -> None:
    function = Memory()
    with running(
        TumblingEventTimeWindows.of(10), function, allowed_lateness=5, element_type=Types.TUPLE([LONG])
    ) as operator:
        for timestamp in (1, 11, 2):
            operator.process_element(("a", timestamp), timestamp)
        assert results(operator.process_watermark(9)) == [(0, 1, 1, [2])]
        assert results(operator.process_element(("a", 3), 3)) == [(0, 2, 2, [2, 3])]
        assert results(operator.process_watermark(24)) == [(10, 1, 3, [1])]
        assert operator.num_keyed_state_entries() == 1, "only the total is left"
    assert function.life == ["open", "clear 0", "clear 10", "close"]


def test_merging_windows_have_no_state_of_their_own() -> None:
    element = Types.TUPLE([LONG])
    with running(EventTimeSessionWindows.with_gap(5), Memory(), element_type=element) as operator:
        operator.process_element(("a", 1), 1)
        with pytest.raises(ValueError, match="per-window state is not supported with merging windows"):
            operator.process_watermark(10)


def test_a_timer_is_deleted_when_no_window_needs_it() -> None:
    sessions = EventTimeSessionWindows.with_gap(5)
    for lateness, timers in ((0, 1), (7, 2)):  # the end of the window, and the cleanup if it is later
        with running(sessions, Count(), allowed_lateness=lateness, accumulator_type=LONG) as operator:
            for timestamp in range(100):
                operator.process_element(("a",), timestamp)
                assert operator.num_event_time_timers() == timers
    hour = SlidingEventTimeWindows.of(60, 1)
    with running(hour, Count(), trigger=Budget(10**9), element_type=None, accumulator_type=LONG) as operator:
        operator.process_element(("a", 0, 0), 0)
        assert operator.num_event_time_timers() == 60, "60 ends of windows; the timer at 3 is one of them"


class Bad(WindowAssigner):
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return [(0, 5)]

    def get_default_trigger(self, env: object = None) -> Trigger:
        return EventTimeTrigger.create()

    def is_event_time(self) -> bool:
        return True


def test_invalid_return_values_of_assigners_and_triggers_raise() -> None:
    class Forgetful(EventTimeTrigger):
        def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
            ctx.register_event_time_timer(window.max_timestamp())

    class Unmerged(EventTimeTrigger):
        on_merge = Trigger.on_merge

    with (
        running(Bad(), Count(), accumulator_type=LONG) as operator,
        pytest.raises(TypeError, match=r"must assign a TimeWindow, a CountWindow .*, got \(0, 5\)"),
    ):
        operator.process_element(("a",), 1)
    tumbling, sessions = TumblingEventTimeWindows.of(5), EventTimeSessionWindows.with_gap(5)
    with (
        running(tumbling, Count(), trigger=Forgetful(), accumulator_type=LONG) as operator,
        pytest.raises(TypeError, match=r"Forgetful\(\) must return a TriggerResult, got None"),
    ):
        operator.process_element(("a",), 1)
    with running(sessions, Count(), trigger=Unmerged(), accumulator_type=LONG) as operator:
        operator.process_element(("a",), 1)
        with pytest.raises(NotImplementedError, match=r"Unmerged must have on_merge\(\), because"):
            operator.process_element(("a",), 2)
    with (
        running(sessions, Count(), accumulator_type=LONG) as operator,
        pytest.raises(ValueError, match="the element must have a timestamp, got None"),
    ):
        operator.process_element(("a",))


def test_merging_into_a_late_or_an_unknown_window_raises() -> None:
    class Shrinking(EventTimeSessionWindows):
        def merge_windows(self, windows: Any, callback: Any) -> None:
            if len(windows) > 1:
                callback.merge(windows, TimeWindow(0, 1))

    class Foreign(EventTimeSessionWindows):
        def merge_windows(self, windows: Any, callback: Any) -> None:
            callback.merge([TimeWindow(0, 1)], TimeWindow(0, 1))

    with running(Shrinking(5), Count(), accumulator_type=LONG) as operator:
        operator.process_element(("a",), 10)
        operator.process_watermark(5)
        with pytest.raises(ValueError, match=r"must not merge .* before the current watermark, 5"):
            operator.process_element(("a",), 20)
    with (
        running(Foreign(5), Count(), accumulator_type=LONG) as operator,
        pytest.raises(ValueError, match=r"merge_windows must merge windows in flight"),
    ):
        operator.process_element(("a",), 10)


def test_a_function_may_use_the_operator_beside_its_own_state() -> None:

    class Alerts(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.seen = runtime_context.get_state(ValueStateDescriptor("seen", LONG))
            self.windows = WindowOperator(TumblingEventTimeWindows.of(10), Count(), accumulator_type=LONG)
            self.windows.open(runtime_context)

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.seen.update((self.seen.value() or 0) + 1)
            yield from self.windows.process_element(value, ctx)

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            for count in self.windows.on_timer(timestamp, ctx):
                yield ctx.get_current_key(), timestamp, count, self.seen.value()

    with KeyedProcessOperator(Alerts(), key_selector=lambda value: value) as operator:
        for timestamp in (1, 5, 12):
            assert operator.process_element("a", timestamp) == []
        assert results(operator.process_watermark(19)) == [("a", 9, 2, 3), ("a", 19, 1, 3)]
