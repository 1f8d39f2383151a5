"""TimestampsAndWatermarksOperator: timestamps, periodic watermarks and the end of the input."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from output_recorder import Recorder

from timerheap import MAX_WATERMARK, MIN_WATERMARK, WatermarkStrategy
from timerheap.flink import ManualProcessingTimeService, TimestampsAndWatermarksOperator
from timerheap.flink.processing_time import SystemProcessingTimeService
from timerheap.watermarks import TimestampAssigner, WatermarkGenerator, WatermarkOutput

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


def start(
    strategy: Any = MONOTONOUS, now: int = 1_000, **options: Any
) -> tuple[TimestampsAndWatermarksOperator, ManualProcessingTimeService, Recorder]:
    clock, output = ManualProcessingTimeService(now), Recorder()
    operator = TimestampsAndWatermarksOperator(output, clock, strategy, **options)
    operator.open()
    return operator, clock, output


def test_each_periodic_timer_registers_the_next() -> None:
    operator, clock, output = start()
    assert clock.get_active_timers() == [(1_200, 1_200)]
    operator.process_element("a", 50)
    assert output.take() == [("a", 50)]
    clock.set_current_time(1_199)
    assert output.take() == []
    clock.set_current_time(1_203)
    assert output.take() == [49]
    assert clock.get_active_timers() == [(1_400, 1_400)]  # the manual clock fires the timer at 1,200
    clock.set_current_time(1_700)
    assert output.take() == []  # the watermark has not risen
    operator.process_element("b", 60)
    clock.advance(200)
    assert output.take() == [("b", 60), 59]
    assert operator.current_watermark == 59


@pytest.mark.parametrize(
    ("interval", "first"), [(200, 1_200), (50, 1_050), (datetime.timedelta(seconds=1), 2_000), (0, None)]
)
def test_the_first_periodic_watermark_comes_after_an_interval(interval: Any, first: int | None) -> None:
    operator, clock, output = start(auto_watermark_interval=interval)
    assert [timestamp for timestamp, _ in clock.get_active_timers()] == ([] if first is None else [first])
    operator.process_element("a", 50)
    clock.set_current_time(100_000)
    assert output.take() == [("a", 50)] + ([] if first is None else [49])


def test_timers_exist_only_between_open_and_close() -> None:
    clock = ManualProcessingTimeService()
    operator = TimestampsAndWatermarksOperator(Recorder(), clock, MONOTONOUS)
    assert clock.get_active_timers() == []
    operator.open()
    operator.open()
    assert len(clock.get_active_timers()) == 1
    operator.close()
    assert clock.get_active_timers() == []


def test_an_output_may_close_the_operator() -> None:
    class Closing(Recorder):
        def emit_watermark(self, watermark: int) -> None:
            super().emit_watermark(watermark)
            operator.close()

    clock = ManualProcessingTimeService()
    operator = TimestampsAndWatermarksOperator(Closing(), clock, MONOTONOUS)
    operator.open()
    operator.process_element("a", 50)
    clock.advance(1_000)
    assert clock.get_active_timers() == []


def test_finish_emits_the_last_watermarks_and_stops_the_timers() -> None:
    operator, clock, output = start()
    operator.process_element("a", 50)
    operator.finish()
    assert output.take() == [("a", 50), 49, MAX_WATERMARK]
    assert clock.get_active_timers() == []
    operator.finish()
    assert output.take() == []


def test_upstream_watermarks_are_ignored_except_the_last() -> None:
    operator, _, output = start()
    operator.process_watermark(5_000)
    assert output.take() == []
    with pytest.raises(TypeError, match="watermark must be an int"):
        operator.process_watermark("end")  # type: ignore[arg-type]
    operator.process_watermark(MAX_WATERMARK)
    operator.finish()
    assert output.take() == [MAX_WATERMARK]


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value["at"])


@pytest.mark.parametrize("assigner", [At(), lambda value, timestamp: value["at"]])
def test_an_assigner_replaces_the_timestamp(assigner: Any) -> None:
    operator, clock, output = start(MONOTONOUS.with_timestamp_assigner(assigner))
    operator.process_element({"at": 70}, 5)
    clock.advance(201)
    assert output.take() == [({"at": 70}, 70), 69]


def test_an_assigner_receives_the_previous_timestamp() -> None:
    strategy = MONOTONOUS.with_timestamp_assigner(lambda value, timestamp: timestamp + 1)
    operator, _, output = start(strategy)
    operator.process_element("a", 5)
    operator.process_element("b")
    assert output.take() == [("a", 6), ("b", MIN_WATERMARK + 1)]


def test_a_row_without_a_timestamp_has_min_watermark_as_in_flink() -> None:
    operator, _, output = start()
    operator.process_element("a")
    assert output.take() == [("a", MIN_WATERMARK)]


@pytest.mark.parametrize(("timestamp", "error"), [(2**63, OverflowError), (1.5, TypeError), ("1", TypeError)])
def test_an_invalid_timestamp_raises_and_emits_no_row(timestamp: Any, error: type[Exception]) -> None:
    operator, _, output = start()
    with pytest.raises(error, match="timestamp"):
        operator.process_element("row", timestamp)
    assert output.take() == []
    operator, _, output = start(MONOTONOUS.with_timestamp_assigner(lambda value, _: value))
    with pytest.raises(error, match="timestamp"):
        operator.process_element(timestamp)
    assert output.take() == []


@pytest.mark.promises("PyFlink", "added", "Output.collect", note="as in Flink's Java API")
def test_a_punctuated_watermark_comes_after_its_row() -> None:
    class Punctuated(WatermarkGenerator):
        def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
            output.emit_watermark(timestamp)

    operator, _, output = start(WatermarkStrategy.for_generator(Punctuated))
    for timestamp in (5, 3, 7):
        operator.process_element("row", timestamp)
    assert output.take() == [("row", 5), 5, ("row", 3), ("row", 7), 7]


@pytest.mark.promises(
    "PyFlink", "added", "WatermarkStatus.IDLE", "WatermarkStatus.ACTIVE", note="as in Flink's Java API"
)
def test_a_stream_becomes_idle_and_active_again() -> None:
    operator, clock, output = start(MONOTONOUS.with_idleness(500), auto_watermark_interval=100)
    operator.process_element("a", 50)
    clock.set_current_time(5_000)
    assert output.take() == [("a", 50), 49, "idle"]
    operator.process_element("late", 40)
    clock.advance(101)
    assert output.take() == [("late", 40)]  # as in Flink, idle until the watermark rises
    operator.process_element("b", 60)
    clock.advance(101)
    assert output.take() == [("b", 60), "active", 59]


@pytest.mark.promises("PyFlink", "added", "WatermarkStrategy.with_wall_clock")
def test_a_quiet_stream_follows_the_clock() -> None:
    operator, clock, output = start(MONOTONOUS.with_wall_clock(500, 100))
    operator.process_element("a", 1_000)
    clock.advance(800)
    assert output.take() == [("a", 1_000), 999, 1_500, 1_700]


def test_a_row_too_far_ahead_is_emitted_without_a_watermark() -> None:
    operator, clock, output = start(MONOTONOUS.with_max_ahead(500))
    operator.process_element("wrong", 1_501)
    operator.process_element("right", 1_500)
    clock.advance(201)
    assert output.take() == [("wrong", 1_501), ("right", 1_500), 1_499]
    assert operator.ahead_rows == 1


def test_rows_too_far_ahead_keep_the_stream_active() -> None:
    operator, clock, output = start(MONOTONOUS.with_max_ahead(500).with_idleness(300))
    for _ in range(10):
        operator.process_element("wrong", MAX_WATERMARK)
        clock.advance(200)
    assert set(output.take()) == {("wrong", MAX_WATERMARK)}


def test_a_generator_that_fails_is_called_again() -> None:
    class Failing(WatermarkGenerator):
        calls = 0

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            self.calls += 1
            if self.calls == 1:
                raise OSError("no")
            output.emit_watermark(self.calls)

    _, clock, output = start(WatermarkStrategy.for_generator(Failing))
    with pytest.raises(OSError, match="no"):
        clock.advance(201)
    clock.advance(201)
    assert output.take() == [2]


def test_an_invalid_watermark_of_a_generator_raises() -> None:
    class Wrong(WatermarkGenerator):
        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            output.emit_watermark(1.5)  # type: ignore[arg-type]

    operator, clock, _ = start(WatermarkStrategy.for_generator(Wrong))
    with pytest.raises(TypeError, match="watermark must be an int"):
        clock.advance(201)
    assert operator.current_watermark == MIN_WATERMARK


@pytest.mark.parametrize(
    ("strategy", "options", "error", "message"),
    [
        (5_000, {}, TypeError, "strategy must be a WatermarkStrategy, got 5000"),
        (MONOTONOUS, {"auto_watermark_interval": -1}, ValueError, "auto_watermark_interval"),
        (MONOTONOUS, {"auto_watermark_interval": 0.2}, TypeError, "auto_watermark_interval"),
    ],
)
def test_invalid_arguments_raise(
    strategy: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        start(strategy, **options)


@given(
    st.lists(st.integers(0, 400) | st.tuples(st.integers(MIN_WATERMARK, MAX_WATERMARK)), max_size=30),
    st.integers(1, 300),
    st.integers(0, 1_000),
)
def test_watermarks_rise_and_respect_the_delay(steps: list[Any], interval: int, delay: int) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay).with_idleness(150)
    operator, clock, output = start(strategy, auto_watermark_interval=interval)
    largest = MIN_WATERMARK
    for step in steps:
        if isinstance(step, tuple):
            largest = max(largest, *step)
            operator.process_element("row", *step)
        else:
            clock.advance(step)
    operator.finish()
    watermarks = [out for out in output.out if isinstance(out, int)]
    assert watermarks == sorted(set(watermarks))
    assert watermarks[-1] == MAX_WATERMARK
    assert all(watermark <= max(largest - delay - 1, MIN_WATERMARK) for watermark in watermarks[:-1])
    statuses = [out for out in output.out if isinstance(out, str)]
    assert statuses == ["idle" if n % 2 == 0 else "active" for n in range(len(statuses))]


def test_watermarks_are_emitted_on_the_system_clock() -> None:
    output = Recorder()
    with SystemProcessingTimeService() as clock:
        operator = TimestampsAndWatermarksOperator(output, clock, MONOTONOUS, auto_watermark_interval=1)
        with clock.lock:
            operator.open()
            operator.process_element("a", 50)
        reached = clock.get_current_processing_time() + 60_000
        while len(output.out) < 2 and clock.get_current_processing_time() < reached:
            clock.register_timer(0, lambda timestamp: None).result()
    assert output.out == [("a", 50), 49]
