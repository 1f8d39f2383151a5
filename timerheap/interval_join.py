"""Flink's interval join: joins rows of two inputs with equal keys and nearby times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

from timerheap._arguments import milliseconds
from timerheap._returned import records
from timerheap._subscripts import Subscripted
from timerheap.functions import Function, KeyedCoProcessFunction, RuntimeContext
from timerheap.state import MapState, MapStateDescriptor
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.types import TypeInformation, Types, arrow_type

__all__ = ["IntervalJoin", "ProcessJoinFunction"]


class ProcessJoinFunction(Function, ABC):
    """Computes output rows from each pair of rows of an `IntervalJoin` (Flink's ``ProcessJoinFunction``).

    Examples
    --------
    >>> class Delay(ProcessJoinFunction):
    ...     def process_element(self, left, right, ctx):
    ...         yield left["plane"], ctx.get_right_timestamp() - ctx.get_left_timestamp()
    """

    class Context(Subscripted, ABC):
        """The context of one call of `process_element`; invalid after it."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Return the left row's event time, epoch ms."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Return the right row's event time, epoch ms."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """Return the pair's event time, epoch ms: the greater of the two."""

    @abstractmethod
    def process_element(
        self, left: Any, right: Any, ctx: ProcessJoinFunction.Context
    ) -> Iterable[Any] | None:
        """Process one pair; yield output rows."""


LateRowCallback = Callable[[Any, KeyedCoProcessFunction.Context], Iterable[Any] | None]


class _Each(ProcessJoinFunction):
    """Calls a function that returns one output row for each pair."""

    def __init__(self, join: Callable[[Any, Any], Any]) -> None:
        self._join = join

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any]:
        return [self._join(left, right)]


class _Context(ProcessJoinFunction.Context):
    def __init__(self, left_timestamp: int, right_timestamp: int) -> None:
        self._left = left_timestamp
        self._right = right_timestamp

    def get_left_timestamp(self) -> int:
        return self._left

    def get_right_timestamp(self) -> int:
        return self._right

    def get_timestamp(self) -> int:
        return max(self._left, self._right)


class IntervalJoin(KeyedCoProcessFunction):
    """Joins rows of one key where ``left time + lower_bound <= right time <= left time + upper_bound``.

    This is an inner join in event time. Each pair is emitted once, when its second row arrives, with the
    greater timestamp of the two. A row is kept until the watermark shows that no row to join it with can
    arrive.

    Parameters
    ----------
    lower_bound, upper_bound : int, timedelta or str
        The distance from the left row to the right row in ms; either bound may be negative.
    function : ProcessJoinFunction or callable
        Processes each pair. A callable receives ``(left, right)`` and returns one output row.
    lower_inclusive, upper_inclusive : bool, default True
        Whether a right row exactly on the bound is joined.
    late_left, late_right : callable, optional
        ``late_left(row, ctx)`` receives a left row that is too late to be joined, and returns output rows or
        None (Flink's ``sideOutputLeftLateData``). By default late rows are dropped and counted. On Spark no
        late row arrives here with ``order="event_time"``; use ``late="emit"`` to see late rows there.
    left_type, right_type
        The types of the left and right rows in state: a ``Types.*``, a DDL string, a Spark or a pyarrow type,
        such as the ``schema`` of a DataFrame.

    Attributes
    ----------
    num_late_records_dropped : int
        The number of late rows dropped since the function was created; on Spark, in this task.

    Raises
    ------
    TypeError, OverflowError
        If an argument has the wrong type or does not fit into int64.
    ValueError
        If `lower_bound` is above `upper_bound`, or a timedelta is not a whole number of milliseconds.

    Notes
    -----
    Flink: ``IntervalJoinOperator``. As there, a row is late if its timestamp is below the watermark. A row
    exactly on the watermark is joined, although rows that it matches may already have been removed. A row
    without event time raises ValueError.

    A row costs O(b + r) for the b distinct timestamps in the other input's buffer for the key and the r rows
    of its own timestamp, plus the cost of its pairs. Each buffered timestamp has one timer, which removes it.

    Examples
    --------
    Join each departure with the weather reports of the hour before it:

    >>> from timerheap.flink.operators import KeyedCoProcessOperator
    >>> HOUR = 3_600_000
    >>> join = IntervalJoin(
    ...     -HOUR,
    ...     0,
    ...     lambda flight, weather: (flight["plane"], weather["wind"]),
    ...     lower_inclusive=False,
    ...     left_type="struct<origin:string, plane:string>",
    ...     right_type="struct<origin:string, wind:double>",
    ... )
    >>> origin = lambda row: row["origin"]
    >>> with KeyedCoProcessOperator(join, origin, origin) as operator:
    ...     operator.process_element1({"origin": "JFK", "plane": "N14228"}, 2 * HOUR)
    ...     operator.process_element2({"origin": "JFK", "wind": 10.4}, HOUR)
    ...     operator.process_element2({"origin": "JFK", "wind": 12.7}, HOUR + 1)
    []
    []
    [StreamRecord(value=('N14228', 12.7), timestamp=7200000)]
    """

    _any_order = True

    def __init__(
        self,
        lower_bound: int | timedelta | str,
        upper_bound: int | timedelta | str,
        function: ProcessJoinFunction | Callable[[Any, Any], Any],
        *,
        lower_inclusive: bool = True,
        upper_inclusive: bool = True,
        late_left: LateRowCallback | None = None,
        late_right: LateRowCallback | None = None,
        left_type: object,
        right_type: object,
    ) -> None:
        lower, upper = milliseconds("lower_bound", lower_bound), milliseconds("upper_bound", upper_bound)
        if lower > upper:
            raise ValueError(
                f"lower_bound must not be above upper_bound, got {lower_bound!r} and {upper_bound!r}"
            )
        if not isinstance(function, ProcessJoinFunction):
            if not callable(function) or (
                isinstance(function, type) and issubclass(function, ProcessJoinFunction)
            ):
                raise TypeError(
                    f"function must be a ProcessJoinFunction, or a callable (left, right), got {function!r}"
                )
            function = _Each(function)
        for name, late in (("late_left", late_left), ("late_right", late_right)):
            if late is not None and not callable(late):
                raise TypeError(f"{name} must be a callable (row, ctx) -> rows, got {late!r}")
        self._late_left, self._late_right = late_left, late_right
        self._lower = lower if lower_inclusive else lower + 1
        self._upper = upper if upper_inclusive else upper - 1
        self._left_outlives = max(self._upper, 0)  # how long after a left row its matches may arrive
        self._right_outlives = max(-self._lower, 0)
        self._function = function
        self._left_rows = _rows_by_time("left", left_type)
        self._right_rows = _rows_by_time("right", right_type)
        self.num_late_records_dropped = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        """See `timerheap.KeyedCoProcessFunction`."""
        self._left: MapState = runtime_context.get_map_state(self._left_rows)
        self._right: MapState = runtime_context.get_map_state(self._right_rows)
        self._function.open(runtime_context)

    def close(self) -> None:
        """See `timerheap.KeyedCoProcessFunction`."""
        self._function.close()

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        """Join a left row with the buffered right rows."""
        timestamp = _event_time(value, ctx)
        if timestamp < ctx.timer_service().current_watermark():
            yield from self._too_late(self._late_left, value, ctx)
            return
        _keep(value, ctx, self._left, self._left_outlives)
        for other, rows in _between(self._right, timestamp + self._lower, timestamp + self._upper):
            for row in rows:
                yield from self._join(value, row, _Context(timestamp, other), ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        """Join a right row with the buffered left rows."""
        timestamp = _event_time(value, ctx)
        if timestamp < ctx.timer_service().current_watermark():
            yield from self._too_late(self._late_right, value, ctx)
            return
        _keep(value, ctx, self._right, self._right_outlives)
        for other, rows in _between(self._left, timestamp - self._upper, timestamp - self._lower):
            for row in rows:
                yield from self._join(row, value, _Context(other, timestamp), ctx)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> None:
        """Remove the rows that can no longer be joined."""
        if timestamp == MAX_WATERMARK:  # the timer of all rows with a later removal time
            self._left.clear()
            self._right.clear()
        else:  # the timer belongs to one buffer or both; the rows below can be removed from either
            self._left.remove(timestamp - self._left_outlives)
            self._right.remove(timestamp - self._right_outlives)

    def _too_late(
        self, late: LateRowCallback | None, row: Any, ctx: KeyedCoProcessFunction.Context
    ) -> Iterable[Any]:
        if late is None:
            self.num_late_records_dropped += 1
            return ()
        return records("late_left and late_right", late(row, ctx))

    def _join(
        self,
        left: Any,
        right: Any,
        pair: ProcessJoinFunction.Context,
        ctx: KeyedCoProcessFunction.Context,
    ) -> Iterable[Any]:
        ctx.set_output_timestamp(pair.get_timestamp())
        return records("process_element", self._function.process_element(left, right, pair))


def _rows_by_time(side: str, row_type: object) -> MapStateDescriptor:
    """Return the descriptor of a state that maps event times to rows."""
    rows: object
    if isinstance(row_type, TypeInformation):
        rows = Types.LIST(row_type)
    elif isinstance(row_type, str):
        rows = Types.LIST(TypeInformation(row_type))
    else:
        import pyarrow as pa

        rows = pa.list_(pa.field("element", arrow_type(row_type, f"{side}_type")))
    return MapStateDescriptor(f"{side}_buffer", Types.LONG(), rows)


def _event_time(row: Any, ctx: KeyedCoProcessFunction.Context) -> int:
    timestamp = ctx.timestamp()
    if timestamp is None or timestamp == MIN_WATERMARK:
        raise ValueError(
            f"rows of an interval join must have event time, got timestamp {timestamp} of {row!r}"
        )
    return timestamp


def _keep(row: Any, ctx: KeyedCoProcessFunction.Context, buffer: MapState, outlives: int) -> None:
    """Add a row to its buffer, and register the timer that removes it."""
    timestamp = ctx.timestamp()
    buffer.put(timestamp, [*(buffer.get(timestamp) or ()), row])
    ctx.timer_service().register_event_time_timer(min(timestamp + outlives, MAX_WATERMARK))


def _between(buffer: MapState, first: int, last: int) -> Iterator[tuple[int, list[Any]]]:
    for timestamp in sorted(timestamp for timestamp in buffer if first <= timestamp <= last):
        yield timestamp, buffer.get(timestamp)
