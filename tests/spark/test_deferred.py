"""The operator of a streaming query is loaded in tasks, not in the process Spark starts on the driver."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from timerheap.spark._worker.deferred import deferred
from timerheap.spark._worker.spark_store import CHUNKS
from timerheap.spark._worker.stateful_operator import StreamingOperator

ON_THE_DRIVER = """
import sys
from types import SimpleNamespace
from pyspark.cloudpickle import loads
import pyspark.sql.streaming.stateful_processor
imported = set(sys.modules)
operator = loads(sys.stdin.buffer.read())
operator.init(SimpleNamespace(getMapState=lambda name, *types: print(name)))
operator.close()
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - imported}))
"""


class Recorder(StatefulProcessor):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def init(self, handle: Any) -> None:
        self.calls.append(("init", handle))

    def handleInitialState(self, *arguments: Any) -> None:
        self.calls.append(("initial state", *arguments))

    def handleInputRows(self, *arguments: Any) -> Any:
        return iter([("rows", *arguments)])

    def handleExpiredTimer(self, *arguments: Any) -> Any:
        return iter([("timer", *arguments)])

    def close(self) -> None:
        self.calls.append(("close",))


def test_on_the_driver_the_operator_declares_its_state_and_imports_nothing() -> None:
    nothing: Any = SimpleNamespace()
    operator = deferred(StreamingOperator(nothing, nothing, nothing, nothing))
    pickled = dumps(operator)  # type: ignore[no-untyped-call]
    done = subprocess.run(
        [sys.executable, "-c", ON_THE_DRIVER], input=pickled, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.decode().splitlines() == [CHUNKS[0], ""]


def test_in_a_task_the_operator_receives_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda cls: SimpleNamespace()))
    operator = loads(dumps(deferred(Recorder())))  # type: ignore[no-untyped-call]
    operator.init("handle")
    operator.handleInitialState("key", "state", "times")
    assert list(operator.handleInputRows("key", "rows", "times")) == [("rows", "key", "rows", "times")]
    assert list(operator.handleExpiredTimer("key", "times", "info")) == [("timer", "key", "times", "info")]
    operator.close()
    calls = [("init", "handle"), ("initial state", "key", "state", "times"), ("close",)]
    assert operator._operator.calls == calls
