"""The window operator, which adds Flink's DataStream windows to a KeyedProcessFunction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from timerheap._arguments import Length, instance, not_negative
from timerheap._values import records
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import AggregateFunction, KeyedProcessFunction, RuntimeContext
from timerheap.state import MapState, MapStateDescriptor
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.windows.assigners import (
    CountWindowAssigner,
    GlobalWindows,
    MergingWindowAssigner,
    WindowAssigner,
)
from timerheap.windows.contents import AccumulatorContents, ElementContents, EvictableElements, WindowContents
from timerheap.windows.contexts import OperatorContext, WindowContext, WindowTimers
from timerheap.windows.evictors import Evictor
from timerheap.windows.states import WindowStates
from timerheap.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)
from timerheap.windows.window import WINDOW_TYPE, Window, window_of
from timerheap.windows.window_functions import (
    ProcessWindowFunction,
    ReduceFunction,
    Results,
    WindowFunction,
    as_window_function,
)

WholeWindowFunction = ProcessWindowFunction | WindowFunction

_BACKWARDS = "{!r} must not merge windows into one that is late, got {}, which ends before the current {}, {}"


class MergingWindowSet:
    """The windows in flight of one key, each with the window under which its contents are kept.

    The constructor reads the state, and `persist` writes it. Flink: ``MergingWindowSet``.
    """

    def __init__(self, assigner: MergingWindowAssigner, state: MapState) -> None:
        self._assigner = assigner
        self._state = state
        self._mapping = {window_of(window): window_of(kept) for window, kept in state.items()}
        self._initial = dict(self._mapping)

    def persist(self) -> None:
        """Write the changes since the set was read."""
        for window in self._initial.keys() - self._mapping.keys():
            self._state.remove(window)
        changed = {w: kept for w, kept in self._mapping.items() if self._initial.get(w) != kept}
        if changed:
            self._state.put_all(changed)
        self._initial = dict(self._mapping)

    def get_state_window(self, window: Window) -> Window | None:
        """Return the window under which the contents of `window` are kept, or None if it is not in flight."""
        return self._mapping.get(window)

    def retire_window(self, window: Window) -> None:
        del self._mapping[window]

    def add_window(
        self, new_window: Window, merge: Callable[[Window, list[Window], Window, list[Window]], object]
    ) -> Window:
        """Add a window and return the window it has been merged into, or the window itself.

        merge: called after each merge with the result, the windows in flight that it replaces, the window
            whose contents stay in place, and the windows whose contents must be added to them
        """
        results: dict[Window, list[Window]] = {}
        self._assigner.merge_windows([*self._mapping, new_window], _Results(results))
        result_window, merged_new_window = new_window, False
        for result, windows in results.items():
            merged = list(windows)
            if new_window in merged:
                merged_new_window = True
                merged.remove(new_window)
                result_window = result
            kept = self._mapping.get(merged[0]) if merged else None
            if kept is None:
                raise ArgumentValueError(
                    f"{self._assigner!r}.merge_windows must merge windows in flight, got {windows}; "
                    f"the windows in flight are {list(self._mapping)}"
                )
            absorbed = [self._mapping.pop(window) for window in merged if window in self._mapping]
            absorbed.remove(kept)
            self._mapping[result] = kept
            if merged != [result]:  # otherwise an existing window covers the new one
                merge(result, merged, kept, absorbed)
        if not results or (result_window == new_window and not merged_new_window):
            self._mapping.setdefault(result_window, result_window)
        return result_window


class _Results(MergingWindowAssigner.MergeCallback):
    def __init__(self, results: dict[Window, list[Window]]) -> None:
        self._results = results

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self._results[merge_result] = list(to_be_merged)


class WindowOperator:
    """Flink's DataStream windows, inside a `timerheap.KeyedProcessFunction`.

    The function passes its elements and its timers to the operator and yields the results.

    Parameters
    ----------
    assigner : WindowAssigner
        Such as ``TumblingEventTimeWindows.of(60_000)``.
    function : AggregateFunction, ReduceFunction, ProcessWindowFunction or WindowFunction
        The first two keep one value for each window, the others keep all its elements. A plain function
        ``(value1, value2) -> value`` is a ReduceFunction.
    window_function : ProcessWindowFunction or WindowFunction, optional
        Receives the result of an AggregateFunction or a ReduceFunction as its only element, for example to
        add the key and the window.
    trigger : Trigger, optional
        Default: the default trigger of the assigner. ``ContinuousEventTimeTrigger.of(10_000)`` emits early
        results.
    evictor : Evictor, optional
        Removes elements from a window when it fires, such as ``CountEvictor.of(100)``. With an evictor, every
        function keeps all elements.
    allowed_lateness : int, timedelta or str, default 0
        In ms: how long a window of event time is kept after its end. A late element fires it again.
    late : callable, optional
        ``late(value, ctx)`` is called with an element that is too late for all its windows, and returns
        results or None (Flink's late side output). Without it, such elements are counted in
        `num_late_records_dropped`.
    accumulator_type, element_type
        The type of the accumulators of an AggregateFunction, or of the elements for any other function and
        with an evictor: a ``Types.*``, a DDL string, a Spark or a pyarrow type.

    Attributes
    ----------
    num_late_records_dropped : int
        Number of elements dropped as late since the operator was created; on Spark, in the current task.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is invalid, a type is missing, or the trigger does not fit the assigner: it cannot
        merge windows, or it fires at intervals in windows without an end.

    Notes
    -----
    Flink: ``WindowOperator``, ``MergingWindowSet``. An element costs O(its windows), and with a merging
    assigner also O(the key's sessions in flight). A firing costs O(1), or O(elements) if the window keeps all
    its elements.

    The contents of windows are kept in map states of the key, by window. On Spark, a micro-batch writes the
    entries that it has changed, and no other windows of the key.

    The operator uses the timers of the function. Windows share one timer for each timestamp, which is deleted
    when no window needs it any more. The function must not register its own timers at the same timestamps,
    because the operator may delete them; for the same reason, use only one operator in a function.

    An exception of a function or a trigger is raised to the caller. It does not undo the changes that the
    element or the timer has made before.

    Examples
    --------
    >>> from timerheap import KeyedProcessFunction, Types
    >>> from timerheap.testing import ProcessTester
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
    >>> tester = ProcessTester(Sessions(), "plane", "plane string, at bigint", "flights bigint", "at")
    >>> tester.push([("N14228", 0), ("N14228", 20_000)])
    []
    >>> tester.advance_watermark(49_999)
    [Row(flights=2)]
    """

    def __init__(
        self,
        assigner: WindowAssigner,
        function: AggregateFunction | ReduceFunction | Callable[[Any, Any], Any] | WholeWindowFunction,
        window_function: WholeWindowFunction | None = None,
        *,
        trigger: Trigger | None = None,
        evictor: Evictor | None = None,
        allowed_lateness: Length = 0,
        late: Callable[[Any, KeyedProcessFunction.Context], Iterable[Any] | None] | None = None,
        accumulator_type: object = None,
        element_type: object = None,
    ) -> None:
        function = as_window_function(function)
        self._assigner = instance("assigner", assigner, WindowAssigner)
        self._trigger = instance(
            "trigger", assigner.get_default_trigger(None) if trigger is None else trigger, Trigger
        )
        self._merging = assigner if isinstance(assigner, MergingWindowAssigner) else None
        if self._merging is not None and not self._trigger.can_merge():
            raise ArgumentValueError(
                f"trigger must support merging, because {assigner!r} merges windows, got {self._trigger!r}"
            )
        if isinstance(assigner, (GlobalWindows, CountWindowAssigner)) and _repeats(self._trigger):
            raise ArgumentValueError(
                f"trigger must not repeat by time with {assigner!r}, whose windows have no end, got "
                f"{self._trigger!r}, which would fire without end when the input has ended; use windows of "
                "time, such as TumblingEventTimeWindows, or a CountTrigger"
            )
        self._function = instance(
            "function", function, AggregateFunction, ReduceFunction, ProcessWindowFunction, WindowFunction
        )
        self._window_function = _whole_window(function, window_function)
        self._evictor = None if evictor is None else instance("evictor", evictor, Evictor)
        self._element_type = element_type
        self._type_info = _state_type(function, evictor, accumulator_type, element_type)
        self._allowed_lateness = not_negative("allowed_lateness", allowed_lateness)
        if late is not None and not callable(late):
            raise ArgumentTypeError(f"late must be a callable (value, ctx) -> results, got {late!r}")
        self._late = late
        self.num_late_records_dropped = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the handles of the states; call this in the function's ``open``."""
        function = self._function
        self._contents: WindowContents
        if self._evictor is not None:
            self._contents = EvictableElements(runtime_context, self._type_info, self._evictor, function)
        elif isinstance(function, (AggregateFunction, ReduceFunction)):
            self._contents = AccumulatorContents(runtime_context, self._type_info, function)
        else:
            self._contents = ElementContents(runtime_context, self._type_info)
        self._event_timers = WindowTimers(runtime_context, event_time=True)
        self._processing_timers = WindowTimers(runtime_context, event_time=False)
        event_time = self._assigner.is_event_time()
        self._cleanup_timers = self._event_timers if event_time else self._processing_timers
        trigger_states = WindowStates(runtime_context, "window.trigger", self._element_type)
        timers = self._event_timers, self._processing_timers
        self._context = OperatorContext(runtime_context, *timers, trigger_states)
        states = WindowStates(runtime_context, "window.state") if self._merging is None else None
        self._window_context = WindowContext(runtime_context, states)
        if self._merging is not None:
            self._in_flight = runtime_context.get_map_state(
                MapStateDescriptor("window.merging", WINDOW_TYPE, WINDOW_TYPE)
            )
        if self._window_function is not None:
            self._window_function.open(runtime_context)

    def close(self) -> None:
        """Close the window function; call this in the function's ``close``."""
        if self._window_function is not None:
            self._window_function.close()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
        """Process an element and return the results of the windows that fire.

        Yield the results one by one, because iterating over them sets the output timestamp of each. The
        timestamp of a result is ``max_timestamp()`` of its window; a late element keeps its own.

        Parameters
        ----------
        value : object
            The element, of type `element_type` if elements are kept.
        ctx : KeyedProcessFunction.Context
            The context of the function's ``process_element``.

        Raises
        ------
        ArgumentValueError
            If the assigner is one of event time and the element has no timestamp.
        ArgumentTypeError
            If a custom assigner returns an object that is not a window.
        """
        timestamp = ctx.timestamp()
        self._turn_to(ctx, timestamp)
        windows = self._assigner.assign_windows(value, timestamp, self._context)
        results = Results(ctx, timestamp)
        skipped = True
        in_flight = self._merging_window_set()
        for window in _assigned_windows(self._assigner, windows):
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
            self._context.window = window
            at = MIN_WATERMARK if timestamp is None else timestamp  # as in Flink
            result = self._trigger.on_element(value, at, window, self._context)
            self._follow(result, window, kept, results)
            time = self._cleanup_time(window)
            if time != MAX_WATERMARK:  # otherwise the window never ends
                self._cleanup_timers.register(time, window)
        if in_flight is not None:
            in_flight.persist()
        if (
            skipped
            and self._assigner.is_event_time()
            and timestamp + self._allowed_lateness <= self._timers.current_watermark()
        ):
            if self._late is not None:
                results.collect(records("late", self._late(value, ctx)), timestamp)
            else:
                self.num_late_records_dropped += 1
        return results

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> list[Any]:
        """Handle a timer that fires and return the results of its windows, to be yielded.

        Windows fire in the order in which they registered the timer. There are no results if no window
        registered it.

        Parameters
        ----------
        timestamp : int
            Epoch ms.
        ctx : KeyedProcessFunction.OnTimerContext
            The context of the function's ``on_timer``.
        """
        event_time = ctx.time_domain() is TimeDomain.EVENT_TIME
        self._turn_to(ctx, timestamp if event_time else None)
        results = Results(ctx, timestamp if event_time else None)
        timers = self._event_timers if event_time else self._processing_timers
        fire = self._trigger.on_event_time if event_time else self._trigger.on_processing_time
        in_flight = self._merging_window_set()
        while (window := timers.pop(timestamp)) is not None:
            kept = window if in_flight is None else in_flight.get_state_window(window)
            if kept is None:
                continue  # the window has been merged, and its trigger did not delete this timer
            self._context.window = window
            self._follow(fire(timestamp, window, self._context), window, kept, results)
            if self._assigner.is_event_time() is event_time and timestamp == self._cleanup_time(window):
                self._clear(window, kept, in_flight)
        return results

    def _turn_to(self, ctx: KeyedProcessFunction.Context, timestamp: int | None) -> None:
        self._key = ctx.get_current_key()
        self._timers = timer_service = ctx.timer_service()
        self._window_context.ctx, self._window_context.timestamp = ctx, timestamp
        for each in (self._event_timers, self._processing_timers, self._context, self._window_context):
            each.timer_service = timer_service

    def _merging_window_set(self) -> MergingWindowSet | None:
        return None if self._merging is None else MergingWindowSet(self._merging, self._in_flight)

    def _follow(self, result: TriggerResult, window: Window, kept: Window, results: Results) -> None:
        if not isinstance(result, TriggerResult):
            raise ArgumentTypeError(f"{self._trigger!r} must return a TriggerResult, got {result!r}")
        if result.is_fire():
            with self._contents.firing(window, kept, self._context) as contents:
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
        """Update the trigger, the cleanup timers and the contents after windows have merged."""
        now = self._timers.current_watermark()
        if self._assigner.is_event_time():
            if self._is_late(result):
                raise ArgumentValueError(_BACKWARDS.format(self._assigner, result, "watermark", now))
        elif result.max_timestamp() <= (now := self._timers.current_processing_time()):
            raise ArgumentValueError(_BACKWARDS.format(self._assigner, result, "processing time", now))
        context = self._context
        context.window, context.merged = result, merged
        self._trigger.on_merge(result, context)
        for window in merged:
            context.window = window
            self._trigger.clear(window, context)
            self._cleanup_timers.delete(self._cleanup_time(window), window)
        self._contents.merge(kept, absorbed)

    def _clear(self, window: Window, kept: Window, in_flight: MergingWindowSet | None) -> None:
        self._contents.clear(kept)
        self._trigger.clear(window, self._context)
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


def _repeats(trigger: Trigger) -> bool:
    """Return whether a trigger fires at intervals until the end of the window."""
    while isinstance(trigger, (PurgingTrigger, ProcessingTimeoutTrigger)):
        trigger = trigger.nested_trigger
    return isinstance(trigger, (ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger))


def _whole_window(
    function: object, window_function: WholeWindowFunction | None
) -> WholeWindowFunction | None:
    """Return the function for the contents of a window, or None if the contents are the result."""
    if isinstance(function, (ProcessWindowFunction, WindowFunction)):
        if window_function is not None:
            raise ArgumentValueError(
                f"window_function must be None with {type(function).__name__}, which is one itself, "
                f"got {window_function!r}; pass one only with an AggregateFunction or a ReduceFunction"
            )
        return function
    if window_function is not None:
        instance("window_function", window_function, ProcessWindowFunction, WindowFunction)
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
        raise ArgumentValueError(f"{unused} must be None for {who}, got {types[unused]!r}; pass {needed}")
    if type_info is None:
        raise ArgumentTypeError(f"{needed} must be a type for {who}, such as Types.LONG(), got None")
    return type_info


def _assigned_windows(assigner: WindowAssigner, windows: Collection[Window]) -> list[Window]:
    windows = list(windows)
    for window in windows:
        if not isinstance(window, Window):
            raise ArgumentTypeError(
                f"{assigner!r} must assign a TimeWindow, a CountWindow or the GlobalWindow, got {window!r}"
            )
    return windows
