"""Local time by the column: epoch milliseconds to the wall clock of a time zone, and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from timerheap.tvf.arithmetic import Int64s, add

__all__ = ["LocalClock"]

_HOUR = 3_600_000
_DAY = 24 * _HOUR
_MIN, _MAX = -(2**63), 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The Gregorian calendar, weekdays included, repeats after 400 years: the offsets of years that datetime does
# not have are those of years that it has. No zone has a table before 1800, or one that goes on after 2100.
_CYCLE = 146_097 * _DAY
_FIRST = -5_364_662_400_000  # 1800-01-01
_FOLD = 16_725_225_600_000  # 2500-01-01
_DECADE = 3_650 * _DAY
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d))?(?::?([0-5]\d))?", re.ASCII)


class _Transitions(NamedTuple):
    """The moments at which a zone's offset changes, in some stretch of time, and the offsets around them."""

    instants: NDArray[np.int64]  # (n,), epoch ms
    offsets: NDArray[np.int64]  # (n + 1,), ms


class LocalClock:
    """The wall clock of a time zone, in "local milliseconds": what it shows, read as if it were UTC.

    Windows are cut on this clock, so that a day begins at midnight whatever the zone does.

    Parameters
    ----------
    time_zone : str
        An IANA name ("America/New_York"), or an offset as Java writes it ("+05:30", "GMT-8", "Z").

    Attributes
    ----------
    time_zone : str
    uses_dst : bool
        Whether the zone goes on changing its clocks, as ``java.util.TimeZone.useDaylightTime`` has it.

    Raises
    ------
    TypeError, ValueError
        If `time_zone` is no string, or names no zone.

    Notes
    -----
    Flink: ``TimeWindowUtil``. A column costs one search in the zone's transitions, O(n log t), nothing in
    UTC. The largest int64, the last watermark, is its own local time. Anything else that leaves int64 is an
    OverflowError.

    Examples
    --------
    The night of 14 March 2021 in New York has no half past two; that of 7 November has two half past ones.

    >>> clock = LocalClock("America/New_York")
    >>> clock.to_local([1615705200000 - 1, 1615705200000]) % 86_400_000 / 3_600_000
    array([1.99999972, 3.        ])
    >>> half_past_one = 1636248600000
    >>> clock.to_local([half_past_one + 4 * 3_600_000, half_past_one + 5 * 3_600_000]) - half_past_one
    array([0, 0])
    >>> (clock.to_epoch([half_past_one]) - half_past_one) / 3_600_000
    array([4.])
    """

    def __init__(self, time_zone: str = "UTC") -> None:
        self.time_zone = time_zone
        self._zone = _zone(time_zone)
        # In ms, where it is one offset for all times.
        self._offset = _milliseconds(self._zone.utcoffset(None)) if isinstance(self._zone, timezone) else None
        year = [datetime(2100, month, 15, tzinfo=self._zone).utcoffset() for month in range(1, 13)]
        self.uses_dst = len(set(year)) > 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalClock) and other.time_zone == self.time_zone

    def __hash__(self) -> int:
        return hash(self.time_zone)

    def __repr__(self) -> str:
        return f"LocalClock({self.time_zone!r})"

    def to_local(self, timestamps: Int64s) -> NDArray[np.int64]:
        """What the clock shows at these instants (Flink: ``toUtcTimestampMills``).

        Parameters
        ----------
        timestamps : array_like of int64, shape (n,)
            Epoch ms.

        Returns
        -------
        ndarray of int64, shape (n,)
            Local ms.
        """
        instants = np.asarray(timestamps, np.int64)
        if self._offset is not None:
            return self._shift(instants, self._offset)
        changes = self._changes(instants)
        return self._shift(instants, changes.offsets[_index(changes.instants, _fold(instants))])

    def to_epoch(self, local: Int64s) -> NDArray[np.int64]:
        """The instants at which the clock shows this (Flink: ``toEpochMills``).

        Of a time that comes twice, the first; a time that is left out is as far behind the change as it is
        ahead of it on the clock.
        """
        times = np.asarray(local, np.int64)
        if self._offset is not None:
            return self._shift(times, -self._offset)
        changes = self._changes(times)
        before, after = changes.offsets[:-1], changes.offsets[1:]
        first_after = changes.instants + np.maximum(before, after)
        return self._shift(times, -changes.offsets[_index(first_after, _fold(times))])

    def to_epoch_for_timer(self, local: Int64s) -> NDArray[np.int64]:
        """The instants at which Flink has a timer for this local time fire (``toEpochMillsForTimer``).

        As `passes_at` where clocks change by an hour on the hour, and as `to_epoch` in
        zones that no longer change them. The operators here ask `passes_at`.
        """
        times = np.asarray(local, np.int64)
        epoch = self.to_epoch(times)
        if not self.uses_dst:
            return epoch
        real = times <= _MAX - 2 * _DAY
        later = self.to_epoch(np.where(real, times, 0) + _HOUR)
        left_out = real & (later == epoch)
        twice = real & (later - epoch > _HOUR)
        return np.where(left_out, epoch - np.fmod(epoch, _HOUR), np.where(twice, epoch + _HOUR, epoch))

    def passes_at(self, local: Int64s) -> NDArray[np.int64]:
        """The instants from which the clock will not show this time, or an earlier one, again.

        Of a time that comes twice that is the second, and for one that is left out the first instant after.
        """
        times = np.asarray(local, np.int64)
        if self._offset is not None:
            return self._shift(times, -self._offset)
        changes = self._changes(times)
        folded = _fold(times)
        last_before = changes.instants + np.minimum(changes.offsets[:-1], changes.offsets[1:])
        current = _index(last_before, folded)
        instants = folded - changes.offsets[current]
        reached = changes.instants[np.maximum(current - 1, 0)]
        # Only a time that is left out seems to come before the change that leaves it out.
        waiting = np.where(current > 0, np.maximum(reached - instants, 0), 0)
        return add(self._shift(times, -changes.offsets[current]), waiting, "a timer")

    def passed(self, watermark: int) -> int:
        """The local time up to which, at this watermark, the clock has shown everything for good.

        The inverse of `passes_at`: a window that ends at ``end`` (local ms, exclusive) is over when
        ``end - 1 <= passed(watermark)``. O(log t).

        Examples
        --------
        Half past one in New York on 7 November 2021 is over when the clock has shown it twice.

        >>> clock, half_past_one = LocalClock("America/New_York"), 1636248600000
        >>> (clock.passed(half_past_one + 4 * 3_600_000) - half_past_one + 1) / 3_600_000
        -0.5
        >>> (clock.passed(half_past_one + 5 * 3_600_000) - half_past_one) / 3_600_000
        0.0
        """
        if watermark in (_MIN, _MAX):
            return watermark
        # Nothing can be assigned to windows so far out, so the watermark may as well stand short of there.
        watermark = min(max(watermark, 2 * _DAY - _MAX), _MAX - 2 * _DAY)
        if self._offset is not None:
            return watermark + self._offset
        folded = int(_fold(np.array([watermark]))[0])
        changes = self._changes(np.array([folded, folded + _DAY]))
        current = int(_index(changes.instants, np.array([folded]))[0])
        shown = folded + int(changes.offsets[current])
        if current < len(changes.instants):
            # If the clock is set back next, all from there on is yet to be shown for the last time.
            shown = min(shown, int(changes.instants[current] + changes.offsets[current + 1]) - 1)
        return shown + watermark - folded

    def _changes(self, times: NDArray[np.int64]) -> _Transitions:
        """The transitions around these times, instants or local, which may be a day off."""
        if not times.size:
            return _Transitions(np.empty(0, np.int64), np.zeros(1, np.int64))
        folded = _fold(times)
        decades = np.unique(np.array([folded - _DAY, folded + _DAY]) // _DECADE)
        return _join(self._zone, tuple(decades.tolist()))

    def _shift(self, times: NDArray[np.int64], by: int | NDArray[np.int64]) -> NDArray[np.int64]:
        end = times == _MAX
        if not end.any():
            return add(times, by, f"a time shifted to {self.time_zone}")
        return np.where(end, _MAX, add(np.where(end, 0, times), by, f"a time shifted to {self.time_zone}"))


def _zone(time_zone: str) -> tzinfo:
    if not isinstance(time_zone, str):
        raise TypeError(f"time_zone must be a str such as 'Europe/Berlin' or '+05:30', got {time_zone!r}")
    if time_zone in {"UTC", "Z", "GMT", "UT"}:
        return UTC
    if match := _OFFSET.fullmatch(time_zone):
        sign, *parts = match.groups()
        hours, minutes, seconds = (int(part or 0) for part in parts)
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if offset <= timedelta(hours=18):
            return timezone(-offset if sign == "-" else offset)
    try:
        return ZoneInfo(time_zone)
    except (ValueError, OSError, KeyError):
        raise ValueError(
            "time_zone must be the IANA name of a zone, such as 'Europe/Berlin', or an offset of at most "
            f"18 hours, such as '+05:30', got {time_zone!r} (on a machine without zones: pip install tzdata)"
        ) from None


def _fold(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give times, instants or local, with the same offsets, of years that datetime has."""
    folded = np.maximum(times, _FIRST)
    late = folded >= _FOLD
    if late.any():
        folded = np.where(late, _FOLD - _CYCLE + np.mod(folded - _FOLD, _CYCLE), folded)
    return folded


def _index(changes: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(changes, times, side="right")


@lru_cache(256)
def _join(zone: tzinfo, decades: tuple[int, ...]) -> _Transitions:
    """The transitions of some decades; a decade begins with one, if need be from an offset to itself."""
    parts = [_decade(zone, decade) for decade in decades]
    instants = np.concatenate([part.instants for part in parts])
    offsets = np.concatenate([part.offsets for part in parts])
    return _Transitions(instants, np.concatenate([offsets[:1], offsets]))


@lru_cache(1024)
def _decade(zone: tzinfo, decade: int) -> _Transitions:
    """Ask zoneinfo for every day's offset, and for the second of each change: some milliseconds."""
    days = range(decade * _DECADE, (decade + 1) * _DECADE + 1, _DAY)
    offsets = [_offset(zone, day) for day in days]
    found = [(days[0], offsets[0])]
    for day, before, after in zip(days, offsets, offsets[1:], strict=False):
        if before != after:
            low, high = day, day + _DAY
            while high - low > 1000:
                middle = (low + high) // 2000 * 1000
                low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
            found.append((high, after))
    columns = np.array(found, np.int64)
    return _Transitions(columns[:, 0], columns[:, 1])


def _offset(zone: tzinfo, instant: int) -> int:
    return _milliseconds((_EPOCH + timedelta(milliseconds=instant)).astimezone(zone).utcoffset())


def _milliseconds(offset: timedelta | None) -> int:
    assert offset is not None  # only a naive datetime has none
    return offset // timedelta(milliseconds=1)
