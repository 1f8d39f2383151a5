"""Tests the function without Spark: ``pytest``."""

from parcels import HOUR, Unscanned

from timerheap.testing import ProcessTester


def test_a_scan_moves_the_deadline() -> None:
    """The deadline counts from the last scan."""
    tester = ProcessTester(
        Unscanned(),
        key="parcel",
        input_schema="parcel int, at long",
        output_schema="parcel int, at long",
        event_time="at",
    )
    assert tester.push([(1, 0), (1, 1_000)]) == []
    assert tester.advance_watermark(HOUR) == []
    assert tester.advance_watermark(HOUR + 1_000) == [(1, HOUR + 1_000)]
