"""Contents of state with a time to live: each value is kept with the time of its last access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from timerheap._state_contents import ListContents, MapContents, ValueContents
from timerheap.state_ttl import StateTtlConfig
from timerheap.timer import MAX_WATERMARK

__all__ = ["EXPIRING", "Expiring", "ExpiryClock"]


class ExpiryClock(Protocol):
    """Tells the time of a state, and has its contents purged."""

    def now(self, event_time: bool, /) -> int:
        """Return the time, epoch ms."""

    def is_purged(self, time: int, event_time: bool, /) -> bool:
        """Return whether what expires at `time` counts as removed, although it may still be there."""

    def purge_at(self, time: int, key: Any, table: Any, event_time: bool, /) -> None:
        """Have the contents of a key purged at a time; `table` holds them."""


class Expiring:
    """What the contents of all shapes have: a table of values with times, and a clock.

    A value is kept as a struct of ``value`` and ``at``. As long as a key has contents, a timer is pending
    that is not later than the first of them to expire.

    Parameters
    ----------
    table
        The contents that store the structs.
    config : StateTtlConfig
    clock : ExpiryClock
    """

    def __init__(self, table: Any, config: StateTtlConfig, clock: ExpiryClock) -> None:
        self.table = table
        self._clock = clock
        self._ttl = config._ttl
        self._event_time = config.get_ttl_time_characteristic() is config.TtlTimeCharacteristic.EventTime
        self._renews = config.get_update_type() is config.UpdateType.OnReadAndWrite
        self._shows = config.get_state_visibility() is config.StateVisibility.ReturnExpiredIfNotCleanedUp

    def _now(self) -> int:
        return self._clock.now(self._event_time)

    def _keep(self, value: Any, now: int) -> dict[str, Any]:
        return {"value": value, "at": now}

    def _expired(self, kept: dict[str, Any], now: int) -> bool:
        expired: bool = kept["at"] + self._ttl <= now
        return expired

    def _is_shown(self, kept: dict[str, Any], now: int) -> bool:
        """Return whether a read returns what is kept."""
        if not self._expired(kept, now):
            return True
        return self._shows and not self._clock.is_purged(kept["at"] + self._ttl, self._event_time)

    def _purge_at(self, key: Any, oldest: int) -> None:
        """Have the contents of a key purged when what was last accessed at `oldest` expires."""
        self._clock.purge_at(min(oldest + self._ttl, MAX_WATERMARK), key, self.table, self._event_time)

    def purge(self, key: Any) -> None:
        """Remove what has expired of a key, and have the rest purged later."""
        raise NotImplementedError


class ExpiringValue(Expiring):
    """`ValueContents` with a time to live."""

    table: ValueContents

    def load(self, key: Any) -> Any:
        """See `ValueContents`."""
        kept = self.table.load(key)
        if kept is None:
            return None
        now = self._now()
        if self._expired(kept, now):
            self.table.store(key, None)
            return kept["value"] if self._is_shown(kept, now) else None
        if self._renews and kept["at"] < now:
            self.table.store(key, self._keep(kept["value"], now))
        return kept["value"]

    def store(self, key: Any, value: Any) -> None:
        """See `ValueContents`."""
        if value is None:
            self.table.store(key, None)
            return
        now = self._now()
        if self.table.load(key) is None:
            self._purge_at(key, now)
        self.table.store(key, self._keep(value, now))

    def purge(self, key: Any) -> None:
        """See `Expiring.purge`."""
        kept = self.table.load(key)
        if kept is not None and self._expired(kept, self._now()):
            self.table.store(key, None)
        elif kept is not None:
            self._purge_at(key, kept["at"])


class ExpiringList(Expiring):
    """`ListContents` whose elements have a time to live each."""

    table: ListContents

    def load(self, key: Any) -> list[Any]:
        """See `ListContents`."""
        kept = list(self.table.load(key))
        if not kept:
            return []
        now = self._now()
        live = [element for element in kept if not self._expired(element, now)]
        if self._renews:
            renewed = [self._keep(element["value"], now) for element in live]
            if renewed != kept:
                self.table.replace(key, renewed)
        elif len(live) < len(kept):
            self.table.replace(key, live)
        return [element["value"] for element in kept if self._is_shown(element, now)]

    def is_empty(self, key: Any) -> bool:
        """See `ListContents`; reads the list, since elements may have expired."""
        return not self.load(key)

    def append(self, key: Any, elements: list[Any]) -> None:
        """See `ListContents`."""
        now = self._now()
        if self.table.is_empty(key):
            self._purge_at(key, now)
        self.table.append(key, [self._keep(element, now) for element in elements])

    def replace(self, key: Any, elements: list[Any]) -> None:
        """See `ListContents`."""
        now = self._now() if elements else 0
        if elements and self.table.is_empty(key):
            self._purge_at(key, now)
        self.table.replace(key, [self._keep(element, now) for element in elements])

    def purge(self, key: Any) -> None:
        """See `Expiring.purge`."""
        now = self._now()
        kept = list(self.table.load(key))
        live = [element for element in kept if not self._expired(element, now)]
        if len(live) < len(kept):
            self.table.replace(key, live)
        if live:
            self._purge_at(key, min(element["at"] for element in live))


class ExpiringMap(Expiring):
    """`MapContents` whose entries have a time to live each."""

    table: MapContents

    def load(self, key: Any) -> dict[Any, Any]:
        """See `MapContents`."""
        return dict(self.visited(key))

    def visited(self, key: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the entries of now, each with its value at its turn; what is not reached is not renewed."""
        for entry in list(self.table.load(key)):
            is_there, value = self.find(key, entry)
            if is_there:
                yield entry, value

    def is_empty(self, key: Any) -> bool:
        """See `MapContents`; reads the map, since entries may have expired, and renews none."""
        now = self._now()
        return not any(self._is_shown(kept, now) for kept in self.table.load(key).values())

    def find(self, key: Any, entry: Any) -> tuple[bool, Any]:
        """See `MapContents`."""
        found, kept = self.table.find(key, entry)
        return self._visit(key, entry, kept, self._now()) if found else (False, None)

    def put(self, key: Any, entries: dict[Any, Any]) -> None:
        """See `MapContents`."""
        now = self._now()
        if self.table.is_empty(key):
            self._purge_at(key, now)
        self.table.put(key, {entry: self._keep(value, now) for entry, value in entries.items()})

    def remove(self, key: Any, entry: Any) -> None:
        """See `MapContents`."""
        self.table.remove(key, entry)

    def remove_all(self, key: Any) -> None:
        """See `MapContents`."""
        self.table.remove_all(key)

    def purge(self, key: Any) -> None:
        """See `Expiring.purge`."""
        now = self._now()
        live = []
        for entry, kept in list(self.table.load(key).items()):
            if self._expired(kept, now):
                self.table.remove(key, entry)
            else:
                live.append(kept["at"])
        if live:
            self._purge_at(key, min(live))

    def _visit(self, key: Any, entry: Any, kept: dict[str, Any], now: int) -> tuple[bool, Any]:
        """Return whether an entry is there, and its value; remove or renew it."""
        if self._expired(kept, now):
            self.table.remove(key, entry)
            return (True, kept["value"]) if self._is_shown(kept, now) else (False, None)
        if self._renews and kept["at"] < now:
            self.table.put(key, {entry: self._keep(kept["value"], now)})
        return True, kept["value"]


EXPIRING: dict[str, type[Expiring]] = {"value": ExpiringValue, "list": ExpiringList, "map": ExpiringMap}
