"""What a key group has of windows that are corrected: rows that they show, and rows that they do not yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._stored_windows import UNSHOWN
from timerheap.spark._tvf.sliced_rows import WindowSpec
from timerheap.spark._tvf.windows_part import WindowsPart
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf.revisions import delayed
from timerheap.tvf.window_aggregate import GlobalWindowAggregate


@dataclass(frozen=True)
class ShownLayout:
    """The rows that windows show, until these are final; an `OwnLayout`."""

    spec: WindowSpec
    lateness: int  # ms

    @property
    def name(self) -> str:
        return self.spec.name

    def part(self, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> ShownPart:
        return ShownPart(self.spec, self.lateness, memory, head)


@dataclass(frozen=True)
class UnshownLayout:
    """The rows that windows do not show yet; an `OwnLayout`."""

    spec: WindowSpec

    @property
    def name(self) -> str:
        return f"rows not shown by {self.spec.name}"

    def part(self, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> UnshownPart:
        return UnshownPart(self, memory, head)


class ShownPart(WindowsPart):
    """Windows at a watermark that is lower than that of the group by the allowed lateness."""

    def __init__(
        self, spec: WindowSpec, lateness: int, memory: Memory = PROCESS, head: Sequence[Any] = ()
    ) -> None:
        super().__init__(spec, memory, head)
        self._lateness = lateness

    def loaded(self, watermark: int) -> None:
        super().loaded(delayed(watermark, self._lateness))

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        """Windows end before they are final."""
        count, final = super().pending(event_time)
        if final is None:
            return count, None
        windows, low = self.windows, self.windows.watermark
        watermark = low if low in (MIN_WATERMARK, MAX_WATERMARK) else low + self._lateness
        ends = windows.snapshot().slice_ends
        if isinstance(windows, GlobalWindowAggregate):
            passed, step = windows.assigner.last_passed(watermark), windows.assigner.interval
            ends = ends[windows.assigner.last_window_ends(ends) > passed][:1]  # slices are sorted
            if len(ends):
                ends = windows.assigner.next_window_ends(np.maximum(ends, passed + step))
        else:
            ends = ends[ends - 1 > windows.assigner.zone.passed(watermark)]
        first = windows.assigner.zone.passes_at(ends - 1).min(initial=MAX_WATERMARK)
        return count, min(int(first), final + self._lateness)


class UnshownPart(WindowsPart):
    """Windows at the lowest watermark."""

    kind = UNSHOWN

    def __init__(self, layout: UnshownLayout, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        super().__init__(layout.spec, memory, head)
        self.name = layout.name

    def loaded(self, watermark: int) -> None:
        super().loaded(MIN_WATERMARK)

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        return 0, None
