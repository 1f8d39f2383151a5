"""What Flink's own tests of SQL over tables that change expect: inputs, queries and final tables, told anew.

The tests are those of flink-table-planner: RankITCase, DeduplicateITCase, AggregateITCase, JoinITCase,
SemiAntiJoinStreamITCase, SetOperatorsITCase and ChangelogSourceITCase. Of tests with the same input and query
for several settings there is one. ``python flink_changes.py`` writes the table of the page.
"""

from __future__ import annotations

from decimal import Decimal

from flink_joins import JOINS
from flink_tables import TRIPLES, Case, table, write_page

__all__ = ["CASES", "PAGE"]

PAGE = "docs/compatibility/flink-changes.md"

SHOPS = "category string, shop int, num int"
SOLD = table(
    SHOPS,
    ("book", 1, 12),
    ("book", 2, 19),
    ("book", 4, 11),
    ("fruit", 4, 33),
    ("fruit", 3, 44),
    ("fruit", 5, 22),
)
SOLD_TWICE = table(
    SHOPS,
    *[("book", 1, 11), ("book", 2, 19), ("book", 4, 13), ("book", 1, 11)],
    *[("fruit", 4, 33), ("fruit", 5, 12), ("fruit", 3, 44), ("fruit", 5, 22)],
)
SELLS = table(
    "category string, shop int, sell int",
    *(("book", shop, 1000 + at) for at, shop in enumerate([1, 2, 4, 1, 1, 3, 2, 4, 1, 4, 4, 4])),
    *(("fruit", shop, 2000 + at) for at, shop in enumerate([4, 5, 3, 4, 5, 5])),
)
SUMS_OF_SHOPS = "(SELECT category, shop, SUM(num) AS num, COUNT(num) AS cnt FROM T GROUP BY category, shop)"
COUNTS_OF_SHOPS = "(SELECT category, shop, COUNT(sell) AS sells FROM T GROUP BY category, shop)"
MANY = [
    (11, 100), (11, 200), (12, 400), (12, 500), (10, 600), (10, 700), (9, 800), (9, 900), (10, 500), (8, 110),
    (8, 120), (7, 1800), (9, 300), (6, 1900), (7, 50), (11, 1800), (7, 50), (8, 2000), (6, 700), (5, 800),
    (4, 910), (3, 1000), (2, 1100), (1, 1200),
]  # fmt: skip
PRICES = [
    *["100", "200", "400", "600", "600", "700", "800", "900", "500", "110", "120", "812", "300", "900"],
    *["50", "800", "50", "200", "700", "800", "910", "110", "900", "700"],
]
CATES = table(
    "cate string, shop string, sells int",
    *[
        ("book", "a", 1),
        ("book", "b", 1),
        ("book", "c", 1),
        ("fruit", "a", 2),
        ("book", "a", 1),
        ("book", "d", 0),
    ],
    *[("book", "b", 3), ("fruit", "b", 6), ("book", "c", 1), ("book", "e", 5), ("book", "d", 4)],
)
STATS = (
    "(SELECT category, shop, SUM(num) AS total, MAX(num) AS high, AVG(num) AS mean, COUNT(num) AS "
    "cnt FROM T GROUP "
    "BY category, shop)"
)
STATED = table(
    SHOPS,
    *[("book", 1, 12), ("book", 1, 13), ("book", 2, 19), ("book", 4, 11)],
    *[("fruit", 4, 33), ("fruit", 3, 44), ("fruit", 5, 22)],
)


def top(of: str, order: str, limit: str, by: str = "PARTITION BY category ", items: str = "*") -> str:
    ranked = f"SELECT *, ROW_NUMBER() OVER ({by}ORDER BY {order}) AS rn FROM {of}"
    return f"SELECT {items} FROM ({ranked}) WHERE {limit}"


def _rank() -> list[Case]:
    name = "RankITCase.test"
    top2 = [("book", 2, 19, 1), ("book", 1, 12, 2), ("fruit", 3, 44, 1), ("fruit", 4, 33, 2)]
    of_sums = [("book", 1, 22, 2, 1), ("book", 2, 19, 1, 2), ("fruit", 3, 44, 1, 1), ("fruit", 5, 34, 2, 2)]
    sells = [("book", 1, 5, 4), ("book", 2, 4, 1), ("book", 3, 2, 2), ("book", 4, 1, 3)]
    fruits = [("fruit", 1, 3, 5), ("fruit", 2, 2, 4), ("fruit", 3, 1, 3)]
    by_sells = {"items": "category, rn, sells, shop"}
    averages = table(
        SHOPS,
        *[
            ("book", 1, 100),
            ("book", 3, 110),
            ("book", 4, 120),
            ("book", 1, 200),
            ("book", 1, 200),
            ("book", 2, 300),
        ],
        *[("book", 2, 400), ("book", 4, 500), ("book", 1, 400), ("fruit", 5, 100)],
    )
    more = table(SHOPS, *SOLD[1], ("book", 5, 20), ("fruit", 1, 40))
    cates = "(SELECT cate, shop, COUNT(*) AS cnt, MAX(sells) AS sells FROM T GROUP BY cate, shop)"
    inner = top(cates, "sells DESC, shop", "rn <= 4", "PARTITION BY cate ", "cate, shop, sells, cnt")
    unary = table(SHOPS, *(("book", shop, num) for shop, num in MANY))
    strings = table(
        "category string, shop int, price string",
        *(("book", shop, price) for (shop, _), price in zip(MANY, PRICES, strict=True)),
    )
    doubles = table(
        "category string, shop int, num double",
        *(
            ("book", shop, float(num))
            for shop, num in [*MANY[:2], (12, 400), (12, 500), (10, 600), (10, 700)]
        ),
    )
    lateral = (
        "SELECT s.category, r.shop FROM (SELECT DISTINCT category FROM T) s, LATERAL (SELECT shop, num "
        "FROM T WHERE T.category = s.category ORDER BY num DESC LIMIT 2) r"
    )
    asc = [("book", 4, 11, 1), ("book", 1, 12, 2), ("fruit", 5, 22, 1), ("fruit", 4, 33, 2)]
    return [
        Case(f"{name}TopN", {"T": SOLD}, top("T", "num DESC", "rn <= 2"), top2),
        Case(f"{name}Top1", {"T": SOLD}, top("T", "num DESC", "rn = 1"), top2[::2]),
        Case(f"{name}Top2", {"T": SOLD}, top("T", "num DESC", "rn = 2"), top2[1::2]),
        Case(f"{name}TopNWithUpsertSink", {"T": SOLD}, top("T", "num ASC", "rn <= 2"), asc),
        Case(
            f"{name}TopNWithUnary",
            {"T": unary},
            top(SUMS_OF_SHOPS, "num ASC", "rn <= 3", items="category, shop, num, rn"),
            [("book", 5, 800, 1), ("book", 12, 900, 2), ("book", 4, 910, 3)],
        ),
        Case(
            f"{name}UnarySortTopNOnString",
            {"T": strings},
            top("(SELECT category, shop, MAX(price) AS p FROM T GROUP BY category, shop)", "p", "rn <= 3"),
            [("book", 3, "110", 1), ("book", 8, "200", 2), ("book", 12, "600", 3)],
        ),
        Case(
            f"{name}TopNWithGroupBy",
            {"T": SOLD_TWICE},
            top(SUMS_OF_SHOPS, "num DESC", "rn <= 2", items="category, shop, num, rn"),
            [(category, shop, num, rn) for category, shop, num, _, rn in of_sums],
        ),
        Case(
            f"{name}TopNWithSumAndCondition",
            {"T": doubles},
            top(
                SUMS_OF_SHOPS.replace("T GROUP", "T WHERE num >= 1.1 GROUP"),
                "num DESC",
                "rn <= 2",
                items="shop, num, rn",
            ),
            [(10, 1300.0, 1), (12, 900.0, 2)],
        ),
        Case(
            f"{name}TopNthWithGroupBy",
            {"T": SOLD_TWICE},
            top(SUMS_OF_SHOPS, "num DESC", "rn = 2", items="category, shop, num, rn"),
            [("book", 2, 19, 2), ("fruit", 5, 34, 2)],
        ),
        Case(
            f"{name}TopNWithGroupByAndRetract",
            {"T": SOLD_TWICE},
            top(SUMS_OF_SHOPS, "num DESC, cnt", "rn <= 2"),
            of_sums,
        ),
        Case(
            f"{name}TopNthWithGroupByAndRetract",
            {"T": SOLD_TWICE},
            top(SUMS_OF_SHOPS, "num DESC, cnt", "rn = 2"),
            of_sums[1::2],
        ),
        Case(
            f"{name}TopNWithGroupByCount",
            {"T": SELLS},
            top(COUNTS_OF_SHOPS, "sells DESC", "rn <= 4", **by_sells),
            sells + fruits,
        ),
        Case(
            f"{name}Top1WithGroupByCount",
            {"T": SELLS},
            top(COUNTS_OF_SHOPS, "sells DESC", "rn = 1", **by_sells),
            [sells[0], fruits[0]],
        ),
        Case(
            f"{name}Top3WithGroupByCount",
            {"T": SELLS},
            top(COUNTS_OF_SHOPS, "sells DESC", "rn = 3", **by_sells),
            [sells[2], fruits[2]],
        ),
        Case(
            f"{name}NestedTopN",
            {"T": CATES},
            top(f"({inner})", "sells DESC, cate, shop", "rn <= 4", "", "rn, cate, shop, sells, cnt"),
            [(1, "fruit", "b", 6, 1), (2, "book", "e", 5, 1), (3, "book", "d", 4, 2), (4, "book", "b", 3, 2)],
        ),
        Case(
            f"{name}TopNWithoutDeduplicate",
            {"T": CATES},
            top(cates, "sells DESC", "rn <= 4", "PARTITION BY cate ", "rn, cate, shop, sells, cnt"),
            [
                *[
                    (1, "fruit", "b", 6, 1),
                    (2, "fruit", "a", 2, 1),
                    (1, "book", "e", 5, 1),
                    (2, "book", "d", 4, 2),
                ],
                *[(3, "book", "b", 3, 2), (4, "book", "a", 1, 2)],
            ],
        ),
        Case(
            f"{name}TopNWithVariableTopSize",
            {"T": SELLS},
            top(COUNTS_OF_SHOPS, "sells DESC", "rn <= shop", **by_sells),
            None,
            "the limit is a number, beside which a condition such as `rn <= top_size` may be",
            "a Top-N without exactly one limit of rn is not supported; write WHERE rn <= 3",
        ),
        Case(
            f"{name}TopNWithVariableTopSize, with a number beside it",
            {"T": SELLS},
            top(COUNTS_OF_SHOPS, "sells DESC", "rn <= 4 AND (category = 'book' OR rn <= 2)", **by_sells),
            sells + fruits[:2],
        ),
        Case(
            f"{name}TopNWithGroupByAvgWithoutRowNumber",
            {"T": averages},
            top(
                "(SELECT category, shop, AVG(num) AS mean FROM T GROUP BY category, shop)",
                "mean DESC",
                "rn <= 3",
                items="category, shop, mean",
            ),
            [("book", 1, 225.0), ("book", 2, 350.0), ("book", 4, 310.0), ("fruit", 5, 100.0)],
            "`AVG` of integers is a double, where Flink's is an integer",
        ),
        Case(
            f"{name}TopNWithGroupByCountWithoutRowNumber",
            {"T": SELLS},
            top(COUNTS_OF_SHOPS, "sells DESC", "rn <= 3", items="category, shop, sells"),
            [(category, shop, count) for category, _, count, shop in sells[:3] + fruits],
        ),
        Case(
            f"{name}TopNWithoutRowNumber",
            {"T": more},
            top("T", "num DESC", "rn <= 2", items="category, num, shop"),
            [("book", 19, 2), ("book", 20, 5), ("fruit", 40, 1), ("fruit", 44, 3)],
        ),
        Case(
            f"{name}MultipleRetractTopNAfterAgg, by sums",
            {"T": STATED},
            top(STATS, "total DESC, mean", "rn <= 2", items="category, shop, total, rn"),
            [("book", 1, 25, 1), ("book", 2, 19, 2), ("fruit", 3, 44, 1), ("fruit", 4, 33, 2)],
        ),
        Case(
            f"{name}MultipleRetractTopNAfterAgg, by maxima",
            {"T": STATED},
            top(STATS, "high DESC, cnt", "rn <= 2", items="category, shop, high, cnt, rn"),
            [("book", 2, 19, 1, 1), ("book", 1, 13, 2, 2), ("fruit", 3, 44, 1, 1), ("fruit", 4, 33, 1, 2)],
        ),
        Case(
            f"{name}MultipleUpdateTopNAfterAgg, by counts",
            {"T": STATED},
            top(STATS, "cnt DESC", "rn <= 2", items="category, shop, cnt, rn"),
            [("book", 1, 2, 1), ("book", 2, 1, 2), ("fruit", 3, 1, 1), ("fruit", 4, 1, 2)],
            "rows that are equal in `ORDER BY` follow each other by their columns, in Flink by arrival",
        ),
        Case(
            f"{name}CorrelateSortToRankWithMultipleGroupKeys",
            {"T": SOLD},
            lateral,
            None,
            "write `ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...)` with a limit",
            "write the expressions in the select list, or LATERAL TABLE",
        ),
    ]


def _deduplicate() -> list[Case]:
    name = "DeduplicateITCase.test"
    triples = table("a int, b bigint, c string", *TRIPLES)
    timed = table(
        "a int, b bigint, c string",
        *[(1, 1, "Hi"), (1, 3, "Hello"), (1, 2, "Hello world"), (2, 3, "I am fine."), (2, 6, "Comment#1")],
        *[(3, 5, "Comment#2"), (3, 4, "Comment#2"), (4, 4, "Comment#3")],
    )
    last = {"T": timed}
    of_b = "PARTITION BY b "
    return [
        Case(
            f"{name}LastRowOnProctime",
            {"T": triples},
            top("T", "PROCTIME() DESC", "rn = 1", of_b, "a, b, c"),
            None,
            "order by a column, such as a version or a time: rows of one micro-batch have no order "
            "of arrival",
            "(of processing time) is not supported; order by a column",
        ),
        Case(
            f"{name}LastRowOnProctime, by a column",
            {"T": triples},
            top("T", "a DESC", "rn = 1", of_b, "a, b, c"),
            [TRIPLES[at] for at in (0, 2, 5, 9, 14, 20)],
        ),
        Case(
            f"{name}FirstRowOnRowtime",
            last,
            top("T", "b", "rn = 1", "PARTITION BY a ", "a, b, c"),
            [(1, 1, "Hi"), (2, 3, "I am fine."), (3, 4, "Comment#2"), (4, 4, "Comment#3")],
        ),
        Case(
            f"{name}FirstRowOnRowTimeFollowedByUnboundedAgg",
            last,
            f"SELECT COUNT(b) FROM ({top('T', 'a', 'rn = 1', of_b, 'a, b, c')})",
            [(6,)],
        ),
        Case(
            f"{name}LastRowOnRowtime",
            last,
            top("T", "b DESC", "rn = 1", of_b, "a, b, c"),
            [
                (1, 1, "Hi"),
                (1, 2, "Hello world"),
                (1, 3, "Hello"),
                (3, 4, "Comment#2"),
                (3, 5, "Comment#2"),
                (2, 6, "Comment#1"),
            ],
            "rows that are equal in `ORDER BY` follow each other by their columns, in Flink by arrival",
        ),
        Case(
            f"{name}LastRowOnRowtime, by a key whose times differ",
            last,
            top("T", "b DESC", "rn = 1", "PARTITION BY a ", "a, b, c"),
            [(1, 3, "Hello"), (2, 6, "Comment#1"), (3, 5, "Comment#2"), (4, 4, "Comment#3")],
        ),
        Case(
            f"{name}LastRowOnRowTimeFollowedByUnboundedAgg",
            last,
            f"SELECT COUNT(b) FROM ({top('T', 'a DESC', 'rn = 1', of_b, 'a, b, c')})",
            [(6,)],
        ),
    ]


LETTERS = [
    *[(1, 1, "A"), (2, 2, "B"), (3, 2, "B"), (4, 3, "C"), (5, 3, "C"), (6, 3, "C"), (7, 4, "B")],
    *[(8, 4, "A"), (9, 4, "D"), (10, 4, "E"), (11, 5, "A"), (12, 5, "B")],
]


def _aggregate() -> list[Case]:
    name = "AggregateITCase.test"
    abc = "a int, b bigint, c string"
    pairs = table("a int, b int", (1, 1), (2, 2), (3, 3))
    prices = table("id int, price int", (1, 10), (1, 10), (2, 5), (1, 10))
    cheap = table("id int, price int", (1, 5), (2, 6), (1, 5))
    letters, triples = {"T": table(abc, *LETTERS)}, {"T": table(abc, *TRIPLES)}
    counted = "(SELECT id, COUNT(*) AS c, price FROM T GROUP BY id, price)"
    retracted = {"T": table(abc, *[(1, 1, "A")] * 2, *LETTERS)}
    decimals = {"T": table("d decimal(7,2)", *((Decimal(n),) for n in (1, 2, 2, 4, 3)))}
    sums = {"T": table("d decimal(7,2)", *((Decimal(n),) for n in (1, 2, 2, 3)))}
    hellos = [
        *[
            (1, 1, "Hello"),
            (2, 2, "Hello"),
            (2, 3, "Hello"),
            (3, 4, "Hello"),
            (3, 5, "Hello"),
            (7, 6, "Hello"),
        ],
        *[(7, 7, "Hello World"), (7, 8, "Hello World"), (10, 20, "Hello World")],
    ]
    united = {name: table("a bigint, b int, c string", *hellos) for name in ("T1", "T2")}
    filtered = table(
        "a int, b bigint, c string, d boolean",
        *[(1, 5, "B", True), (1, 4, "C", False), (1, 2, "A", True), (2, 1, "A", True), (2, 2, "B", False)],
        *[(1, 6, "A", True), (2, 2, "B", False), (3, 5, "B", True), (2, 3, "C", True), (2, 3, "D", True)],
    )
    chars = table(
        "id int, ch string",
        *[("+I", 1, "a"), ("+I", 1, "b"), ("+I", 1, "c"), ("-D", 1, "c"), ("-D", 1, "a"), ("+I", 2, "a")],
        *[("+I", 2, "b"), ("+I", 2, "c"), ("-U", 2, "b"), ("+U", 2, "d"), ("-U", 2, "a"), ("+U", 2, "b")],
    )
    numbers = table(
        "a tinyint, b smallint, c int, d bigint, e float, f double, g string",
        *(
            (kind, n, n, n, n, float(n), float(n), "a")
            for kind, n in (
                ("+I", 1),
                ("+I", 2),
                ("-D", 1),
                ("+I", 3),
                ("-D", 2),
                ("+I", 1),
                ("-D", 3),
                ("+I", 2),
            )
        ),
        ("+I", 3, 3, 3, 3, 3.0, 3.0, "a"),
    )
    exact = [Decimal(one) for one in ("1.03520274", "2.13520275", "1.11111111", "2.13520275")]
    money = table(
        "a decimal(32,8), d string",
        *[("+I", exact[0], "a"), ("+I", exact[0], "b"), ("-D", exact[0], "b"), ("+I", exact[1], "a")],
        *[("+I", exact[2], "b"), ("+I", exact[2], "a"), ("-D", exact[2], "b"), ("+I", exact[3], "a")],
    )
    singles = {"T1": letters["T"], "T2": letters["T"]}
    big = table("a int, b int, c string", *((at % 10, at, str(at)) for at in range(100)))
    return [
        Case(
            f"{name}EmptyInputAggregation",
            {"T": pairs},
            "SELECT SUM(a), AVG(a), MIN(a), COUNT(a), COUNT(1) FROM T WHERE a > 9999 GROUP BY b",
            [],
        ),
        Case(
            f"{name}MaxAggRetractWithCondition",
            {"T": prices},
            f"SELECT MAX(price) FROM {counted} WHERE c > 0 AND c < 3",
            [(5,)],
        ),
        Case(
            f"{name}MinAggRetractWithCondition",
            {"T": cheap},
            f"SELECT MIN(price) FROM {counted} WHERE c < 2",
            [(6,)],
        ),
        Case(
            f"{name}EmptyInputAggregationWithoutGroupBy",
            {"T": pairs},
            "SELECT SUM(a), AVG(a), MIN(a), COUNT(a), COUNT(1) FROM T WHERE a > 9999",
            [],
            "no row before the first one comes, and then always one; Flink has disabled the test",
        ),
        Case(
            f"{name}AggregationWithoutWatermark",
            {"T": pairs},
            "SELECT SUM(a), AVG(a), MIN(a), COUNT(a), COUNT(1) FROM T",
            [(6, 2.0, 1, 3, 3)],
            "`AVG` of integers is a double, where Flink's is an integer",
        ),
        Case(
            f"{name}DistinctGroupBy",
            triples,
            "SELECT b, SUM(DISTINCT a * 3), COUNT(DISTINCT SUBSTRING(c, 1, 2)), COUNT(DISTINCT c) FROM T "
            "GROUP BY b",
            [(1, 3, 1, 1), (2, 15, 1, 2), (3, 45, 3, 3), (4, 102, 1, 4), (5, 195, 1, 5), (6, 333, 1, 6)],
        ),
        Case(
            f"{name}DistinctWithRetract",
            retracted,
            "SELECT COUNT(DISTINCT cnt), MAX(DISTINCT cnt), MIN(DISTINCT cnt), COUNT(DISTINCT high) FROM "
            "(SELECT b, COUNT(a) AS cnt, MAX(a) AS high FROM T GROUP BY b)",
            [(3, 4, 2, 5)],
        ),
        Case(
            f"{name}PrecisionForSumWithRetractAggregationOnDecimal",
            {"T": money},
            "SELECT SUM(a) FROM T GROUP BY d",
            [(Decimal("6.41671935"),)],
        ),
        Case(
            f"{name}GroupByAgg",
            letters,
            "SELECT b, COUNT(c), SUM(a) FROM T GROUP BY b",
            [(1, 1, 1), (2, 2, 5), (3, 3, 15), (4, 4, 34), (5, 2, 23)],
        ),
        Case(
            f"{name}CountWithNullableIfCall",
            letters,
            "SELECT b, COUNT(1), COUNT(IF(c IN ('A', 'B'), CAST(NULL AS INT), 1)) FROM T GROUP BY b",
            [(1, 1, 0), (2, 2, 0), (3, 3, 3), (4, 4, 2), (5, 2, 0)],
        ),
        Case(
            f"{name}NestedGroupByAgg",
            letters,
            "SELECT SUM(b), COUNT(a), MAX(a), MIN(a), c FROM (SELECT b, COUNT(c) AS c, SUM(a) AS a "
            "FROM T GROUP BY b) "
            "GROUP BY c",
            [(1, 1, 1, 1, 1), (3, 1, 15, 15, 3), (4, 1, 34, 34, 4), (7, 2, 23, 5, 2)],
        ),
        Case(
            f"{name}UnboundedGroupBy",
            triples,
            "SELECT b, COUNT(a) FROM T GROUP BY b",
            [(n, n) for n in range(1, 7)],
        ),
        Case(
            f"{name}ListAgg",
            triples,
            "SELECT b, LISTAGG(c, '-') FROM T GROUP BY b",
            [(b, "-".join(c for _, other, c in TRIPLES if other == b)) for b in range(1, 7)],
        ),
        Case(
            f"{name}UnboundedGroupByCollect",
            triples,
            "SELECT b, COLLECT(a) FROM T GROUP BY b",
            None,
            "Spark has no multisets; write `ARRAY_AGG(a)`, or an aggregate of your own in `functions`",
            "COLLECT(a); aggregates are COUNT",
        ),
        Case(
            f"{name}GroupBySingleValue",
            singles,
            "SELECT * FROM T2 WHERE T2.a < (SELECT COUNT(*) * 0.45 FROM T1)",
            [one for one in LETTERS if one[0] < 5.4],
        ),
        Case(
            f"{name}DecimalSum",
            sums,
            "SELECT c, SUM(d) FROM (SELECT d, COUNT(d) AS c FROM T GROUP BY d) GROUP BY c",
            [(1, Decimal("4.00")), (2, Decimal("2.00"))],
        ),
        Case(
            f"{name}DifferentTypesSumWithRetract",
            {"T": numbers},
            "SELECT SUM(a), SUM(b), SUM(c), SUM(d), SUM(e), SUM(f) FROM T GROUP BY g",
            [(6, 6, 6, 6, 6.0, 6.0)],
        ),
        Case(
            f"{name}AggAfterUnion",
            united,
            "SELECT a, SUM(b), COUNT(DISTINCT c) FROM (SELECT * FROM T1 UNION ALL SELECT * FROM T2) "
            "GROUP BY a",
            [(1, 2, 1), (2, 10, 1), (3, 18, 1), (7, 42, 2), (10, 40, 1)],
        ),
        Case(
            f"{name}BigDataOfMinMaxWithBinaryString",
            {"T": big},
            "SELECT a, MIN(b), MAX(c), MIN(c) FROM T GROUP BY a",
            [(n, n, f"9{n}", f"1{n}" if n > 1 else str(n)) for n in range(10)],
        ),
        Case(
            f"{name}AggWithFilterClause",
            {"T": filtered},
            "SELECT a, SUM(b) FILTER (WHERE c = 'A'), COUNT(DISTINCT c) FILTER (WHERE d IS TRUE), "
            "MAX(b) FROM T GROUP "
            "BY a",
            [(1, 8, 2, 6), (2, 1, 3, 3), (3, None, 1, 5)],
        ),
        Case(
            f"{name}MinMaxWithDecimal",
            decimals,
            "SELECT cnt, MIN(d), MAX(d) FROM (SELECT d, COUNT(d) AS cnt FROM T GROUP BY d) GROUP BY cnt",
            [(1, Decimal("1.00"), Decimal("4.00")), (2, Decimal("2.00"), Decimal("2.00"))],
        ),
        Case(
            f"{name}RetractMinMaxWithChar",
            {"T": chars},
            "SELECT id, COUNT(*), MIN(ch), MAX(ch) FROM T GROUP BY id",
            [(1, 1, "b", "b"), (2, 3, "b", "d")],
        ),
    ]


def _changelog_source() -> list[Case]:
    name = "ChangelogSourceITCase.test"
    user = "user_id string, user_name string, email string, balance decimal(18,2)"
    tom, tom2 = (
        ("user1", "Tom", "tom@gmail.com", Decimal("10.02")),
        ("user1", "Tom", "tom123@gmail.com", Decimal("8.10")),
    )
    jack, tina = (
        ("user2", "Jack", "jack@hotmail.com", Decimal("71.20")),
        ("user4", "Tina", "tina@gmail.com", Decimal("11.30")),
    )
    bailey = ("user3", "Bailey", "bailey@gmail.com", Decimal("9.99"))
    bailey2 = ("user3", "Bailey", "bailey@qq.com", Decimal("9.99"))
    changes = table(
        user,
        *[
            ("+I", *tom),
            ("+I", *jack),
            ("-U", *tom),
            ("+U", *tom2),
            ("+I", *bailey),
            ("-D", *jack),
            ("+I", *tina),
        ],
        *[("-U", *bailey), ("+U", *bailey2)],
    )
    upserts = table(
        f"{user}, version int, deleted boolean",
        *[(*tom, 1, False), (*jack, 1, False), (*tom2, 2, False), (*bailey, 1, False), (*jack, 2, True)],
        *[
            (*tina, 1, False),
            (*bailey2, 2, False),
            (*tom, 1, False),
            (*jack, 1, False),
        ],  # the last ones twice
    )
    as_upserts = {
        "changes": {"users": (["user_name", "user_id"], "version")},
        "deleted": {"users": "deleted"},
    }
    orders = table(
        "amount bigint, currency string",
        (2, "Euro"),
        (1, "US Dollar"),
        (50, "Yen"),
        (3, "Euro"),
        (5, "US Dollar"),
    )
    rates = table(
        "currency string, rate bigint",
        *[
            ("+I", "US Dollar", 102),
            ("+I", "Euro", 114),
            ("+I", "Yen", 1),
            ("-U", "Euro", 114),
            ("+U", "Euro", 116),
        ],
        *[("-U", "Euro", 116), ("+U", "Euro", 119), ("-D", "Yen", 1)],
    )
    doubled = "(SELECT *, balance * 2 AS balance2 FROM users)"
    left = [tom2, bailey2, tina]
    queries = {
        "ToRetractStream": ("SELECT user_id, user_name, email, balance FROM users", left),
        "Aggregate": (
            "SELECT COUNT(*), SUM(balance), MAX(email) FROM users",
            [(3, Decimal("29.39"), "tom123@gmail.com")],
        ),
        "AggregateToUpsertSink": (
            "SELECT 'ALL', COUNT(*), SUM(balance), MAX(email) FROM users GROUP BY 'ALL'",
            [("ALL", 3, Decimal("29.39"), "tom123@gmail.com")],
        ),
        "GroupByNonPrimaryKey": (
            f"SELECT balance2, COUNT(*), MAX(email) FROM {doubled} GROUP BY balance2",
            [(Decimal(2) * balance, 1, email) for _, _, email, balance in left],
        ),
        "Filter": ("SELECT user_id, user_name, email, balance FROM users WHERE balance > 9", left[1:]),
    }
    joined = [
        ("Euro", 2, 119, 238),
        ("Euro", 3, 119, 357),
        ("US Dollar", 1, 102, 102),
        ("US Dollar", 5, 102, 510),
    ]
    return [
        *(Case(f"{name}{one}", {"users": changes}, query, rows) for one, (query, rows) in queries.items()),
        *(
            Case(f"{name}{one}, UPSERT_SOURCE", {"users": upserts}, query, rows, options=as_upserts)
            for one, (query, rows) in queries.items()
        ),
        Case(
            f"{name}RegularJoin",
            {"orders": orders, "rates": rates},
            "SELECT o.currency, o.amount, r.rate, o.amount * r.rate FROM orders AS o JOIN rates AS "
            "r ON o.currency = "
            "r.currency",
            joined,
        ),
        Case(
            "TableScanITCase: windows of a changelog",
            {"users": changes},
            "SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE users, DESCRIPTOR(at), INTERVAL '1' DAY)) "
            "GROUP BY window_start, "
            "window_end",
            None,
            "Flink refuses windows, `OVER` and `MATCH_RECOGNIZE` of rows that change, too",
            "windows of table users, whose rows change, is not supported",
        ),
    ]


CASES = [*_rank(), *_deduplicate(), *_aggregate(), *JOINS, *_changelog_source()]


if __name__ == "__main__":
    write_page(PAGE, CASES)
