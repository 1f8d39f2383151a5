"""StatusWatermarkValve compared with a simple model, with new channels and checkpoints.

Explanations are tested on copies of the valve: it must rise when the channels that hold it back rise, and
must not rise when only the others do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from output_recorder import Recorder

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap.flink import StatusWatermarkValve
from timerheap.watermarks import WatermarkStatus
from timerheap.watermarks.valve import ChannelValve, Explanation

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE


def restored(valve: StatusWatermarkValve, output: Any = None) -> StatusWatermarkValve:
    """Return a valve made of what a key group stores of another one."""
    made, of_channels = StatusWatermarkValve(output=output), valve._channels
    made._channels.restore(valve.watermark, of_channels._names, *of_channels.columns())
    return made


class Plain:
    """A model of the valve that scans all channels each time."""

    def __init__(self, channels: int) -> None:
        self.out: list[Any] = []
        self.output = MIN_WATERMARK
        self.channels = [
            {"watermark": MIN_WATERMARK, "active": True, "aligned": True} for _ in range(channels)
        ]

    def add(self) -> None:
        self.channels.append({"watermark": MIN_WATERMARK, "active": False, "aligned": False})
        if not any(channel["active"] for channel in self.channels) and len(self.channels) > 1:
            self.out.append("active")
        self.channels[-1]["active"] = True
        self.channels[-1]["aligned"] = self.output == MIN_WATERMARK

    def watermark(self, watermark: int, number: int) -> None:
        channel = self.channels[number]
        if channel["active"] and watermark > channel["watermark"]:
            channel["watermark"] = watermark
            channel["aligned"] = channel["aligned"] or watermark >= self.output
            self.emit_least()

    def status(self, status: WatermarkStatus, number: int) -> None:
        channel = self.channels[number]
        if status is IDLE and channel["active"]:
            channel.update(active=False, aligned=False)
            held = channel["watermark"] == self.output
            if any(other["active"] for other in self.channels):
                if held:
                    self.emit_least()
            else:
                if held:
                    self.emit(max(other["watermark"] for other in self.channels))
                self.out.append("idle")
        elif status is ACTIVE and not channel["active"]:
            if not any(other["active"] for other in self.channels):
                self.out.append("active")
            channel.update(active=True, aligned=channel["watermark"] >= self.output)

    def emit_least(self) -> None:
        aligned = [channel["watermark"] for channel in self.channels if channel["aligned"]]
        if aligned:
            self.emit(min(aligned))

    def emit(self, watermark: int) -> None:
        if watermark > self.output:
            self.output = watermark
            self.out.append(watermark)


WATERMARKS = st.integers(-6, 12) | st.sampled_from(
    [MIN_WATERMARK, MIN_WATERMARK + 1, MAX_WATERMARK - 1, MAX_WATERMARK]
)
OPERATIONS = st.lists(
    st.tuples(st.just("watermark"), WATERMARKS, st.integers(0, 5))
    | st.tuples(st.just("status"), st.sampled_from([IDLE, ACTIVE]), st.integers(0, 5))
    | st.just(("add",))
    | st.just(("restore",)),
    max_size=40,
)


def apply(valve: StatusWatermarkValve, plain: Plain, operation: tuple[Any, ...]) -> None:
    if operation[0] == "add":
        assert valve.add_channel() == len(plain.channels)
        plain.add()
    elif plain.channels:
        kind, value, channel = operation
        channel %= len(plain.channels)
        if kind == "watermark":
            valve.input_watermark(value, channel)
            plain.watermark(value, channel)
        else:
            valve.input_watermark_status(value, channel)
            plain.status(value, channel)


def check(valve: StatusWatermarkValve, plain: Plain) -> None:
    active = any(channel["active"] for channel in plain.channels) or not plain.channels
    found = [(c.watermark, c.status is ACTIVE, c.aligned) for c in valve.explain().channels]
    assert found == [(c["watermark"], c["active"], c["aligned"]) for c in plain.channels]
    assert valve.watermark == plain.output
    assert valve.status is (ACTIVE if active else IDLE)
    assert len(valve) == len(plain.channels)


@given(channels=st.integers(0, 4), operations=OPERATIONS)
def test_the_valve_equals_the_model(channels: int, operations: list[tuple[Any, ...]]) -> None:
    recorder, plain = Recorder(), Plain(channels)
    valve = StatusWatermarkValve(channels, recorder)
    for operation in operations:
        if operation == ("restore",):
            valve = restored(valve, recorder)
        else:
            apply(valve, plain, operation)
        assert recorder.out == plain.out
        check(valve, plain)
        check_explanation(valve)


def check_explanation(valve: StatusWatermarkValve) -> None:
    explained = valve.explain()
    assert (explained.watermark, explained.status) == (valve.watermark, valve.status)
    assert [channel.channel for channel in explained.channels] == list(range(len(valve)))
    going = [channel.watermark for channel in explained.channels if channel.watermark < MAX_WATERMARK]
    for channel in explained.channels:
        if channel.watermark == MIN_WATERMARK:
            assert channel.behind is None
        elif channel.watermark == MAX_WATERMARK:
            assert channel.behind == 0
        else:
            assert channel.behind == max(going) - channel.watermark
    check_holders(valve, explained, [channel.channel for channel in explained.holders])


def raised(valve: StatusWatermarkValve, channels: list[int], watermark: int) -> int:
    """Return the watermark of a copy of the valve after raising these channels."""
    valve = restored(valve)
    for channel in channels:
        valve.input_watermark(watermark, channel)
    return valve.watermark


def check_holders(valve: StatusWatermarkValve, state: Explanation, holders: list[int]) -> None:
    active = [channel.channel for channel in state.channels if channel.status is ACTIVE]
    if not holders:  # the input of all active channels has ended
        assert state.watermark == MAX_WATERMARK or all(
            state.channels[number].watermark == MAX_WATERMARK for number in active
        )
        return
    counting = any(state.channels[number].aligned for number in holders)
    if counting:
        assert raised(valve, holders, MAX_WATERMARK) > state.watermark
        for holder in holders:
            others = [number for number in active if number != holder]
            limit = max(state.watermark, state.channels[holder].watermark)
            assert raised(valve, others, MAX_WATERMARK) <= limit
    else:
        assert holders == active
        for holder in holders:
            assert raised(valve, [holder], MAX_WATERMARK) == MAX_WATERMARK


def test_a_new_channel_neither_lowers_the_watermark_nor_holds_it_back() -> None:
    recorder = Recorder()
    valve = StatusWatermarkValve(1, recorder)
    valve.input_watermark(50, 0)
    late = valve.add_channel("late")
    valve.input_watermark(60, 0)
    valve.input_watermark(55, late)  # has not caught up yet
    valve.input_watermark(70, 0)
    valve.input_watermark(70, late)  # has caught up
    valve.input_watermark(90, 0)
    valve.input_watermark(80, late)
    assert recorder.out == [50, 60, 70, 80]


def test_a_new_channel_is_aligned_before_the_first_watermark() -> None:
    valve = StatusWatermarkValve()
    first = valve.add_channel()
    second = valve.add_channel()
    valve.input_watermark(50, first)
    assert valve.watermark == MIN_WATERMARK
    valve.input_watermark(40, second)
    assert valve.watermark == 40


def test_a_new_channel_makes_an_idle_valve_active() -> None:
    recorder = Recorder()
    valve = StatusWatermarkValve(1, recorder)
    valve.input_watermark_status(IDLE, 0)
    valve.add_channel()
    assert recorder.out == ["idle", "active"]
    assert valve.status is ACTIVE


def valve_of(**channels: int | None) -> StatusWatermarkValve:
    """Return a valve with channels at these watermarks, or idle for None."""
    valve = StatusWatermarkValve()
    for name in channels:
        valve.add_channel(name)
    for number, watermark in enumerate(channels.values()):
        if watermark is None:
            valve.input_watermark_status(IDLE, number)
        else:
            valve.input_watermark(watermark, number)
    return valve


def test_an_explanation_prints_as_a_table() -> None:
    valve = valve_of(UA=5_000_000, AA=9_000, HA=1_000, OO=None, DL=5_000_001)
    new = valve.add_channel()
    assert str(valve.explain()).splitlines() == [
        "watermark 1000, held back by HA",
        "  HA         at 1000, 1:23:19 behind, holds the watermark back",
        "  channel 5  no watermark yet, has yet to catch up",
        "  AA         at 9000, 1:23:11 behind",
        "  UA         at 5000000, 1 ms behind",
        "  DL         at 5000001",
        "  OO         no watermark yet, idle",
    ]
    valve.input_watermark_status(IDLE, new)
    assert repr(valve.explain()) == str(valve.explain())


def test_without_aligned_channels_all_active_ones_hold_the_watermark() -> None:
    valve = valve_of(A=5, B=9, C=7)
    for channel in (1, 2, 0):
        valve.input_watermark_status(IDLE, channel)  # the last one held the watermark back
    for channel in (0, 2):
        valve.input_watermark_status(ACTIVE, channel)
    assert str(valve.explain()).splitlines() == [
        "watermark 9, held back by A, C",
        "  A  at 5, 4 ms behind, has yet to catch up, holds the watermark back",
        "  C  at 7, 2 ms behind, has yet to catch up, holds the watermark back",
        "  B  at 9, idle",
    ]
    check_explanation(valve)
    valve.input_watermark(11, 2)
    assert valve.watermark == 11


@pytest.mark.parametrize(
    ("valve", "headline"),
    [
        (valve_of(), "no watermark yet, there are no channels"),
        (valve_of(A=1, B=MIN_WATERMARK), "no watermark yet, held back by B"),
        (valve_of(A=7, B=7), "watermark 7, held back by A, B"),
        (valve_of(A=7, B=7, C=7, D=7, E=7), "watermark 7, held back by A, B, C and 2 more"),
        (valve_of(A=None), "no watermark yet, all channels are idle"),
        (valve_of(A=MAX_WATERMARK), "the watermark has reached the end of the input"),
        (valve_of(A=7, B=MAX_WATERMARK), "watermark 7, held back by A"),
    ],
)
def test_the_first_line_of_an_explanation_names_the_holders(
    valve: StatusWatermarkValve, headline: str
) -> None:
    assert str(valve.explain()).splitlines()[0] == headline


def test_no_channel_holds_a_watermark_that_has_reached_the_end() -> None:
    valve = valve_of(A=MAX_WATERMARK)
    valve.input_watermark_status(IDLE, 0)
    valve.add_channel("B")
    assert valve.explain().holders == ()
    assert str(valve.explain()).splitlines() == [
        "the watermark has reached the end of the input",
        "  B  no watermark yet, has yet to catch up",
        "  A  at its end, idle",
    ]


def test_an_explanation_prints_at_most_20_channels() -> None:
    valve = StatusWatermarkValve(10_000)
    for channel in range(10_000):
        valve.input_watermark(channel, channel)
    lines = str(valve.explain()).splitlines()
    assert lines[0] == "watermark 0, held back by channel 0"
    assert lines[-1] == "  and 9980 more"
    assert len(lines) == 22
    assert len(valve.explain().channels) == 10_000


def test_a_duration_too_long_for_timedelta_is_printed_in_milliseconds() -> None:
    valve = valve_of(A=MIN_WATERMARK + 1, B=MAX_WATERMARK - 1)
    assert f"{2**64 - 3} ms behind" in str(valve.explain())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda valve: valve.input_watermark(5, 2),
            IndexError,
            "channel must be 0 or more and below 2, got 2",
        ),
        (lambda valve: valve.input_watermark(5, -1), IndexError, "channel .* got -1"),
        (lambda valve: valve.input_watermark(5, "A"), TypeError, "channel must be an int, got 'A'"),
        (lambda valve: valve.input_watermark(2**63, 0), OverflowError, "watermark .* 64 bits"),
        (lambda valve: valve.input_watermark(5.0, 0), TypeError, "watermark must be an int"),
        (lambda valve: valve.input_watermark_status(IDLE, 2), IndexError, "channel"),
        (lambda valve: valve.input_watermark_status(True, 0), TypeError, "status must be a WatermarkStatus"),
    ],
)
def test_an_invalid_call_raises_and_changes_nothing(call: Any, error: type[Exception], message: str) -> None:
    valve = StatusWatermarkValve(2)
    valve.input_watermark(7, 0)
    before = valve.explain()
    with pytest.raises(error, match=message):
        call(valve)
    assert valve.explain() == before


@pytest.mark.parametrize("channels", [-1, 1.5, "2"])
def test_an_invalid_number_of_channels_raises(channels: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="channels must be"):
        StatusWatermarkValve(channels)


def test_an_output_that_raises_is_not_called_again() -> None:
    class Full(Recorder):
        def emit_watermark(self, watermark: int) -> None:
            super().emit_watermark(watermark)
            if watermark == 5:
                raise OSError("full")

    recorder = Full()
    valve = StatusWatermarkValve(1, recorder)
    with pytest.raises(OSError, match="full"):
        valve.input_watermark(5, 0)
    valve.input_watermark(5, 0)
    valve.input_watermark(6, 0)
    assert recorder.out == [5, 6]


@given(data=st.data(), channels=st.integers(1, 6))
def test_many_watermarks_have_the_effect_of_single_ones(data: st.DataObject, channels: int) -> None:
    recorder = Recorder()
    many, single = ChannelValve(recorder), StatusWatermarkValve()
    many.add_channels([None] * channels)
    many.activate(np.arange(channels))
    for _ in range(channels):
        single.add_channel()
    some = st.lists(st.integers(0, channels - 1), unique=True)
    for _ in range(data.draw(st.integers(1, 6))):
        watermarks = {channel: data.draw(st.integers(0, 9)) for channel in data.draw(some)}
        before = many.watermark
        many.input_watermarks(np.array([*watermarks.values()], np.int64), np.array([*watermarks], np.int64))
        for channel, watermark in sorted(watermarks.items(), key=lambda pair: pair[1]):
            single.input_watermark(watermark, channel)
        assert many.explain() == single.explain()
        assert recorder.take() == ([many.watermark] if many.watermark > before else [])
        for channel in data.draw(some):
            if many.columns()[1][channel]:
                many.deactivate(channel)
            single.input_watermark_status(IDLE, channel)
        returning = data.draw(some)
        many.activate(np.array(returning, np.int64))
        for channel in returning:
            single.input_watermark_status(ACTIVE, channel)
        assert many.explain() == single.explain()
        recorder.take()
