"""The options of `sql` and `sql_script` that are about how a query runs, not what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypedDict

from timerheap.errors import ArgumentTypeError
from timerheap.spark._plan.named_columns import ColumnOrName


class SqlOptions(TypedDict, total=False):
    """What each of them means is said in `sql`."""

    processing_time: str | None
    time_zone: str | None
    channel: ColumnOrName | None
    late: str
    max_parallelism: int | None
    deleted: Mapping[str, str] | None
    lead_within: int | str | timedelta | None
    unbounded_matches: bool
    timed_out: str
    lag_within: int | str | timedelta | None
    changes: Mapping[str, str | Sequence[str] | tuple[str | Sequence[str], str]] | None
    forget_after: int | str | timedelta | None


def expect_options(options: SqlOptions) -> None:
    """Raise for an option that there is not."""
    if unknown := [*options.keys() - SqlOptions.__annotations__]:
        raise ArgumentTypeError(
            f"options must be of {', '.join(SqlOptions.__annotations__)}, got {', '.join(sorted(unknown))}"
        )
