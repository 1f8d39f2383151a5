"""What Flink's own tests of functions OVER rows expect, told anew: OverAggregateITCase.

Rows of a stream that have no event time follow each other as they arrive. What a function OVER rows must give
is computed here, from the rows of its frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from flink_tables import Case, Rows, table
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap import AggregateFunction
from timerheap.spark import udaf

__all__ = ["OVERS", "PAIRS"]

SEEN: Rows = [
    ("ann", 4, "pen", 1), ("ann", 2, "ink", 3), ("bob", 5, "pen", 2), ("ann", 4, "pen", 3),
    ("bob", 1, None, 6), ("ann", 3, "cup", 7), ("bob", 2, "ink", 7), ("ann", 6, "cap", 7.5),
    ("bob", 9, "pen", 12),
]  # fmt: skip
TIMED = table("k string, v bigint, s string, rowtime timestamp", *SEEN)
COMING = table("k string, v bigint, s string", *(row[:3] for row in SEEN))
DELAY = {"watermark": "rowtime - INTERVAL '5' SECOND"}
STREAM = ("stream",)
ALL = ["SUM(v)", "COUNT(v)", "AVG(v)", "MAX(v)", "MIN(v)"]
INTEGER = "`AVG` of integers is a double, where Flink's is an integer"

Frame = Callable[[Rows, int], Rows]


def in_order(keyed: bool, frame: Frame, timed: bool) -> list[tuple[tuple[Any, ...], Rows]]:
    """Return each row with the rows of its frame, in the order of time or of arrival."""
    rows = sorted(SEEN, key=lambda row: (row[3], row[:3])) if timed else [(*row[:3], 0) for row in SEEN]
    parts = [[row for row in rows if row[0] == key] for key in ("ann", "bob")] if keyed else [rows]
    return [(row, frame(part, at)) for part in parts for at, row in enumerate(part)]


def last(number: int) -> Frame:
    return lambda rows, at: rows[max(0, at - number) : at + 1]


def since(seconds: float) -> Frame:
    def frame(rows: Rows, at: int) -> Rows:
        time = rows[at][3]
        return [row for row in rows if time - seconds <= row[3] <= time]

    return frame


def all_before(rows: Rows, at: int) -> Rows:
    return rows[: at + 1]


def all_until(rows: Rows, at: int) -> Rows:
    return [row for row in rows if row[3] <= rows[at][3]]


def sums(rows: Rows) -> tuple[Any, ...]:
    values = [row[1] for row in rows]
    return sum(values), len(values), sum(values) / len(values), max(values), min(values)


def larger(rows: Rows) -> int:
    return sum(row[1] > 3 for row in rows)


@F.pandas_udf(T.LongType())
def larger_than_three(values: pd.Series) -> int:
    return int((values > 3).sum())


class NullsAndOthers(AggregateFunction):
    """How many values are not null, and how many are."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: str | None, accumulator: list[int]) -> list[int]:
        accumulator[value is None] += 1
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [a + b for a, b in zip(acc_a, acc_b, strict=True)]

    def get_result(self, accumulator: list[int]) -> str:
        return "|".join(map(str, accumulator))


class Pairs(AggregateFunction):
    """How many pairs there are."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: tuple[str | None, str | None], accumulator: int) -> int:
        return accumulator + len(value) // 2

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b

    def get_result(self, accumulator: int) -> int:
        return accumulator


LARGER = {"LTCNT": larger_than_three}
COUNTS = T.ArrayType(T.LongType())
NULLS = {"CntNullNonNull": udaf(NullsAndOthers(), returns=T.StringType(), accumulator=COUNTS)}
PAIRS = {"PairCount": udaf(Pairs(), returns=T.LongType(), accumulator=T.LongType())}


def _overs() -> list[Case]:
    name = "OverAggregateITCase.test"
    coming, timed = {"T1": COMING}, {"T1": TIMED}
    cases = []
    for test, call in {
        "RowNumberOnOver": "ROW_NUMBER()",
        "DenseRankOnOver": "DENSE_RANK()",
        "RankOnOver": "RANK()",
    }.items():
        time = "proctime()" if test.startswith("Row") else "proctime"
        query = f"SELECT k, {call} OVER (PARTITION BY k ORDER BY {time}) FROM T1"
        rows = [(row[0], len(seen)) for row, seen in in_order(True, all_before, False)]
        cases.append(Case(name + test, coming, query, rows, runs=STREAM))
    four = "ROWS BETWEEN 4 PRECEDING AND CURRENT ROW"
    rows = [(row[0], sums(seen)[0], sums(seen)[4]) for row, seen in in_order(True, last(4), False)]
    for test, time in {
        "ProcTimeBoundedPartitionedRowsOver": "proctime",
        "ProcTimeBoundedPartitionedRowsOverWithBulitinProctime": "proctime()",
        "ProcTimeBoundedPartitionedRowsOverWithBuiltinProctime": "PROCTIME()",
    }.items():
        over = f"OVER (PARTITION BY k ORDER BY {time} {four})"
        cases.append(
            Case(name + test, coming, f"SELECT k, SUM(v) {over}, MIN(v) {over} FROM T1", rows, runs=STREAM)
        )
    three = "OVER (ORDER BY proctime ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)"
    keyed = "OVER (PARTITION BY k ORDER BY proctime RANGE UNBOUNDED PRECEDING)"
    rows_keyed = "OVER (PARTITION BY k ORDER BY proctime ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    every = "OVER (ORDER BY proctime RANGE UNBOUNDED PRECEDING)"
    rows_every = "OVER (ORDER BY proctime ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    so_far, of_key = in_order(False, all_before, False), in_order(True, all_before, False)
    cases += [
        Case(
            f"{name}ProcTimeBoundedNonPartitionedRowsOver",
            coming,
            f"SELECT k, FIRST_VALUE(s) {three}, LAST_VALUE(s) {three}, SUM(v) {three}, MIN(v) "
            f"{three} FROM T1",
            [
                (row[0], seen[0][2], seen[-1][2], sums(seen)[0], sums(seen)[4])
                for row, seen in in_order(False, last(3), False)
            ],
            runs=STREAM,
        ),
        Case(
            f"{name}ProcTimeUnboundedPartitionedRangeOver",
            coming,
            f"SELECT k, FIRST_VALUE(v) {keyed}, LAST_VALUE(v) {keyed}, COUNT(s) {keyed}, SUM(v) "
            f"{keyed} FROM T1",
            [
                (row[0], seen[0][1], seen[-1][1], sum(one[2] is not None for one in seen), sums(seen)[0])
                for row, seen in of_key
            ],
            runs=STREAM,
        ),
        Case(
            f"{name}ProcTimeUnboundedPartitionedRowsOver",
            coming,
            f"SELECT k, ones, nothing FROM (SELECT k, MAX(CAST(NULL AS VARCHAR)) {rows_keyed} AS nothing, "
            f"SUM(1) {rows_keyed} AS ones FROM T1)",
            [(row[0], len(seen), None) for row, seen in of_key],
            runs=STREAM,
        ),
        Case(
            f"{name}ProcTimeUnboundedNonPartitionedRangeOver",
            coming,
            f"SELECT k, COUNT(s) {every}, SUM(v) {every} FROM T1",
            [(row[0], sum(one[2] is not None for one in seen), sums(seen)[0]) for row, seen in so_far],
            runs=STREAM,
        ),
        Case(
            f"{name}ProcTimeUnboundedNonPartitionedRowsOver",
            coming,
            f"SELECT LISTAGG(DISTINCT s, '|') {rows_every}, COUNT(v) {rows_every} FROM T1",
            [("|".join(dict.fromkeys(one[2] for one in seen if one[2])), len(seen)) for row, seen in so_far],
            runs=STREAM,
        ),
        Case(
            f"{name}ProcTimeDistinctUnboundedPartitionedRowsOver",
            coming,
            f"SELECT k, COUNT(s) {keyed}, SUM(DISTINCT v) {keyed}, MIN(DISTINCT v) {keyed} FROM T1",
            [
                (
                    row[0],
                    sum(one[2] is not None for one in seen),
                    sum({one[1] for one in seen}),
                    sums(seen)[4],
                )
                for row, seen in of_key
            ],
            runs=STREAM,
        ),
        Case(
            f"{name}ProcTimeDistinctBoundedPartitionedRowsOver",
            coming,
            f"SELECT k, SUM(DISTINCT v) {three}, MIN(DISTINCT v) {three}, COLLECT_SET(v) {three} FROM T1",
            [
                (
                    row[0],
                    sum({one[1] for one in seen}),
                    sums(seen)[4],
                    [*dict.fromkeys(one[1] for one in seen)],
                )
                for row, seen in in_order(False, last(3), False)
            ],
            "`COLLECT_SET` is an array, where Flink's `COLLECT(DISTINCT x)` is a multiset",
            runs=STREAM,
        ),
        Case(
            f"{name}ProcTimeDistinctPairWithNulls",
            coming,
            f"SELECT k, s, PairCount(k, s) {every}, PairCount(DISTINCT k, s) {every} FROM T1",
            [(row[0], row[2], len(seen), len({(one[0], one[2]) for one in seen})) for row, seen in so_far],
            runs=STREAM,
            options={"functions": PAIRS},
        ),
        Case(
            f"{name}DecimalSum0",
            {"T1": table("d decimal(38, 18)", *((row[1],) for row in SEEN))},
            f"SELECT SUM(d) {rows_every} FROM T1",
            [(sums(seen)[0],) for row, seen in so_far],
            runs=STREAM,
        ),
        Case(
            f"{name}Percentile",
            coming,
            f"SELECT PERCENTILE(v, 0.5) {three} FROM T1",
            [
                (float(pd.Series([one[1] for one in seen]).quantile(0.5)),)
                for row, seen in in_order(False, last(3), False)
            ],
            runs=STREAM,
        ),
    ]
    by_time = sorted(SEEN, key=lambda row: (row[3], row[:3]))
    lags = []
    for key in ("ann", "bob"):
        values = [row[1] for row in by_time if row[0] == key]
        lags += [
            (
                key,
                value,
                values[at - 1] if at else None,
                values[at - 2] if at > 1 else None,
                values[at - 2] if at > 1 else 77,
            )
            for at, value in enumerate(values)
        ]
    over = "OVER (PARTITION BY k ORDER BY rowtime)"
    cases += [
        Case(
            f"{name}LagFunction",
            timed,
            f"SELECT k, v, LAG(v) {over}, LAG(v, 2) {over}, LAG(v, 2, CAST(77 AS BIGINT)) {over} FROM T1",
            lags,
            options=DELAY,
        ),
        Case(
            f"{name}LeadFunction",
            timed,
            f"SELECT k, v, LEAD(v) {over} FROM T1",
            [
                (key, value, following)
                for key in ("ann", "bob")
                for values in [[row[1] for row in by_time if row[0] == key]]
                for value, following in zip(values, [*values[1:], None], strict=True)
            ],
            "Flink refuses `LEAD` on streams; a row waits for the next one of its key, or for `lead_within`",
            options={**DELAY, "lead_within": "1 hour"},
        ),
    ]
    for test, (keys, text, frame, user) in {
        "RowTimeBoundedPartitionedRangeOver": (
            True,
            "RANGE BETWEEN INTERVAL '1' SECOND PRECEDING AND CURRENT ROW",
            since(1),
            True,
        ),
        "RowTimeBoundedPartitionedRowsOver": (
            True,
            "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
            last(2),
            True,
        ),
        "RowTimeBoundedNonPartitionedRangeOver": (
            False,
            "RANGE BETWEEN INTERVAL '1' SECOND PRECEDING AND CURRENT ROW",
            since(1),
            False,
        ),
        "RowTimeBoundedNonPartitionedRowsOver": (
            False,
            "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
            last(2),
            False,
        ),
        "RowTimeUnBoundedPartitionedRangeOver": (
            True,
            "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            all_until,
            True,
        ),
        "RowTimeUnBoundedPartitionedRowsOver": (
            True,
            "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            all_before,
            True,
        ),
        "RowTimeUnBoundedPartitionedRowsOver2": (
            True,
            "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            all_before,
            False,
        ),
        "RowTimeUnBoundedNonPartitionedRangeOver": (
            False,
            "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            all_until,
            False,
        ),
        "RowTimeUnBoundedNonPartitionedRowsOver": (
            False,
            "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            all_before,
            False,
        ),
    }.items():
        over = f"OVER ({'PARTITION BY k ' * keys}ORDER BY rowtime {text})"
        functions = ["SUM(v)", "COUNT(v)"] if "RowTimeBounded" in test else ALL
        calls = [f"{call} {over}" for call in functions]
        query = f"SELECT k, v, {f'LTCNT(v) {over}, ' * user}{', '.join(calls)} FROM T1"
        rows = [
            (*row[:2], *([larger(seen)] if user else []), *sums(seen)[: len(functions)])
            for row, seen in in_order(keys, frame, True)
        ]
        options = {**DELAY, "functions": LARGER} if user else DELAY
        note = INTEGER if functions is ALL else ""
        cases.append(Case(name + test, timed, query, rows, note, options=options))
    over = "OVER (PARTITION BY k ORDER BY rowtime RANGE UNBOUNDED PRECEDING)"
    for kind, type_ in (("Timestamp", "timestamp_ntz"), ("TimestampLtz", "timestamp")):
        query = f"SELECT s, k, COUNT(DISTINCT s) {over}, CntNullNonNull(DISTINCT s) {over} FROM T1"
        rows = [
            (row[2], row[0], len(words - {None}), f"{len(words - {None})}|{int(None in words)}")
            for row, seen in in_order(True, all_until, True)
            for words in [{one[2] for one in seen}]
        ]
        cases.append(
            Case(
                f"{name}{kind}RowTimeDistinctUnboundedPartitionedRangeOverWithNullValues",
                {"T1": (TIMED[0].replace("timestamp", type_), SEEN)},
                query,
                rows,
                options={**DELAY, "functions": NULLS},
            )
        )
    return cases


OVERS = _overs()
