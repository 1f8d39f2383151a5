"""Parsing of queries in Flink's SQL, and the errors for unsupported ones."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import WINDOW, computed_name
from timerheap.spark._sql.read.statements import only_query
from timerheap.spark._sql.rewrite.meaning import meaning_of

MINUTE = 60_000
FROM = "FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTES))"
GROUP = "GROUP BY window_start, window_end"
BY = "PARTITION BY window_start, window_end"
JOIN = (
    f"SELECT L.v FROM (SELECT * {FROM}) L FULL JOIN (SELECT * {FROM}) R ON L.k = R.k AND "
    "L.window_start = R.window_start AND L.window_end = R.window_end"
)
SAME_WINDOW = "l.window_start = r.window_start AND l.window_end = r.window_end"
LAST = "SELECT SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM t"
LAG, OF = "SELECT LAG(", "OVER (PARTITION BY k ORDER BY ts) AS s FROM t"
FIRST = (
    "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n FROM t) AS t WHERE n = 1"
)
LATEST = FIRST.replace("ts)", "ts DESC)")
TOP = f"SELECT * FROM (SELECT *, ROW_NUMBER() OVER ({BY} ORDER BY v) AS n {FROM}) WHERE n <= 3"
NAMED = (
    f"SELECT * FROM (SELECT *, ROW_NUMBER() OVER w AS n {FROM} WINDOW w AS ({BY} ORDER BY v)) WHERE n <= 3"
)


def meant(text: str, *columns: Any) -> Any:
    return meaning_of(only_query(text)[0], *columns)


def test_a_query_is_parsed() -> None:
    query: Any = meant(
        "SELECT window_start AS s, window_end, w.k, -- its key\nCOUNT(*) /* rows */ AS n, SUM(w.v) * 2 + 1\n"
        "FROM TABLE(CUMULATE(TABLE db.t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '5' MINUTE)) AS w\n"
        "WHERE user <> 'it''s \\' GROUP BY window_end, w.k, window_start, window_time HAVING COUNT(*) > 3;"
    )
    windows = query.source
    assert (windows.function, windows.table, windows.time) == ("cumulate", ("db", "t"), "ts")
    assert (windows.lengths, windows.partition) == ({"step": 5_000, "max_size": 300_000}, ())
    assert windows.bounds == {name: name for name in ("window_start", "window_end", "window_time")}
    assert query.keys == ("k",)
    assert query.where == r"user <> 'it\'s \\'"
    count, total = computed_name(0, "COUNT(*)"), computed_name(0, "SUM(v)")  # no columns of the table
    calls = {name: astuple(call)[:3] for name, call in query.calls.items()}
    assert calls == {count: ("count", None, None), total: ("sum", "v", None)}
    assert query.having == f"`{count}` > 3"
    names = ["s", "window_end", "k", "n", "SUM(v) * 2 + 1"]
    assert query.columns == tuple(
        zip(["window_start", "window_end", "k", f"`{count}`", f"`{total}` * 2 + 1"], names, strict=True)
    )


@pytest.mark.parametrize(
    "query",
    [
        LAST,
        LAST.replace("ROWS BETWEEN 2", "RANGE BETWEEN INTERVAL '1:30' HOUR TO SECOND").replace("1:", "1:00:"),
        LAST.replace("BETWEEN 2 PRECEDING AND CURRENT ROW", "2 PRECEDING"),
        LAST.replace("BETWEEN 2 PRECEDING AND CURRENT ROW", "UNBOUNDED PRECEDING"),
        FIRST.replace("= 1", "<= 2"),
        FIRST.replace("WHERE n = 1", ""),
        FIRST.replace("ROW_NUMBER", "RANK"),
        "SELECT COUNT(*) OVER w AS n FROM t WINDOW w AS (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT "
        "ROW)",
        TOP.replace("ORDER BY v", "ORDER BY v DESC NULLS LAST, k ASC NULLS FIRST"),
        JOIN.replace("FULL", "FULL OUTER"),
        f"SELECT * {FROM} AS L WHERE L.k NOT IN (SELECT k {FROM} AS R WHERE L.window_start = R.window_start "
        "AND L.window_end = R.window_end)",
        "WITH a AS (SELECT k, COUNT(DISTINCT v) AS n, COUNT(*) FILTER (WHERE v > 1) AS m FROM TABLE(SESSION("
        "TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' MINUTES)) GROUP BY window_start, window_end, k "
        "HAVING COUNT(*) > 1) SELECT * FROM a WHERE NOT n IS NULL",
        "SELECT GROUPING_ID(k) AS g FROM TABLE(CUMULATE(DATA => TABLE t, TIMECOL => DESCRIPTOR(ts), STEP => "
        "INTERVAL '1' HOUR, SIZE => INTERVAL '1' DAY)) GROUP BY window_start, window_end, GROUPING SETS (k)",
        f"SELECT 1 AS x {FROM} {GROUP}, CUBE (a), ROLLUP (b)",
        "SELECT TUMBLE_START(ts, INTERVAL '1' MINUTE) AS TUMBLE_END, TUMBLE_PROCTIME(ts, INTERVAL '1' MINUTE)"
        " AS p FROM t GROUP BY TUMBLE(ts, INTERVAL '60' SECOND)",
    ],
)
def test_keywords_may_be_in_any_case(query: str) -> None:
    assert repr(meant(query.lower())).lower() == repr(meant(query)).lower()


@pytest.mark.promises(
    "Flink SQL", "different", "TUMBLE_PROCTIME", note="the time of the micro-batch; Flink 2.3 returns null"
)
def test_the_times_of_group_windows_are_parsed() -> None:
    window = "(ts, INTERVAL '1' MINUTE)"
    ends = ", ".join(f"TUMBLE_{end}{window} AS t{end}" for end in ("START", "END", "ROWTIME", "PROCTIME"))
    query: Any = meant(f"SELECT {ends} FROM t GROUP BY TUMBLE{window}")
    assert query.columns == (
        (WINDOW[0], "tSTART"),
        (WINDOW[1], "tEND"),
        (WINDOW[2], "tROWTIME"),
        ("CURRENT_TIMESTAMP()", "tPROCTIME"),
    )


def windows_of(function: str) -> Any:
    query: Any = meant(f"SELECT COUNT(*) FROM TABLE({function}) GROUP BY window_start, window_end")
    return query.source


@pytest.mark.parametrize(
    ("function", "lengths"),
    [
        ("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTES)", {"size": 10 * MINUTE}),
        (
            "tumble(table t, descriptor(ts), interval '1' day, interval '-1' hour)",
            {"size": 1_440 * MINUTE, "offset": -60 * MINUTE},
        ),
        (
            "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '1' HOUR)",
            {"slide": 5 * MINUTE, "size": 60 * MINUTE},
        ),
        (
            "HOP(SIZE => INTERVAL '1' HOURS, SLIDE => INTERVAL '5' MINUTES, TIMECOL => DESCRIPTOR(`ts`), "
            "`OFFSET` => - INTERVAL '1' MINUTE, DATA => TABLE t)",
            {"slide": 5 * MINUTE, "size": 60 * MINUTE, "offset": -MINUTE},
        ),
        (
            "CUMULATE(DATA => TABLE t, TIMECOL => DESCRIPTOR(ts), STEP => INTERVAL '0.5' SECOND(1), "
            "SIZE => INTERVAL '1 00:00:01.5' DAY TO SECOND(3))",
            {"step": 500, "max_size": 86_401_500},
        ),
        ("SESSION(TABLE t, DESCRIPTOR(ts), GAP => INTERVAL '1:30' MINUTE TO SECOND)", {"gap": 90_000}),
    ],
)
@pytest.mark.promises("Flink SQL", "supported", "arguments by name")
def test_arguments_of_window_functions_are_parsed(function: str, lengths: dict[str, int]) -> None:
    query = windows_of(function)
    assert (query.function, query.table, query.time) == (function.partition("(")[0].lower(), ("t",), "ts")
    assert query.lengths == lengths


@pytest.mark.parametrize(
    ("by", "keys"), [("k", ["k"]), ("(k)", ["k"]), ("(k, user)", ["k", "user"]), ("(user, k)", ["k", "user"])]
)
def test_sessions_are_partitioned_by_the_group_keys(by: str, keys: list[str]) -> None:
    query: Any = meant(
        f"SELECT {', '.join(keys)}, COUNT(*) FROM TABLE(SESSION(TABLE t PARTITION BY {by}, DESCRIPTOR(ts), "
        f"INTERVAL '5' MINUTES)) GROUP BY {', '.join(keys)}, window_start, window_end"
    )
    assert query.keys == tuple(keys)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("COUNT(1)", ("count", None, None)),
        ("COUNT(ALL v)", ("count", "v", None)),
        ("count(distinct v)", ("count_distinct", "v", None)),
        ("MIN(DISTINCT v)", ("min", "v", None)),
        ("SUM(v * 2)", ("sum", "v * 2", None)),
        ("AVG(CAST(v AS DOUBLE))", ("avg", "CAST(v AS DOUBLE)", None)),
        ("STDDEV_POP(v)", ("stddev_pop", "v", None)),
        ("STDDEV_SAMP(v)", ("stddev_samp", "v", None)),
        ("STDDEV(v)", ("stddev_samp", "v", None)),
        ("VAR_POP(v)", ("var_pop", "v", None)),
        ("VAR_SAMP(v)", ("var_samp", "v", None)),
        ("VARIANCE(v)", ("var_samp", "v", None)),
        ("APPROX_COUNT_DISTINCT(v)", ("approx_count_distinct", "v", None)),
        ("COUNT(*) FILTER (WHERE v > 1)", ("count", None, "v > 1")),
        ("MAX(v) FILTER (WHERE k = 'a')", ("max", "v", "k = 'a'")),
    ],
)
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "STDDEV_POP",
    "STDDEV_SAMP",
    "VAR_POP",
    "VAR_SAMP",
    "APPROX_COUNT_DISTINCT",
    "FILTER",
)
@pytest.mark.promises(
    "Flink SQL", "different", "AVG", note="the average of integers is a double, as in Spark"
)
def test_aggregates_are_parsed(text: str, call: tuple[str, ...]) -> None:
    query: Any = meant(f"SELECT {text} AS x {FROM} GROUP BY window_start, window_end")
    assert [astuple(each)[:3] for each in query.calls.values()] == [call]


@pytest.mark.parametrize(
    ("elements", "sets"),
    [
        ("k", [("k",)]),
        ("GROUPING SETS ((a), (a, b), ())", [("a",), ("a", "b"), ()]),
        ("CUBE (a, (b, c))", [("a", "b", "c"), ("a",), ("b", "c"), ()]),
        ("k, ROLLUP (a, b)", [("k", "a", "b"), ("k", "a"), ("k",)]),
        ("CUBE (a), ROLLUP (b)", [("a", "b"), ("a",), ("b",), ()]),
        ("GROUPING SETS (a, ROLLUP (b))", [("a",), ("b",), ()]),
    ],
)
def test_grouping_sets_are_parsed(elements: str, sets: list[tuple[str, ...]]) -> None:
    for by in (f"{GROUP}, {elements}", f"GROUP BY {elements}, window_end, window_start"):
        query: Any = meant(f"SELECT 1 {FROM} {by}")
        assert query.sets == tuple(sets)


def test_grouping_sets_may_include_the_window_bounds() -> None:
    bounds = "window_start, window_end"
    query: Any = meant(f"SELECT 1 {FROM} GROUP BY GROUPING SETS (({bounds}, k), ({bounds}, window_time))")
    assert query.sets == (("k",), ())


@pytest.mark.parametrize(
    ("where", "limit", "rest"),
    [
        ("n <= 3", 3, None),
        ("n < 3", 2, None),
        ("3 >= n", 3, None),
        ("n = 1", 1, None),
        ("v > 2 AND n <= 3 AND n > 1", 3, "v > 2 AND n > 1"),
    ],
)
def test_ranks_are_parsed(where: str, limit: int, rest: str | None) -> None:
    text = TOP.replace("n <= 3", where).replace("end ORDER BY v", "end, w.k ORDER BY w.v DESC, v")
    query: Any = meant(text.replace("MINUTES))", "MINUTES)) AS w"))
    rank = query.source.source
    assert (rank.function, rank.source.function) == ("row_number", "tumble")
    assert (rank.name, rank.keys, rank.limit, query.where) == ("n", ("k",), limit, rest)
    assert [astuple(each) for each in rank.order] == [("v", True, False), ("v", False, True)]


def test_the_window_of_a_rank_may_have_a_name() -> None:
    assert meant(NAMED) == meant(TOP)


@pytest.mark.parametrize(
    ("condition", "null_safe"),
    [
        ("L.k = R.k", False),
        ("R.k IS NOT DISTINCT FROM L.k", True),
        ("NOT (L.k IS DISTINCT FROM R.k)", True),
        ("(L.k = R.k OR (R.k IS NULL AND L.k IS NULL))", True),
        ("(L.k = R.k OR (R.k IS NULL AND L.v IS NULL))", None),
        ("(L.k = R.k OR L.k IS NULL)", None),
    ],
)
def test_equalities_of_a_join_are_keys(condition: str, null_safe: bool | None) -> None:
    query: Any = meant(JOIN.replace("L.k = R.k", condition))
    assert query.source.keys == (() if null_safe is None else (("k", "k", null_safe),))


MOST = (
    "SELECT A.k, A.n FROM (SELECT k, COUNT(*) AS n, window_start AS s, window_end AS e "
    f"{FROM} {GROUP}, k) AS A "
    f"JOIN (SELECT MAX(n) AS m, s, e FROM (SELECT COUNT(*) AS n, window_start AS s, window_end AS e {FROM} "
    f"{GROUP}, k) GROUP BY s, e) AS B ON A.s = B.s AND A.e = B.e AND A.n >= B.m"
)


@pytest.mark.parametrize(
    ("change", "to", "is_rank"),
    [
        ("A.n >= B.m", "A.n = B.m", True),
        ("A.n >= B.m", "A.n = B.m AND A.k > 'a'", False),
        ("A.n >= B.m", "A.n IS NOT DISTINCT FROM B.m", False),
        ("A.n >= B.m", "A.n >= B.m", True),
        ("A.n >= B.m", "A.n > B.m", False),
        ("A.n >= B.m", "A.k >= B.m", False),
        ("A.n >= B.m", "A.n >= B.m AND A.k = B.m", False),
        ("MAX(n) AS m", "MAX(n) + 1 AS m", False),
        ("MAX(n) AS m", "MAX(n) AS m, COUNT(*) AS c", False),
        ("MAX(n)", "MIN(n)", False),
        ("JOIN", "LEFT JOIN", False),
        ("'10'", "'20'", True),
        (f"{GROUP}, k)", f"{GROUP}, k, v)", False),
    ],
)
def test_the_most_of_a_window_is_a_rank(change: str, to: str, is_rank: bool) -> None:
    query: Any = meant(MOST.replace(change, to, 2 if "'" in change else 1))
    assert hasattr(query.source, "how") is not is_rank


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "got 0 statements"),
        ("SELECT 1; SELECT 2", "got 2 statements"),
        ("SELECT COUNT(* FROM t", "must be valid SQL: Expecting"),
        ("SELECT 'a", "must be valid SQL"),
        ("SELECT *", r"\* without FROM is not supported; write FROM TABLE"),
        ("SELECT 1 FROM t GROUP BY TUMBLE(ts)", r"TUMBLE\(ts\) is not supported; write TUMBLE\(ts, SIZE\)"),
        ("SELECT 1 FROM t GROUP BY UPPER(k), SESSION(ts, INTERVAL '1' DAY)", r"GROUP BY UPPER\(k\)"),
        (
            "SELECT TUMBLE_END(ts, INTERVAL '2' DAY) FROM t GROUP BY TUMBLE(ts, INTERVAL '1' DAY)",
            r"TUMBLE_END\(ts, INTERVAL '2' DAY\) with GROUP BY TUMBLE\(ts, INTERVAL '1' DAY\) is not",
        ),
        (
            "SELECT HOP_END(ts, INTERVAL '1' DAY, INTERVAL '1' DAY) FROM t GROUP BY "
            "TUMBLE(ts, INTERVAL '1' DAY)",
            r"HOP_END\(.*\) with GROUP BY TUMBLE\(.*\) is not supported; write the same window in both",
        ),
        (
            f"SELECT 1 FROM TABLE(SLIDE(TABLE t)) {GROUP}",
            "table function SLIDE is not supported; use one of TUM",
        ),
        (
            f"SELECT COUNT(*) {FROM}",
            r"SELECT with COUNT\(\*\) is not supported; add GROUP BY window_start, window_end$",
        ),
        (f"SELECT * {FROM} {GROUP}", r"SELECT \* is not supported; list the columns"),
        (f"SELECT COUNT(*) {FROM} GROUP BY window_start, k", "GROUP BY must have .*; window_end is missing"),
        (f"SELECT COUNT(*) {FROM} GROUP BY k, window_end", "GROUP BY must have .*; window_start is missing"),
        (f"SELECT COUNT(*) {FROM} {GROUP}, CUBE (a, b, c, d, e, f, g)", "GROUP BY of 128 grouping sets"),
        (
            f"SELECT 1 {FROM} GROUP BY GROUPING SETS ((window_start, k), (window_start))",
            "window_end is missing",
        ),
        (f"SELECT GROUPING(v) {FROM} {GROUP}, CUBE (k)", r"GROUPING\(v\) is not supported; .*: k"),
        (f"SELECT GROUPING_ID() {FROM} {GROUP}, CUBE (k)", r"GROUPING_ID\(\) is not supported"),
        (f"SELECT GROUP_ID() {FROM} {GROUP}, CUBE (k)", r"GROUP_ID\(\) is not supported; write GROUPING_ID"),
        (
            "SELECT 1 FROM TABLE(SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '1' DAY)) "
            f"{GROUP}, CUBE (k)",
            "SESSION with GROUPING SETS, CUBE or ROLLUP",
        ),
        (f"SELECT COUNT(*) {FROM} {GROUP} ORDER BY 1", "ORDER BY is not supported; use orderBy"),
        (f"SELECT COUNT(*) {FROM} {GROUP} LIMIT 3", "LIMIT is not supported"),
        (f"SELECT COUNT(*) {FROM} JOIN b ON k = b.k {GROUP}", "a JOIN of tables without names"),
        (
            f"SELECT 1 {FROM} AS a JOIN b ON k = b.k",
            "condition k = .* of a JOIN .*write the name of",
        ),
        (
            f"SELECT k, COUNT(*) FROM (SELECT k, window_start, window_end {FROM} {GROUP}, k) GROUP "
            f"BY window_end",
            "GROUP BY must have .*; window_start is missing",
        ),
        (
            f"SELECT DISTINCT k, window_start, window_end {FROM}",
            "SELECT DISTINCT of windows is not supported",
        ),
        ("SELECT COUNT(*) FROM t GROUP BY 1", "GROUP BY 1 is not supported; write the expression"),
        ("SELECT k FROM t ORDER BY 1 LIMIT 3", "ORDER BY 1 is not supported; write the column"),
        ("SELECT k FROM t ORDER BY k LIMIT n", "LIMIT n is not supported; write a whole number"),
        ("SELECT k FROM t ORDER BY k", "ORDER BY is not supported; use orderBy"),
        ("SELECT k FROM t GROUP BY k HAVING v > 1", "columns in HAVING must be .*, got 'v'"),
        (
            "SELECT a.v FROM a JOIN b ON a.k = b.k GROUP BY a.k",
            "columns in SELECT must be .*, got 'v' in a.v",
        ),
        (LATEST.replace("ts DESC", "PROCTIME() DESC"), r"\(of processing time\) is not supp"),
        (LATEST.replace("n = 1", "n > 1"), "a Top-N without exactly one limit of n is not"),
        (LATEST.replace("WHERE n = 1", ""), "a Top-N without exactly one limit of n is not"),
        (
            LATEST.replace("ROW_NUMBER()", "SUM(v)"),
            "without an ascending time as the first of ORDER BY",
        ),
        (
            "SELECT k FROM t WHERE k IN (SELECT u.k FROM u WHERE u.v = t.v GROUP BY u.k)",
            "t.v in IN or EXISTS with GROUP BY, DISTINCT, JOIN or UNION is not supported; nest it",
        ),
        ("SELECT k FROM t WHERE k = 1 OR k IN (SELECT k FROM u)", r"use x \[NOT\] IN .SELECT"),
        (f"SELECT COUNT(*) {FROM} AS w (a, b) {GROUP}", r"renaming columns with w \(a, b\)"),
        (f"SELECT COUNT(*) {FROM} FOR SYSTEM_TIME AS OF ts {GROUP}", "FOR SYSTEM_TIME AS OF is not supp"),
        ("EXPLAIN SELECT 1", "EXPLAIN is not supported"),
        (
            f"SELECT * FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY v) AS n {FROM}) WHERE n < 3",
            "a Top-N of all rows, not of windows",
        ),
        (f"SELECT ROW_NUMBER() OVER ({BY} ORDER BY v) AS n {FROM} {GROUP} HAVING v > 1", "got 'v'"),
        (f"SELECT k {FROM} QUALIFY k > 'a'", "QUALIFY k > 'a' without a function OVER rows is not supp"),
        (f"SELECT k {FROM} QUALIFY SUM(v) OVER ({BY}) > 1", r"SUM\(v\) OVER .* of windows or groups is not"),
        (
            f"SELECT k {FROM} {GROUP}, k QUALIFY LAG(k) OVER ({BY} ORDER BY k) > 1",
            "of groups .a condition on anything but one rank. is not supported",
        ),
        (
            "SELECT k FROM t WHERE LAG(v) OVER (PARTITION BY k ORDER BY ts) <> v",
            r"WHERE with LAG\(v\) OVER \(PARTITION BY k ORDER BY ts\) is not .*; use QUALIFY or a subquery",
        ),
        (
            "SELECT k FROM t WHERE v > 1 AND (k = 'a' OR SUM(v) OVER w > 3) WINDOW w AS (ORDER BY ts)",
            r"WHERE with SUM\(v\) OVER .* use QUALIFY or a subquery",
        ),
        (
            f"SELECT k {FROM} {GROUP}, k HAVING RANK() OVER ({BY} ORDER BY k) = 1",
            r"HAVING with RANK\(\) OVER .* use QUALIFY or a subquery",
        ),
        (f"SELECT k {FROM} QUALIFY RANK() OVER ({BY} ORDER BY v) > 1", "write QUALIFY RANK.* OVER .* <= 3"),
        (
            f"SELECT k {FROM} {GROUP}, k QUALIFY RANK() OVER ({BY} ORDER BY k) = 1 AND k > 'a'",
            "QUALIFY k > 'a' of groups is not supported; move conditions",
        ),
        (
            f"SELECT v AS __timerheap_v {FROM}",
            "the name __timerheap_v is not supported; use names that do not",
        ),
        (
            f"SELECT * FROM (SELECT *, ROW_NUMBER() OVER ({BY}) AS n {FROM}) WHERE n < 3",
            r"ROW_NUMBER\(\) OVER .* in this place is not supported; give one rank an order",
        ),
        (
            TOP.replace(" AS n", " AS n, COUNT(*) OVER () AS m"),
            r"ROW_NUMBER\(\) OVER .* and COUNT\(\*\) OVER \(\) in this place",
        ),
        (TOP.replace("AS n", ""), "in this place is not supported; give one rank an order and a name"),
        (TOP.replace("n <= 3", "v <= 3"), "without exactly one limit of n"),
        (TOP.replace("n <= 3", "n >= 3"), "without exactly one limit of n"),
        (TOP.replace("n <= 3", "n < 1"), "without exactly one limit of n"),
        (TOP.replace("n <= 3", "n <= -3"), "without exactly one limit of n"),
        (TOP + " ORDER BY v", "ORDER BY is not supported"),
        (
            JOIN.replace("TUMBLE", "CUMULATE").replace("MINUTES)", "MINUTES, INTERVAL '1' HOUR)", 1),
            "takes DATA",
        ),
        (
            JOIN.replace("'10'", "'20'", 1),
            r"a window join of TUMBLE\(size 1200000 ms\) and TUMBLE\(size 600000 ms",
        ),
        (JOIN + " WHERE L.k IN (SELECT k FROM t)", "IN or EXISTS beside a JOIN"),
        (JOIN.replace("FULL JOIN", "LEFT SEMI JOIN"), "SEMI JOIN .* is not supported; write JOIN, LEFT"),
        (JOIN.replace(" AND L.window_end = R.window_end", ""), "a JOIN without windows"),
        (JOIN.replace("L.v", "COUNT(*)") + " GROUP BY L.window_start, L.window_end", "GROUP BY of a JOIN"),
        (
            f"SELECT * {FROM} AS L WHERE L.k IN (SELECT k {FROM} AS R WHERE L.window_start = R.window_start)",
            "IN or EXISTS without windows .* L.window_end = R.window_end",
        ),
        (
            f"SELECT * {FROM} AS L WHERE L.k IN (SELECT k, v {FROM} AS R WHERE L.window_end = R.window_end)",
            "IN with 2 columns",
        ),
        (
            f"SELECT * {FROM} AS L WHERE L.k > (SELECT k {FROM} AS R WHERE L.window_start = R.window_start)",
            r"WHERE L.k > .* is not supported; use x \[NOT\] IN",
        ),
        (f"SELECT 1 FROM (SELECT * {FROM}) {GROUP}", "GROUP BY of a nested SELECT of the rows of windows"),
        (f"SELECT k {FROM} HAVING k > 1", "HAVING without GROUP BY"),
        (f"SELECT COUNT(*) {FROM} WHERE window_start > ts {GROUP}", "WHERE with window_start .*HAVING"),
        (f"SELECT COUNT(*) {FROM} WHERE COUNT(*) > 1 {GROUP}", r"a condition with COUNT\(\*\) .*HAVING"),
        (f"SELECT v {FROM} {GROUP}", "columns in SELECT must be in GROUP BY or inside an aggregate, got 'v'"),
        (f"SELECT k {FROM} {GROUP} HAVING v > 1", "in GROUP BY or inside an aggregate, got 'k'"),
        (f"SELECT 1 {FROM} {GROUP} HAVING v > 1", "columns in HAVING must be .*, got 'v'"),
        (f"SELECT COLLECT(v) {FROM} {GROUP}", "aggregates are COUNT, .* pass functions="),
        (f"SELECT VAR_POP(DISTINCT v) {FROM} {GROUP}", "SUM, AVG, MIN and MAX take DISTINCT"),
        (f"SELECT COUNT(DISTINCT k, v) {FROM} {GROUP}", "distinct values of one column"),
        (f"SELECT COUNT(k, v) {FROM} {GROUP}", "aggregates take one argument"),
        (f"SELECT SUM(COUNT(v)) {FROM} {GROUP}", "aggregates cannot be nested"),
        (f"SELECT SUM(v) OVER () {FROM} {GROUP}", r"SUM\(v\) OVER \(\) of windows or groups is not supp"),
        (LAST.replace("ROWS BETWEEN 2", "GROUPS BETWEEN 2"), "of other rows than the last ones by number"),
        (
            LAST.replace("ROWS BETWEEN 2", "RANGE BETWEEN INTERVAL '2' DAY").replace("ts ", "ts, v "),
            "RANGE INTERVAL '2' DAY PRECEDING with several columns in ORDER BY is not supported; write ROWS",
        ),
        (LAST.replace("2 PRECEDING", "CURRENT ROW"), "of other rows than the last ones by number"),
        (
            LAST.replace("CURRENT ROW", "1 FOLLOWING"),
            "of other rows than the last ones by number or time is not supported; write",
        ),
        (LAST.replace("ROWS", "RANGE"), "RANGE 2 is not supported; write an interval such as"),
        (LAST.replace("ROWS BETWEEN 2", "RANGE BETWEEN INTERVAL '-2' DAY"), "write an interval of 0 or more"),
        (LAST.replace("2", "1 + 1"), r"ROWS BETWEEN 1 \+ 1 PRECEDING .* of other rows than"),
        (LAST.replace("ts ROWS", "ts DESC ROWS"), "without an ascending time as the first of ORDER BY"),
        (LAST.replace("SUM(v)", "ANY_VALUE(v)"), r"ANY_VALUE\(v\) is not supported; aggregates are COUNT"),
        (
            LAST.replace("SUM(v)", "MY(v)"),
            r"MY\(v\) OVER .* \(OVER\) is not supported; functions OVER rows are aggregates, ranks, LAG",
        ),
        (
            LAST.replace(" FROM", ", COUNT(*) OVER (ORDER BY ts) FROM"),
            "beside a different PARTITION BY or ORDER BY",
        ),
        (FIRST.replace("FROM t", FROM), "a Top-N of all rows, not of windows"),
        (f"SELECT * EXCEPT (k) {FROM}", r"\* EXCEPT is not supported; list the columns"),
        (f"SELECT k {FROM} SORT BY k", "SORT BY k is not supported; write it in Spark"),
        (f"SELECT COUNT(*) {FROM} GROUP BY ALL", "GROUP BY ALL is not supported; list the columns"),
        (
            f"SELECT COUNT(*) {FROM} GROUP BY Window_Start, window_end",
            "window_start is missing in GROUP BY Window_Start, window_end, where names are case-sensitive",
        ),
        (f"SELECT to_char(ts, 'x') {FROM}", r"to_char\(ts, 'x'\) is not supported; compute it in a view"),
        (f"SELECT CAST(w.x AS TIME) {FROM} AS w", r"CAST\(w.x AS TIME\) is not supported"),
        (f"SELECT k, (SELECT MAX(v) FROM u) {FROM} {GROUP}, k", r"\(SELECT MAX\(v\) FROM u\) in this place"),
        (
            f"SELECT hop_end(ts, 5) {FROM} {GROUP}",
            r"hop_end\(ts, 5\) with a window table function is not supported; write window_start",
        ),
        (JOIN.replace("L.k =", "k ="), "the condition k = R.k of a JOIN is not supported; write the name of"),
        (JOIN.replace("L.k =", "ARRAY_SLICE(L.k, 1, 2) ="), r"ARRAY_SLICE\(L.k, 1, 2\) is not"),
        (JOIN.replace("L.v", "SUM(L.v)"), r"SELECT with SUM\(L.v\) is not supported; add GROUP BY"),
        (
            "SELECT 1 FROM t GROUP BY TUMBLE(ts, INTERVAL '1' DAY), TUMBLE(ts, INTERVAL '2' DAY)",
            r"GROUP BY TUMBLE\(.*'1' DAY\), TUMBLE\(.*'2' DAY\) is not supported; write one window",
        ),
        (
            f"SELECT ROW_NUMBER() OVER w AS n {FROM} WINDOW u AS ({BY} ORDER BY v)",
            r"ROW_NUMBER\(\) OVER w is not supported; define it: WINDOW w AS",
        ),
        (
            TOP.replace("ORDER BY v", "ORDER BY v ROWS 2 PRECEDING"),
            "a frame of a rank, LAG or LEAD is not supported",
        ),
        (LAST.replace("SUM", "LAG"), "a frame of a rank, LAG or LEAD is not supported; leave it out"),
        (f"{LAG}v, 0) {OF}", r"0 in LAG\(v, 0\) is not supported; write a whole number, 1 or more"),
        (f"{LAG}v, -1) {OF}", r"-1 in LAG\(v, -1\) is not supported; write a whole number"),
        (f"{LAG}v, n) {OF}", r"n in LAG\(v, n\) is not supported; write a whole number"),
        (f"{LAG}SUM(v)) {OF}", r"LAG\(SUM\(v\)\) is not supported; functions OVER rows cannot be nested"),
        (f"{LAG}v) {OF.replace('ORDER BY ts', '')}", "without an ascending time as the first of ORDER BY"),
        (f"{LAG}v) {OF.replace('FROM t', FROM)}", r"LAG\(v\) OVER .* of windows or groups is not supported"),
        (
            f"SELECT NTILE(2) {OF}",
            r"NTILE\(2\) is not supported; aggregates are COUNT, .*; for other functions use",
        ),
        (f"SELECT RANK() IGNORE NULLS {OF}", r"RANK\(\) IGNORE NULLS OVER .* is not supported; functions"),
        (f"SELECT SUM(v) IGNORE NULLS {OF}", r"SUM\(v\) IGNORE NULLS OVER .* is not supported; functions"),
        (f"{LAG}v) FILTER (WHERE v > 1) {OF}", r"LAG\(v\) FILTER.* is not supported; aggregates are COUNT"),
        (
            "SELECT * FROM t JOIN c FOR SYSTEM_TIME AS OF PROCTIME() AS c ON t.k = c.k",
            r"FOR SYSTEM_TIME AS OF PROCTIME\(\) is not supported; write FOR SYSTEM_TIME AS OF L.ts",
        ),
        (
            "SELECT * FROM t JOIN c FOR SYSTEM_TIME AS OF AS c ON t.k = c.k",
            "FOR SYSTEM_TIME AS OF without a time",
        ),
        ("SELECT * FROM t JOIN c FOR SYSTEM_TIME AS OF t.ts AS c ON t.k > c.k", "as-of join without a key"),
        ("SELECT * FROM t JOIN c FOR SYSTEM_TIME AS OF c.ts AS c ON t.k = c.k", "FOR SYSTEM_TIME AS OF c.ts"),
        ("SELECT * FROM t RIGHT JOIN c FOR SYSTEM_TIME AS OF t.ts AS c ON t.k = c.k", "an as-of RIGHT JOIN"),
        ("SELECT * FROM t ASOF JOIN c ON t.k = c.k", "as-of join without the order of two times"),
        (
            "SELECT * FROM t ASOF JOIN c MATCH_CONDITION (t.ts <= c.ts) ON t.k = c.k",
            "t.ts <= c.ts is not supp",
        ),
        (
            "SELECT * FROM t ASOF JOIN c ON (t.k = c.k OR t.j = c.j) AND t.ts >= c.ts",
            "t.k = c.k OR t.j = c.j as the key of an as-of join is not supported; join by one key after",
        ),
        (
            "SELECT * FROM t JOIN c FOR SYSTEM_TIME AS OF t.ts AS c ON t.k = c.k OR t.j = c.j",
            "t.k = c.k OR t.j = c.j as the key of an as-of join is not supported",
        ),
        (
            "SELECT * FROM t ASOF JOIN c ON t.k = c.k AND t.ts >= c.ts AND t.x <= c.y",
            "an as-of join by t.ts >= c.ts and t.x <= c.y, one of which orders the times, .* say which: M",
        ),
        (
            "SELECT * FROM t ASOF JOIN c ON t.k = c.k AND t.ts >= c.ts AND x > 1",
            "condition x > 1 of an as-of join is not supported; write the name of a table before each column",
        ),
        (
            "SELECT * FROM t ASOF JOIN c MATCH_CONDITION (t.ts > c.ts + 1) USING (k)",
            r"t.ts > c.ts \+ 1 is not",
        ),
    ],
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "FIRST_VALUE",
    "LAST_VALUE",
    "LISTAGG",
    "COLLECT",
    note="use `timerheap.spark.udaf` with a function of your own",
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "SUM(DISTINCT)",
    "COUNT(DISTINCT a, b)",
    note="only `COUNT` supports `DISTINCT`, on one column",
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "ORDER BY",
    "LIMIT",
    note="together they are a Top-N of all rows; for one alone use the DataFrame's methods on the result",
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "Top-N without a limit, or by PROCTIME DESC",
    note="write `WHERE rownum <= 3`, and order by a column, such as a version or a time",
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "IN and EXISTS beside JOIN, inside OR, or that refer to the outer query beside GROUP BY",
    note="nest the JOIN or the GROUP BY",
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "SESSION with GROUPING SETS",
    note="each set has its own sessions: write one query for each and `union()` the results",
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "LATERAL (SELECT ...)",
    note="write it in Spark, as a view",
)
@pytest.mark.promises(
    "Flink SQL", "refused", "window JOIN of different windows", note="Flink refuses it, too"
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "OVER, NTILE, PERCENT_RANK, CUME_DIST and other functions of a whole partition",
    "OVER, FOLLOWING",
    "OVER, UNBOUNDED PRECEDING of other aggregates than COUNT, SUM, AVG, MIN, MAX",
    note="use `process` with a state",
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "OVER, different PARTITION BY or ORDER BY in one SELECT",
    note="Flink refuses it, too",
)
def test_an_unsupported_query_raises_and_names_the_feature(query: str, message: str) -> None:
    with pytest.raises(ArgumentValueError, match=rf"(?s)^query.*{message}"):
        meant(query)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "TUMBLE(TABLE t, DESCRIPTOR(ts))",
            "TUMBLE takes DATA, TIMECOL, SIZE and optionally OFFSET; SIZE is mi",
        ),
        ("HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY)", "HOP takes .*; SIZE is missing"),
        ("TUMBLE(TABLE t, DESCRIPTOR(ts), GAP => INTERVAL '1' DAY)", "the argument GAP is not supported"),
        ("TUMBLE(TABLE t, DATA => TABLE t)", "the argument DATA, given twice, is not"),
        (
            "SESSION(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY, INTERVAL '1' DAY)",
            "SESSION takes DATA, TIMECOL, GAP$",
        ),
        (
            "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '1' DAY)",
            r"partitioned by \(k\) and grouped by \(\) is not supported",
        ),
        ("TUMBLE(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '1' DAY)", "the argument PARTITION BY"),
        (
            "TUMBLE(1, DESCRIPTOR(ts), INTERVAL '1' DAY)",
            "DATA 1 is not supported; write a table, a view or a",
        ),
        ("TUMBLE(TABLE t, ts, INTERVAL '1' DAY)", r"TIMECOL ts is not supported; write DESCRIPTOR\(ts\)"),
        (
            "TUMBLE(TABLE t, DESCRIPTOR(a, b), INTERVAL '1' DAY)",
            r"TIMECOL DESCRIPTOR\(a, b\) is not supported; write DESCRIPTOR\(ts\)",
        ),
        ("TUMBLE(TABLE t, DESCRIPTOR(a + 1), INTERVAL '1' DAY)", r"DESCRIPTOR a \+ 1"),
        ("TUMBLE(TABLE t, DESCRIPTOR(ts), 5)", "SIZE 5 is not supported; write an interval"),
        ("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MONTH)", "the units are WEEK, DAY"),
        ("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 2' DAY)", "'1 2' is not a number of DAY"),
        (
            "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' SECOND TO DAY)",
            "'1' is not a number of SECOND TO DAY",
        ),
        ("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL 'x' DAY)", "'x' is not a number of DAY"),
        (
            "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '0.0001' SECOND)",
            "must be a whole number of milliseconds",
        ),
    ],
)
def test_invalid_window_functions_raise(function: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^query: .*{message}"):
        windows_of(function)


@pytest.mark.parametrize(
    "query",
    [
        JOIN,
        NAMED,
        FIRST,
        "SELECT DISTINCT ON (k) k, v + 1 AS w FROM t ORDER BY k, ts",
        "SELECT k, LAG(v) OVER w AS b FROM t WINDOW w AS (PARTITION BY k ORDER BY ts) QUALIFY b > v",
        "SELECT TUMBLE_START(ts, INTERVAL '1' DAY), k FROM t GROUP BY TUMBLE(ts, INTERVAL '1' DAY), k",
        "SELECT l.v, r.w FROM t AS l LEFT JOIN r FOR SYSTEM_TIME AS OF l.ts ON l.k = r.k AND r.w > 1",
        "SELECT k, w FROM t ASOF JOIN r MATCH_CONDITION (t.ts >= r.ts) USING (k)",
        "SELECT m.n FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(A.v) AS n PATTERN (A+) "
        "DEFINE A AS A.v > 1) m",
        f"SELECT l.v {FROM} AS l WHERE l.k NOT IN (SELECT r.k {FROM} AS r WHERE {SAME_WINDOW}) AND l.v > 1",
    ],
)
def test_a_tree_is_read_and_not_changed(query: str) -> None:
    tree, _ = only_query(query)

    def state() -> list[Any]:
        return [(id(node), id(node.parent), repr(node), dict(node.meta)) for node in tree.walk()]

    before = state()
    assert meaning_of(tree)
    assert state() == before


@pytest.mark.parametrize(
    ("select", "calls"),
    [
        ("FIRST_VALUE(v ORDER BY ts)", [("min_by", "v", None, "ts")]),
        ("LAST_VALUE(v ORDER BY ts)", [("max_by", "v", None, "ts")]),
        ("FIRST_VALUE(v ORDER BY ts DESC)", [("max_by", "v", None, "ts")]),
        ("MAX_BY(v, ts) FILTER (WHERE v > 1)", [("max_by", "v", "v > 1", "ts")]),
        ("SUM(v) / COUNT(*)", [("sum", "v", None, None), ("count", None, None, None)]),
    ],
)
@pytest.mark.promises(
    "Flink SQL",
    "different",
    "FIRST_VALUE without windows",
    "LAST_VALUE without windows",
    note="with the order: `FIRST_VALUE(x ORDER BY version)`; in Flink that of arrival",
)
def test_aggregates_of_rows_that_change_are_parsed(select: str, calls: list[tuple[str, ...]]) -> None:
    query: Any = meant(f"SELECT k, {select} AS x FROM t GROUP BY k")
    assert [astuple(each)[:4] for each in query.calls.values()] == calls


def test_a_top_n_that_shows_no_number_has_the_columns_that_are_read() -> None:
    query: Any = meant(LATEST.replace("SELECT *", "SELECT v", 1))
    assert (query.source.numbered, query.source.before) == (False, (("`v`", "v"),))
    query = meant(LATEST)
    assert (query.source.numbered, query.source.before) == (True, (("*", "*"),))


def test_columns_of_a_join_are_those_of_the_table_that_has_them() -> None:
    columns = {("a",): ["k", "x"], ("b",): ["k2", "y"]}
    query: Any = meant("SELECT x, y FROM a JOIN b ON k = k2 AND x > y", columns.__getitem__)
    assert query.source.keys == (("k", "k2", False),)
    assert query.source.needs == (("x", "k"), ("y", "k2"))
    with pytest.raises(
        ArgumentValueError, match="the condition k = k2 of a JOIN is not supported; write the name"
    ):
        meant("SELECT x, y FROM a JOIN b ON k = k2")


def test_all_numbers_by_time_are_those_of_a_function_over_rows() -> None:
    query: Any = meant("SELECT n, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) AS place FROM t")
    assert type(query.source).__name__ == "Over"
