"""The window operator in a function, and a model of it in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from timerheap import MIN_WATERMARK, KeyedProcessFunction, ListStateDescriptor, ReducingStateDescriptor, Types
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.windows import (
    ProcessWindowFunction,
    SessionWindowTimeGapExtractor,
    TimeWindow,
    Trigger,
    TriggerResult,
    WindowOperator,
)

LONG = Types.LONG()


class Host(KeyedProcessFunction):
    """A function whose elements are (key, ...) and that passes them to the operator without the key."""

    def __init__(self, windows: WindowOperator) -> None:
        self.windows = windows

    def open(self, runtime_context: Any) -> None:
        self.windows.open(runtime_context)

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.windows.process_element(value[1:], ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return self.windows.on_timer(timestamp, ctx)

    def close(self) -> None:
        self.windows.close()


def running(*args: Any, **kwargs: Any) -> KeyedProcessOperator:
    host = Host(WindowOperator(*args, **kwargs))
    return KeyedProcessOperator(host, key_selector=lambda value: value[0])


def results(emitted: list[Any]) -> list[Any]:
    return [element.value for element in emitted if hasattr(element, "value")]


class Pane(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window(), sorted(elements), context.current_watermark()


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return 1 + element[0] % 20


class Budget(Trigger):
    """Fires 3 ms after each element; fires and purges when the sum of the values reaches a limit."""

    spent = ReducingStateDescriptor("spent", lambda a, b: a + b, LONG)
    early = ListStateDescriptor("early", LONG)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        spent, early = (ctx.get_partitioned_state(state) for state in (self.spent, self.early))
        spent.add(element[1])
        early.add(timestamp + 3)
        ctx.register_event_time_timer(timestamp + 3)
        ctx.register_event_time_timer(window.max_timestamp())
        if spent.get() < self.limit:
            return TriggerResult.CONTINUE
        spent.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        early = ctx.get_partitioned_state(self.early)
        due = time in early.get()
        early.update([other for other in early if other != time])
        return TriggerResult.FIRE if due or time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        raise AssertionError("no processing-time timer has been registered")

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(self.spent)
        ctx.merge_partitioned_state(self.early)
        for time in (*ctx.get_partitioned_state(self.early), window.max_timestamp()):
            ctx.register_event_time_timer(time)

    def clear(self, window: Any, ctx: Any) -> None:
        for time in (*ctx.get_partitioned_state(self.early), window.max_timestamp()):
            ctx.delete_event_time_timer(time)
        ctx.get_partitioned_state(self.early).clear()
        ctx.get_partitioned_state(self.spent).clear()


class SlowPane:
    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.spent = 0
        self.early: set[int] = set()
        self.timers: set[int] = set()


class SlowOperator:
    """A simple model of the operator with the trigger `Budget`: panes and their timers in plain lists."""

    def __init__(self, assign: Callable[[Any, int], list[TimeWindow]], merges: bool, **parameters: int):
        self.assign = assign
        self.merges = merges
        self.limit = parameters["limit"]
        self.lateness = parameters["lateness"]
        self.watermark = MIN_WATERMARK
        self.panes: dict[Any, dict[TimeWindow, SlowPane]] = defaultdict(dict)

    def element(self, key: str, element: Any, timestamp: int) -> list[Any]:
        given, taken = [], False
        for window in self.assign(element, timestamp):
            window, pane = self.merged(key, window)
            if window.end - 1 + self.lateness <= self.watermark:
                continue
            taken = True
            self.panes[key][window] = pane
            pane.elements.append(element)
            pane.spent += element[1]
            pane.early.add(timestamp + 3)
            pane.timers |= {timestamp + 3, window.end - 1}
            if pane.spent >= self.limit:
                given.append(self.result(key, window, pane))
                pane.elements, pane.spent = [], 0
            pane.timers.add(window.end - 1 + self.lateness)
        late = not taken and timestamp + self.lateness <= self.watermark
        return [("late", element)] if late else given

    def merged(self, key: str, window: TimeWindow) -> tuple[TimeWindow, SlowPane]:
        panes = self.panes[key]
        if not self.merges:
            return window, panes.get(window) or SlowPane()
        together = [other for other in panes if other.intersects(window)]
        if together == [other for other in together if other.cover(window) == other] and together:
            return together[0], panes[together[0]]
        union = SlowPane()
        for other in together:
            pane = panes.pop(other)
            window = window.cover(other)
            union.elements += pane.elements
            union.spent += pane.spent
            union.early |= pane.early
        union.timers = union.early | {window.end - 1} if together else set()
        return window, union

    def result(self, key: str, window: TimeWindow, pane: SlowPane) -> Any:
        return key, window, sorted(pane.elements), self.watermark

    def advance(self, watermark: int) -> list[Any]:
        self.watermark = watermark
        given = []
        while due := [
            (time, key, window)
            for key, panes in self.panes.items()
            for window, pane in panes.items()
            for time in pane.timers
            if time <= watermark
        ]:
            time, key, window = min(due)
            pane = self.panes[key][window]
            pane.timers.remove(time)
            if (time in pane.early or time == window.end - 1) and pane.elements:
                given.append(self.result(key, window, pane))
            pane.early.discard(time)
            if time == window.end - 1 + self.lateness:
                del self.panes[key][window]
        return given
