"""Serialized timers compared with the bytes in Flink's RocksDB queue."""

from typing import Any

import pytest

from timerheap.flink import InternalTimer
from timerheap.flink.timer_bytes import TimerSerializer

NAMESPACES = {type(None): "void", list: "time_window", str: "string"}


def test_bytes_equal_flinks(traces: list[Any]) -> None:
    for number, (key_type, key, namespace, timestamp, data) in enumerate(traces, 1):
        timer = InternalTimer(timestamp, key, tuple(namespace) if isinstance(namespace, list) else namespace)
        serializer = TimerSerializer(key_type, NAMESPACES[type(namespace)])
        assert serializer.serialize(timer).hex() == data, f"line {number}"
        assert serializer.deserialize(bytes.fromhex(data)) == timer, f"line {number}"


@pytest.mark.parametrize("key_type", ["long", "string"])
def test_bytes_sort_by_timestamp(traces: list[Any], key_type: str) -> None:
    lines = [line for line in traces if line[0] == key_type]
    by_bytes = sorted(lines, key=lambda line: bytes.fromhex(line[4]))
    assert [line[3] for line in by_bytes] == sorted(line[3] for line in lines)


def test_truncated_or_extended_bytes_raise(traces: list[Any]) -> None:
    for key_type, _, namespace, _, data in traces[:60]:
        serializer = TimerSerializer(key_type, NAMESPACES[type(namespace)])
        whole = bytes.fromhex(data)
        for wrong in [*(whole[:end] for end in range(len(whole))), whole + b"\0"]:
            with pytest.raises(ValueError, match="data must be a timer of TimerSerializer"):
                serializer.deserialize(wrong)
