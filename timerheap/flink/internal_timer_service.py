"""Timers of an operator's current key, and who is told when they fire: Flink's internal timer service."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from types import EllipsisType
from typing import Generic, NamedTuple, Protocol, TypeVar

from timerheap._arguments import int64, positive_int
from timerheap.flink.internal_timer import InternalTimer, KeyedTimerQueue, all_or_none
from timerheap.flink.processing_time import Cancellable, ProcessingTimeService
from timerheap.flink.timer_queue import TimerQueue
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

__all__ = [
    "InternalTimerService",
    "InternalTimersSnapshot",
    "KeyContext",
    "Triggerable",
]

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)


class Triggerable(Protocol[K, N]):
    """Who is called when a timer fires: it has been removed, and its key is the current key."""

    def on_event_time(self, timer: InternalTimer[K, N], /) -> object:
        """Take an event-time timer that the watermark has reached."""

    def on_processing_time(self, timer: InternalTimer[K, N], /) -> object:
        """Take a processing-time timer whose time has passed."""


class KeyContext(Generic[K]):
    """Holds the key that is being processed; a service reads it, and sets it when a timer fires.

    Anything with such an attribute will do; several services of one operator share one.

    Attributes
    ----------
    current_key : hashable
        None before there is one.
    """

    def __init__(self) -> None:
        self.current_key: K = None  # type: ignore[assignment]


class InternalTimersSnapshot(NamedTuple, Generic[K, N]):
    """The timers of one key group of one service."""

    event_time_timers: list[InternalTimer[K, N]]
    processing_time_timers: list[InternalTimer[K, N]]


class InternalTimerService(Generic[K, N]):
    """Event-time and processing-time timers of one operator, registered for its current key.

    Parameters
    ----------
    triggerable : Triggerable
        Its ``on_event_time(timer)`` and ``on_processing_time(timer)`` are called when a timer fires.
    processing_time_service : ProcessingTimeService
        The clock; at any moment at most one callback of this service waits there.
    key_context : KeyContext, optional
        Where the current key is; by default one of its own, as `key_context`.
    event_time_timers, processing_time_timers : KeyedTimerQueue, optional
        Where the timers are kept, by default two queues of ``TimerQueue()``. Timers that they hold
        already belong to the service from its start.

    Raises
    ------
    ValueError
        If both queues are the same one.

    Notes
    -----
    Flink: ``InternalTimerServiceImpl``. A timer is its timestamp, key and namespace: registering it twice
    is registering it once. A timer whose time has passed is accepted, and fires at the next advance. It is
    removed before its callback runs, so one that raises has had its timer; all others are still there.
    Registering and deleting cost what the queue's add and remove do, O(log n). One thread at a time: with a
    `SystemProcessingTimeService` hold its ``lock`` around setting the key and calling the service.

    An operator advances its service first and sends the watermark downstream then: what the timers give
    out is still in time. `InternalTimeServiceManager` keeps to that order by itself.

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
            raise ValueError("event_time_timers and processing_time_timers must be two queues, got one twice")
        self.key_context: KeyContext[K] = KeyContext() if key_context is None else key_context
        self._triggerable = triggerable
        self._clock = processing_time_service
        self._event_time_timers = TimerQueue() if event_time_timers is None else event_time_timers
        self._processing_time_timers = (
            TimerQueue() if processing_time_timers is None else processing_time_timers
        )
        self._current_watermark = MIN_WATERMARK
        self._output_watermark = MIN_WATERMARK
        self._next_wake_up: Cancellable | None = None
        self._wake_up_for_head()

    def current_processing_time(self) -> int:
        """Return the clock's time, epoch milliseconds."""
        return self._clock.get_current_processing_time()

    def current_watermark(self) -> int:
        """Return the watermark of the last advance, epoch ms; before the first, ``MIN_WATERMARK``."""
        return self._current_watermark

    def current_output_watermark(self) -> int:
        """Return the watermark that may go downstream, epoch ms; it never falls.

        `current_watermark`, once all that is due has fired; until then, and while a callback runs, what it
        was before.
        """
        return self._output_watermark

    def register_event_time_timer(self, namespace: N, timestamp: int) -> None:
        """Register a timer of the current key, to fire when the watermark reaches `timestamp`.

        Raises
        ------
        TypeError, OverflowError, ValueError
            As the queue: the timestamp is no int64, or the key or the namespace none that it takes.
        """
        self._event_time_timers.add((timestamp, self.key_context.current_key, namespace))

    def register_processing_time_timer(self, namespace: N, timestamp: int) -> None:
        """Register a timer of the current key, to fire when the clock has passed `timestamp`.

        Raises
        ------
        TypeError, OverflowError, ValueError
            As `register_event_time_timer`.
        RuntimeError
            If the clock is shut down; then the timer has not been registered.
        """
        timer = timestamp, self.key_context.current_key, namespace
        if self._processing_time_timers.add(timer) and timestamp < MAX_WATERMARK:  # whose time never passes
            try:
                self._wake_up_at(timestamp)
            except BaseException:
                self._processing_time_timers.remove(timer)
                raise

    def delete_event_time_timer(self, namespace: N, timestamp: int) -> None:
        """Delete a timer of the current key, if it is there.

        Raises
        ------
        TypeError, OverflowError, ValueError
            As `register_event_time_timer`.
        """
        self._event_time_timers.remove((timestamp, self.key_context.current_key, namespace))

    def delete_processing_time_timer(self, namespace: N, timestamp: int) -> None:
        """Delete a timer of the current key, if it is there; the clock may still wake up for it in vain.

        Raises
        ------
        TypeError, OverflowError, ValueError
            As `register_event_time_timer`.
        """
        self._processing_time_timers.remove((timestamp, self.key_context.current_key, namespace))

    def advance_watermark(self, watermark: int) -> None:
        """Set the watermark and fire every event-time timer with timestamp <= `watermark`, earliest first.

        Timers that a callback registers join at once. The watermark may go backwards; then only what was
        late already fires.

        Parameters
        ----------
        watermark : int
            Epoch milliseconds, int64: no more elements with such a timestamp or a lower one will come.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is no int64.
        Exception
            What a callback raises; the timers that are left fire at the next advance.
        """
        self._advance(int64("watermark", watermark), None)

    def try_advance_watermark(self, watermark: int, limit: int) -> bool:
        """Do what `advance_watermark` does, but fire at most `limit` timers: the rest at the next advance.

        However an advance is cut into pieces, the same timers fire in the same order. Callbacks see the new
        watermark from the first piece on; downstream must not see it before the last, since a callback may
        still register a timer that is due. Between the pieces timers may come and go, and a higher
        watermark may take over.

        Parameters
        ----------
        watermark : int
            As in `advance_watermark`.
        limit : int
            1 or more.

        Returns
        -------
        bool
            Whether all that is due has fired; if not, call again. (Flink's ``tryAdvanceWatermark`` asks a
            function whether to stop.)

        Raises
        ------
        TypeError, OverflowError, ValueError, Exception
            As `advance_watermark`, or if `limit` is no such number.

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
        """Call ``consumer(namespace, timestamp)`` for every event-time timer, its key being the current key.

        The order is free. The timers are those of the moment of the call: the consumer may change them.
        O(n).
        """
        self._for_each(self._event_time_timers, consumer)

    def for_each_processing_time_timer(self, consumer: Callable[[N, int], object]) -> None:
        """Do for every processing-time timer what `for_each_event_time_timer` does."""
        self._for_each(self._processing_time_timers, consumer)

    def num_event_time_timers(self, namespace: N | EllipsisType = ...) -> int:
        """Count the event-time timers: all, O(1), or those of one namespace (None is one), O(n)."""
        return self._count(self._event_time_timers, namespace)

    def num_processing_time_timers(self, namespace: N | EllipsisType = ...) -> int:
        """Count the processing-time timers: all, O(1), or those of one namespace (None is one), O(n)."""
        return self._count(self._processing_time_timers, namespace)

    def next_event_time_timer(self) -> InternalTimer[K, N] | None:
        """Return the event-time timer that is due next, of any key, or None. O(1)."""
        return self._event_time_timers.peek()

    def next_processing_time_timer(self) -> InternalTimer[K, N] | None:
        """Return the processing-time timer that is due next, of any key, or None. O(1)."""
        return self._processing_time_timers.peek()

    def event_time_timers_of_key(self, key: K) -> list[InternalTimer[K, N]]:
        """Return the event-time timers of a key, whichever is current, in the order in which they fire.

        Their ``len`` counts them. A scan: O(n) in the timers of all keys.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If the key is none that the queue takes.
        """
        return self._event_time_timers.timers_of_key(key)

    def processing_time_timers_of_key(self, key: K) -> list[InternalTimer[K, N]]:
        """Return the processing-time timers of a key, as `event_time_timers_of_key` does. O(n)."""
        return self._processing_time_timers.timers_of_key(key)

    def delete_timers_of_keys(self, keys: Iterable[K]) -> int:
        """Delete all timers of many keys, of both times and every namespace.

        Returns how many there were. One scan, O(n), however many keys there are; some may have no timers.
        As after any deletion, the clock may still wake up for one of them in vain.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If a key is none that the queue takes; then no timer has been deleted.

        Examples
        --------
        >>> from timerheap.flink import InternalTimerService, ManualProcessingTimeService
        >>> service = InternalTimerService(None, ManualProcessingTimeService())
        >>> for service.key_context.current_key in ("N14228", "N24211", "N619AA"):
        ...     service.register_event_time_timer(None, 1_000)
        ...     service.register_event_time_timer("landed", 2_000)
        >>> [timer.namespace for timer in service.event_time_timers_of_key("N24211")]
        [None, 'landed']
        >>> service.delete_timers_of_keys(["N14228", "N24211"])
        4
        >>> service.next_event_time_timer()
        InternalTimer(timestamp=1000, key='N619AA', namespace=None)
        """
        if isinstance(keys, Iterator):
            keys = list(keys)  # for both queues
        removed = self._event_time_timers.remove_keys(keys)
        return removed + self._processing_time_timers.remove_keys(keys)

    def snapshot_timers_for_key_group(self, key_group: int) -> InternalTimersSnapshot[K, N]:
        """Return the timers of one key group; the service goes on as before. O(n).

        Raises
        ------
        ValueError
            If the queues do not own the key group.
        """
        return InternalTimersSnapshot(
            self._event_time_timers.get_subset_for_key_group(key_group),
            self._processing_time_timers.get_subset_for_key_group(key_group),
        )

    def restore_timers(self, snapshot: InternalTimersSnapshot[K, N]) -> None:
        """Add the timers of a snapshot, and have the clock wake up for the earliest processing-time timer.

        A service is restored by making a new one and giving it the snapshots of the key groups that it
        owns; its watermark begins at ``MIN_WATERMARK``.

        Raises
        ------
        TypeError, OverflowError, ValueError
            As `register_event_time_timer`, or if a timer's key belongs to a key group that the queues do not
            own; then no timer of either kind has been added.
        RuntimeError
            If processing-time timers find the clock shut down; then, too.
        """
        with all_or_none(
            (self._event_time_timers, snapshot.event_time_timers),
            (self._processing_time_timers, snapshot.processing_time_timers),
        ):
            self._wake_up_for_head()

    def _advance(self, watermark: int, limit: int | None) -> int:
        """Fire at most `limit` timers; give how many have fired."""
        self._current_watermark = watermark
        fired = self._fire(self._event_time_timers, watermark, self._triggerable.on_event_time, limit)
        if not self._is_due():
            self._output_watermark = max(self._output_watermark, watermark)
        return fired

    def _is_due(self) -> bool:
        head = self._event_time_timers.peek()
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

    def _on_processing_time(self, timestamp: int) -> None:
        self._next_wake_up = None  # before a callback registers a timer that needs one
        try:
            self._fire(self._processing_time_timers, timestamp, self._triggerable.on_processing_time, None)
        finally:
            if self._next_wake_up is None and not self._clock.is_terminated():
                self._wake_up_for_head()

    def _wake_up_for_head(self) -> None:
        head = self._processing_time_timers.peek()
        if head is not None:
            self._wake_up_at(head.timestamp)

    def _wake_up_at(self, timestamp: int) -> None:
        replaced = self._next_wake_up
        self._next_wake_up = self._clock.register_timer(timestamp, self._on_processing_time)
        if replaced is not None:
            replaced.cancel()

    def _for_each(self, timers: KeyedTimerQueue[K, N], consumer: Callable[[N, int], object]) -> None:
        for timer in timers:
            self.key_context.current_key = timer.key
            consumer(timer.namespace, timer.timestamp)

    def _count(self, timers: KeyedTimerQueue[K, N], namespace: N | EllipsisType) -> int:
        if namespace is ...:
            return len(timers)
        return sum(timer.namespace == namespace for timer in timers)
