"""Which share of the cases a run has: another one after each commit, so that some commits have all.

The number of a run is that of the commits of HEAD. A checkout without a history, a shallow or an unpacked
one, takes the number of days since 1970. TIMERHEAP_SHARE is a number in place of these, or "all".
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import cache
from pathlib import Path

import pytest

SHARES = 20  # of Flink's traces
TURNS = 10  # of the tests with the marker in_turn; divides SHARES


@cache
def chosen_share() -> int | None:
    """Return the number of this run's share, from 0 to `SHARES`, None for all."""
    chosen = os.environ.get("TIMERHEAP_SHARE", "")
    if chosen == "all":
        return None
    if not chosen:
        return (commits() or time.time_ns() // (86_400 * 10**9)) % SHARES
    if not chosen.isdecimal():
        pytest.fail(f'TIMERHEAP_SHARE must be a number or "all", got {chosen!r}')
    return int(chosen) % SHARES


def commits() -> int:
    """Return the number of commits of HEAD, 0 if that is not known here."""
    git = "git", "-C", str(Path(__file__).parent)
    try:
        ask = {"capture_output": True, "text": True, "check": True}
        shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], **ask).stdout
        counted = subprocess.run([*git, "rev-list", "--count", "--first-parent", "HEAD"], **ask).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(counted) if shallow.strip() == "false" else 0


def waits_for_its_turn(number: int, turns: int = TURNS) -> bool:
    """Return whether a different one of so many runs has the case of this number."""
    assert SHARES % turns == 0
    share = chosen_share()
    return share is not None and (number - share) % turns != 0
