"""The timer service of a function: the timers of the current key."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from timerheap._moments import epoch_millis
from timerheap.flink.internal_timer import InternalTimer
from timerheap.flink.internal_timer_service import InternalTimerService
from timerheap.functions import TimerService


class SimpleTimerService(TimerService):
    """The timers of the current key in an internal timer service, like Flink's ``SimpleTimerService``.

    As in Flink, its timers have no names.

    Registering and deleting cost O(log n) in the timers of all keys. The methods that list the timers of a
    key or return the next one are not in Flink and scan all timers, O(n). Use them rarely; a function that
    needs its timestamps often should keep them in state.

    Parameters
    ----------
    internal_timer_service : InternalTimerService
        The service that holds the timers, in the namespace None.

    Examples
    --------
    >>> from timerheap.flink import InternalTimerService, ManualProcessingTimeService, SimpleTimerService
    >>> class Print:
    ...     def on_event_time(self, timer): print(timer.key, timer.timestamp)
    ...     def on_processing_time(self, timer): print(timer.key, timer.timestamp)
    >>> internal = InternalTimerService(Print(), ManualProcessingTimeService(now=5_000))
    >>> timers = SimpleTimerService(internal)
    >>> internal.key_context.current_key = "N14228"
    >>> timers.register_event_time_timer(timers.current_processing_time() + 1_000)
    >>> timers.register_event_time_timer(20_000)
    >>> timers.event_time_timers()
    [6000, 20000]
    >>> internal.advance_watermark(10_000)
    N14228 6000
    >>> timers.next_event_time_timer()
    20000
    >>> timers.delete_all_timers()
    1
    """

    def __init__(self, internal_timer_service: InternalTimerService[Any, None]) -> None:
        self._internal = internal_timer_service

    def current_processing_time(self) -> int:
        """Return the time of the clock, epoch milliseconds."""
        return self._internal.current_processing_time()

    def current_watermark(self) -> int:
        """Return the watermark, epoch milliseconds."""
        return self._internal.current_watermark()

    def register_event_time_timer(self, timestamp: int | datetime) -> None:  # type: ignore[override]
        """Register a timer that fires when the watermark reaches `timestamp`, epoch ms or a datetime."""
        self._internal.register_event_time_timer(None, epoch_millis("timestamp", timestamp))

    def register_processing_time_timer(self, timestamp: int | datetime) -> None:  # type: ignore[override]
        """Register a timer that fires when the clock has passed `timestamp`, epoch ms or a datetime."""
        self._internal.register_processing_time_timer(None, epoch_millis("timestamp", timestamp))

    def delete_event_time_timer(self, timestamp: int | datetime) -> None:  # type: ignore[override]
        """Delete the event-time timer with that timestamp if it exists."""
        self._internal.delete_event_time_timer(None, epoch_millis("timestamp", timestamp))

    def delete_processing_time_timer(self, timestamp: int | datetime) -> None:  # type: ignore[override]
        """Delete the processing-time timer with that timestamp if it exists."""
        self._internal.delete_processing_time_timer(None, epoch_millis("timestamp", timestamp))

    def event_time_timers(self) -> list[int]:
        """Return the timestamps of the event-time timers, earliest first. A scan, O(n)."""
        return _timestamps(self._internal.event_time_timers_of_key(self._key()))

    def processing_time_timers(self) -> list[int]:
        """Return the timestamps of the processing-time timers, earliest first. A scan, O(n)."""
        return _timestamps(self._internal.processing_time_timers_of_key(self._key()))

    def next_event_time_timer(self) -> int | None:  # type: ignore[override]
        """Return the timestamp of the next event-time timer, or None. A scan, O(n)."""
        return next(iter(self.event_time_timers()), None)

    def next_processing_time_timer(self) -> int | None:  # type: ignore[override]
        """Return the timestamp of the next processing-time timer, or None. A scan, O(n)."""
        return next(iter(self.processing_time_timers()), None)

    def delete_all_timers(self) -> int:
        """Delete all timers of the current key and return their number. A scan, O(n)."""
        return self._internal.delete_timers_of_keys([self._key()])

    def _key(self) -> Any:
        return self._internal.key_context.current_key


def _timestamps(timers: list[InternalTimer[Any, None]]) -> list[int]:
    return [timer.timestamp for timer in timers if timer.namespace is None]
