"""The types of timers: rows of the heaps, batches of rows as columns, and timers of any key in queues."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import Generic, NamedTuple, Protocol, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "InternalTimer",
    "KeyedTimerQueue",
    "Timer",
    "TimerBatch",
    "all_or_none",
    "coalesce",
]

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)

MIN_WATERMARK = -(2**63)  # before the first watermark
MAX_WATERMARK = 2**63 - 1  # the end of the input


class Timer(NamedTuple):
    """A timer of the heaps: its timestamp, key and namespace.

    Timers compare as tuples, which is also their firing order.

    Parameters
    ----------
    timestamp : int
        Epoch milliseconds, int64.
    key_hash : int
        The id or hash of the key, int64.
    namespace : int, default 0
        The id of the namespace, such as a window, int64.
    """

    timestamp: int
    key_hash: int
    namespace: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TimerBatch:
    """Timers as three columns of equal length, as `pop_due` returns them.

    A batch is a sequence of `Timer`; for many timers, work on its columns instead.

    Parameters
    ----------
    timestamps, key_hashes, namespaces : ndarray of int64, shape (n,)
        Epoch milliseconds, key ids and namespace ids. The arrays are not copied, and only read.

    Raises
    ------
    TypeError
        If a column is not an array of int64.
    ValueError
        If a column is not one-dimensional, or the lengths differ.

    Examples
    --------
    >>> import numpy as np
    >>> batch = TimerBatch(np.array([5, 7]), np.array([1, 2]), np.array([0, 0]))
    >>> len(batch), batch[0], batch[1:].key_hashes.tolist()
    (2, Timer(timestamp=5, key_hash=1, namespace=0), [2])
    """

    timestamps: NDArray[np.int64]
    key_hashes: NDArray[np.int64]
    namespaces: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in self.__slots__:
            column = getattr(self, name)
            if not isinstance(column, np.ndarray) or column.dtype != np.int64:
                kind = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
                raise TypeError(f"{name} must be an array of int64, got {kind}")
            if column.ndim != 1:
                raise ValueError(f"{name} must be one-dimensional, got shape {column.shape}")
            if len(column) != len(self.timestamps):
                raise ValueError(
                    f"{name} must have {len(self.timestamps)} rows, like timestamps, got {len(column)}"
                )

    def __len__(self) -> int:
        return len(self.timestamps)

    def __iter__(self) -> Iterator[Timer]:
        return map(Timer, self.timestamps.tolist(), self.key_hashes.tolist(), self.namespaces.tolist())

    @overload
    def __getitem__(self, index: int) -> Timer: ...
    @overload
    def __getitem__(self, index: slice) -> TimerBatch: ...
    def __getitem__(self, index: int | slice) -> Timer | TimerBatch:
        columns = self.timestamps[index], self.key_hashes[index], self.namespaces[index]
        if isinstance(index, slice):
            return TimerBatch(*columns)
        return Timer(*map(int, columns))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimerBatch):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        head = ", ".join(map(repr, self[:3])) + (", ..." if len(self) > 3 else "")
        return f"<TimerBatch of {len(self)} timers: {head}>" if len(self) else "<TimerBatch of 0 timers>"


class InternalTimer(NamedTuple, Generic[K, N]):
    """One timer of one key; its three fields are its identity.

    Attributes
    ----------
    timestamp : int
        The firing time in epoch milliseconds, int64.
    key : hashable
        The key of the timer.
    namespace : hashable
        Distinguishes timers of one key: a window, a name, or None, which is Flink's ``VoidNamespace``.
    """

    timestamp: int
    key: K
    namespace: N


class KeyedTimerQueue(Protocol[K, N]):
    """The interface between a timer service and a queue; implement it to keep timers elsewhere.

    Methods accept any tuple ``(timestamp, key, namespace)`` as a `timer` and return `InternalTimer`. Flink:
    ``KeyGroupedInternalPriorityQueue``.
    """

    def add(self, timer: tuple[int, K, N], /) -> bool:
        """Add a timer unless it is present; return True if the lowest timestamp changed."""

    def remove(self, timer: tuple[int, K, N], /) -> bool:
        """Remove a timer if it is present; return True if it was the head."""

    def peek(self) -> InternalTimer[K, N] | None:
        """Return the head, a timer with the lowest timestamp, or None."""

    def poll(self) -> InternalTimer[K, N] | None:
        """Remove and return the head, which `peek` returns, or return None."""

    def add_many(self, timers: Iterable[tuple[int, K, N]], /) -> None:
        """Add every timer that is not present; on an error, add none."""

    def poll_many(self, time: int, limit: int | None = None) -> list[InternalTimer[K, N]]:
        """Remove and return the timers with timestamp <= `time`, earliest first, at most `limit`."""

    def remove_keys(self, keys: Iterable[K], /) -> int:
        """Remove all timers of many keys in one scan; return their number."""

    def timers_of_key(self, key: K, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key in firing order. A scan."""

    def get_subset_for_key_group(self, key_group: int, /) -> list[InternalTimer[K, N]]:
        """Return the timers of one key group."""

    def __iter__(self) -> Iterator[InternalTimer[K, N]]:
        """Iterate over the current timers in any order; the queue may change during the iteration."""

    def __contains__(self, timer: tuple[int, K, N], /) -> bool:
        """Return whether a timer is present."""

    def __len__(self) -> int:
        """Return the number of timers."""


@contextmanager
def all_or_none(*parts: tuple[KeyedTimerQueue[K, N], Iterable[tuple[int, K, N]]]) -> Iterator[None]:
    """Add timers to several queues; on an error, also in the ``with`` block, remove them again.

    Parameters
    ----------
    *parts : (KeyedTimerQueue, iterable of timers)
        A queue, and the timers to add to it. Timers that it already holds are kept in any case.
    """
    added: list[tuple[KeyedTimerQueue[K, N], list[tuple[int, K, N]]]] = []
    try:
        for queue, timers in parts:
            new = [timer for timer in timers if timer not in queue]
            queue.add_many(new)
            added.append((queue, new))
        yield
    except BaseException:
        for queue, new in added:
            for timer in new:
                queue.remove(timer)
        raise


@overload
def coalesce(timestamp: int, resolution: int) -> int: ...
@overload
def coalesce(timestamp: ArrayLike, resolution: int) -> NDArray[np.int64]: ...
def coalesce(timestamp: int | ArrayLike, resolution: int) -> int | NDArray[np.int64]:
    """Round timestamps up to multiples of a resolution, so that nearby timers become one.

    A key that registers a timer for every element has as many timers as elements. If firing slightly later is
    acceptable, register the rounded timestamp: registering a timer that exists costs nothing. A rounded timer
    never fires earlier, and always fires less than `resolution` later.

    Parameters
    ----------
    timestamp : int or array_like of int
        Epoch milliseconds, int64; negative before 1970.
    resolution : int
        Milliseconds, 1 or more, counted from the epoch: 60_000 rounds up to whole minutes.

    Returns
    -------
    int or ndarray of int64
        The rounded timestamps, in a new array of the same shape. O(n).

    Raises
    ------
    TypeError
        If `timestamp` contains anything but integers, or `resolution` is not an int.
    ValueError
        If `resolution` is less than 1.
    OverflowError
        If `timestamp`, or the result, does not fit into int64.

    Examples
    --------
    >>> coalesce(1_234, 1_000), coalesce(2_000, 1_000), coalesce(-1, 1_000)
    (2000, 2000, 0)
    >>> coalesce(np.array([1, 999, 1_000, 1_001]), 1_000)
    array([1000, 1000, 1000, 2000])

    In a function, a key then has one timer per minute, however many elements arrive:

    >>> from timerheap import InternalTimerService, ManualProcessingTimeService, TimerService
    >>> internal = InternalTimerService(None, ManualProcessingTimeService())
    >>> internal.key_context.current_key = "N14228"
    >>> timers = TimerService(internal)
    >>> for at in range(0, 120_000, 10):
    ...     timers.register_event_time_timer(coalesce(at + 1_800_000, 60_000))
    >>> timers.event_time_timers()
    [1800000, 1860000, 1920000]
    """
    resolution = positive("resolution", resolution)
    if isinstance(timestamp, int | np.integer):
        rounded = -(-int64("timestamp", timestamp) // resolution) * resolution
        if rounded > MAX_WATERMARK:
            raise OverflowError(_out_of_range(timestamp, resolution))
        return rounded
    timestamps = np.asarray(timestamp)
    if timestamps.dtype.kind not in "iu" and timestamps.size:
        for value in timestamps.flat:
            if type(value) is int:  # in an array of objects, it may be too large for NumPy
                int64("timestamp", value)
        raise TypeError(f"timestamp must hold integers, got {timestamps.dtype}")
    if timestamps.dtype.kind == "u" and (timestamps > np.uint64(MAX_WATERMARK)).any():
        raise OverflowError(f"timestamp must fit into 64 bits, got {timestamps.max()}")
    timestamps = timestamps.astype(np.int64)
    missing = (resolution - timestamps % resolution) % resolution
    if (timestamps > MAX_WATERMARK - missing).any():
        raise OverflowError(_out_of_range(timestamps.max(), resolution))
    return np.asarray(timestamps + missing)


def _out_of_range(timestamp: object, resolution: int) -> str:
    return f"timestamp must fit into 64 bits when rounded up to a multiple of {resolution}, got {timestamp}"


def int64(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int; raise a TypeError or OverflowError that names the argument."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    number = index(value)
    if not MIN_WATERMARK <= number <= MAX_WATERMARK:
        raise OverflowError(f"{name} must fit into 64 bits, got {value!r}")
    return number


def positive(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int of 1 or more; raise an error that names the argument."""
    number = int64(name, value)
    if number < 1:
        raise ValueError(f"{name} must be 1 or more, got {value!r}")
    return number
