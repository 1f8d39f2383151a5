"""Watermark strategies, against Flink's rule: the largest timestamp - delay - 1, and never back."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap import MAX_WATERMARK, MIN_WATERMARK, Duration, WatermarkStrategy

TIMES = st.lists(st.integers(MIN_WATERMARK, MAX_WATERMARK), min_size=1)


def watermarks(strategy, maxima):
    generator = strategy.create_watermark_generator()
    return [generator.on_batch(maximum, 1, None) for maximum in maxima]


@given(maxima=TIMES, delay=st.integers(0, MAX_WATERMARK))
def test_bounded_out_of_orderness(maxima, delay):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay)
    largest = [max(maxima[: n + 1]) for n in range(len(maxima))]
    assert watermarks(strategy, maxima) == [max(at - delay - 1, MIN_WATERMARK) for at in largest]


@given(maxima=TIMES)
def test_monotonous_and_none(maxima):
    monotonous = WatermarkStrategy.for_monotonous_timestamps()
    assert watermarks(monotonous, maxima) == watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(0), maxima
    )
    assert set(watermarks(WatermarkStrategy.no_watermarks(), maxima)) == {MIN_WATERMARK}


def test_every_generator_is_its_own():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    assert watermarks(strategy, [100]) == [99]
    assert watermarks(strategy, [7]) == [6]


@pytest.mark.parametrize(
    "duration",
    [5_000, datetime.timedelta(seconds=5), Duration.of_seconds(5), Duration.of_millis(5_000)],
)
def test_durations(duration):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(duration)
    assert watermarks(strategy, [60_000]) == [54_999]


def test_duration_factories():
    assert Duration.of_days(1) == Duration.of_hours(24) == Duration.of_minutes(24 * 60)


@pytest.mark.parametrize(
    ("duration", "error"),
    [(-1, ValueError), (2**63, ValueError), (5.0, TypeError), ("5 seconds", TypeError), (True, TypeError),
     (datetime.timedelta(microseconds=5), ValueError), (datetime.timedelta(-1), ValueError)],
)  # fmt: skip
def test_what_is_no_duration(duration, error):
    with pytest.raises(error, match=r"max_out_of_orderness: .*(duration|milliseconds|0 or more)"):
        WatermarkStrategy.for_bounded_out_of_orderness(duration)
