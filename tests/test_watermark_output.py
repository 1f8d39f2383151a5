"""Broadcasting of watermarks, status and rows."""

from __future__ import annotations

from typing import Any

import pytest
from output_recorder import Recorder

from timerheap import MIN_WATERMARK
from timerheap.flink import BroadcastingOutput, StatusWatermarkValve
from timerheap.watermarks import WatermarkStatus


@pytest.mark.promises("PyFlink", "added", "Output.collect", note="as in Flink's Java API")
def test_every_channel_receives_all_output_in_order() -> None:
    channels = [Recorder(), Recorder(), Recorder()]
    output = BroadcastingOutput(channels)
    assert (output.current_watermark, output.status) == (MIN_WATERMARK, WatermarkStatus.ACTIVE)
    output.collect("a", 5)
    output.emit_watermark(5)
    output.collect("b", None)
    assert [channel.out for channel in channels] == [[("a", 5), 5, ("b", None)]] * 3


def test_an_idle_stream_records_its_watermark_but_does_not_send_it() -> None:
    channel = Recorder()
    output = BroadcastingOutput([channel])
    output.mark_idle()
    output.emit_watermark(5)
    assert (channel.out, output.current_watermark) == (["idle"], 5)
    output.collect("row", 6)
    output.mark_active()
    output.emit_watermark(7)
    assert channel.out == ["idle", ("row", 6), "active", 7]


@pytest.mark.parametrize("watermark", [None, "5", 2**63])
def test_an_invalid_watermark_raises_and_is_not_sent(watermark: Any) -> None:
    channel = Recorder()
    output = BroadcastingOutput([channel])
    with pytest.raises((TypeError, OverflowError), match="watermark must"):
        output.emit_watermark(watermark)
    assert (channel.out, output.current_watermark) == ([], MIN_WATERMARK)


@pytest.mark.promises(
    "PyFlink", "added", "WatermarkStatus.IDLE", "WatermarkStatus.ACTIVE", note="as in Flink's Java API"
)
def test_the_status_is_sent_when_it_changes() -> None:
    channel = Recorder()
    output = BroadcastingOutput([channel])
    for call in (
        output.mark_active,
        output.mark_idle,
        output.mark_idle,
        output.mark_active,
        output.mark_active,
    ):
        call()
    assert channel.out == ["idle", "active"]


def test_a_valve_writes_to_a_broadcasting_output() -> None:
    left, right = Recorder(), Recorder()
    valve = StatusWatermarkValve(2, BroadcastingOutput([left, right]))
    valve.input_watermark(5, 0)
    valve.input_watermark(3, 1)
    valve.input_watermark_status(WatermarkStatus.IDLE, 1)
    valve.input_watermark_status(WatermarkStatus.IDLE, 0)
    assert left.out == right.out == [3, 5, "idle"]
