"""What Flink's own tests of single rows expect, told anew: Correlate, Unnest, Calc, TableScan, Values."""

from __future__ import annotations

from flink_tables import SMALL, TRIPLES, Case, table

__all__ = ["OF_ROWS"]

BATCH = ("batch",)
SPLIT = "Flink's test has a table function of Java; this one is `EXPLODE(SPLIT(...))`"


def split(column: str, by: str) -> str:
    return f"LATERAL TABLE(EXPLODE(SPLIT({column}, '{by}')))"


def _correlates() -> list[Case]:
    name = "CorrelateITCase.test"
    parts = {"T1": table("a int, b int, c string", (1, 2, "oak-elm"), (1, 2, "fir"), (1, 3, "yew"))}
    words = [(1, 2, "oak"), (1, 2, "elm"), (1, 2, "fir"), (1, 3, "yew")]
    empty = {"T1": table("a int, b int, c array<string>", (1, 2, []), (1, 3, ["x"]), (1, 4, None))}
    pairs = {"T1": table("a string, b string, c string", ("1", "1,L", "A,B"), ("2", "2,L", "B,C"))}
    dates = {"T1": table("a int, c string", (1, "3018-06-10|2018-06-03"), (1, "2018-06-01"))}
    v = f"FROM T1, {split('c', '-')} AS T(v)"
    lost = "FROM T1, LATERAL TABLE(EXPLODE(c)) AS T(v)"
    kept = "FROM T1 LEFT JOIN LATERAL TABLE(EXPLODE(c)) AS T(v) ON TRUE"
    both = {**parts, "T2": table("a int, c string", (1, "oak-elm"), (1, "fir"))}
    alone = "SELECT * FROM LATERAL TABLE(EXPLODE(SPLIT('jo,ed', ','))) AS T0(d)"
    return [
        Case(
            f"{name}UdtfForSameFieldofDifferentSource",
            both,
            f"WITH one AS (SELECT a, v {v}), two AS (SELECT a, v {v.replace('T1', 'T2')}) "
            "SELECT * FROM one UNION ALL SELECT * FROM two",
            [(1, word) for word in ("oak", "elm", "fir", "yew", "oak", "elm", "fir")],
        ),
        Case(
            f"{name}ConstantTableFunc",
            parts,
            alone.replace("'jo,ed'", "'a,b,c'"),
            [("a",), ("b",), ("c",)],
            runs=BATCH,
        ),
        Case(f"{name}ConstantTableFunc2", parts, alone, [("jo",), ("ed",)], runs=BATCH),
        Case(
            f"{name}ConstantTableFunc3",
            parts,
            "SELECT * FROM T1, LATERAL TABLE(EXPLODE(SPLIT('jo,ed', ','))) AS T0(d)",
            [(*row, one) for row in parts["T1"][1] for one in ("jo", "ed")],
        ),
        Case(
            f"{name}ConstantNonDeterministicTableFunc",
            parts,
            alone.replace("'jo,ed'", "IF(RAND() < 2, 'jo', 'ed')"),
            [("jo",)],
            runs=BATCH,
        ),
        Case(
            f"{name}ConstantNonDeterministicTableFunc2",
            parts,
            "SELECT a, d FROM T1, LATERAL TABLE(EXPLODE(SPLIT(IF(RAND() < 2, 'jo', 'ed'), ','))) AS T0(d)",
            [(1, "jo")] * 3,
        ),
        Case(
            f"{name}UdfIsOpenedAfterUdtf",
            parts,
            f"SELECT a, v {v} WHERE prefixed(v) LIKE '>%'",
            [(row[0], row[2]) for row in words],
        ),
        Case(
            f"{name}MultipleCorrelate",
            pairs,
            f"SELECT a, b, s FROM T1, {split('c', ',')} AS T2(s) UNION ALL SELECT a, c, s FROM T1, "
            f"{split('b', ',')} AS T3(s)",
            [
                *[("1", "1,L", "A"), ("1", "1,L", "B"), ("2", "2,L", "B"), ("2", "2,L", "C")],
                *[("1", "A,B", "1"), ("1", "A,B", "L"), ("2", "B,C", "2"), ("2", "B,C", "L")],
            ],
        ),
        Case(
            f"{name}MultipleEvals",
            parts,
            "SELECT add(a, 1) AS d, e FROM T1, LATERAL TABLE(EXPLODE(SEQUENCE(1, add(a, 1)))) AS T(e)",
            [(2, 1), (2, 2)] * 3,
        ),
        Case(
            f"{name}ReUsePerRecord",
            dates,
            "SELECT * FROM (SELECT a, v FROM T1, LATERAL TABLE(EXPLODE(SPLIT(c, '\\|'))) AS T(v)) "
            "WHERE TIMESTAMPADD(DAY, 3, CAST(v AS DATE)) > CURRENT_TIMESTAMP",
            [(1, "3018-06-10")],
        ),
        Case(
            f"{name}LeftJoinWithEmptyOutput",
            empty,
            f"SELECT a, b, v {kept}",
            [(1, 2, None), (1, 3, "x"), (1, 4, None)],
        ),
        Case(f"{name}ProjectCorrelateInput", parts, f"SELECT v {v}", [(row[2],) for row in words]),
        Case(f"{name}PartialProjectCorrelate", parts, f"SELECT b, v {v}", [row[1:] for row in words]),
        Case(f"{name}ProjectCorrelateInputWithEmptyOutput", empty, f"SELECT v {lost}", [("x",)]),
        Case(
            f"{name}LeftJoinProjectCorrelateInputWithEmptyOutput",
            empty,
            f"SELECT v {kept}",
            [(None,), ("x",), (None,)],
        ),
        Case(f"{name}PartialProjectWithEmptyOutput", empty, f"SELECT b, v {lost}", [(3, "x")]),
        Case(
            f"{name}LeftJoinPartialProjectWithEmptyOutput",
            empty,
            f"SELECT b, v {kept}",
            [(2, None), (3, "x"), (4, None)],
        ),
    ]


def _unnests() -> list[Case]:
    name = "UnnestITCase.test"
    lists = {
        "T": table(
            "a int, b array<int>, c array<array<int>>",
            (1, [12, 4], [[1, 2]]),
            (2, [5], [[8], [7]]),
            (3, [], []),
        )
    }
    structs = {
        "T": table(
            "a int, b array<struct<n:int,w:string>>",
            (1, [{"n": 12, "w": "x"}, {"n": 2, "w": "y"}]),
            (2, [{"n": 13, "w": "z"}, {"n": 1, "w": "x"}]),
            (3, [{"n": 18, "w": "u"}]),
        )
    }
    filtered = [(1, 12, "x"), (2, 13, "z"), (3, 18, "u")]
    maps = {
        "T": table(
            "a int, b bigint, c map<string,string>", (1, 11, {"a": "10", "b": "11"}), (2, 22, {"c": "20"})
        )
    }
    collected = {
        "T": table(
            "a int, b string, at timestamp",
            (1, "1", 1),
            (1, "2", 2),
            (2, "2", 2),
            (3, None, 3),
            (4, "4", 4),
            (5, "5", 9),
        )
    }
    of_a = "WITH T1 AS (SELECT a, COLLECT_LIST(b) AS bs FROM T GROUP BY a) "
    as_array = "`COLLECT_LIST`, where Flink's `COLLECT` is a multiset"
    named = table(
        "a int, b int, c struct<n:int,w:string>",
        (1, 1, {"n": 12, "w": "x"}),
        (2, 2, {"n": 7, "w": "y"}),
        (3, 2, {"n": 8, "w": "z"}),
    )
    return [
        Case(
            f"{name}UnnestPrimitiveArrayFromTable",
            lists,
            "SELECT a, b, s FROM T, UNNEST(T.b) AS A (s)",
            [(1, [12, 4], 12), (1, [12, 4], 4), (2, [5], 5)],
        ),
        Case(
            f"{name}UnnestArrayOfArrayFromTable",
            lists,
            "SELECT a, s FROM T, UNNEST(T.c) AS A (s)",
            [(1, [1, 2]), (2, [8]), (2, [7])],
        ),
        Case(
            f"{name}UnnestObjectArrayFromTableWithFilter",
            structs,
            "SELECT a, s, t FROM T, UNNEST(T.b) AS A (s, t) WHERE s > 11",
            filtered,
        ),
        Case(
            f"{name}UnnestMultiSetFromCollectResult",
            {"T": named},
            "WITH T1 AS (SELECT b, COLLECT_LIST(c) AS cs FROM T GROUP BY b) SELECT b, id, w FROM T1, "
            "UNNEST(T1.cs) AS A(id, w) WHERE b < 3",
            [(1, 12, "x"), (2, 7, "y"), (2, 8, "z")],
            as_array,
        ),
        Case(
            f"{name}LeftUnnestMultiSetFromCollectResult",
            collected,
            f"{of_a}SELECT a, s FROM T1 LEFT JOIN UNNEST(T1.bs) AS A(s) ON TRUE WHERE a < 5",
            [(1, "1"), (1, "2"), (2, "2"), (3, None), (4, "4")],
            as_array,
        ),
        Case(
            f"{name}TumbleWindowAggregateWithCollectUnnest",
            collected,
            "WITH T1 AS (SELECT a, COLLECT_LIST(a) AS bs FROM T GROUP BY a, TUMBLE(at, INTERVAL '3' SECOND)) "
            "SELECT a, s FROM T1, UNNEST(T1.bs) AS A(s) WHERE a < 3",
            [(1, 1), (1, 1), (2, 2)],
            as_array,
            options={"watermark": "at - INTERVAL '1' SECOND"},
        ),
        Case(
            f"{name}CrossWithUnnest",
            lists,
            "SELECT a, s FROM T, UNNEST(T.b) AS A (s)",
            [(1, 12), (1, 4), (2, 5)],
        ),
        Case(
            f"{name}CrossWithUnnestForMap",
            maps,
            "SELECT a, b, v FROM T CROSS JOIN UNNEST(c) AS f (k, v)",
            [(1, 11, "10"), (1, 11, "11"), (2, 22, "20")],
        ),
        Case(
            f"{name}JoinWithUnnestOfTuple",
            structs,
            "SELECT a, x, y FROM (SELECT a, b FROM T WHERE a < 3) AS tf, UNNEST(tf.b) AS A (x, y) "
            "WHERE x > a",
            [(1, 12, "x"), (1, 2, "y"), (2, 13, "z")],
        ),
        Case(
            f"{name}UnnestObjectArrayWithoutAlias",
            structs,
            "SELECT a, A.n, A.w FROM T, UNNEST(T.b) AS A WHERE A.n > 11",
            filtered,
        ),
        Case(
            f"{name}UnnestWithNestedFilter",
            structs,
            "SELECT * FROM (SELECT a, b1, b2 FROM (SELECT a, b FROM T) T CROSS JOIN UNNEST(T.b) AS "
            "S(b1, b2) WHERE S.b1 >= 12) tmp WHERE b2 <> 'u'",
            filtered[:2],
        ),
    ]


def _calcs() -> list[Case]:
    name = "CalcITCase.test"
    small, triples = (
        {"T": table("a int, b bigint, c string", *SMALL)},
        {"T": table("a int, b bigint, c string", *TRIPLES)},
    )
    flags = {"T": table("a int, b boolean", (1, True), (2, False))}
    deep = {
        "T": table(
            "id int, deep "
            "struct<one:struct<name:string,value:int>,two:struct<num:int,flag:boolean>>, nested "
            "struct<name:string,value:int>",
            (
                1,
                {"one": {"name": "HI", "value": 11}, "two": {"num": 111, "flag": True}},
                {"name": "hi", "value": 1111},
            ),
            (
                2,
                {"one": {"name": "YO", "value": 22}, "two": {"num": 222, "flag": False}},
                {"name": "yo", "value": 2222},
            ),
        )
    }
    maps = {"T": table("a bigint, b map<string,bigint>", (1, {"x": 2}), (2, {"y": 5}))}
    pairs = {"T": table("p struct<x:int,y:int>, q string", ({"x": 0, "y": 0}, "0"), ({"x": 1, "y": 1}, "1"))}
    quoted = {"T": table("a int, b string", (42, "abc"), (2, 'cbc"ddd'))}
    called = {"T": table("f string", ("Hc809",), ("H389N  ",), ("other",))}
    timed = {"T": table("id int, ts timestamp", (1, 10), (2, 20), (3, 20))}
    cases = ",".join(
        f"CASE WHEN a IS NOT NULL AND a > {at} THEN 0 WHEN a < 0 THEN 0 ELSE {at} END" for at in range(3, 60)
    )
    coalesced = {
        "COALESCE(1)": 1, "COALESCE(1, 2)": 1, "COALESCE(CAST(NULL AS "
                                               "INT), 2)": 2, "COALESCE(1, CAST(NULL AS INT))": 1,
        "COALESCE(CAST(NULL AS VARCHAR), CAST(NULL AS "
        "VARCHAR), '3')": "3", "COALESCE('1', '23')": "1", "COALESCE(1.5, 2)": 1.5,
        "COALESCE(CAST(NULL AS DOUBLE), 2.0, 3.0)": 2.0, "COALESCE(CAST(NULL AS DOUBLE), CAST(NULL "
                                                         "AS DOUBLE))": None,
    }  # fmt: skip
    watermark = "the watermark of a query is in its metrics"
    return [
        Case(
            f"{name}SelectWithLegacyCastIntToDate",
            {},
            "SELECT CASE WHEN TRUE THEN CAST(2 AS INT) ELSE CAST('2017-12-11' AS DATE) END",
            None,
            "a setting for casts of Flink before 1.15: a number is no date",
            "Input to `casewhen` should all be the same type",
        ),
        Case(
            f"{name}CastNumericToBooleanInCondition",
            flags,
            "SELECT * FROM T WHERE b = CAST(1 AS BOOLEAN) UNION ALL SELECT * FROM T WHERE b = CAST(0 "
            "AS BOOLEAN)",
            [(1, True), (2, False)],
        ),
        *(
            Case(f"{name}{test}", small, "SELECT * FROM T", [*SMALL])
            for test in ("GenericRowAndRowData", "GenericRowAndRow")
        ),
        *(
            Case(f"{name}{test}", small, "SELECT * FROM T WHERE a < 3", SMALL[:2])
            for test in ("RowAndRowData", "RowAndRow")
        ),
        Case(
            f"{name}PrimitiveMapType",
            small,
            "SELECT MAP[CAST(b AS VARCHAR), 30, '10', a] FROM T",
            [({str(b): 30, "10": a},) for a, b, _ in SMALL],
        ),
        Case(
            f"{name}NonPrimitiveMapType",
            small,
            "SELECT MAP[a, c] FROM T",
            [({str(a): c},) for a, _, c in SMALL],
        ),
        Case(f"{name}SelectStarFromNestedTable", pairs, "SELECT * FROM T", pairs["T"][1]),
        Case(
            f"{name}In",
            triples,
            "SELECT * FROM T WHERE b IN (1, 3, 4, 5, 6)",
            [row for row in TRIPLES if row[1] != 2],
        ),
        Case(
            f"{name}NotIn",
            triples,
            "SELECT * FROM T WHERE b NOT IN (1, 3, 4, 5, 6)",
            [row for row in TRIPLES if row[1] == 2],
        ),
        Case(f"{name}LongProjectionList", small, f"SELECT {cases} FROM T", [tuple(range(3, 60))] * 3),
        Case(
            f"{name}IfFunction",
            triples,
            "SELECT IF(a > 3, 'true', 'false'), a FROM T",
            [(str(a > 3).lower(), a) for a, *_ in TRIPLES],
        ),
        Case(f"{name}SourceWithCustomInternalData", maps, "SELECT a, b FROM T", maps["T"][1]),
        Case(f"{name}SimpleProject", small, "SELECT a, c FROM T", [(a, c) for a, _, c in SMALL]),
        Case(
            f"{name}NestedProject",
            deep,
            "SELECT id, deep.one.name AS n, nested.`value` AS v, deep.two.flag AS f, deep.two.num AS "
            "m FROM T",
            [(1, "HI", 1111, True, 111), (2, "YO", 2222, False, 222)],
        ),
        Case(
            f"{name}DecimalArrayWithDifferentPrecision",
            small,
            "SELECT ARRAY[0.12, 0.5, 0.99] FROM T",
            [([0.12, 0.5, 0.99],)] * 3,
        ),
        Case(
            f"{name}DecimalMapWithDifferentPrecision",
            small,
            "SELECT MAP['a', 0.12, 'b', 0.5] FROM T",
            [({"a": 0.12, "b": 0.5},)] * 3,
        ),
        Case(
            f"{name}DecimalArrayWithDifferentPrecision, without FROM",
            {},
            "SELECT ARRAY[0.12, 0.5, 0.99]",
            [([0.12, 0.5, 0.99],)],
            runs=BATCH,
        ),
        Case(
            f"{name}CurrentWatermark",
            timed,
            "SELECT id, CURRENT_WATERMARK(ts) FROM T",
            None,
            watermark,
            "CURRENT_WATERMARK(ts) is not supported",
        ),
        Case(
            f"{name}CurrentWatermarkForNonRowtimeAttribute",
            timed,
            "SELECT CURRENT_WATERMARK(ts) FROM T",
            None,
            "which Flink refuses, too",
            "CURRENT_WATERMARK",
            flink_refuses=True,
        ),
        Case(
            f"{name}CurrentWatermarkWithoutAnyAttribute",
            timed,
            "SELECT ts, CURRENT_WATERMARK() FROM T",
            None,
            "which Flink refuses, too",
            "CURRENT_WATERMARK",
            flink_refuses=True,
        ),
        Case(
            f"{name}CreateTemporaryTableFromDescriptor",
            {"T": table("f int", (42,))},
            "SELECT * FROM T",
            [(42,)],
        ),
        Case(
            f"{name}Search",
            called,
            "SELECT UPPER(f) FROM T WHERE UPPER(f) IN ('H388N', 'H389N  ', 'HC809')",
            [("HC809",), ("H389N  ",)],
        ),
        Case(
            f"{name}MultipleCoalesces",
            {},
            f"SELECT {', '.join(coalesced)}",
            [tuple(coalesced.values())],
            runs=BATCH,
        ),
        Case(f"{name}CurrentDatabase", {}, "SELECT CURRENT_DATABASE()", [("default",)], runs=BATCH),
        Case(
            f"{name}LikeWithConditionContainsDoubleQuotationMark",
            quoted,
            "SELECT * FROM T WHERE b LIKE '%\"%'",
            [(2, 'cbc"ddd')],
        ),
        Case(
            f"{name}NonMergeableRandCall",
            small,
            "SELECT ROUND(b - a, 6) FROM (SELECT r + 5 AS a, r + 7 AS b FROM (SELECT RAND() AS r "
            "FROM T) t1) t2",
            [(2.0,)] * 3,
        ),
        Case(
            f"{name}IfNull",
            {},
            "SELECT IFNULL(JSON_VALUE('{\"a\":16}', '$.a'), '0')",
            None,
            "`JSON_VALUE`: Spark has `GET_JSON_OBJECT`, which returns objects as text, too",
            "JSON_VALUE('{\"a\":16}', '$.a') is not supported",
        ),
    ]


def _scans() -> list[Case]:
    name = "TableScanITCase.test"
    people = {
        "T": table(
            "key int, rowtime timestamp, who string",
            (1, 11, "mia"),
            (2, 12, "per"),
            (3, 13, "bo"),
            (4, 14, "liz"),
        )
    }
    names = [(row[2],) for row in people["T"][1]]
    return [
        Case(
            f"{name}TableSourceWithoutTimeAttribute",
            {"T": table("who string, a bigint, b int", ("mia", 1, 1), ("bo", 2, 3))},
            "SELECT * FROM T",
            [("mia", 1, 1), ("bo", 2, 3)],
        ),
        Case(f"{name}ProctimeTableSource", people, "SELECT who FROM T", names),
        Case(
            f"{name}RowtimeTableSource",
            people,
            "SELECT CAST(TUMBLE_START(rowtime, INTERVAL '5' SECOND) AS VARCHAR), COUNT(who) FROM T "
            "GROUP BY TUMBLE(rowtime, INTERVAL '5' SECOND)",
            [("1970-01-01 00:00:10", 4)],
            options={"watermark": "rowtime - INTERVAL '1' SECOND"},
        ),
        Case(
            "ValuesITCase.testValues",
            {},
            "SELECT * FROM (VALUES (1, 'Bo'), (1, 'Al')) T(a, b)",
            [(1, "Bo"), (1, "Al")],
            runs=BATCH,
        ),
    ]


OF_ROWS = [*_correlates(), *_unnests(), *_calcs(), *_scans()]
