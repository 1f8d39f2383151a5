"""StatusWatermarkValve compared with traces of Flink's: the output after every watermark and status."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from output_recorder import Recorder

from timerheap.flink import StatusWatermarkValve
from timerheap.watermarks import WatermarkStatus


def do(valve: StatusWatermarkValve, op: list[Any]) -> None:
    match op:
        case ["w", channel, watermark, _]:
            valve.input_watermark(watermark, channel)
        case ["i", channel, _]:
            valve.input_watermark_status(WatermarkStatus.IDLE, channel)
        case ["a", channel, _]:
            valve.input_watermark_status(WatermarkStatus.ACTIVE, channel)
        case _:
            pytest.fail(f"unknown operation {op}")


def replay(trace: dict[str, Any], restored: bool) -> None:
    recorder = Recorder()
    valve = StatusWatermarkValve(trace["channels"], recorder)
    for step, op in enumerate(trace["ops"]):
        if restored:
            before, valve = valve._channels, StatusWatermarkValve(0, recorder)
            valve._channels.restore(before.watermark, before._names, *before.columns())
        do(valve, op)
        assert recorder.take() == op[-1], f"operation {step}: {op}"


@pytest.mark.parametrize("restored", [False, True], ids=["not restored", "restored before every operation"])
def test_output_equals_flinks(traces: Any, restored: bool) -> None:
    traces.replay(partial(replay, restored=restored), f"restored: {restored}")
