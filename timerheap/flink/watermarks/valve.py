"""One watermark out of the channels of one input."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from timerheap._arguments import int64
from timerheap._native._heap import KeyTimerHeap
from timerheap.flink.watermarks.combine import checked_index
from timerheap.flink.watermarks.explanation import Explanation, explain
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.output import WatermarkOutput, WatermarkStatus

__all__ = ["ChannelState", "StatusWatermarkValve", "ValveState"]


class ChannelState(NamedTuple):
    """What a valve knows of one channel.

    Parameters
    ----------
    name : hashable or None
    watermark : int
        The channel's own, epoch milliseconds; MIN_WATERMARK before its first.
    active : bool
    aligned : bool
        Whether it counts: it is active, and has caught up with the output since it became so.
    """

    name: Hashable
    watermark: int
    active: bool
    aligned: bool


class ValveState(NamedTuple):
    """All that a valve knows, for a checkpoint: `StatusWatermarkValve.state`.

    Parameters
    ----------
    watermark : int
        The last that went out, epoch milliseconds.
    active : bool
        Whether the status that went out last is ACTIVE.
    channels : sequence of ChannelState
        By their numbers.
    """

    watermark: int
    active: bool
    channels: Sequence[ChannelState]


class StatusWatermarkValve:
    """The watermark of one input that has several channels; Flink's class of that name.

    The watermark is the least of those channels that count. An idle channel does not count, and its
    watermarks are ignored until it is active. A channel that becomes active again counts once it has caught
    up with the output; until then it can neither take the output back nor hold it. When the last channel
    goes idle and it was the one that held the watermark, the greatest watermark of all goes out, so that
    nothing waits for rows that nobody promises. The output only rises.

    Parameters
    ----------
    channels : int, default 0
        Number of channels to begin with: 0 .. channels - 1, active, without names.
    output : WatermarkOutput, optional
        Told every new watermark and every change of status, in order.

    Attributes
    ----------
    watermark : int
        The last that went out, epoch milliseconds; MIN_WATERMARK before the first.
    status : WatermarkStatus
        ACTIVE while a channel is.

    Raises
    ------
    TypeError, ValueError
        `channels` is no int, or below 0.

    See Also
    --------
    IndexedCombinedWatermarkStatus : combines the inputs of one operator, by rules of its own.

    Notes
    -----
    O(log n) for a watermark or a status, whatever the number of channels n. What goes out is remembered
    before `output` is called: if that raises, it is not told again.

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
        self._watermarks: list[int] = []
        self._active: list[bool] = []
        self._active_count = 0
        self._aligned = KeyTimerHeap()  # (watermark, channel) of those that count
        self._furthest = MIN_WATERMARK  # of all channels
        for _ in range(channels):
            self.add_channel()

    def __len__(self) -> int:
        return len(self._watermarks)

    def __repr__(self) -> str:
        return f"<StatusWatermarkValve of {len(self)} channels: {self.watermark}, {self.status.name.lower()}>"

    def add_channel(self, name: Hashable = None) -> int:
        """Add a channel that is active and has no watermark yet; give its number, which is the next.

        It begins like one that was idle and has become active: it counts once it has caught up with the
        output, so a channel that turns up late neither takes the watermark back nor stalls it. Before the
        first watermark has gone out it counts at once.

        Parameters
        ----------
        name : hashable, optional
            What `explain` calls it.

        Notes
        -----
        O(log n).
        """
        channel = len(self._watermarks)
        self._names.append(name)
        self._watermarks.append(MIN_WATERMARK)
        self._active.append(False)
        self._activate(channel)
        return channel

    def input_watermark(self, watermark: int, channel: int) -> None:
        """Take a channel's watermark; ignored where the channel is idle, or its own has come further.

        Parameters
        ----------
        watermark : int
            Epoch milliseconds, int64.
        channel : int

        Raises
        ------
        TypeError, IndexError, OverflowError
            An argument is no int, `channel` is no channel, or `watermark` no int64. Nothing has changed.
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
        """Take a channel's status; ignored where it is the channel's already.

        Parameters
        ----------
        status : WatermarkStatus
        channel : int

        Raises
        ------
        TypeError, IndexError
            `status` is no WatermarkStatus, or `channel` is no channel. Nothing has changed.
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
        """Tell who holds the watermark back, and how every channel stands. O(n), and O(n log n) to print."""
        return explain(self.watermark, self.status, self.state().channels)

    def state(self) -> ValveState:
        """Give all that the valve knows but its output. O(n)."""
        columns = zip(self._names, self._watermarks, self._active, strict=True)
        return ValveState(
            self.watermark,
            self.status is WatermarkStatus.ACTIVE,
            [
                ChannelState(name, watermark, active, active and watermark >= self.watermark)
                for name, watermark, active in columns
            ],
        )

    @classmethod
    def restore(cls, state: ValveState, output: WatermarkOutput | None = None) -> StatusWatermarkValve:
        """Make a valve that goes on where the one stood whose `state` this is. O(n log n).

        Nothing goes out to `output` meanwhile.

        Raises
        ------
        TypeError, ValueError, OverflowError
            `state` is no ValveState, a watermark no int64, or no valve can be in this state.
        """
        if not isinstance(state, ValveState):
            raise TypeError(f"state must be a ValveState, got {state!r}")
        valve = cls()
        valve.watermark = int64("watermark", state.watermark)
        for channel, kept in enumerate(state.channels):
            watermark = int64(f"watermark of channel {channel}", kept.watermark)
            valve._names.append(kept.name)
            valve._watermarks.append(watermark)
            valve._active.append(False)
            valve._furthest = max(valve._furthest, watermark)
            if kept.active:
                valve._activate(channel)
        if state.channels and not valve._active_count:
            valve.status = WatermarkStatus.IDLE
        if valve.state() != ValveState(state.watermark, state.active, list(state.channels)):
            raise ValueError(
                "state: no valve can be in it: one is active while a channel is, and a channel is aligned "
                f"where it is active and has come as far as the valve, which is at {state.watermark}"
            )
        valve._output = output
        return valve

    def _activate(self, channel: int) -> None:
        self._active[channel] = True
        self._active_count += 1
        if self._watermarks[channel] >= self.watermark:
            self._aligned.push(self._watermarks[channel], channel)
        if self.status is WatermarkStatus.IDLE:
            self.status = WatermarkStatus.ACTIVE
            if self._output is not None:
                self._output.mark_active()

    def _deactivate(self, channel: int) -> None:
        self._active[channel] = False
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
