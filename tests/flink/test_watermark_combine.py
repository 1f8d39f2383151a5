"""IndexedCombinedWatermarkStatus compared with traces of Flink's."""

from __future__ import annotations

from typing import Any

import pytest

from timerheap.flink import IndexedCombinedWatermarkStatus


def replay(inputs: IndexedCombinedWatermarkStatus, op: list[Any]) -> bool:
    match op:
        case ["w", index, watermark, *_]:
            return inputs.update_watermark(index, watermark)
        case ["i" | "a" as status, index, *_]:
            return inputs.update_status(index, status == "i")
    pytest.fail(f"unknown operation {op}")


def test_combined_watermarks_equal_flinks(traces: list[dict[str, Any]]) -> None:
    for line, trace in enumerate(traces, 1):
        inputs = IndexedCombinedWatermarkStatus(trace["inputs"])
        for step, op in enumerate(trace["ops"]):
            changed = replay(inputs, op)
            answer = [changed, inputs.combined_watermark, inputs.is_idle]
            assert answer == op[-3:], f"line {line}, operation {step}: {op}"
