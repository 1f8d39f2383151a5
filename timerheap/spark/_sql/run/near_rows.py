"""An interval join whose conditions Spark computes: it hands on each row with all rows that are near it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timerheap.functions import KeyedCoProcessFunction, RuntimeContext
from timerheap.state import MapState, MapStateDescriptor
from timerheap.timer import MAX_WATERMARK
from timerheap.types import Types, list_of

NEAR = ["left rows near it", "right rows near it"]
"""Names of the columns with the rows of the one side that are near a row of the other: lists of structs."""


def both(left: Any, right: Any) -> tuple[Any, Any]:
    """Return the two rows of a pair; either may be None in an outer join."""
    return left, right


class NearRows(KeyedCoProcessFunction):
    """Emits each row of some sides with all rows of the other side whose times are near its own.

    It does so once the watermark shows that no more of them can come; a row of which that is already known
    when it arrives, is late, and has those which are still there. What a row needs is kept as long.

    lower, upper: by how many ms the right time is behind the left one, at least and at most
    whole: whether rows of the left and of the right side are emitted so; late rows of others are dropped
    pairs: whether each pair is emitted, too, when its second row arrives, with null for both lists
    """

    _any_order = True

    def __init__(
        self, lower: int, upper: int, whole: tuple[bool, bool], pairs: bool, left_type: Any, right_type: Any
    ) -> None:
        self._results_behind = max(upper, -lower, 0)
        self._pairs = pairs
        self._left = _Side(0, (lower, upper), whole, left_type)
        self._right = _Side(1, (-upper, -lower), whole, right_type)
        self.num_late_records_dropped = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self._left.open(runtime_context)
        self._right.open(runtime_context)

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        return self._process(value, self._left, self._right, ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        return self._process(value, self._right, self._left, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Emit the rows that are whole now, then remove those that no row needs any more."""
        sides = (self._left, self._right), (self._right, self._left)
        for mine, other in sides:
            for time in mine.due(timestamp, mine.last) if mine.whole else ():
                near = other.near(time + mine.first, time + mine.last)
                for row in mine.at(time):
                    yield mine.alone(row, near)
        for mine, _ in sides:
            for time in mine.due(timestamp, mine.stays):
                mine.remove(time)

    def _process(
        self, row: Any, mine: _Side, other: _Side, ctx: KeyedCoProcessFunction.Context
    ) -> Iterator[Any]:
        time, service = ctx.timestamp(), ctx.timer_service()
        assert time is not None  # the driver demands an event time
        watermark = service.current_watermark()
        if time < watermark and not mine.whole:
            self.num_late_records_dropped += 1
            return
        near = other.near(time + mine.first, time + mine.last)
        if watermark < time + mine.stays:
            mine.keep(row, time)
            for last in {mine.last, mine.stays} if mine.whole else {mine.stays}:
                if watermark < time + last:
                    service.register_event_time_timer(min(time + last, MAX_WATERMARK))
        if self._pairs:
            for found in near:
                yield *mine.pair(row, found), None, None
        if mine.whole and watermark >= time + mine.last:
            yield mine.alone(row, near)


class _Side:
    """The rows of one side by their times.

    first, last: from the time of a row to those of the rows near it
    stays: for how long a row is kept, from its time
    """

    def __init__(self, number: int, bounds: tuple[int, int], whole: tuple[bool, bool], type_: Any) -> None:
        self.whole = whole[number]
        self.first, self.last = bounds
        # The last row that it is near may come until the watermark has passed that, and is whole later.
        self.stays = self.last + (max(0, -self.first) if whole[1 - number] else 0)
        self._number = number
        self._type = MapStateDescriptor(
            f"{('left', 'right')[number]}_rows", Types.LONG(), list_of(type_, "type")
        )

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows: MapState = runtime_context.get_map_state(self._type)

    def pair(self, mine: Any, other: Any) -> tuple[Any, Any]:
        """Return what belongs to the left and to the right."""
        return (other, mine) if self._number else (mine, other)

    def alone(self, row: Any, near: list[Any]) -> tuple[Any, ...]:
        return *self.pair(row, None), *self.pair(None, near)

    def keep(self, row: Any, time: int) -> None:
        self._rows.put(time, [*self.at(time), row])

    def at(self, time: int) -> list[Any]:
        return self._rows.get(time) or []

    def near(self, first: int, last: int) -> list[Any]:
        """Return the rows from a time to another one."""
        times = sorted(time for time in self._rows if first <= time <= last)
        return [row for time in times for row in self.at(time)]

    def due(self, timestamp: int, after: int) -> list[int]:
        """Return the times of rows of which a timer says that so many ms have passed."""
        if timestamp < MAX_WATERMARK:
            return [timestamp - after] if timestamp - after in self._rows else []
        return sorted(time for time in self._rows if time + after >= MAX_WATERMARK)

    def remove(self, time: int) -> None:
        self._rows.remove(time)
