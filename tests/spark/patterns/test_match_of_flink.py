"""The cases of Flink's MatchRecognizeITCase of streams, with an event time in place of its processing time.

Left out: what is refused by name. These are MATCH_ROWTIME, a nested query (make a view), functions of users
as aggregates, and DESC in ORDER BY.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

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
    "AggregatesWithNullInputs": (
        [*zip(range(1, 10), "azbcdcccc", [10, 10, None, None, 3, 3, 3, 3, 2], strict=True)],
        "id int, name string, price int",
        """MEASURES SUM(A.price) AS sumA, COUNT(A.id) AS countAId, COUNT(A.price) AS countAPrice,
            COUNT(*) AS countAll, COUNT(price) AS countAllPrice, LAST(id) AS endId
        PATTERN (A+ C) DEFINE A AS SUM(A.price) < 30, C AS C.name = 'c'""",
        [(29, 7, 5, 8, 6, 8)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases_of_flink(spark: SparkSession, name: str) -> None:
    rows, schema, clause, wanted = CASES[name]
    df = spark.createDataFrame(rows, schema).selectExpr("*", "timestamp_seconds(id) AS ts")
    df.createOrReplaceTempView("MyTable")
    keys = ", ".join(key for key in ("key1", "key2") if key in df.columns)
    by = f"PARTITION BY {keys}" if keys else ""
    query = f"SELECT * FROM MyTable MATCH_RECOGNIZE ({by} ORDER BY ts {clause}) AS T"
    assert sorted(map(tuple, timerheap.spark.sql(spark, query).collect())) == wanted
