"""What Flink's own tests of patterns expect, told anew: MatchRecognizeITCase."""

from __future__ import annotations

from flink_tables import Case, table

from timerheap import AggregateFunction
from timerheap.spark import udaf

__all__ = ["MATCHES"]

STREAM = ("stream",)


class WeightedAverage(AggregateFunction):
    """The average of numbers by their weights, without a remainder."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: tuple[int, int], accumulator: list[int]) -> list[int]:
        accumulator[0] += value[0] * value[1]
        accumulator[1] += value[1]
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]

    def get_result(self, accumulator: list[int]) -> int | None:
        return accumulator[0] // accumulator[1] if accumulator[1] else None


class CountFrom(AggregateFunction):
    """The sum of numbers and 4."""

    def create_accumulator(self) -> int:
        return 4

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b - 4

    def get_result(self, accumulator: int) -> int:
        return accumulator


FUNCTIONS = {
    "weightedAvg": udaf(WeightedAverage(), returns="bigint", accumulator="array<bigint>"),
    "countFrom": udaf(CountFrom(), returns="bigint", accumulator="bigint"),
}


def matching(
    clause: str, by: str = "", order: str = "proctime", of: str = "MyTable", items: str = "*"
) -> str:
    return f"SELECT {items} FROM {of} MATCH_RECOGNIZE ({by}ORDER BY {order} {clause}) AS T"


def _matches() -> list[Case]:
    name = "MatchRecognizeITCase.test"
    letters = table("id int, name string", *((at, letter) for at, letter in enumerate("pxqrspqrz", 1)))
    pqr = "DEFINE A AS name = 'p', B AS name = 'q', C AS name = 'r'"
    nulls = table(
        "id int, name string, nothing string",
        *((at, x, None) for at, x in enumerate([*"pqrs", None, *"pqr"], 1)),
    )
    keys = table(
        "id int, name string, key1 string, key2 string",
        *(
            (at, name_, key, f"other {key}")
            for at, (name_, key) in enumerate(zip("pqrdepqrf", "aaabbcccb", strict=True), 1)
        ),
    )
    ordered = table(
        "second int, third int, name string, id int, rowtime timestamp",
        *[(12, 1, "a", 1, 2), (11, 2, "b", 2, 1), (10, 3, "c", 3, 3), (8, 4, "a", 4, 4), (9, 5, "b", 5, 4)],
        *[(7, 6, "c", 6, 5), (6, 8, "a", 7, 6), (6, 7, "b", 8, 6), (4, 9, "c", 9, 8), (3, 10, "a", 10, 9)],
        *[(2, 11, "b", 11, 10), (1, 12, "c", 12, 11)],
    )
    ticks = table(
        "symbol string, rowtime timestamp, price int",
        *[("oak", 1, 1), ("oak", 2, 2), ("elm", 1, 20), ("oak", 4, 1), ("oak", 5, 1), ("elm", 5, 19)],
        *[("oak", 7, 2), ("oak", 8, 2), ("elm", 8, 30)],
    )
    second = {"watermark": "rowtime - INTERVAL '1' SECOND"}
    sums_of = "(SELECT symbol, SUM(price) AS price, TUMBLE_ROWTIME(rowtime, INTERVAL '3' SECOND) AS rowTime, "
    sums_of += "TUMBLE_START(rowtime, INTERVAL '3' SECOND) AS startTime FROM Ticker "
    sums_of += "GROUP BY symbol, TUMBLE(rowtime, INTERVAL '3' SECOND))"
    grouped = (
        "SELECT symbol, SUM(price), TUMBLE_ROWTIME(at, INTERVAL '3' SECOND), TUMBLE_START(at, INTERVAL '3' "
    )
    grouped += (
        "SECOND) FROM Ticker MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY rowtime MEASURES "
        "A.price AS price, "
    )
    grouped += "MATCH_ROWTIME() AS at ONE ROW PER MATCH PATTERN (A) DEFINE A AS A.price > 0) AS T "
    grouped += "GROUP BY symbol, TUMBLE(at, INTERVAL '3' SECOND)"
    sums_found = [
        ("oak", 3, 2.999, 0),
        ("elm", 20, 2.999, 0),
        ("oak", 2, 5.999, 3),
        ("elm", 19, 5.999, 3),
        ("oak", 4, 8.999, 6),
        ("elm", 30, 8.999, 6),
    ]
    prices = table(
        "id int, price int, tax int",
        *((at, price, at) for at, price in enumerate([19, 17, 13, 20, 20, 26, 20, 25], 1)),
    )
    falls = table("id int, price int", *((at, price) for at, price in enumerate([9, 8, 7, 6, 9], 1)))
    down = "DOWN AS price < LAST(DOWN.price, 1) OR LAST(DOWN.price, 1) IS NULL"
    weights = table(
        "id int, price bigint, rate double, weight int",
        *[(1, 1, 0.5, 1), (2, 2, 0.5, 3), (3, 1, 2.0, 2), (4, 1, 2.0, 5), (5, 9, 1.0, 1), (6, 7, 1.0, 1)],
    )
    unbounded = {"unbounded_matches": True}
    some = table(
        "id int, price int", *((at, price) for at, price in enumerate([10, 10, None, None, 3, 3, 3, 3, 2], 1))
    )
    called = table("id int, name string, price bigint", *((at, x, 1) for at, x in enumerate("aaaaabaaf", 1)))
    ambiguous = (
        "a row that can be several variables is the one that the standard prefers, which "
        "Flink does not follow"
    )
    stars = ", ".join(f"{word}(id, {at}) AS {word}{at}" for word in ("FIRST", "LAST") for at in range(5))
    return [
        Case(
            f"{name}SimplePattern",
            {"MyTable": letters},
            matching(
                'MEASURES `A"`.id AS aid, l.id AS bid, C.id AS cid PATTERN (`A"` l C) '
                "DEFINE `A\"` AS name = 'p', l AS name = 'q', C AS name = 'r'",
                items="T.aid, T.bid, T.cid",
            ),
            [(6, 7, 8)],
            runs=STREAM,
        ),
        Case(
            f"{name}SimplePatternWithNulls",
            {"MyTable": nulls},
            matching(
                "MEASURES A.id AS aid, A.nothing AS a, LAST(B.nothing) AS b, C.id AS cid PATTERN (A "
                "B C) DEFINE "
                "A AS name = 'p' AND nothing IS NULL, B AS name = 'q' AND LAST(A.nothing) IS NULL, C "
                "AS name = 'r'"
            ),
            [(1, None, None, 3), (6, None, None, 8)],
            runs=STREAM,
        ),
        Case(
            f"{name}CodeSplitsAreProperlyGenerated",
            {"MyTable": keys},
            matching(
                "MEASURES A.id AS aid, A.key1 AS k, LAST(B.id) AS bid, C.id AS cid, C.key2 AS k2 "
                "PATTERN (A B C) "
                "DEFINE A AS name = 'p' AND key1 LIKE '%' AND id > 0, B AS name = 'q' AND "
                "LAST(A.name, 2) IS NULL, "
                "C AS name = 'r' AND LAST(A.name) = 'p'",
                "PARTITION BY key1, key2 ",
            ),
            [("a", "other a", 1, "a", 2, 3, "other a"), ("c", "other c", 6, "c", 7, 8, "other c")],
            runs=STREAM,
        ),
        Case(
            f"{name}EventsAreProperlyOrdered",
            {"MyTable": ordered},
            matching(
                "MEASURES A.id AS aid, B.id AS bid, C.id AS cid PATTERN (A B C) "
                + pqr.replace("'p'", "'a'").replace("'q'", "'b'").replace("'r'", "'c'"),
                order="rowtime, second DESC, third ASC",
            ),
            [(10, 11, 12)],
            options=second,
        ),
        Case(
            f"{name}MatchRecognizeAppliedToWindowedGrouping",
            {"Ticker": ticks},
            matching(
                "MEASURES B.price AS dPrice, B.startTime AS dTime ONE ROW PER MATCH PATTERN (A B) "
                "DEFINE B AS B.price < A.price",
                "PARTITION BY symbol ",
                "rowTime",
                sums_of,
            ),
            [("oak", 2, 3), ("elm", 19, 3)],
            options=second,
        ),
        Case(
            f"{name}WindowedGroupingAppliedToMatchRecognize",
            {"Ticker": (ticks[0].replace("timestamp", "timestamp_ntz"), ticks[1])},
            grouped,
            sums_found,
            options=second,
        ),
        Case(
            f"{name}WindowedGroupingAppliedToMatchRecognizeOnLtzRowtime",
            {"Ticker": ticks},
            grouped.replace("MATCH_ROWTIME()", "MATCH_ROWTIME(rowtime)"),
            sums_found,
            options=second,
        ),
        Case(
            f"{name}LogicalOffsets",
            {"MyTable": prices},
            matching(
                "MEASURES FIRST(DOWN.id) AS s, LAST(DOWN.id) AS b, UP.id AS e, FIRST(DOWN.price + "
                "DOWN.tax + 1) AS "
                "x, UP.price + UP.tax AS y ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN "
                "(DOWN{2,} UP) "
                f"DEFINE {down}, UP AS price < FIRST(DOWN.price)"
            ),
            [(1, 2, 3, 21, 16), (6, 7, 8, 33, 33)],
            ambiguous,
            runs=STREAM,
            options=unbounded,
        ),
        Case(
            f"{name}PartitionByWithParallelSource",
            {"Ticker": ticks},
            matching(
                "MEASURES DOWN.price AS low, UP.price AS high ONE ROW PER MATCH AFTER MATCH SKIP "
                "PAST LAST ROW "
                "PATTERN (DOWN UP) DEFINE DOWN AS DOWN.price = 19, UP AS UP.price = 30",
                "PARTITION BY symbol ",
                "rowtime",
                "Ticker",
            ),
            [("elm", 19, 30)],
            options=second,
        ),
        Case(
            f"{name}LogicalOffsetsWithStarVariable",
            {"MyTable": falls},
            matching(
                f"MEASURES {stars} ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN "
                f'(`D"`{{2,}} UP) DEFINE '
                '`D"` AS price < LAST(price, 1) OR LAST(price, 1) IS NULL, '
                "UP AS price = FIRST(price) AND price > FIRST(price, 3) AND price = LAST(price, 4)"
            ),
            [(1, 2, 3, 4, 5, 5, 4, 3, 2, 1)],
            runs=STREAM,
            options=unbounded,
        ),
        Case(
            f"{name}LogicalOffsetOutsideOfRangeInMeasures",
            {"MyTable": falls},
            matching(
                "MEASURES FIRST(DOWN.price) AS first, LAST(DOWN.price) AS last, FIRST(DOWN.price, 5) "
                "AS nothing "
                f"ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (DOWN{{2,}} UP) DEFINE {down}, "
                "UP AS price > LAST(DOWN.price)"
            ),
            [(9, 6, None)],
            runs=STREAM,
            options=unbounded,
        ),
        Case(
            f"{name}Aggregates",
            {"MyTable": weights},
            matching(
                "MEASURES FIRST(id) AS a, SUM(A.price) AS b, COUNT(D.price) AS c, SUM(D.price) AS d, "
                "weightedAvg(price, weight) AS e, SUM(B.price * B.rate) AS f, LAST(id) AS g AFTER "
                "MATCH SKIP PAST LAST ROW "
                "PATTERN (A+ B+ C D? E) DEFINE A AS SUM(A.price) < 4, B AS SUM(B.price * B.rate) >= "
                "2 AND B.price < 2 AND "
                "weightedAvg(price, weight) >= 1, C AS C.price = 9, D AS D.price < 0"
            ),
            [(1, 3, 0, None, 2, 4.0, 6)],
            runs=STREAM,
            options={**unbounded, "functions": FUNCTIONS},
        ),
        Case(
            f"{name}Aggregates, with sums",
            {"MyTable": weights},
            matching(
                "MEASURES FIRST(id) AS a, SUM(A.price) AS b, COUNT(D.price) AS c, SUM(D.price) AS d, "
                "SUM(price * weight) DIV SUM(weight) AS e, SUM(B.price * B.rate) AS f, LAST(id) AS g "
                "AFTER MATCH SKIP PAST "
                "LAST ROW PATTERN (A+ B+ C D? E) DEFINE A AS SUM(A.price) < 4, B AS SUM(B.price * "
                "B.rate) >= 2 AND "
                "B.price < 2, C AS C.price = 9, D AS D.price < 0"
            ),
            [(1, 3, 0, None, 2, 4.0, 6)],
            runs=STREAM,
            options=unbounded,
        ),
        Case(
            f"{name}AggregatesWithNullInputs",
            {"MyTable": some},
            matching(
                "MEASURES SUM(A.price) AS a, COUNT(A.id) AS b, COUNT(A.price) AS c, COUNT(*) AS d, "
                "COUNT(price) AS "
                "e, LAST(id) AS f ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ C) "
                "DEFINE A AS SUM(A.price) "
                "< 30, C AS C.price = 3"
            ),
            [(29, 7, 5, 8, 6, 8)],
            runs=STREAM,
            options=unbounded,
        ),
        Case(
            f"{name}AccessingCurrentTime",
            {"MyTable": letters},
            matching(
                "MEASURES A.id AS aid, A.proctime AS at, LAST(A.proctime + INTERVAL '1' SECOND) AS "
                "later PATTERN (A) "
                "DEFINE A AS proctime >= (CURRENT_TIMESTAMP - INTERVAL '1' DAY)",
                items="T.aid",
            ),
            [(at,) for at in range(1, 10)],
            runs=STREAM,
        ),
        Case(
            f"{name}UserDefinedFunctions",
            {"MyTable": called},
            matching(
                "MEASURES FIRST(id) AS a, prefixed(A.name) AS b, countFrom(A.price) AS c, LAST(id) "
                "AS d AFTER MATCH "
                "SKIP PAST LAST ROW PATTERN (A+ C) DEFINE A AS prefixed(A.name) = '>a' AND "
                "countFrom(A.price) <= 8"
            ),
            [(1, ">a", 8, 5), (7, ">a", 6, 9)],
            runs=STREAM,
            options={**unbounded, "functions": FUNCTIONS},
        ),
        Case(
            f"{name}UserDefinedFunctions, with sums",
            {"MyTable": called},
            matching(
                "MEASURES FIRST(id) AS a, prefixed(A.name) AS b, 4 + SUM(A.price) AS c, LAST(id) AS "
                "d AFTER MATCH "
                "SKIP PAST LAST ROW PATTERN (A+ C) DEFINE A AS prefixed(A.name) = '>a' AND 4 + "
                "SUM(A.price) <= 8"
            ),
            [(1, ">a", 8, 5), (7, ">a", 6, 9)],
            runs=STREAM,
            options=unbounded,
        ),
    ]


MATCHES = _matches()
