"""`drop_duplicates` beside a plain model: a key group called without Spark, then batches and streams."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from queries import opened

from timerheap.spark import EventTime, drop_duplicates, read_checkpoint
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

pytestmark = pytest.mark.spark

Row = tuple[int, int, int]  # k, at, n
END, DELAY, KEYS = (1 << 63) - 1, 20, 60
ROWS = StructType().add("k", "long").add("at", "long").add("n", "long")
SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("n", pa.int64())])
RUNS = [(last, within) for last in (False, True) for within in (None, 0, 7, 40)]


def batches_of(seed: int, count: int) -> list[list[Row]]:
    """Rows of keys that come often or seldom, out of order and a few of them late, in micro-batches."""
    draw = random.Random(seed)
    rows = [(int(draw.paretovariate(0.4)) % KEYS, draw.randrange(2_000), n) for n in range(1_200)]
    rows.sort(key=lambda row: row[1] + draw.randrange(3 * DELAY))
    size = -(-len(rows) // count)
    return [rows[start * size : (start + 1) * size] for start in range(count)]


def watermarks(batches: list[list[Row]]) -> list[int]:
    newest = [max(row[1] for row in batch) - DELAY - 1 for batch in batches]
    return np.maximum.accumulate(newest).tolist()


def runs(rows: list[Row], within: int | None) -> list[list[Row]]:
    """The rows of one key, which are sorted, in runs."""
    found = list[list[Row]]()
    for row in rows:
        if found and (within is None or row[1] - found[-1][-1][1] <= within):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def in_time(batches: list[list[Row]], marks: list[int]) -> tuple[list[list[Row]], list[Row]]:
    """The rows of each micro-batch, and those that are late."""
    taken, late = list[list[Row]](), list[Row]()
    for batch, before in zip(batches, [-END, *marks], strict=False):
        taken.append([row for row in batch if row[1] > before])
        late += [row for row in batch if row[1] <= before]
    return taken, late


def by_key(rows: list[Row]) -> dict[int, list[Row]]:
    found = defaultdict[int, list[Row]](list)
    for row in rows:
        found[row[0]].append(row)
    return found


def in_event_time(batches: list[list[Row]], marks: list[int], last: bool, within: int | None) -> list[Row]:
    """The rows that are known at the last watermark."""
    emitted = list[Row]()
    known = [row for batch in batches for row in batch if row[1] <= marks[-1]]
    for rows in by_key(known).values():
        divided = runs(sorted(rows, key=lambda row: row[1:]), within)
        ended = marks[-1] == END or (within is not None and divided[-1][-1][1] + within <= marks[-1])
        emitted += [run[-1] for run in divided[: None if ended else -1]] if last else [r[0] for r in divided]
    return emitted


def on_arrival(batches: list[list[Row]], marks: list[int], last: bool, within: int | None) -> list[Row]:
    """What the micro-batches change."""
    newest, emitted = dict[int, int](), list[Row]()
    for batch, mark in zip(batches, marks, strict=True):
        for key, rows in by_key(batch).items():
            held = before = newest.get(key)
            rows.sort(key=lambda row: row[1])
            if last:
                emitted += [run[-1] for run in runs(rows, within) if held is None or run[-1][1] >= held]
            for row in rows:
                if not last and (before is None or (within is not None and row[1] - before > within)):
                    emitted.append(row)
                before = row[1] if before is None else max(before, row[1])
            newest[key] = before
        if within is not None:
            newest = {key: time for key, time in newest.items() if time + within > mark}
    return emitted


class Group:
    """One key group, without Spark."""

    def __init__(self, rows: DataFrame, last: bool, within: int | None, order: str) -> None:
        caught: list[Query] = []
        with patch("timerheap.spark._process.drop_duplicates.build", lambda query, _: caught.append(query)):
            keep = "last" if last else "first"
            drop_duplicates(rows, "k", "at", watermark=DELAY, keep=keep, within=within, order=order)
        (self.query,) = caught
        self.group, self.emitted = KeyGroup(self.query.layout), list[Row]()

    def run(self, batch: list[Row], watermark: int) -> None:
        table, output = pa.Table.from_arrays(list(np.array(batch).T), schema=SCHEMA), ResultBuffer(SCHEMA)
        rows = KeyedRows(table.to_batches()[0], table["k"].to_numpy() * 7919, table["at"].to_numpy())
        run_key_group(MicroBatch(self.query, opened(self.query), None, output), self.group, rows, watermark)
        self.emitted += [tuple(row.values()) for row in output.table().to_pylist()]


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], ROWS)


@pytest.mark.parametrize(("last", "within"), RUNS)
@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_a_key_group_is_the_model(rows: DataFrame, order: str, last: bool, within: int | None) -> None:
    model = in_event_time if order == "event_time" else on_arrival
    for seed in range(6):
        batches = batches_of(seed, 8)
        marks = watermarks(batches)
        group = Group(rows, last, within, order)
        for batch, mark in zip(batches, marks, strict=True):
            group.run(batch, mark)
        taken, late = in_time(batches, marks)
        assert group.group.late_rows == len(late) > 0
        assert sorted(group.emitted) == sorted(model(taken, marks, last, within))
        assert group.emitted or (last and within is None)
        whole, every = Group(rows, last, within, order), [row for batch in batches for row in batch]
        whole.run(every, END)
        assert sorted(whole.emitted) == sorted(model([every], [END], last, within))
        times = sorted(row[:2] for row in in_event_time([every], [END], last, within))
        assert sorted(row[:2] for row in whole.emitted) == times  # in both orders


def test_the_last_row_on_arrival_is_that_of_the_batch(rows: DataFrame) -> None:
    """Who merges each change by key has in the end what a batch has."""
    batches = batches_of(99, 8)
    group = Group(rows, True, None, "arrival")
    for batch, mark in zip(batches, watermarks(batches), strict=True):
        group.run(batch, mark)
    taken, _ = in_time(batches, watermarks(batches))
    merged = {row[0]: row[1] for row in group.emitted}
    every = by_key([row for batch in taken for row in batch])
    assert merged == {key: max(row[1] for row in of_key) for key, of_key in every.items()}


@pytest.mark.in_turn
@pytest.mark.usefixtures("one_partition")
@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_stream_over_a_restart_and_a_batch(spark: SparkSession, tmp_path: Path, keep: str) -> None:
    batches = batches_of(7, 4)
    taken, late = in_time(batches, watermarks(batches))

    def kept(df: DataFrame, **more: Any) -> DataFrame:
        return drop_duplicates(
            df.withColumn("text", F.array(F.col("n").cast("string"))).groupBy("k"),
            event_time=EventTime("at", tie_break="n"),
            **more,
            watermark=DELAY,
            keep=keep,
            within="7 milliseconds",
            max_parallelism=2,
        )

    for start, stop in ((0, 2), (2, 4)):
        parts = [
            pa.Table.from_arrays(list(np.array(batch).T), schema=SCHEMA) for batch in batches[start:stop]
        ]
        streams.write_batches(tmp_path / "in", parts, SCHEMA)
        result = streams.with_late(kept(streams.read_stream(spark, tmp_path / "in"), late="emit"))
        streams.run(result, tmp_path)
    found = streams.sink(spark, tmp_path)
    wanted = in_event_time(taken, watermarks(batches), keep == "last", 7)
    assert sorted(row[:3] for row in found if row[-1] is None) == sorted(wanted)
    assert all(row[3] == [str(row[2])] for row in found if row[-1] is None)
    assert sorted(row[-1]["n"] for row in found if row[-1] is not None) == sorted(row[2] for row in late)
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    keys = state.state("newest").count()
    assert 0 < keys < KEYS
    assert sum(group["event_time_timers"] for group in state.groups().collect()) == keys

    every = [row for batch in taken for row in batch]
    rows = spark.createDataFrame(every, ROWS)
    assert sorted(tuple(row)[:3] for row in kept(rows).collect()) == sorted(
        in_event_time([every], [END], keep == "last", 7)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": "any"}, 'keep must be "first" or "last", got \'any\''),
        ({"within": -1}, "within must be 0 or more, got -1"),
        ({"order": "none"}, "order must"),
        ({"event_time": None, "order": "arrival", "watermark": None}, "event_time must name"),
        ({"keep": "last"}, "within must say when the last row of a stream is known, got None"),
        ({"late": "keep"}, "late must"),
    ],
)
def test_wrong_arguments(spark: SparkSession, arguments: dict[str, Any], message: str) -> None:
    df = spark.readStream.format("rate").load().withColumnRenamed("value", "k")
    with pytest.raises((TypeError, ValueError), match=message):
        drop_duplicates(df, **{"key": "k", "event_time": "timestamp", "watermark": 0} | arguments)
    with pytest.raises(TypeError, match="df must be a pyspark"):
        drop_duplicates("df", "k", "timestamp", watermark=0)  # type: ignore[arg-type]


def test_the_last_row_on_arrival_goes_by_microseconds(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, 200), (1, 100)], "k int, micros long").coalesce(1)
    rows = rows.withColumn("at", F.timestamp_micros("micros"))
    for order in ("event_time", "arrival"):
        found = drop_duplicates(rows, "k", "at", watermark=0, keep="last", order=order)
        assert [row.micros for row in found.collect()] == [200], order
