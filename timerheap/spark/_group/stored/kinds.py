"""The kinds of chunks: which part of a key group one is of."""

from __future__ import annotations

# The kinds of chunks; frozen, since checkpoints contain them. User states have USER_STATE and up.
EVENT_TIMERS = 16
PROCESSING_TIMERS = 17
KEYS = 18
ROWS = 20
WATERMARK = 21
EVENT_EXPIRIES = 23
PROCESSING_EXPIRIES = 24
TIMER_NAMES = 25
MANIFEST = 32
USER_STATE = 64
OWN = frozenset([22, *range(40, USER_STATE)])  # of an `OwnPart`; each feature that has one takes a number
