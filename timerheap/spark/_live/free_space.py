"""Which bytes of a live file are free."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class FreeSpace:
    """Free ranges of bytes, sorted; adjacent ranges are one range. Each method costs O(number of ranges)."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        """Add a range; raise an error if a part of it is free already."""
        at = bisect_right(self._starts, start)
        if (at and self._stops[at - 1] > start) or (at < len(self._starts) and self._starts[at] < stop):
            raise ValueError(f"bytes {start} to {stop} are free already")
        if at < len(self._starts) and self._starts[at] == stop:
            stop = self._stops.pop(at)
            del self._starts[at]
        if at and self._stops[at - 1] == start:
            self._stops[at - 1] = stop
        else:
            self._starts.insert(at, start)
            self._stops.insert(at, stop)

    def take(self, nbytes: int) -> int | None:
        """Remove the first `nbytes` of the smallest range that has as many, and return where they start."""
        sizes = ((stop - start, at) for at, (start, stop) in enumerate(self))
        _, at = min((pair for pair in sizes if pair[0] >= nbytes), default=(0, -1))
        if at < 0:
            return None
        start = self._starts[at]
        self._cut(at, start, start + nbytes)
        return start

    def claim(self, start: int, stop: int) -> None:
        """Remove a range; raise an error if a part of it is not free."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or not start < stop <= self._stops[at]:
            raise ValueError(f"bytes {start} to {stop} are outside of the file or in use")
        self._cut(at, start, stop)

    def before(self, stop: int) -> int:
        """Return how many bytes right before `stop` are free, where no range reaches beyond `stop`."""
        return stop - self._starts[-1] if self._stops and self._stops[-1] == stop else 0

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return what is free of a range, as ranges."""
        return [(max(one, start), min(other, stop)) for one, other in self if one < stop and start < other]

    def _cut(self, at: int, start: int, stop: int) -> None:
        ranges = [(self._starts[at], start), (stop, self._stops[at])]
        left = [(one, other) for one, other in ranges if one < other]
        self._starts[at : at + 1] = [one for one, _ in left]
        self._stops[at : at + 1] = [other for _, other in left]

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)
