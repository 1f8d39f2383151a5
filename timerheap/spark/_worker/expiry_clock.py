"""The clock of state with a time to live, and the timers that remove it."""

from __future__ import annotations

from typing import Any

from timerheap._expiring import Expiring
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._worker.row_context import KeyTimerService, RowFunctionContext
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK

__all__ = ["GroupExpiryClock"]


class GroupExpiryClock:
    """The times of a function on rows; see `timerheap._expiring.ExpiryClock`.

    The timers are in the namespace of the state's table, which no timer of a function on rows is in.

    Parameters
    ----------
    context : RowFunctionContext
    service : KeyTimerService
    """

    def __init__(self, context: RowFunctionContext, service: KeyTimerService) -> None:
        self._context = context
        self._service = service

    def begin(self, group: KeyGroup, now: int | None) -> None:
        """Begin a key group; without processing time the clock stands still."""
        self._group = group
        self._now = now
        self._expiring: dict[int, Expiring] = {}

    def add(self, table: Expiring) -> None:
        """Purge these contents when a timer of theirs fires."""
        self._expiring[table.table.kind] = table

    def now(self, event_time: bool) -> int:
        """Return the micro-batch's time, or the time of the row or timer, but at least the watermark."""
        if not event_time:
            return 0 if self._now is None else self._now
        watermark: int = self._service.current_watermark()
        if self._context.time_domain() is not TimeDomain.EVENT_TIME or self._context.timestamp() is None:
            return watermark
        return max(watermark, self._context.timestamp())

    def purge_at(self, time: int, key: int, table: Any, event_time: bool) -> None:
        """Register a timer, unless the clock stands still."""
        if not event_time and self._now is None:
            return
        timers = self._group.event_timers if event_time else self._group.processing_timers
        if time < MAX_WATERMARK:
            timers.push_expiries([time], [key], [table.kind])

    def expire(self, namespace: int, key: int) -> None:
        """Purge the contents of a key whose timer has fired; a state that is gone has none."""
        expiring = self._expiring.get(namespace)
        if expiring is not None:
            expiring.purge(key)
