"""What an epoch does with rows that go to every key group, and with tasks that send nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from children import told
from pyspark import TaskContext
from pyspark.sql.types import StructType
from queries import query_of

from timerheap import KeyedBroadcastProcessFunction, MapStateDescriptor, Types
from timerheap.spark._exchange.codec import frames_of, hashes_of
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._real_time.epoch_runner import Epoch
from timerheap.spark._state.epoch_store import sources_of
from timerheap.spark._worker.driver_mail import Mail
from timerheap.timer import MIN_WATERMARK

LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.LONG())
ROWS = StructType().add("k", "string").add("at", "long")
RULES = StructType().add("name", "string").add("n", "long")
RESULT = StructType().add("what", "string").add("n", "long")
SOURCE = "the task of the source"
RULE = -(1 << 62)
"""The first position of messages with rules."""

Message = tuple[int, bytes]


class Limited(KeyedBroadcastProcessFunction):
    """Yields the rules that there are for each row and timer, and each rule of each key group."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(value.at + 10)
        yield value.k, ctx.get_broadcast_state(LIMITS).get("all")

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(LIMITS).put(value.name, value.n)
        yield f"rule {value.name}", value.n

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield f"timer {ctx.get_current_key()}", timestamp


def rules(task: int, number: int, *rows: tuple[str, int]) -> list[Message]:
    """Return the message of that number of a task of the rules."""
    names, values = zip(*rows, strict=True)
    table, sink = pa.table({"name": pa.array(names), "n": pa.array(values)}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return [(RULE + (task << 32) + number, sink.getvalue().to_pybytes())]


def announced(task: int) -> list[Message]:
    """Return the message in which a task of the rules says that it runs."""
    return [(RULE + (task << 32), b"")]


def rows(task: int, *keys: str, at: int) -> list[Message]:
    """Return the message of a task with a row for each key, or else with an event time alone."""
    frame = b""
    if keys:
        batch = pa.record_batch({"k": pa.array(keys), "at": pa.array([at] * len(keys))})
        _, frames = frames_of([batch], [hashes_of(batch.column("k"))], Placement(1, 2))
        frame = frames[0].as_py()
    return [(task << 32, struct.pack("<qq", at, max(len(keys), 1)) + frame)]


class Made:
    """The first epoch of a query with two key groups in one partition, without Spark."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        properties = {
            "spark.timerheap.realTime.location": folder.as_uri(),
            "spark.timerheap.realTime.run": "1",
            "spark.timerheap.realTime.tick": "20",
            "streaming.sql.batchId": "0",
            "sql.streaming.queryId": "a query",
            "spark.sql.shuffle.partitions": "1",
        }
        task = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: 0)
        monkeypatch.setattr(TaskContext, "get", lambda: task)
        made = {
            "broadcast": RULES,
            "channels": (SOURCE,),
            "max_parallelism": 2,
            "name": "limited",
        }
        query = query_of(Limited(), ROWS, RESULT, **made, **options)
        self.sources = Path(sources_of(str(folder), 1))
        self.sources.parent.mkdir(parents=True)
        self.epoch = Epoch(query, "limited", Mail(None, "", ""))

    def begin(self) -> None:
        """Have a task of the rows, 0, and one of the rules, 1, begin, of which the driver knows."""
        self.sources.write_text("2")
        assert self.step(rows(0, at=MIN_WATERMARK), announced(1)) == []

    def step(self, *messages: list[Message]) -> list[tuple[Any, ...]]:
        packed = [message for each in messages for message in each]
        return [tuple(row.values()) for row in self.epoch.step(packed).to_pylist()]


def test_rows_see_the_rules_of_their_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path, monkeypatch, order="arrival")
    made.begin()
    found = made.step(rows(0, "a", "b", at=5), rules(1, 0, ("all", 3)))
    assert found == [("rule all", 3), ("a", 3), ("rule all", 3), ("b", 3)], (
        "each key is in a group of its own"
    )


def test_rules_alone_reach_all_key_groups_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path, monkeypatch, order="arrival")
    made.begin()
    found = made.step(rules(1, 1, ("all", 5)), rules(2, 0, ("all", 6)), rules(1, 0, ("all", 3), ("all", 4)))
    assert found == [("rule all", 3), ("rule all", 4), ("rule all", 5), ("rule all", 6)] * 2
    assert made.step(rows(0, "b", "a", at=5)) == [("a", 6), ("b", 6)]


def test_rows_that_wait_for_the_watermark_see_later_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path, monkeypatch)
    made.begin()
    assert made.step(rows(0, "a", at=5), rules(1, 0, ("all", 3))) == [("rule all", 3)] * 2
    found = made.step(rows(0, at=20), rules(1, 1, ("all", 4)))
    assert found == [("rule all", 4), ("a", 4), ("timer a", 15), ("rule all", 4)]


def test_tasks_of_rules_count_as_heard_of_and_have_no_watermark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path, monkeypatch)
    assert made.step(rows(0, "a", at=5), rows(0, at=100)) == []
    made.sources.write_text("3")
    assert made.step(announced(2)) == [], "the task 1 may have rows by key"
    assert made.step(rules(2, 0, ("all", 3))) == [("rule all", 3)] * 2
    assert made.step(announced(1)) == [("a", 3), ("timer a", 15)]


# ---- with Spark ----


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return told("real_time_rules_child.py", tmp_path_factory.mktemp("rules"))


@pytest.mark.parametrize("name", ["at once", "after others"])
@pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Python can ask for it from PySpark 4.3 on")
@pytest.mark.spark
def test_rules_are_there_within_an_epoch_and_hold_no_watermark(seen: dict[str, Any], name: str) -> None:
    assert seen[f"{name}: without rules"] == [["a", 1010, None]], "a timer that has fired"
    assert seen[f"{name}: a rule"] == [["", 5, 5]] * 2, "in two key groups without rows"
    assert {row[2] for row in seen[f"{name}: rows behind it"][3:]} == {5}
    assert seen[f"{name}: many rules"][-1] == ["", 999, 999]
    assert {row[2] for row in seen[f"{name}: rows behind them"][-20:]} == {999}
    assert {seen[each] for each in seen if each.endswith("epochs")} == {0}, "no epoch has ended meanwhile"


@pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Python can ask for it from PySpark 4.3 on")
@pytest.mark.spark
def test_rules_that_are_results_are_refused(seen: dict[str, Any]) -> None:
    assert seen["results as rules"].startswith("rules must come from a source in real-time mode, got the res")
