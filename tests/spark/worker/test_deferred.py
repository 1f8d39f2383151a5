"""The operator of a streaming query is loaded in tasks, not in the process Spark starts on the driver."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from timerheap.spark import _frozen_modules
from timerheap.spark._worker.spark_operators import StreamingOperator, deferred
from timerheap.spark._worker.spark_store import CHUNKS

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
    operator = deferred(StreamingOperator(nothing, nothing))
    pickled = dumps(operator)  # type: ignore[no-untyped-call]
    done = subprocess.run(
        [sys.executable, "-c", ON_THE_DRIVER], input=pickled, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.decode().splitlines() == [CHUNKS[0], ""]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Be in the first task of a worker; how many operators there are whenever it calls ``gc.freeze``."""
    found: list[int] = []
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda cls: SimpleNamespace()))
    monkeypatch.setattr(_frozen_modules, "_Exempt", type("_Exempt", (), {"any": True, "of_operators": False}))
    monkeypatch.setattr(gc, "freeze", lambda: found.append(operators()))
    return found


def operators() -> int:
    return sum(isinstance(each, Recorder) for each in gc.get_objects())


def test_what_the_first_task_of_a_worker_exempts_from_garbage_collections_has_no_operator(
    frozen: list[int],
) -> None:
    gc.collect()
    assert operators() == 0, "of another test"
    recorder = Recorder()
    recorder.calls.append((recorder,))  # only a collection frees it
    pickled = dumps(deferred(recorder))  # type: ignore[no-untyped-call]
    for _ in range(2):
        loads(pickled).init("handle")
    assert frozen == [1], "the one in this test"


def test_in_a_task_the_operator_receives_every_call(frozen: list[int]) -> None:
    operator = loads(dumps(deferred(Recorder())))  # type: ignore[no-untyped-call]
    operator.init("handle")
    operator.handleInitialState("key", "state", "times")
    assert list(operator.handleInputRows("key", "rows", "times")) == [("rows", "key", "rows", "times")]
    assert list(operator.handleExpiredTimer("key", "times", "info")) == [("timer", "key", "times", "info")]
    operator.close()
    calls = [("init", "handle"), ("initial state", "key", "state", "times"), ("close",)]
    assert operator._operator.calls == calls


def test_garbage_collection_that_a_user_has_switched_off_stays_off(frozen: list[int]) -> None:
    pickled = dumps(deferred(Recorder()))  # type: ignore[no-untyped-call]
    gc.disable()
    try:
        loads(pickled).init("handle")
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert len(frozen) == 1
