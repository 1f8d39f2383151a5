"""Evictors and count windows: the cases of Flink's own tests, and similar ones."""

from __future__ import annotations

from typing import Any

import pytest
from running_windows import GLOBAL, Add, All, Difference, Sum, Total, fed, running

from timerheap import MAX_WATERMARK
from timerheap.windows import (
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    ProcessingTimeoutTrigger,
    TimeEvictor,
    TumblingEventTimeWindows,
    WindowFunction,
    count_window,
)
from timerheap.windows.window import window_of

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
