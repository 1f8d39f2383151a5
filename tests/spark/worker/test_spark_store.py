"""Calls to Spark's state store run ahead of their answers, which are all read in the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from children import import_path

from timerheap._native._core import to_text
from timerheap.spark._group.stored.kinds import MANIFEST
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._worker.spark_store import SparkStore


class Spark:
    """PySpark's handle and its client; answers lie in a queue, as they do in the socket."""

    def __init__(self) -> None:
        self._statefulProcessorApiClient = self
        self.sent: list[tuple[Any, ...]] = []
        self.values: dict[tuple[Any, Any], Any] = {}
        self.answers: deque[tuple[int, str, bytes]] = deque()
        self.most_unanswered = 0
        self.warnings = 0
        self.closed = False
        self.key: Any = None

    def _receive_proto_message(self) -> tuple[int, str, bytes]:
        return self.answers.popleft()

    def _call(self, *call: Any, answer: tuple[int, str, bytes] = (0, "", b"")) -> bytes | None:
        """Send a call and receive its answer, as PySpark's methods do; None is Spark's no."""
        if self.closed:
            raise BrokenPipeError
        self.sent.append(call)
        self.answers.append(answer)
        self.most_unanswered = max(self.most_unanswered, len(self.answers))
        status, message, value = self._receive_proto_message()
        assert status in (0, 2), message
        return None if status else value

    def set_implicit_key(self, key: Any) -> None:
        self.key = key
        self._call("select", key)

    def registerTimer(self, timestamp: int) -> None:
        self._call("register", timestamp)

    def deleteTimer(self, timestamp: int) -> None:
        self._call("delete", timestamp)

    def getMapState(self, *_: Any) -> Any:
        self._call("declare")
        return SimpleNamespace(
            getValue=lambda key: self._value(self._call("get", key, answer=(0, "", self._stored(key)))),
            exists=lambda: self._call("exists", answer=(0 if self._exists() else 2, "", b"")) is not None,
            updateValue=self._update,
            removeKey=lambda key: self._call("remove", key),
        )

    def _exists(self) -> bool:
        return any(label == self.key for label, _ in self.values)

    def _stored(self, key: Any) -> Any:
        if (self.key, key) not in self.values:
            self.warnings += 1
        return self.values.get((self.key, key), b"")

    def _value(self, data: Any) -> tuple[Any] | None:
        return self._deserialize_from_bytes(data) if data else None

    def _deserialize_from_bytes(self, data: Any) -> tuple[Any]:
        return (data,)

    def _update(self, key: Any, value: Any) -> None:
        self.values[self.key, key] = value[0]
        self._call("update", key)


def test_only_a_call_with_an_answer_of_its_own_waits() -> None:
    spark = Spark()
    store = SparkStore(spark)  # type: ignore[arg-type]
    for label in (7, 8):
        store.select(label)
        store.write(1, 2, b"%d" % label)
        store.register_timer(3)
        store.delete_timer(3)
    assert len(spark.answers) == 8
    assert store.read(1, 2) == b"8"
    assert not spark.answers
    store.select(7)
    assert store.read(1, 2) == b"7"
    store.remove(1, 2)
    store.settle()
    assert not spark.answers
    assert [call[0] for call in spark.sent[1:5]] == ["select", "update", "register", "delete"]


def test_the_answers_that_wait_are_bounded() -> None:
    spark = Spark()
    store = SparkStore(spark)  # type: ignore[arg-type]
    for id_ in range(10_000):
        store.write(1, id_, b"value")
    store.settle()
    assert len(spark.sent) == 10_001
    assert spark.most_unanswered <= 65


def test_a_call_that_failed_is_an_error_of_the_task() -> None:
    spark = Spark()
    store = SparkStore(spark)  # type: ignore[arg-type]
    store.write(1, 2, b"value")
    spark.answers[-1] = (1, "no space left", b"")
    with pytest.raises(RuntimeError, match="Spark's state store has failed: no space left"):
        store.settle()
    store.write(1, 2, b"value")
    spark.answers[-1] = (1, "no space left", b"")
    spark.closed = True  # as Spark does after an error
    with pytest.raises(RuntimeError, match="Spark's state store has failed: no space left"):
        store.write(1, 3, b"value")


def test_chunks_without_a_manifest_are_of_another_format() -> None:
    spark = Spark()
    store = SparkStore(spark)  # type: ignore[arg-type]
    store.select(7)
    assert store.read_manifest() is None
    store.write_manifest(Manifest(16, token=bytes(16)))
    found = store.read_manifest()
    assert found is not None
    assert found.max_parallelism == 16
    spark.values = {((8,), (18, 0)): b"a schema"}
    store.select(8)
    with pytest.raises(ValueError, match="chunks without a manifest"):
        store.read_manifest()


def test_spark_is_not_asked_for_a_manifest_that_is_not_there() -> None:
    spark = Spark()
    store = SparkStore(spark)  # type: ignore[arg-type]
    store.select(8)
    store.write_manifest(Manifest(16, token=bytes(16)))
    store.ask_for_manifests([7, 8])
    for label, there in ((7, False), (8, True), (9, False)):
        store.select(label)
        assert (store.read_manifest() is not None) == there
    assert spark.warnings == 0
    store.expects_state = True  # by mistake, as after a first micro-batch without rows
    store.select(10)
    assert store.read_manifest() is None


def test_manifests_that_were_asked_for_cost_one_wait() -> None:
    spark = Spark()
    store = SparkStore(spark)  # type: ignore[arg-type]
    for label in (7, 8):
        store.select(label)
        store.write_manifest(Manifest(label, token=bytes(16)))
    store.settle()
    sent = len(spark.sent)
    store.expects_state = True
    store.ask_for_manifests([7, 8, 9])
    assert [call[0] for call in spark.sent[sent:]] == ["select", "get"] * 3
    assert len(spark.answers) == 6
    for label in (8, 7):
        store.select(label)
        store.read_manifest()
        found = store.read_manifest()
        assert found is not None
        assert found.max_parallelism == label
        store.write_manifest(Manifest(2 * label, token=bytes(16)))
    assert [call[0] for call in spark.sent[sent + 6 :]] == ["select", "update"] * 2
    spark.values.clear()
    store.select(9)
    assert store.read_manifest() is None
    spark.values[(8,), (MANIFEST, 0)] = to_text(Manifest(5, token=bytes(16)).to_bytes())
    store.select(8)
    found = store.read_manifest()  # as it is now, not as it was
    assert found is not None
    assert found.max_parallelism == 5


def test_a_manifest_that_cannot_be_read_is_an_error_of_the_task() -> None:
    spark = Spark()
    store = SparkStore(spark)  # type: ignore[arg-type]
    store.expects_state = True
    store.ask_for_manifests([7, 8])
    spark.answers[1] = (1, "no such file", b"")
    store.select(7)
    with pytest.raises(RuntimeError, match="Spark's state store has failed: no such file"):
        store.read_manifest()


def test_another_pyspark_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"pyspark must have .*; install pyspark 4\.1, 4\.2 or 4\.3"):
        SparkStore(SimpleNamespace())  # type: ignore[arg-type]


ON_UNIX_SOCKETS = """
import os
import sys
from pathlib import Path
from local_spark import start_spark
from streams import read_stream, run, sink, write_batches
import pyarrow as pa
import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor

class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()

work = Path(sys.argv[1])
os.umask(0)
settings = {"spark.python.unix.domain.socket.enabled": True, "spark.sql.shuffle.partitions": 1}
spark = start_spark(work, 2, settings)
sockets = Path(spark.conf.get("spark.python.unix.domain.socket.dir"))
assert sockets.stat().st_mode & 0o777 == 0o700
write_batches(work / "in", [[{"k": n} for n in range(3000)]] * 2, pa.schema([("k", pa.int64())]))
df = read_stream(spark, work / "in")
run(timerheap.spark.process(df, "k", Count(), "k long, n long", max_parallelism=700), work)
assert sink(spark, work) == sorted(((k, n) for k in range(3000) for n in (1, 2)), key=repr)
assert len(list(sockets.iterdir())) <= 3  # of the driver and of the daemons
print(sockets)
"""


@pytest.mark.in_turn
@pytest.mark.spark
def test_many_key_groups_on_unix_domain_sockets(tmp_path: Path) -> None:
    """Their buffers hold some 550 answers, far fewer than those of TCP. Nobody else can connect to them."""
    sockets = subprocess.check_output(
        [sys.executable, "-c", ON_UNIX_SOCKETS, str(tmp_path)],
        env=os.environ | import_path(),
        text=True,
        timeout=180,
    )
    assert not os.path.exists(sockets.split()[-1])
