"""MATCH_RECOGNIZE on streams: random queries, timed-out matches, silence, state and changed queries."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from match_cases import matching, read, shown_columns
from match_model import SkipError
from match_random import NAMES, TIMED_OUT, Case
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import WatermarkStrategy
from timerheap.spark import read_checkpoint, timed_out_matches, with_side_outputs

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

CASES = int(os.environ.get("TIMERHEAP_MATCH_CASES", "300"))
UTC = pa.timestamp("us", "UTC")
MATCHED = pa.schema(
    [("k", pa.int64()), ("ts", UTC), ("n", pa.int64()), ("v", pa.int64())]
    + [(f"can_{name}", pa.bool_()) for name in NAMES]
)
SPAN = 1_000  # seconds, in which all rows are
MEASURES = ("number", "label", "count", "sum", "min", "max", "avg", "first", "last", "of 0")


def cases(rng: random.Random) -> Iterator[tuple[Case, list[dict[str, Any]]]]:
    """Yield random queries of a stream, and what they find."""
    while True:
        try:
            case = Case(rng, stream=True)
            yield case, case.wanted()
        except (ValueError, SkipError):  # a pattern without a variable, or nowhere to go to
            continue


def rows_of(case: Case) -> list[dict[str, Any]]:
    return [
        {"k": key, "ts": at * 1_000_000, "n": n, "v": value}
        | {f"can_{name}": case.can[name][n] for name in NAMES}
        for n, ((at, key), value) in enumerate(zip(case.rows, case.values, strict=True))
    ]


def result_of(spark: SparkSession, case: Case, name: str) -> DataFrame:
    """Return the matches in a table, and the timed-out ones, in a column of JSON."""
    query = f"SELECT * FROM {name} MATCH_RECOGNIZE ({case.clause()})"
    options: dict[str, Any] = {"watermark": "0 seconds", "max_parallelism": 2, "unbounded_matches": True}
    options |= {"timed_out": "emit"} if case.timed_out else {}
    options |= {"lead_within": f"{case.lead_within} seconds"} if case.ahead else {}
    options |= {} if case.lag_within is None else {"lag_within": f"{case.lag_within} seconds"}
    found = timerheap.spark.sql(spark, query, **options)
    found = with_side_outputs(found) if case.timed_out else found
    row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    return found.select(F.lit(name).alias("name"), row.alias("row"))


@pytest.mark.parametrize("number", range(max(1, CASES // 2000)))
def test_streams_find_what_the_standard_says(spark: SparkSession, tmp_path: Path, number: int) -> None:
    """Several queries in one: their micro-batches begin and end together, and there is a restart."""
    rng = random.Random(number)
    found = cases(rng)
    chosen = {f"case_{at}": next(found) for at in range(3)}
    parts: dict[str, list[Any]] = {}
    for name, (case, _) in chosen.items():
        cuts = [-1, *sorted(rng.sample(range(16), rng.randint(0, 3))), 16]
        rows = rows_of(case)
        parts[name] = [
            [row for row in rows if low < row["ts"] // 1_000_000 <= high] for low, high in pairwise(cuts)
        ]
        end = dict.fromkeys(MATCHED.names) | {"k": 3, "ts": SPAN * 1_000_000}
        parts[name] = [part for part in parts[name] if part] + [[end]]
    for first in (True, False):
        for name, some in parts.items():
            now = some[:2] if first else some[2:]
            streams.write_batches(tmp_path / name, now, MATCHED)
            streams.read_stream(spark, tmp_path / name).createOrReplaceTempView(name)
        results = [result_of(spark, case, name) for name, (case, _) in chosen.items()]
        streams.run(reduce(DataFrame.union, results), tmp_path)
    written = spark.read.parquet(str(tmp_path / "sink")).collect()
    for name, (case, wanted) in chosen.items():
        records = [told(json.loads(text)) for one, text in written if one == name]
        records = [record for record in records if record[1] < 3]
        assert sorted(records, key=repr) == sorted(map(of_model, wanted), key=repr), case.clause()


def told(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the columns of a match that the model has, and whether it has timed out."""
    beside = record.pop("side_output", None)
    record = beside["timed_out"] if beside else record
    return beside is not None, *(record[name] for name in ("k", "v", *MEASURES) if name in record)


def of_model(row: dict[str, Any]) -> tuple[Any, ...]:
    return bool(row.get(TIMED_OUT)), *(row[name] for name in ("k", "v", *MEASURES) if name in row)


ORDERS = """PARTITION BY k ORDER BY ts
    MEASURES FIRST(O.ts) AS ordered, P.n AS paid, LAST(n) AS last, MATCH_NUMBER() AS number
    PATTERN (O X*? P) WITHIN INTERVAL '10' SECOND DEFINE O AS v = 1, P AS v = 2"""


def orders(spark: SparkSession, folder: Path, parts: list[list[tuple[int, int, int]]]) -> None:
    """Add micro-batches of keys, seconds and values to the stream of a folder, the table orders."""
    rows = [[{"k": k, "ts": at * 1_000_000, "n": 10 * k + at, "v": v} for k, at, v in part] for part in parts]
    streams.write_batches(folder, rows, MATCHED)
    streams.read_stream(spark, folder).createOrReplaceTempView("orders")


def matches(spark: SparkSession, clause: str = ORDERS, select: str = "*", **options: Any) -> DataFrame:
    options = {"watermark": "0 seconds", "max_parallelism": 2} | options
    return timerheap.spark.sql(spark, f"SELECT {select} FROM orders MATCH_RECOGNIZE ({clause})", **options)


@pytest.mark.promises("Flink SQL", "added", "timed-out partial matches", note="`timed_out_matches`")
def test_partial_matches_that_time_out_are_a_side_output(spark: SparkSession, tmp_path: Path) -> None:
    parts = [[(1, 1, 1), (2, 1, 1), (1, 2, 0), (2, 3, 0)], [(1, 5, 2), (3, 11, 1)], [(4, 99, 0), (4, 5, 1)]]
    orders(spark, tmp_path / "rows", parts)
    select = "k, unix_seconds(ordered) AS ordered, paid, last + 0 AS last, number"
    result = matches(spark, ORDERS, select, late="emit", timed_out="emit")
    outputs = with_side_outputs(result)
    assert [field.name for field in outputs.schema["side_output"].dataType] == ["timed_out", "late_rows"]
    batches = streams.batches(outputs, tmp_path)
    complete = [[row[:5] for row in rows if row[5] is None] for rows in batches]
    lost = [
        [tuple(row[5]["timed_out"]) for row in rows if row[5] and row[5]["timed_out"]] for rows in batches
    ]
    late = [row[5]["late_rows"]["n"] for rows in batches for row in rows if row[5] and row[5]["late_rows"]]
    assert [rows for rows in complete if rows] == [[(1, 1, 15, 15, 1)]]
    assert [sorted(rows) for rows in lost if rows] == [[(2, 1, None, 23, None)], [(3, 11, None, 41, None)]]
    assert late == [45]


def test_timed_out_matches_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    orders(spark, tmp_path / "rows", [[(1, 1, 1), (2, 1, 1), (1, 2, 0), (2, 3, 0), (1, 5, 2), (3, 40, 1)]])
    spark.read.parquet(str(tmp_path / "rows")).createOrReplaceTempView("orders")
    result = matches(spark, timed_out="emit")
    assert [row["paid"] for row in result.collect()] == [15]
    assert sorted((row["k"], row["last"]) for row in timed_out_matches(result).collect()) == [
        (2, 23),
        (3, 70),
    ]
    without = matches(spark)
    with pytest.raises(ValueError, match=r'df must be the result of sql\(\) with timed_out="emit"'):
        timed_out_matches(without)
    with pytest.raises(ValueError, match='timed_out must be "drop" for a query without MATCH_RECOGNIZE'):
        matches(spark, ORDERS.replace("WITHIN INTERVAL '10' SECOND", ""), timed_out="emit")
    with pytest.raises(ValueError, match=r"timed_out must be .*, got 'all'"):
        matches(spark, timed_out="all")


def test_the_clock_ends_within_in_silence(spark: SparkSession, tmp_path: Path) -> None:
    now = int(time.time())
    orders(spark, tmp_path / "rows", [[(1, now, 1), (1, now + 1, 3), (2, now, 1)]])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_wall_clock("1 second", "0 seconds")
    clause = ORDERS.replace("X*? P", "P+").replace("P AS v = 2", "P AS v > 2").replace("10", "2")
    result = matches(spark, clause, "k, last", watermark=strategy, timed_out="emit")
    outputs = with_side_outputs(result).selectExpr("k", "last", "side_output.timed_out.k AS lost")
    found = streams.run_until(outputs, lambda rows: len(rows) > 1, tmp_path)
    assert found == [(1, 11 + now, None), (None, None, 2)]


def test_partial_matches_can_be_read_and_some_changes_continue_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders(spark, tmp_path / "rows", [[(1, 1, 1), (1, 2, 0), (2, 2, 1)], [(3, 3, 3)]])
    streams.run(matches(spark, select="k, last"), tmp_path)
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    kept = {row["k"]: row["value"] for row in state.state("matches").collect()}
    assert {k: [row["__timerheap_time"] for row in value["rows"]] for k, value in kept.items()} == {
        1: [1_000, 2_000], 2: [2_000]
    }  # fmt: skip
    assert sorted(kept[1]["rows"][0].asDict()) == [
        "__timerheap_bits",
        "__timerheap_micros",
        "__timerheap_of:n",
        "__timerheap_of:ts",
        "__timerheap_time",
    ]
    assert [row["epoch_ms"] for row in state.timers().orderBy("k").collect()] == [10_999, 11_999]

    orders(spark, tmp_path / "rows", [[(1, 6, 2)]])
    with pytest.raises(Exception, match="MATCH_RECOGNIZE must have the pattern, conditions and SKIP"):
        streams.run(matches(spark, ORDERS.replace("X*? P", "X+? P"), "k, last"), tmp_path)
    streams.run(
        matches(spark, ORDERS.replace("LAST(n)", "SUM(n)").replace("'10'", "'6'"), "k, last"), tmp_path
    )
    assert streams.sink(spark, tmp_path) == [(1, 11 + 12 + 16)]


CHANGES = [
    (True, "INTERVAL '10' SECOND", "INTERVAL '1' HOUR"),
    (True, "P.n AS paid, LAST(n) AS last", "MAX(n) AS last, AVG(P.n) AS mean"),
    (True, "ONE ROW PER MATCH PATTERN (O X*? P)", "PATTERN ( O (any)*? /* then */ P )"),
    (False, "X*? P", "X* P"),
    (False, "P AS v = 2", "P AS v >= 2"),
    (False, "P.n AS paid", "LAST(P.v) AS paid"),
    (False, "ONE ROW PER MATCH", "AFTER MATCH SKIP TO NEXT ROW"),
    (False, "ONE ROW PER MATCH", "ALL ROWS PER MATCH"),
    (False, "WITHIN INTERVAL '10' SECOND", ""),
]


def test_which_changes_continue_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    orders(spark, tmp_path / "rows", [[(1, 1, 1)]])
    df, marks = spark.table("orders"), list[int]()
    clause = ORDERS.replace("PATTERN", "ONE ROW PER MATCH PATTERN")
    for _, old, new in [(True, clause, clause), *CHANGES]:
        assert old in clause
        node = read(clause.replace(old, new))
        rows = df.withColumns({name: F.expr(text) for name, text in node.columns.items()})
        function, _ = matching(node, rows, shown_columns(node, df.columns))
        marks.append(function._plan.mark)
    assert [mark == marks[0] for mark in marks[1:]] == [same for same, *_ in CHANGES]
