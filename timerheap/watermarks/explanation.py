"""Readable explanations of which channels hold a watermark back."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks.output import WatermarkStatus

__all__ = ["ChannelExplanation", "Explanation"]

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


class _Channel(Protocol):
    """The attributes of `timerheap.watermarks.valve.ChannelState`."""

    @property
    def name(self) -> Hashable: ...
    @property
    def watermark(self) -> int: ...
    @property
    def active(self) -> bool: ...
    @property
    def aligned(self) -> bool: ...


def explain(watermark: int, status: WatermarkStatus, channels: Sequence[_Channel]) -> Explanation:
    """Build the explanation of a valve from its output and the states of its channels."""
    counting = [channel.watermark for channel in channels if channel.aligned]
    if watermark == MAX_WATERMARK:
        held_at: set[int] = set()
    elif counting:
        held_at = {min(counting)}
    else:  # the output rises as soon as one of the active channels catches up
        held_at = {channel.watermark for channel in channels if channel.active}
    furthest = max((c.watermark for c in channels if c.watermark < MAX_WATERMARK), default=MIN_WATERMARK)
    return Explanation(
        watermark,
        status,
        tuple(
            ChannelExplanation(
                channel=number,
                name=channel.name,
                watermark=channel.watermark,
                status=WatermarkStatus.ACTIVE if channel.active else WatermarkStatus.IDLE,
                aligned=channel.aligned,
                behind=None if channel.watermark == MIN_WATERMARK else max(furthest - channel.watermark, 0),
                holds=channel.active and channel.watermark in held_at,
            )
            for number, channel in enumerate(channels)
        ),
    )


def _duration(ms: int) -> str:
    """Format a duration of a second or more as hours, minutes and seconds."""
    try:
        return f"{ms} ms" if ms < 1_000 else str(timedelta(seconds=ms // 1_000))
    except OverflowError:
        return f"{ms} ms"
