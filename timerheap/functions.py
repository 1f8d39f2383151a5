"""User-defined functions over keyed streams, and the contexts and services passed to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from timerheap.errors import UnsupportedError
from timerheap.types import _Subscripted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from timerheap.metrics import MetricGroup
    from timerheap.output_tag import OutputTag
    from timerheap.state import (
        AggregatingState,
        AggregatingStateDescriptor,
        BatchValueState,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from timerheap.time import TimeDomain


class RuntimeContext(ABC):
    """Gives a function access to its state (``pyflink.datastream.RuntimeContext``).

    Two requests for the same name return the same state. A request for an existing name with another kind
    or type of state raises ArgumentValueError.
    """

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """Return the handle of a value state."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """Return the handle of a list state."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """Return the handle of a map state."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return the handle of a reducing state."""

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Return the handle of an aggregating state."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return ``max_parallelism``, the number of key groups."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Return the group that makes the metrics of the function; to be called in ``open``."""


class BatchRuntimeContext(RuntimeContext):
    """Gives a `BatchProcessFunction` access to its state, and to value states of many keys in one call."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> BatchValueState:
        """Return the handle of a value state."""


class Function(_Subscripted):
    """Life cycle of a function.

    Every task uses a new copy of the function, and Spark runs one task for every partition of every
    micro-batch. Keep `open` cheap, and keep everything that must persist in state, not in ``self``.

    On Spark, one more copy is opened and closed on the driver when the query is planned, so that an invalid
    state raises an error before the query starts. Guard code that works only on the workers with
    ``if pyspark.TaskContext.get() is not None``.
    """

    _any_order = False  # whether the results are the same in any order of rows and timers
    _results_behind: int | None = 0  # by how many ms results may be behind the watermark; None: no limit
    _takes_all = False  # whether one call has all rows up to the watermark, before all timers up to it
    _timers_wait = 0  # by how many ms an event-time timer waits longer for rows, in event-time order

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare the function; get the handles of its states from `runtime_context`."""

    def close(self) -> None:
        """Release what `open` acquired; called once when the task ends without an error."""


class KeyedProcessFunction(Function, ABC):
    """Processes rows one by one, with timers for each key (``pyflink.datastream.KeyedProcessFunction``).

    Timers fire one at a time, as in Flink's ``InternalTimerServiceImpl``: a timer that a callback registers
    fires in the same pass if it is already due.

    Examples
    --------
    >>> class Timeout(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000, name="silent")
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    """

    class Context(_Subscripted, ABC):
        """Context of `process_element`; valid only during the call."""

        __slots__ = ()  # without an instance dictionary, methods are found twice as fast

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key: the column's value, None for null; a tuple if there are several key columns."""

        @abstractmethod
        def timestamp(self) -> int:
            """Return the row's event time or the timer's timestamp, in epoch ms; None without event_time."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the timer service of the current key."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Send a value to a side output, like ``yield tag, value``."""

        def set_output_timestamp(self, timestamp: int | None) -> None:
            """Set the timestamp of the records that are yielded next, until the call ends.

            The default is the timestamp of the element or of the event-time timer; records from a
            processing-time timer have none. On Spark, where records have no timestamp, this has no effect.
            Flink: ``TimestampedCollector.setAbsoluteTimestamp``.
            """
            return None

    class OnTimerContext(Context, ABC):
        """Context of `on_timer`; valid only during the call."""

        __slots__ = ()

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return the time domain of the timer: event time or processing time."""

        @abstractmethod
        def timer_name(self) -> str | None:
            """Return the name with which the timer was registered, or None."""

        @abstractmethod
        def input_has_ended(self) -> bool:
            """Return whether no more rows of the key can follow, so that a timer need not register the next.

            True after the last row of the key in a batch DataFrame, and in `ProcessTester.finish`; always
            False on a stream, which has no end. A timer that registers the next one regardless would fire
            without end there, which is an error.
            """

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Process one row, a ``pyspark.sql.Row``, and yield output rows: tuples, Rows or dicts.

        A row is copied when it is yielded: what the function then does with a list in it changes nothing.

        The method may also return a list of output rows, but not a single row. An int stands for a
        timestamp, in epoch ms.
        """

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer that fires; `timestamp` is the time it was registered for, in epoch ms."""
        return None


class KeyedCoProcessFunction(Function, ABC):
    """Processes the rows of two inputs that share the key, the state and the timers.

    PyFlink: ``pyflink.datastream.KeyedCoProcessFunction``. Event-time timers fire on the combined
    watermark, which is the minimum of the watermarks of the two inputs.

    Examples
    --------
    >>> class Enrich(KeyedCoProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.model = runtime_context.get_state(ValueStateDescriptor("model", Types.STRING()))
    ...     def process_element1(self, value, ctx):
    ...         yield value.tailnum, value.dest, self.model.value()
    ...     def process_element2(self, value, ctx):
    ...         self.model.update(value.model)
    """

    class Context(KeyedProcessFunction.Context, ABC):
        """Context of `process_element1` and `process_element2`; valid only during the call."""

        __slots__ = ()

    class OnTimerContext(KeyedProcessFunction.OnTimerContext, Context, ABC):
        """What `on_timer` is handed; valid only during the call."""

        __slots__ = ()

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any] | None:
        """Process one row of the first input and yield output rows."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any] | None:
        """Process one row of the second input and yield output rows."""

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer that fires; `timestamp` is the time it was registered for, in epoch ms."""
        return None


class TimerService(ABC):
    """The time and the timers of the current key (``pyflink.datastream.TimerService``).

    A timer without a name is identified by its timestamp: a key has as many as it registers timestamps. Of
    each name, a key has at most one timer in each time domain, and registering it again moves it; so a
    function need not remember when it fires. Both kinds may be used side by side. Names suit kinds of timers,
    "silent" or "reminder": each is stored once per key group, as long as some timer has it. Flink's process
    table functions have named timers, too (``registerOnTime(name, time)``); its DataStream API has none.

    The time of a timer is an int of epoch milliseconds or a datetime, which is rounded down to them. A
    datetime without a time zone is local time, like the timestamps of rows. A warning is logged for a timer
    that is more than 30 years before its row, as one in seconds is.

    Timers of a key with the same timestamp fire in an order that depends on their names alone, the one
    without a name first.

    Registering and deleting cost O(log n) in the timers of all keys. Flink has no methods that list a key's
    timers or return the next one; these scan all timers, O(n), and suit a function that asks seldom.
    """

    __slots__ = ()

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the processing time, epoch milliseconds."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark, epoch milliseconds."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int | datetime, *, name: str | None = None) -> None:
        """Register a timer that fires when the watermark reaches `timestamp`.

        With a `name`, the key's timer of that name is moved if there is one.
        """

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int | datetime, *, name: str | None = None) -> None:
        """Register a timer that fires when the clock has passed `timestamp`.

        With a `name`, the key's timer of that name is moved if there is one.
        """

    @abstractmethod
    def delete_event_time_timer(
        self, timestamp: int | datetime | None = None, *, name: str | None = None
    ) -> None:
        """Delete the event-time timer of that timestamp, or of that name, if there is one."""

    @abstractmethod
    def delete_processing_time_timer(
        self, timestamp: int | datetime | None = None, *, name: str | None = None
    ) -> None:
        """Delete the processing-time timer of that timestamp, or of that name, if there is one."""

    @abstractmethod
    def event_time_timers(self) -> list[int]:
        """Return the timestamps of the event-time timers in ascending order. A scan, O(n)."""

    @abstractmethod
    def processing_time_timers(self) -> list[int]:
        """Return the timestamps of the processing-time timers in ascending order. A scan, O(n)."""

    @abstractmethod
    def next_event_time_timer(self, *, name: str | None = None) -> int | None:
        """Return the timestamp of the next event-time timer, or None. A scan, O(n); with a `name` O(1)."""

    @abstractmethod
    def next_processing_time_timer(self, *, name: str | None = None) -> int | None:
        """Return the timestamp of the next processing-time timer, or None.

        A scan, O(n); with a `name` O(1).
        """

    @abstractmethod
    def delete_all_timers(self) -> int:
        """Delete the key's timers of both domains and return their number. A scan, O(n)."""


class BatchTimerService(ABC):
    """Registers and deletes timers of many keys together, with or without a name; see `TimerService`.

    The arrays are int64 and are broadcast to shape (n,). Each call costs O(n log timers). Timestamps are in
    epoch ms, or a column of timestamps: of pyarrow or numpy's datetime64, which are in UTC, or datetimes as
    in `TimerService`.
    """

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the event-time watermark, in epoch ms.

        In event-time order each key is at a time of its own: this is the lowest watermark of the keys in the
        call, and `BatchProcessFunction.Context.watermarks` has that of each.
        """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of the micro-batch, in epoch ms; needs ``processing_time=True``."""

    @abstractmethod
    def register_event_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike, *, name: str | None = None
    ) -> np.ndarray:
        """Register timers; return a bool array that is True where the timer is new.

        With a `name`, the timers of that name are moved where there is one; these are not new.
        """

    @abstractmethod
    def delete_event_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike | None = None, *, name: str | None = None
    ) -> np.ndarray:
        """Delete timers; return a bool array that is True where there was a timer.

        They are those of these `timestamps` or, without them, of this `name`.
        """

    @abstractmethod
    def register_processing_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike, *, name: str | None = None
    ) -> np.ndarray:
        """Register processing-time timers; see `register_event_time_timers`."""

    @abstractmethod
    def delete_processing_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike | None = None, *, name: str | None = None
    ) -> np.ndarray:
        """Delete processing-time timers; see `delete_event_time_timers`."""


@dataclass(frozen=True, slots=True, eq=False)
class DueTimers:
    """Timers of many keys that are due, as columns of shape (n,).

    Attributes
    ----------
    timestamps : ndarray of int64
        When they were due, in epoch ms.
    ids : ndarray of int64
        The ids of their keys, as in `BatchProcessFunction.Context.ids`.
    """

    timestamps: np.ndarray
    ids: np.ndarray
    _find_names: Callable[[], np.ndarray]

    @property
    def names(self) -> np.ndarray:
        """Their names, None for a timer without one: ndarray of objects, found when asked for."""
        return self._find_names()

    def __len__(self) -> int:
        return len(self.timestamps)


class BatchProcessFunction(Function, ABC):
    """Processes rows and timers as columns; the fastest way to use the native heap.

    In event-time order, a call has each key at most once: `process_batch` the next row of many keys, and
    `on_timers` their next timers, ordered by (timestamp, key hash). Each key sees its rows and timers in the
    order of time, rows before timers of the same timestamp, whatever the other keys have; so a call should
    change only the timers of its own keys. What it registers or deletes counts for the key's next timer.

    In arrival order, and for processing time, timers fire in rounds. A call receives all due timers, ordered
    by (timestamp, key id), those of a key and timestamp as in `TimerService`. Timers that the call registers
    and that are already due fire in the next round. Deleting a timer of the current round has no effect.

    Examples
    --------
    >>> class Timeout(BatchProcessFunction):
    ...     def process_batch(self, batch, ctx):
    ...         timers = ctx.timer_service()
    ...         timers.register_event_time_timers(ctx.ids, ctx.timestamps + 60_000, name="silent")
    ...     def on_timers(self, due, ctx):
    ...         columns = [ctx.keys(due.ids).column("key"), pa.array(due.timestamps)]
    ...         yield pa.record_batch(columns, names=["key", "at"])
    """

    class Context(ABC):
        """Context of `process_batch` and `on_timers`; valid only during the call.

        Attributes
        ----------
        ids : ndarray of int64, shape (n,)
            The key id of each row, or of each timer in `on_timers`; read-only. Timers and state can be set
            only for ids of known keys: an unknown id raises KeyError, and nothing is set.
        timestamps : ndarray of int64, shape (n,), or None
            The event time of each row, or the timestamp of each timer in `on_timers`, in epoch ms; None
            without ``event_time``.
        """

        ids: np.ndarray
        timestamps: np.ndarray | None

        @property
        @abstractmethod
        def watermarks(self) -> np.ndarray:
            """The watermark of the key of each row or timer, in epoch ms: int64, shape (n,).

            In event-time order it is what a `KeyedProcessFunction` sees with the same row or timer; in
            arrival order all keys have the same.
            """

        @abstractmethod
        def keys(self, ids: npt.ArrayLike) -> pa.RecordBatch:
            """Return the keys of n key ids as a record batch of the key columns; O(n).

            An unknown id raises KeyError.
            """

        @abstractmethod
        def set_current_key(self, key_id: int) -> None:
            """Set the key that the single-key state methods use, until the call ends."""

        @abstractmethod
        def timer_service(self) -> BatchTimerService:
            """Return the timer service."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return, in `on_timers`, the time domain of the timers: event time or processing time."""

        @abstractmethod
        def input_has_ended(self) -> bool:
            """Return whether no more rows of the keys in the call can follow.

            See `KeyedProcessFunction.OnTimerContext.input_has_ended`.
            """

    def open(self, runtime_context: BatchRuntimeContext) -> None:  # type: ignore[override]
        """Prepare the function; get the handles of its states from `runtime_context`."""

    @abstractmethod
    def process_batch(
        self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context
    ) -> Iterable[pa.RecordBatch] | None:
        """Process rows of one key group and yield record batches.

        A batch is copied when it is yielded, since its arrays may be NumPy's.

        In arrival order these are all its rows in a micro-batch, else at most one of each key. Columns of
        other types than the result's are cast if that loses nothing, and the fields of structs are matched
        by name. Integers stand for timestamps, in epoch ms, and timestamps without a time zone are in UTC.
        """

    def on_timers(self, due: DueTimers, ctx: BatchProcessFunction.Context) -> Iterable[pa.RecordBatch] | None:
        """Handle due timers and yield record batches."""
        return None


class AggregateFunction(_Subscripted, ABC):
    """Aggregates elements into an accumulator (``pyflink.datastream.AggregateFunction``).

    Only the accumulator is kept, not the elements. A method may modify the accumulator and return it.

    Examples
    --------
    >>> class Average(AggregateFunction):
    ...     def create_accumulator(self):
    ...         return 0.0, 0
    ...     def add(self, value, accumulator):
    ...         return accumulator[0] + value["delay"], accumulator[1] + 1
    ...     def get_result(self, accumulator):
    ...         return accumulator[0] / accumulator[1]
    ...     def merge(self, acc_a, acc_b):
    ...         return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return a new accumulator, without elements."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with `value` added; may modify and return `accumulator`."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result, or None for no result; after an early firing, the accumulator is used again."""

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Return the accumulator of the elements of both; only merging windows need this method."""
        raise UnsupportedError(f"{type(self).__name__} must have merge(), because session windows merge")
