"""The timer service of a function: the timers of the current key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from timerheap._moments import epoch_millis
from timerheap._states import DictEntries, WholeMaps
from timerheap.flink.internal_timer import InternalTimer, KeyedTimerQueue
from timerheap.flink.internal_timer_service import InternalTimerService
from timerheap.functions import TimerService
from timerheap.time import TimeDomain


class SimpleTimerService(TimerService):
    """The timers of the current key in an internal timer service, like Flink's ``SimpleTimerService``.

    The namespace of a timer is its name, or None. To list the timers of a key, all are scanned.
    """

    def __init__(self, internal_timer_service: InternalTimerService[Any, Any]) -> None:
        internal = internal_timer_service
        self._internal = internal
        self._event = _Timers(internal, internal.event_time_timers, internal.register_event_time_timer)
        self._processing = _Timers(
            internal, internal.processing_time_timers, internal.register_processing_time_timer
        )

    def current_processing_time(self) -> int:
        return self._internal.current_processing_time()

    def current_watermark(self) -> int:
        return self._internal.current_watermark()

    def register_event_time_timer(self, timestamp: int | datetime, *, name: str | None = None) -> None:
        self._event.register(timestamp, name)

    def register_processing_time_timer(self, timestamp: int | datetime, *, name: str | None = None) -> None:
        self._processing.register(timestamp, name)

    def delete_event_time_timer(
        self, timestamp: int | datetime | None = None, *, name: str | None = None
    ) -> None:
        self._event.delete(timestamp, name)

    def delete_processing_time_timer(
        self, timestamp: int | datetime | None = None, *, name: str | None = None
    ) -> None:
        self._processing.delete(timestamp, name)

    def event_time_timers(self) -> list[int]:
        return self._event.timestamps()

    def processing_time_timers(self) -> list[int]:
        return self._processing.timestamps()

    def next_event_time_timer(self, *, name: str | None = None) -> int | None:
        return self._event.next(name)

    def next_processing_time_timer(self, *, name: str | None = None) -> int | None:
        return self._processing.next(name)

    def delete_all_timers(self) -> int:
        return self._event.delete_all() + self._processing.delete_all()

    def forget(self, domain: TimeDomain, timer: InternalTimer[Any, Any]) -> None:
        """Record that a timer has fired."""
        (self._event if domain is TimeDomain.EVENT_TIME else self._processing).forget(timer)


class _Timers:
    """The timers of one time domain, and the times of those with a name, of which a key has one each."""

    def __init__(
        self,
        internal: InternalTimerService[Any, Any],
        queue: KeyedTimerQueue[Any, Any],
        register: Callable[[Any, int], None],
    ) -> None:
        self._keys = internal.key_context
        self._queue = queue
        self._register = register
        self._times = WholeMaps(DictEntries())  # from names, by key
        for timestamp, key, name in queue:
            if name is not None:
                self._times.put(key, {name: timestamp})

    def register(self, timestamp: int | datetime, name: str | None) -> None:
        time, key = epoch_millis("timestamp", timestamp), self._keys.current_key
        before = None if name is None else self._time_of(name)
        self._register(name, time)
        if before is not None and before != time:
            self._queue.remove((before, key, name))
        if name is not None:
            self._times.put(key, {name: time})

    def delete(self, timestamp: int | datetime | None, name: str | None) -> None:
        time, key = epoch_millis("timestamp", timestamp), self._keys.current_key
        if name is not None:
            if time is not None:
                raise TypeError(
                    f"timestamp must be left out for the timer with the name {name!r}, got {timestamp!r}"
                )
            time = self._time_of(name)
            if time is None:
                return
            self._times.remove(key, name)
        self._queue.remove((time, key, name))

    def _time_of(self, name: str) -> int | None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r}")
        time: int | None = self._times.find(self._keys.current_key, name)[1]
        return time

    def forget(self, timer: InternalTimer[Any, Any]) -> None:
        self._times.remove(timer.key, timer.namespace)

    def next(self, name: str | None) -> int | None:
        return next(iter(self.timestamps()), None) if name is None else self._time_of(name)

    def timestamps(self) -> list[int]:
        return [timer.timestamp for timer in self._queue.timers_of_key(self._keys.current_key)]

    def delete_all(self) -> int:
        key = self._keys.current_key
        self._times.remove_all(key)
        return self._queue.remove_keys([key])
