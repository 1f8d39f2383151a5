"""The window operator: what a function hosts to have Flink's DataStream windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any

from timerheap.duration import not_negative
from timerheap.functions import KeyedProcessFunction, RuntimeContext
from timerheap.returned import records
from timerheap.service import TimeDomain
from timerheap.state import MapStateDescriptor
from timerheap.timer import MAX_WATERMARK
from timerheap.windows.assigners import MergingWindowAssigner, WindowAssigner
from timerheap.windows.contents import Accumulators, Contents, Elements
from timerheap.windows.contexts import AssignerContext, EvictorContext, TriggerContext, WindowContext
from timerheap.windows.evicting import EvictableElements
from timerheap.windows.evictors import Evictor
from timerheap.windows.functions import (
    AggregateFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from timerheap.windows.merging import MergingWindowSet
from timerheap.windows.results import Results
from timerheap.windows.states import WindowStates
from timerheap.windows.timers import WindowTimers
from timerheap.windows.triggers import Trigger, TriggerResult
from timerheap.windows.window import WINDOW, Window

__all__ = ["WindowOperator"]

WholeWindowFunction = ProcessWindowFunction | WindowFunction


class WindowOperator:
    """Flink's DataStream windows, inside a `timerheap.KeyedProcessFunction`.

    The function hands over its elements and its timers, and yields what comes back.

    Parameters
    ----------
    assigner : WindowAssigner
        Such as ``TumblingEventTimeWindows.of(60_000)``.
    function : AggregateFunction, ReduceFunction, ProcessWindowFunction or WindowFunction
        The first two keep one value a window, the others all its elements.
    window_function : ProcessWindowFunction or WindowFunction, optional
        Behind an AggregateFunction or a ReduceFunction: takes its result, as the only element, to say of
        which key and window it is.
    trigger : Trigger, optional
        By default the assigner's own. Early results: ``ContinuousEventTimeTrigger.of(10_000)``.
    evictor : Evictor, optional
        Takes elements out of a window when it fires: ``CountEvictor.of(100)``. All elements are kept then,
        whatever the function.
    allowed_lateness : int or timedelta, default 0
        In ms: for so long a window of event time is kept behind its end, and fires again for a late element.
    late : callable, optional
        ``late(value, ctx)`` takes an element that has come too late for all its windows, and gives results,
        or None (Flink's late side output). Without it such elements are counted, in
        `num_late_records_dropped`.
    accumulator_type, element_type
        Of what is kept: of an AggregateFunction's accumulators, else, and with an evictor, of the elements; a
        ``Types.*``, a DDL string, a Spark or a pyarrow type.
    name : str, default "window"
        Goes before the names of the states.

    Attributes
    ----------
    num_late_records_dropped : int
        Elements that came too late since the operator was made; on Spark, so, in this task.

    Raises
    ------
    TypeError, ValueError
        If an argument is no such thing, windows merge and the trigger cannot, or a type is missing.

    Notes
    -----
    Flink: ``WindowOperator``, ``MergingWindowSet``. An element costs O(its windows), and in a merging
    assigner O(the key's sessions in flight) more; a firing O(1), and O(elements) with all elements kept.

    State is kept in map states of the key, window -> contents; on Spark a key's map is one value in the
    checkpoint, so a batch that touches one window of a key writes all of that key. Timers are those of the
    function, one for all windows that wait for a timestamp, and deleted when none does: a function that
    registers timers of its own at the same timestamps would lose them, so have one operator in a function.
    What a function or a trigger raises comes through; of that element or timer is done what came before.

    Examples
    --------
    >>> from timerheap import KeyedProcessFunction, Types
    >>> from timerheap.operators import KeyedProcessOperator
    >>> from timerheap.windows import AggregateFunction, EventTimeSessionWindows, WindowOperator
    >>> class Count(AggregateFunction):
    ...     def create_accumulator(self): return 0
    ...     def add(self, value, accumulator): return accumulator + 1
    ...     def get_result(self, accumulator): return accumulator
    ...     def merge(self, acc_a, acc_b): return acc_a + acc_b
    >>> class Sessions(KeyedProcessFunction):
    ...     def open(self, runtime_context):
    ...         assigner = EventTimeSessionWindows.with_gap(30_000)
    ...         self.windows = WindowOperator(assigner, Count(), accumulator_type=Types.LONG())
    ...         self.windows.open(runtime_context)
    ...     def process_element(self, value, ctx):
    ...         yield from self.windows.process_element(value, ctx)
    ...     def on_timer(self, timestamp, ctx):
    ...         yield from self.windows.on_timer(timestamp, ctx)
    >>> with KeyedProcessOperator(Sessions(), key_selector=lambda value: value) as operator:
    ...     _ = operator.process_element("N14228", timestamp=0)
    ...     _ = operator.process_element("N14228", timestamp=20_000)
    ...     operator.process_watermark(49_999)
    [StreamRecord(value=2, timestamp=49999), Watermark(timestamp=49999)]
    """

    def __init__(
        self,
        assigner: WindowAssigner,
        function: AggregateFunction | ReduceFunction | WholeWindowFunction,
        window_function: WholeWindowFunction | None = None,
        *,
        trigger: Trigger | None = None,
        evictor: Evictor | None = None,
        allowed_lateness: int | timedelta = 0,
        late: Callable[[Any, KeyedProcessFunction.Context], Iterable[Any] | None] | None = None,
        accumulator_type: object = None,
        element_type: object = None,
        name: str = "window",
    ) -> None:
        self._assigner = _instance("assigner", assigner, WindowAssigner)
        self._trigger = _instance(
            "trigger", assigner.get_default_trigger(None) if trigger is None else trigger, Trigger
        )
        self._merging = assigner if isinstance(assigner, MergingWindowAssigner) else None
        if self._merging is not None and not self._trigger.can_merge():
            raise ValueError(
                f"trigger: a merging window assigner cannot be used with a trigger that does not support "
                f"merging, and {self._trigger!r} does not: {assigner!r}"
            )
        self._function = _instance(
            "function", function, AggregateFunction, ReduceFunction, ProcessWindowFunction, WindowFunction
        )
        self._window_function = _whole_window(function, window_function)
        self._evictor = None if evictor is None else _instance("evictor", evictor, Evictor)
        self._element_type = element_type
        self._type_info = _state_type(function, evictor, accumulator_type, element_type)
        self._allowed_lateness = not_negative("allowed_lateness", allowed_lateness)
        if late is not None and not callable(late):
            raise TypeError(f"late: {late!r} is no callable (value, ctx) -> results")
        self._late = late
        self._name = name
        self.num_late_records_dropped = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        """Ask for the states; call it in the function's ``open``."""
        name, function = self._name, self._function
        self._evictor_context = EvictorContext()
        self._contents: Contents
        if self._evictor is not None:
            self._contents = EvictableElements(
                runtime_context,
                f"{name}.elements",
                self._type_info,
                self._evictor,
                self._evictor_context,
                function,
            )
        elif isinstance(function, (AggregateFunction, ReduceFunction)):
            self._contents = Accumulators(runtime_context, f"{name}.accumulators", self._type_info, function)
        else:
            self._contents = Elements(runtime_context, f"{name}.elements", self._type_info)
        self._event_timers = WindowTimers(runtime_context, f"{name}.event-timers")
        self._processing_timers = WindowTimers(runtime_context, f"{name}.processing-timers")
        trigger_states = WindowStates(runtime_context, f"{name}.trigger", self._element_type)
        self._trigger_context = TriggerContext(self._event_timers, self._processing_timers, trigger_states)
        self._assigner_context = AssignerContext(runtime_context)
        if self._merging is None:
            self._window_context = WindowContext(
                runtime_context, WindowStates(runtime_context, f"{name}.state")
            )
        else:
            self._window_context = WindowContext(runtime_context, None)
            self._in_flight = runtime_context.get_map_state(
                MapStateDescriptor(f"{name}.merging", WINDOW, WINDOW)
            )
        if self._window_function is not None:
            self._window_function.open(runtime_context)

    def close(self) -> None:
        """Call the window function's ``close``; call it in the function's."""
        if self._window_function is not None:
            self._window_function.close()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
        """Take an element; give the results of the windows that it makes fire.

        Yield them one by one: as each is handed over, its timestamp becomes that of the output. A result's is
        its window's ``max_timestamp()``, a late element's its own.

        Parameters
        ----------
        value : object
            Of `element_type`, where elements are kept.
        ctx : KeyedProcessFunction.Context
            What the function's ``process_element`` was handed.

        Raises
        ------
        ValueError
            If the assigner is one of event time and the element has no timestamp.
        TypeError
            If a custom assigner gives something that is no window.
        """
        self._turn_to(ctx)
        timestamp = ctx.timestamp()
        windows = self._assigner.assign_windows(value, timestamp, self._assigner_context)
        results = Results(ctx, timestamp)
        skipped = True
        in_flight = self._merging_window_set()
        for window in _windows(self._assigner, windows):
            if in_flight is not None:
                window = in_flight.add_window(window, self._merge)
            if self._is_late(window):
                if in_flight is not None:
                    in_flight.retire_window(window)
                continue
            skipped = False
            kept = window if in_flight is None else in_flight.get_state_window(window)
            assert kept is not None
            self._contents.add(kept, value, timestamp)
            self._trigger_context.window = window
            result = self._trigger.on_element(value, timestamp, window, self._trigger_context)
            self._follow(result, window, kept, results)
            self._register_cleanup_timer(window)
        if in_flight is not None:
            in_flight.persist()
        if skipped and self._is_element_late(timestamp):
            if self._late is not None:
                results.collect(records("late", self._late(value, ctx)), timestamp)
            else:
                self.num_late_records_dropped += 1
        return results

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> list[Any]:
        """Take a timer that fires; give the results of the windows that have waited for it, to be yielded.

        A timer that no window has asked for gives none. Windows fire in the order of their registration.

        Parameters
        ----------
        timestamp : int
            Epoch ms.
        ctx : KeyedProcessFunction.OnTimerContext
            What the function's ``on_timer`` was handed.
        """
        self._turn_to(ctx)
        event_time = ctx.time_domain() is TimeDomain.EVENT_TIME
        results = Results(ctx, timestamp if event_time else None)
        timers = self._event_timers if event_time else self._processing_timers
        fire = self._trigger.on_event_time if event_time else self._trigger.on_processing_time
        in_flight = self._merging_window_set()
        while (window := timers.pop(timestamp)) is not None:
            kept = window if in_flight is None else in_flight.get_state_window(window)
            if kept is None:
                continue  # merged away, by a trigger that has left a timer behind
            self._trigger_context.window = window
            self._follow(fire(timestamp, window, self._trigger_context), window, kept, results)
            if self._assigner.is_event_time() is event_time and timestamp == self._cleanup_time(window):
                self._clear(window, kept, in_flight)
        return results

    def _turn_to(self, ctx: KeyedProcessFunction.Context) -> None:
        self._key = ctx.get_current_key()
        self._timers = timer_service = ctx.timer_service()
        for context in (
            self._assigner_context,
            self._trigger_context,
            self._evictor_context,
            self._window_context,
        ):
            context.timer_service = timer_service

    def _merging_window_set(self) -> MergingWindowSet | None:
        return None if self._merging is None else MergingWindowSet(self._merging, self._in_flight)

    def _follow(self, result: TriggerResult, window: Window, kept: Window, results: Results) -> None:
        if not isinstance(result, TriggerResult):
            raise TypeError(f"{self._trigger!r} has answered {result!r}, which is no TriggerResult")
        if result.is_fire():
            with self._contents.firing(window, kept) as contents:
                if contents is not None:
                    results.collect(self._emit(window, contents), window.max_timestamp())
        if result.is_purge():
            self._contents.clear(kept)

    def _emit(self, window: Window, contents: Any) -> Iterable[Any]:
        function = self._window_function
        if function is None:
            return (contents,)
        elements = contents if function is self._function else [contents]
        if isinstance(function, WindowFunction):
            return records("apply", function.apply(self._key, window, elements))
        self._window_context.current = window
        return records("process", function.process(self._key, self._window_context, elements))

    def _merge(self, result: Window, merged: list[Window], kept: Window, absorbed: list[Window]) -> None:
        """Follow windows that have become one: the trigger, the cleanup timers, the contents."""
        now = self._timers.current_watermark()
        if self._assigner.is_event_time():
            if self._is_late(result):
                raise ValueError(_BACKWARDS.format(self._assigner, result, "watermark", now))
        elif result.max_timestamp() <= (now := self._timers.current_processing_time()):
            raise ValueError(_BACKWARDS.format(self._assigner, result, "processing time", now))
        context = self._trigger_context
        context.window, context.merged = result, merged
        self._trigger.on_merge(result, context)
        for window in merged:
            context.window = window
            self._trigger.clear(window, context)
            self._delete_cleanup_timer(window)
        self._contents.merge(kept, absorbed)

    def _clear(self, window: Window, kept: Window, in_flight: MergingWindowSet | None) -> None:
        """End a window: contents, the trigger's state and timers, the window function's state."""
        self._contents.clear(kept)
        self._trigger.clear(window, self._trigger_context)
        if isinstance(self._window_function, ProcessWindowFunction):
            self._window_context.current = window
            self._window_function.clear(self._window_context)
        if in_flight is not None:
            in_flight.retire_window(window)
            in_flight.persist()

    def _cleanup_time(self, window: Window) -> int:
        lateness = self._allowed_lateness if self._assigner.is_event_time() else 0
        return min(window.max_timestamp() + lateness, MAX_WATERMARK)

    def _is_late(self, window: Window) -> bool:
        return (
            self._assigner.is_event_time() and self._cleanup_time(window) <= self._timers.current_watermark()
        )

    def _is_element_late(self, timestamp: int) -> bool:
        return (
            self._assigner.is_event_time()
            and timestamp + self._allowed_lateness <= self._timers.current_watermark()
        )

    def _register_cleanup_timer(self, window: Window) -> None:
        time = self._cleanup_time(window)
        if time == MAX_WATERMARK:
            return  # kept for ever
        if self._assigner.is_event_time():
            self._trigger_context.register_event_time_timer(time)
        else:
            self._trigger_context.register_processing_time_timer(time)

    def _delete_cleanup_timer(self, window: Window) -> None:
        time = self._cleanup_time(window)
        if self._assigner.is_event_time():
            self._trigger_context.delete_event_time_timer(time)
        else:
            self._trigger_context.delete_processing_time_timer(time)


_BACKWARDS = "{!r}: a window must not become late by merging; {} ends before the current {}, {}"


def _instance(argument: str, value: Any, *classes: type) -> Any:
    if isinstance(value, classes):
        return value
    names = " or ".join(class_.__name__ for class_ in classes)
    if isinstance(value, type) and issubclass(value, classes):
        raise TypeError(f"{argument}: {value.__name__} is a class; give an instance of it")
    raise TypeError(f"{argument}: {value!r} is no {names}")


def _whole_window(
    function: object, window_function: WholeWindowFunction | None
) -> WholeWindowFunction | None:
    """Give what makes results of a window's contents; None: they are the results."""
    if isinstance(function, (ProcessWindowFunction, WindowFunction)):
        if window_function is not None:
            raise ValueError(
                f"window_function: {type(function).__name__} takes whole windows already; "
                "give one only behind an AggregateFunction or a ReduceFunction"
            )
        return function
    if window_function is not None:
        _instance("window_function", window_function, ProcessWindowFunction, WindowFunction)
    return window_function


def _state_type(
    function: Any, evictor: Evictor | None, accumulator_type: object, element_type: object
) -> object:
    types = {"accumulator_type": accumulator_type, "element_type": element_type}
    accumulates = isinstance(function, AggregateFunction) and evictor is None
    needed = "accumulator_type" if accumulates else "element_type"
    type_info = types.pop(needed)
    (unused,) = types
    who = type(function).__name__ if evictor is None else f"{type(function).__name__} with an evictor"
    if types[unused] is not None:
        raise ValueError(f"{unused}: {who} keeps none; give {needed}")
    if type_info is None:
        raise TypeError(f"{needed}: {who} needs one, such as Types.LONG()")
    return type_info


def _windows(assigner: WindowAssigner, windows: Collection[Window]) -> list[Window]:
    windows = list(windows)
    for window in windows:
        if not isinstance(window, Window):
            raise TypeError(
                f"{assigner!r} has assigned {window!r}, which is no TimeWindow or GlobalWindow or CountWindow"
            )
    return windows
