"""Local time compared with zoneinfo and Java's rules, columns at the limits of int64, and errors."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tvf_model import passes_at, to_local

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf import CumulativeSliceAssigner, HoppingSliceAssigner, TumblingSliceAssigner
from timerheap.tvf.slices import SliceAssigner
from timerheap.tvf.zone import TimeZone

DAY = 86_400_000
# Summer time of half an hour and of two hours; zones that abolished it or moved; summer time in winter.
ZONES = (
    *("UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Antarctica/Troll", "Europe/Dublin"),
    *("America/Sao_Paulo", "Asia/Kolkata", "Africa/Casablanca", "Pacific/Apia", "America/St_Johns"),
)
INSTANTS = st.integers(-4_000_000_000_000, 60_000_000_000_000)  # the years 1843 to 3871


@given(zone=st.sampled_from(ZONES), timestamps=st.lists(INSTANTS, min_size=1, max_size=20))
@example(zone="Pacific/Apia", timestamps=[1325239200000 - 1, 1325239200000])  # Apia skipped a day
def test_local_time_equals_zoneinfo_and_converts_back(zone: str, timestamps: list[int]) -> None:
    time_zone = TimeZone(zone)
    local = time_zone.to_local(timestamps)
    assert local.tolist() == [to_local(timestamp, zone) for timestamp in timestamps]
    there_and_back = time_zone.to_local(time_zone.to_epoch(local))
    assert there_and_back.tolist() == local.tolist()
    assert (time_zone.to_epoch(local) <= timestamps).all()


@given(
    zone=st.sampled_from(ZONES),
    near=st.integers(1970, 2090),
    hours=st.integers(0, 366 * 24),
    ms=st.integers(-2, 2),
)
@example(zone="America/New_York", near=2021, hours=24 * 72 + 2, ms=0)
def test_a_local_time_passes_at_its_last_instant(zone: str, near: int, hours: int, ms: int) -> None:
    local = (near - 1970) * 31_556_952_000 // DAY * DAY + hours * 3_600_000 // 2 + ms
    time_zone = TimeZone(zone)
    timer = int(time_zone.passes_at([local])[0])
    assert timer == passes_at(local, zone)
    assert time_zone.passed(timer) >= local > time_zone.passed(timer - 1)


@pytest.mark.parametrize("zone", ZONES)
def test_years_outside_datetime_have_offsets(zone: str) -> None:
    """Check that the calendar repeats after datetime's last year, and that the first offset holds before."""
    time_zone = TimeZone(zone)
    cycle = 146_097 * DAY
    times = np.arange(2_600 - 1970, 2_604 - 1970, 0.01) * 365.2425 * DAY
    base = times.astype(np.int64)
    far = base + 1_000 * cycle
    assert (time_zone.to_local(far) - far).tolist() == (time_zone.to_local(base) - base).tolist()
    assert (time_zone.passes_at(far) - far).tolist() == (time_zone.passes_at(base) - base).tolist()
    assert time_zone.passed(int(far[7])) - int(far[7]) == time_zone.passed(int(base[7])) - int(base[7])
    old = np.array([-(10**17), -(10**15), -6 * 10**12])
    assert len(set((time_zone.to_local(old) - old).tolist())) == 1


@pytest.mark.parametrize(
    ("time_zone", "hours"),
    [("+05:30", 5.5), ("-0800", -8), ("GMT+1", 1), ("UTC-03:30", -3.5), ("Z", 0), ("+18:00", 18)],
)
def test_offsets_in_javas_notation_are_parsed(time_zone: str, hours: float) -> None:
    zone = TimeZone(time_zone)
    assert zone.to_local([0]).tolist() == [hours * 3_600_000]


@pytest.mark.parametrize("time_zone", ["Europe/Atlantis", "+19:00", "", "../etc", "+5:3", "1"])
def test_an_unknown_time_zone_raises(time_zone: str) -> None:
    with pytest.raises(ValueError, match=f"time_zone must be .* got {time_zone!r}".replace("+", r"\+")):
        TumblingSliceAssigner(1, time_zone=time_zone)


def test_a_time_zone_that_is_not_a_str_raises() -> None:
    with pytest.raises(TypeError, match="time_zone must be a str"):
        TimeZone(None)  # type: ignore[arg-type]


ASSIGNERS: list[SliceAssigner] = [
    TumblingSliceAssigner(3_600_000, 5),
    HoppingSliceAssigner(7_200_000, 600_000, -3, "Australia/Lord_Howe"),
    HoppingSliceAssigner(7_200_000, 1_500_000, 7, "America/New_York"),
    CumulativeSliceAssigner(DAY, 3_600_000, 0, "America/New_York"),
]


@pytest.mark.parametrize("assigner", ASSIGNERS, ids=repr)
def test_a_column_has_the_slices_of_its_rows(assigner: SliceAssigner) -> None:
    random = np.random.default_rng(1)
    timestamps = random.integers(1_500_000_000_000, 1_700_000_000_000, 1_000_000)
    ends = assigner.assign_slice_ends(timestamps)
    some = random.integers(0, len(timestamps), 200)
    assert ends[some].tolist() == [
        int(assigner.assign_slice_ends([at])[0]) for at in timestamps[some].tolist()
    ]
    assert ((ends - assigner.offset) % assigner.interval == 0).all()
    local = assigner.zone.to_local(timestamps)
    assert ((ends > local) & (ends - assigner.interval <= local)).all()


@pytest.mark.parametrize("assigner", ASSIGNERS, ids=repr)
@pytest.mark.parametrize("timestamp", [MAX_WATERMARK, MAX_WATERMARK - 1, MIN_WATERMARK, MIN_WATERMARK + 1])
def test_a_timestamp_at_the_limits_of_int64_has_a_slice_or_raises(
    assigner: SliceAssigner, timestamp: int
) -> None:

    with suppress(OverflowError):
        (end,) = assigner.assign_slice_ends([timestamp]).tolist()
        assert end - assigner.interval <= int(assigner.zone.to_local([timestamp])[0]) < end
    assert MIN_WATERMARK <= assigner.last_passed(timestamp) <= MAX_WATERMARK


def test_the_first_and_the_last_watermark_are_the_same_in_every_zone() -> None:
    for zone in ZONES:
        time_zone = TimeZone(zone)
        assert time_zone.passed(MAX_WATERMARK) == MAX_WATERMARK
        assert time_zone.passed(MIN_WATERMARK) < -(2**62)
        assert time_zone.to_local([MAX_WATERMARK]).tolist() == [MAX_WATERMARK]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingSliceAssigner(0), "size must be more than 0 ms, got 0"),
        (
            lambda: TumblingSliceAssigner(timedelta(seconds=-1)),
            "size must be more than 0 ms, got datetime.timedelta",
        ),
        (
            lambda: TumblingSliceAssigner(10, 10),
            r"offset must be less than size \(10 ms\) in either direction, got 10 ms",
        ),
        (lambda: TumblingSliceAssigner(timedelta(microseconds=1)), "size must be a whole number of milli"),
        (lambda: HoppingSliceAssigner(10, 0), "slide must be more than 0 ms, got 0"),
        (
            lambda: HoppingSliceAssigner(5, 10),
            r"slide must be at most size \(5 ms\), got 10 ms: rows",
        ),
        (lambda: CumulativeSliceAssigner(10, 3), "max_size must be a multiple of step .* 9 or 12 ms, got 10"),
        (lambda: CumulativeSliceAssigner(10, 20), "max_size must be a multiple of step .* got 10 ms"),
        (lambda: CumulativeSliceAssigner(0, 5), "max_size must be more than 0 ms, got 0"),
        (lambda: TumblingSliceAssigner(2**62), "size must be at most 2305843009213693951 ms"),
    ],
)
def test_an_invalid_duration_raises(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_argument_of_the_wrong_type_raises() -> None:
    with pytest.raises(TypeError, match="size must be an int of milliseconds or a timedelta, got None"):
        TumblingSliceAssigner(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="slide must be an int of milliseconds or a timedelta, got True"):
        HoppingSliceAssigner(10, True)
    with pytest.raises(OverflowError, match="offset must fit into 64 bits"):
        HoppingSliceAssigner(10, 5, 2**63)
    with pytest.raises(TypeError, match=r"timestamps must be integers \(int64\), got float64"):
        ASSIGNERS[0].assign_slice_ends([1.5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"timestamps must be integers \(int64\), got datetime64"):
        ASSIGNERS[0].assign_slice_ends(np.array(["2021-01-01"], "datetime64[us]"))
    with pytest.raises(ValueError, match="timestamps must be one-dimensional"):
        ASSIGNERS[0].assign_slice_ends(np.zeros((2, 2), np.int64))


def test_a_duration_may_be_a_timedelta() -> None:
    assert repr(
        HoppingSliceAssigner(timedelta(hours=1), timedelta(minutes=10), time_zone="Asia/Kolkata")
    ) == ("HOP(size=3600000 ms, slide=600000 ms, Asia/Kolkata)")
