"""Functions OVER rows: random rows of many cases, queries and the same in Spark, replays without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from chunk_store import GroupStore, load, save
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import MAX_WATERMARK
from timerheap.spark._arrow import KeyedRows, event_millis
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

Row = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(microseconds=250)
DELAY = 5  # ms
SCHEMA = pa.schema(
    [
        ("c", pa.int64()),
        ("k", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("v", pa.float64()),
        ("s", pa.string()),
        ("n", pa.int64()),
    ]
)

BY, CONTENT = "PARTITION BY c, k", "v NULLS LAST, s NULLS LAST, n"
W, T = f"{BY} ORDER BY at", f"{BY} ORDER BY at, {CONTENT}"
PEERS = f"PARTITION BY c, k, at ORDER BY {CONTENT} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
ALL = f"{T} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def last(n: int) -> str:
    return f"ROWS BETWEEN {n} PRECEDING AND CURRENT ROW"


NEAR = "RANGE BETWEEN INTERVAL '0.002' SECOND PRECEDING AND CURRENT ROW"

# By name: a function and its window, and the same in Spark, where rows of one time have no order.
BEFORE: dict[str, tuple[str, str]] = {
    "lag": (f"LAG(v) OVER ({W})", f"LAG(v) OVER ({T})"),
    "lag 3": (f"LAG(s, 3, 'none') OVER ({W})", f"LAG(s, 3, 'none') OVER ({T})"),
    "lag of nulls": (f"LAG(v, 2) IGNORE NULLS OVER ({W})", f"LAG(v, 2) IGNORE NULLS OVER ({T})"),
    "first": (f"FIRST_VALUE(v) OVER ({W})", f"FIRST_VALUE(v) OVER ({T})"),
    "first of nulls": (
        f"FIRST_VALUE(s) IGNORE NULLS OVER ({W})",
        f"CASE WHEN COUNT(s) OVER ({W}) > 0 THEN FIRST_VALUE(s) IGNORE NULLS OVER ({ALL}) END",
    ),
    "last": (f"LAST_VALUE(v) OVER ({W})", f"LAST_VALUE(v) OVER ({PEERS})"),
    "last of nulls": (
        f"LAST_VALUE(s) IGNORE NULLS OVER ({W} ROWS UNBOUNDED PRECEDING)",
        f"LAST_VALUE(s) IGNORE NULLS OVER ({T} ROWS UNBOUNDED PRECEDING)",
    ),
    "second": (
        f"NTH_VALUE(v, 2) OVER ({W})",
        f"CASE WHEN COUNT(*) OVER ({W}) > 1 THEN NTH_VALUE(v, 2) OVER ({ALL}) END",
    ),
    "second of nulls": (
        f"NTH_VALUE(s, 2) IGNORE NULLS OVER ({W})",
        f"CASE WHEN COUNT(s) OVER ({W}) > 1 THEN NTH_VALUE(s, 2) IGNORE NULLS OVER ({ALL}) END",
    ),
    "first of 3": (f"FIRST_VALUE(v) OVER ({W} {last(2)})", f"FIRST_VALUE(v) OVER ({T} {last(2)})"),
    "first of nulls of 4": (
        f"FIRST_VALUE(s) IGNORE NULLS OVER ({W} {last(3)})",
        f"FIRST_VALUE(s) IGNORE NULLS OVER ({T} {last(3)})",
    ),
    "second of 3": (f"NTH_VALUE(n, 2) OVER ({W} {last(2)})", f"NTH_VALUE(n, 2) OVER ({T} {last(2)})"),
    "last of nulls of 3": (
        f"LAST_VALUE(s) IGNORE NULLS OVER ({W} {last(2)})",
        f"LAST_VALUE(s) IGNORE NULLS OVER ({T} {last(2)})",
    ),
    "row number": (f"ROW_NUMBER() OVER ({W})", f"ROW_NUMBER() OVER ({T})"),
    "rank": (f"RANK() OVER ({W})", f"RANK() OVER ({W})"),
    "dense rank": (f"DENSE_RANK() OVER ({W})", f"DENSE_RANK() OVER ({W})"),
    "sum": (f"SUM(v) OVER ({W})", f"SUM(v) OVER ({W})"),
    "sum of integers": (f"SUM(n * 2) OVER ({W})", f"SUM(n * 2) OVER ({W})"),
    "sum of some": (f"SUM(n) FILTER (WHERE v > 1) OVER ({W})", f"SUM(IF(v > 1, n, NULL)) OVER ({W})"),
    "sum of decimals": (
        f"SUM(CAST(v AS DECIMAL(9, 2))) OVER ({W})",
        f"SUM(CAST(v AS DECIMAL(9, 2))) OVER ({W})",
    ),
    "count": (f"COUNT(s) OVER ({W})", f"COUNT(s) OVER ({W})"),
    "rows": (f"COUNT(*) OVER ({W})", f"COUNT(*) OVER ({W})"),
    "average": (
        f"AVG(v) OVER ({W} ROWS UNBOUNDED PRECEDING)",
        f"AVG(v) OVER ({T} ROWS UNBOUNDED PRECEDING)",
    ),
    "least": (f"MIN(s) OVER ({W})", f"MIN(s) OVER ({W})"),
    "largest": (f"MAX(v) OVER ({W})", f"MAX(v) OVER ({W})"),
    "latest": (f"MAX(at) OVER ({W})", f"MAX(at) OVER ({W})"),
    "sum of 3": (f"SUM(v) OVER ({W} {last(2)})", f"SUM(v) OVER ({T} {last(2)})"),
    "sum of 2 ms": (f"SUM(v) OVER ({W} {NEAR})", f"SUM(v) OVER ({W} {NEAR})"),
    "rows of 2 ms": (f"COUNT(*) OVER ({W} {NEAR})", f"COUNT(*) OVER ({W} {NEAR})"),
}
BEHIND: dict[str, tuple[str, str]] = {
    "lead": (f"LEAD(n) OVER ({W})", f"LEAD(n) OVER ({T})"),
    "lead 2": (f"LEAD(v, 2, -1) OVER ({W})", f"LEAD(v, 2, -1D) OVER ({T})"),
    "lead of nulls": (f"LEAD(s) IGNORE NULLS OVER ({W})", f"LEAD(s) IGNORE NULLS OVER ({T})"),
}
ORDERED: dict[str, tuple[str, str]] = {  # with more columns in ORDER BY
    "lag": ("LAG(n) OVER w", "LAG(n) OVER u"),
    "lead": ("LEAD(n) OVER w", "LEAD(n) OVER u"),
    "rank": ("RANK() OVER w", "RANK() OVER w"),
    "dense rank": ("DENSE_RANK() OVER w", "DENSE_RANK() OVER w"),
    "sum": ("SUM(v) OVER w", "SUM(v) OVER w"),
    "last": (
        "LAST_VALUE(n) OVER (w ROWS UNBOUNDED PRECEDING)",
        f"LAST_VALUE(n) OVER ({BY} ORDER BY at, s DESC NULLS LAST, v, n ROWS UNBOUNDED PRECEDING)",
    ),
}
WINDOWS = f"WINDOW w AS ({BY} ORDER BY at, s DESC NULLS LAST, v)"
TOTAL = f"{WINDOWS}, u AS ({BY} ORDER BY at, s DESC NULLS LAST, v, n)"


def text(functions: dict[str, tuple[str, str]], of: int, clause: str = "") -> str:
    """A query of all rows with functions: ours are number 0, Spark's number 1."""
    items = ", ".join(f"{pair[of]} AS `{name}`" for name, pair in functions.items())
    return f"SELECT *, {items} FROM t {clause}"


def cases(seed: int, count: int) -> list[Row]:
    """The rows of some cases, in an order that is nearly that of their times; none comes too late."""
    rng, numbers = random.Random(seed), iter(range(1 << 30))
    rows = list[Row]()
    for case in range(count):
        keys = rng.choice([["a"], ["a", None], ["a", "b", None]])
        span = rng.choice([4, 40, 400])
        first = rng.randrange(400 - span + 1)
        for _ in range(rng.choice([1, 2, 5, 12, 40])):
            v, s = rng.choice([None, 1.0, 2.0, 3.5, -0.25]), rng.choice([None, None, "x", "y", "zz"])
            at = START + STEP * (first + rng.randrange(span))
            rows.append({"c": case, "k": rng.choice(keys), "at": at, "v": v, "s": s, "n": next(numbers)})
    return disordered(rows, rng)


def disordered(rows: list[Row], rng: random.Random) -> list[Row]:
    noise = timedelta(milliseconds=DELAY)
    return sorted(rows, key=lambda row: row["at"] + noise * rng.random())


def values(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


class Replay:
    """The operator of a query on one key group; what it keeps is saved and loaded between micro-batches."""

    def __init__(self, spark: SparkSession, query: str, **more: Any) -> None:
        caught: list[tuple[Query, DataFrame]] = []

        def build(query: Query, df: DataFrame, each_batch: bool = False) -> DataFrame:
            caught.append((query, df))
            return real(query, df, each_batch=each_batch)

        planned = "timerheap.spark._sql.plan.processed"
        real = import_module(planned).build
        with patch(f"{planned}.build", build):
            self.names = timerheap.spark.sql(spark, query, **more).columns
        ((self.query, df),) = caught
        self.rows = df.select(self.query.rows.names).toArrow().cast(self.query.schema).combine_chunks()
        key = zip(*(self.rows.column(name).to_pylist() for name in self.query.key), strict=True)
        self.ids = np.array([hash(repr(one)) for one in key], np.int64)
        self.times = event_millis(self.rows.column(str(self.query.event_time)).combine_chunks())
        self.anew()

    def anew(self) -> Replay:
        """Begin without state and results."""
        self.output = ResultBuffer(*self.query.outputs)
        self.results: list[Row] = []
        self.store = GroupStore()
        self.group, self.stored = KeyGroup(self.query.layout), Stored(Manifest(1))
        self.watermark = -(1 << 63)
        return self

    def add(self, rows: np.ndarray, watermark: int) -> None:
        """Run a micro-batch of rows with these numbers."""
        runner = self.query.work.runner(self.query, Placement.running(1))
        batch = self.rows.take(pa.array(rows)).combine_chunks().to_batches()
        added = KeyedRows(batch[0], self.ids[rows], self.times[rows]) if len(rows) else None
        self.watermark = max(watermark, self.watermark)
        run_key_group(MicroBatch(self.query, runner, None, self.output), self.group, added, self.watermark)

    def restart(self) -> None:
        """Continue with what has been saved."""
        self.group.forget_dead_keys(always=True)
        save(self.group, self.stored, self.store)
        self.group = KeyGroup(self.query.layout)
        self.stored = load(self.store, self.group)

    def run(self, order: np.ndarray, batches: int, rng: random.Random, restarts: bool = True) -> None:
        """Run rows in this order in so many micro-batches, and then the end of time."""
        cuts = sorted(rng.randrange(len(order) + 1) for _ in range(batches - 1))
        for part in np.split(order, cuts):
            newest = int(self.times[part].max()) if len(part) else self.watermark
            self.add(part, newest - DELAY - 1)
            if restarts and rng.random() < 0.3:
                self.restart()
        self.add(order[:0], MAX_WATERMARK)

    def found(self) -> list[Row]:
        """The results so far, with the names of the query."""
        self.results += self.output.table().to_pylist()
        return [dict(zip(self.names, row.values(), strict=True)) for row in self.results]
