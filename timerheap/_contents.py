"""The contents of keyed state: where they are kept by key, and their time to live."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

from timerheap.functions import KeyedProcessFunction
from timerheap.state_ttl import StateTtlConfig
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK

K = TypeVar("K", bound=Hashable)


class CurrentKey(Protocol):
    """Where the current key is, such as a `KeyContext`."""

    @property
    def current_key(self) -> Any:
        """The key, or None if there is none."""


class KeyContext(Generic[K]):
    """Holds the current key of the services of one operator; they set it, too, when a timer fires."""

    def __init__(self) -> None:
        self.current_key: K = None  # type: ignore[assignment]  # before the first one


class ValueContents(Protocol):
    """The encoded values of one value state, by key; None for a key without state."""

    def load(self, key: Any, /) -> Any:
        """Return the value of a key."""

    def store(self, key: Any, value: Any, /) -> None:
        """Set the value of a key; None removes it."""


class ListContents(Protocol):
    """The encoded elements of one list state, by key."""

    def load(self, key: Any, /) -> Sequence[Any]:
        """Return the elements of a key; `append` may extend the sequence, `replace` leaves it as it is."""

    def is_empty(self, key: Any, /) -> bool:
        """Return whether a key has no elements, at a cost that does not depend on the length of the list."""

    def append(self, key: Any, elements: list[Any], /) -> None:
        """Append elements, at a cost that does not depend on the length of the list."""

    def replace(self, key: Any, elements: list[Any], /) -> None:
        """Set the elements of a key; an empty list removes its state."""


class MapContents(Protocol):
    """The entries of one map state, by key, from encoded keys to encoded values."""

    def load(self, key: Any, /) -> Mapping[Any, Any]:
        """Return the entries of a key in the order of insertion."""

    def is_empty(self, key: Any, /) -> bool:
        """Return whether a key has no entries, at a cost that does not depend on the size of the map."""

    def find(self, key: Any, entry: Any, /) -> tuple[bool, Any]:
        """Return whether a key has an entry, and the value of the entry."""

    def put(self, key: Any, entries: dict[Any, Any], /) -> None:
        """Set entries, at a cost that does not depend on the size of the map."""

    def remove(self, key: Any, entry: Any, /) -> None:
        """Remove an entry if there is one, at a cost that does not depend on the size of the map."""

    def remove_all(self, key: Any, /) -> None:
        """Remove all entries of a key."""


class DictEntries(dict[Hashable, Any]):
    """Contents by key in memory, with the methods of a map state that `WholeValues` needs."""

    put = dict.__setitem__

    def remove(self, key: Hashable) -> None:
        self.pop(key, None)


class WholeValues:
    """`ValueContents` that read and write all that a key has: an entry of a map state, or of a dict."""

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def load(self, key: Any) -> Any:
        return self.entries.get(key)

    def is_empty(self, key: Any) -> bool:
        return not self.load(key)

    def store(self, key: Any, contents: Any) -> None:
        if contents is None:
            self.entries.remove(key)
        else:
            self.entries.put(key, contents)


class WholeLists(WholeValues):
    """`ListContents` that read and write the whole list."""

    def load(self, key: Any) -> list[Any]:
        return super().load(key) or []

    def append(self, key: Any, elements: list[Any]) -> None:
        held = self.load(key)
        held += elements
        self.store(key, held)

    def replace(self, key: Any, elements: list[Any]) -> None:
        self.store(key, elements or None)


class WholeMaps(WholeValues):
    """`MapContents` that read and write the whole map."""

    def load(self, key: Any) -> dict[Any, Any]:
        return super().load(key) or {}

    def find(self, key: Any, entry: Any) -> tuple[bool, Any]:
        entries = self.load(key)
        return entry in entries, entries.get(entry)

    def put(self, key: Any, entries: dict[Any, Any]) -> None:
        held = self.load(key)
        held.update(entries)
        self.store(key, held)

    def remove(self, key: Any, entry: Any) -> None:
        entries = self.load(key)
        if entry in entries:
            del entries[entry]
            self.store(key, entries or None)

    def remove_all(self, key: Any) -> None:
        self.store(key, None)


WHOLE = {"value": WholeValues, "list": WholeLists, "map": WholeMaps}


class StateBackend(Protocol):
    """Stores the contents of all states of one function."""

    def contents_of(self, name: str, shape: str, types: tuple[Any, ...]) -> Any:
        """Return the contents of one state: `ValueContents`, `ListContents` or `MapContents`.

        shape ({"value", "list", "map"})
        types: the type of the value; of an element; of a key and a value. They come from `ValueTypes`.
        """


class Codec(Protocol):
    """Converts values between the user and a state."""

    def encode(self, value: Any) -> Any:
        """Return what is kept of `value`, or raise ValueError if it does not fit; None stays None."""

    def decode(self, kept: Any) -> Any:
        """Return the value of `kept`, an object of the caller's own."""


class ValueTypes(Protocol):
    """Reads the types of descriptors, and knows how their values are kept."""

    def resolve(self, type_info: object, argument: str) -> Any:
        """Return a type, comparable with ``==``; errors begin with `argument`."""

    def resolve_key(self, type_info: object, argument: str) -> Any:
        """Return the type of a map's keys."""

    def timed(self, type_: Any) -> Any:
        """Return the type of values with the time of their last access: ``value`` and ``at``."""

    def codec(self, type_: Any, what: str) -> Codec:
        """Return the codec of a type; `what` is named in errors."""

    def key_codec(self, type_: Any, what: str) -> Codec:
        """Return the codec of the type of a map's keys, which are kept in a hashable form."""


class Contents(Protocol):
    """Where a handle reads and writes: a table of contents, and a key in it."""

    @property
    def table(self) -> Any:
        """`ValueContents`, `ListContents` or `MapContents`, as the handle needs it."""

    def key(self) -> Any:
        """Return the key, such as the current one."""


class KeyedContents:
    """The current key's contents of one state.

    name, shape, types: as in `StateBackend.contents_of`
    kind: the kind of the state, in errors
    """

    table: Any

    def __init__(self, keys: CurrentKey, name: str, shape: str, types: tuple[Any, ...], kind: str) -> None:
        self.keys = keys
        self.name = name
        self.shape = shape
        self.types = types
        self.kind = kind

    def bind(self, backend: StateBackend) -> Any:
        """Use this backend from now on; return its contents of the state."""
        self.table = backend.contents_of(self.name, self.shape, self.types)
        return self.table

    def key(self) -> Any:
        key = self.keys.current_key
        if key is None:
            raise RuntimeError(
                f"state {self.name!r}: there is no current key; use state in the calls that process elements "
                "or timers, not in open(), and in a BatchProcessFunction after ctx.set_current_key(key_id)"
            )
        return key

    def __str__(self) -> str:
        types = ", ".join(map(str, self.types))
        text = {"value": types, "list": f"list<element: {types}>", "map": f"map<{types}>"}[self.shape]
        return f"{'an' if self.kind[0] == 'a' else 'a'} {self.kind} state of {text}"


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


class Expiring:
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
        self._ahead, self._ttl = 0, config._ttl  # of the time that is kept, and of the expiry after that
        self._time = "at"
        if fixed:
            self._ahead, self._ttl = min(config._ttl, MAX_WATERMARK - clock.now(False)), 0
            self._time = "expires"
        self.event_time = config.get_ttl_time_characteristic() is config.TtlTimeCharacteristic.EventTime
        self._renews = config.get_update_type() is config.UpdateType.OnReadAndWrite
        self._shows = config.get_state_visibility() is config.StateVisibility.ReturnExpiredIfNotCleanedUp

    def _now(self) -> int:
        return self._clock.now(self.event_time)

    def _keep(self, value: Any, now: int) -> dict[str, Any]:
        return {"value": value, self._time: now + self._ahead}

    def _expired(self, kept: dict[str, Any], now: int) -> bool:
        return kept[self._time] + self._ttl <= now

    def _is_shown(self, kept: dict[str, Any], now: int) -> bool:
        """Return whether a read returns what is kept."""
        if not self._expired(kept, now):
            return True
        return self._shows and not self._clock.is_purged(kept["at"] + self._ttl, self.event_time)

    def _purge_with(self, kept: dict[str, Any], key: Any) -> None:
        """Have the contents of a key purged when `kept` expires."""
        time = min(kept[self._time] + self._ttl, MAX_WATERMARK)
        self._clock.purge_at(time, key, self.table, self.event_time)

    def _purge_with_oldest(self, live: Sequence[dict[str, Any]], key: Any) -> None:
        if live:
            self._purge_with(min(live, key=itemgetter(self._time)), key)

    def start(self, key: Any, now: int) -> None:
        """Let the time to live of the contents of a key begin."""
        raise NotImplementedError

    def purge(self, key: Any, now: int) -> None:
        """Remove what has expired of a key by `now`, and have the rest purged later."""
        raise NotImplementedError


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
