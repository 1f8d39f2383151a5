"""What Flink's own tests of joins and set operations expect of tables that change; see `flink_changes`."""

from __future__ import annotations

from flink_tables import AB, FIVES, SMALL, TRIPLES, A, Case, table

__all__ = ["JOINS"]

SUM_A = "(SELECT SUM(a2) AS a2, a1 FROM A GROUP BY a1)"
SUM_B = "(SELECT SUM(b2) AS b2, b1 FROM B GROUP BY b1)"
HIS = [
    *[
        (1, 1, "Hi1"),
        (1, 2, "Hi2"),
        (1, 2, "Hi2"),
        (1, 5, "Hi3"),
        (2, 7, "Hi5"),
        (1, 9, "Hi6"),
        (1, 8, "Hi8"),
    ],
    (3, 8, "Hi9"),
]
SIX = FIVES[:6]


def _join() -> list[Case]:
    name = "JoinITCase.test"
    his = {
        "T1": table("a int, b bigint, c string", *HIS),
        "T2": table("a int, b bigint, c string", (1, 1, "HiHi"), (2, 2, "HeHe"), (3, 2, "HeHe")),
    }
    nullable = "(SELECT IF(a = 3, CAST(NULL AS INT), a) AS a, b, c FROM {})"
    t1, t2 = nullable.format("T1"), nullable.format("T2")
    hi = [(1, "HiHi", one) for one in ("Hi2", "Hi2", "Hi3", "Hi6", "Hi8")] + [(2, "HeHe", "Hi5")]
    ds = {
        "ds1": table("a int, b bigint, c string", *SMALL),
        "ds2": table("d int, e bigint, f int, g string, h bigint", *SIX),
    }
    unmatched = {**ds, "ds2": (ds["ds2"][0], [SIX[2], *SIX[3:]])}
    fives = {
        "Table3": table("a int, b bigint, c string", *TRIPLES),
        "Table5": table("d int, e bigint, f int, g string, h bigint", *FIVES),
    }
    flags = [(1, 1, "Hi", True), (2, 2, "Hello", False), (3, 2, "Hello world", True)]
    bools = {
        "T3": table("a1 int, b1 bigint, c1 string, d1 boolean", *flags),
        "T5": table("a2 int, b2 bigint, c2 string, d2 boolean", *flags),
    }
    twice = [(n, n) for n in range(1, 6) for _ in range(2)]
    same = {
        "ds1": table("pk int, a int", *twice),
        "ds2": table("pk int, a int", *((n, n) for n in range(1, 11))),
    }
    matched = [("Hi", "Hallo"), ("Hello", "Hallo Welt"), ("Hello world", "Hallo Welt")]
    alone = [(None, one[3]) for one in FIVES[2:]]
    three = {
        "TA": table("a1 int, a2 bigint", *((a, b) for a, b, _ in HIS)),
        "TB": table("b1 int, b2 bigint", (1, 1), (2, 2), (3, 2), (1, 4)),
        "TC": table("c1 int, c2 bigint", (1, 1), (2, 2), (3, 2), (2, 1)),
    }
    nulls = {
        "T1": table("a int, b bigint", (1, 1), (3, 8), (4, 2)),
        "T2": table("a int, b bigint", (1, 1), (2, 2), (3, 2)),
    }
    n1, n2 = (f"(SELECT IF(a = 3, CAST(NULL AS INT), a) AS a, b FROM {one})" for one in nulls)
    with_null = "t1.a = t2.a OR (t1.a IS NULL AND t2.a IS NULL)"
    equal = [(1, 1), *[(2, 2)] * 2, *[(3, 3)] * 3]
    fours = [*[(None, 4)] * 4, *[(None, 5)] * 5]
    sums_of_b = [(3, 15), (4, 34), (5, 65)]
    every_b = [(None, one[0]) for one in FIVES]

    def of_nulls(how: str, on: str) -> str:
        return f"SELECT t1.a, t1.b, t2.a, t2.b FROM {n1} AS t1 {how} JOIN {n2} AS t2 ON {on}"

    cross = [(*SMALL[0], *one) for one in FIVES] + [(*SMALL[1], *one) for one in FIVES[6:10]]
    chain = (
        "SELECT a1, b1, c1 FROM (SELECT SUM(a2) AS a2, a1 FROM TA GROUP BY a1) JOIN (SELECT SUM(b2) "
        "AS b2, b1 FROM TB "
        "GROUP BY b1) ON a1 = b1 JOIN (SELECT SUM(c2) AS c2, c1 FROM TC GROUP BY c1) ON c2 = b2"
    )
    return [
        Case(
            f"{name}DependentConditionDerivationInnerJoin",
            AB,
            "SELECT * FROM A, B WHERE (a2 = 1 AND b2 = 2) OR (a1 = 2 AND b1 = 4)",
            [(*SMALL[0], *FIVES[1]), *((*SMALL[1], *one) for one in FIVES[6:10])],
        ),
        Case(
            f"{name}DependentConditionDerivationInnerJoinWithTrue",
            AB,
            "SELECT * FROM A, B WHERE (a2 = 1 AND TRUE) OR (a1 = 2 AND b1 = 4)",
            cross,
        ),
        Case(
            f"{name}NonWindowInnerJoin",
            his,
            f"SELECT t2.a, t2.c, t1.c FROM {t1} AS t1 JOIN {t2} AS t2 ON t1.a = t2.a AND t1.b > t2.b",
            hi,
        ),
        Case(
            f"{name}IsNullInnerJoinWithNullCond",
            his,
            f"SELECT t2.a, t2.c, t1.c FROM {t1} AS t1 JOIN {t2} AS t2 ON ((t1.a IS NULL AND t2.a IS "
            f"NULL) OR t1.a = "
            "t2.a) AND t1.b > t2.b",
            [*hi, (None, "HeHe", "Hi9")],
        ),
        Case(f"{name}Join", AB, "SELECT a3, b4 FROM A, B WHERE a2 = b2", matched),
        Case(
            f"{name}InnerJoin",
            ds,
            "SELECT b, c, e, g FROM ds1 JOIN ds2 ON b = e",
            [(1, "Hi", 1, "Hallo"), (2, "Hello world", 2, "Hallo Welt"), (2, "Hello", 2, "Hallo Welt")],
        ),
        Case(f"{name}InnerJoin2", AB, "SELECT a1, b1 FROM A JOIN B ON a1 = b1", equal),
        Case(f"{name}JoinWithFilter", AB, "SELECT a3, b4 FROM A, B WHERE a2 = b2 AND a2 < 2", matched[:1]),
        Case(
            f"{name}InnerJoinWithDuplicateKey",
            AB,
            "SELECT a1, b1, b3 FROM A JOIN B ON a1 = b1 AND a1 = b3",
            [(2, 2, 2), (3, 3, 3)],
        ),
        Case(
            f"{name}InnerJoinWithBooleanFilterCondition",
            bools,
            "SELECT a1, a1, c2 FROM T3 INNER JOIN T5 ON d1 = d2 WHERE d1 IS TRUE",
            [(n, n, text) for n in (1, 3) for text in ("Hi", "Hello world")],
        ),
        Case(
            f"{name}InnerJoinWithNonEquiJoinPredicate",
            fives,
            "SELECT c, g FROM Table3, Table5 WHERE b = e AND a < 6 AND h < b",
            [("Hello world, how are you?", "Hallo Welt wie"), ("I am fine.", "Hallo Welt wie")],
        ),
        Case(
            f"{name}JoinWithMultipleKeys",
            fives,
            "SELECT c, g FROM Table3, Table5 WHERE a = d AND b = h",
            [
                *[("Hi", "Hallo"), ("Hello", "Hallo Welt"), ("Hello world", "Hallo Welt wie gehts?")],
                *[("Hello world", "ABC"), ("I am fine.", "HIJ"), ("I am fine.", "IJK")],
            ],
        ),
        Case(
            f"{name}JoinWithAlias",
            AB,
            "SELECT B.b5, T.`1-_./Ü` FROM (SELECT a1, a2, a3 AS `1-_./Ü` FROM A) AS T, B WHERE a1 = "
            "b1 AND a1 < 4",
            [
                (1, "Hi"),
                (2, "Hello"),
                (1, "Hello"),
                (2, "Hello world"),
                (2, "Hello world"),
                (3, "Hello world"),
            ],
        ),
        Case(
            f"{name}DataStreamJoinWithAggregation",
            AB,
            "SELECT COUNT(b4), COUNT(a2) FROM A, B WHERE a1 = b1",
            [(6, 6)],
        ),
        Case(
            f"{name}LeftOuterJoin",
            unmatched,
            "SELECT b, c, e, g FROM ds1 LEFT OUTER JOIN ds2 ON b = e",
            [(b, c, None, None) for _, b, c in SMALL],
        ),
        Case(
            f"{name}LeftOuterJoinWithRetraction",
            ds,
            "SELECT b, c, e, g FROM ds1 LEFT OUTER JOIN ds2 ON b = e",
            [(1, "Hi", 1, "Hallo"), (2, "Hello world", 2, "Hallo Welt"), (2, "Hello", 2, "Hallo Welt")],
        ),
        Case(
            f"{name}StreamJoinWithSameRecord",
            same,
            "SELECT ds1.pk AS x, ds1.a AS y, ds2.pk AS z, ds2.a AS w FROM ds1 JOIN ds2 ON ds1.pk = ds2.pk",
            [(n, n, n, n) for n, _ in twice],
        ),
        Case(
            f"{name}FullOuterJoin", AB, "SELECT a3, b4 FROM A FULL OUTER JOIN B ON a2 = b2", matched + alone
        ),
        Case(
            f"{name}RightOuterJoin", AB, "SELECT a3, b4 FROM A RIGHT OUTER JOIN B ON a2 = b2", matched + alone
        ),
        Case(
            f"{name}InnerJoinWithEqualPk",
            AB,
            f"SELECT a1, b1 FROM {SUM_A} JOIN {SUM_B} ON a1 = b1",
            [(1, 1), (2, 2), (3, 3)],
        ),
        Case(f"{name}ThreeWayMultiJoinWithoutPk", three, chain, [(2, 2, 3), (3, 3, 3)]),
        Case(
            f"{name}InnerJoinWithPk",
            AB,
            f"SELECT a1, a2, b1, b2 FROM {SUM_A} JOIN {SUM_B} ON a2 = b2",
            [(1, 1, 1, 1)],
        ),
        Case(
            f"{name}LeftJoinNonEqui",
            AB,
            "SELECT a1, b1 FROM A LEFT JOIN B ON a1 = b1 AND a2 > b2",
            [(1, None), (2, None), (3, None)],
        ),
        Case(
            f"{name}LeftJoinWithEqualPkNonEqui",
            AB,
            f"SELECT a1, b1 FROM {SUM_A} LEFT JOIN {SUM_B} ON a1 = b1 AND a2 > b2",
            [(1, None), (2, None), (3, None)],
        ),
        Case(
            f"{name}LeftJoinWithPkNonEqui",
            AB,
            f"SELECT a1, a2, b1, b2 FROM {SUM_A} LEFT JOIN {SUM_B} ON a2 = b2 AND a1 > b1",
            [(1, 1, None, None), (3, 2, None, None), (2, 2, None, None)],
        ),
        Case(f"{name}LeftJoin", AB, "SELECT a1, b1 FROM A LEFT JOIN B ON a1 = b1", equal),
        Case(
            f"{name}LeftJoinWithRightNotPk", AB, f"SELECT a1, b1 FROM {SUM_A} LEFT JOIN B ON a1 = b1", equal
        ),
        Case(
            f"{name}LeftJoinWithPk",
            AB,
            f"SELECT a1, a2, b1, b2 FROM {SUM_A} LEFT JOIN {SUM_B} ON a2 = b2",
            [(1, 1, 1, 1), (3, 2, None, None), (2, 2, None, None)],
        ),
        Case(
            f"{name}RightJoinNonEqui", AB, "SELECT a1, b1 FROM A RIGHT JOIN B ON a1 = b1 AND a2 > b2", every_b
        ),
        Case(
            f"{name}RightJoinWithEqualPkNonEqui",
            AB,
            f"SELECT a1, b1 FROM {SUM_A} RIGHT JOIN {SUM_B} ON a1 = b1 AND a2 > b2",
            [(None, n) for n in range(1, 6)],
        ),
        Case(f"{name}RightJoin", AB, "SELECT a1, b1 FROM A RIGHT JOIN B ON a1 = b1", equal + fours),
        Case(
            f"{name}RightJoinWithPk",
            AB,
            f"SELECT a1, a2, b1, b2 FROM {SUM_A} RIGHT JOIN {SUM_B} ON a2 = b2",
            [(1, 1, 1, 1), (None, None, 2, 5), *((None, None, *one) for one in sums_of_b)],
        ),
        Case(
            f"{name}FullJoinNonEqui",
            AB,
            "SELECT a1, b1 FROM A FULL JOIN B ON a1 = b1 AND a2 > b2",
            [(1, None), (2, None), (3, None), *every_b],
        ),
        Case(
            f"{name}FullJoinWithPkNonEqui",
            AB,
            f"SELECT a1, a2, b1, b2 FROM {SUM_A} FULL JOIN {SUM_B} ON a2 = b2 AND a1 > b1",
            [
                *[
                    (1, 1, None, None),
                    (2, 2, None, None),
                    (3, 2, None, None),
                    (None, None, 1, 1),
                    (None, None, 2, 5),
                ],
                *((None, None, *one) for one in sums_of_b),
            ],
        ),
        Case(f"{name}FullJoin", AB, "SELECT a1, b1 FROM A FULL JOIN B ON a1 = b1", equal + fours),
        Case(
            f"{name}FullJoinWithEqualPk",
            AB,
            f"SELECT a1, b1 FROM {SUM_A} FULL JOIN {SUM_B} ON a1 = b1",
            [(1, 1), (2, 2), (3, 3), (None, 4), (None, 5)],
        ),
        Case(
            f"{name}FullJoinWithFullNotPk",
            AB,
            f"SELECT a1, b1 FROM {SUM_A} FULL JOIN B ON a1 = b1",
            equal + fours,
        ),
        Case(
            f"{name}NullLeftOuterJoin",
            nulls,
            of_nulls("LEFT OUTER", "t1.a = t2.a"),
            [(1, 1, 1, 1), (4, 2, None, None), (None, 8, None, None)],
        ),
        Case(
            f"{name}NullLeftOuterJoinWithNullCond",
            nulls,
            of_nulls("LEFT OUTER", with_null),
            [(1, 1, 1, 1), (4, 2, None, None), (None, 8, None, 2)],
        ),
        Case(
            f"{name}NullRightOuterJoin",
            nulls,
            of_nulls("RIGHT OUTER", "t1.a = t2.a"),
            [(1, 1, 1, 1), (None, None, 2, 2), (None, None, None, 2)],
        ),
        Case(
            f"{name}NullRightOuterJoinWithNullCond",
            nulls,
            of_nulls("RIGHT OUTER", with_null),
            [(1, 1, 1, 1), (None, None, 2, 2), (None, 8, None, 2)],
        ),
    ]


def _semi_join() -> list[Case]:
    name = "SemiAntiJoinStreamITCase.test"
    five = "a int, b bigint, c int, d string, e bigint"
    sums = [
        *[
            (0, "a"),
            (1, "a"),
            (1, "b"),
            (1, "b"),
            (1, "c"),
            (2, "c"),
            (3, "c"),
            (4, "c"),
            (1, "d"),
            (2, "d"),
            (3, "d"),
        ],
        *[(4, "e"), (4, "e")],
    ]
    lefts = [(1, "a"), (2, "b"), (10, "c"), (6, "d"), (8, "e")]
    ab, cd = "a int, b string", "c int, d string"
    one_side = {"ds1": table(ab, *lefts), "ds2": table(cd, *sums)}
    more = {**one_side, "ds1": table(ab, *lefts, (11, "f"))}
    both = {
        "ds1": table(ab, *sums[:-2], (3, "e"), (5, "e")),
        "ds2": table(cd, *sums[:-2], (3, "e"), (5, "e")),
    }
    sides = {
        "ds1": table(
            ab,
            *[
                (0, "a"),
                (5, "f"),
                (-2, "a"),
                (1, "b"),
                (1, "b"),
                (1, "c"),
                (2, "c"),
                (3, "c"),
                (1, "f"),
                (4, "c"),
            ],
            *[(1, "d"), (2, "d"), (3, "d"), (4, "e"), (3, "a"), (3, "e"), (2, "f")],
        ),
        "ds2": table(cd, *sums[:-2], (4, "e"), (3, "e")),
    }
    summed = "(SELECT SUM(c) AS c FROM ds2 GROUP BY d)"
    of_left = "(SELECT SUM(a) AS a, b FROM ds1 GROUP BY b)"
    ds = {
        "ds1": table("a int, b bigint, c string", *SMALL),
        "ds2": table("d int, e bigint, f int, g string, h bigint", *SIX),
    }
    anti = {"ds1": table(five, *SIX), "ds2": table("f int, g bigint, h string", *SMALL)}
    twice = table("pk int, a int", *((n, n) for n in range(1, 6) for _ in range(2)))
    later = table("pk int, a int", *((n, n) for n in range(5, 11)))
    depts = [
        (10, "ACCOUNTING", "NEW YORK"),
        (20, "RESEARCH", "DALLAS"),
        (30, "SALES", "CHICAGO"),
        (40, "OPERATIONS", "BOSTON"),
    ]
    emps = [(7369, "SMITH", 20), (7499, "ALLEN", 30), (7566, "JONES", 20), (7654, "MARTIN", 30)]
    scott = {
        "dept": table("deptno int, dname string, loc string", *depts),
        "emp": table("empno int, ename string, deptno int", *emps),
    }
    words = {
        "l": table(
            "a int, b int, c string", (1, 1, "a"), (2, 10, "abc"), (3, 20, "abc"), (4, 30, "Hello World!")
        ),
        "r": table("d int", (0,), (1,)),
    }
    ones = [(n,) for n in (1, 2, 10, 6, 8)]
    sum_a = [(1, 1), (2, 2), (2, 3)]
    return [
        Case(
            f"{name}GenericSemiJoin",
            ds,
            "SELECT a, b, c FROM ds1 WHERE a IN (SELECT d FROM ds2 WHERE d < 3)",
            SMALL[:2],
        ),
        Case(
            f"{name}SemiJoinWithOneSideRetraction",
            one_side,
            "SELECT a FROM ds1 WHERE a IN (SELECT SUM(c) FROM ds2 GROUP BY d)",
            ones,
        ),
        Case(
            f"{name}SemiJoinWithRetractTwoSidesRetraction",
            both,
            "SELECT a FROM (SELECT SUM(a) AS a FROM ds1 GROUP BY b) WHERE a IN (SELECT SUM(c) FROM "
            "ds2 GROUP BY d)",
            ones,
        ),
        Case(
            f"{name}GenericAntiJoin",
            anti,
            "SELECT c FROM ds1 WHERE NOT EXISTS (SELECT * FROM ds2 WHERE b = g)",
            [(2,), (3,), (4,), (5,)],
        ),
        Case(
            f"{name}AntiJoinWithOneSideRetraction",
            more,
            f"SELECT * FROM ds1 WHERE NOT EXISTS (SELECT c FROM {summed} WHERE a = c)",
            [(11, "f")],
        ),
        Case(
            f"{name}AntiJoinWithTwoSidesRetraction",
            sides,
            f"SELECT * FROM {of_left} WHERE NOT EXISTS (SELECT c FROM {summed} WHERE a = c)",
            [(8, "f")],
        ),
        Case(f"{name}SemiJoin", AB, "SELECT * FROM A WHERE a1 IN (SELECT b1 FROM B)", SMALL),
        Case(
            f"{name}SemiJoinNonEqui",
            AB,
            "SELECT * FROM A WHERE a1 IN (SELECT b1 FROM B WHERE a2 < b2)",
            SMALL[1:],
        ),
        Case(
            f"{name}SemiJoinWithEqualPkNonEqui",
            AB,
            f"SELECT * FROM {SUM_A} WHERE a1 IN (SELECT b1 FROM {SUM_B} WHERE a2 < b2)",
            sum_a[1:],
        ),
        Case(
            f"{name}SemiJoinWithRightNotPkNonEqui",
            AB,
            f"SELECT * FROM {SUM_A} WHERE a1 IN (SELECT b1 FROM B WHERE a2 < b2)",
            sum_a[1:],
        ),
        Case(
            f"{name}SemiJoinWithPkNonEqui",
            AB,
            f"SELECT * FROM {SUM_A} WHERE a2 IN (SELECT b2 FROM {SUM_B} WHERE a1 > b1)",
            [],
        ),
        Case(f"{name}AntiJoin", AB, "SELECT * FROM A WHERE NOT EXISTS (SELECT b1 FROM B WHERE a1 = b1)", []),
        Case(
            f"{name}AntiJoinNonEqui",
            AB,
            "SELECT * FROM A WHERE NOT EXISTS (SELECT b1 FROM B WHERE a1 = b1 AND a2 < b2)",
            SMALL[:1],
        ),
        Case(
            f"{name}AntiJoinWithEqualPkNonEqui",
            AB,
            f"SELECT * FROM {SUM_A} WHERE NOT EXISTS (SELECT b1 FROM {SUM_B} WHERE a1 = b1 AND a2 < b2)",
            sum_a[:1],
        ),
        Case(
            f"{name}AntiJoinWithRightNotPkNonEqui",
            AB,
            f"SELECT * FROM {SUM_A} WHERE NOT EXISTS (SELECT b1 FROM B WHERE a1 = b1 AND a2 > b2)",
            sum_a,
        ),
        Case(
            f"{name}AntiJoinWithPkNonEqui",
            AB,
            f"SELECT * FROM {SUM_A} WHERE NOT EXISTS (SELECT b2 FROM {SUM_B} WHERE a2 = b2 AND a1 > b1)",
            sum_a,
        ),
        Case(
            f"{name}StreamNotInWithoutEqual",
            {"ds1": twice},
            "SELECT pk FROM ds1 WHERE pk NOT IN (SELECT pk FROM ds1 WHERE pk > 3)",
            [(n,) for n in (1, 1, 2, 2, 3, 3)],
        ),
        Case(
            f"{name}StreamExistsWithoutEqual",
            scott,
            "SELECT * FROM dept AS d WHERE EXISTS (SELECT 1 FROM emp WHERE empno > d.deptno) AND "
            "EXISTS (SELECT 0 FROM "
            "emp WHERE deptno = d.deptno AND ename = 'SMITH')",
            [depts[1]],
        ),
        Case(
            f"{name}StreamNotExistsWithoutEqual",
            {"ds1": twice, "ds2": later},
            "SELECT pk FROM ds1 WHERE NOT EXISTS (SELECT 1 FROM ds2 WHERE ds2.pk < ds1.pk)",
            [(n,) for n, _ in twice[1]],
        ),
        Case(
            f"{name}ExistsWithUncorrelated_ComplexCondition",
            words,
            "SELECT a + 10, c FROM l WHERE b > 10 AND NOT (c LIKE 'abc' OR NOT EXISTS (SELECT d FROM r))",
            [(14, "Hello World!")],
        ),
    ]


def _set_operators() -> list[Case]:
    name = "SetOperatorsITCase.test"
    abc = "a int, b bigint, c string"
    minus = {"TA": table(abc, *SMALL), "TB": table(abc, SMALL[0], SMALL[0])}
    every = "SELECT * FROM TA UNION ALL SELECT * FROM TA UNION ALL SELECT * FROM TA"
    return [
        Case(
            f"{name}Intersect",
            {"A": A, "B": table("b1 int, b2 bigint, b3 string", *TRIPLES)},
            "SELECT a1, a2, a3 FROM A INTERSECT SELECT b1, b2, b3 FROM B",
            SMALL,
        ),
        Case(
            f"{name}Except",
            {
                "T1": table("a1 int, a2 bigint, a3 string", *HIS),
                "T2": table("b1 int, b2 bigint, b3 string", (1, 1, "Hi1"), (2, 2, "Hi2"), (3, 2, "Hi3")),
            },
            "SELECT a3 FROM T1 EXCEPT SELECT b3 FROM T2",
            [("Hi5",), ("Hi6",), ("Hi8",), ("Hi9",)],
        ),
        Case(
            f"{name}IntersectAll",
            {
                "T1": table("c int", (1,), (1,), (1,), (2,), (2,)),
                "T2": table("c int", (1,), (2,), (2,), (2,), (3,)),
            },
            "SELECT c FROM T1 INTERSECT ALL SELECT c FROM T2",
            [(1,), (2,), (2,)],
        ),
        Case(
            f"{name}MinusAll",
            minus,
            f"SELECT c FROM (({every}) EXCEPT ALL SELECT * FROM TB)",
            [("Hi",), *[("Hello",)] * 3, *[("Hello world",)] * 3],
        ),
    ]


JOINS = [*_join(), *_semi_join(), *_set_operators()]
