"""GroupTimers and ProcessorTimers: by hand, and in real queries that stop, fail and start again."""

from __future__ import annotations

import inspect
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import heapq_port
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import BinaryType, LongType, StructType

from timerheap import MAX_WATERMARK, MIN_WATERMARK, KeyTimerHeap, Timer, TimerHeap
from timerheap.spark import GroupTimers, ProcessorTimers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STATE_STORES = "org.apache.spark.sql.execution.streaming.state"
START = 1_000_000_000  # epoch ms
LONG, BINARY = LongType(), BinaryType()

# ---- by hand ----

ONLY_TIMERS = StructType().add("timers", BINARY)
COUNTED = StructType().add("count", LONG).add("name", LONG).add("timers", BINARY)


def group_state(
    schema: StructType = ONLY_TIMERS,
    value: tuple[Any, ...] | None = None,
    now: int = 100,
    timeout_conf: str = "EventTimeTimeout",
) -> GroupState:
    """A state as Spark hands it over, in a call whose clock says `now`."""
    by_watermark = timeout_conf == "EventTimeTimeout"
    return GroupState(
        optionalValue=value,  # type: ignore[arg-type]
        batchProcessingTimeMs=7 if by_watermark else now,
        eventTimeWatermarkMs=now if by_watermark else 7,
        timeoutConf=timeout_conf,
        hasTimedOut=False,
        watermarkPresent=True,
        defined=value is not None,
        updated=False,
        removed=False,
        timeoutTimestamp=GroupState.NO_TIMESTAMP,
        keyAsUnsafe=b"",
        valueSchema=schema,
    )


def heap_of(*timers: tuple[int, ...]) -> bytes:
    heap = TimerHeap()
    for timer in timers:
        heap.push(*timer)
    return heap.to_bytes()


raised = partial(pytest.raises, ZeroDivisionError)


def timeout(state: GroupState) -> int:
    return state._timeout_timestamp


def test_the_block_is_the_heap() -> None:
    state = group_state(now=250)
    with GroupTimers(state) as timers:
        assert timers.push(300, 1)
        assert not timers.push(300, 1)
        assert timers.push(timestamp=200, key_hash=2, namespace=9)
        assert timers.push_many([400, 100, 500], [3, 4, 5]).all()
        assert len(timers) == 5
        assert timers
        assert (300, 1) in timers
        assert (300, 2) not in timers
        assert sorted(timers) == [(100, 4, 0), (200, 2, 9), (300, 1, 0), (400, 3, 0), (500, 5, 0)]
        assert timers.peek() == timers.pop() == Timer(100, 4)
        assert timers.reschedule(400, 260, 3)
        assert timers.remove(500, 5)
        assert timers.count_due(260) == 2
        assert timers.timestamps.tolist()[0] == 200
        assert list(timers.due()) == [(200, 2, 9)]
        assert list(timers.pop_due(260)) == [(260, 3, 0)]
        assert not timers.due()
        assert "reschedule_many" in dir(timers)
        assert repr(timers).startswith("<GroupTimers: <timerheap.TimerHeap of 1 timers, first Timer(")
    assert repr(timers) == "<GroupTimers: closed>"
    assert TimerHeap.from_bytes(state.get[0]).peek() == Timer(300, 1)


def test_one_timer_per_key() -> None:
    state = group_state()
    with GroupTimers(state, one_timer_per_key=True) as timers:
        assert timers.push(300, 1)
        assert not timers.push(400, 1)
        assert timers.timestamp_of(1) == 400
        assert 1 in timers
        with pytest.raises(AttributeError, match="no 'reschedule' in GroupTimers"):
            _ = timers.reschedule
    assert KeyTimerHeap.from_bytes(state.get[0]).peek() == Timer(400, 1)
    with (
        pytest.raises(ValueError, match=r"'timers' holds no TimerHeap.*same one_timer_per_key"),
        GroupTimers(state),
    ):
        pass


def test_due_takes_a_limit_and_any_int64() -> None:
    state = group_state()
    with GroupTimers(state) as timers:
        timers.push_many([MIN_WATERMARK, -1, 0, 100, 101, MAX_WATERMARK], 0)
        assert timers.due(limit=2).timestamps.tolist() == [MIN_WATERMARK, -1]
        assert timers.due().timestamps.tolist() == [0, 100]
        with pytest.raises(ValueError, match="limit"):
            timers.due(limit=-1)
    assert timeout(state) == 100
    with GroupTimers(state) as timers:
        assert timers.pop() == Timer(101, 0)
    assert timeout(state) == MAX_WATERMARK - 1


@pytest.mark.parametrize(
    ("conf", "now", "timestamp", "expected"),
    [
        ("EventTimeTimeout", 100, 5_000, 4_999),
        ("EventTimeTimeout", 100, 101, 100),
        ("EventTimeTimeout", 100, 99, 100),  # due, and left in the queue: when the watermark moves
        ("EventTimeTimeout", 0, -5, 1),  # Spark takes no timeout before that
        ("EventTimeTimeout", 100, MAX_WATERMARK, MAX_WATERMARK - 1),
        ("ProcessingTimeTimeout", 100, 5_000, 4_999),
        ("ProcessingTimeTimeout", 100, 101, 101),  # Spark takes no duration of 0
        ("ProcessingTimeTimeout", 100, 99, 101),
        ("ProcessingTimeTimeout", 100, MAX_WATERMARK, MAX_WATERMARK - 1),
    ],
)
def test_the_timeout_lets_the_head_fire_when_the_clock_reaches_it(
    conf: str, now: int, timestamp: int, expected: int
) -> None:
    state = group_state(now=now, timeout_conf=conf)
    with GroupTimers(state) as timers:
        timers.push_many([timestamp, MAX_WATERMARK], [1, 2])
    assert timeout(state) == expected


def test_without_timers_there_is_no_timeout_and_without_anything_no_state() -> None:
    state = group_state(COUNTED)
    with GroupTimers(state) as timers:
        assert timers.state is None
    assert not state.exists
    assert not state._removed, "there was nothing to remove"

    with GroupTimers(state) as timers:
        timers.push(5_000, 1)
    assert state.get[:2] == (None, None)
    assert timeout(state) == 4_999

    with GroupTimers(state) as timers:
        assert timers.state is None
        timers.clear()
        timers.state = (3, None)
        assert timers.state == (3, None)
    assert state.get == (3, None, None)
    assert timeout(state) == GroupState.NO_TIMESTAMP

    with GroupTimers(state) as timers:
        assert timers.state == (3, None)
        timers.state = None
    assert not state.exists
    assert state._removed


def test_an_exception_leaves_the_state_and_its_wake_up() -> None:
    value = (1, 2, heap_of((5_000, 1)))
    state = group_state(COUNTED, value)
    with raised(), GroupTimers(state) as timers:
        timers.push(200, 1)
        timers.state = (8, 9)
        _ = 1 / 0
    assert state.get == value
    assert not state._updated
    assert timeout(state) == 4_999, "Spark forgets the timeout with every call"
    with GroupTimers(state) as timers:
        assert list(timers) == [(5_000, 1, 0)]
        assert timers.state == (1, 2)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (StructType(), "struct<>"),
        (StructType().add("count", LONG), "struct<count:bigint>"),
        (StructType().add("timers", LONG), "struct<timers:bigint>"),
        (StructType().add("timers", BINARY).add("count", LONG), "struct<timers:binary,count:bigint>"),
        (StructType().add("blob", BINARY), "struct<blob:binary>"),
    ],
)
def test_a_state_schema_without_a_place_for_timers(schema: StructType, shown: str) -> None:
    with pytest.raises(TypeError, match="must end in a field 'timers binary'.*" + shown):
        GroupTimers(group_state(schema))


@pytest.mark.parametrize("data", [b"", b"pickle", heap_of((1, 1))[:-1], heap_of((1, 1))[:-1] + b"\1"])
def test_bytes_that_are_not_ours(data: bytes) -> None:
    state = group_state(value=(data,))
    with pytest.raises(ValueError, match="state field 'timers' holds no TimerHeap"), GroupTimers(state):
        pass
    assert state.get == (data,)
    with pytest.raises(ValueError, match="state field 'timers'"), GroupTimers(state):
        pass  # and not "open already"


@pytest.mark.parametrize(
    ("value", "error"), [((1,), ValueError), ((1, 2, 3), ValueError), ("ab", TypeError), (5, TypeError)]
)
def test_a_state_that_is_not_the_users_fields(value: Any, error: type[Exception]) -> None:
    state = group_state(COUNTED)
    with GroupTimers(state) as timers:
        with pytest.raises(error, match=r"None or a tuple \(count, name\), got"):
            timers.state = value
        timers.state = [1, 2]  # type: ignore[assignment]
        assert timers.state == (1, 2)


def test_misuse_of_group_timers() -> None:
    with pytest.raises(TypeError, match="state must be the GroupState"):
        GroupTimers((1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NoTimeout, so that no timer would ever fire"):
        GroupTimers(group_state(timeout_conf="NoTimeout"))

    state = group_state(COUNTED)
    timers = GroupTimers(state)
    uses: list[Callable[[], object]] = [
        lambda: timers.push(1, 1),
        lambda: timers.due(),
        lambda: timers.state,
        lambda: setattr(timers, "state", None),
        lambda: len(timers),
        lambda: list(timers),
        lambda: (1, 1) in timers,
    ]
    for _ in range(2):
        for use in uses:
            with pytest.raises(RuntimeError, match="only inside its `with` block"):
                use()
        with timers:
            for again in (timers, GroupTimers(state)):
                with pytest.raises(RuntimeError, match="open already"), again:
                    pass
            timers.push(300, 1)
            with pytest.raises(AttributeError, match="no 'psuh' in GroupTimers"):
                timers.psuh(300, 2)
    with pytest.raises(AttributeError):
        _ = timers.psuh
    assert not hasattr(timers, "__array__")
    with pytest.raises(RuntimeError, match=r"set `timers.state`"), timers:
        state.update((1, 2, None))


class Handle(StatefulProcessorHandle):
    """One key's state variable and Spark's timers, and what Spark does with them."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None
        self.registered: set[int] = set()
        self.calls: list[str] = []

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueState:
        assert (stateName, schema, ttlDurationMs) == ("timerheap", "timers binary, wake_up bigint", None)
        return Value(self)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self.calls.append("registerTimer")
        self.registered.add(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self.calls.append("deleteTimer")
        self.registered.discard(expiryTimestampMs)

    @contextmanager
    def firing(self, now: int) -> Iterator[tuple[TimerValues, ExpiredTimerInfo]]:
        """A call of handleExpiredTimer: the timer that fires is gone after it."""
        (first,) = (timer for timer in self.registered if timer <= now)
        try:
            yield TimerValues(7, now), ExpiredTimerInfo(first)
        finally:
            self.registered.discard(first)


class Value(ValueState):
    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def get(self) -> tuple[Any, ...] | None:
        self.handle.calls.append("get")
        return self.handle.value

    def update(self, newValue: tuple[Any, ...]) -> None:
        self.handle.calls.append("update")
        self.handle.value = newValue

    def clear(self) -> None:
        self.handle.calls.append("clear")
        self.handle.value = None


def at(watermark: int) -> TimerValues:
    return TimerValues(7, watermark)


def test_spark_keeps_one_timer_at_the_head() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        assert timers is queue
        timers.push_many([300, 200, 400], [1, 2, 3])
    assert handle.registered == {200}
    with queue.open(at(100)) as timers:
        timers.push(150, 4)
    assert handle.registered == {150}
    with queue.open(at(100)) as timers:
        timers.remove(150, 4)
        assert timers.pop() == Timer(200, 2)
    assert handle.registered == {300}
    with handle.firing(350) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(300, 1, 0)]
    assert handle.registered == {400}
    with handle.firing(400) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(400, 3, 0)]
    assert handle.registered == set()
    assert handle.value is None


def test_only_what_has_changed_costs_a_round_trip() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)):
        pass
    assert handle.calls == ["get"]
    with queue.open(at(100)) as timers:
        timers.push(300, 1)
    assert handle.calls[1:] == ["get", "registerTimer", "update"]
    with queue.open(at(100)) as timers:
        assert not timers.due()
    assert handle.calls[4:] == ["get"]
    with queue.open(at(100)) as timers:
        timers.push(400, 1)
    assert handle.calls[5:] == ["get", "update"]
    with queue.open(at(400)) as timers:
        assert len(timers.due()) == 2
    assert handle.calls[7:] == ["get", "deleteTimer", "clear"]


def test_timers_that_are_due_and_stay_are_called_for() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        timers.push(60, 1)
    assert handle.registered == {60}, "in this micro-batch still"
    with handle.firing(100) as (values, info), queue.open(values, info) as timers:
        assert len(timers) == 1
    assert handle.registered == {101}, "not the one that fires, and not before the next micro-batch"
    with queue.open(at(100)) as timers:
        timers.push(70, 1)
    assert handle.registered == {60}, "a call with rows: in this micro-batch again"
    with queue.open(at(300)) as timers:
        timers.push(50, 1)
    assert handle.registered == {60}, "it is about to fire anyway"
    with handle.firing(300) as (values, info), queue.open(values, info) as timers:
        assert len(timers.due(limit=2)) == 2
        timers.push(info.getExpiryTimeInMs(), 5)
    assert handle.registered == {301}
    with handle.firing(301) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(60, 5, 0), (70, 1, 0)]
    assert handle.registered == set()


def test_a_timer_of_the_users_own_is_left_alone() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        timers.push_many([200, 300], 1)
    with queue.open(at(250), ExpiredTimerInfo(150)) as timers:
        assert len(timers) == 2
    assert handle.registered == {200}, "fires next"
    with handle.firing(250) as (values, info), queue.open(values, info) as timers:
        assert len(timers.due()) == 1
    assert handle.registered == {300}


def test_an_exception_leaves_the_timers_and_their_wake_up() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)
    with queue.open(at(100)) as timers:
        timers.push_many([200, 300], [1, 2])
    value = handle.value
    with raised(), queue.open(at(100)) as timers:
        timers.push(150, 1)
        _ = 1 / 0
    assert (handle.value, handle.registered) == (value, {200})
    with raised(), handle.firing(250) as (values, info), queue.open(values, info) as timers:
        timers.due()
        _ = 1 / 0
    assert handle.registered == {251}
    with handle.firing(251) as (values, info), queue.open(values, info) as timers:
        assert list(timers.due()) == [(200, 1, 0)]
    assert handle.registered == {300}


def test_a_generator_that_is_not_read_to_its_end_changes_nothing() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle)

    def rows(values: TimerValues, info: ExpiredTimerInfo | None = None) -> Iterator[int]:
        with queue.open(values, info) as timers:
            timers.push(200, 1)
            yield 1
            yield 2

    reader = rows(at(100))
    next(reader)
    del reader
    assert handle.calls == ["get"]
    assert list(rows(at(100))) == [1, 2]
    assert handle.registered == {200}
    handle.calls.clear()
    reader = rows(at(200), ExpiredTimerInfo(200))
    next(reader)
    del reader
    assert handle.calls == ["get"], "Spark has given up this call"


def test_processing_time_of_a_processor() -> None:
    handle = Handle()
    queue = ProcessorTimers(handle, processing_time=True, one_timer_per_key=True)
    with queue.open(TimerValues(500, 0)) as timers:
        timers.push(500, 1)
        assert not timers.push(501, 1)
        assert not timers.due()
    assert handle.registered == {501}
    with queue.open(TimerValues(501, -1)) as timers:
        assert list(timers.due()) == [(501, 1, 0)]


def test_misuse_of_processor_timers() -> None:
    with pytest.raises(TypeError, match=r"handle must be the StatefulProcessorHandle"):
        ProcessorTimers(group_state())  # type: ignore[arg-type]
    handle = Handle()
    queue = ProcessorTimers(handle)
    with pytest.raises(RuntimeError, match="handle has a ProcessorTimers already"):
        ProcessorTimers(handle)
    with pytest.raises(TypeError, match="timerValues must be Spark's TimerValues, got 5"):
        queue.open(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expiredTimerInfo must be Spark's ExpiredTimerInfo"):
        queue.open(at(1), 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start the query with timeMode 'EventTime'"):
        queue.open(TimerValues())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"with timers.open\(timerValues\)"), queue:
            pass
        with pytest.raises(RuntimeError, match="only inside its `with` block"):
            queue.push(1, 1)
        with queue.open(at(1)) as timers:
            timers.push(50, 1)
            with pytest.raises(RuntimeError, match="open already"):
                queue.open(at(2))
    handle.value = (b"foreign", 3)
    with pytest.raises(ValueError, match="state field 'timers' holds no TimerHeap"), queue.open(at(1)):
        pass
    assert handle.value == (b"foreign", 3)


# ---- in real queries ----

ON_DEFAULT_STORE = "HDFSBackedStateStoreProvider"
ON_ROCKSDB = "RocksDBStateStoreProvider"
OPERATIONS = "plane string, at timestamp, op string, due bigint, moved_to bigint, id bigint, namespace bigint"
FIRED = "plane string, due bigint, id bigint, namespace bigint, calls bigint"
FOLLOW_UP = 1000
BREAKING = 777

Row = tuple[Any, ...]
Batch = list[Row]


@pytest.fixture(scope="module", autouse=True)
def port_carried_to_workers() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(heapq_port)
    yield
    cloudpickle.unregister_pickle_by_value(heapq_port)


@contextmanager
def state_store(spark: SparkSession, provider: str) -> Iterator[None]:
    """The state store of the queries that are started inside, and as few partitions as can be told apart."""
    wanted = {
        "spark.sql.streaming.stateStore.providerClass": f"{STATE_STORES}.{provider}",
        "spark.sql.shuffle.partitions": "2",
    }
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def write(folder: Path, number: int, schema: str, rows: Batch) -> None:
    """The rows of one micro-batch; ``at`` is in epoch ms."""
    folder.mkdir(exist_ok=True)
    names = [field.split()[0] for field in schema.split(", ")]
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["at"] = pa.array([1000 * at for at in columns["at"]], pa.timestamp("us", tz="UTC"))
    path = folder / f"{number:03}.parquet"
    pq.write_table(pa.table(columns), path)
    os.utime(path, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first


def read(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return files.withWatermark("at", "0 seconds")


def start(df: DataFrame, checkpoint: Path, output: list[Row], **trigger: Any) -> StreamingQuery:
    """Start a query; its rows go to `output`, each after the number of its micro-batch."""
    writer = df.writeStream.foreachBatch(lambda rows, n: output.extend((n, *row) for row in rows.collect()))
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


class Operator:
    """Does with timers what the rows say; each that fires registers a follow-up for the very same moment."""

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
    """A function for applyInPandasWithState. It counts its calls for as long as there are timers."""

    def __call__(
        self, key: Row, batches: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        with GroupTimers(state) as timers:
            calls = timers.state[0] + 1 if timers.state else 1
            self.apply(timers, batches, by_key=False)
            yield self.fire(key[0], timers, calls)
            timers.state = (calls,) if timers else None


class InProcessor(Operator, StatefulProcessor):
    """For transformWithStateInPandas. It counts the calls of handleExpiredTimer, where its timers fire."""

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
    """Rows that commute within a micro-batch; many timers are due exactly at a later watermark."""
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
    """What each micro-batch fires, and how many planes keep timers, from plain dicts; [] has no rows."""
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
def test_timers_outlive_restarts_and_failures(by_key: bool, spark: SparkSession, tmp_path: Path) -> None:
    """Run to the end of the input; start again, fail inside a block; start again with a mended function."""
    batches = random_batches(by_key, 6)
    batches[4].insert(3, (batches[4][3][0], START + 4500, "push", START + 5000, 0, BREAKING, 0))
    output: list[Row] = []

    def query(broken: bool) -> StreamingQuery:
        groups = read(spark, tmp_path / "input", OPERATIONS).groupBy("plane")
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
            write(tmp_path / "input", n, OPERATIONS, rows)
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
            "a group without timers and state is gone"
        )


@pytest.mark.spark
@pytest.mark.parametrize("processor", [False, True], ids=["groups", "processor"])
def test_processing_time(processor: bool, spark: SparkSession, tmp_path: Path) -> None:
    """Timers fire by Spark's clock, in a micro-batch of its own making."""

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
        with GroupTimers(state) as timers:
            if not state.hasTimedOut:
                timers.push_many([now, now + 1, now + 800, now + 10**9], key_hashes=0)
            yield frame(timers.due(), now)

    def frame(due: Any, now: int) -> pd.DataFrame:
        return pd.DataFrame({"due": due.timestamps, "fired": now})

    write(tmp_path / "input", 0, "plane string, at timestamp", [("N1", START)])
    groups = read(spark, tmp_path / "input", "plane string, at timestamp").groupBy("plane")
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


def test_the_port_changes_queue_lines_only() -> None:
    def kept(function: Callable[..., object]) -> tuple[list[str], int]:
        lines = [line.strip() for line in inspect.getsource(function).splitlines()[1:]]
        others = [line for line in lines if not line.endswith("# queue")]
        return others, len(lines) - len(others)

    on_heapq, before = kept(heapq_port.late_orders_heapq)
    on_timerheap, after = kept(heapq_port.late_orders_timerheap)
    assert on_heapq == on_timerheap
    assert 0 < after < before


@pytest.mark.spark
def test_the_port_gives_the_same_output(spark: SparkSession, tmp_path: Path) -> None:
    choose = random.Random(11)
    orders: dict[int, tuple[str, int]] = {}
    for n in range(5):
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
        write(tmp_path / "input", n, heapq_port.INPUT, rows)

    outputs: list[list[Row]] = []
    with state_store(spark, ON_DEFAULT_STORE):
        for function in (heapq_port.late_orders_heapq, heapq_port.late_orders_timerheap):
            df = (
                read(spark, tmp_path / "input", heapq_port.INPUT)
                .groupBy("courier")
                .applyInPandasWithState(
                    function, heapq_port.OUTPUT_SCHEMA, heapq_port.STATE_SCHEMA, "append", "EventTimeTimeout"
                )
            )
            outputs.append([])
            start(df, tmp_path / function.__name__, outputs[-1], availableNow=True).awaitTermination()
    assert sorted(outputs[0]) == sorted(outputs[1])
    assert len(outputs[0]) > 30
    assert any(row[0] == 5 for row in outputs[0]), "the micro-batch without rows"
