"""Watermark generators for rows and for micro-batches, idleness, and timestamps too far in the future."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from output_recorder import Recorder

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap.flink import ManualProcessingTimeService
from timerheap.flink.watermark_operator import WatermarksWithIdleness, WatermarksWithMaxAhead
from timerheap.watermarks import WatermarkGenerator, WatermarkOutput
from timerheap.watermarks.generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
)


class ByBatch(WatermarkGenerator):
    """Returns the timestamp of the last batch - 30, so the watermark may decrease."""

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        return max_timestamp - 30


class Punctuated(WatermarkGenerator):
    """Emits a watermark for every timestamp that is a multiple of ten."""

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        if timestamp % 10 == 0:
            output.emit_watermark(timestamp)


class Metronome(WatermarkGenerator):
    """Increases the watermark by one at each emit."""

    def __init__(self) -> None:
        self.watermark = 0

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.watermark += 1
        output.emit_watermark(self.watermark)


@pytest.mark.promises("PyFlink", "added", "WatermarkGenerator.on_batch")
def test_a_generator_for_batches_processes_rows() -> None:
    generator, recorder = ByBatch(), Recorder()
    generator.on_periodic_emit(recorder)
    for timestamp in (100, 90):
        generator.on_event("row", timestamp, recorder)
        generator.on_periodic_emit(recorder)
    assert recorder.out == [MIN_WATERMARK, 70, 70]
    assert generator.on_batch(90, 1, None) == 60


def test_on_batch_without_a_watermark_raises() -> None:
    class Forgetful(WatermarkGenerator):
        def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
            return None  # type: ignore[return-value]

    with pytest.raises(TypeError, match="watermark of on_batch must be an int, got None"):
        Forgetful().on_event("row", 100, Recorder())


def test_a_punctuated_generator_processes_batches() -> None:
    generator = Punctuated()
    assert [generator.on_batch(at, 1, None) for at in (5, 20, 25, 10, 30)] == [MIN_WATERMARK, 20, 20, 20, 30]
    recorder = Recorder()
    generator.on_periodic_emit(recorder)
    assert recorder.out == []


def test_a_periodic_generator_processes_batches() -> None:
    generator, recorder = Metronome(), Recorder()
    generator.on_event("row", 100, recorder)
    assert recorder.out == []
    assert [generator.on_batch(100, 1, None) for _ in range(3)] == [1, 2, 3]


def test_a_generator_that_overrides_no_method_raises() -> None:
    class Nothing(WatermarkGenerator):
        pass

    with pytest.raises(TypeError, match="Nothing must override on_event and on_periodic_emit, or on_batch"):
        Nothing()


def test_a_subclass_of_a_subclass_may_override_a_method() -> None:
    class Base(WatermarkGenerator):
        def __init__(self, delay: int) -> None:
            self.delay = delay

    class Derived(Base):
        def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
            return max_timestamp - self.delay

    assert Derived(delay=7).on_batch(10, 1, None) == 3


@given(
    timestamps=st.lists(st.integers(MIN_WATERMARK, MAX_WATERMARK)),
    delay=st.integers(0, 100) | st.integers(0, MAX_WATERMARK),
)
def test_rows_and_batches_have_equal_watermarks(timestamps: list[int], delay: int) -> None:
    by_batch, by_event = BoundedOutOfOrdernessWatermarks(delay), BoundedOutOfOrdernessWatermarks(delay)
    for timestamp in timestamps:
        recorder = Recorder()
        by_event.on_event(None, timestamp, recorder)
        by_event.on_periodic_emit(recorder)
        assert recorder.out == [by_batch.on_batch(timestamp, 1, None)]


def test_ascending_watermarks_have_no_delay() -> None:
    assert AscendingTimestampsWatermarks().on_batch(100, 1, None) == 99
    recorder = Recorder()
    NoWatermarks().on_event("row", 100, recorder)
    NoWatermarks().on_periodic_emit(recorder)
    assert recorder.out == []
    assert NoWatermarks().on_batch(100, 1, None) == MIN_WATERMARK


def test_idleness_begins_after_the_timeout_and_ends_with_a_row() -> None:
    clock, recorder = ManualProcessingTimeService(1_000), Recorder()
    generator = WatermarksWithIdleness(AscendingTimestampsWatermarks(), 50, clock)
    generator.on_event(None, 10, recorder)
    for now in (
        1_010,
        1_020,
        1_070,
        1_071,
        1_200,
    ):  # the timeout starts at 1_020, the first check without a row
        clock.set_current_time(now)
        generator.on_periodic_emit(recorder)
    assert recorder.out == [9, 9, 9, "idle"]
    recorder.out.clear()
    generator.on_event(None, 20, recorder)
    generator.on_periodic_emit(recorder)
    assert recorder.out == [19]


def test_timestamps_too_far_ahead_are_ignored_and_counted() -> None:
    clock, recorder = ManualProcessingTimeService(1_000), Recorder()
    generator = WatermarksWithMaxAhead(AscendingTimestampsWatermarks(), 50, clock)
    for timestamp in (1_050, 1_051, MAX_WATERMARK, 990):
        generator.on_event(None, timestamp, recorder)
    generator.on_periodic_emit(recorder)
    assert (generator.ahead_rows, recorder.out) == (2, [1_049])
    clock.set_current_time(1_001)
    generator.on_event(None, 1_051, recorder)
    generator.on_periodic_emit(recorder)
    assert (generator.ahead_rows, recorder.out) == (2, [1_049, 1_050])


def test_a_negative_delay_raises() -> None:
    with pytest.raises(ValueError, match="max_out_of_orderness must be 0 or more, got -1"):
        BoundedOutOfOrdernessWatermarks(-1)
