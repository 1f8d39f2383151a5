"""Queries that have several features of Flink's SQL in each other, with the same in DuckDB's SQL.

A text is said once, and `flink` and `duckdb` put in how each of the two writes windows, as-of joins and
patterns. DuckDB has no MATCH_RECOGNIZE, so that a pattern is a SELECT with LEAD or with counts of rows there.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from flink_tables import Case, Rows, Table, table

from timerheap import AggregateFunction
from timerheap.spark import udaf

__all__ = ["MIXED", "cases_of"]

HOUR = 3_600


def _shuffled(rng: random.Random, rows: Rows) -> Rows:
    """Return rows in about their order: a time is at most three rows early or late."""
    order = sorted(range(len(rows)), key=lambda at: at + rng.uniform(0, 3))
    return [rows[at] for at in order]


def _tables() -> dict[str, Table]:
    """Return tables whose times are all different, so that no order is open."""
    rng = random.Random(61)
    seconds = rng.sample(range(HOUR), 150)
    a, b, r, s = (sorted(seconds[low:high]) for low, high in ((0, 60), (60, 100), (100, 125), (125, 150)))
    keys = [*"xyz"]
    days = sorted(rng.sample(range(900), 60))
    return {
        "a": table(
            "id bigint, k string, v bigint, ts timestamp",
            *_shuffled(rng, [(at, rng.choice(keys), rng.randrange(10), ts) for at, ts in enumerate(a)]),
        ),
        "b": table(
            "id bigint, k string, w bigint, ts timestamp",
            *_shuffled(
                rng, [(at, rng.choice("xyzu"), rng.choice([None, *range(8)]), ts) for at, ts in enumerate(b)]
            ),
        ),
        "r": table(
            "k string, rate bigint, since timestamp",
            *((rng.choice(keys), rng.randrange(1, 9), ts) for ts in r),
        ),
        "s": table(
            "k string, grade string, since timestamp",
            *((rng.choice(keys), rng.choice("ABC"), ts) for ts in s),
        ),
        "m": table(
            "k string, v bigint, day timestamp",
            *((rng.choice(keys), rng.randrange(10), one * 24 * HOUR + rng.randrange(HOUR)) for one in days),
        ),
        "names": table("k string, name string", ("x", "Xenia"), ("y", "Yves"), ("u", "Una")),
    }  # fmt: skip


class Spread(AggregateFunction):
    """The largest value minus the smallest one."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [min([value, *accumulator]), max([value, *accumulator])]

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [min(acc_a + acc_b), max(acc_a + acc_b)]

    def get_result(self, accumulator: list[int]) -> int | None:
        return accumulator[1] - accumulator[0] if accumulator else None


SPREAD = udaf(Spread(), returns="bigint", accumulator="array<bigint>")
TABLES = _tables()
TIMES = {"a": "ts", "b": "ts", "r": "since", "s": "since", "m": "day"}
DELAYS = {
    name: f"{time} - INTERVAL '{7 if name == 'm' else 10}' {'DAY' if name == 'm' else 'MINUTE'}"
    for name, time in (TIMES | {"later": "ts"}).items()
}


@dataclass(frozen=True)
class Part:
    """A part of a query that the two write in different words."""

    flink: str
    duckdb: str


@dataclass(frozen=True)
class Mixed:
    """A query: its name, and its text with the names of parts in braces."""

    name: str
    text: str
    parts: dict[str, Part | str] = field(default_factory=dict)

    def said(self, dialect: str) -> str:
        """Return the text in "flink" or in "duckdb"."""
        found = self.text
        while "{" in found:
            found = found.format(
                **{
                    name: part if isinstance(part, str) else getattr(part, dialect)
                    for name, part in (PARTS | self.parts).items()
                }
            )
        window, version = (_WINDOW[dialect], _VERSION[dialect])
        return _AS_OF.sub(version, _WINDOWS.sub(window, found))


_WINDOWS = re.compile(r"\b(TUMBLE|HOP|CUMULATE|SESSION)\[(\w+) (\d+)(?: (\d+))?\]")
_AS_OF = re.compile(r"(LEFT )?JOIN (\w+) FOR SYSTEM_TIME AS OF (\w+\.\w+) ON (\w+\.\w+ = \w+\.\w+)", re.ASCII)


def _flink_window(found: re.Match[str]) -> str:
    kind, of, *sizes = found.groups()
    lengths = ", ".join(f"INTERVAL '{size}' MINUTES" for size in sizes if size)
    by = " PARTITION BY k" if kind == "SESSION" else ""
    return f"TABLE({kind}(TABLE {of}{by}, DESCRIPTOR({TIMES[of]}), {lengths}))"


def _duckdb_window(found: re.Match[str]) -> str:
    kind, of, first, second = found.groups()
    time = TIMES[of]
    if kind == "SESSION":
        starts = (
            f"SELECT *, {time} - LAG({time}) OVER (PARTITION BY k ORDER BY {time}) >= INTERVAL {first} "
            f"MINUTES AS begins FROM {of}"
        )
        numbered = (
            f"SELECT *, COUNT(*) FILTER (WHERE begins) OVER (PARTITION BY k ORDER BY {time}) AS number "
            f"FROM ({starts})"
        )
        end = f"MAX({time}) OVER (PARTITION BY k, number) + INTERVAL {first} MINUTES"
        start = f"MIN({time}) OVER (PARTITION BY k, number)"
        source, taken = f"({numbered})", " EXCLUDE (begins, number)"
    else:
        step, size = (int(first), int(second or first))
        slices = f"CAST(time_bucket(INTERVAL {step} MINUTES, {time}, TIMESTAMP '1970-01-01') AS TIMESTAMP)"
        if kind == "CUMULATE":
            start = f"CAST(time_bucket(INTERVAL {size} MINUTES, {time}, TIMESTAMP '1970-01-01') AS TIMESTAMP)"
            end = f"{slices} + INTERVAL 1 MINUTE * {step} * (number + 1)"
            source = f"(SELECT *, UNNEST(range({size // step})) AS number FROM {of})"
            source = f"(SELECT * FROM {source} WHERE {end} <= {start} + INTERVAL {size} MINUTES)"
        else:
            start = f"{slices} - INTERVAL 1 MINUTE * {step} * number"
            end = f"{start} + INTERVAL {size} MINUTES"
            source = f"(SELECT *, UNNEST(range({size // step if kind == 'HOP' else 1})) AS number FROM {of})"
        taken = " EXCLUDE (number)"
    bounds = f"SELECT *{taken}, {start} AS window_start, {end} AS window_end FROM {source}"
    return f"(SELECT *, window_end - INTERVAL 1 MILLISECOND AS window_time FROM ({bounds}))"


def _duckdb_version(found: re.Match[str]) -> str:
    left, of, time, same = found.groups()
    return f"ASOF {left or ''}JOIN {of} ON {same} AND {time} >= {of}.{TIMES[of]}"


_WINDOW = {"flink": _flink_window, "duckdb": _duckdb_window}
_VERSION: dict[str, Any] = {"flink": lambda found: found[0], "duckdb": _duckdb_version}


def _matched(source: str, time: str, measures: str, skip: str, pattern: str) -> str:
    return (
        f"{source} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {time} MEASURES {measures} ONE ROW PER MATCH "
        f"AFTER MATCH SKIP {skip} PATTERN {pattern}) AS p"
    )


def rises(source: str, time: str, value: str) -> Part:
    """Return two rows of a key of which the second one is larger, wherever they begin."""
    measures = f"A.{time} AS since, B.{time} AS noon, A.{value} AS low, B.{value} AS high"
    pattern = f"(A B) DEFINE B AS B.{value} > A.{value}"
    rows = (
        f"SELECT *, LEAD({time}) OVER w AS next, LEAD({value}) OVER w AS high FROM {source} "
        f"WINDOW w AS (PARTITION BY k ORDER BY {time})"
    )
    return Part(
        _matched(source, time, measures, "TO NEXT ROW", pattern),
        f"(SELECT k, {time} AS since, next AS noon, {value} AS low, high FROM ({rows}) "
        f"WHERE high > {value}) AS p",
    )


def peaks(source: str, time: str, value: str) -> Part:
    """Return three rows of a key of which the middle one is the largest, with a sum and a count of them."""
    measures = f"B.{time} AS noon, B.{value} AS high, SUM({value}) AS total, COUNT(*) AS n"
    pattern = f"(A B C) DEFINE B AS B.{value} > A.{value}, C AS C.{value} < B.{value}"
    rows = (
        f"SELECT *, LAG({value}) OVER w AS before, LEAD({value}) OVER w AS after FROM {source} "
        f"WINDOW w AS (PARTITION BY k ORDER BY {time})"
    )
    return Part(
        _matched(source, time, measures, "TO NEXT ROW", pattern),
        f"(SELECT k, {time} AS noon, {value} AS high, before + {value} + after AS total, 3 AS n "
        f"FROM ({rows}) WHERE {value} > before AND after < {value}) AS p",
    )


def runs(source: str, time: str, met: str) -> Part:
    """Return the rows in turn that meet a condition, up to the first that does not."""
    measures = (
        f"FIRST(A.{time}) AS since, LAST(A.{time}) AS till, COUNT(A.v) AS n, SUM(A.v) AS total, "
        "spread(A.v) AS spread"
    )
    pattern = f"(A+ B) WITHIN INTERVAL '10' HOUR DEFINE A AS {met}, B AS NOT ({met}) AND spread(A.v) < 10"
    breaks = f"COUNT(*) FILTER (WHERE NOT ({met})) OVER (PARTITION BY k"
    rows = f"SELECT *, {breaks} ORDER BY {time}) AS number, {breaks}) AS numbers FROM {source}"
    return Part(
        _matched(source, time, measures, "PAST LAST ROW", pattern),
        f"(SELECT k, MIN({time}) AS since, MAX({time}) AS till, COUNT(*) AS n, SUM(v) AS total, "
        f"MAX(v) - MIN(v) AS spread FROM ({rows}) WHERE {met} AND number < numbers GROUP BY k, number) AS p",
    )


PARTS: dict[str, Part | str] = {
    "w": "window_start, window_end",
    "tumbled": "SELECT k, SUM(v) AS v, COUNT(*) AS n, {w}, window_time AS ts FROM TUMBLE[a 5] GROUP BY k, "
    "{w}, window_time",
    "hopped": "SELECT k, MAX(v) AS v, {w}, window_time AS ts FROM HOP[a 5 15] GROUP BY k, {w}, window_time",
    "rated": "SELECT a.id, a.k, a.v * r.rate AS v, a.ts FROM a JOIN r FOR SYSTEM_TIME AS OF a.ts ON a.k = "
    "r.k",
    "left_rated": "SELECT a.id, a.k, a.v, r.rate, a.ts FROM a LEFT JOIN r FOR SYSTEM_TIME AS OF a.ts ON "
    "a.k = r.k",
    "over": "SELECT id, k, ts, v, SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND "
    "CURRENT ROW) AS total FROM a",
    "lagged": "SELECT id, k, ts, v - LAG(v) OVER (PARTITION BY k ORDER BY ts) AS v FROM a",
    "near": "SELECT a.id, b.id AS other, a.k, a.v, b.w, a.ts, b.ts AS noon FROM a JOIN b ON a.k = b.k AND "
    "a.ts BETWEEN b.ts - INTERVAL '5' MINUTE AND b.ts + INTERVAL '3' MINUTE",
    "rises": rises("a", "ts", "v"),
    "peaks": peaks("a", "ts", "v"),
    "runs": runs("a", "ts", "v >= 4"),
}


def _queries() -> list[Mixed]:
    return [
        # Windows of what other features find
        Mixed(
            "windows of as-of joins",
            "SELECT a.k, SUM(a.v * r.rate) AS s FROM a JOIN r FOR SYSTEM_TIME AS OF a.ts ON a.k = r.k "
            "GROUP BY a.k, {five}",
            {"five": Part("TUMBLE(a.ts, INTERVAL '5' MINUTE)", "time_bucket(INTERVAL 5 MINUTES, a.ts)")},
        ),
        Mixed(
            "as-of joins, grouped",
            "SELECT k, rate, COUNT(*) AS n FROM ({left_rated}) GROUP BY k, rate",
        ),
        Mixed(
            "windows, the largest of each",
            "SELECT * FROM (SELECT k, v, {w}, ROW_NUMBER() OVER (PARTITION BY {w} ORDER BY v DESC, k) AS"
            " n FROM ({tumbled})) WHERE n <= 2",
        ),
        Mixed(
            "windows, rises of them",
            "SELECT k, since, noon, low, high FROM {found}",
            {"found": rises("({tumbled})", "ts", "v")},
        ),
        Mixed(
            "windows, peaks of them",
            "SELECT k, noon, high, total, n FROM {found}",
            {"found": peaks("({tumbled})", "ts", "v")},
        ),
        Mixed(
            "windows of sessions, grouped",
            "SELECT n, COUNT(*) AS m FROM (SELECT k, COUNT(*) AS n, {w} FROM SESSION[a 3] GROUP BY k, "
            "{w}) GROUP BY n",
        ),
        Mixed(
            "sums of windows in order",
            "SELECT k, ts, v, SUM(v) OVER (PARTITION BY k ORDER BY ts) AS s, LAG(v) OVER (PARTITION BY k"
            " ORDER BY ts) AS before FROM ({tumbled})",
        ),
        Mixed(
            "windows joined with windows",
            "SELECT l.k, l.v, q.w, l.window_start FROM ({tumbled}) AS l JOIN (SELECT k, SUM(w) AS w, {w}"
            " FROM TUMBLE[b 5] GROUP BY k, {w}) AS q ON l.k = q.k AND l.window_start = q.window_start "
            "AND l.window_end = q.window_end",
        ),
        Mixed(
            "windows joined with windows, all",
            "SELECT l.k, l.v, q.k AS k2, q.w FROM ({hopped}) AS l FULL JOIN (SELECT k, MAX(w) AS w, {w} "
            "FROM HOP[b 5 15] GROUP BY k, {w}) AS q ON l.k = q.k AND l.window_start = q.window_start AND"
            " l.window_end = q.window_end",
        ),
        Mixed(
            "cumulated windows, the last of each",
            "SELECT k, MAX(n) AS n FROM (SELECT k, window_start, window_end, COUNT(*) AS n FROM "
            "CUMULATE[a 5 20] GROUP BY k, window_start, window_end) GROUP BY k",
        ),
        Mixed(
            "windows of windows",
            "SELECT k, SUM(v) AS v, window_start FROM ({tumbled}) GROUP BY k, window_start, window_end",
        ),
        # As-of joins with what other features find
        Mixed(
            "as-of joins of windows",
            "SELECT t.k, t.v * r.rate AS v, t.ts FROM ({tumbled}) AS t JOIN r FOR SYSTEM_TIME AS OF t.ts"
            " ON t.k = r.k",
        ),
        Mixed(
            "as-of joins of rows in order",
            "SELECT t.id, t.total * r.rate AS v FROM ({over}) AS t LEFT JOIN r FOR SYSTEM_TIME AS OF "
            "t.ts ON t.k = r.k",
        ),
        Mixed(
            "as-of joins of as-of joins",
            "SELECT t.id, t.v, s.grade FROM ({rated}) AS t LEFT JOIN s FOR SYSTEM_TIME AS OF t.ts ON t.k"
            " = s.k",
        ),
        Mixed(
            "as-of joins in turn",
            "SELECT a.id, a.v * r.rate AS v, s.grade FROM a JOIN r FOR SYSTEM_TIME AS OF a.ts ON a.k = "
            "r.k LEFT JOIN s FOR SYSTEM_TIME AS OF a.ts ON a.k = s.k",
        ),
        Mixed(
            "as-of joins in turn, grouped",
            "SELECT a.k, grade, SUM(a.v * r.rate) AS v FROM a JOIN r FOR SYSTEM_TIME AS OF a.ts ON a.k ="
            " r.k JOIN s FOR SYSTEM_TIME AS OF a.ts ON a.k = s.k WHERE r.rate > 2 GROUP BY a.k, grade",
        ),
        Mixed(
            "as-of joins between joins",
            "SELECT a.id, b.id AS other, r.rate, n.name FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts"
            " - INTERVAL '2' MINUTE AND b.ts JOIN r FOR SYSTEM_TIME AS OF a.ts ON a.k = r.k LEFT JOIN "
            "names AS n ON a.k = n.k",
        ),
        Mixed(
            "sums in order of as-of joins",
            "SELECT a.id, SUM(r.rate) OVER (PARTITION BY a.k ORDER BY a.ts) AS s FROM a JOIN r FOR "
            "SYSTEM_TIME AS OF a.ts ON a.k = r.k",
        ),
        Mixed(
            "as-of joins of patterns",
            "SELECT t.k, t.noon, t.high, r.rate FROM (SELECT k, noon, high FROM {rises}) AS t JOIN r FOR"
            " SYSTEM_TIME AS OF t.noon ON t.k = r.k",
        ),
        Mixed(
            "as-of joins of pairs",
            "SELECT t.id, t.other, r.rate FROM ({near}) AS t JOIN r FOR SYSTEM_TIME AS OF t.ts ON t.k = r.k",
        ),
        Mixed(
            "rises of as-of joins",
            "SELECT k, since, noon, low, high FROM {found}",
            {"found": rises("({rated})", "ts", "v")},
        ),
        Mixed(
            "sums of as-of joins in order",
            "SELECT id, SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 3 PRECEDING AND CURRENT "
            "ROW) AS s FROM ({rated})",
        ),
        Mixed(
            "the best of as-of joins",
            "SELECT * FROM (SELECT id, k, v, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) AS n"
            " FROM ({rated})) WHERE n <= 3",
        ),
        Mixed(
            "as-of joins, joined with names",
            "SELECT t.id, t.v, n.name FROM ({rated}) AS t LEFT JOIN names AS n ON t.k = n.k",
        ),
        # Patterns
        Mixed(
            "rises, counted",
            "SELECT k, COUNT(*) AS n, MAX(high - low) AS most FROM {rises} GROUP BY k",
        ),
        Mixed(
            "rises of differences",
            "SELECT k, since, noon, low, high FROM {found}",
            {"found": rises("({lagged})", "ts", "v")},
        ),
        Mixed(
            "rises of sums",
            "SELECT k, since, noon, low, high FROM {found}",
            {"found": rises("({over})", "ts", "total")},
        ),
        Mixed(
            "rises of pairs",
            "SELECT k, noon, high - low AS by FROM {found}",
            {
                "found": rises(
                    "(SELECT k, COALESCE(w, 3) AS v, ts + INTERVAL '1' SECOND AS ts FROM b) AS later",
                    "ts",
                    "v",
                )
            },
        ),
        Mixed(
            "runs, the longest",
            "SELECT * FROM (SELECT k, n, total, spread, ROW_NUMBER() OVER (PARTITION BY k ORDER BY n DESC, "
            "total DESC, since) AS m FROM {runs}) WHERE m = 1",
        ),
        Mixed(
            "runs, joined with names",
            "SELECT n.name, p.n, p.total FROM {runs} JOIN names AS n ON p.k = n.k",
        ),
        Mixed(
            "peaks and rises",
            "SELECT k, noon FROM {peaks} UNION ALL SELECT k, since AS noon FROM {rises}",
        ),
        Mixed(
            "peaks that do not begin a rise",
            "SELECT k, noon FROM {peaks} EXCEPT SELECT k, since AS noon FROM {rises}",
        ),
        Mixed(
            "keys of peaks",
            "SELECT id, k, v FROM a WHERE EXISTS (SELECT 1 FROM (SELECT k, high FROM {peaks}) AS q WHERE"
            " q.k = a.k AND q.high = a.v)",
        ),
        # Rows in order
        Mixed(
            "sums in order, grouped",
            "SELECT k, MAX(total) AS most, MIN(total) AS least FROM ({over}) GROUP BY k",
        ),
        Mixed(
            "the best of sums in order",
            "SELECT * FROM (SELECT id, k, total, ROW_NUMBER() OVER (PARTITION BY k ORDER BY total DESC, "
            "id) AS n FROM ({over})) WHERE n <= 2",
        ),
        Mixed(
            "differences of sums",
            "SELECT id, total - LAG(total) OVER (PARTITION BY k ORDER BY ts) AS d FROM ({over})",
        ),
        Mixed(
            "pairs of rows in order",
            "SELECT t.id, b.id AS other, t.total FROM ({over}) AS t JOIN b ON t.k = b.k AND t.ts BETWEEN"
            " b.ts - INTERVAL '2' MINUTE AND b.ts",
        ),
        Mixed(
            "sums of pairs in order",
            "SELECT id, other, COUNT(*) OVER (PARTITION BY k ORDER BY ts) AS n FROM ({near})",
        ),
        Mixed(
            "sums of three months",
            "SELECT k, day, SUM(v) OVER (PARTITION BY k ORDER BY day RANGE BETWEEN INTERVAL '3' MONTH "
            "PRECEDING AND CURRENT ROW) AS s, COUNT(*) OVER (PARTITION BY k ORDER BY day RANGE BETWEEN "
            "INTERVAL '1' YEAR PRECEDING AND CURRENT ROW) AS n FROM m",
        ),
        Mixed(
            "the best of sums of months",
            "SELECT * FROM (SELECT k, day, s, ROW_NUMBER() OVER (PARTITION BY k ORDER BY s DESC, day) AS"
            " n FROM (SELECT k, day, SUM(v) OVER (PARTITION BY k ORDER BY day RANGE BETWEEN INTERVAL '1'"
            " MONTH PRECEDING AND CURRENT ROW) AS s FROM m)) WHERE n = 1",
        ),
        # Pairs whose times are near
        Mixed(
            "pairs, grouped",
            "SELECT k, COUNT(*) AS n, SUM(v * w) AS s FROM ({near}) GROUP BY k",
        ),
        Mixed(
            "the newest pair of each row",
            "SELECT * FROM (SELECT id, other, ROW_NUMBER() OVER (PARTITION BY id ORDER BY other DESC) AS"
            " n FROM ({near})) WHERE n = 1",
        ),
        Mixed(
            "pairs of windows",
            "SELECT l.k, l.v, q.v AS v2 FROM ({tumbled}) AS l JOIN ({hopped}) AS q ON l.k = q.k AND l.ts"
            " BETWEEN q.ts - INTERVAL '6' MINUTE AND q.ts",
        ),
        Mixed(
            "rows without a pair",
            "SELECT a.k, COUNT(*) AS n FROM a LEFT JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL "
            "'1' MINUTE AND b.ts + INTERVAL '1' MINUTE WHERE b.id IS NULL AND a.k IS NOT NULL GROUP BY "
            "a.k",
        ),
        Mixed(
            "pairs of as-of joins",
            "SELECT t.id, b.id AS other, t.v FROM ({rated}) AS t JOIN b ON t.k = b.k AND b.ts BETWEEN "
            "t.ts AND t.ts + INTERVAL '4' MINUTE",
        ),
        # Tables that change
        Mixed(
            "groups joined with groups",
            "SELECT l.k, l.s, q.n FROM (SELECT k, SUM(v) AS s FROM a WHERE k IS NOT NULL GROUP BY k) AS "
            "l LEFT JOIN (SELECT k, COUNT(*) AS n FROM b WHERE k IS NOT NULL GROUP BY k) AS q ON l.k = "
            "q.k",
        ),
        Mixed(
            "rows of the keys of patterns",
            "SELECT k, SUM(v) AS s FROM a WHERE k IN (SELECT k FROM {peaks} WHERE high > 7) GROUP BY k",
        ),
        Mixed(
            "windows and groups",
            "SELECT t.k, t.v, g.s FROM ({tumbled}) AS t JOIN (SELECT k, SUM(v) AS s FROM a WHERE k IS "
            "NOT NULL GROUP BY k) AS g ON t.k = g.k WHERE t.v > 9",
        ),
        Mixed(
            "windows with more than as-of joins",
            "SELECT k, COUNT(DISTINCT rate) AS n FROM ({left_rated}) WHERE rate IS NOT NULL GROUP BY k "
            "HAVING COUNT(*) > 3",
        ),
        Mixed(
            "everything",
            "WITH best AS (SELECT k, MAX(high) AS high FROM {peaks} GROUP BY k), priced AS (SELECT k, "
            "SUM(v) AS paid FROM ({rated}) GROUP BY k) SELECT best.k, best.high, priced.paid, names.name"
            " FROM best JOIN priced ON best.k = priced.k LEFT JOIN names ON best.k = names.k",
        ),
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC).timestamp()
    return float(value) if isinstance(value, Decimal) else value


def _answers(queries: list[Mixed]) -> list[Rows]:
    """Return what DuckDB answers."""
    with duckdb.connect() as connection:
        for name, (columns, rows) in TABLES.items():
            names = [one.split()[0] for one in columns.split(", ")]
            found = {one: [row[at] for row in rows] for at, one in enumerate(names)}
            if time := TIMES.get(name):
                found[time] = pa.array([round(one * 1e6) for one in found[time]]).cast(pa.timestamp("us"))
            connection.register(name, pa.table(found))
        return [
            [tuple(map(_plain, row)) for row in connection.execute(query.said("duckdb")).fetchall()]
            for query in queries
        ]


def cases_of(queries: list[Mixed]) -> list[Case]:
    """Return queries as cases, with the rows that DuckDB answers."""
    cases = []
    for query, rows in zip(queries, _answers(queries), strict=True):
        text = query.said("flink")
        tables = {name: one for name, one in TABLES.items() if re.search(rf"\b{name}\b", text)}
        known = [*tables, "later"]
        watermark = {name: delay for name, delay in DELAYS.items() if name in known}
        options = {"watermark": watermark, "functions": {"spread": SPREAD}}
        cases.append(Case(query.name, tables, text, rows, options=options))
    return cases


MIXED = _queries()
