"""Keyed state: the handles of a function, the contents behind them, and their time to live."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

from timerheap._arguments import instance
from timerheap.functions import AggregateFunction, KeyedProcessFunction, RuntimeContext
from timerheap.metrics import MetricGroup, Metrics
from timerheap.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
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


class Handle(State):
    """What all handles have: contents, and the codecs of what is in them.

    codecs: one for each of `parts`
    """

    shape: ClassVar[str]
    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]

    def __init__(self, contents: Contents, name: str, codecs: Sequence[Codec]) -> None:
        self._contents = contents
        self._name = name
        *_, self._codec = codecs


class ValueHandle(Handle, ValueState):
    """A `ValueState` over `ValueContents`."""

    shape = kind = "value"
    parts = ("",)

    def value(self) -> Any:
        return self._codec.decode(self._contents.table.load(self._contents.key()))

    def update(self, value: Any) -> None:
        self._contents.table.store(self._contents.key(), self._codec.encode(value))

    def clear(self) -> None:
        self._contents.table.store(self._contents.key(), None)


class _AddingHandle(Handle):
    """One value for each key, to which values are added; a subclass sets what combines them."""

    shape = "value"
    parts = ("",)

    def clear(self) -> None:
        self._contents.table.store(self._contents.key(), None)

    def _load(self) -> Any:
        return self._codec.decode(self._contents.table.load(self._contents.key()))

    def _store(self, value: Any) -> None:
        if value is None:
            raise ValueError(f"state {self._name!r}: a value that is added or combined must not be None")
        self._contents.table.store(self._contents.key(), self._codec.encode(value))


class ReducingHandle(_AddingHandle, ReducingState):
    """A `ReducingState` over `ValueContents`."""

    kind = "reducing"
    function: Callable[[Any, Any], Any]

    def get(self) -> Any:
        return self._load()

    def add(self, value: Any) -> None:
        kept = None if value is None else self._load()
        self._store(value if kept is None else self.function(kept, value))

    def absorb(self, other: ReducingHandle) -> None:
        """Move the value of another key to this one."""
        kept = other._load()
        if kept is not None:
            other.clear()
            self.add(kept)


class AggregatingHandle(_AddingHandle, AggregatingState):
    """An `AggregatingState` over `ValueContents`."""

    kind = "aggregating"
    function: AggregateFunction

    def get(self) -> Any:
        kept = self._load()
        return None if kept is None else self.function.get_result(kept)

    def add(self, value: Any) -> None:
        kept = self._load()
        self._store(self.function.add(value, self.function.create_accumulator() if kept is None else kept))

    def absorb(self, other: AggregatingHandle) -> None:
        """Move the accumulator of another key to this one."""
        kept = other._load()
        if kept is not None:
            other.clear()
            mine = self._load()
            self._store(kept if mine is None else self.function.merge(mine, kept))


class ListHandle(Handle, ListState):
    """A `ListState` over `ListContents`."""

    shape = kind = "list"
    parts = (", an element",)

    def get(self) -> Iterator[Any]:
        elements = self._contents.table.load(self._contents.key())
        # add() extends this list, update() and clear() replace it: the elements of now need no copy
        return map(self._codec.decode, islice(elements, len(elements)))

    def add(self, value: Any) -> None:
        encoded = self._codec.encode(value)
        if encoded is None:
            self._no_none()
        self._contents.table.append(self._contents.key(), [encoded])

    def add_all(self, values: Iterable[Any]) -> None:
        encoded = self._encode(values)
        if encoded:
            self._contents.table.append(self._contents.key(), encoded)

    def update(self, values: Iterable[Any]) -> None:
        self._contents.table.replace(self._contents.key(), self._encode(values))

    def clear(self) -> None:
        self._contents.table.replace(self._contents.key(), [])

    def absorb(self, other: ListState) -> None:
        """Move the elements of another key to this one."""
        elements = list(other.get())
        other.clear()
        self.add_all(elements)

    def _encode(self, values: Iterable[Any]) -> list[Any]:
        encoded = [self._codec.encode(value) for value in values]
        if any(value is None for value in encoded):
            self._no_none()
        return encoded

    def _no_none(self) -> NoReturn:
        raise ValueError(f"state {self._name!r}: an element of a list state must not be None")


class MapHandle(Handle, MapState):
    """A `MapState` over `MapContents`."""

    shape = kind = "map"
    parts = (", a key", ", a value")

    def __init__(self, contents: Contents, name: str, codecs: Sequence[Codec]) -> None:
        super().__init__(contents, name, codecs)
        self._key_codec = codecs[0]

    def get(self, key: Any) -> Any:
        contents = self._contents
        return self._codec.decode(contents.table.find(contents.key(), self._encode_key(key))[1])

    def put(self, key: Any, value: Any) -> None:
        encoded = {self._encode_key(key): self._codec.encode(value)}
        self._contents.table.put(self._contents.key(), encoded)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        encoded = {self._encode_key(k): self._codec.encode(v) for k, v in dict_value.items()}
        if encoded:
            self._contents.table.put(self._contents.key(), encoded)

    def remove(self, key: Any) -> None:
        self._contents.table.remove(self._contents.key(), self._encode_key(key))

    def contains(self, key: Any) -> bool:
        return self._contents.table.find(self._contents.key(), self._encode_key(key))[0]

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((self._key_codec.decode(k), self._codec.decode(v)) for k, v in self._entries())

    def keys(self) -> Iterator[Any]:
        return (self._key_codec.decode(k) for k, _ in self._entries())

    def values(self) -> Iterator[Any]:
        return (self._codec.decode(v) for _, v in self._entries())

    def is_empty(self) -> bool:
        return self._contents.table.is_empty(self._contents.key())

    def clear(self) -> None:
        self._contents.table.remove_all(self._contents.key())

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        """Return the entries of now: changes during the iteration do not show, unless they have expired."""
        table, key = self._contents.table, self._contents.key()
        return table.visited(key) if isinstance(table, ExpiringMap) else iter(list(table.load(key).items()))

    def _encode_key(self, key: Any) -> Any:
        encoded = self._key_codec.encode(key)
        if encoded is None:
            raise ValueError(f"state {self._name!r}: a key of a map state must not be None")
        return encoded


H = TypeVar("H", bound=Handle)


class KeyedRuntimeContext(RuntimeContext):
    """Returns the handles of a function's states, and binds them to a backend.

    max_parallelism: the number of key groups, 1 to 32768
    metrics: the metrics of the function; None if it has not asked for a group that makes them
    """

    _expiring: ClassVar[dict[str, type[Expiring]]] = EXPIRING

    def __init__(self, keys: CurrentKey, types: ValueTypes, max_parallelism: int) -> None:
        self._keys = keys
        self._types = types
        self._max_parallelism = max_parallelism
        self._handles: dict[str, tuple[Handle, KeyedContents]] = {}
        self._ttls: dict[str, StateTtlConfig] = {}
        self._backend: StateBackend | None = None
        self.clock: ExpiryClock | None = None
        self.metrics: Metrics | None = None  # until the function asks for them

    def bind_backend(self, backend: StateBackend) -> list[Any]:
        """Bind all handles to this backend; return their contents there."""
        self._backend = backend
        return [self._bind(contents, backend) for _, contents in self._handles.values()]

    def times_to_live(self) -> dict[str, StateTtlConfig]:
        """Return the times to live of the states that have one, by the names of the states."""
        return self._ttls

    def _bind(self, contents: KeyedContents, backend: StateBackend) -> Any:
        table = contents.bind(backend)
        ttl = self._ttls.get(contents.name)
        if ttl is not None and self.clock is not None:
            contents.table = self._expiring[contents.shape](table, ttl, self.clock)
        return table

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._max_parallelism

    def get_metrics_group(self) -> MetricGroup:
        if self.metrics is None:
            self.metrics = Metrics()
        return MetricGroup(self.metrics)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        return self._value_state(ValueHandle, state_descriptor)

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        instance("state_descriptor", state_descriptor, ListStateDescriptor)
        type_ = self._types.resolve(state_descriptor.type_info, f"state {state_descriptor.name!r}")
        return self._handle(ListHandle, state_descriptor, (type_,))

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        instance("state_descriptor", state_descriptor, MapStateDescriptor)
        argument = f"state {state_descriptor.name!r}"
        key, value = state_descriptor.key_and_value
        types = self._types.resolve_key(key, argument), self._types.resolve(value, argument)
        return self._handle(MapHandle, state_descriptor, types)

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState:
        instance("state_descriptor", state_descriptor, ReducingStateDescriptor)
        handle = self._handle_of_value(ReducingHandle, state_descriptor)
        handle.function = state_descriptor.reduce_function
        return handle

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState:
        instance("state_descriptor", state_descriptor, AggregatingStateDescriptor)
        handle = self._handle_of_value(AggregatingHandle, state_descriptor)
        handle.function = state_descriptor.agg_function
        return handle

    def get_any_state(self, state_descriptor: StateDescriptor) -> Any:
        """Return the handle of a state of the kind that the descriptor says."""
        handles: dict[type[StateDescriptor], Callable[[Any], Any]] = {
            ListStateDescriptor: self.get_list_state,
            MapStateDescriptor: self.get_map_state,
            ReducingStateDescriptor: self.get_reducing_state,
            AggregatingStateDescriptor: self.get_aggregating_state,
        }
        return handles.get(type(state_descriptor), self.get_state)(state_descriptor)

    def _value_state(self, class_: type[H], descriptor: ValueStateDescriptor) -> H:
        instance("state_descriptor", descriptor, ValueStateDescriptor)
        return self._handle_of_value(class_, descriptor)

    def _handle_of_value(self, class_: type[H], descriptor: StateDescriptor) -> H:
        type_ = self._types.resolve(descriptor.type_info, f"state {descriptor.name!r}")
        return self._handle(class_, descriptor, (type_,))

    def _handle(self, class_: type[H], descriptor: StateDescriptor, types: tuple[Any, ...]) -> H:
        name, ttl, stored = descriptor.name, descriptor.ttl_config, types
        if ttl is not None:
            stored = (*types[:-1], self._types.timed(types[-1]))
        asked = KeyedContents(self._keys, name, class_.shape, stored, class_.kind)
        if name in self._handles:
            handle, contents = self._handles[name]
            if not isinstance(handle, class_) or contents.types != stored:
                raise ValueError(f"state {name!r} is already in use as {contents}; it cannot also be {asked}")
            return handle
        if ttl is not None:
            self._ttls[name] = ttl
        if self._backend is not None:
            self._bind(asked, self._backend)
        whats = (f"state {name!r}{part}" for part in class_.parts)
        makers = (self._types.key_codec, self._types.codec)[-len(types) :]
        codecs = [make(type_, what) for make, type_, what in zip(makers, types, whats, strict=True)]
        handle = class_(asked, name, codecs)
        self._handles[name] = handle, asked
        return handle
