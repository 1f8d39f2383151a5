"""The valve of an input with many channels, and explanations of what holds its watermark back."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from timerheap._native._core import KeyTimerHeap
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, shown_duration
from timerheap.watermarks.output import WatermarkOutput, WatermarkStatus

_SHOWN = 20  # number of channels in the printed table
_NAMED = 3  # number of channels in its first line


@dataclass(frozen=True, slots=True)
class ChannelExplanation:
    """The state of one channel of a valve, with its distance from the other channels."""

    channel: int
    name: Hashable
    watermark: int  # MIN_WATERMARK before its first
    status: WatermarkStatus
    aligned: bool  # whether it is active and has caught up with the output since it became active
    behind: int | None  # ms behind the furthest that has not ended; None before the first watermark
    holds: bool  # whether the output cannot rise before the watermark of this channel does

    @property
    def label(self) -> str:
        """The name of the channel or, without one, its number."""
        return f"channel {self.channel}" if self.name is None else str(self.name)

    def __str__(self) -> str:
        if self.watermark == MIN_WATERMARK:
            parts = ["no watermark yet"]
        elif self.watermark == MAX_WATERMARK:
            parts = ["at its end"]
        else:
            parts = [f"at {self.watermark}"]
        if self.behind:
            parts.append(f"{shown_duration(self.behind)} behind")
        if self.status is WatermarkStatus.IDLE:
            parts.append("idle")
        elif not self.aligned:
            parts.append("has yet to catch up")
        if self.holds:
            parts.append("holds the watermark back")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Result of `StatusWatermarkValve.explain`, printed as a table, first what holds the watermark back."""

    watermark: int  # the output of the valve, MIN_WATERMARK before the first watermark
    status: WatermarkStatus
    channels: tuple[ChannelExplanation, ...]  # in the order of their numbers

    @property
    def holders(self) -> tuple[ChannelExplanation, ...]:
        """The channels that hold the watermark back.

        These are the aligned channels with the lowest watermark, all of which must rise. If no channel is
        aligned, they are all active channels, one of which must catch up. There are none if the watermark has
        reached the end of the input or all channels are idle.
        """
        return tuple(channel for channel in self.channels if channel.holds)

    def __str__(self) -> str:
        lines = [self._headline()]
        shown = sorted(
            self.channels, key=lambda c: (not c.holds, c.status is WatermarkStatus.IDLE, c.watermark)
        )
        width = max((len(channel.label) for channel in shown[:_SHOWN]), default=0)
        lines += [f"  {channel.label:{width}}  {channel}" for channel in shown[:_SHOWN]]
        if len(shown) > _SHOWN:
            lines.append(f"  and {len(shown) - _SHOWN} more")
        return "\n".join(lines)

    __repr__ = __str__

    def _headline(self) -> str:
        if self.watermark == MIN_WATERMARK:
            text = "no watermark yet"
        elif self.watermark == MAX_WATERMARK:
            text = "the watermark has reached the end of the input"
        else:
            text = f"watermark {self.watermark}"
        labels = [channel.label for channel in self.holders]
        if labels:
            more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
            return f"{text}, held back by {', '.join(labels[:_NAMED])}{more}"
        if not self.channels:
            return f"{text}, there are no channels"
        if self.status is WatermarkStatus.IDLE:
            return f"{text}, all channels are idle"
        return text


def combined(inputs: Iterable[tuple[int, bool]]) -> int:
    """Return the watermark of some inputs, given their watermarks and whether they are active.

    It is the lowest of the active inputs or, while all are idle, the highest of all; MIN_WATERMARK for none.
    """
    every = list(inputs)
    active = [watermark for watermark, is_active in every if is_active]
    return min(active) if active else max((watermark for watermark, _ in every), default=MIN_WATERMARK)


class ChannelValve:
    """The watermark of the channels of one input; most methods take many channels together, as arrays.

    The rules are those of `timerheap.flink.StatusWatermarkValve`. Channels have the numbers 0 .. n - 1, and
    no argument is checked. A call costs O(log n) for each channel in it.
    """

    def __init__(self, output: WatermarkOutput | None = None) -> None:
        self.watermark = MIN_WATERMARK
        self.status = WatermarkStatus.ACTIVE
        self._output = output
        self._names: list[Hashable] = []
        self._watermarks = array("q")
        self._active = bytearray()  # 0 or 1
        self._active_count = 0
        self._aligned = KeyTimerHeap()  # (watermark, channel) of the aligned channels
        self._furthest = MIN_WATERMARK  # of all channels

    def __len__(self) -> int:
        return len(self._watermarks)

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return views of the watermarks and the activity of all channels, valid until one is added."""
        return np.frombuffer(self._watermarks, np.int64), np.frombuffer(self._active, bool)

    def restore(
        self, watermark: int, names: Sequence[Hashable], watermarks: np.ndarray, active: np.ndarray
    ) -> None:
        """Continue, as a new valve, with these channels; O(n)."""
        self.watermark = watermark
        self.add_channels(names)
        own, flags = self.columns()
        own[:], flags[:] = watermarks, active
        self._active_count = int(np.count_nonzero(active))
        self._furthest = int(watermarks.max(initial=MIN_WATERMARK))
        (channels,) = np.nonzero(active)
        self._align(channels, watermarks[channels])
        if len(active) and not self._active_count:
            self.status = WatermarkStatus.IDLE

    def add_channels(self, names: Sequence[Hashable]) -> None:
        """Add idle channels without watermarks."""
        self._names += names
        self._watermarks.frombytes(np.full(len(names), MIN_WATERMARK).tobytes())
        self._active += bytes(len(names))

    def activate(self, channels: np.ndarray) -> None:
        """Mark distinct channels as active."""
        watermarks, active = self.columns()
        returning = channels[~active[channels]]
        if not len(returning):
            return
        active[returning] = True
        self._active_count += len(returning)
        self._align(returning, watermarks[returning])
        if self.status is WatermarkStatus.IDLE:
            self.status = WatermarkStatus.ACTIVE
            if self._output is not None:
                self._output.mark_active()

    def deactivate(self, channel: int) -> None:
        """Mark an active channel as idle: one, since the result depends on which of several comes first."""
        self._active[channel] = 0
        self._active_count -= 1
        self._aligned.remove(channel)
        held = self._watermarks[channel] == self.watermark
        if self._active_count:
            if held:
                self._emit_least()
            return
        if held:
            self.emit(self._furthest)
        self.mark_idle()

    def input_watermarks(self, watermarks: np.ndarray, channels: np.ndarray) -> None:
        """Process the watermarks of distinct channels; those that are idle or do not rise are ignored.

        The result is that of one after the other, the lowest watermark first, but only the last watermark is
        emitted. In that order a channel finds the valve at its own watermark at most, or where it was before
        all of them: so it is aligned if it has caught up with the latter.
        """
        own, active = self.columns()
        rises = active[channels] & (watermarks > own[channels])
        if not np.count_nonzero(rises):
            return
        watermarks, channels = watermarks[rises], channels[rises]
        own[channels] = watermarks
        self._furthest = max(self._furthest, int(watermarks.max()))
        self._align(channels, watermarks)
        self._emit_least()

    def emit(self, watermark: int) -> None:
        """Advance the output to a watermark, whatever the channels say; it never falls."""
        if watermark > self.watermark:
            self.watermark = watermark
            if self._output is not None:
                self._output.emit_watermark(watermark)

    def mark_idle(self) -> None:
        """Mark the output as idle; a channel that becomes active ends that."""
        self.status = WatermarkStatus.IDLE
        if self._output is not None:
            self._output.mark_idle()

    def _align(self, channels: np.ndarray, watermarks: np.ndarray) -> None:
        """Let those active channels count that have caught up with the valve."""
        caught_up = watermarks >= self.watermark
        self._aligned.push_many(watermarks[caught_up], channels[caught_up])

    def _emit_least(self) -> None:
        least = self._aligned.peek()
        if least is not None:
            self.emit(least.timestamp)

    def explain(self) -> Explanation:
        """Return the state of every channel, and which ones hold the watermark back; O(n)."""
        columns = list(zip(self._names, self._watermarks, map(bool, self._active), strict=True))
        counting = [mark for _, mark, active in columns if active and mark >= self.watermark]
        if self.watermark == MAX_WATERMARK:
            held_at: set[int] = set()
        elif counting:
            held_at = {min(counting)}
        else:  # the output rises as soon as one of the active channels catches up
            held_at = {mark for _, mark, active in columns if active}
        furthest = max((mark for _, mark, _ in columns if mark < MAX_WATERMARK), default=MIN_WATERMARK)
        channels = (
            ChannelExplanation(
                channel=number,
                name=name,
                watermark=mark,
                status=WatermarkStatus.ACTIVE if active else WatermarkStatus.IDLE,
                aligned=active and mark >= self.watermark,
                behind=None if mark == MIN_WATERMARK else max(furthest - mark, 0),
                holds=active and mark in held_at,
            )
            for number, (name, mark, active) in enumerate(columns)
        )
        return Explanation(self.watermark, self.status, tuple(channels))
