"""Watermark strategies compared with Flink's rule: the largest timestamp - delay - 1, never decreasing."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap import MAX_WATERMARK, MIN_WATERMARK, Duration, Time, WatermarkStrategy
from timerheap.watermarks import TimestampAssigner, WatermarkGenerator

TIMES = st.lists(st.integers(MIN_WATERMARK, MAX_WATERMARK), min_size=1)


def watermarks(strategy, maxima):
    generator = strategy.create_watermark_generator()
    return [generator.on_batch(maximum, 1, None) for maximum in maxima]


@given(maxima=TIMES, delay=st.integers(0, MAX_WATERMARK))
@pytest.mark.promises("PyFlink", "supported", "WatermarkStrategy.for_bounded_out_of_orderness")
def test_bounded_watermarks_follow_the_largest_timestamp(maxima, delay):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay)
    largest = [max(maxima[: n + 1]) for n in range(len(maxima))]
    assert watermarks(strategy, maxima) == [max(at - delay - 1, MIN_WATERMARK) for at in largest]


@given(maxima=TIMES)
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "WatermarkStrategy.for_monotonous_timestamps",
    "WatermarkStrategy.no_watermarks",
)
def test_monotonous_watermarks_have_no_delay(maxima):
    monotonous = WatermarkStrategy.for_monotonous_timestamps()
    assert watermarks(monotonous, maxima) == watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(0), maxima
    )
    assert set(watermarks(WatermarkStrategy.no_watermarks(), maxima)) == {MIN_WATERMARK}


def test_each_generator_has_its_own_state():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    assert watermarks(strategy, [100]) == [99]
    assert watermarks(strategy, [7]) == [6]


@pytest.mark.parametrize(
    "duration",
    [
        5_000,
        np.int32(5_000),
        datetime.timedelta(seconds=5),
        "5 seconds",
        "interval 1 second 4000 milliseconds",
        Duration.of_seconds(5),
        Duration.of_millis(5_000),
    ],
)
def test_a_delay_may_be_an_int_a_timedelta_or_a_text(duration):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(duration)
    assert watermarks(strategy, [60_000]) == [54_999]


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "Duration.of_days",
    "Duration.of_hours",
    "Duration.of_minutes",
    "Duration.of_seconds",
    "Duration.of_millis",
    "Time.days",
    "Time.hours",
    "Time.minutes",
    "Time.seconds",
    "Time.milliseconds",
)
def test_duration_factories_return_equal_durations():
    assert Duration.of_days(1) == Duration.of_hours(24) == Duration.of_minutes(24 * 60)
    assert (
        Time.days(1) == Time.hours(24) == Time.minutes(24 * 60) == Time.seconds(86_400) == Duration.of_days(1)
    )
    assert Time.milliseconds(5) == Duration.of_millis(5)


@pytest.mark.parametrize(
    ("duration", "error"),
    [(-1, ValueError), (2**63, OverflowError), (5.0, TypeError), ("5", ValueError),
     ("-5 seconds", ValueError), ("1 month", ValueError), ("5 microseconds", ValueError), (True, TypeError),
     (datetime.timedelta(microseconds=5), ValueError), (datetime.timedelta(-1), ValueError)],
)  # fmt: skip
def test_an_invalid_duration_raises(duration, error):
    with pytest.raises(
        error, match=r"max_out_of_orderness:? .*(duration|milliseconds|0 or more|64 bits|fixed length)"
    ):
        WatermarkStrategy.for_bounded_out_of_orderness(duration)


class Fixed(WatermarkGenerator):
    def on_batch(self, max_timestamp, count, now):
        return 7


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value["at"]


@pytest.mark.promises(
    "PyFlink",
    "added",
    "WatermarkStrategy.for_generator",
    "WatermarkStrategy.create_watermark_generator",
    note="as in Flink's Java API",
)
def test_a_strategy_may_have_a_custom_generator():
    assert watermarks(WatermarkStrategy.for_generator(Fixed), [100]) == [7]
    with pytest.raises(TypeError, match="create_watermark_generator must be a class or function"):
        WatermarkStrategy.for_generator(Fixed())


@pytest.mark.parametrize("made", [None, Fixed])
def test_a_function_that_returns_no_generator_raises(made):
    strategy = WatermarkStrategy.for_generator(lambda: made)
    with pytest.raises(TypeError, match="create_watermark_generator must return a WatermarkGenerator, got"):
        strategy.create_watermark_generator()


@pytest.mark.promises(
    "PyFlink",
    "refused",
    "WatermarkStrategy.with_watermark_alignment",
    note="use `with_idleness`: all channels are read by the same micro-batches",
)
def test_watermark_alignment_raises():
    with pytest.raises(NotImplementedError, match=r"watermark alignment.*with_idleness"):
        WatermarkStrategy.no_watermarks().with_watermark_alignment("group", Duration.of_seconds(20))


@pytest.mark.parametrize("assigner", [At(), lambda value, timestamp: value["at"]])
@pytest.mark.promises(
    "PyFlink", "supported", "WatermarkStrategy.with_timestamp_assigner", "TimestampAssigner.extract_timestamp"
)
def test_a_timestamp_assigner_may_be_a_callable(assigner):
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(assigner)
    assert strategy.timestamp_assigner.extract_timestamp({"at": 5}, 0) == 5
    for wrong in ("at", At):
        with pytest.raises(TypeError, match="timestamp_assigner must be"):
            strategy.with_timestamp_assigner(wrong)


def test_a_strategy_is_immutable_and_keeps_its_other_settings():
    plain = WatermarkStrategy.for_bounded_out_of_orderness(5)
    assert (plain.timestamp_assigner, plain.idle_timeout, plain.max_ahead) == (None, None, None)
    assigner = At()
    full = (
        plain.with_timestamp_assigner(assigner).with_idleness(Duration.of_seconds(1)).with_max_ahead(2_000)
    ).with_idleness(3_000)
    full = full.with_wall_clock(after=Duration.of_minutes(1), lag=4_000)
    assert (plain.timestamp_assigner, plain.idle_timeout, plain.max_ahead) == (None, None, None)
    assert (full.timestamp_assigner, full.idle_timeout, full.max_ahead) == (assigner, 3_000, 2_000)
    assert (plain.wall_clock, full.wall_clock) == (None, (60_000, 4_000))
    assert watermarks(full, [100]) == [94]


def row_time(row, timestamp):
    return row


@pytest.mark.parametrize(
    ("strategy", "shown"),
    [
        (WatermarkStrategy.no_watermarks(), "no_watermarks()"),
        (WatermarkStrategy.for_monotonous_timestamps(), "for_monotonous_timestamps()"),
        (WatermarkStrategy.for_generator(WatermarkGenerator), "for_generator(WatermarkGenerator)"),
        (
            WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_idleness(60_000),
            "for_bounded_out_of_orderness(5000).with_idleness(60000)",
        ),
        (
            WatermarkStrategy.no_watermarks().with_wall_clock(Duration.of_seconds(1), 0),
            "no_watermarks().with_wall_clock(1000, 0)",
        ),
        (
            WatermarkStrategy.no_watermarks().with_max_ahead(7).with_timestamp_assigner(row_time),
            "no_watermarks().with_timestamp_assigner(row_time).with_max_ahead(7)",
        ),
        (WatermarkStrategy.no_watermarks().with_max_ahead(None), "no_watermarks().with_max_ahead(None)"),
        (
            WatermarkStrategy.no_watermarks().with_timestamp_assigner(At()),
            "no_watermarks().with_timestamp_assigner(At())",
        ),
    ],
)
def test_the_repr_of_a_strategy_names_the_calls_that_make_it(strategy, shown):
    assert repr(strategy) == f"WatermarkStrategy.{shown}"


@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_an_invalid_idle_timeout_raises(value):
    with pytest.raises((TypeError, ValueError), match="idle_timeout"):
        WatermarkStrategy.no_watermarks().with_idleness(value)


@pytest.mark.parametrize(("after", "lag", "name"), [(0, 0, "after"), (None, 0, "after"), (1, -1, "lag")])
def test_an_invalid_wall_clock_raises(after, lag, name):
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be"):
        WatermarkStrategy.no_watermarks().with_wall_clock(after, lag)


def test_a_negative_max_ahead_raises():
    strategy = WatermarkStrategy.no_watermarks()
    assert strategy.with_max_ahead(0).max_ahead == 0
    with pytest.raises(ValueError, match="max_ahead"):
        strategy.with_max_ahead(-1)


def test_a_strategy_can_be_pickled():
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    strategy = (
        WatermarkStrategy.for_bounded_out_of_orderness(5)
        .with_timestamp_assigner(lambda value, timestamp: value + timestamp)
        .with_idleness(10)
    )
    there = cloudpickle.loads(cloudpickle.dumps(strategy))
    assert watermarks(there, [100]) == [94]
    assert there.timestamp_assigner.extract_timestamp(1, 2) == 3
    assert there.idle_timeout == 10
