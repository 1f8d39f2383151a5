"""When keyed state expires: by which time, what renews it, whether a read shows it, and when it is purged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, Self

from timerheap._contents import ListContents, MapContents, ValueContents
from timerheap.functions import KeyedProcessFunction
from timerheap.state_ttl import StateTtlConfig
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK


def has_event_time(config: StateTtlConfig) -> bool:
    """Return whether a time to live is one of event time."""
    return config.get_ttl_time_characteristic() is config.TtlTimeCharacteristic.EventTime


class Expiry(NamedTuple):
    """When values expire: `after` ms behind the time in a field, of event time or of processing time."""

    field: str
    after: int
    event_time: bool

    @classmethod
    def of(cls, config: StateTtlConfig, fixed: bool = False) -> Self:
        """Return the expiry of values with a time to live; see `Expiring` for `fixed`."""
        return cls("expires", 0, False) if fixed else cls("at", config._ttl, has_event_time(config))


class ExpiryClock(Protocol):
    """Tells the time of a state, and has its contents purged."""

    def now(self, event_time: bool, /) -> int:
        """Return the time, epoch ms."""

    def is_purged(self, time: int, event_time: bool, /) -> bool:
        """Return whether what expires at `time` counts as removed, although it may still be there."""

    def purge_at(self, time: int, key: Any, table: Any, event_time: bool, /) -> None:
        """Have the contents of a key purged at a time; `table` holds them."""


class RowClock:
    """What the clocks of functions on rows share: event time, which is that of the row, and purging by it."""

    def __init__(self, context: KeyedProcessFunction.OnTimerContext) -> None:
        self._context = context
        self._timers = context.timer_service()

    def event_time(self) -> int:
        """Return the time of the row or timer, but at least the watermark."""
        watermark = self._timers.current_watermark()
        if self._context.time_domain() is not TimeDomain.EVENT_TIME or self._context.timestamp() is None:
            return watermark
        return max(watermark, self._context.timestamp())

    def is_purged(self, time: int, event_time: bool) -> bool:
        """Return whether what expires at `time` counts as removed: once the watermark has reached it."""
        return event_time and time <= self._timers.current_watermark()


class Expiring(ABC):
    """What the contents of all shapes have: a table of values with times, and a clock.

    A value is kept as a struct of ``value`` and ``at``, the time of the last access; with `fixed` as one of
    ``value`` and ``expires``, as in Spark, where another time to live does not change what is kept. As long
    as a key has contents, a timer is pending that is not later than the first of them to expire.

    table: the contents that store the structs
    """

    def __init__(
        self, table: Any, config: StateTtlConfig, clock: ExpiryClock, *, fixed: bool = False
    ) -> None:
        self.table = table
        self._clock = clock
        self._time, self._ttl, self.event_time = Expiry.of(config, fixed)
        self._ahead = min(config._ttl, MAX_WATERMARK - clock.now(False)) if fixed else 0  # of what is kept
        self._renews = config.get_update_type() is config.UpdateType.OnReadAndWrite
        self._shows = config.get_state_visibility() is config.StateVisibility.ReturnExpiredIfNotCleanedUp

    def _now(self) -> int:
        return self._clock.now(self.event_time)

    def _keep(self, value: Any, now: int) -> dict[str, Any]:
        return {"value": value, self._time: now + self._ahead}

    def _expired(self, kept: dict[str, Any], now: int) -> bool:
        since: int = kept[self._time]
        return since + self._ttl <= now

    def _is_shown(self, kept: dict[str, Any], now: int) -> bool:
        """Return whether a read returns what is kept."""
        if not self._expired(kept, now):
            return True
        return self._shows and not self._clock.is_purged(kept["at"] + self._ttl, self.event_time)

    def _purge_with(self, kept: dict[str, Any], key: Any) -> None:
        """Have the contents of a key purged when `kept` expires."""
        time = min(kept[self._time] + self._ttl, MAX_WATERMARK)  # which never comes
        self._clock.purge_at(time, key, self.table, self.event_time)

    def _purge_with_oldest(self, live: Sequence[dict[str, Any]], key: Any) -> None:
        if live:
            self._purge_with(min(live, key=itemgetter(self._time)), key)

    @abstractmethod
    def start(self, key: Any, now: int) -> None:
        """Let the time to live of the contents of a key begin."""

    @abstractmethod
    def purge(self, key: Any, now: int) -> None:
        """Remove what has expired of a key by `now`, and have the rest purged later."""


class ExpiringValue(Expiring):
    """`ValueContents` with a time to live."""

    table: ValueContents

    def load(self, key: Any) -> Any:
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
        if value is None:
            self.table.store(key, None)
            return
        kept = self._keep(value, self._now())
        if self.table.load(key) is None:
            self._purge_with(kept, key)
        self.table.store(key, kept)

    def start(self, key: Any, now: int) -> None:
        kept = self._keep(self.table.load(key)["value"], now)
        self.table.store(key, kept)
        self._purge_with(kept, key)

    def purge(self, key: Any, now: int) -> None:
        kept = self.table.load(key)
        if kept is not None and self._expired(kept, now):
            self.table.store(key, None)
        elif kept is not None:
            self._purge_with(kept, key)


class ExpiringList(Expiring):
    """`ListContents` whose elements have a time to live each."""

    table: ListContents

    def load(self, key: Any) -> list[Any]:
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
        self.table.append(key, self._kept_elements(key, elements))

    def replace(self, key: Any, elements: list[Any]) -> None:
        self.table.replace(key, self._kept_elements(key, elements))

    def _kept_elements(self, key: Any, elements: list[Any]) -> list[dict[str, Any]]:
        if not elements:
            return []
        now = self._now()
        kept = [self._keep(element, now) for element in elements]
        if self.table.is_empty(key):
            self._purge_with(kept[0], key)
        return kept

    def start(self, key: Any, now: int) -> None:
        kept = [self._keep(element["value"], now) for element in self.table.load(key)]
        self.table.replace(key, kept)
        self._purge_with_oldest(kept, key)

    def purge(self, key: Any, now: int) -> None:
        kept = list(self.table.load(key))
        live = [element for element in kept if not self._expired(element, now)]
        if len(live) < len(kept):
            self.table.replace(key, live)
        self._purge_with_oldest(live, key)


class ExpiringMap(Expiring):
    """`MapContents` whose entries have a time to live each."""

    table: MapContents

    def load(self, key: Any) -> dict[Any, Any]:
        """See `MapContents`; renews no entry."""
        now = self._now()
        entries = self.table.load(key).items()
        return {entry: kept["value"] for entry, kept in entries if self._is_shown(kept, now)}

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
        found, kept = self.table.find(key, entry)
        return self._visit(key, entry, kept, self._now()) if found else (False, None)

    def put(self, key: Any, entries: dict[Any, Any]) -> None:
        now = self._now()
        kept = {entry: self._keep(value, now) for entry, value in entries.items()}
        if self.table.is_empty(key):
            self._purge_with(next(iter(kept.values())), key)
        self.table.put(key, kept)

    def remove(self, key: Any, entry: Any) -> None:
        self.table.remove(key, entry)

    def remove_all(self, key: Any) -> None:
        self.table.remove_all(key)

    def start(self, key: Any, now: int) -> None:
        kept = {entry: self._keep(kept["value"], now) for entry, kept in self.table.load(key).items()}
        self.table.put(key, kept)
        self._purge_with_oldest(list(kept.values()), key)

    def purge(self, key: Any, now: int) -> None:
        live = []
        for entry, kept in list(self.table.load(key).items()):
            if self._expired(kept, now):
                self.table.remove(key, entry)
            else:
                live.append(kept)
        self._purge_with_oldest(live, key)

    def _visit(self, key: Any, entry: Any, kept: dict[str, Any], now: int) -> tuple[bool, Any]:
        """Return whether an entry is there, and its value; remove or renew it."""
        if self._expired(kept, now):
            self.table.remove(key, entry)
            return (True, kept["value"]) if self._is_shown(kept, now) else (False, None)
        if self._renews and kept["at"] < now:
            self.table.put(key, {entry: self._keep(kept["value"], now)})
        return True, kept["value"]


EXPIRING: dict[str, type[Expiring]] = {"value": ExpiringValue, "list": ExpiringList, "map": ExpiringMap}
