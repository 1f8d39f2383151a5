"""The cases of Flink's MatchRecognizeITCase, of streams and batches, and of its MatchRecognizeTestPrograms.

An event time is in place of the processing time. What `sql()` refuses by name is written as the refusal says:
an aggregate function of a user is sums. Flink's batches have cases of its streams alone.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import streams
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

NAMES = [*zip(range(1, 10), "azbcdabch", strict=True)]
NULLS = [*zip(range(1, 10), [*"abcd", None, *"abc", None], strict=True)]
PRICES = [19, 17, 13, 20, 20, 26, 20, 25]
DOWN = "DOWN AS price < LAST(DOWN.price, 1) OR LAST(DOWN.price, 1) IS NULL"
PLACES = [f"{name}(id, {at}) AS {name}{at}" for name in ("FIRST", "LAST") for at in range(8)]

# By the names of Flink's tests: the rows, their columns, the clause, and the matches.
CASES: dict[str, tuple[list[Any], str, str, list[Any]]] = {
    "SimplePattern": (
        NAMES,
        "id int, name string",
        """MEASURES `A"`.id AS aid, l.id AS bid, C.id AS cid PATTERN (`A"` l C)
        DEFINE `A"` AS name = 'a', l AS name = 'b', C AS name = 'c'""",
        [(6, 7, 8)],
    ),
    "SimplePatternWithNulls": (
        [(id_, name, None) for id_, name in NULLS],
        "id int, name string, nullField string",
        """MEASURES A.id AS aid, A.nullField AS aNull, LAST(B.nullField) AS bNull, C.id AS cid
        PATTERN (A B C)
        DEFINE A AS name = 'a' AND nullField IS NULL, B AS name = 'b' AND LAST(A.nullField) IS NULL,
            C AS name = 'c'""",
        [(1, None, None, 3), (6, None, None, 8)],
    ),
    "CodeSplitsAreProperlyGenerated": (
        [
            *((at, name, "key1", "second_key3") for at, name in NULLS[:3]),
            *((at, name, "key", "second_key") for at, name in ((4, "d"), (5, "e"), (9, "f"))),
            *((at, name, "key2", "second_key4") for at, name in NULLS[5:8]),
        ],
        "id int, name string, key1 string, key2 string",
        """MEASURES A.id AS aid, A.key1 AS akey1, LAST(B.id) AS bid, C.id AS cid, C.key2 AS ckey2
        PATTERN (A B C)
        DEFINE A AS name = 'a' AND key1 LIKE '%key%' AND id > 0, B AS name = 'b' AND LAST(A.name, 2) IS NULL,
            C AS name = 'c' AND LAST(A.name) = 'a'""",
        [
            ("key1", "second_key3", 1, "key1", 2, 3, "second_key3"),
            ("key2", "second_key4", 6, "key2", 7, 8, "second_key4"),
        ],
    ),
    "LogicalOffsets": (
        [*zip(range(1, 9), PRICES, range(1, 9), strict=True)],
        "id int, price int, tax int",
        f"""MEASURES FIRST(DOWN.id) AS start_tstamp, LAST(DOWN.id) AS bottom_tstamp, UP.id AS end_tstamp,
            FIRST(DOWN.price + DOWN.tax + 1) AS bottom_total, UP.price + UP.tax AS end_total
        ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (DOWN{{2,}} UP)
        DEFINE {DOWN}, UP AS price < FIRST(DOWN.price)""",
        [(1, 2, 3, 21, 16), (6, 7, 8, 33, 33)],  # Flink misses the first
    ),
    "PartitionByWithParallelSource": (
        [(at, "ACME", price, at) for at, price in enumerate(PRICES[:4], 1)],
        "id int, key1 string, price int, tax int",
        """MEASURES DOWN.tax AS bottom_tax, UP.tax AS end_tax ONE ROW PER MATCH
        AFTER MATCH SKIP PAST LAST ROW PATTERN (DOWN UP)
        DEFINE DOWN AS DOWN.price = 13, UP AS UP.price = 20""",
        [("ACME", 3, 4)],
    ),
    "LogicalOffsetsWithStarVariable": (
        [*zip(range(1, 9), [20, 19, 18, 17, 16, 15, 14, 20], strict=True)],
        "id int, price int",
        f"""MEASURES {", ".join(PLACES)} AFTER MATCH SKIP PAST LAST ROW PATTERN (`DOWN"`{{2,}} UP)
        DEFINE `DOWN"` AS price < LAST(price, 1) OR LAST(price, 1) IS NULL,
            UP AS price = FIRST(price) AND price > FIRST(price, 3) AND price = LAST(price, 7)""",
        [(*range(1, 9), *range(8, 0, -1))],
    ),
    "LogicalOffsetOutsideOfRangeInMeasures": (
        [*zip(range(1, 5), PRICES, strict=False)],
        "id int, price int",
        f"""MEASURES FIRST(DOWN.price) AS first, LAST(DOWN.price) AS last, FIRST(DOWN.price, 5) AS nullPrice
        PATTERN (DOWN{{2,}} UP) DEFINE {DOWN}, UP AS price > LAST(DOWN.price)""",
        [(19, 13, None)],
    ),
    "Aggregates": (
        [
            *((1, "a", 1, 0.8, 1), (2, "z", 2, 0.8, 3), (3, "b", 1, 0.8, 2), (4, "c", 1, 0.8, 5)),
            *((5, "d", 4, 0.1, 5), (6, "a", 2, 1.5, 2), (7, "b", 2, 0.8, 3), (8, "c", 1, 0.8, 2)),
            *((id_, "h", price, 0.8, 3) for id_, price in ((9, 4), (10, 4), (11, 2), (12, 2))),
        ],
        "id int, name string, price int, rate double, weight int",
        """MEASURES FIRST(id) AS startId, SUM(A.price) AS sumA, COUNT(D.price) AS countD,
            SUM(D.price) AS sumD, SUM(price * weight) DIV SUM(weight) AS wAvg, FLOOR(AVG(B.price)) AS avgB,
            SUM(B.price * B.rate) AS sumExprB, LAST(id) AS endId
        AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ B+ C D? E)
        DEFINE A AS SUM(A.price) < 6,
            B AS SUM(B.price * B.rate) < SUM(A.price) AND SUM(B.price * B.rate) > 0.2 AND SUM(B.price) >= 1
                AND AVG(B.price) >= 1 AND SUM(price * weight) >= 2 * SUM(weight)""",
        [(1, 5, 1, 1, 2, 3, 3.4, 9)],  # Flink prefers no D, and finds a further match
    ),
    "UserDefinedFunctions": (
        [(id_, name, 1) for id_, name in enumerate("aaaaabaaf", 1)],
        "id int, name string, price long",
        """MEASURES FIRST(id) AS firstId, prefix(A.name) AS prefixedNameA, 4 + SUM(A.price) AS countFromA,
            LAST(id) AS lastId
        AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ C)
        DEFINE A AS prefix(A.name) = 'PREF:a' AND 4 + SUM(A.price) <= 8""",
        [(1, "PREF:a", 8, 5), (7, "PREF:a", 6, 9)],
    ),
    **{
        f"AFTER MATCH SKIP {skip}": (
            [
                *zip(
                    range(1, 12),
                    [1] * 11,
                    [100, 102, 104, 106, 105, 107, 101, 100, 110, 111, 99],
                    strict=True,
                )
            ],
            "id int, key1 int, temperature int",
            f"""MEASURES FIRST(A.temperature) AS first, LAST(A.temperature) AS last
            ONE ROW PER MATCH AFTER MATCH SKIP {skip} PATTERN (A+ B)
            DEFINE A AS LAST(A.temperature, 1) IS NULL OR A.temperature > LAST(A.temperature, 1),
                B AS B.temperature < LAST(A.temperature)""",
            [(1, *pair) for pair in sorted([(100, 106), (100, 111), *more])],
        )
        for skip, more in {
            "TO FIRST B": [(105, 107), (101, 101)],
            "TO LAST B": [(105, 107), (101, 101)],
            "PAST LAST ROW": [(107, 107)],
            "TO NEXT ROW": [
                *((102, 106), (104, 106), (106, 106), (105, 107), (107, 107), (101, 101)),
                *((110, 111), (111, 111)),
            ],
        }.items()
    },
    "AggregatesWithNullInputs": (
        [*zip(range(1, 10), "azbcdcccc", [10, 10, None, None, 3, 3, 3, 3, 2], strict=True)],
        "id int, name string, price int",
        """MEASURES SUM(A.price) AS sumA, COUNT(A.id) AS countAId, COUNT(A.price) AS countAPrice,
            COUNT(*) AS countAll, COUNT(price) AS countAllPrice, LAST(id) AS endId
        PATTERN (A+ C) DEFINE A AS SUM(A.price) < 30, C AS C.name = 'c'""",
        [(29, 7, 5, 8, 6, 8)],
    ),
}


@pytest.mark.promises(
    "Flink SQL",
    "different",
    "a row that can be several variables of PATTERN",
    note="the standard's order of preference decides, which Flink does not follow",
)
@pytest.mark.parametrize("name", CASES)
def test_cases_of_flink(spark: SparkSession, name: str) -> None:
    rows, schema, clause, wanted = CASES[name]
    df = spark.createDataFrame(rows, schema).selectExpr("*", "timestamp_seconds(id) AS ts")
    df.createOrReplaceTempView("MyTable")
    keys = ", ".join(key for key in ("key1", "key2") if key in df.columns)
    by = f"PARTITION BY {keys}" if keys else ""
    query = f"SELECT * FROM MyTable MATCH_RECOGNIZE ({by} ORDER BY ts {clause}) AS T"
    if "prefix(" in clause:
        spark.udf.register("prefix", "PREF:{}".format)
    assert answers(spark, query) == wanted


def answers(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, timerheap.spark.sql(spark, query).collect()))


ABC = "PATTERN (A B C) DEFINE A AS name = 'a', B AS name = 'b', C AS name = 'c'"


@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "ORDER BY ts, n DESC in MATCH_RECOGNIZE",
    note="order by a column that grows, `-n`",
)
def test_events_are_properly_ordered(spark: SparkSession) -> None:
    rows = [
        *((2, 12, 1, "a", 1), (1, 11, 2, "b", 2), (3, 10, 3, "c", 3)),  # the time breaks this match
        *((4, 8, 4, "a", 4), (4, 9, 5, "b", 5), (5, 7, 6, "c", 6)),  # the second column does
        *((6, 6, 8, "a", 7), (6, 6, 7, "b", 8), (8, 4, 9, "c", 9)),  # the third one does
        *((9, 3, 10, "a", 10), (10, 2, 11, "b", 11), (11, 1, 12, "c", 12)),
    ]
    df = spark.createDataFrame(rows, "second long, secondary int, ternary int, name string, id int")
    df = df.selectExpr("*", "timestamp_seconds(second) AS ts", "-secondary AS ascending")
    df.createOrReplaceTempView("MyTable")
    measures = f"MEASURES A.id AS aid, B.id AS bid, C.id AS cid {ABC}"
    query = "SELECT * FROM MyTable MATCH_RECOGNIZE (ORDER BY ts, {}, ternary ASC {}) AS T"
    assert answers(spark, query.format("ascending", measures)) == [(10, 11, 12)]
    assert answers(spark, query.format("secondary DESC", measures)) == [(10, 11, 12)]


TICKS = [
    *(("ACME", 1, 1), ("ACME", 2, 2), ("ACME", 4, 1), ("ACME", 5, 1), ("ACME", 7, 2), ("ACME", 8, 2)),
    *(("ACME1", 1, price) for price in (20, 24, 25, 19)),
]


def ticker(spark: SparkSession, rows: list[tuple[Any, ...]]) -> None:
    df = spark.createDataFrame(rows, "symbol string, second long, price int")
    df.selectExpr("*", "timestamp_seconds(second) AS ts").createOrReplaceTempView("Ticker")


def test_a_match_of_windows(spark: SparkSession) -> None:
    ticker(spark, TICKS)
    windows = """SELECT symbol, SUM(price) AS price, window_start, window_time
        FROM TUMBLE(TABLE Ticker, DESCRIPTOR(ts), INTERVAL '3' SECOND)
        GROUP BY symbol, window_start, window_end"""
    windows = windows.replace(", window_time", "").replace("window_start\n", "window_start, window_end\n")
    timerheap.spark.sql(spark, windows).createOrReplaceTempView("Windows")
    query = """SELECT symbol, dPrice, unix_seconds(dTime) FROM {} MATCH_RECOGNIZE (
        PARTITION BY symbol ORDER BY window_end MEASURES B.price AS dPrice, B.window_start AS dTime
        ONE ROW PER MATCH PATTERN (A B) DEFINE B AS B.price < A.price) AS T"""
    assert answers(spark, query.format("Windows")) == [("ACME", 2, 3)]
    assert answers(spark, query.format(f"({windows})")) == [("ACME", 2, 3)]


@pytest.mark.promises("Flink SQL", "refused", "windows of the matches of MATCH_RECOGNIZE", note="make a view")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai"])
def test_windows_of_the_matches_of_a_view(spark: SparkSession, zone: str) -> None:
    ticker(spark, TICKS[:4])
    clause = """PARTITION BY symbol ORDER BY ts MEASURES A.price AS price, LAST(ts) AS matched
        ONE ROW PER MATCH PATTERN (A) DEFINE A AS A.price > 0"""
    matches = timerheap.spark.sql(spark, f"SELECT * FROM Ticker MATCH_RECOGNIZE ({clause}) AS T")
    matches.createOrReplaceTempView("Matches")
    with streams.configured(spark, session_timeZone=zone):
        query = """SELECT symbol, SUM(price) AS price, unix_seconds(window_start) AS start, window_end FROM
            TUMBLE(TABLE Matches, DESCRIPTOR(matched), INTERVAL '3' SECOND)
            GROUP BY symbol, window_start, window_end"""
        begins = 28_800 if zone == "Asia/Shanghai" else 0  # local times, as in Flink
        assert [row[:3] for row in answers(spark, query)] == [("ACME", 2, begins + 3), ("ACME", 3, begins)]


def test_the_current_time_in_a_condition(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, "a")], "id int, name string").selectExpr("*", "current_timestamp() AS ts")
    df.createOrReplaceTempView("MyTable")
    clause = """MEASURES A.id AS aid, A.ts AS aTime, LAST(A.ts + INTERVAL '1' SECOND) AS calculated
        PATTERN (A) DEFINE A AS ts >= (CURRENT_TIMESTAMP - INTERVAL '1' DAY)"""
    (row,) = answers(spark, f"SELECT * FROM MyTable MATCH_RECOGNIZE (ORDER BY ts {clause}) AS T")
    assert row[0] == 1
    assert (row[2] - row[1]).total_seconds() == 1


@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "aggregate functions of users in MATCH_RECOGNIZE",
    note="write it with `SUM` and `COUNT`",
)
def test_an_aggregate_of_a_user_is_refused(spark: SparkSession) -> None:
    ticker(spark, TICKS)

    def weighted(prices: pd.Series, weights: pd.Series) -> int:
        return int((prices * weights).sum() // weights.sum())

    spark.udf.register("weightedAvg", F.pandas_udf(weighted, "long"))
    clause = "ORDER BY ts MEASURES LAST(price) AS p PATTERN (A+) DEFINE A AS weightedAvg(price, price) > 1"
    with pytest.raises(AnalysisException, match="weightedAvg"):
        timerheap.spark.sql(spark, f"SELECT * FROM Ticker MATCH_RECOGNIZE ({clause}) AS T").collect()


def test_the_order_of_an_integer_column(spark: SparkSession) -> None:
    """MATCH_ORDER_BY_INT_COLUMN, without the row that is late there."""
    times = [1, 1, 1, 4, 7, 6, 12, 16, 32, 34, 33, 41, 42, 43, 44]
    prices = [10, 8, 9, 7, 8, 5, 3, 4, 7, 5, 9, 3, 11, 12, 13]
    numbers = [3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 15, 14]
    df = spark.createDataFrame([*zip(times, prices, numbers, strict=True)], "s long, price int, n int")
    df.selectExpr("*", "timestamp_seconds(s) AS ts").createOrReplaceTempView("MyTable")
    clause = f"""MEASURES FIRST(DOWN.price) AS first, LAST(DOWN.price) AS last, UP.price AS up
        PATTERN (DOWN{{2,}} UP) DEFINE {DOWN}, UP AS price > LAST(DOWN.price)"""
    found = answers(spark, f"SELECT * FROM MyTable MATCH_RECOGNIZE (ORDER BY ts, n {clause}) AS T")
    assert found == [(7, 5, 8), (9, 3, 11), (9, 8, 10)]
