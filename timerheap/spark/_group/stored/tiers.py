"""When the chunks of a part are merged, and when a part is written anew.

Segments have levels by their size, each level of 8 times the size of the one below. Once about 8 segments of
a level are on top of the stack, they are merged into one. So a part of n bytes has O(log n) segments, and a
byte is written again a few times per level: O(log n) times.

A part is written anew from memory where that is less: if the changes are as large as the part, if a merge
would take in the whole stack, or if the stack has grown to about twice the size of the part. The last costs
O(1) for each byte written since, and keeps the checkpoint within a constant factor of the live state, as long
as entries are about as large as they were in the last snapshot. These limits depend a little on the group's
id, so that not all groups merge in the same micro-batch.
"""

from __future__ import annotations

_SLACK = 16 << 10


class Tiers:
    """The limits of one key group, whose id shifts them, so that groups do not all merge at the same time.

    A segment of less than 4 KiB has level 0; each further level has segments of 8 times the size. A smaller
    segment below a larger one counts as one of the larger one's level, since it cannot be merged without it.
    """

    def __init__(self, id_: bytes) -> None:
        self._fan_in = 6 + id_[0] % 5  # 8 on average
        self._growth = 1.5 + id_[1] / 256  # 2 on average

    def overgrown(self, stored: int, changed: int, live: int) -> bool:
        """Return whether to write a part anew, given the bytes of its run, of its changes and of itself."""
        return 0 < changed >= live or stored > self._growth * live + _SLACK

    def merge_from(self, sizes: list[int]) -> int:
        """Return the first of the segments, the oldest first, to merge into the last one, or that one."""
        sizes = list(sizes)
        while (start := self._full_level(sizes)) < len(sizes) - 1:
            sizes[start:] = [sum(sizes[start:])]  # which may complete the next level
        return len(sizes) - 1

    def _full_level(self, sizes: list[int]) -> int:
        """Return where the segments of the lowest full level start."""
        top, count = 0, 0
        for at in range(len(sizes) - 1, -1, -1):
            level = max(0, (sizes[at].bit_length() - 10) // 3)
            if level > top:
                if count >= self._fan_in:
                    return at + 1
                top, count = level, 0
            count += 1
        return 0 if count >= self._fan_in else len(sizes) - 1
