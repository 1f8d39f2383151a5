"""What Flink's own tests of windows expect: of table functions, groups, ranks and joins, told anew.

The tests are WindowTableFunctionITCase, WindowAggregateITCase, WindowRankITCase, WindowDeduplicateITCase,
and WindowJoinITCase. What a query must give is computed here, from the windows that a time is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
from flink_tables import Case, Rows, table
from pyspark.sql import functions as F
from pyspark.sql import types as T

__all__ = ["WINDOWED"]

Spans = Callable[[float], list[tuple[float, float]]]

SALES = "rowtime timestamp, num int, price decimal(10,2), item string, name string"
SOLD: Rows = [
    (1, 1, 1.5, "pen", "ann"), (3, 4, 2, "ink", "ann"), (2, 2, 2, "ink", "ann"), (7, 6, 3, "pen", "bob"),
    (6, 3, None, "cup", "bob"), (8, 5, 1, "cup", "ann"), (16, 8, 4, "pen", "bob"), (32, 7, 7, None, None),
    (34, 9, 3, "cap", "bob"),
]  # fmt: skip
BOUGHT: Rows = [
    (2, 3, 5, "pen", "eve"), (4, 1, 2, "ink", "eve"), (7, 6, 3, "cup", "bob"), (9, 2, None, "ink", "bob"),
    (17, 4, 1, "pen", "bob"), (33, 7, 2, None, None),
]  # fmt: skip
DELAY = "rowtime - INTERVAL '1' SECOND"
HOUR, DAY = 3_600, 86_400
CLOCK = "its windows end by the clock, and Flink's test expects no results, either"


def decimals(rows: Rows) -> Rows:
    from decimal import Decimal

    return [(*row[:2], None if row[2] is None else Decimal(str(row[2])), *row[3:]) for row in rows]


ONE = {"T1": table(SALES, *decimals(SOLD))}
TWO = {**ONE, "T2": table(SALES, *decimals(BOUGHT))}
TIMED = {"watermark": DELAY}
BOTH = {"watermark": {"T1": DELAY, "T2": DELAY}}


def tumble(size: float, offset: float = 0) -> Spans:
    return hop(size, size, offset)


def hop(slide: float, size: float, offset: float = 0) -> Spans:
    def spans(at: float) -> list[tuple[float, float]]:
        last = at - (at - offset) % slide
        starts = (last - slide * back for back in range(int(size / slide) + 1))
        return [(start, start + size) for start in starts if start + size > at]

    return spans


def cumulate(step: float, size: float, offset: float = 0) -> Spans:
    def spans(at: float) -> list[tuple[float, float]]:
        start = at - (at - offset) % size
        ends = (start + step * (more + 1) for more in range(int(size / step)))
        return [(start, end) for end in ends if end > at]

    return spans


def interval(seconds: float) -> str:
    for unit, size in (("DAY", DAY), ("HOUR", HOUR)):
        if seconds % size == 0 and seconds:
            return f"INTERVAL '{int(seconds / size)}' {unit}"
    return f"INTERVAL '{seconds}' SECOND"


KINDS = {"TUMBLE": tumble, "HOP": hop, "CUMULATE": cumulate}


def windows(kind: str, *sizes: float, of: str = "T1") -> str:
    return f"TABLE({kind}(TABLE {of}, DESCRIPTOR(rowtime), {', '.join(map(interval, sizes))}))"


def in_windows(rows: Rows, spans: Spans) -> list[tuple[float, float, tuple[Any, ...]]]:
    return [(start, end, row) for row in rows for start, end in spans(row[0])]


def joined(texts: Iterable[str | None]) -> str | None:
    return "|".join(dict.fromkeys(text for text in texts if text is not None)) or None


def groups(rows: Rows, spans: Spans, by: Sequence[int]) -> dict[tuple[Any, ...], Rows]:
    """Return rows by the bounds of their windows and further columns."""
    found: dict[tuple[Any, ...], Rows] = {}
    for start, end, row in in_windows(rows, spans):
        found.setdefault((start, end, *(row[at] for at in by)), []).append(row)
    return found


@F.pandas_udf(T.StringType())
def concat_distinct(texts: pd.Series) -> str:
    return "|".join(sorted(texts.dropna().drop_duplicates()))


CALLED = {**TIMED, "functions": {"concat_distinct": concat_distinct}}
AGGREGATES = "COUNT(*), SUM(price), MAX(num), COUNT(DISTINCT item), concat_distinct(item)"
STATS = "COUNT(*) AS cnt, SUM(price) AS total, MAX(num) AS high, COUNT(DISTINCT item) AS items"


def aggregates(rows: Rows, texts: bool = True) -> tuple[Any, ...]:
    prices = [row[2] for row in rows if row[2] is not None]
    items = {row[3] for row in rows} - {None}
    numbers = (len(rows), sum(prices) if prices else None, max(row[1] for row in rows), len(items))
    return (*numbers, joined(sorted(row[3] for row in rows if row[3]))) if texts else numbers


def grouped(spans: Spans) -> Rows:
    return [(name, s, e, *aggregates(rows)) for (s, e, name), rows in groups(SOLD, spans, [4]).items()]


def in_sets(spans: Spans) -> Rows:
    alone = [(1, None, s, e, *aggregates(rows)) for (s, e), rows in groups(SOLD, spans, []).items()]
    return [*((0, *row) for row in grouped(spans)), *alone]


def _functions() -> list[Case]:
    name = "WindowTableFunctionITCase.test"
    at_once: dict[str, tuple[str, tuple[float, ...]]] = {
        "TumbleWindow": ("TUMBLE", (5,)),
        "TumbleWindowTVFWithOffset": ("TUMBLE", (5, 1)),
        "TumbleWindowTVFWithNegativeOffset": ("TUMBLE", (5, -1)),
        "HopWindow": ("HOP", (5, 10)),
        "CumulateWindow": ("CUMULATE", (5, 15)),
    }
    cases = []
    for test, (kind, sizes) in at_once.items():
        rows = [
            (*row[:2], row[4], start, end, end - 0.001)
            for start, end, row in in_windows(SOLD, KINDS[kind](*sizes))
        ]
        query = (
            f"SELECT rowtime, num, name, window_start, window_end, window_time FROM {windows(kind, *sizes)}"
        )
        cases.append(Case(name + test, ONE, query, rows, options=TIMED, ends=False))
    return cases


def _aggregates() -> list[Case]:
    name = "WindowAggregateITCase.test"
    cases = []
    for kind, sizes in {"Tumble": (5,), "Hop": (5, 10), "Cumulate": (5, 15)}.items():
        long = {"Tumble": (DAY,), "Hop": (DAY / 2, DAY), "Cumulate": (DAY / 2, DAY)}[kind]
        word = kind.upper()
        for test, args in {
            "": sizes,
            "WithOffset": (*long, 8 * HOUR),
            "WithNegativeOffset": (*long, -8 * HOUR),
        }.items():
            spans = KINDS[word](*args)
            query = f"SELECT name, window_start, window_end, {AGGREGATES} FROM {windows(word, *args)} "
            query += "GROUP BY name, window_start, window_end"
            cases.append(
                Case(f"{name}EventTime{kind}Window{test}", ONE, query, grouped(spans), options=CALLED)
            )
        for test, by in {
            "GroupingSets": "GROUPING SETS ((name), ())",
            "Cube": "CUBE(name)",
            "Rollup": "ROLLUP(name)",
        }.items():
            query = f"SELECT GROUPING_ID(name), name, window_start, window_end, {AGGREGATES} "
            query += f"FROM {windows(word, *sizes)} GROUP BY {by}, window_start, window_end"
            cases.append(
                Case(
                    f"{name}EventTime{kind}Window_{test}",
                    ONE,
                    query,
                    in_sets(KINDS[word](*sizes)),
                    options=CALLED,
                )
            )
    fives, of_fives = tumble(5), windows("TUMBLE", 5)
    alone = groups(SOLD, fives, [])
    inner = (
        "SELECT name, window_start, window_end, COUNT(DISTINCT item) AS cnt FROM "
        f"{windows('TUMBLE', DAY, 8 * HOUR)} "
    )
    inner += "GROUP BY name, window_start, window_end"
    start = tumble(DAY, 8 * HOUR)(1)[0]
    return [
        *cases,
        Case(
            f"{name}CascadeEventTimeTumbleWindowWithOffset",
            ONE,
            f"SELECT cnt, window_start, window_end, COUNT(*) FROM ({inner}) GROUP BY cnt, "
            "window_start, window_end",
            [(0, *start, 1), (3, *start, 2)],
            options=CALLED,
        ),
        Case(
            f"{name}TumbleWindowOutputWindowTime",
            ONE,
            f"SELECT name, window_start, window_end, window_time, COUNT(*) FROM {of_fives} "
            "GROUP BY name, window_start, window_end, window_time",
            [(key, s, e, e - 0.001, len(rows)) for (s, e, key), rows in groups(SOLD, fives, [4]).items()],
            options=CALLED,
        ),
        Case(
            f"{name}TumbleWindowGroupOnWindowOnly",
            ONE,
            f"SELECT window_start, window_end, {AGGREGATES} FROM {of_fives} GROUP BY window_start, "
            "window_end",
            [(s, e, *aggregates(rows)) for (s, e), rows in alone.items()],
            options=CALLED,
        ),
        Case(
            f"{name}TumbleWindowWithoutOutputWindowColumns",
            ONE,
            f"SELECT {AGGREGATES} FROM {of_fives} GROUP BY window_start, window_end",
            [aggregates(rows) for rows in alone.values()],
            options=CALLED,
        ),
        Case(
            f"{name}FieldNameConflict",
            ONE,
            f"SELECT window_time, MIN(rowtime) AS start_time, MAX(rowtime) AS end_time FROM {of_fives} "
            "GROUP BY window_start, window_end, window_time",
            [
                (e - 0.001, min(row[0] for row in rows), max(row[0] for row in rows))
                for (_, e), rows in alone.items()
            ],
            options=CALLED,
        ),
        Case(
            f"{name}RelaxFormProctimeCascadeWindowAgg",
            {"T1": ONE["T1"]},
            "SELECT window_start, window_end, COUNT(*) AS n FROM (SELECT name, window_start, window_end, "
            "COUNT(DISTINCT item) AS cnt FROM TABLE(TUMBLE(TABLE T1, DESCRIPTOR(proctime), INTERVAL "
            "'36500' DAY)) "
            "GROUP BY name, window_start, window_end) GROUP BY window_start, window_end",
            [],
            CLOCK,
            runs=("stream",),
            clock=True,
        ),
    ]


def ranked(inner: str, by: str, order: str) -> str:
    return f"(SELECT *, ROW_NUMBER() OVER (PARTITION BY {by} ORDER BY {order}) AS rownum FROM {inner})"


def first_of(rows: Rows, by: Sequence[int], order: Callable[[tuple[Any, ...]], Any]) -> Rows:
    """Return rows with their numbers, by an order, among those that are equal in some columns."""
    found: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        found.setdefault(tuple(row[at] for at in by), []).append(row)
    return [(*row, at) for part in found.values() for at, row in enumerate(sorted(part, key=order), 1)]


def _ranks() -> list[Case]:
    name = "WindowRankITCase.test"
    cases = []
    sized: dict[str, tuple[float, ...]] = {"Tumble": (5,), "Hop": (5, 10), "Cumulate": (5, 15)}
    for kind, sizes in sized.items():
        spans, text = KINDS[kind.upper()](*sizes), windows(kind.upper(), *sizes)
        stats = [(n, s, e, *aggregates(rows, False)) for (s, e, n), rows in groups(SOLD, spans, [4]).items()]
        places = first_of(stats, [1, 2], lambda row: -row[4])
        inner = (
            f"(SELECT name, window_start, window_end, {STATS} FROM {text} GROUP BY name, "
            "window_start, window_end)"
        )
        top = ranked(inner, "window_start, window_end", "total DESC")
        second = [row for row in places if row[-1] == 2]
        columns = "name, window_start, window_end, cnt, total, high, items"
        cases += [
            Case(
                f"{name}{kind}Window",
                ONE,
                f"SELECT * FROM {top} WHERE rownum <= 2",
                [row for row in places if row[-1] <= 2],
                options=TIMED,
            ),
            Case(
                f"{name}{kind}WindowWithRankOffset",
                ONE,
                f"SELECT * FROM {top} WHERE rownum > 1 AND rownum <= 2",
                second,
                options=TIMED,
            ),
            Case(
                f"{name}{kind}WindowWithoutRankNumber",
                ONE,
                f"SELECT {columns} FROM {top} WHERE rownum > 1 AND rownum <= 2",
                [row[:-1] for row in second],
                options=TIMED,
            ),
        ]
        shapes = {"TVF": sizes, "TVFWithCalc": sizes}
        if kind == "Tumble":
            shapes |= {"TVFWithOffset": (5, 1), "TVFWithNegativeOffset": (5, -1)}
        for test, args in shapes.items():
            rows = [(s, e, row) for s, e, row in in_windows(SOLD, KINDS[kind.upper()](*args))]
            flat = [(row[0], row[1], row[4], s, e, e - 0.001) for s, e, row in rows]
            kept = [row[:-1] for row in first_of(flat, [2, 3, 4], lambda row: -row[1]) if row[-1] <= 2]
            text = windows(kind.upper(), *args)
            columns = "rowtime, num, name, window_start, window_end, window_time"
            if test == "TVFWithCalc":
                columns, kept = columns.removeprefix("rowtime, "), [row[1:] for row in kept]
            query = (
                f"SELECT {columns} FROM "
                f"{ranked(text, 'window_start, window_end, name', 'num DESC')} WHERE rownum <= 2"
            )
            cases.append(Case(f"{name}{kind}Window{test}", ONE, query, kept, options=TIMED))
    return cases


def _deduplicates() -> list[Case]:
    name = "WindowDeduplicateITCase.test"
    cases = []
    for test, (kind, sizes, sign) in {
        "TumbleWindowKeepLastRow": ("TUMBLE", (5,), -1),
        "TumbleWindowKeepFirstRow": ("TUMBLE", (5,), 1),
        "TumbleWindowKeepLastRowWithCalc": ("TUMBLE", (5,), -1),
        "CumulateWindowKeepLastRow": ("CUMULATE", (5, 15), -1),
    }.items():
        flat = [(row[0], row[1], row[4], s, e) for s, e, row in in_windows(SOLD, KINDS[kind](*sizes))]
        kept = [
            row[:-1]
            for row in first_of(flat, [2, 3, 4], lambda row, sign=sign: sign * row[0])
            if row[-1] == 1
        ]
        columns = "rowtime, num, name, window_start, window_end"
        if test.endswith("Calc"):
            columns, kept = columns.removeprefix("rowtime, "), [row[1:] for row in kept]
        order = "rowtime DESC" if sign < 0 else "rowtime"
        of = ranked(windows(kind, *sizes), "window_start, window_end, name", order)
        cases.append(
            Case(name + test, ONE, f"SELECT {columns} FROM {of} WHERE rownum <= 1", kept, options=TIMED)
        )
    return cases


def _joins() -> list[Case]:
    name = "WindowJoinITCase.test"
    fives = tumble(5)
    sides = {
        side: f"(SELECT name, window_start, window_end, COUNT(DISTINCT item) AS {uv} FROM "
        f"{windows('TUMBLE', 5, of=of)} GROUP BY name, window_start, window_end)"
        for side, of, uv in (("L", "T1", "uv1"), ("R", "T2", "uv2"))
    }
    both = [
        [(n, s, e, aggregates(rows)[3]) for (s, e, n), rows in groups(rows, fives, [4]).items()]
        for rows in (SOLD, BOUGHT)
    ]
    same = "L.window_start = R.window_start AND L.window_end = R.window_end"
    cases = []
    for test, (join, keep_left, keep_right) in {
        "InnerJoin": ("JOIN", False, False),
        "LeftJoin": ("LEFT JOIN", True, False),
        "RightJoin": ("RIGHT JOIN", False, True),
        "OuterJoin": ("FULL OUTER JOIN", True, True),
    }.items():
        for nulls in (False, True):
            pairs: Rows = [
                (*a, *b) for a in both[0] for b in both[1] if a[:3] == b[:3] and (nulls or a[0] is not None)
            ]
            if keep_left:
                pairs += [(*a, *[None] * 4) for a in both[0] if a not in [pair[:4] for pair in pairs]]
            if keep_right:
                pairs += [(*[None] * 4, *b) for b in both[1] if b not in [pair[4:] for pair in pairs]]
            on = "L.name IS NOT DISTINCT FROM R.name" if nulls else "L.name = R.name"
            query = (
                "SELECT L.name, L.window_start, L.window_end, uv1, R.name, R.window_start, R.window_end, uv2 "
            )
            query += f"FROM {sides['L']} L {join} {sides['R']} R ON {same} AND {on}"
            cases.append(
                Case(f"{name}{test}{'WithIsNotDistinctFrom' * nulls}", TWO, query, pairs, options=BOTH)
            )
    for test, (sizes, nulls) in {
        "InnerJoinOnWTF": ((5,), False),
        "InnerJoinOnWTFWithOffset": ((5, 1), False),
        "InnerJoinOnWTFWithNegativeOffset": ((5, -1), False),
        "InnerJoinWithIsNotDistinctFromOnWTF": ((5,), True),
    }.items():
        spans = tumble(*sizes)
        pairs = [
            (a[0], a[1], a[4], s, e, e - 0.001, b[1], b[3])
            for s, e, a in in_windows(SOLD, spans)
            for s2, _, b in in_windows(BOUGHT, spans)
            if s == s2 and a[4] == b[4] and (nulls or a[4] is not None)
        ]
        left, right = (f"(SELECT * FROM {windows('TUMBLE', *sizes, of=of)})" for of in ("T1", "T2"))
        on = "L.name IS NOT DISTINCT FROM R.name" if nulls else "L.name = R.name"
        query = "SELECT L.rowtime, L.num, L.name, L.window_start, L.window_end, L.window_time, R.num, R.item "
        query += f"FROM {left} L JOIN {right} R ON {same} AND {on}"
        cases.append(Case(name + test, TWO, query, pairs, options=BOTH))
    right = {row[:3] for row in both[1]}
    has, has_not = (
        [row for row in both[0] if (row[:3] in right and row[0] is not None) == wanted]
        for wanted in (True, False)
    )
    unknown = {(s, e) for name, s, e, _ in both[1] if name is None}  # NOT IN a null is not true
    named = [row for row in has_not if row[0] is not None and row[1:3] not in unknown]
    spots = {(s, e, row[4]) for s, e, row in in_windows(BOUGHT, fives)} - {(30, 35, None)}
    rows = [(row[0], row[1], row[4], s, e) for s, e, row in in_windows(SOLD, fives)]
    row_in, row_out = (
        [row for row in rows if ((*row[3:], row[2]) in spots) == wanted] for wanted in (True, False)
    )
    of_t1, of_t2 = (windows("TUMBLE", 5, of=of) for of in ("T1", "T2"))
    for test, found in {"SemiJoinExists": has, "AntiJoinNotExists": has_not}.items():
        word = "EXISTS" if "Semi" in test else "NOT EXISTS"
        query = (
            f"SELECT * FROM {sides['L']} L WHERE {word} (SELECT * FROM {sides['R']} R WHERE "
            f"{same} AND L.name = R.name)"
        )
        cases.append(Case(name + test, TWO, query, found, options=BOTH))
        query = "SELECT L.rowtime, L.num, L.name, L.window_start, L.window_end FROM "
        query += (
            f"(SELECT * FROM {of_t1}) L WHERE {word} (SELECT * FROM {of_t2} R WHERE {same} AND "
            "L.name = R.name)"
        )
        cases.append(
            Case(f"{name}{test}WTF", TWO, query, row_in if "Semi" in test else row_out, options=BOTH)
        )
    for test, found in {"SemiJoinIN": has, "AntiJoinNotIN": named}.items():
        word = "IN" if "Semi" in test else "NOT IN"
        query = (
            f"SELECT * FROM {sides['L']} L WHERE L.name {word} (SELECT name FROM {sides['R']} R WHERE {same})"
        )
        cases.append(Case(name + test, TWO, query, found, options=BOTH))
        query = "SELECT L.rowtime, L.num, L.name, L.window_start, L.window_end FROM "
        query += f"(SELECT * FROM {of_t1}) L WHERE L.name {word} (SELECT name FROM {of_t2} R WHERE {same})"
        kept = (
            row_in
            if "Semi" in test
            else [row for row in row_out if row[2] is not None and row[3:] not in unknown]
        )
        cases.append(Case(f"{name}{test}_WTF", TWO, query, kept, options=BOTH))
    return cases


WINDOWED = [
    *_functions(),
    *_aggregates(),
    *_ranks(),
    *_deduplicates(),
    *_joins(),
]
