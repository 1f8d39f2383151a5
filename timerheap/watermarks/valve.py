"""The valve of an input with many channels, and explanations of what holds its watermark back."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from timerheap._arguments import int64
from timerheap._native._core import KeyTimerHeap
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks.combine import checked_index
from timerheap.watermarks.output import WatermarkOutput, WatermarkStatus

_SHOWN = 20  # number of channels in the printed table
_NAMED = 3  # number of channels in its first line


@dataclass(frozen=True, slots=True)
class ChannelExplanation:
    """The state of one channel of a valve, with its distance from the other channels.

    Parameters
    ----------
    channel : int
    name : hashable or None
    watermark : int
        The watermark of the channel, epoch milliseconds; MIN_WATERMARK before its first.
    status : WatermarkStatus
    aligned : bool
        Whether the channel is active and has caught up with the output since it became active.
    behind : int or None
        Milliseconds behind the furthest channel that has not ended; None before the first watermark.
    holds : bool
        Whether the output cannot rise before the watermark of this channel does.
    """

    channel: int
    name: Hashable
    watermark: int
    status: WatermarkStatus
    aligned: bool
    behind: int | None
    holds: bool

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
            parts.append(f"{_duration(self.behind)} behind")
        if self.status is WatermarkStatus.IDLE:
            parts.append("idle")
        elif not self.aligned:
            parts.append("has yet to catch up")
        if self.holds:
            parts.append("holds the watermark back")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Result of `StatusWatermarkValve.explain`.

    It prints as a table that starts with the channels that hold the watermark back.

    Parameters
    ----------
    watermark : int
        The output of the valve, epoch milliseconds; MIN_WATERMARK before the first watermark.
    status : WatermarkStatus
        The status of the valve.
    channels : tuple of ChannelExplanation
        All channels, in the order of their numbers.
    """

    watermark: int
    status: WatermarkStatus
    channels: tuple[ChannelExplanation, ...]

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


def _duration(ms: int) -> str:
    """Format a duration of a second or more as hours, minutes and seconds."""
    try:
        return f"{ms} ms" if ms < 1_000 else str(timedelta(seconds=ms // 1_000))
    except OverflowError:
        return f"{ms} ms"


class StatusWatermarkValve:
    """Combines the watermarks of the channels of one input (Flink's ``StatusWatermarkValve``).

    The watermark of the valve never decreases. It is the minimum of the watermarks of the aligned channels. A
    channel is aligned while it is active and has caught up with the valve. The watermarks of an idle channel
    are ignored. A channel that becomes active again neither lowers the watermark nor holds it back until it
    has caught up. When the last active channel becomes idle and it held the watermark back, the valve emits
    the maximum watermark of all channels, so that downstream operators do not wait for rows that may never
    arrive.

    Parameters
    ----------
    channels : int, default 0
        Initial number of channels: 0 .. channels - 1, active and without names.
    output : WatermarkOutput, optional
        Receives every new watermark and every change of status, in order.

    Attributes
    ----------
    watermark : int
        The last emitted watermark, epoch milliseconds; MIN_WATERMARK before the first.
    status : WatermarkStatus
        ACTIVE while at least one channel is active.

    Raises
    ------
    TypeError, ValueError
        If `channels` is not an int of 0 or more.

    See Also
    --------
    IndexedCombinedWatermarkStatus : combines the inputs of one operator, by different rules.

    Notes
    -----
    A watermark or a status costs O(log n) with n channels. The valve records a watermark or a status before
    it calls `output`; if `output` raises, the call is not repeated.

    Examples
    --------
    >>> valve = StatusWatermarkValve()
    >>> jfk, lga = valve.add_channel("JFK"), valve.add_channel("LGA")
    >>> valve.input_watermark(50_000, jfk)
    >>> valve.input_watermark(30_000, lga)
    >>> valve.watermark
    30000
    >>> print(valve.explain())
    watermark 30000, held back by LGA
      LGA  at 30000, 0:00:20 behind, holds the watermark back
      JFK  at 50000
    >>> valve.input_watermark_status(WatermarkStatus.IDLE, lga)
    >>> valve.watermark
    50000
    """

    def __init__(self, channels: int = 0, output: WatermarkOutput | None = None) -> None:
        if int64("channels", channels) < 0:
            raise ValueError(f"channels must be 0 or more, got {channels}")
        self.watermark = MIN_WATERMARK
        self.status = WatermarkStatus.ACTIVE
        self._output = output
        self._names: list[Hashable] = []
        self._watermarks = array("q")
        self._active = bytearray()  # 0 or 1
        self._active_count = 0
        self._aligned = KeyTimerHeap()  # (watermark, channel) of the aligned channels
        self._furthest = MIN_WATERMARK  # of all channels
        for _ in range(channels):
            self.add_channel()

    def __len__(self) -> int:
        return len(self._watermarks)

    def __repr__(self) -> str:
        return f"<StatusWatermarkValve of {len(self)} channels: {self.watermark}, {self.status.name.lower()}>"

    def add_channel(self, name: Hashable = None) -> int:
        """Add an active channel without a watermark and return its number, the next one.

        Like a channel that was idle, a new channel neither lowers the watermark nor holds it back until it
        has caught up with the valve. Before the valve has emitted a watermark, it is aligned immediately.

        Parameters
        ----------
        name : hashable, optional
            The name of the channel in `explain`.

        Notes
        -----
        O(log n).
        """
        channel = len(self._watermarks)
        self._names.append(name)
        self._watermarks.append(MIN_WATERMARK)
        self._active.append(0)
        self._activate(channel)
        return channel

    def input_watermark(self, watermark: int, channel: int) -> None:
        """Process a watermark of a channel; ignore it if the channel is idle or its watermark does not rise.

        Parameters
        ----------
        watermark : int
            Epoch milliseconds, int64.
        channel : int

        Raises
        ------
        TypeError, IndexError, OverflowError
            If an argument is not an int, there is no such channel, or `watermark` does not fit int64. Nothing
            changes then.
        """
        channel, watermark = checked_index("channel", channel, len(self)), int64("watermark", watermark)
        if not self._active[channel] or watermark <= self._watermarks[channel]:
            return
        self._watermarks[channel] = watermark
        self._furthest = max(self._furthest, watermark)
        if watermark >= self.watermark:
            self._aligned.push(watermark, channel)
        self._emit_least()

    def input_watermark_status(self, status: WatermarkStatus, channel: int) -> None:
        """Set the status of a channel.

        Parameters
        ----------
        status : WatermarkStatus
        channel : int

        Raises
        ------
        TypeError, IndexError
            If `status` is not a WatermarkStatus, or there is no such channel. Nothing changes then.
        """
        channel = checked_index("channel", channel, len(self))
        if not isinstance(status, WatermarkStatus):
            raise TypeError(f"status must be a WatermarkStatus, got {status!r}")
        active = status is WatermarkStatus.ACTIVE
        if active == self._active[channel]:
            return
        if active:
            self._activate(channel)
        else:
            self._deactivate(channel)

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

    # What follows does for many channels together, on arrays, what the methods above do for one.

    @classmethod
    def _of_columns(
        cls, watermark: int, names: Sequence[Hashable], watermarks: np.ndarray, active: np.ndarray
    ) -> StatusWatermarkValve:
        """Return a valve that continues with these channels; O(n)."""
        valve = cls()
        valve.watermark = watermark
        valve._names = list(names)
        valve._watermarks.frombytes(np.ascontiguousarray(watermarks, np.int64).tobytes())
        valve._active += np.ascontiguousarray(active, bool).tobytes()
        valve._active_count = int(np.count_nonzero(active))
        valve._furthest = int(watermarks.max(initial=MIN_WATERMARK))
        valve._align(np.flatnonzero(active & (watermarks >= watermark)))
        if len(active) and not valve._active_count:
            valve.status = WatermarkStatus.IDLE
        return valve

    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return views of the watermarks and the activity of all channels, valid until one is added."""
        return np.frombuffer(self._watermarks, np.int64), np.frombuffer(self._active, bool)

    def _add_channels(self, names: Sequence[Hashable]) -> None:
        """Add idle channels."""
        self._names += names
        self._watermarks.frombytes(np.full(len(names), MIN_WATERMARK).tobytes())
        self._active += bytes(len(names))

    def _activate_many(self, channels: np.ndarray) -> None:
        """Mark distinct channels as active."""
        watermarks, active = self._columns()
        returning = channels[~active[channels]]
        active[returning] = True
        self._active_count += len(returning)
        self._align(returning[watermarks[returning] >= self.watermark])
        if len(returning):
            self._mark_active()

    def _input_watermarks(self, watermarks: np.ndarray, channels: np.ndarray) -> None:
        """Process the watermarks of distinct channels.

        The result is that of `input_watermark` for one after the other, the lowest watermark first, but only
        the last watermark is emitted. In that order a channel finds the valve at its own watermark at most,
        or where it was before all of them: so it is aligned if it has caught up with the latter.
        """
        own, active = self._columns()
        rises = active[channels] & (watermarks > own[channels])
        if not rises.any():
            return
        watermarks, channels = watermarks[rises], channels[rises]
        own[channels] = watermarks
        self._furthest = max(self._furthest, int(watermarks.max()))
        self._align(channels[watermarks >= self.watermark])
        self._emit_least()

    def _align(self, channels: np.ndarray) -> None:
        watermarks, _ = self._columns()
        self._aligned.push_many(watermarks[channels], channels)

    def _activate(self, channel: int) -> None:
        self._active[channel] = 1
        self._active_count += 1
        if self._watermarks[channel] >= self.watermark:
            self._aligned.push(self._watermarks[channel], channel)
        self._mark_active()

    def _mark_active(self) -> None:
        if self.status is WatermarkStatus.IDLE:
            self.status = WatermarkStatus.ACTIVE
            if self._output is not None:
                self._output.mark_active()

    def _deactivate(self, channel: int) -> None:
        self._active[channel] = 0
        self._active_count -= 1
        self._aligned.remove(channel)
        held = self._watermarks[channel] == self.watermark
        if self._active_count:
            if held:
                self._emit_least()
            return
        if held:
            self._emit(self._furthest)
        self.status = WatermarkStatus.IDLE
        if self._output is not None:
            self._output.mark_idle()

    def _emit_least(self) -> None:
        least = self._aligned.peek()
        if least is not None:
            self._emit(least.timestamp)

    def _emit(self, watermark: int) -> None:
        if watermark > self.watermark:
            self.watermark = watermark
            if self._output is not None:
                self._output.emit_watermark(watermark)
