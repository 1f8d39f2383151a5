"""One watermark out of several inputs: an operator's inputs, or a source's splits."""

from __future__ import annotations

from timerheap._arguments import int64
from timerheap._native._heap import KeyTimerHeap
from timerheap.timer import MIN_WATERMARK

__all__ = ["CombinedWatermarkStatus", "IndexedCombinedWatermarkStatus", "checked_index"]


def checked_index(name: str, index: int, n: int) -> int:
    """Return `index` if it is one of `n`; a TypeError or IndexError names the argument."""
    index = int64(name, index)
    if not 0 <= index < n:
        raise IndexError(f"{name} must be 0 or more and below {n}, got {index}")
    return index


class CombinedWatermarkStatus:
    """The watermark of inputs that come and go; Flink's class of that name.

    The combined watermark is the least of the active inputs' watermarks or, while all are idle, the greatest
    of all watermarks; it only rises. An input is any int64 of the caller's. One that is not there, or not any
    more, is ignored.

    Attributes
    ----------
    combined_watermark : int
        As of the last `update_combined_watermark`; MIN_WATERMARK before there is one.
    is_idle : bool
        Whether all inputs were idle then.

    Notes
    -----
    O(log n) for every call but `remove`, which is O(n) where the input removed was the furthest.
    """

    def __init__(self) -> None:
        self.combined_watermark = MIN_WATERMARK
        self.is_idle = False
        self._watermarks: dict[int, int] = {}
        self._active = KeyTimerHeap()  # (watermark, input)
        self._furthest = MIN_WATERMARK  # of all inputs, idle ones too

    def add(self, partial: int) -> None:
        """Take a new input: active, and without a watermark."""
        self._watermarks[partial] = MIN_WATERMARK
        self._active.push(MIN_WATERMARK, partial)

    def remove(self, partial: int) -> None:
        """Let go of an input."""
        watermark = self._watermarks.pop(partial, MIN_WATERMARK)
        self._active.remove(partial)
        if watermark == self._furthest:
            self._furthest = max(self._watermarks.values(), default=MIN_WATERMARK)

    def set_watermark(self, partial: int, watermark: int) -> bool:
        """Take an input's watermark, which makes the input active; True where it rises."""
        if partial not in self._watermarks:
            return False
        before = self._watermarks[partial]
        self._watermarks[partial] = after = max(before, watermark)
        self._furthest = max(self._furthest, after)
        self._active.push(after, partial)
        return after > before

    def set_idle(self, partial: int, idle: bool) -> None:
        """Take an input's status."""
        if idle:
            self._active.remove(partial)
        elif partial in self._watermarks:
            self._active.push(self._watermarks[partial], partial)

    def update_combined_watermark(self) -> bool:
        """Combine what the inputs have; True where the combined watermark rises and must be emitted."""
        if not self._watermarks:
            return False
        least = self._active.peek()
        self.is_idle = least is None
        combined = self._furthest if least is None else least.timestamp
        if combined <= self.combined_watermark:
            return False
        self.combined_watermark = combined
        return True


class IndexedCombinedWatermarkStatus:
    """The watermark of an operator with n inputs; Flink's class of that name.

    The combined watermark is the least of the active inputs' watermarks. While all are idle it is the
    greatest of all watermarks, so that nothing waits for rows that nobody promises. It only rises.

    Parameters
    ----------
    n : int
        Number of inputs, 0 or more; an input is an index 0 .. n - 1. All begin active, without a watermark.

    Raises
    ------
    TypeError, ValueError
        `n` is no int, or below 0.

    See Also
    --------
    StatusWatermarkValve : combines the channels of one input, by rules of its own.

    Examples
    --------
    >>> inputs = IndexedCombinedWatermarkStatus(2)
    >>> inputs.update_watermark(0, 50)
    False
    >>> inputs.update_watermark(1, 30), inputs.combined_watermark
    (True, 30)
    >>> inputs.update_status(1, idle=True), inputs.combined_watermark
    (True, 50)
    """

    def __init__(self, n: int) -> None:
        if int64("n", n) < 0:
            raise ValueError(f"n must be 0 inputs or more, got {n}")
        self._n = int64("n", n)
        self._combined = CombinedWatermarkStatus()
        for index in range(self._n):
            self._combined.add(index)

    def __repr__(self) -> str:
        status = "idle" if self.is_idle else "active"
        return f"<IndexedCombinedWatermarkStatus of {self._n}: {self.combined_watermark}, {status}>"

    @property
    def combined_watermark(self) -> int:
        """The inputs' common watermark, epoch milliseconds; MIN_WATERMARK before there is one."""
        return self._combined.combined_watermark

    @property
    def is_idle(self) -> bool:
        """Whether all inputs are idle."""
        return self._combined.is_idle

    def update_watermark(self, index: int, watermark: int) -> bool:
        """Take an input's watermark; True where a new combined watermark must be emitted.

        A watermark makes an idle input active. One that is no higher than the input's last changes nothing
        else.

        Parameters
        ----------
        index : int
        watermark : int
            Epoch milliseconds, int64.

        Raises
        ------
        TypeError, IndexError, OverflowError
            An argument is no int, `index` is no input, or `watermark` no int64. Nothing has changed.

        Notes
        -----
        O(log n).
        """
        index, watermark = checked_index("index", index, self._n), int64("watermark", watermark)
        self._combined.set_watermark(index, watermark)
        return self._combined.update_combined_watermark()

    def update_status(self, index: int, idle: bool) -> bool:
        """Take whether an input is idle; True where a new combined watermark must be emitted.

        Parameters
        ----------
        index : int
        idle : bool

        Raises
        ------
        TypeError, IndexError
            `index` is no int, or no input, or `idle` no bool. Nothing has changed.

        Notes
        -----
        O(log n). An input that becomes active takes the watermark back no further than it is.
        """
        index = checked_index("index", index, self._n)
        if not isinstance(idle, bool):  # a WatermarkStatus is true, whichever it is
            raise TypeError(f"idle must be a bool, got {idle!r}")
        self._combined.set_idle(index, idle)
        return self._combined.update_combined_watermark()
