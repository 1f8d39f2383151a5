"""The combined watermark of an operator's inputs compared with traces of Flink's."""

from __future__ import annotations

from typing import Any

import pytest

from timerheap.flink.valves import CombinedWatermarkStatus


def do(inputs: CombinedWatermarkStatus, op: list[Any]) -> bool:
    match op:
        case ["w", index, watermark, *_]:
            inputs.set_watermark(index, watermark)
        case ["i" | "a" as status, index, *_]:
            inputs.set_idle(index, status == "i")
        case _:
            pytest.fail(f"unknown operation {op}")
    return inputs.update_combined_watermark()


def replay(trace: dict[str, Any]) -> None:
    inputs = CombinedWatermarkStatus(range(trace["inputs"]))
    for step, op in enumerate(trace["ops"]):
        changed = do(inputs, op)
        answer = [changed, inputs.combined_watermark, inputs.is_idle]
        assert answer == op[-3:], f"operation {step}: {op}"


def test_combined_watermarks_equal_flinks(traces: Any) -> None:
    traces.replay(replay)
