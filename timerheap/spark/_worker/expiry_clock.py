"""The clock of state with a time to live, and the timers that remove it."""

from __future__ import annotations

from typing import Any

from timerheap._expiring import Expiring
from timerheap.spark._group.key_group import KeyGroup, expiry_namespace
from timerheap.spark._worker.row_context import KeyTimerService, RowFunctionContext
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK

__all__ = ["GroupExpiryClock"]


class GroupExpiryClock:
    """The times of a function on rows; see `timerheap._expiring.ExpiryClock`.

    Parameters
    ----------
    context : RowFunctionContext
    service : KeyTimerService
    """

    def __init__(self, context: RowFunctionContext, service: KeyTimerService) -> None:
        self._context = context
        self._service = service
        self._purging: int | None = None  # the time of a purge, while there is one

    def begin(self, group: KeyGroup, now: int | None) -> None:
        """Begin a key group; without processing time the clock stands still."""
        self._group = group
        self._now = now
        self._expiring: dict[str, Expiring] = {}

    def add(self, table: Expiring) -> None:
        """Purge these contents when they expire."""
        self._expiring[table.table.name] = table

    def now(self, event_time: bool) -> int:
        """Return the micro-batch's time, or the time of the row or timer, but at least the watermark."""
        if self._purging is not None:
            return self._purging
        if not event_time:
            return 0 if self._now is None else self._now
        watermark: int = self._service.current_watermark()
        if self._context.time_domain() is not TimeDomain.EVENT_TIME or self._context.timestamp() is None:
            return watermark
        return max(watermark, self._context.timestamp())

    def is_purged(self, time: int, event_time: bool) -> bool:
        """Return whether what expires at `time` counts as removed: once the watermark has reached it."""
        return event_time and time <= self._service.current_watermark()

    def purge_at(self, time: int, key: int, table: Any, event_time: bool) -> None:
        """Have contents purged at a time, unless the clock stands still."""
        if (event_time or self._now is not None) and time < MAX_WATERMARK:
            self._group.expiries(event_time).push_many([time], [key], [expiry_namespace(table.name)])

    def purge(self, event_time: bool, time: int) -> None:
        """Remove the contents that have expired by `time`."""
        if not self._expiring:
            return
        self._purging = time
        try:
            for name, ids in self._group.due_expiries(event_time, time, self._expiring.keys()):
                expiring = self._expiring[name]
                expiring.table.announce(ids)
                for id_ in ids.tolist():
                    expiring.purge(id_)
        finally:
            self._purging = None
