"""When the segments of a run are merged, and when the run is written anew."""

from __future__ import annotations

__all__ = ["Tiers"]

_SMALL = 4096
_SLACK = 16 << 10


class Tiers:
    """The limits of one key group.

    A segment of less than 4 KiB has level 0; each further level has segments of 8 times the size. A smaller
    segment below a larger one counts as one of the larger one's level, since it cannot be merged without it.

    Parameters
    ----------
    id_ : bytes
        The group's id, which shifts the limits, so that groups do not all merge at the same time.
    """

    def __init__(self, id_: bytes) -> None:
        self._fan_in = 6 + id_[0] % 5  # 8 on average
        self._growth = 1.5 + id_[1] / 256  # 2 on average

    def small(self, nbytes: int) -> bool:
        """Return whether a chunk is of level 0."""
        return nbytes < _SMALL

    def overgrown(self, stored: int, changed: int, live: int) -> bool:
        """Return whether to write a part anew.

        Parameters
        ----------
        stored, changed, live : int
            The size of its run, of its changes, and of the part itself, in bytes.
        """
        return 0 < changed >= live or stored > self._growth * live + _SLACK

    def merge_from(self, sizes: list[int]) -> int:
        """Return the first segment of those to merge into the last one; the last one if there are none.

        Parameters
        ----------
        sizes : list of int
            The sizes of the segments, the oldest first.
        """
        sizes = list(sizes)
        while (start := self._full_level(sizes)) < len(sizes) - 1:
            sizes[start:] = [sum(sizes[start:])]  # which may complete the next level
        return len(sizes) - 1

    def _full_level(self, sizes: list[int]) -> int:
        """Return where the segments of the lowest full level start."""
        top, count = 0, 0
        for at in range(len(sizes) - 1, -1, -1):
            level = _level(sizes[at])
            if level > top:
                if count >= self._fan_in:
                    return at + 1
                top, count = level, 0
            count += 1
        return 0 if count >= self._fan_in else len(sizes) - 1


def _level(nbytes: int) -> int:
    return max(0, (nbytes.bit_length() - 10) // 3)
