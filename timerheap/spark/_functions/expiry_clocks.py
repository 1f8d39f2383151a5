"""When the contents of states with a time to live are removed from a key group."""

from __future__ import annotations

from typing import Any

import numpy as np

from timerheap._expiry import Expiring, RowClock
from timerheap.spark._group.key_group import KeyGroup, expiry_namespace
from timerheap.timer import MAX_WATERMARK


class GroupExpiryClock:
    """Has the contents of a key group purged by the time of the micro-batch.

    See `timerheap._states.ExpiryClock`.
    """

    def begin(self, group: KeyGroup, now: int | None) -> None:
        """Begin a key group; without processing time the clock does not advance."""
        self._group = group
        self._now = now
        self._expiring: dict[str, Expiring] = {}

    def add(self, expiring: Expiring) -> None:
        """Purge these contents when they expire; if they have no times yet, their time to live begins."""
        name = expiring.table.name
        self._expiring[name] = expiring
        if name in self._group.untimed:
            self._group.untimed.remove(name)
            ids = expiring.table.ids()
            expiring.table.announce(ids)
            for id_ in ids.tolist():
                expiring.start(id_, self._group.watermark if expiring.event_time else self.now(False))

    def now(self, event_time: bool) -> int:
        return 0 if self._now is None else self._now

    def is_purged(self, time: int, event_time: bool) -> bool:
        return False  # what has expired is there until it is purged

    def purge_at(self, time: int, key: int, table: Any, event_time: bool) -> None:
        if (event_time or self._now is not None) and time < MAX_WATERMARK:
            # Numbers and a list of one take half as long as three lists.
            self._group.expiries(event_time).push_many(time, [key], expiry_namespace(table.name))

    def purge_all_at(self, time: int, keys: np.ndarray, table: Any) -> None:
        """Purge the contents of many keys at a processing time, unless the clock does not advance."""
        if self._now is not None and time < MAX_WATERMARK and len(keys):
            self._group.expiries(False).push_many(time, keys, expiry_namespace(table.name))

    def purge(self, event_time: bool, time: int) -> None:
        """Remove the contents that have expired by `time`."""
        for name, ids in self._group.due_expiries(event_time, time, self._expiring.keys()):
            expiring = self._expiring[name]
            expiring.table.announce(ids)
            for id_ in ids.tolist():
                expiring.purge(id_, time)


class RowExpiryClock(RowClock, GroupExpiryClock):
    """The times of a function on rows, which may also be event times."""

    def now(self, event_time: bool) -> int:
        """Return the micro-batch's time, or the time of the row or timer, but at least the watermark."""
        return self.event_time() if event_time else super().now(event_time)
