"""Time zones for columns of timestamps."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.tvf.columns import Int64s, add

_DAY = 86_400_000
_MIN, _MAX = -(2**63), 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The Gregorian calendar, weekdays included, repeats every 400 years, so years outside datetime's range have
# the offsets of years inside it. No zone has transitions before 1800, or irregular ones after 2100.
_CYCLE = 146_097 * _DAY
_FIRST = -5_364_662_400_000  # 1800-01-01
_FOLD = 16_725_225_600_000  # 2500-01-01
_DECADE = 3_650 * _DAY
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d))?(?::?([0-5]\d))?", re.ASCII)


class _Transitions(NamedTuple):
    """The instants at which a zone's offset changes, in a range of time, and the offsets between them."""

    instants: NDArray[np.int64]  # (n,), epoch ms
    offsets: NDArray[np.int64]  # (n + 1,), ms


class TimeZone:
    """Converts between epoch milliseconds and the local time of a time zone.

    Local time is in "local milliseconds": what a wall clock shows, read as if it were UTC. Windows
    follow local time, so that a day begins at local midnight.

    A name is one of IANA ("America/New_York"), or an offset in Java's notation ("+05:30", "GMT-8", "Z").
    The largest int64, the last watermark, is its own local time. Any other result outside int64 raises
    ArgumentRangeError. Flink: ``TimeWindowUtil``.
    """

    def __init__(self, time_zone: str = "UTC") -> None:
        self.name = time_zone
        self._zone = _parse(time_zone)
        self.fixed_offset = (  # ms, if the zone has always had the same
            _milliseconds(self._zone.utcoffset(None)) if isinstance(self._zone, timezone) else None
        )

    def to_local(self, timestamps: Int64s) -> NDArray[np.int64]:
        """Return the local time at these instants, in epoch ms (Flink: ``toUtcTimestampMills``)."""
        instants = np.asarray(timestamps, np.int64)
        if self.fixed_offset is not None:
            return self._shift(instants, self.fixed_offset)
        changes = self._changes(instants)
        return self._shift(instants, changes.offsets[_period_at(changes.instants, _fold(instants))])

    def to_epoch(self, local: Int64s) -> NDArray[np.int64]:
        """Return the instants of these local times (Flink: ``toEpochMills``).

        A local time that exists twice maps to its first instant. A skipped local time maps to an instant as
        far after the transition as the local time is after the start of the gap.
        """
        times = np.asarray(local, np.int64)
        if self.fixed_offset is not None:
            return self._shift(times, -self.fixed_offset)
        changes = self._changes(times)
        before, after = changes.offsets[:-1], changes.offsets[1:]
        first_after = changes.instants + np.maximum(before, after)
        return self._shift(times, -changes.offsets[_period_at(first_after, _fold(times))])

    def passes_at(self, local: Int64s) -> NDArray[np.int64]:
        """Return the instants after which the clock never again shows these local times or earlier ones.

        For a local time that exists twice this is the second instant; for one that is skipped, the first
        instant after the transition.
        """
        times = np.asarray(local, np.int64)
        if self.fixed_offset is not None:
            return self._shift(times, -self.fixed_offset)
        changes = self._changes(times)
        folded = _fold(times)
        last_before = changes.instants + np.minimum(changes.offsets[:-1], changes.offsets[1:])
        current = _period_at(last_before, folded)
        instants = folded - changes.offsets[current]
        reached = changes.instants[np.maximum(current - 1, 0)]
        # Only a skipped local time seems to be before the transition that skips it.
        waiting = np.where(current > 0, np.maximum(reached - instants, 0), 0)
        return add(self._shift(times, -changes.offsets[current]), waiting, "a timer")

    def passed(self, watermark: int) -> int:
        """Return the latest local time that does not occur again after this watermark.

        This is the inverse of `passes_at`: a window that ends at ``end`` (local ms, exclusive) is over when
        ``end - 1 <= passed(watermark)``. O(log t).
        """
        if watermark in (_MIN, _MAX):
            return watermark
        # No row can be assigned to windows this close to the limits, so clamping changes no result.
        watermark = min(max(watermark, 2 * _DAY - _MAX), _MAX - 2 * _DAY)
        if self.fixed_offset is not None:
            return watermark + self.fixed_offset
        folded = int(_fold(np.array([watermark]))[0])
        changes = self._changes(np.array([folded, folded + _DAY]))
        current = int(_period_at(changes.instants, np.array([folded]))[0])
        shown = folded + int(changes.offsets[current])
        if current < len(changes.instants):
            # If clocks are set back next, the repeated local times are not over yet.
            shown = min(shown, int(changes.instants[current] + changes.offsets[current + 1]) - 1)
        return shown + watermark - folded

    def _changes(self, times: NDArray[np.int64]) -> _Transitions:
        """Return the transitions around these times (epoch or local) with a day's margin."""
        if not times.size:
            return _Transitions(np.empty(0, np.int64), np.zeros(1, np.int64))
        folded = _fold(times)
        decades = np.unique(np.array([folded - _DAY, folded + _DAY]) // _DECADE)
        return _joined_decades(self._zone, tuple(decades.tolist()))

    def _shift(self, times: NDArray[np.int64], by: int | NDArray[np.int64]) -> NDArray[np.int64]:
        if isinstance(by, int) and not by:
            return times
        end = times == _MAX
        if not end.any():
            return add(times, by, f"a time shifted to {self.name}")
        return np.where(end, _MAX, add(np.where(end, 0, times), by, f"a time shifted to {self.name}"))


def _parse(time_zone: str) -> tzinfo:
    if not isinstance(time_zone, str):
        raise ArgumentTypeError(
            f"time_zone must be a str such as 'Europe/Berlin' or '+05:30', got {time_zone!r}"
        )
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
        raise ArgumentValueError(
            "time_zone must be the IANA name of a zone, such as 'Europe/Berlin', or an offset of at most "
            f"18 hours, such as '+05:30', got {time_zone!r} (if the system has no zones: pip install tzdata)"
        ) from None


def _fold(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map times (epoch or local) to times with the same offsets in years that datetime supports."""
    folded = np.maximum(times, _FIRST)
    late = folded >= _FOLD
    if late.any():
        folded = np.where(late, _FOLD - _CYCLE + np.mod(folded - _FOLD, _CYCLE), folded)
    return folded


def _period_at(changes: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(changes, times, side="right")


@lru_cache(256)
def _joined_decades(zone: tzinfo, decades: tuple[int, ...]) -> _Transitions:
    """Return the transitions of some decades; each decade starts with one, even if the offset stays."""
    parts = [_decade(zone, decade) for decade in decades]
    instants = np.concatenate([part.instants for part in parts])
    offsets = np.concatenate([part.offsets for part in parts])
    return _Transitions(instants, np.concatenate([offsets[:1], offsets]))


@lru_cache(1024)
def _decade(zone: tzinfo, decade: int) -> _Transitions:
    """Find the transitions of a decade by asking zoneinfo for the offset of every day; takes milliseconds."""
    days = range(decade * _DECADE, (decade + 1) * _DECADE + 1, _DAY)
    offsets = [_offset_at(zone, day) for day in days]
    found = [(days[0], offsets[0])]
    for day, before, after in zip(days, offsets, offsets[1:], strict=False):
        if before != after:
            low, high = day, day + _DAY
            while high - low > 1000:
                middle = (low + high) // 2000 * 1000
                low, high = (middle, high) if _offset_at(zone, middle) == before else (low, middle)
            found.append((high, after))
    columns = np.array(found, np.int64)
    return _Transitions(columns[:, 0], columns[:, 1])


def _offset_at(zone: tzinfo, instant: int) -> int:
    return _milliseconds((_EPOCH + timedelta(milliseconds=instant)).astimezone(zone).utcoffset())


def _milliseconds(offset: timedelta | None) -> int:
    assert offset is not None  # only a naive datetime has none
    return offset // timedelta(milliseconds=1)
