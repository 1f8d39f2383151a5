"""What an argument `late` says of results that late rows correct."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from timerheap._arguments import Length, instance, not_negative
from timerheap.errors import ArgumentValueError


@dataclass(frozen=True)
class Corrections:
    """What becomes of late rows: they correct results, for some time.

    Passed as ``late`` to `tumble`, `hop`, `cumulate`, `session` and `join_asof`, whose result is then a
    changelog: it has the column ``_change_type``.

    Parameters
    ----------
    allowed_lateness : int, timedelta or str
        How far behind the watermark results are corrected, in ms: those of windows after their ends, those of
        an as-of join after the times of their left rows. What that needs is kept in state for so long. It may
        be 0, for `early` results that are final in time.
    early : bool, default False
        Whether results come before the watermark allows the final ones: in each micro-batch, with the rows so
        far. They are corrected, too.
    later : {"drop", "emit"}, default "drop"
        What becomes of rows that are too late for corrections. With "emit" `timerheap.spark.late_rows`
        returns them.

    Examples
    --------
    ::

        timerheap.spark.tumble(
            readings, "at", "1 minute", watermark="5 seconds", late=Corrections("1 hour", early=True))
    """

    allowed_lateness: Length
    _: KW_ONLY
    early: bool = False
    later: str = "drop"


def lateness_of(late: Any) -> tuple[int | None, bool, Any]:
    """Return what an argument `late` says.

    The allowed lateness in ms, None if no result is corrected; whether there are early results; and what
    becomes of rows that are late, or too late.
    """
    if not isinstance(late, Corrections):
        return None, False, late
    lateness = not_negative("late.allowed_lateness", late.allowed_lateness)
    instance("late.early", late.early, bool)
    if late.later not in ("drop", "emit"):
        raise ArgumentValueError(f'late.later must be "drop" or "emit", got {late.later!r}')
    return lateness, late.early, late.later
