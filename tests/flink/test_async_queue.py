"""The ordered and the unordered stream element queue compared with traces of Flink's."""

from __future__ import annotations

from typing import Any

import pytest

from timerheap.async_io import StreamRecord, Watermark
from timerheap.async_io.operator import ElementQueue, PendingElement, QueueElement


def to_json(elements: list[QueueElement]) -> list[list[Any]]:
    return [["w", e.timestamp] if isinstance(e, Watermark) else ["r", e.value, e.timestamp] for e in elements]


def replay(trace: dict[str, Any]) -> None:
    queue: ElementQueue[Any] = ElementQueue(trace["capacity"], trace["mode"] == "ordered")
    futures: dict[str, PendingElement[Any]] = {}
    for op in trace["ops"]:
        match op:
            case ["put", element, accepted, size, has_completed]:
                kind, *fields = element
                future = queue.try_put(StreamRecord(*fields) if kind == "r" else Watermark(*fields))
                assert (future is not None) == accepted
                if future is not None and kind == "r":
                    futures[fields[0]] = future
                assert (len(queue), queue.has_completed_elements()) == (size, has_completed)
            case ["complete", id_, results, has_completed]:
                futures[id_].complete(results)
                assert queue.has_completed_elements() == has_completed
            case ["emit_once", had, out, size, has_completed]:
                assert queue.has_completed_elements() == had
                assert to_json(queue.emit_completed_element()) == out
                assert (len(queue), queue.has_completed_elements()) == (size, has_completed)
            case ["drain", out, size]:
                released = []
                while queue.has_completed_elements():
                    released += to_json(queue.emit_completed_element())
                assert (released, len(queue)) == (out, size)
            case _:
                pytest.fail(f"unknown operation {op}")


def test_queues_equal_flinks(traces: Any) -> None:
    traces.replay(replay)
