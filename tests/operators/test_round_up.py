"""Coalescing of timestamps, also at the limits of int64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap import MAX_WATERMARK, MIN_WATERMARK, round_up

timestamps = st.integers(MIN_WATERMARK, MAX_WATERMARK) | st.integers(-3_000, 3_000)
resolutions = st.integers(1, 2_000) | st.sampled_from([60_000, 86_400_000, MAX_WATERMARK])


def multiple_from(timestamp, resolution):
    """Return the lowest multiple at or after the timestamp."""
    quotient, rest = divmod(timestamp, resolution)
    return (quotient + bool(rest)) * resolution


@given(timestamps=st.lists(timestamps, max_size=20), resolution=resolutions)
def test_round_up_rounds_up_to_the_next_multiple(timestamps, resolution):
    expected = [multiple_from(timestamp, resolution) for timestamp in timestamps]
    for timestamp, wanted in zip(timestamps, expected, strict=True):
        if wanted > MAX_WATERMARK:
            with pytest.raises(OverflowError, match="timestamp must fit into 64 bits when rounded up"):
                round_up(timestamp, resolution)
        else:
            assert round_up(timestamp, resolution) == wanted
            assert wanted - resolution < timestamp <= wanted
    column = np.array(timestamps, np.int64)
    if max(expected, default=0) > MAX_WATERMARK:
        with pytest.raises(OverflowError, match=f"timestamp must fit .* got {max(timestamps)}"):
            round_up(column, resolution)
    else:
        rounded = round_up(column, resolution)
        assert rounded.dtype == np.int64
        assert rounded.tolist() == expected
    assert column.tolist() == timestamps


def test_round_up_accepts_any_integer_array():
    assert round_up([[1, 2], [1_000, 1_001]], 1_000).tolist() == [[1_000, 1_000], [1_000, 2_000]]
    for kind in (np.int32, np.uint16, np.uint64):
        rounded = round_up(np.array([1], kind), 100_000)
        assert (rounded.dtype, rounded.tolist()) == (np.int64, [100_000])
    assert round_up([], 10).dtype == np.int64
    scalar = round_up(np.int64(7), np.int32(5))
    assert (type(scalar), scalar) == (int, 10)


@pytest.mark.parametrize(
    ("timestamp", "resolution", "error", "message"),
    [
        (1.5, 10, TypeError, "timestamp must hold integers, got float64"),
        ("1", 10, TypeError, "timestamp must hold integers"),
        (True, 10, TypeError, "timestamp must be an int, got True"),
        (None, 10, TypeError, "timestamp must hold integers"),
        (2**63, 10, OverflowError, "timestamp must fit into 64 bits, got 9223372036854775808"),
        ([1, 2**64], 10, OverflowError, "timestamp must fit into 64 bits, got 18446744073709551616"),
        ([1.5], 10, TypeError, "timestamp must hold integers, got float64"),
        ([True], 10, TypeError, "timestamp must hold integers, got bool"),
        (np.array(["1970-01-01"], "M8[ms]"), 10, TypeError, "timestamp must hold integers, got datetime64"),
        (
            np.array([2**63], np.uint64),
            10,
            OverflowError,
            "timestamp must fit into 64 bits, got 9223372036854",
        ),
        (1, 0, ValueError, "resolution must be 1 or more, got 0"),
        (1, -5, ValueError, "resolution must be 1 or more, got -5"),
        (1, 0.5, TypeError, r"resolution must be an int, got 0\.5"),
        (1, 2**63, OverflowError, "resolution must fit into 64 bits"),
    ],
)
def test_an_invalid_argument_raises_an_error_that_names_it(timestamp, resolution, error, message):
    with pytest.raises(error, match=message):
        round_up(timestamp, resolution)
