"""The types of timers: rows of the heaps, batches of rows as columns, and timers of any key in queues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from timerheap._arguments import int64, positive_int
from timerheap.errors import ArgumentRangeError, ArgumentTypeError, ArgumentValueError

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
    ArgumentTypeError
        If a column is not an array of int64.
    ArgumentValueError
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
                raise ArgumentTypeError(f"{name} must be an array of int64, got {kind}")
            if column.ndim != 1:
                raise ArgumentValueError(f"{name} must be one-dimensional, got shape {column.shape}")
            if len(column) != len(self.timestamps):
                raise ArgumentValueError(
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


@overload
def round_up(timestamp: int, resolution: int) -> int: ...
@overload
def round_up(timestamp: ArrayLike, resolution: int) -> NDArray[np.int64]: ...
def round_up(timestamp: int | ArrayLike, resolution: int) -> int | NDArray[np.int64]:
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
    ArgumentTypeError
        If `timestamp` contains anything but integers, or `resolution` is not an int.
    ArgumentValueError
        If `resolution` is less than 1.
    ArgumentRangeError
        If `timestamp`, or the result, does not fit into int64.

    Examples
    --------
    >>> round_up(1_234, 1_000), round_up(2_000, 1_000), round_up(-1, 1_000)
    (2000, 2000, 0)
    >>> round_up(np.array([1, 999, 1_000, 1_001]), 1_000)
    array([1000, 1000, 1000, 2000])

    In a function, a key then has one timer per minute, however many elements arrive:

    >>> from timerheap import KeyedProcessFunction
    >>> from timerheap.testing import ProcessTester
    >>> class Timeout(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(round_up(value.at + 1_800_000, 60_000))
    >>> tester = ProcessTester(Timeout(), "plane", "plane string, at bigint", "plane string")
    >>> tester.push([("N14228", at) for at in range(0, 120_000, 10)])
    []
    >>> [timer.timestamp for timer in tester.timers()]
    [1800000, 1860000, 1920000]
    """
    resolution = positive_int("resolution", resolution)
    if isinstance(timestamp, int | np.integer):
        rounded = -(-int64("timestamp", timestamp) // resolution) * resolution
        if rounded > MAX_WATERMARK:
            raise ArgumentRangeError(_out_of_range(timestamp, resolution))
        return rounded
    timestamps = np.asarray(timestamp)
    if timestamps.dtype.kind not in "iu" and timestamps.size:
        for value in timestamps.flat:
            if type(value) is int:  # in an array of objects, it may be too large for NumPy
                int64("timestamp", value)
        raise ArgumentTypeError(f"timestamp must hold integers, got {timestamps.dtype}")
    if timestamps.dtype.kind == "u" and (timestamps > np.uint64(MAX_WATERMARK)).any():
        raise ArgumentRangeError(f"timestamp must fit into 64 bits, got {timestamps.max()}")
    timestamps = timestamps.astype(np.int64)
    missing = (resolution - timestamps % resolution) % resolution
    if (timestamps > MAX_WATERMARK - missing).any():
        raise ArgumentRangeError(_out_of_range(timestamps.max(), resolution))
    return np.asarray(timestamps + missing)


def _out_of_range(timestamp: object, resolution: int) -> str:
    return f"timestamp must fit into 64 bits when rounded up to a multiple of {resolution}, got {timestamp}"


def lateness(watermark: int, timers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how much lower a watermark would have to be, in ms, for these timers not to have fired."""
    # Unsigned subtraction is correct over the whole range of int64.
    passed_by = np.int64(watermark).view(np.uint64) - timers.view(np.uint64)
    behind: NDArray[np.int64] = np.minimum(passed_by, np.uint64(MAX_WATERMARK - 1)).astype(np.int64)
    return behind + 1


def shown_time(timestamp: int) -> str:
    """Return a timestamp as text for a message, also outside of the years of a datetime."""
    return f"{np.datetime64(timestamp, 'ms')}Z"


def shown_duration(ms: int) -> str:
    """Return a duration as text: ms, or from a second on days, hours, minutes and seconds."""
    try:
        return f"{ms} ms" if ms < 1_000 else str(timedelta(seconds=ms // 1_000))
    except OverflowError:
        return f"{ms} ms"
