"""Flink's internal timer service: the timers of the keys of one operator."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Generic, NamedTuple, Protocol

from timerheap._arguments import int64, positive_int
from timerheap._contents import KeyContext
from timerheap.errors import ArgumentValueError
from timerheap.flink.processing_time import ProcessingTimeService, WakeUp
from timerheap.flink.timer_queue import InternalTimer, K, KeyedTimerQueue, N, TimerQueue, all_or_none
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK


class Triggerable(Protocol[K, N]):
    """The object that handles firing timers; a timer is removed and its key made current before the call."""

    def on_event_time(self, timer: InternalTimer[K, N], /) -> object:
        """Handle an event-time timer that the watermark has reached."""

    def on_processing_time(self, timer: InternalTimer[K, N], /) -> object:
        """Handle a processing-time timer whose time has passed."""


class InternalTimersSnapshot(NamedTuple, Generic[K, N]):
    """The timers of one key group of one service."""

    event_time_timers: list[InternalTimer[K, N]]
    processing_time_timers: list[InternalTimer[K, N]]


class InternalTimerService(Generic[K, N]):
    """Event-time and processing-time timers of one operator, registered for its current key.

    Parameters
    ----------
    triggerable : Triggerable
        The object whose ``on_event_time(timer)`` and ``on_processing_time(timer)`` are called when a timer
        fires.
    processing_time_service : ProcessingTimeService
        The clock. The service has at most one scheduled callback there at a time.
    key_context : KeyContext, optional
        The holder of the current key; by default a new one, available as `key_context`.
    event_time_timers, processing_time_timers : KeyedTimerQueue, optional
        The queues that hold the timers, available under these names; by default each is a new
        ``TimerQueue()``. The service takes over the timers that they already hold.

    Raises
    ------
    ArgumentValueError
        If both queues are the same object.

    Notes
    -----
    Flink: ``InternalTimerServiceImpl``. A timer is identified by its timestamp, key and namespace, so
    registering it twice has no effect. A timer whose time has passed is accepted and fires at the next
    advance. A timer is removed before its callback runs; if the callback raises, the other timers remain.
    Registering and deleting cost as much as adding to and removing from the queue, O(log n). A service must
    be used by one thread at a time; with a `SystemProcessingTimeService`, hold its ``lock`` while setting the
    key and calling the service.

    An operator advances its service before it sends the watermark downstream, so that elements emitted by
    timers are not late. `InternalTimeServiceManager` ensures this order.

    Examples
    --------
    >>> from timerheap.flink import InternalTimerService, ManualProcessingTimeService
    >>> class Print:
    ...     def on_event_time(self, timer): print(timer)
    ...     def on_processing_time(self, timer): print(timer)
    >>> service = InternalTimerService(Print(), ManualProcessingTimeService())
    >>> service.key_context.current_key = "N14228"
    >>> service.register_event_time_timer(None, 1_000)
    >>> service.advance_watermark(999)
    >>> service.advance_watermark(1_000)
    InternalTimer(timestamp=1000, key='N14228', namespace=None)
    """

    def __init__(
        self,
        triggerable: Triggerable[K, N],
        processing_time_service: ProcessingTimeService,
        key_context: KeyContext[K] | None = None,
        *,
        event_time_timers: KeyedTimerQueue[K, N] | None = None,
        processing_time_timers: KeyedTimerQueue[K, N] | None = None,
    ) -> None:
        if event_time_timers is not None and event_time_timers is processing_time_timers:
            raise ArgumentValueError(
                "event_time_timers and processing_time_timers must be two queues, got one twice"
            )
        self.key_context: KeyContext[K] = KeyContext() if key_context is None else key_context
        self._triggerable = triggerable
        self._clock = processing_time_service
        self.event_time_timers = TimerQueue() if event_time_timers is None else event_time_timers
        self.processing_time_timers = (
            TimerQueue() if processing_time_timers is None else processing_time_timers
        )
        self._current_watermark = MIN_WATERMARK
        self._output_watermark = MIN_WATERMARK
        self._wake_up = WakeUp(processing_time_service, self._first, self._fire_processing_time)
        self._wake_up.for_first()

    def current_processing_time(self) -> int:
        """Return the time of the clock, epoch milliseconds."""
        return self._clock.get_current_processing_time()

    def current_watermark(self) -> int:
        """Return the watermark of the last advance, epoch ms, or ``MIN_WATERMARK`` before the first."""
        return self._current_watermark

    def current_output_watermark(self) -> int:
        """Return the watermark that may be sent downstream, epoch ms; it never falls.

        It is raised to `current_watermark` once all due timers have fired, not while a callback runs.
        """
        return self._output_watermark

    def register_event_time_timer(self, namespace: N, timestamp: int) -> None:
        """Register a timer of the current key, to fire when the watermark reaches `timestamp`.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError
            As for the queue: if the timestamp is not an int64, or the queue rejects the key or namespace.
        """
        self.event_time_timers.add((timestamp, self.key_context.current_key, namespace))

    def register_processing_time_timer(self, namespace: N, timestamp: int) -> None:
        """Register a timer of the current key, to fire when the clock has passed `timestamp`.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError
            As for `register_event_time_timer`.
        RuntimeError
            If the clock is shut down; the timer is then not registered.
        """
        timer = timestamp, self.key_context.current_key, namespace
        if self.processing_time_timers.add(timer) and timestamp < MAX_WATERMARK:  # which never passes
            try:
                self._wake_up.for_first()
            except BaseException:
                self.processing_time_timers.remove(timer)
                raise

    def delete_event_time_timer(self, namespace: N, timestamp: int) -> None:
        """Delete a timer of the current key if it exists.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError
            As for `register_event_time_timer`.
        """
        self.event_time_timers.remove((timestamp, self.key_context.current_key, namespace))

    def delete_processing_time_timer(self, namespace: N, timestamp: int) -> None:
        """Delete a timer of the current key if it exists; the clock's callback for it is kept.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError
            As for `register_event_time_timer`.
        """
        self.processing_time_timers.remove((timestamp, self.key_context.current_key, namespace))

    def advance_watermark(self, watermark: int) -> None:
        """Set the watermark and fire every event-time timer with timestamp <= `watermark`, earliest first.

        Timers registered by a callback take part immediately. The watermark may be lower than the last one;
        then only timers up to the lower watermark fire.

        Parameters
        ----------
        watermark : int
            Epoch milliseconds, int64: no more elements with a timestamp <= `watermark` are expected.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If `watermark` is not an int64.
        Exception
            If a callback raises; the remaining timers fire at the next advance.
        """
        self._advance(int64("watermark", watermark), None)

    def try_advance_watermark(self, watermark: int, limit: int) -> bool:
        """Advance like `advance_watermark`, but fire at most `limit` timers; the next advance fires the rest.

        Splitting an advance into several calls does not change which timers fire or their order. Callbacks
        see the new watermark from the first call. Do not send it downstream before the last call, since a
        callback may still register a due timer. Between the calls, timers may be registered and deleted, and
        the next call may pass a higher watermark.

        Parameters
        ----------
        watermark : int
            As in `advance_watermark`.
        limit : int
            The maximum number of timers to fire, 1 or more.

        Returns
        -------
        bool
            Whether all due timers have fired; if not, call again. (Flink's ``tryAdvanceWatermark`` asks a
            function whether to stop.)

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError, Exception
            As for `advance_watermark`, or if `limit` is not an int of 1 or more.

        Examples
        --------
        >>> from timerheap.flink import InternalTimerService, ManualProcessingTimeService
        >>> class Print:
        ...     def on_event_time(self, timer): print("fires", timer.timestamp)
        >>> service = InternalTimerService(Print(), ManualProcessingTimeService())
        >>> service.key_context.current_key = "N14228"
        >>> for timestamp in (10, 20, 30):
        ...     service.register_event_time_timer(None, timestamp)
        >>> while not service.try_advance_watermark(50, limit=2):
        ...     print("time for something else")
        fires 10
        fires 20
        time for something else
        fires 30
        >>> service.current_output_watermark()
        50
        """
        self._advance(int64("watermark", watermark), positive_int("limit", limit))
        return not self._is_due()

    def for_each_event_time_timer(self, consumer: Callable[[N, int], object]) -> None:
        """Call ``consumer(namespace, timestamp)`` for every event-time timer, with its key as current key.

        The order is arbitrary. Timers that the consumer registers or deletes do not affect the iteration.
        O(n).
        """
        self._for_each(self.event_time_timers, consumer)

    def for_each_processing_time_timer(self, consumer: Callable[[N, int], object]) -> None:
        """Call ``consumer(namespace, timestamp)`` for every processing-time timer. O(n)."""
        self._for_each(self.processing_time_timers, consumer)

    def num_event_time_timers(self, namespace: N | EllipsisType = ...) -> int:
        """Return the number of event-time timers: O(1) for all, O(n) for one namespace, which may be None."""
        return self._count(self.event_time_timers, namespace)

    def num_processing_time_timers(self, namespace: N | EllipsisType = ...) -> int:
        """Return the number of processing-time timers, as `num_event_time_timers` does."""
        return self._count(self.processing_time_timers, namespace)

    def snapshot_timers_for_key_group(self, key_group: int) -> InternalTimersSnapshot[K, N]:
        """Return the timers of one key group, without removing them. O(n).

        Raises
        ------
        ArgumentValueError
            If the queues do not own the key group.
        """
        return InternalTimersSnapshot(
            self.event_time_timers.get_subset_for_key_group(key_group),
            self.processing_time_timers.get_subset_for_key_group(key_group),
        )

    def restore_timers(self, snapshot: InternalTimersSnapshot[K, N]) -> None:
        """Add the timers of a snapshot, and schedule a callback for the earliest processing-time timer.

        To restore a service, create a new one and restore the snapshots of its key groups. Its watermark
        starts at ``MIN_WATERMARK``.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError
            As for `register_event_time_timer`, or if the queues do not own the key group of a key; no timer
            is then added.
        RuntimeError
            If there are processing-time timers and the clock is shut down; no timer is then added.
        """
        with all_or_none(
            (self.event_time_timers, snapshot.event_time_timers),
            (self.processing_time_timers, snapshot.processing_time_timers),
        ):
            self._wake_up.for_first()

    def _advance(self, watermark: int, limit: int | None) -> int:
        """Fire at most `limit` timers and return the number fired."""
        self._current_watermark = watermark
        fired = self._fire(self.event_time_timers, watermark, self._triggerable.on_event_time, limit)
        if not self._is_due():
            self._output_watermark = max(self._output_watermark, watermark)
        return fired

    def _is_due(self) -> bool:
        head = self.event_time_timers.peek()
        return head is not None and head.timestamp <= self._current_watermark

    def _fire(
        self,
        timers: KeyedTimerQueue[K, N],
        time: int,
        on_timer: Callable[[InternalTimer[K, N]], object],
        limit: int | None,
    ) -> int:
        fired = 0
        while fired != limit and (timer := timers.peek()) is not None and timer.timestamp <= time:
            self.key_context.current_key = timer.key
            timers.poll()
            on_timer(timer)
            fired += 1
        return fired

    def _fire_processing_time(self, time: int) -> None:
        self._fire(self.processing_time_timers, time, self._triggerable.on_processing_time, None)

    def _first(self) -> int | None:
        head = self.processing_time_timers.peek()
        return None if head is None else head.timestamp

    def _for_each(self, timers: KeyedTimerQueue[K, N], consumer: Callable[[N, int], object]) -> None:
        for timer in timers:
            self.key_context.current_key = timer.key
            consumer(timer.namespace, timer.timestamp)

    def _count(self, timers: KeyedTimerQueue[K, N], namespace: N | EllipsisType) -> int:
        if namespace is ...:
            return len(timers)
        return sum(timer.namespace == namespace for timer in timers)
