"""A timer heap that a ``with`` block reads from state and writes back: the base of the two adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self
from weakref import WeakSet

from timerheap._native._heap import KeyTimerHeap, TimerHeap
from timerheap.timer import Timer, TimerBatch

__all__ = ["FIELD", "Heap", "StoredTimers"]

FIELD = "timers"
"""The state field that holds the heap; part of the users' checkpoints."""

Heap = TimerHeap | KeyTimerHeap

_open: WeakSet[object] = WeakSet()  # states whose timers are in a block


class StoredTimers(ABC):
    """Timers in the state of `owner`, which a ``with`` block reads and writes.

    Inside the block the object has all methods of its heap.
    """

    def __init__(self, owner: object, one_timer_per_key: bool) -> None:
        self._owner = owner
        self._heap_class: type[Heap] = KeyTimerHeap if one_timer_per_key else TimerHeap
        self._heap: Heap | None = None
        self._first: Timer | None = None  # the first timer at the start of the block

    @abstractmethod
    def _now(self) -> int:
        """Return the time up to which timers are due."""

    @abstractmethod
    def _load(self) -> bytes | None:
        """Read the heap's bytes."""

    @abstractmethod
    def _save(self, heap: Heap) -> None:
        """Write the heap and schedule Spark's next call."""

    @abstractmethod
    def _keep(self) -> None:
        """After an error in the block, schedule Spark's next call for the timers from before it."""

    def due(self, limit: int | None = None) -> TimerBatch:
        """Remove and return the due timers; call it both when rows arrive and on a timeout.

        Parameters
        ----------
        limit : int, optional
            Return at most this many; the rest stay in the heap.

        Returns
        -------
        TimerBatch
            All timers with timestamp <= watermark, or <= the micro-batch's processing time if the query uses
            processing time, sorted by (timestamp, key_hash, namespace).

        Raises
        ------
        RuntimeError
            If called outside the block.
        TypeError, ValueError, OverflowError
            If `limit` is not a count.

        Notes
        -----
        O(k log n) for k of n timers. Spark's watermark covers the micro-batches before the current one and
        starts at 0.
        """
        return self._opened().pop_due(self._now(), limit)

    def __enter__(self) -> Self:
        self._check_closed()
        try:
            data = self._load()
            heap = self._heap_class() if data is None else self._heap_class.from_bytes(data)
        except ValueError as error:
            raise ValueError(
                f"state field {FIELD!r} must hold a {self._heap_class.__name__} written by timerheap with "
                f"the same one_timer_per_key: {error}"
            ) from error
        self._heap, self._first = heap, heap.peek()
        _open.add(self._owner)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        heap, self._heap = self._opened(), None
        _open.discard(self._owner)
        if kind is None:
            self._save(heap)
        elif issubclass(kind, Exception):  # not for GeneratorExit or the end of the worker
            self._keep()

    def _check_closed(self) -> None:
        if self._owner in _open:
            raise RuntimeError("these timers are already open; leave the first `with` block before the next")

    def _opened(self) -> Heap:
        if self._heap is None:
            raise RuntimeError(f"{type(self).__name__} must be used inside its `with` block")
        return self._heap

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self._heap_class, name):
            raise AttributeError(f"neither {type(self).__name__} nor its heap has an attribute {name!r}")
        return getattr(self._opened(), name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in dir(self._heap_class) if not name.startswith("_"))]

    def __len__(self) -> int:
        return len(self._opened())

    def __iter__(self) -> Iterator[Timer]:
        return iter(self._opened())

    def __contains__(self, timer: Any) -> bool:
        return timer in self._opened()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'closed' if self._heap is None else self._heap}>"
