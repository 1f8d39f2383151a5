"""The watermark of an input with many channels, or of an operator's inputs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from timerheap._arguments import instance, int64
from timerheap.errors import ArgumentValueError
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.output import WatermarkOutput, WatermarkStatus
from timerheap.watermarks.valve import ChannelValve, Explanation, combined


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

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If `channels` is not an int of 0 or more.

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
            raise ArgumentValueError(f"channels must be 0 or more, got {channels}")
        self._channels = ChannelValve(output)
        for _ in range(channels):
            self.add_channel()

    def __len__(self) -> int:
        return len(self._channels)

    def __repr__(self) -> str:
        return f"<StatusWatermarkValve of {len(self)} channels: {self.watermark}, {self.status.name.lower()}>"

    @property
    def watermark(self) -> int:
        """The last emitted watermark, epoch milliseconds; MIN_WATERMARK before the first."""
        return self._channels.watermark

    @property
    def status(self) -> WatermarkStatus:
        """ACTIVE while at least one channel is active."""
        return self._channels.status

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
        channel = len(self)
        self._channels.add_channels([name])
        self._channels.activate(np.array([channel]))
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
        ArgumentTypeError, IndexError, ArgumentRangeError
            If an argument is not an int, there is no such channel, or `watermark` does not fit int64. Nothing
            changes then.
        """
        channel, watermark = self._checked(channel), int64("watermark", watermark)
        self._channels.input_watermarks(np.array([watermark]), np.array([channel]))

    def input_watermark_status(self, status: WatermarkStatus, channel: int) -> None:
        """Set the status of a channel.

        Raises
        ------
        ArgumentTypeError, IndexError
            If `status` is not a WatermarkStatus, or there is no such channel. Nothing changes then.
        """
        channel, status = self._checked(channel), instance("status", status, WatermarkStatus)
        _, active = self._channels.columns()
        if status is WatermarkStatus.ACTIVE:
            self._channels.activate(np.array([channel]))
        elif active[channel]:
            self._channels.deactivate(channel)

    def explain(self) -> Explanation:
        """Return the state of every channel, and which ones hold the watermark back; O(n)."""
        return self._channels.explain()

    def _checked(self, channel: int) -> int:
        channel = int64("channel", channel)
        if not 0 <= channel < len(self):
            raise IndexError(f"channel must be 0 or more and below {len(self)}, got {channel}")
        return channel


class CombinedWatermarkStatus:
    """The combined watermark of some inputs (Flink's ``CombinedWatermarkStatus``).

    It is the minimum of the watermarks of the active inputs or, while all are idle, the maximum of all
    watermarks, and never decreases. An input is any object of the caller's.
    """

    def __init__(self, inputs: Iterable[Hashable] = ()) -> None:
        self.combined_watermark = MIN_WATERMARK
        self.is_idle = False  # whether all inputs were idle at the last `update_combined_watermark`
        self._watermarks = dict.fromkeys(inputs, MIN_WATERMARK)
        self._idle: set[Hashable] = set()

    def set_watermark(self, partial: Hashable, watermark: int) -> bool:
        """Set the watermark of an input and make the input active; return whether the watermark rises."""
        before = self._watermarks[partial]
        self._watermarks[partial] = max(before, watermark)
        self._idle.discard(partial)
        return watermark > before

    def set_idle(self, partial: Hashable, idle: bool) -> None:
        """Set the status of an input."""
        (self._idle.add if idle else self._idle.discard)(partial)

    def update_combined_watermark(self) -> bool:
        """Combine the watermarks of the inputs; return whether the result rises and must be emitted."""
        if not self._watermarks:
            return False
        self.is_idle = self._idle.issuperset(self._watermarks)
        watermark = combined((mark, each not in self._idle) for each, mark in self._watermarks.items())
        if watermark <= self.combined_watermark:
            return False
        self.combined_watermark = watermark
        return True
