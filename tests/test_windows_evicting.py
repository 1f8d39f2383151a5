"""Evictors, count windows, delta and timeout triggers: the cases of Flink's own tests, and similar ones."""

from __future__ import annotations

from typing import Any

import pytest
from window_model import Host

from timerheap import MAX_WATERMARK, Types
from timerheap.flink import StreamRecord
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.windows import (
    AggregateFunction,
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    DeltaEvictor,
    DeltaFunction,
    DeltaTrigger,
    EndOfStreamTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    ReduceFunction,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowFunction,
    WindowOperator,
    count_window,
)
from timerheap.windows.window import window_of

LONG = Types.LONG()
GLOBAL = GlobalWindows.create()


class PairHost(Host):
    """Passes the second of a pair to the operator."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.windows.process_element(value[1], ctx)


class Sum(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        yield key, sum(inputs)


class All(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield context.window(), list(elements)


class Add(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class Total(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class Difference(DeltaFunction):
    def get_delta(self, old_data_point: Any, new_data_point: Any) -> Any:
        return new_data_point - old_data_point


def running(assigner: Any, function: Any, *args: Any, **options: Any) -> KeyedProcessOperator:
    options.setdefault("element_type", LONG)
    host = PairHost(WindowOperator(assigner, function, *args, **options))
    return KeyedProcessOperator(host, key_selector=lambda value: value[0])


def fed(operator: KeyedProcessOperator, elements: list[Any]) -> list[Any]:
    """Process elements (key, value, timestamp) and return the output."""
    found = [operator.process_element((key, value), timestamp) for key, value, timestamp in elements]
    return [tuple(record) for emitted in found for record in emitted]


# ---- EvictingWindowOperatorTest ----

FIRST = [3000, 3999, 20, 0, 999, 1998, 1999, 1000]
KEYS = ["key2", "key2", "key1", "key1", "key1", "key2", "key2", "key2"]
END = MAX_WATERMARK


def elements(values: list[int], timestamps: list[Any] = FIRST, keys: list[str] = KEYS) -> list[Any]:
    return list(zip(keys, values, timestamps, strict=True))


ONES = [1] * 8
LATER = ["key1", "key2"]


@pytest.mark.parametrize(
    ("evictor", "rounds"),
    [
        (
            CountEvictor.of(4, True),
            [
                (elements(ONES), [("key2", 2), ("key1", 2), ("key2", 4)]),
                (elements([1, 1], [10999, 1000], LATER), [("key1", 4), ("key2", 6)]),
                (elements([1, 1], [1000, 1000], ["key2", "key2"]), [("key2", 6)]),
            ],
        ),
        (
            CountEvictor.of(4),
            [
                (elements(ONES), [("key2", 2), ("key1", 2), ("key2", 4)]),
                (elements([1, 1], [10999, 1000], LATER), [("key1", 4), ("key2", 4)]),
            ],
        ),
        (
            TimeEvictor.of(2000, True),
            [
                (
                    elements(ONES, [1000, 4000, 20, 0, 999, 3500, 2001, 1001]),
                    [("key2", 2), ("key1", 2), ("key2", 3)],
                ),
                (elements([1, 1], [10999, 1002], LATER), [("key1", 4), ("key2", 5)]),
            ],
        ),
        (
            TimeEvictor.of(2000, True),  # without timestamps
            [
                (elements(ONES, [None] * 8), [("key2", 2), ("key1", 2), ("key2", 4)]),
                (elements([1, 1], [None, None], LATER), [("key1", 4), ("key2", 6)]),
            ],
        ),
        (
            DeltaEvictor.of(2, Difference()),
            [
                (elements([1, 4, 1, 1, 5, 5, 6, 1]), [("key2", 4), ("key1", 2), ("key2", 11)]),
                (elements([3, 10], [10999, 1000], LATER), [("key1", 8), ("key2", 10)]),
            ],
        ),
        (
            DeltaEvictor.of(2, lambda old, new: new - old, True),
            [
                (elements([1, 4, 1, 1, 5, 5, 6, 1]), [("key2", 5), ("key1", 2), ("key2", 15)]),
                (elements([9, 10], [10999, 1000], LATER), [("key1", 16), ("key2", 22)]),
            ],
        ),
    ],
    ids=["count after", "count before", "time after", "no time", "delta before", "delta after"],
)
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "CountEvictor.of",
    "TimeEvictor.of",
    "DeltaEvictor.of",
    "TimestampedValue.value",
    "TimestampedValue.timestamp",
    "Evictor.evict_before",
    "Evictor.evict_after",
)
def test_evictors_keep_the_elements_that_flinks_keep(evictor: Evictor, rounds: list[Any]) -> None:
    with running(GLOBAL, Sum(), trigger=CountTrigger.of(2), evictor=evictor) as operator:
        for given, expected in rounds:
            assert fed(operator, given) == [(result, END) for result in expected]


def test_a_time_evictor_evicts_before_the_function_of_a_time_window() -> None:
    tumbling = TumblingEventTimeWindows.of(4_000)
    with running(tumbling, Sum(), trigger=CountTrigger.of(2), evictor=TimeEvictor.of(2_000)) as operator:
        keys = ["key2", "key2", "key1", "key1", "key1", "key1", "key2", "key2", "key2"]
        times = [1000, 3999, 20, 0, 999, 5999, 3500, 2001, 1001]
        first = fed(operator, elements([1] * 9, times, keys))
        assert first == [(("key2", 1), 3999), (("key1", 2), 3999), (("key2", 3), 3999)]
        later = fed(operator, elements([1, 1], [6500, 1002], LATER))
        assert later == [(("key1", 2), 7999), (("key2", 3), 3999)]


def test_a_tumbling_window_with_a_count_evictor_deletes_its_state() -> None:
    tumbling = TumblingEventTimeWindows.of(4_000)
    with running(tumbling, Sum(), trigger=EventTimeTrigger.create(), evictor=CountEvictor.of(4)) as operator:
        assert fed(operator, [("key1", 1, 10), ("key1", 1, 100)]) == []
        operator.process_watermark(1_999)
        times = [1997, 1998, 2310, 2310, 2310, 2310]
        assert fed(operator, elements([1] * 6, times, ["key1"] * 4 + ["key2"] * 2)) == []
        *results, _ = operator.process_watermark(3_999)
        assert sorted(results) == [(("key1", 4), 3999), (("key2", 2), 3999)]
        assert operator.num_keyed_state_entries() == operator.num_event_time_timers() == 0


@pytest.mark.parametrize("function", [Add(), Total()], ids=["reduce", "aggregate"])
@pytest.mark.parametrize("shown", [False, True])
def test_incremental_functions_aggregate_the_remaining_elements(function: Any, shown: bool) -> None:
    behind = [Sum()] if shown else []
    options: Any = {"trigger": CountTrigger.of(2), "evictor": CountEvictor.of(3)}
    with running(GLOBAL, function, *behind, **options) as operator:
        found = fed(operator, [("a", value, None) for value in range(1, 9)])
    expected = [1 + 2, 2 + 3 + 4, 4 + 5 + 6, 6 + 7 + 8]
    assert [result for result, _ in found] == [("a", total) if shown else total for total in expected]


class Nothing(Evictor):
    """Evicts all elements, and checks its arguments."""

    def evict_before(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        assert [element.timestamp for element in elements] == [5] * size
        assert evictor_context.get_current_processing_time() == 7
        assert evictor_context.get_current_watermark() == 3
        elements.clear()

    def evict_after(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        assert elements == []


@pytest.mark.parametrize(("function", "expected"), [(Add(), []), (Total(), [0, 0]), (Sum(), [("a", 0)] * 2)])
@pytest.mark.promises("PyFlink", "supported", "WindowFunction.apply")
def test_an_evictor_may_evict_all_elements(function: Any, expected: list[Any]) -> None:
    with running(GLOBAL, function, trigger=CountTrigger.of(2), evictor=Nothing()) as operator:
        operator.set_processing_time(7)
        operator.process_watermark(3)
        assert [result for result, _ in fed(operator, [("a", 1, 5)] * 4)] == expected


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "Evictor.EvictorContext.get_current_processing_time",
    "Evictor.EvictorContext.get_current_watermark",
)
def test_an_evictor_receives_the_elements_of_merged_sessions() -> None:
    sessions = EventTimeSessionWindows.with_gap(10)
    with running(sessions, All(), evictor=TimeEvictor.of(6)) as operator:
        assert fed(operator, [("a", 1, 0), ("a", 3, 16), ("a", 2, 8)]) == []
        ((window, left), at), _ = operator.process_watermark(100)
        assert (tuple(window), sorted(left), at) == ((0, 26), [3], 25)
        assert operator.num_keyed_state_entries() == operator.num_event_time_timers() == 0


def test_a_failing_function_leaves_the_elements_of_the_window() -> None:
    class Failing(WindowFunction):
        fails = True

        def apply(self, key: Any, window: Any, inputs: Any) -> Any:
            if self.fails:
                raise KeyError(key)
            return [sum(inputs)]

    function = Failing()
    with running(GLOBAL, function, trigger=CountTrigger.of(1), evictor=CountEvictor.of(2)) as operator:
        for _ in range(3):
            with pytest.raises(KeyError):
                operator.process_element(("a", 1), 0)
        function.fails = False
        assert fed(operator, [("a", 5, 0)]) == [(6, END)]


# ---- count windows ----


@pytest.mark.promises("PyFlink", "supported", "CountTumblingWindowAssigner.of")
def test_a_count_window_fires_when_it_is_full() -> None:
    given = [(key, value, None) for value in range(1, 8) for key in "ab"]
    with running(count_window(3), All()) as operator:
        found = [result for result, at in fed(operator, given) if at == END]
        assert operator.num_keyed_state_entries() == 2 * 4  # element 7, the size of window 2, two counts
    assert found == [
        (CountWindow(0), [1, 2, 3]),
        (CountWindow(0), [1, 2, 3]),
        (CountWindow(1), [4, 5, 6]),
        (CountWindow(1), [4, 5, 6]),
    ]


@pytest.mark.parametrize(
    ("size", "slide", "expected"),
    [
        (4, 2, [(0, [1, 2, 3, 4]), (1, [3, 4, 5, 6]), (2, [5, 6, 7, 8])]),
        (2, 1, [(number, [number + 1, number + 2]) for number in range(8)]),
        (2, 3, [(0, [1, 2]), (1, [4, 5]), (2, [7, 8])]),
    ],
)
@pytest.mark.promises("PyFlink", "supported", "CountSlidingWindowAssigner.of")
@pytest.mark.promises("PyFlink", "supported", "WindowAssigner.WindowAssignerContext.get_runtime_context")
def test_sliding_count_windows_fire_when_they_are_full(size: int, slide: int, expected: list[Any]) -> None:
    with running(count_window(size, slide), All()) as operator:
        found = fed(operator, [("a", value, None) for value in range(1, 10)])
    assert found == [((CountWindow(number), values), END) for number, values in expected]


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "count_window",
    "CountWindow.id",
    "CountWindow.start",
    "CountWindow.end",
    "CountWindow.max_timestamp",
)
def test_count_window_returns_an_assigner_of_count_windows() -> None:
    assert isinstance(count_window(3), CountTumblingWindowAssigner)
    assert isinstance(count_window(3, 2), CountSlidingWindowAssigner)
    assert repr(count_window(3)) == repr(CountTumblingWindowAssigner.of(3))
    assert repr(count_window(3, 2)) == repr(CountSlidingWindowAssigner.of(3, 2))
    assert not count_window(3).is_event_time()
    assert repr(CountWindow(5)) == "CountWindow(id=5)"
    assert CountWindow(5) != CountWindow(6)
    for window in (CountWindow(0), CountWindow(5)):
        assert window_of(tuple(window)) == window
        assert (window.start, window.end, window.max_timestamp()) == (None, None, END)


# ---- the end of the stream ----


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
        assert operator.process_watermark(END - 1) == [(END - 1,)]
        *results, _ = operator.process_watermark(END)
        assert sorted(results) == [(3, END), (5, END)]


# ---- DeltaTrigger ----


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
        assert fed(operator, [("a", 1, 0), ("a", 5, 0)]) == [(6, END)]


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


# ---- ProcessingTimeoutTriggerTest ----


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


# ---- invalid arguments ----


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CountEvictor.of(0), ValueError, "max_count must be 1 or more, got 0"),
        (lambda: CountEvictor.of(1.5), TypeError, "max_count must be an int"),  # type: ignore[arg-type]
        (lambda: TimeEvictor.of(-1), ValueError, "window_size"),
        (lambda: TimeEvictor.of("1s"), ValueError, "window_size"),
        (lambda: DeltaEvictor.of("1", Difference()), TypeError, "threshold must be a number, got '1'"),
        (lambda: DeltaEvictor.of(float("nan"), Difference()), ValueError, "threshold must be a number"),
        (lambda: DeltaEvictor.of(1, Difference), TypeError, "delta_function must be .* pass an instance"),
        (lambda: DeltaTrigger.of(1, "difference"), TypeError, "delta_function must be a DeltaFunction or a"),
        (lambda: ProcessingTimeoutTrigger.of(5, 5), TypeError, "nested_trigger must be a Trigger, got 5"),
        (lambda: ProcessingTimeoutTrigger.of(CountTrigger.of(1), -5), ValueError, "timeout"),
        (lambda: count_window(0), ValueError, "window_size must be 1 or more, got 0"),
        (lambda: count_window(2, -1), ValueError, "window_slide must be 1 or more, got -1"),
        (lambda: count_window("2"), TypeError, "window_size must be an int, got '2'"),
        (lambda: running(GLOBAL, Sum(), evictor=CountTrigger.of(1)), TypeError, "evictor must be an Evictor"),
        (lambda: running(GLOBAL, Sum(), evictor=CountEvictor), TypeError, "got the class CountEvictor"),
        (
            lambda: running(GLOBAL, Total(), evictor=CountEvictor.of(1), element_type=None),
            TypeError,
            "element_type must be a type for Total with an evictor",
        ),
        (
            lambda: running(EventTimeSessionWindows.with_gap(1), Sum(), trigger=DeltaTrigger.of(1, max)),
            ValueError,
            "trigger must support merging",
        ),
    ],
)
def test_invalid_arguments_raise(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
