"""The timers of the current key, and the timer service of a function on rows.

A key and a name are int64 numbers here, so that the service is native code, and so is the loop that calls the
function (``RowLoop`` in `timerheap._native`). Who keeps the timers and the names is a `NamedTimers` and a
`Names`: a key group of a query on Spark, or an operator of `timerheap.flink`.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np

from timerheap._native._core import (
    CurrentKey,
    NamedTimerHeap,
    RowTimers,
    RowTimerService,
    TimerChanges,
    TimerHeap,
    xxh64,
)
from timerheap.errors import ArgumentValueError, FunctionError
from timerheap.functions import TimerService

_SCANS = 32  # of a heap for single keys, before it is sorted for them
_LAST = (1 << 63) - 1  # namespace of a name


class NamedTimers(Protocol):
    """The timers of all keys in one time domain: `heap`, a ``NamedTimerHeap``, and what records changes."""

    @property
    def heap(self) -> TimerHeap: ...

    @property
    def single(self) -> TimerChanges:
        """Receives the changes of single timers."""

    def remove_many(self, timestamps: np.ndarray, key_hashes: Any, namespaces: np.ndarray) -> np.ndarray:
        """Remove timers; return a bool array that is True where there was one."""


def namespace_of(name: str) -> int:
    """Return the namespace of the timers with a name, which depends on it alone."""
    try:
        return max(xxh64(name.encode()) >> 1, 1)
    except UnicodeEncodeError:
        raise ArgumentValueError(f"name must be valid Unicode, got {name!r}") from None


def after(namespace: int) -> int:
    """Return the namespace to try next where one belongs to another name."""
    return namespace % _LAST + 1


class Names:
    """The names of timers, and their namespaces.

    The namespace of a name is a hash of it, above 0, or the next one that no other name has: names may come
    from rows, in which hashes can collide on purpose. All from the hash to the namespace belong to names.

    known: the namespaces that have been asked for, by name
    table: `ValueContents` of all names by namespace; None if there are none
    """

    table: Any

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.table = None

    def part(self) -> Any:
        """Return the table, which is new if there was none."""
        raise NotImplementedError

    def _look_up(self, name: str) -> tuple[int, bool]:
        """Return the namespace of a name, or the one that it would get, and whether it is in use."""
        namespace = namespace_of(name)
        while (held := self.name(namespace)) not in (None, name):
            namespace = after(namespace)
        return namespace, held is not None

    def find(self, name: str) -> int:
        """Return the namespace of a name, or 0 if it is not in use."""
        namespace, used = self._look_up(name)
        if not used:
            return 0
        self.known[name] = namespace
        return namespace

    def new(self, name: str) -> int:
        """Return the namespace of a name; from now on it is in use."""
        namespace, used = self._look_up(name)
        if not used:
            self.part().store(namespace, name)  # made with the first name: most groups have none
        self.known[name] = namespace
        return namespace

    def name(self, namespace: int) -> str | None:
        """Return the name that has a namespace; None for 0."""
        return self.table.load(namespace) if namespace and self.table is not None else None


class TimersOfKeys:
    """The timers of single keys in a heap.

    The first questions scan the heap. Further ones sort it once, and then cost what they return; timers that
    were pushed later are remembered.
    """

    def __init__(self, heap: NamedTimerHeap) -> None:
        self._heap = heap
        self._scans = 0
        self._sorted: tuple[np.ndarray, ...] | None = None  # key ids, timestamps, namespaces, by key id
        self._pushed: dict[int, set[tuple[int, int]]] = {}  # timers by key id, since then

    def push(self, timestamp: int, key_id: int, namespace: int) -> None:
        if self._sorted is not None:
            self._pushed.setdefault(key_id, set()).add((timestamp, namespace))

    def timers(self, key_id: int) -> list[tuple[int, int]]:
        """Return the timestamps and namespaces of a key's timers, in ascending order."""
        heap = self._heap
        if self._sorted is None and self._scans < _SCANS:
            self._scans += 1
            rows = heap.key_hashes == key_id
            return sorted(zip(heap.timestamps[rows].tolist(), heap.namespaces[rows].tolist(), strict=True))
        if self._sorted is None:
            order = np.argsort(heap.key_hashes)
            self._sorted = heap.key_hashes[order], heap.timestamps[order], heap.namespaces[order]
        ids, *columns = self._sorted
        mine = slice(ids.searchsorted(key_id), ids.searchsorted(key_id, "right"))
        found = {*zip(*(column[mine].tolist() for column in columns), strict=True)}
        found |= self._pushed.get(key_id, set())
        return sorted(timer for timer in found if (timer[0], key_id, timer[1]) in heap)


class KeyTimers(RowTimers):
    """The timers of the current key in one time domain, for a function on rows."""

    def __init__(self, timers: NamedTimers, keys: CurrentKey, names: Names) -> None:
        assert isinstance(timers.heap, NamedTimerHeap)
        super().__init__(timers.heap, timers.single, keys, names)
        self._timers = timers
        self._heap = timers.heap
        self._keys = keys
        self._of_keys: TimersOfKeys | None = None

    def timers(self) -> list[tuple[int, int]]:
        """Return the timestamps and namespaces of the current key's timers, in ascending order."""
        if self._of_keys is None:
            self._of_keys = TimersOfKeys(self._heap)
            self.on_push(self._of_keys.push)
        return self._of_keys.timers(self._keys.current_key)

    def timestamps(self) -> list[int]:
        return [timestamp for timestamp, _ in self.timers()]

    def delete_all(self) -> int:
        timers = np.array(self.timers(), np.int64).reshape(-1, 2)
        if self.steps is not None:
            key = self._keys.current_key
            self.steps += [(self.put_back, key, at, namespace, True) for at, namespace in timers.tolist()]
        removed = self._timers.remove_many(timers[:, 0], self._keys.current_key, timers[:, 1])
        return int(np.count_nonzero(removed))


def no_processing_time() -> NoReturn:
    """Raise the error for processing time in a query without it."""
    raise FunctionError(
        "processing_time must be True for a function that uses it, got False; processing-time timers need "
        "process(..., processing_time=True), or table_function(..., processing_time=True) in SQL"
    )


class KeyTimerService(RowTimerService, TimerService):
    """The timer service of the current key of a key group."""

    __slots__ = ("_domains",)

    _domains: tuple[KeyTimers, KeyTimers]

    def bind_group(self, event: KeyTimers, processing: KeyTimers, watermark: int, now: int | None) -> None:
        """Use these timers from now on; `now` is the processing time, or None in a query without it."""
        self._domains = event, processing
        self.bind(event, processing, watermark, now)

    def event_time_timers(self) -> list[int]:
        return self._domains[0].timestamps()

    def processing_time_timers(self) -> list[int]:
        return self._domains[1].timestamps()

    def next_event_time_timer(self, *, name: str | None = None) -> int | None:
        return self._next(self._domains[0], name)

    def next_processing_time_timer(self, *, name: str | None = None) -> int | None:
        return self._next(self._domains[1], name)

    def _next(self, timers: KeyTimers, name: str | None) -> int | None:
        return next(iter(timers.timestamps()), None) if name is None else timers.timestamp_of(name)

    def delete_all_timers(self) -> int:
        return sum(timers.delete_all() for timers in self._domains)

    def _no_processing_time(self) -> NoReturn:
        no_processing_time()
