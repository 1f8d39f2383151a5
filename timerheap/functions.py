"""What a user writes: functions over keyed streams, and what they are handed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from timerheap.service import TimeDomain
    from timerheap.state import (
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from timerheap.timer import TimerBatch
    from timerheap.timer_service import TimerService

__all__ = [
    "AggregateFunction",
    "BatchProcessFunction",
    "BatchTimerService",
    "Function",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "RuntimeContext",
]


class RuntimeContext(ABC):
    """Where a function asks for its state (``pyflink.datastream.RuntimeContext``).

    Asking twice for a name gives the same state; asking for it with another kind or type is a ValueError.
    """

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """Give the handle of a value state."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """Give the handle of a list state."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """Give the handle of a map state."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Give ``max_parallelism``: the number of key groups."""

    def get_reducing_state(self, state_descriptor: object) -> NoReturn:
        """Refused by name."""
        raise NotImplementedError("ReducingState is not supported; keep the reduced value in a ValueState")

    def get_aggregating_state(self, state_descriptor: object) -> NoReturn:
        """Refused by name."""
        raise NotImplementedError("AggregatingState is not supported; keep the accumulator in a ValueState")


class Function:
    """Life cycle of a function.

    A fresh copy is made from the query's closure for every task, so for every partition of every
    micro-batch: `open` must be cheap, and what must last belongs into state, not into ``self``. On Spark one
    more copy is opened and closed on the driver when the query is planned, so that a state that does not fit
    is refused before the query starts. What only workers can reach belongs behind
    ``if pyspark.TaskContext.get() is not None``.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare: ask `runtime_context` for state."""

    def close(self) -> None:
        """Release what `open` took; called once when the task ends well."""


class KeyedProcessFunction(Function, ABC):
    """Rows one by one, with timers for each key (``pyflink.datastream.KeyedProcessFunction``).

    Timers fire as Flink's InternalTimerServiceImpl fires them: peek, poll, call, and what a callback
    registers joins at once.

    Examples
    --------
    >>> class Timeout(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    """

    class Context(ABC):
        """What `process_element` is handed; valid only during the call."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Give the key: the column's value, None for null; a tuple where the key has several columns."""

        @abstractmethod
        def timestamp(self) -> int:
            """Give the row's event time or the timer's timestamp, epoch ms; None without event_time."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Give the timer service of the current key."""

        def set_output_timestamp(self, timestamp: int | None) -> None:
            """Choose the timestamp of the records that are yielded next, until the call ends.

            By default it is the element's own or the event-time timer's; of a processing-time timer there
            is none. Where records carry no timestamp, as on Spark, nothing happens. Flink:
            ``TimestampedCollector.setAbsoluteTimestamp``.
            """
            return None

    class OnTimerContext(Context, ABC):
        """What `on_timer` is handed; valid only during the call."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Tell whether the timer is of event time or of processing time."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Take one row, a ``pyspark.sql.Row``; yield output rows: tuples, Rows or dicts.

        To return a list of them will do, too; to return one by itself is an error. An int stands for a
        timestamp, in epoch ms.
        """

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Take one timer that fires; `timestamp` is the one it was registered for, in epoch ms."""
        return None


class KeyedCoProcessFunction(Function, ABC):
    """Rows of two inputs with one key, one state and one set of timers.

    PyFlink: ``pyflink.datastream.KeyedCoProcessFunction``. Event-time timers fire on the combined
    watermark: the lesser of the two inputs'.

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
        """What both `process_element1` and `process_element2` are handed; valid only during the call."""

    class OnTimerContext(KeyedProcessFunction.OnTimerContext, Context, ABC):
        """What `on_timer` is handed; valid only during the call."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any] | None:
        """Take one row of the first input; yield output rows."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any] | None:
        """Take one row of the second input; yield output rows."""

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Take one timer that fires; `timestamp` is the one it was registered for, in epoch ms."""
        return None


class BatchTimerService(ABC):
    """Timers of many keys at once; all arguments broadcast to shape (n,), all are int64.

    Each call costs O(n log timers). Timestamps are epoch ms. Namespaces are ints.
    """

    @abstractmethod
    def current_watermark(self) -> int:
        """Give the event-time watermark, in epoch ms."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Give the micro-batch's own time, in epoch ms; needs ``processing_time=True``."""

    @abstractmethod
    def register_event_time_timers(
        self, key_hashes: npt.ArrayLike, timestamps: npt.ArrayLike, namespaces: npt.ArrayLike = 0
    ) -> np.ndarray:
        """Register; gives a bool array: which timers are new (with one timer per key: not moved)."""

    @abstractmethod
    def delete_event_time_timers(
        self,
        key_hashes: npt.ArrayLike,
        timestamps: npt.ArrayLike | None = None,
        namespaces: npt.ArrayLike = 0,
    ) -> np.ndarray:
        """Delete; gives a bool array: which timers were there.

        With `BatchProcessFunction.one_timer_per_key` `timestamps` must be left out, else it must be given.
        """

    @abstractmethod
    def register_processing_time_timers(
        self, key_hashes: npt.ArrayLike, timestamps: npt.ArrayLike, namespaces: npt.ArrayLike = 0
    ) -> np.ndarray:
        """The processing-time twin of `register_event_time_timers`."""

    @abstractmethod
    def delete_processing_time_timers(
        self,
        key_hashes: npt.ArrayLike,
        timestamps: npt.ArrayLike | None = None,
        namespaces: npt.ArrayLike = 0,
    ) -> np.ndarray:
        """The processing-time twin of `delete_event_time_timers`."""


class BatchProcessFunction(Function, ABC):
    """`KeyedProcessFunction` in columns: this is where the native heap's speed reaches a user.

    Timers fire in rounds: all that is due comes in one call, in the total order (timestamp, key hash,
    namespace); what the call registers and is already due comes in the next round, and its deletes do
    not reach back into the round. In event-time order there is one `process_batch` call for every
    distinct timestamp.

    Attributes
    ----------
    one_timer_per_key : bool
        True: a key (and namespace) has at most one timer, and registering moves it
        (`timerheap.KeyTimerHeap`): no need to know the old timestamp.

    Examples
    --------
    >>> class Timeout(BatchProcessFunction):
    ...     one_timer_per_key = True
    ...     def process_batch(self, batch, ctx):
    ...         ctx.timer_service().register_event_time_timers(ctx.key_hashes, ctx.timestamps + 60_000)
    ...     def on_timers(self, due, ctx):
    ...         columns = [ctx.keys(due.key_hashes).column("key"), pa.array(due.timestamps)]
    ...         yield pa.record_batch(columns, names=["key", "at"])
    """

    one_timer_per_key: ClassVar[bool] = False

    class Context(ABC):
        """What both methods are handed; valid only during the call.

        Attributes
        ----------
        key_hashes : ndarray of int64, shape (n,)
            The key id of each row (of each timer in `on_timers`); read-only. Timers and state can be set for
            the ids of keys alone: another id is a KeyError, and nothing is set.
        timestamps : ndarray of int64, shape (n,), or None
            Event time of each row (in `on_timers`: of each timer), epoch ms; None without ``event_time``.
        """

        key_hashes: np.ndarray
        timestamps: np.ndarray | None

        @abstractmethod
        def keys(self, key_hashes: npt.ArrayLike) -> pa.RecordBatch:
            """Give the keys of n key ids: a record batch of the key columns; O(n).

            An id that no key holds is a KeyError.
            """

        @abstractmethod
        def set_current_key(self, key_hash: int) -> None:
            """Choose the key that single-key state methods speak of, until the call ends."""

        @abstractmethod
        def timer_service(self) -> BatchTimerService:
            """Give the timer service."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Tell, in `on_timers`, whether the timers are of event time or of processing time."""

    @abstractmethod
    def process_batch(
        self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context
    ) -> Iterable[pa.RecordBatch] | None:
        """Take all rows that a micro-batch has for one key group; yield record batches."""

    def on_timers(
        self, due: TimerBatch, ctx: BatchProcessFunction.Context
    ) -> Iterable[pa.RecordBatch] | None:
        """Take one round of due timers; yield record batches."""
        return None


class AggregateFunction(ABC):
    """Adds up elements as they come; only the accumulator is kept (``pyflink.datastream.AggregateFunction``).

    A method may change the accumulator that it is given and return it. One that is to take rows back in a
    window table function has ``retract(value, accumulator)``, too, which returns the accumulator.

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
        """Give the accumulator of no elements."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Give the accumulator with `value` added; the old one may be changed and given back."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Give the result; the accumulator goes on after an early firing. None: there is none."""

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Give the accumulator of both; only windows that merge need it."""
        raise NotImplementedError(f"{type(self).__name__} needs merge(): the windows of a session become one")
