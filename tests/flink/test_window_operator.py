"""WindowOperator compared with Flink's output for assigners, triggers, allowed lateness and late elements."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from timerheap import MAX_WATERMARK, MIN_WATERMARK, KeyedProcessFunction, RuntimeContext
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.windows import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    Trigger,
    TumblingEventTimeWindows,
    WindowAssigner,
    WindowOperator,
)

ELEMENT = "struct<id: bigint, value: bigint>"
SUM = "struct<sum: bigint, ids: array<bigint>>"


def assigner_of(trace: dict[str, Any]) -> WindowAssigner:
    match trace["assigner"]:
        case "tumbling":
            return TumblingEventTimeWindows.of(trace["size"], trace["offset"])
        case "sliding":
            return SlidingEventTimeWindows.of(trace["size"], trace["slide"], trace["offset"])
        case "session":
            return EventTimeSessionWindows.with_gap(trace["size"])
        case "global":
            return GlobalWindows.create()
    pytest.fail(f"unknown assigner {trace['assigner']}")


def trigger_of(name: str, parameter: int) -> Trigger | None:
    if name.startswith("purging_"):
        nested = trigger_of(name.removeprefix("purging_"), parameter)
        assert nested is not None
        return PurgingTrigger.of(nested)
    match name:
        case "default":
            return None
        case "event":
            return EventTimeTrigger.create()
        case "continuous":
            return ContinuousEventTimeTrigger.of(parameter)
        case "count":
            return CountTrigger.of(parameter)
    pytest.fail(f"unknown trigger {name}")


class AllAtOnce(ProcessWindowFunction):
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Any) -> Any:
        window, ids, values = context.window(), *zip(*elements, strict=True)
        return [result(key, window, sum(values), list(ids), context.current_watermark())]


class OneByOne(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, []

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[1], [*accumulator[1], value[0]]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Shown(ProcessWindowFunction):
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Any) -> Any:
        ((total, ids),) = elements
        yield result(key, context.window(), total, ids, context.current_watermark())


def result(key: str, window: Any, total: int, ids: list[int], watermark: int) -> list[Any]:
    start, end = (MIN_WATERMARK, MAX_WATERMARK) if window == GlobalWindow.get() else window
    return ["r", key, start, end, total, str(ids), watermark]


def shown(emitted: list[Any]) -> list[Any]:
    """Return the output in the form of the traces: a result and its timestamp, or a late element."""
    found = []
    for value, timestamp in emitted:
        if value[0] == "late":
            *value, own = value
            assert timestamp == own
        else:
            value = [*value, timestamp]
        found.append(value)
    return found


class Host(KeyedProcessFunction):
    def __init__(self, trace: dict[str, Any], whole_windows: bool) -> None:
        shared: dict[str, Any] = {
            "trigger": trigger_of(trace["trigger"], trace["trigger_param"]),
            "allowed_lateness": trace["allowed_lateness"],
            "late": lambda value, ctx: [["late", value[0], ctx.timestamp()]],
        }
        assigner = assigner_of(trace)
        if whole_windows:
            self.windows = WindowOperator(assigner, AllAtOnce(), element_type=ELEMENT, **shared)
        else:
            self.windows = WindowOperator(assigner, OneByOne(), Shown(), accumulator_type=SUM, **shared)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.windows.open(runtime_context)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield from self.windows.process_element(value[1:], ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield from self.windows.on_timer(timestamp, ctx)


def replay(trace: dict[str, Any], whole_windows: bool) -> None:
    host = Host(trace, whole_windows)
    with KeyedProcessOperator(host, key_selector=lambda value: value[0]) as operator:
        events = [*trace["input"], ["w", MAX_WATERMARK]]
        for number, (event, expected) in enumerate(zip(events, trace["output"], strict=True)):
            if event[0] == "r":
                _, id_, timestamp, key, value = event
                emitted = operator.process_element((key, id_, value), timestamp)
                assert shown(emitted) == expected, f"event {number}"
                continue
            *fired, watermark = operator.process_watermark(event[1])
            assert [["w", watermark.timestamp]] == expected[-1:], f"event {number}"
            # Timers with equal timestamps fire in any order.
            assert sorted(shown(fired)) == sorted(expected[:-1]), f"event {number}"
        if trace["assigner"] != "global":
            assert operator.num_keyed_state_entries() == 0, "state is left"
        assert operator.num_event_time_timers() == 0, "timers are left"
        assert operator.num_processing_time_timers() == 0, "timers are left"
    assert host.windows.num_late_records_dropped == 0


@pytest.mark.parametrize("whole_windows", [True, False], ids=["elements", "accumulators"])
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "TumblingEventTimeWindows.of",
    "SlidingEventTimeWindows.of",
    "EventTimeSessionWindows.with_gap",
    "GlobalWindows.create",
    "PurgingTrigger.of",
    "EventTimeTrigger.create",
    "ContinuousEventTimeTrigger.of",
    "CountTrigger.of",
    "AggregateFunction.create_accumulator",
    "AggregateFunction.add",
    "AggregateFunction.get_result",
    "AggregateFunction.merge",
    "ProcessWindowFunction.process",
    "ProcessWindowFunction.Context.window",
    "ProcessWindowFunction.Context.current_watermark",
    "GlobalWindow.get",
)
@pytest.mark.promises(
    "PyFlink",
    "added",
    "WindowOperator.open",
    "WindowOperator.close",
    "WindowOperator.process_element",
    "WindowOperator.on_timer",
    note="as in Flink's Java API",
)
def test_results_equal_flinks(traces: Any, whole_windows: bool) -> None:
    traces.replay(partial(replay, whole_windows=whole_windows), f"whole windows: {whole_windows}")
