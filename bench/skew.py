"""Measure key groups under skew and storms: CPU time, bytes written, memory; no Spark, one process.

Run as ``make bench-skew ARGS="--scale 0.1 --only 'a list'"``; README.md explains.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from chunk_store import MemoryStore, Parts, load, save
from figures import write_json
from pyspark.sql.types import StructType

from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.observed_times import merged
from timerheap.spark._functions.batch_runner import BatchRunner
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._functions.row_runner import RowRunner
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored_watermark import read_watermark
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._observed import OBSERVED
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

ROWS = StructType().add("k", "string").add("at", "long")
BEGIN, MINUTE = 1_760_000_000_000, 60_000  # ms


@dataclass
class Figure:
    """One line of the table.

    Parameters
    ----------
    case, step : str
    n : int
        How many timers, elements, rows or channels.
    seconds : float
        CPU time.
    written : int
        Bytes of chunks and manifests.
    peak : int
        The largest resident size of the process so far, bytes.
    """

    case: str
    step: str
    n: int
    seconds: float
    written: int
    peak: int


class Columns(BatchProcessFunction):
    """Registers a timer at the time of each row, 1,000 s later, and emits what fires."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 1_000_000)

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([ctx.keys(due.ids).column("k"), due.timestamps], names=["k", "at"])


class Sessions(Columns):
    """Each row moves the timer of its key."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 1_000_000, name="end")


class Rows(KeyedProcessFunction):
    """Each row registers a timer, as `Columns` do, row by row."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1_000_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


class States(KeyedProcessFunction):
    """Does with its states what the case asks for."""

    do: Callable[[States], None]

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.STRING()))
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", Types.LONG()))
        self.book = runtime_context.get_map_state(MapStateDescriptor("book", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.do(self)


class Group:
    """A key group with its store, driven as the operator drives it."""

    def __init__(
        self, case: str, function: KeyedProcessFunction | BatchProcessFunction, order: RowOrder = "arrival"
    ) -> None:
        self.case = case
        self.function = function
        self.query = Query(
            work=work_of(function),
            key=["k"],
            rows=ROWS,
            result=ROWS,
            event_time="at",
            watermarks=(WatermarkStrategy.for_monotonous_timestamps(),),
            channels=(None,),
            order=order,
            time_mode="None",
            max_parallelism=16,
        )
        self.store = MemoryStore()
        self.group, self.stored = KeyGroup(self.query.layout), Stored(Manifest(16))
        columns = isinstance(function, BatchProcessFunction)
        self.runner = (BatchRunner if columns else RowRunner)(function, self.query, 16)  # type: ignore[arg-type]
        self.runner.open()

    def batch(self, rows: KeyedRows | None, watermark: int) -> int:
        """Process a micro-batch, save it, and return the number of results."""
        output = ResultBuffer(self.query.result_schema)
        run_key_group(MicroBatch(self.query, self.runner, None, output), self.group, rows, watermark)
        self.group.forget_dead_keys()
        save(self.group, self.stored, self.store)
        return output.table().num_rows

    def load(self) -> None:
        """Load the group from the store."""
        self.group = KeyGroup(self.query.layout)
        self.stored = load(self.store, self.group)

    def measure(self, step: str, n: int, work: Callable[[], object]) -> Figure:
        """Return what a step costs."""
        before, start = self.store.written, time.process_time()
        work()
        seconds = time.process_time() - start
        return figure(self.case, step, n, seconds, self.store.written - before)


def figure(case: str, step: str, n: int, seconds: float, written: int) -> Figure:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return Figure(case, step, n, seconds, written, peak)


def rows_of(keys: np.ndarray, timestamps: np.ndarray) -> KeyedRows:
    text = pa.array(keys).cast(pa.large_string())
    batch = pa.record_batch([text, pa.array(timestamps)], names=["k", "at"])
    return KeyedRows(batch, keys * 0x5851F42D4C957F2D, timestamps)


def timers(case: str, function: Any, n: int, keys: int, instants: int) -> Iterator[Figure]:
    """Register n timers, fire them in ten micro-batches or in one, and load what was saved between."""
    group = Group(case, function)
    every = rows_of(np.arange(n) % keys, np.arange(n) * instants // n)
    yield group.measure("register", n, lambda: group.batch(every, -1))
    yield group.measure("load", n, group.load)
    steps = min(10, instants)
    yield group.measure(
        f"fire in {steps}",
        n,
        lambda: [group.batch(None, 1_000_000 + instants * (step + 1) // steps) for step in range(steps)],
    )
    assert not len(group.group.event_timers.heap)


def hot_key(case: str, n: int) -> Iterator[Figure]:
    """Process n rows of one key, and one row of each of n keys, in event-time order; most timers fire."""
    keys = np.concatenate([np.zeros(n, np.int64), 1 + np.arange(n)])
    rows = rows_of(keys, np.tile(np.arange(n) * 100, 2))
    for step, function in (("one timer", Sessions()), ("columns", Columns()), ("rows", Rows())):
        group = Group(case, function, "event_time")
        yield group.measure(step, 2 * n, lambda group=group: group.batch(rows, 100 * n))


def states(
    case: str, n: int, do: Callable[[States, int], None], rows: int = 1, before: int = 0
) -> Iterator[Figure]:
    """Process n micro-batches, each with a row for each of some keys; the first and the last tenth apart.

    Parameters
    ----------
    case : str
    n : int
    do : callable
        What the function does with its states, given a number that rises from micro-batch to micro-batch.
    rows : int
        The rows of a micro-batch, each of a key of its own.
    before : int
        How often `do` is called in one micro-batch before the n.
    """
    function = States()
    group = Group(case, function)
    count = 0

    def batches(n: int, row: KeyedRows) -> None:
        nonlocal count
        for _ in range(n):
            group.batch(row, -1)
            count += 1

    def each(function: States) -> None:
        nonlocal count
        do(function, count)
        count += 1

    if before:
        function.do = each
        every = rows_of(np.zeros(before, np.int64), np.zeros(before, np.int64))
        yield group.measure("before", before, lambda: batches(1, every))
    function.do = lambda function: do(function, count)
    some = rows_of(np.arange(rows), np.zeros(rows, np.int64))
    tenth = max(1, n // 10)
    for step, part in (("first tenth", tenth), ("between", n - 2 * tenth), ("last tenth", tenth)):
        yield group.measure(step, part, lambda part=part: batches(part, some))
    yield group.measure("load", before + n, group.load)


def append_many(case: str, n: int) -> Iterator[Figure]:
    group, count = Group(case, States()), iter(range(2 * n))
    group.function.do = lambda function: function.log.add(next(count))
    every = rows_of(np.zeros(n, np.int64), np.zeros(n, np.int64))
    for step in ("append", "append again"):
        yield group.measure(step, n, lambda: group.batch(every, -1))
    yield group.measure("load", 2 * n, group.load)


def neighbours(case: str, n: int) -> Iterator[Figure]:
    """Process the same rows in 16 groups, evenly, and with 100 times as many in one as in the others."""
    for step, large in (("16 alike", 1), ("one of 100x", 100)):
        groups = [Group(case, Columns()) for _ in range(16)]
        shares = [n * large // (15 + large), *[n // (15 + large)] * 15]
        start = time.process_time()
        for group, share in zip(groups, shares, strict=True):
            group.batch(rows_of(np.arange(share), np.arange(share)), -1)
        written = sum(group.store.written for group in groups)
        yield figure(case, step, n, time.process_time() - start, written)


def channels(case: str, n: int) -> Iterator[Figure]:
    """Advance the clock of a task with 8 key groups, from what two pack tasks send to what is written."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(1_000).with_idleness(600_000)
    strategies, columns = (strategy,), ("channel",)
    groups = [(Stored(Manifest(16)), MemoryStore()) for _ in range(8)]
    names = pa.array([f"channel-{i:05d}" for i in range(n)])
    draw = np.random.default_rng(1)
    state = WatermarkState(strategies, columns)
    for batch, (step, count) in enumerate([("new", n), ("all have rows", n), ("one has rows", 1)]):
        now = BEGIN + batch * MINUTE
        inputs, ones = pa.array(np.zeros(count, np.int8)), pa.array(np.ones(count, np.int64))
        timestamps = pa.array(now - draw.integers(0, MINUTE, count))
        observed = pa.table([inputs, names[:count], timestamps, ones], schema=OBSERVED)
        before, start = sum(store.written for _, store in groups), time.process_time()
        if batch:
            stored, store = groups[0]
            state = WatermarkState.from_bytes(read_watermark(stored.manifest, store), strategies, columns)
        state.observe(merged([observed, observed]), now, "run")
        data = state.to_bytes()
        for number, (stored, store) in enumerate(groups):
            stored.save(store, Parts(), data, writes_watermark=state.has_new_channels or number == 0)
        seconds = time.process_time() - start
        yield figure(case, step, count, seconds, sum(store.written for _, store in groups) - before)


def cases(scale: float) -> Iterator[tuple[str, Callable[[str], Iterator[Figure]]]]:
    def many(n: float) -> int:
        return max(10, int(n * scale))

    million, large = many(1e6), np.random.default_rng(1).bytes(500_000).hex()
    hundred = many(1e5)
    yield "one key, timers, columns", lambda case: timers(case, Columns(), million, 1, million)
    yield "one key, timers, rows", lambda case: timers(case, Rows(), hundred, 1, hundred)
    yield "keys due at once, columns", lambda case: timers(case, Columns(), million, million, 1)
    yield "keys due at once, rows", lambda case: timers(case, Rows(), hundred, hundred, 1)
    yield "a hot key", lambda case: hot_key(case, hundred)
    yield "one group of 100x", lambda case: neighbours(case, million)
    yield (
        "values of 1 MB, 10 keys",
        lambda case: states(case, many(30), lambda f, n: f.value.update(f"{n}{large}"), rows=10),
    )
    yield "a list, one batch", lambda case: append_many(case, hundred)
    yield (
        "a list, one a batch",
        lambda case: states(case, many(500), lambda f, n: f.log.add(n), before=hundred),
    )
    yield (
        "a map, one put a batch",
        lambda case: states(case, many(500), lambda f, n: f.book.put(f"key {n}", n), before=hundred),
    )
    yield (
        "a map, get and put",
        lambda case: states(
            case,
            many(100),
            lambda f, n: f.book.put(f"key {n}", f.book.get(f"key {n // 2}") or 0),
            before=hundred,
        ),
    )
    yield "channels", lambda case: channels(case, many(1e4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of all numbers (default 1)")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names begin so")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = []
    print(f"{'case':26} {'step':14} {'n':>9} {'seconds':>9} {'us each':>9} {'MB written':>11} {'peak MB':>8}")
    for name, run in cases(arguments.scale):
        if arguments.only and not name.startswith(tuple(arguments.only)):
            continue
        for figure in run(name):
            figures.append(asdict(figure))
            each = 1e6 * figure.seconds / figure.n
            print(
                f"{figure.case:26} {figure.step:14} {figure.n:9,} {figure.seconds:9.3f} {each:9.2f} "
                f"{figure.written / 1e6:11.3f} {figure.peak / 1e6:8.0f}",
                flush=True,
            )
    write_json(arguments, figures)


if __name__ == "__main__":
    main()
