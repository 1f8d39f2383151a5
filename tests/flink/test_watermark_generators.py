"""Watermark generators, idleness and the multiplexer compared with traces of Flink's."""

from __future__ import annotations

from typing import Any

import pytest
from output_multiplexer import WatermarkOutputMultiplexer
from output_recorder import Recorder

from timerheap.flink import ManualProcessingTimeService
from timerheap.flink.watermark_operator import WatermarksWithIdleness
from timerheap.watermarks import WatermarkGenerator
from timerheap.watermarks.generators import AscendingTimestampsWatermarks, BoundedOutOfOrdernessWatermarks


class Generator:
    """A generator with its own clock."""

    def __init__(self, trace: dict[str, Any], output: Recorder) -> None:
        self.output = output
        self.clock = ManualProcessingTimeService()
        self.generator: WatermarkGenerator
        if trace["kind"] == "bounded":
            self.generator = BoundedOutOfOrdernessWatermarks(trace["delay"])
        else:
            assert trace["delay"] == 0
            self.generator = AscendingTimestampsWatermarks()
        if trace["idle_timeout"]:
            self.generator = WatermarksWithIdleness(self.generator, trace["idle_timeout"], self.clock)

    def replay(self, op: list[Any]) -> None:
        match op:
            case ["event", timestamp, _]:
                self.generator.on_event(None, timestamp, self.output)
            case ["emit", _]:
                self.generator.on_periodic_emit(self.output)
            case ["clock", ms]:
                self.clock.advance(ms)
            case _:
                pytest.fail(f"unknown operation {op}")


class Multiplexer:
    def __init__(self, output: Recorder) -> None:
        self.multiplexer = WatermarkOutputMultiplexer(output)

    def replay(self, op: list[Any]) -> None:
        match op:
            case ["register", output_id, _]:
                self.multiplexer.register_new_output(output_id)
            case ["unregister", output_id, _]:
                assert self.multiplexer.unregister_output(output_id)
            case ["immediate", output_id, watermark, _]:
                self.multiplexer.get_immediate_output(output_id).emit_watermark(watermark)
            case ["deferred", output_id, watermark, _]:
                self.multiplexer.get_deferred_output(output_id).emit_watermark(watermark)
            case ["immediate_idle", output_id, _]:
                self.multiplexer.get_immediate_output(output_id).mark_idle()
            case ["deferred_idle", output_id, _]:
                self.multiplexer.get_deferred_output(output_id).mark_idle()
            case ["emit", _]:
                self.multiplexer.on_periodic_emit()
            case _:
                pytest.fail(f"unknown operation {op}")


def replay(trace: dict[str, Any]) -> None:
    output = Recorder()
    multiplexed = trace["kind"] == "multiplexer"
    subject = Multiplexer(output) if multiplexed else Generator(trace, output)
    for step, op in enumerate(trace["ops"]):
        subject.replay(op)
        expected = [] if op[0] == "clock" else op[-1]
        assert output.take() == expected, f"operation {step}: {op}"


@pytest.mark.promises(
    "PyFlink", "supported", "WatermarkGenerator.on_event", "WatermarkGenerator.on_periodic_emit"
)
@pytest.mark.promises(
    "PyFlink",
    "added",
    "WatermarkOutput.emit_watermark",
    "WatermarkOutput.mark_idle",
    "WatermarkOutput.mark_active",
    note="as in Flink's Java API",
)
def test_emitted_watermarks_equal_flinks(traces: Any) -> None:
    traces.replay(replay)
