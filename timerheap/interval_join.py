"""Flink's interval join: joins rows of two inputs with equal keys and nearby times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from timerheap._arguments import Length, milliseconds
from timerheap._values import records
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import Function, KeyedCoProcessFunction, RuntimeContext
from timerheap.output_tag import OutputTag
from timerheap.state import MapState, MapStateDescriptor
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.types import Types, _Subscripted, list_of

_OUTER = {"inner": "", "left": "left", "right": "right", "full": "left and right"}  # whose misses are emitted

LateRowCallback = Callable[[Any, KeyedCoProcessFunction.Context], Iterable[Any] | None]


class ProcessJoinFunction(Function, ABC):
    """Computes output rows from each pair of rows of an `IntervalJoin` (Flink's ``ProcessJoinFunction``).

    Examples
    --------
    >>> class Delay(ProcessJoinFunction):
    ...     def process_element(self, left, right, ctx):
    ...         yield left["plane"], ctx.get_right_timestamp() - ctx.get_left_timestamp()
    """

    class Context(_Subscripted):
        """The context of one call of `process_element`; invalid after it."""

        def __init__(self, left: int | None, right: int | None, ctx: KeyedCoProcessFunction.Context) -> None:
            self._left, self._right, self._ctx = left, right, ctx

        def get_left_timestamp(self) -> int | None:
            """Return the left row's event time, epoch ms, or None if there is no left row."""
            return self._left

        def get_right_timestamp(self) -> int | None:
            """Return the right row's event time, epoch ms, or None if there is no right row."""
            return self._right

        def get_timestamp(self) -> int:
            """Return the pair's event time, epoch ms: the greater of the two, or that of a row alone."""
            return max(time for time in (self._left, self._right) if time is not None)

        def output(self, tag: OutputTag, value: Any) -> None:
            """Send a value to a side output, like ``yield tag, value``."""
            self._ctx.output(tag, value)

    @abstractmethod
    def process_element(
        self, left: Any, right: Any, ctx: ProcessJoinFunction.Context
    ) -> Iterable[Any] | None:
        """Process one pair; yield output rows. In an outer join `left` or `right` is None in a miss."""


class _Each(ProcessJoinFunction):
    """Calls a function that returns one output row for each pair."""

    def __init__(self, join: Callable[[Any, Any], Any]) -> None:
        self._join = join

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any]:
        return [self._join(left, right)]


class IntervalJoin(KeyedCoProcessFunction):
    """Joins rows of one key where ``left time + lower_bound <= right time <= left time + upper_bound``.

    A join in event time. Each pair is emitted once, when its second row arrives, with the greater timestamp
    of the two. A row is kept until the watermark shows that no row to join it with can arrive. An outer join
    then emits the rows that have had no match.

    Parameters
    ----------
    lower_bound, upper_bound : int, timedelta or str
        The distance from the left row to the right row in ms; either bound may be negative.
    function : ProcessJoinFunction or callable
        Processes each pair. A callable receives ``(left, right)`` and returns one output row.
    how : {"inner", "left", "right", "full"}, default "inner"
        Which rows without a match are passed to `function`, with None for the other row: none, the left, the
        right, or all. A left row has no match once the watermark has passed its time plus
        `upper_bound`, a right row its time minus `lower_bound`; or immediately if it has already.
    condition : callable, optional
        ``condition(left, right)`` says whether two rows of one key and nearby times are a pair, as a further
        condition after SQL's ``ON`` does. In an outer join a row without such a pair has no match.
    lower_inclusive, upper_inclusive : bool, default True
        Whether a right row exactly on the bound is joined.
    late_left, late_right : callable, optional
        ``late_left(row, ctx)`` receives a left row that is too late to be joined, and returns output rows or
        None (Flink's ``sideOutputLeftLateData``). By default late rows are dropped and counted. On Spark no
        late row arrives here with ``order="event_time"``; use ``late="emit"`` to see late rows there. In an
        outer join late rows of a side whose misses are emitted are joined like others, or are misses.
    left_type, right_type
        The types of the left and right rows in state: a ``Types.*``, a DDL string, a Spark or a pyarrow type,
        such as the ``schema`` of a DataFrame.

    Attributes
    ----------
    num_late_records_dropped : int
        The number of late rows dropped since the function was created; on Spark, in this task.

    Raises
    ------
    ArgumentTypeError, ArgumentRangeError
        If an argument has the wrong type or does not fit into int64.
    ArgumentValueError
        If `lower_bound` is above `upper_bound`, a duration is not a whole number of milliseconds, or `how` is
        none of these values.

    Notes
    -----
    Flink: ``IntervalJoinOperator``. As there, a row is late if its timestamp is below the watermark. A row
    exactly on the watermark is joined, although rows that it matches may already have been removed. A row
    without event time raises ArgumentValueError. Misses follow the ``TimeIntervalJoin`` of Flink's SQL, which
    emits them somewhat later, when it next cleans up its state.

    A row costs O(b + r) for the b distinct timestamps in the other input's buffer for the key and the r rows
    of its own timestamp, plus the cost of its pairs. Each buffered timestamp has one timer, which removes it.

    Examples
    --------
    Join each departure with the weather reports of the hour before it:

    >>> from timerheap.testing import ProcessTester
    >>> HOUR = 3_600_000
    >>> join = IntervalJoin(
    ...     -HOUR,
    ...     0,
    ...     lambda flight, weather: (flight["plane"], weather["wind"]),
    ...     lower_inclusive=False,
    ...     left_type="struct<origin:string, plane:string, at:bigint>",
    ...     right_type="struct<origin:string, wind:double, at:bigint>",
    ... )
    >>> tester = ProcessTester(
    ...     join,
    ...     key="origin",
    ...     input_schema="origin string, plane string, at bigint",
    ...     right_schema="origin string, wind double, at bigint",
    ...     output_schema="plane string, wind double",
    ...     event_time="at",
    ... )
    >>> tester.push([("JFK", "N14228", 2 * HOUR)])
    []
    >>> tester.push_right([("JFK", 10.4, HOUR), ("JFK", 12.7, HOUR + 1)])
    [Row(plane='N14228', wind=12.7)]

    With ``how="left"``, departures without a report are part of the result. The function then receives None
    for the report: ``lambda flight, weather: (flight["plane"], weather and weather["wind"])``.
    """

    _any_order = True

    def __init__(
        self,
        lower_bound: Length,
        upper_bound: Length,
        function: ProcessJoinFunction | Callable[[Any, Any], Any],
        *,
        how: str = "inner",
        condition: Callable[[Any, Any], Any] | None = None,
        lower_inclusive: bool = True,
        upper_inclusive: bool = True,
        late_left: LateRowCallback | None = None,
        late_right: LateRowCallback | None = None,
        left_type: object,
        right_type: object,
    ) -> None:
        lower, upper = milliseconds("lower_bound", lower_bound), milliseconds("upper_bound", upper_bound)
        if lower > upper:
            raise ArgumentValueError(
                f"lower_bound must not be above upper_bound, got {lower_bound!r} and {upper_bound!r}"
            )
        if not isinstance(function, ProcessJoinFunction):
            if not callable(function) or (
                isinstance(function, type) and issubclass(function, ProcessJoinFunction)
            ):
                raise ArgumentTypeError(
                    f"function must be a ProcessJoinFunction, or a callable (left, right), got {function!r}"
                )
            function = _Each(function)
        if how not in _OUTER:
            raise ArgumentValueError(f'how must be "inner", "left", "right" or "full", got {how!r}')
        if condition is not None and (not callable(condition) or isinstance(condition, type)):
            raise ArgumentTypeError(f"condition must be a callable (left, right) -> bool, got {condition!r}")
        # As in Flink's SQL: either row's time may be that of the pair, and a miss has the time of its row.
        self._results_behind = max(upper, -lower, 0)
        lower = lower if lower_inclusive else lower + 1
        upper = upper if upper_inclusive else upper - 1
        self._left = _Side("left", left_type, (lower, upper), how, late_left)
        self._right = _Side("right", right_type, (-upper, -lower), how, late_right)
        self._function = function
        self._condition = condition
        self.num_late_records_dropped = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self._left.open(runtime_context)
        self._right.open(runtime_context)
        self._function.open(runtime_context)

    def close(self) -> None:
        self._function.close()

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        """Join a left row with the buffered right rows."""
        yield from self._process(value, self._left, self._right, ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        """Join a right row with the buffered left rows."""
        yield from self._process(value, self._right, self._left, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Remove the rows that can no longer be joined; emit those that have had no match."""
        for side in (self._left, self._right):  # the timer belongs to one buffer or both
            # The timer at the last watermark is that of all rows with a later removal time.
            times = side.times() if timestamp == MAX_WATERMARK else [timestamp - side.outlives]
            for time in times:
                for row in side.remove(time):
                    yield from self._joined(side, row, time, ctx)

    def _process(
        self, row: Any, mine: _Side, other: _Side, ctx: KeyedCoProcessFunction.Context
    ) -> Iterator[Any]:
        timestamp, watermark = _event_time(row, ctx), ctx.timer_service().current_watermark()
        if timestamp < watermark and not mine.outer:
            if mine.late is None:
                self.num_late_records_dropped += 1
            else:
                yield from records("late_left and late_right", mine.late(row, ctx))
            return
        condition = self._condition
        accepts = None if condition is None else lambda found: bool(condition(*mine.pair(row, found)))
        times = other.times(timestamp + mine.first, timestamp + mine.last)
        pairs = [(time, found) for time in times for found in other.match(time, accepts)]
        if not mine.outer or watermark < timestamp + mine.last:
            mine.keep(row, timestamp, bool(pairs), ctx)
        elif not pairs:
            yield from self._joined(mine, row, timestamp, ctx)
        for time, found in pairs:
            ctx.set_output_timestamp(max(timestamp, time))
            yield from self._joined(mine, row, timestamp, ctx, found, time)

    def _joined(
        self,
        mine: _Side,
        row: Any,
        timestamp: int,
        ctx: KeyedCoProcessFunction.Context,
        found: Any = None,
        time: int | None = None,
    ) -> Iterable[Any]:
        """Return what the function makes of a row and a `found` one of the other input, or of a miss."""
        context = ProcessJoinFunction.Context(*mine.pair(timestamp, time), ctx)
        return records("process_element", self._function.process_element(*mine.pair(row, found), context))


class _Side:
    """The buffered rows of one input."""

    def __init__(
        self, name: str, row_type: object, bounds: tuple[int, int], how: str, late: LateRowCallback | None
    ) -> None:
        self.first, self.last = bounds  # of a match, from the time of a row
        self.outer = outer = name in _OUTER[how]  # whether rows without a match are emitted
        if late is not None and not callable(late):
            raise ArgumentTypeError(f"late_{name} must be a callable (row, ctx) -> rows, got {late!r}")
        if late is not None and outer:
            raise ArgumentValueError(
                f"late_{name} must be left out with how={how!r}, got {late!r}; late {name} rows are joined, "
                "or emitted as misses"
            )
        self.late = late
        self.outlives = self.last if outer else max(self.last, 0)  # how long a row is kept
        self._name = name
        self._types = MapStateDescriptor(f"{name}_buffer", Types.LONG(), list_of(row_type, f"{name}_type"))
        self._matched: MapState | None = None  # by time, how many rows have a match: always the first ones

    def pair(self, mine: Any, other: Any) -> tuple[Any, Any]:
        """Return what belongs to the left and to the right."""
        return (mine, other) if self._name == "left" else (other, mine)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows: MapState = runtime_context.get_map_state(self._types)
        if self.outer:
            matched = MapStateDescriptor(f"{self._name}_matched", Types.LONG(), Types.LONG())
            self._matched = runtime_context.get_map_state(matched)

    def times(self, first: int = MIN_WATERMARK, last: int = MAX_WATERMARK) -> list[int]:
        """Return the times of buffered rows from `first` to `last`, sorted."""
        return sorted(time for time in self._rows if first <= time <= last)

    def keep(self, row: Any, timestamp: int, matched: bool, ctx: KeyedCoProcessFunction.Context) -> None:
        """Add a row, and register the timer that removes it."""
        rows = [*(self._rows.get(timestamp) or ()), row]
        if matched and self._matched is not None:
            count = self._matched.get(timestamp) or 0
            rows.insert(count, rows.pop())
            self._matched.put(timestamp, count + 1)
        self._rows.put(timestamp, rows)
        ctx.timer_service().register_event_time_timer(min(timestamp + self.outlives, MAX_WATERMARK))

    def match(self, timestamp: int, accepts: Callable[[Any], bool] | None) -> list[Any]:
        """Return the rows of one time that are accepted; they now have a match."""
        rows: list[Any] = self._rows.get(timestamp)
        accepted = [True] * len(rows) if accepts is None else list(map(accepts, rows))
        if self._matched is not None:
            count = self._matched.get(timestamp) or 0
            new = [at for at in range(count, len(rows)) if accepted[at]]
            if new:
                others = [at for at in range(count, len(rows)) if not accepted[at]]
                self._matched.put(timestamp, count + len(new))
                if others:
                    self._rows.put(timestamp, [rows[at] for at in (*range(count), *new, *others)])
        return [row for row, is_one in zip(rows, accepted, strict=True) if is_one]

    def remove(self, timestamp: int) -> list[Any]:
        """Remove the rows of one time, and return the misses among them."""
        if self._matched is None:
            self._rows.remove(timestamp)
            return []
        rows, matched = self._rows.get(timestamp) or [], self._matched.get(timestamp) or 0
        self._rows.remove(timestamp)
        self._matched.remove(timestamp)
        return rows[matched:]


def _event_time(row: Any, ctx: KeyedCoProcessFunction.Context) -> int:
    timestamp = ctx.timestamp()
    if timestamp is None or timestamp == MIN_WATERMARK:
        raise ArgumentValueError(
            f"rows of an interval join must have event time, got timestamp {timestamp} of {row!r}"
        )
    return timestamp
