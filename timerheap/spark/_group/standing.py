"""What a key group holds, in a few numbers, so that nobody has to load the group to know them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NOTHING", "Standing"]


class Standing(NamedTuple):
    """What a key group held when it was saved.

    Parameters
    ----------
    event_time_timers, processing_time_timers : int
        Its timers; for windows their ends, by key and slice.
    keys : int
    waiting_rows : int
        Its rows that wait for the watermark.
    next_event_time_timer, next_processing_time_timer : int or None
        When the next of these is due, epoch ms; None if there is none.
    """

    event_time_timers: int = 0
    processing_time_timers: int = 0
    keys: int = 0
    waiting_rows: int = 0
    next_event_time_timer: int | None = None
    next_processing_time_timer: int | None = None


NOTHING = Standing()
"""What an empty group holds."""
