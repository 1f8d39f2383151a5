"""What the driver's log tells of late rows that were dropped.

It names one of them, the latest, and counts them by channel, so that a reader sees whether a delay was too
short, a source lags behind the others, or its times are wrong.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow.compute as pc

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import HIDDEN, TIME, shown_name
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.timer import shown_duration, shown_time

_LONGEST = 60  # characters of a value in a message
_MOST = 100  # channels in the message of a task
_SECONDS = (
    "are these seconds? Event times are epoch milliseconds, or timestamps: multiply by 1000, or use "
    "timestamp_seconds()"
)
_YEAR = 365 * 86_400_000  # ms


class DroppedRows:
    """What a task tells of the late rows that it has dropped.

    column, advice: the event-time column and what to do for users, if not those of the query
    """

    def __init__(self, query: Query, column: str | None = None, advice: str | None = None) -> None:
        self._query = query
        if column is None and query.event_time not in (None, TIME):
            column = shown_name(str(query.event_time))
        self._column, self._advice = column, advice or _advice(query)
        self._forget()

    def _forget(self) -> None:
        self._count = 0
        self._channels: Counter[str] = Counter()
        self._late_by = -1  # of the example, in ms
        self._example = ""
        self._is_1970 = False

    def add(
        self,
        group: KeyGroup,
        rows: KeyedRows,
        late_by: np.ndarray,
        times: np.ndarray,
        *,
        count: int | None = None,
        before: bool = False,
    ) -> None:
        """Add late rows of a key group, by how many ms each is late, and their times in epoch ms.

        count: the number of rows if it is larger, since they have been aggregated
        before: whether the rows came before these times, and not at them
        """
        self._count += len(rows) if count is None else count
        if (channels := self._channels_of(rows)) is not None:
            for pair in pc.value_counts(channels.cast("string")).to_pylist():
                self._channels[str(pair["values"])] += pair["counts"]
        latest = int(late_by.argmax())
        if late_by[latest] > self._late_by:
            self._late_by, time = int(late_by[latest]), int(times[latest])
            self._is_1970 = 0 <= time < _YEAR
            when = f"{'before' if before else 'at'} {shown_time(time)}"
            late = f"late by {shown_duration(self._late_by)}"
            self._example = ", ".join([*self._key(group, rows.slice(latest, latest + 1)), when, late])

    def _channels_of(self, rows: KeyedRows) -> Any:
        if rows.channels is not None:
            return rows.channels
        channels, names = self._query.channels, rows.rows.schema.names
        known = len(channels) == 1 and channels[0] in names
        return rows.rows.column(channels[0]) if known else None

    def _key(self, group: KeyGroup, row: KeyedRows) -> list[str]:
        """Return the key of a row as text, by column."""
        query, found = self._query, row.rows
        if not set(query.key) <= set(found.schema.names):  # it has waited, and its id is known
            found = group.keys.keys(row.ids)
        values = [found.column(name)[0].as_py() for name in query.key]
        names = (*query.key_columns, *query.key[len(query.key_columns) :])
        pairs = zip(names, values, strict=True)
        return [f"{name}={_short_text(value)}" for name, value in pairs if not name.startswith(HIDDEN)]

    def tell(self, mail: Mail, watermark: int) -> None:
        """Tell the driver of the rows since the last call, which were behind the watermark."""
        if not self._count:
            return
        column = "" if self._column is None else f" of column {self._column!r}"
        advice = self._advice
        if self._is_1970:  # where the watermark is, too, all times may be in seconds, or made up
            advice = f"{_SECONDS}; if not, {advice}" if 0 <= watermark < _YEAR else _SECONDS
        mail.tally(
            "late rows",
            f"dropped {{}} rows so far that came behind the watermark{column}, which is at "
            f"{shown_time(watermark)}, such as {self._example}; {advice}",
            self._count,
            weight=self._late_by,
            parts=tuple(self._channels.most_common(_MOST)),
        )
        self._forget()


def _advice(query: Query) -> str:
    channel = "each source a watermark of its own (EventTime(channel=...)), or "
    more = "" if any(channel is not None for channel in query.channels) else channel
    return f'give the watermark more delay, or {more}have such rows returned (late="emit")'


def _short_text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
