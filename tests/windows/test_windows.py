"""Window assigners and merging windows compared with simple models; errors for invalid arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap import (
    MIN_WATERMARK,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from timerheap.flink import KeyContext
from timerheap.flink.memory_states import MemoryRuntimeContext
from timerheap.types import composite, list_of
from timerheap.windows import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    ReduceFunction,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    Trigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowOperator,
)
from timerheap.windows.operator import MergingWindowSet
from timerheap.windows.states import WindowStates

LONG = Types.LONG()
TIMES = st.integers(-300, 300)


class Clock(WindowAssigner.WindowAssignerContext):
    def __init__(self, now: int) -> None:
        self.now = now

    def get_current_processing_time(self) -> int:
        return self.now

    def get_runtime_context(self) -> Any:
        raise NotImplementedError


def on_the_grid(time: int, size: int, slide: int, offset: int) -> set[TimeWindow]:
    """Return all windows that contain a time, found by trying every start."""
    starts = (start for start in range(time - size + 1, time + 1) if (start - offset) % slide == 0)
    return {TimeWindow(start, start + size) for start in starts}


@given(TIMES, st.integers(1, 50), st.integers(-60, 60))
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "TumblingProcessingTimeWindows.of",
    "WindowAssigner.assign_windows",
    "WindowAssigner.WindowAssignerContext.get_current_processing_time",
    "TimeWindow.start",
    "TimeWindow.end",
)
def test_tumbling_windows_contain_the_time(time: int, size: int, offset: int) -> None:
    if abs(offset) >= size:
        with pytest.raises(ValueError, match=r"offset must satisfy abs\(offset\) < size"):
            TumblingEventTimeWindows.of(size, offset)
        return
    by_event = TumblingEventTimeWindows.of(size, offset).assign_windows(None, time, Clock(0))
    by_clock = TumblingProcessingTimeWindows.of(size, offset).assign_windows(None, 0, Clock(time))
    assert by_event == by_clock == list(on_the_grid(time, size, size, offset))


@given(TIMES, st.integers(1, 50), st.integers(1, 50), st.integers(-60, 60))
@pytest.mark.promises(
    "PyFlink", "supported", "SlidingProcessingTimeWindows.of", "TimeWindow.get_window_start_with_offset"
)
def test_sliding_windows_contain_the_time(time: int, size: int, slide: int, offset: int) -> None:
    if abs(offset) >= slide:
        with pytest.raises(ValueError, match=r"offset must satisfy abs\(offset\) < slide"):
            SlidingEventTimeWindows.of(size, slide, offset)
        return
    by_event = SlidingEventTimeWindows.of(size, slide, offset).assign_windows(None, time, Clock(0))
    by_clock = SlidingProcessingTimeWindows.of(size, slide, offset).assign_windows(None, 0, Clock(time))
    assert by_event == by_clock == sorted(on_the_grid(time, size, slide, offset), reverse=True)


def test_durations_may_be_numpy_integers() -> None:
    of_ints = TumblingEventTimeWindows.of(10, -3).assign_windows(None, 5, Clock(0))
    numbers: Any = np.array([10, -3])
    assert TumblingEventTimeWindows.of(*numbers).assign_windows(None, 5, Clock(0)) == of_ints


@pytest.mark.promises(
    "PyFlink", "supported", "GlobalWindow.start", "GlobalWindow.end", "GlobalWindow.max_timestamp"
)
def test_assigners_have_a_readable_repr_and_windows_compare() -> None:
    of_a_day = TumblingEventTimeWindows.of(timedelta(days=1), timedelta(hours=-8))
    assert repr(of_a_day) == "TumblingEventTimeWindows(86400000, -28800000)"
    assert repr(SlidingProcessingTimeWindows.of(10, 5, 1)) == "SlidingProcessingTimeWindows(10, 5, 1)"
    assert repr(EventTimeSessionWindows.with_gap(timedelta(seconds=1))) == "EventTimeSessionWindows(1000)"
    assert GlobalWindows.create().assign_windows(None, 5, Clock(0)) == [GlobalWindow.get()]
    assert GlobalWindow.get() != TimeWindow(0, 1) != TimeWindow(0, 2)
    assert sorted([TimeWindow(1, 2), TimeWindow(0, 9), TimeWindow(0, 3)])[0] == TimeWindow(0, 3)


@pytest.mark.parametrize(
    ("assigner", "trigger", "event_time"),
    [
        (TumblingEventTimeWindows.of(5), EventTimeTrigger, True),
        (SlidingEventTimeWindows.of(5, 2), EventTimeTrigger, True),
        (EventTimeSessionWindows.with_gap(5), EventTimeTrigger, True),
        (TumblingProcessingTimeWindows.of(5), ProcessingTimeTrigger, False),
        (SlidingProcessingTimeWindows.of(5, 2), ProcessingTimeTrigger, False),
        (ProcessingTimeSessionWindows.with_gap(5), ProcessingTimeTrigger, False),
        (GlobalWindows.create(), NeverTrigger, False),
    ],
    ids=repr,
)
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "WindowAssigner.get_default_trigger",
    "WindowAssigner.is_event_time",
    "ProcessingTimeTrigger.create",
    "NeverTrigger",
)
def test_the_default_trigger_has_the_time_of_the_assigner(
    assigner: WindowAssigner, trigger: type[Trigger], event_time: bool
) -> None:
    assert type(assigner.get_default_trigger()) is trigger
    assert assigner.is_event_time() is event_time


def sessions_of(windows: list[TimeWindow]) -> set[TimeWindow]:
    """Merge windows that touch until none do."""
    left = set(windows)
    for one in windows:
        together = {other for other in left if other.intersects(one)}
        while more := {w for w in left - together if any(w.intersects(t) for t in together)}:
            together |= more
        if together:
            left -= together
            left.add(TimeWindow(min(w.start for w in together), max(w.end for w in together)))
    return left


@given(st.lists(st.tuples(TIMES, st.integers(1, 60)), max_size=40), st.integers(1, 41))
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "MergingWindowAssigner.merge_windows",
    "MergingWindowAssigner.MergeCallback.merge",
    "TimeWindow.intersects",
    "TimeWindow.cover",
)
def test_a_merging_window_set_merges_sessions(added: list[tuple[int, int]], reload_after: int) -> None:
    keys: KeyContext[str] = KeyContext()
    keys.current_key = "key"
    window_type = Types.ROW([Types.LONG(), Types.LONG()])
    state = MemoryRuntimeContext(keys).get_map_state(MapStateDescriptor("set", window_type, window_type))
    assigner = EventTimeSessionWindows.with_gap(1)
    in_flight = MergingWindowSet(assigner, state)
    kept: dict[Any, set[int]] = {}

    def merge(result: Any, merged: Any, into: Any, absorbed: Any) -> None:
        assert all(result.cover(window) == result for window in merged)
        assert into not in absorbed
        for other in absorbed:
            kept[into] |= kept.pop(other)

    windows = [TimeWindow(start, start + gap) for start, gap in added]
    for number, window in enumerate(windows):
        if number % reload_after == 0:
            in_flight.persist()
            in_flight = MergingWindowSet(assigner, state)
        result = in_flight.add_window(window, merge)
        assert result in sessions_of(windows[: number + 1])
        assert result.cover(window) == result
        kept.setdefault(in_flight.get_state_window(result), set()).add(number)
    in_flight.persist()
    found = {
        window: {number for number, one in enumerate(windows) if window.cover(one) == window}
        for window in sessions_of(windows)
    }
    assert {window: kept[state_window] for window, state_window in state.items()} == found


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> Any:
        return element


@pytest.mark.parametrize(
    "sessions", [EventTimeSessionWindows, ProcessingTimeSessionWindows], ids=lambda s: s.__name__
)
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "EventTimeSessionWindows.with_dynamic_gap",
    "ProcessingTimeSessionWindows.with_dynamic_gap",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "SessionWindowTimeGapExtractor.extract",
)
def test_each_element_has_its_own_gap(sessions: Any) -> None:
    assigner = sessions.with_dynamic_gap(Gap())
    assert assigner.assign_windows(7, 100, Clock(100)) == [TimeWindow(100, 107)]
    with pytest.raises(ValueError, match="gap must be more than 0 ms, got 0"):
        assigner.assign_windows(0, 100, Clock(100))
    with pytest.raises(TypeError, match=r"gap must be an int of milliseconds or a timedelta, got 1\.5"):
        assigner.assign_windows(1.5, 100, Clock(100))
    with pytest.raises(TypeError, match=r"extractor must be a SessionWindowTimeGapExtractor, got"):
        sessions.with_dynamic_gap(lambda element: 5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TumblingEventTimeWindows.of(0), ValueError, "size must be more than 0 ms, got 0"),
        (lambda: TumblingProcessingTimeWindows.of(-5), ValueError, "size must be more than 0 ms, got -5"),
        (
            lambda: TumblingEventTimeWindows.of("1h"),
            ValueError,
            "size must be a duration such as '10 minutes' or '1 hour 30 minutes', got '1h'",
        ),
        (
            lambda: TumblingEventTimeWindows.of("1 year"),
            ValueError,
            "size must have a fixed length, got '1 year'; write weeks or days instead of years",
        ),
        (lambda: TumblingEventTimeWindows.of(5, None), TypeError, "offset must be an int of milliseconds"),
        (lambda: SlidingEventTimeWindows.of(5, 0), ValueError, "slide must be .*, got 0"),
        (lambda: SlidingEventTimeWindows.of(0, 5), ValueError, "size must be .*, got 0"),
        (lambda: SlidingProcessingTimeWindows.of(5, -1), ValueError, "slide must be .*, got -1"),
        (lambda: EventTimeSessionWindows.with_gap(0), ValueError, "size must be .*, got 0"),
        (lambda: ProcessingTimeSessionWindows.with_gap(timedelta(-1)), ValueError, "size must be .*, got .*"),
        (lambda: EventTimeSessionWindows.with_gap(True), TypeError, "size must be an int of milliseconds"),
        (lambda: CountTrigger.of(0), ValueError, "window_size must be 1 or more, got 0"),
        (lambda: CountTrigger.of(2.0), TypeError, r"window_size must be an int, got 2\.0"),
        (lambda: ContinuousEventTimeTrigger.of(0), ValueError, "interval must be more than 0 ms, got 0"),
        (
            lambda: ContinuousProcessingTimeTrigger.of(-1),
            ValueError,
            "interval must be more than 0 ms, got -1",
        ),
        (lambda: PurgingTrigger.of(5), TypeError, "nested_trigger must be a Trigger, got 5"),
        (
            lambda: PurgingTrigger.of(EventTimeTrigger),
            TypeError,
            r"nested_trigger must be an instance, got the class .*; pass EventTimeTrigger\(\) instead",
        ),
        (lambda: ReducingStateDescriptor("n", 5, LONG), TypeError, "reduce_function must be .*, got 5"),
    ],
)
def test_invalid_parameters_raise(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


class Count(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


class Larger(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2)


class Whole(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield len(elements)


TUMBLING, SESSIONS = TumblingEventTimeWindows.of(5), EventTimeSessionWindows.with_gap(5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"assigner": TumblingEventTimeWindows},
            TypeError,
            "assigner must be an instance, got the class TumblingEventTimeWindows",
        ),
        ({"assigner": 5}, TypeError, "assigner must be a WindowAssigner, got 5"),
        (
            {"function": len},
            TypeError,
            "function must be an AggregateFunction, ReduceFunction, .* or .*, got",
        ),
        ({"function": Count}, TypeError, "function must be an instance, got the class Count; pass"),
        ({"trigger": "count"}, TypeError, "trigger must be a Trigger, got 'count'"),
        (
            {"assigner": SESSIONS, "trigger": NeverTrigger()},
            ValueError,
            r"trigger must support merging, because EventTimeSessionWindows\(5\) merges windows, got Never",
        ),
        (
            {"assigner": SESSIONS, "trigger": PurgingTrigger.of(NeverTrigger())},
            ValueError,
            "trigger must support merging",
        ),
        ({"accumulator_type": None}, TypeError, "accumulator_type must be a type for Count, .*, got None"),
        (
            {"element_type": LONG},
            ValueError,
            "element_type must be None for Count, .*; pass accumulator_type",
        ),
        (
            {"function": Larger()},
            ValueError,
            "accumulator_type must be None for Larger, .*; pass element_type",
        ),
        (
            {"function": Whole(), "accumulator_type": None},
            TypeError,
            "element_type must be a type for Whole, .*, got None",
        ),
        (
            {"window_function": Count()},
            TypeError,
            "window_function must be a ProcessWindowFunction or WindowFunction, got",
        ),
        (
            {"function": Whole(), "window_function": Whole(), "element_type": LONG, "accumulator_type": None},
            ValueError,
            "window_function must be None with Whole, which is one itself, got",
        ),
        ({"allowed_lateness": -1}, ValueError, "allowed_lateness must be 0 or more, got -1"),
        ({"late": []}, TypeError, r"late must be a callable \(value, ctx\) -> results, got \[\]"),
    ],
)
def test_invalid_operator_arguments_raise(arguments: Any, error: type[Exception], message: str) -> None:
    good = {"assigner": TUMBLING, "function": Count(), "accumulator_type": LONG}
    with pytest.raises(error, match=message):
        WindowOperator(**{**good, **arguments})


def test_a_window_keeps_states_of_all_kinds() -> None:
    keys: KeyContext[str] = KeyContext()
    keys.current_key = "key"
    states = WindowStates(MemoryRuntimeContext(keys), "prefix")
    one, other, union = TimeWindow(0, 5), TimeWindow(5, 9), TimeWindow(0, 9)
    value = states.of(ValueStateDescriptor("value", LONG), one)
    value.update(5)
    assert value.value() == 5
    assert states.of(ValueStateDescriptor("value", LONG), other).value() is None
    value.update(None)
    assert value.value() is None

    log, logs = ListStateDescriptor("log", "bigint"), {}
    for window in (one, other):
        logs[window] = states.of(log, window)
        logs[window].add_all([window.start, window.end])
    with pytest.raises(ValueError, match="an element of a list state must not be None"):
        logs[one].add(None)
    states.merge(log, union, [other, one])
    assert [list(states.of(log, window)) for window in (one, other, union)] == [[], [], [5, 9, 0, 5]]

    book = states.of(MapStateDescriptor("book", "string", LONG), one)
    book["a"], book["b"] = 1, None
    book.put_all({"c": 3})
    assert (book["a"], book["x"], "b" in book, "x" in book) == (1, None, True, False)
    assert (dict(book.items()), list(book), list(book.values())) == (
        {"a": 1, "b": None, "c": 3},
        ["a", "b", "c"],
        [1, None, 3],
    )
    for key in ("a", "x", "c", "b"):
        assert not book.is_empty()
        del book[key]
    assert book.is_empty()

    total = ReducingStateDescriptor("total", lambda a, b: a + b, LONG)
    for window in (one, other):
        states.of(total, window).add(window.start)
        states.of(total, window).add(window.end)
    states.merge(total, union, [one, TimeWindow(99, 100), other])
    assert [states.of(total, window).get() for window in (one, other, union)] == [None, None, 19]

    class Mean(AggregateFunction):
        def create_accumulator(self):
            return [0, 0]

        def add(self, value, accumulator):
            return [accumulator[0] + value, accumulator[1] + 1]

        def get_result(self, accumulator):
            return accumulator[0] / accumulator[1]

        def merge(self, acc_a, acc_b):
            return [a + b for a, b in zip(acc_a, acc_b, strict=True)]

    mean = AggregatingStateDescriptor("mean", Mean(), "array<bigint>")
    states.of(mean, one).add(6)
    for value in (1, 2):
        states.of(mean, other).add(value)
    states.merge(mean, union, [one, other])
    assert [states.of(mean, window).get() for window in (one, other, union)] == [None, None, 3]
    with pytest.raises(TypeError, match="must be the descriptor of a reducing, an aggregating or a list"):
        states.merge(ValueStateDescriptor("value", LONG), union, [one])
    with pytest.raises(TypeError, match="must be the descriptor of a value, list, map, reducing or"):
        states.of("value", one)
    with pytest.raises(ValueError, match="already in use"):
        states.of(ListStateDescriptor("value", LONG), one)


def test_a_type_of_others_is_ddl_unless_one_of_them_is_an_arrow_type() -> None:
    pa = pytest.importorskip("pyarrow")

    def map_of(*types: object) -> object:
        return composite(types, Types.MAP, lambda pa, *two: pa.map_(*two))

    assert list_of("bigint") == Types.LIST(LONG)
    assert map_of(Types.STRING(), "bigint") == Types.MAP(Types.STRING(), LONG)
    assert list_of(pa.int64()) == pa.list_(pa.field("element", pa.int64()))
    assert map_of(pa.string(), "bigint") == pa.map_(pa.string(), pa.int64())


def test_an_element_without_a_timestamp_raises() -> None:
    for timestamp in (None, MIN_WATERMARK):
        for assigner in (TUMBLING, SESSIONS, SlidingEventTimeWindows.of(5, 2)):
            with pytest.raises(ValueError, match="the element must have a timestamp, got"):
                assigner.assign_windows("row", timestamp, Clock(0))  # type: ignore[arg-type]
