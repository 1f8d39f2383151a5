"""Which channels are behind the others, and which are ahead of the clock: what is wrong with a watermark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

_SLACK = 60_000  # ms by which clocks may differ, and channels of a sound query


def utc_millis(time: datetime) -> int:
    """Return a time as epoch ms."""
    return round(time.timestamp() * 1000)


def judged(channels: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `CheckpointState.watermarks` with times in epoch ms and three more columns.

    ``ahead_ms``: by how much the newest event time was ahead of the clock when the last row came, 0 if it is
    about a minute at most
    ``behind_ms``: how far the watermark is behind the furthest channel that is not ahead of the clock
    ``to_blame``: whether a channel that holds the watermark is what is wrong, if anything is: not if only
    channels that are ahead of the clock are far before it
    """
    found = [
        {name: utc_millis(value) if isinstance(value, datetime) else value for name, value in channel.items()}
        for channel in channels
    ]
    for channel in found:
        newest, last = channel.get("newest"), channel.get("last_row")
        ahead = 0 if newest is None or last is None else newest - last
        channel["ahead_ms"] = ahead if ahead > _SLACK else 0
    some_ahead = any(channel["ahead_ms"] for channel in found)
    marks = [channel.get("watermark") for channel in found if not channel["ahead_ms"]]
    sound = [mark for mark in marks if mark is not None]
    for channel in found:
        mark, behind = channel.get("watermark"), channel.get("behind_ms")
        if some_ahead and sound and mark is not None:
            behind = max(max(sound) - mark, 0)
        channel["behind_ms"] = behind
        well = some_ahead and behind is not None and behind <= _SLACK and not channel["ahead_ms"]
        channel["to_blame"] = channel["holds"] and not well
    return found
