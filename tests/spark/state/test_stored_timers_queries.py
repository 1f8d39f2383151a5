"""GroupStateTimers and ProcessorTimers in real queries that stop, fail and restart; a port from heapq."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import heapq_port
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues
from streams import configured, read_stream, write_batches

from timerheap import MAX_WATERMARK
from timerheap.spark import GroupStateTimers, ProcessorTimers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

START = 1_000_000_000  # epoch ms
ON_DEFAULT_STORE = "HDFSBackedStateStoreProvider"
ON_ROCKSDB = "RocksDBStateStoreProvider"
OPERATIONS = ["plane", "at", "op", "due", "moved_to", "id", "namespace"]
FIRED = "plane string, due bigint, id bigint, namespace bigint, calls bigint"
FOLLOW_UP = 1000
BREAKING = 777

Row = tuple[Any, ...]
Batch = list[Row]


def state_store(spark: SparkSession, provider: str) -> AbstractContextManager[None]:
    """Set the state store of the queries that start inside the block."""
    name = f"org.apache.spark.sql.execution.streaming.state.{provider}"
    settings = {"streaming_stateStore_providerClass": name}
    if provider == ON_DEFAULT_STORE:
        settings["streaming_stateStore_checkpointFormatVersion"] = "1"  # it knows no other one
    return configured(spark, **settings)


def write(folder: Path, names: list[str], rows: Batch) -> None:
    """Add the file of one micro-batch; ``at`` is in epoch milliseconds."""
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["at"] = pa.array([1000 * at for at in columns["at"]], pa.timestamp("us", tz="UTC"))
    table = pa.table(columns)
    write_batches(folder, [table], table.schema)


def read(spark: SparkSession, folder: Path, key: str) -> GroupedData:
    return read_stream(spark, folder).withWatermark("at", "0 seconds").groupBy(key)


def start(df: DataFrame, checkpoint: Path, output: list[Row], **trigger: Any) -> StreamingQuery:
    """Start a query that appends its rows, prefixed with the number of the micro-batch, to `output`."""
    writer = df.writeStream.foreachBatch(lambda rows, n: output.extend((n, *row) for row in rows.collect()))
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


class Operator:
    """Applies the timer operations of rows; each timer that fires registers one more at the same time."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken

    def apply(self, timers: Any, batches: Iterator[pd.DataFrame], by_key: bool) -> None:
        for batch in batches:
            for op in batch.itertuples():
                if op.op == "push":
                    timers.push(op.due, op.id, op.namespace)
                elif op.op == "move":
                    timers.reschedule(op.due, op.moved_to, op.id, op.namespace)
                else:
                    timers.remove(*([] if by_key else [op.due]), op.id, op.namespace)
                if self.broken and op.id == BREAKING:
                    raise OSError("broken on purpose")

    def fire(self, plane: str, timers: Any, calls: int) -> pd.DataFrame:
        due = timers.due()
        first = due.key_hashes < FOLLOW_UP
        timers.push_many(due.timestamps[first], due.key_hashes[first] + FOLLOW_UP, due.namespaces[first])
        columns = {"due": due.timestamps, "id": due.key_hashes, "namespace": due.namespaces}
        return pd.DataFrame({"plane": [plane] * len(due), **columns, "calls": calls})


class InGroups(Operator):
    """A function for applyInPandasWithState that counts its calls while it has timers."""

    def __call__(
        self, key: Row, batches: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        with GroupStateTimers(state) as timers:
            calls = timers.state[0] + 1 if timers.state else 1
            self.apply(timers, batches, by_key=False)
            yield self.fire(key[0], timers, calls)
            timers.state = (calls,) if timers else None


class InProcessor(Operator, StatefulProcessor):
    """A processor for transformWithStateInPandas that counts the calls of handleExpiredTimer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.timers = ProcessorTimers(handle, one_timer_per_key=True)
        self.calls = handle.getValueState("calls", "calls bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        with self.timers.open(timerValues) as timers:
            self.apply(timers, rows, by_key=True)
        return iter([])

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        with self.timers.open(timerValues, expiredTimerInfo) as timers:
            calls = (self.calls.get() or (0,))[0] + 1
            yield self.fire(key[0], timers, calls)
            self.calls.update((calls,))


def random_batches(by_key: bool, count: int) -> list[Batch]:
    """Return rows whose order in a micro-batch is irrelevant; many timers equal a later watermark."""
    choose = random.Random(7)
    pushed: dict[Row, list[int]] = {}
    batches = []
    for n in range(count):
        begin = START + 1000 * n
        rows: Batch = [(f"N{n % 2}", begin + 1000, "push", begin + 3000, 0, 0, 0)]  # the next watermark
        for plane in choose.sample([f"N{k}" for k in range(10)], 5):
            for id_, namespace in choose.sample([(1, 0), (1, -5), (2, 0), (3, 0)], choose.randint(1, 3)):
                known = pushed.setdefault((plane, id_, namespace), [])
                op = choose.choice(
                    ["push", "push", "remove", "remove" if by_key else "move"] if known else ["push"]
                )
                due = begin + 1000 * choose.randint(-1, 5) + choose.choice([-1, 0, 0, 0, 1])
                at = begin + choose.randint(1, 999)
                if op == "push":
                    known.append(due)
                    rows.append((plane, at, op, due, 0, id_, namespace))
                else:
                    rows.append((plane, at, op, known[-1], due, id_, namespace))
                    known[-1:] = [due] if op == "move" else []
        batches.append(rows)
    batches[0].append(("N0", START + 1, "push", MAX_WATERMARK, 0, 9, 0))
    return batches


def expected(batches: list[Batch], by_key: bool) -> tuple[list[Row], int]:
    """Return what each micro-batch fires, and how many planes keep timers, computed with dicts."""
    planes: dict[str, dict[Row, int]] = {}  # timer -> the watermark at which it was left, though due
    calls: dict[str, int] = {}
    fired: list[Row] = []
    seen = 0
    for n, rows in enumerate(batches):
        watermark = seen
        seen = max([seen, *(row[1] for row in rows)])
        for plane, _, op, due, moved_to, id_, namespace in rows:
            timers = planes.setdefault(plane, {})
            if by_key:
                there = [timer for timer in timers if timer[1:] == (id_, namespace)]
            else:
                there = [timer for timer in timers if timer == (due, id_, namespace)]
            if op != "push" or by_key:
                for timer in there:
                    del timers[timer]
            if op == "push" or (op == "move" and there):
                timers.setdefault((due if op == "push" else moved_to, id_, namespace), -1)
        called = {row[0] for row in rows}
        for plane, timers in planes.items():
            again = [timer for timer, left in timers.items() if plane in called or left < watermark]
            due_now = [timer for timer in again if timer[0] <= watermark]
            if due_now if by_key else due_now or plane in called:
                calls[plane] = calls.get(plane, 0) + 1
            fired += [(n, plane, *timer, calls[plane]) for timer in due_now]
            for timer in due_now:
                del timers[timer]
            for due, id_, namespace in due_now:
                if id_ < FOLLOW_UP:
                    timers[due, id_ + FOLLOW_UP, namespace] = watermark
            if not by_key and not timers:
                calls.pop(plane, None)
    return sorted(fired), sum(map(bool, planes.values()))


@pytest.mark.spark
@pytest.mark.parametrize("by_key", [False, True], ids=["groups", "processor"])
def test_timers_survive_restarts_and_failures(by_key: bool, spark: SparkSession, tmp_path: Path) -> None:
    """Run to the end of the input, restart, fail inside a block, and restart with a fixed function."""
    batches = random_batches(by_key, 6)
    batches[4].insert(3, (batches[4][3][0], START + 4500, "push", START + 5000, 0, BREAKING, 0))
    output: list[Row] = []

    def query(broken: bool) -> StreamingQuery:
        groups = read(spark, tmp_path / "input", "plane")
        if by_key:
            df = groups.transformWithStateInPandas(InProcessor(broken), FIRED, "Append", "EventTime")
        else:
            df = groups.applyInPandasWithState(
                InGroups(broken), FIRED, "calls bigint, timers binary", "append", "EventTimeTimeout"
            )
        return start(df, tmp_path / "checkpoint", output, availableNow=True)

    with state_store(spark, ON_ROCKSDB if by_key else ON_DEFAULT_STORE):
        for n, rows in enumerate(batches):
            if n == 3:
                query(broken=True).awaitTermination()
                assert sorted(output) == expected([*batches[:3], []], by_key)[0]
            write(tmp_path / "input", OPERATIONS, rows)
        with pytest.raises(Exception, match="broken on purpose"):
            query(broken=True).awaitTermination()
        assert max(row[0] for row in output) == 4, "before the one that breaks; number 3 had no rows"
        last = query(broken=False)
        last.awaitTermination()

    fired, alive = expected([*batches[:3], [], *batches[3:], []], by_key)
    assert sorted(output) == fired
    assert {row[0] for row in fired} == set(range(1, 8)), "without rows, too"
    if not by_key:
        assert last.lastProgress is not None
        assert last.lastProgress.stateOperators[0].numRowsTotal == alive, (
            "a group without timers and state is removed"
        )


@pytest.mark.spark
@pytest.mark.parametrize("processor", [False, True], ids=["groups", "processor"])
def test_processing_time_timers_fire_without_new_rows(
    processor: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark starts a micro-batch without rows when a timeout has passed."""

    class Reminders(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.timers = ProcessorTimers(handle, processing_time=True)

        def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[pd.DataFrame]:
            now = timerValues.getCurrentProcessingTimeInMs()
            with self.timers.open(timerValues) as timers:
                timers.push_many([now, now + 1, now + 800, now + 10**9], key_hashes=0)
                yield frame(timers.due(), now)

        def handleExpiredTimer(
            self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
        ) -> Iterator[pd.DataFrame]:
            with self.timers.open(timerValues, expiredTimerInfo) as timers:
                yield frame(timers.due(), timerValues.getCurrentProcessingTimeInMs())

    def remind(key: Row, batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        now = state.getCurrentProcessingTimeMs()
        with GroupStateTimers(state) as timers:
            if not state.hasTimedOut:
                timers.push_many([now, now + 1, now + 800, now + 10**9], key_hashes=0)
            yield frame(timers.due(), now)

    def frame(due: Any, now: int) -> pd.DataFrame:
        return pd.DataFrame({"due": due.timestamps, "fired": now})

    write(tmp_path / "input", ["plane", "at"], [("N1", START)])
    groups = read(spark, tmp_path / "input", "plane")
    schema, output = "due bigint, fired bigint", list[Row]()
    with state_store(spark, ON_ROCKSDB if processor else ON_DEFAULT_STORE):
        if processor:
            df = groups.transformWithStateInPandas(Reminders(), schema, "Append", "ProcessingTime")
        else:
            df = groups.applyInPandasWithState(
                remind, schema, "timers binary", "append", "ProcessingTimeTimeout"
            )
        query = start(df, tmp_path / "checkpoint", output, processingTime="0 seconds")
        try:
            deadline = time.monotonic() + 60
            while len(output) < 3 and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            query.stop()
    begin = output[0][1]
    assert [due - begin for _, due, _ in output] == [0, 1, 800]
    assert output[0][2] == begin
    assert all(fired >= due for _, due, fired in output)


def test_a_heapq_program_is_ported_by_changing_only_its_queue_lines() -> None:
    def kept(function: Callable[..., object]) -> tuple[list[str], int]:
        lines = [line.strip() for line in inspect.getsource(function).splitlines()[1:]]
        others = [line for line in lines if not line.endswith("# queue")]
        return others, len(lines) - len(others)

    on_heapq, before = kept(heapq_port.late_orders_heapq)
    on_timerheap, after = kept(heapq_port.late_orders_timerheap)
    assert on_heapq == on_timerheap
    assert 0 < after < before


@pytest.mark.spark
def test_the_ported_heapq_program_gives_the_same_output(spark: SparkSession, tmp_path: Path) -> None:
    choose = random.Random(11)
    orders: dict[int, tuple[str, int]] = {}
    for n in range(3):
        begin = START + 1000 * n
        rows: Batch = [("clock", begin + 1000, "tick", 0, 0, 0)]
        for order in range(20 * n, 20 * n + 20):
            courier, deadline = f"c{choose.randrange(8)}", begin + 500 * choose.randint(1, 6)
            rows.append((courier, begin + choose.randint(1, 999), "placed", order, deadline, 0))
        for order in choose.sample(sorted(orders), min(len(orders), 12)):
            courier, deadline = orders[order]
            event = choose.choice(["delivered", "postponed"])
            later = deadline + 500 * choose.randint(1, 4) if event == "postponed" else 0
            rows.append((courier, begin + choose.randint(1, 999), event, order, deadline, later))
            if event == "postponed":
                orders[order] = courier, later
            else:
                del orders[order]
        orders |= {row[3]: (row[0], row[4]) for row in rows if row[2] == "placed"}
        write(tmp_path / "input", heapq_port.INPUT, rows)

    outputs: list[list[Row]] = []
    with state_store(spark, ON_DEFAULT_STORE):
        for function in (heapq_port.late_orders_heapq, heapq_port.late_orders_timerheap):
            df = read(spark, tmp_path / "input", "courier").applyInPandasWithState(
                function, heapq_port.OUTPUT_SCHEMA, heapq_port.STATE_SCHEMA, "append", "EventTimeTimeout"
            )
            outputs.append([])
            start(df, tmp_path / function.__name__, outputs[-1], availableNow=True).awaitTermination()
    assert sorted(outputs[0]) == sorted(outputs[1])
    assert len(outputs[0]) > 15
    assert any(row[0] == 3 for row in outputs[0]), "the micro-batch without rows"
