"""What Flink's own tests of joins by time expect, told anew: IntervalJoinITCase, TemporalJoinITCase.

Of TemporalJoinITCase the orders only grow: of orders that change Flink joins each change by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flink_tables import Case, Rows, Table, table

__all__ = ["TIME_JOINS"]

STREAM = ("stream",)
CLOCK = "the time of a row is that of its micro-batch"
LEFT: Rows = [
    ("a", 1, "l1", 0.999),
    ("a", 4, "l2", 1),
    ("a", 2, "l3", 2),
    ("a", 7, "l4", 3),
    ("b", 5, "l5", 4),
    ("a", 4, "l6", 4.999),
    ("a", 4, "l7", 5),
    ("b", 9, "l8", 5),
    ("c", 8, "l9", 7),
    (None, 3, "l10", 8),
    ("a", 6, "l11", 12),
    ("a", 6, "l12", 20),
]
RIGHT: Rows = [
    ("a", 1, "r1", 1),
    ("a", 9, "r2", 6),
    ("b", 14, "r3", 7),
    ("d", 4, "r4", 8),
    (None, 9, "r5", 10),
]
COLUMNS = "k string, n bigint, id string, rowtime timestamp"
SIDES = {"T1": table(COLUMNS, *LEFT), "T2": table(COLUMNS, *RIGHT)}
DELAY = {"watermark": dict.fromkeys(("T1", "T2"), "rowtime - INTERVAL '1' SECOND")}
Condition = Callable[[tuple[Any, ...], tuple[Any, ...]], bool]


def pairs_of(on: Condition, left: bool = False, right: bool = False) -> Rows:
    """Return the pairs of rows that meet a condition, and those that no other row meets it with."""
    found = [(a, b) for a in LEFT for b in RIGHT if on(a, b)]
    rows: Rows = [(b[0], b[2], a[2]) for a, b in found]
    if left:
        rows += [(None, None, a[2]) for a in LEFT if a not in [pair[0] for pair in found]]
    if right:
        rows += [(b[0], b[2], None) for b in RIGHT if b not in [pair[1] for pair in found]]
    return rows


def near(before: float, after: float, keyed: bool = True, nulls: bool = False) -> Condition:
    def on(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
        same = a[0] == b[0] and (nulls or a[0] is not None)
        return (same or not keyed) and b[3] + before <= a[3] <= b[3] + after

    return on


def between(before: int, after: int, time: str = "rowtime") -> str:
    def shifted(by: int) -> str:
        return f"t2.{time} {'-' if by < 0 else '+'} INTERVAL '{abs(by)}' SECOND"

    return f"t1.{time} BETWEEN {shifted(before)} AND {shifted(after)}"


def select(join: str, on: str) -> str:
    return f"SELECT t2.k, t2.id, t1.id FROM T1 AS t1 {join} T2 AS t2 ON {on}"


def _intervals() -> list[Case]:
    name = "IntervalJoinITCase.test"
    coming = {
        "T1": table(
            "k string, n bigint, id string",
            *[("a", 1, "l1"), ("a", 2, "l2"), ("b", 3, "l3"), (None, 3, "l4"), ("a", 1, "l5")],
        ),
        "T2": table("k string, n bigint, id string", *[("a", 1, "r1"), ("c", 3, "r2"), (None, 3, "r3")]),
    }
    a_pairs = [("a", "r1", "l1"), ("a", "r1", "l2"), ("a", "r1", "l5")]
    clock, hour = {"processing_time": "proctime"}, between(-3600, 3600, "proctime")
    keyed, seven = "t1.k = t2.k", near(-5, 6)
    joined = select("JOIN", f"{keyed} AND {between(-5, 6)}")
    ids = [(a, b) for a in LEFT for b in RIGHT if seven(a, b)]
    counts = [
        (key, len({b for _, b in part}), len({a for a, _ in part}))
        for key in ("a", "b")
        for part in [[(a, b) for a, b in ids if a[0] == key]]
    ]
    cases = [
        Case(
            f"{name}ProcessTimeInnerJoin",
            coming,
            select("JOIN", f"{keyed} AND {hour}"),
            a_pairs,
            CLOCK,
            options=clock,
            runs=STREAM,
            clock=True,
        ),
        Case(
            f"{name}ProcessTimeJoinWithIsNotDistinctFrom",
            coming,
            select("JOIN", f"t1.k IS NOT DISTINCT FROM t2.k AND {hour}"),
            [*a_pairs, (None, "r3", "l4")],
            CLOCK,
            options=clock,
            runs=STREAM,
            clock=True,
        ),
        Case(
            f"{name}ProcessTimeInnerJoinWithOtherConditions",
            coming,
            select("JOIN", f"{keyed} AND {hour} AND t1.n = t2.n"),
            [a_pairs[0], a_pairs[2]],
            CLOCK,
            options=clock,
            runs=STREAM,
            clock=True,
        ),
        Case(f"{name}RowTimeInnerJoin", SIDES, joined, pairs_of(seven), options=DELAY),
        Case(
            f"{name}RowTimeInnerJoinWithIsNotDistinctFrom",
            SIDES,
            select("JOIN", f"t1.k IS NOT DISTINCT FROM t2.k AND {between(-5, 6)} AND t1.id IS NOT NULL"),
            pairs_of(near(-5, 6, nulls=True)),
            options=DELAY,
        ),
        Case(
            f"{name}RowTimeInnerJoinWithoutEqualCondition",
            SIDES,
            select("JOIN", f"{between(-5, 6)} AND t1.id IS NOT NULL"),
            pairs_of(near(-5, 6, keyed=False)),
            options=DELAY,
        ),
        Case(
            f"{name}UnboundedAggAfterRowtimeInnerJoin",
            SIDES,
            "SELECT k, COUNT(DISTINCT id1), COUNT(DISTINCT id2) FROM (SELECT t2.k AS k, t2.id AS "
            f"id1, t1.id AS id2 FROM T1 AS t1 JOIN T2 AS t2 ON {keyed} AND {between(-5, 6)}) GROUP BY k",
            counts,
            options=DELAY,
        ),
        Case(
            f"{name}RowTimeInnerJoinWithEquiTimeAttrs",
            SIDES,
            select("JOIN", f"{keyed} AND t2.rowtime = t1.rowtime"),
            pairs_of(near(0, 0)),
            options=DELAY,
        ),
        Case(
            f"{name}RowTimeInnerJoinWithOtherConditions",
            SIDES,
            select(
                "JOIN",
                f"{keyed} AND t1.rowtime > t2.rowtime - INTERVAL '5' SECOND AND t1.rowtime < "
                "t2.rowtime - INTERVAL '1' SECOND AND t1.n < t2.n AND t1.n > 2",
            ),
            pairs_of(
                lambda a, b: (
                    a[0] == b[0] and a[0] is not None and b[3] - 5 < a[3] < b[3] - 1 and 2 < a[1] < b[1]
                )
            ),
            options=DELAY,
        ),
        Case(
            f"{name}RowTimeInnerJoinWithOtherTimeCondition",
            SIDES,
            select(
                "JOIN",
                f"{keyed} AND t1.rowtime > t2.rowtime - INTERVAL '4' SECOND AND t1.rowtime < "
                "t2.rowtime AND QUARTER(t1.rowtime) < t2.n",
            ),
            pairs_of(lambda a, b: a[0] == b[0] and a[0] is not None and b[3] - 4 < a[3] < b[3] and b[1] > 1),
            options=DELAY,
        ),
    ]
    for test, side in {"First": 0, "Second": 1}.items():
        found: dict[tuple[str, float], int] = {}
        for pair in [(a, b) for a in LEFT for b in RIGHT if near(-5, 5)(a, b)]:
            end = pair[side][3] // 4 * 4 + 4
            found[pair[side][0], end] = found.get((pair[side][0], end), 0) + 1
        one, other = ("t1", "t2") if side == 0 else ("t2", "t1")
        query = (
            f"SELECT {one}.k, TUMBLE_END({one}.rowtime, INTERVAL '4' SECOND), COUNT({other}.k) FROM T1 AS t1 "
        )
        query += (
            f"JOIN T2 AS t2 ON {keyed} AND {between(-5, 5)} GROUP BY TUMBLE({one}.rowtime, "
            f"INTERVAL '4' SECOND), {one}.k"
        )
        rows = [(*key, count) for key, count in found.items()]
        cases.append(
            Case(f"{name}RowTimeInnerJoinWithWindowAggregateOn{test}Time", SIDES, query, rows, options=DELAY)
        )
    for word, (left, right) in {"Left": (True, False), "Right": (False, True), "Full": (True, True)}.items():
        join = f"{word.upper()} OUTER JOIN"
        but = {
            "Left": "t1.id <> 'l8'",
            "Right": "t2.id <> 'r2'",
            "Full": "NOT (t1.id = 'l8' OR t2.id = 'r2')",
        }[word]

        def on(a: tuple[Any, ...], b: tuple[Any, ...], word: str = word) -> bool:
            dropped = (word != "Right" and a[2] == "l8") or (word != "Left" and b[2] == "r2")
            return seven(a, b) and not dropped

        cases += [
            Case(
                f"{name}ProcTime{word}OuterJoin",
                coming,
                select(join, f"{keyed} AND {hour}"),
                a_pairs,
                f"{CLOCK}; rows without a match come an hour later",
                options=clock,
                runs=STREAM,
                clock=True,
            ),
            Case(
                f"{name}RowTime{word}OuterJoin",
                SIDES,
                select(join, f"{keyed} AND {between(-5, 6)} AND {but}"),
                pairs_of(on, left, right),
                options=DELAY,
            ),
            Case(
                f"{name}RowTime{word}OuterJoinNegativeIntervalSize",
                SIDES,
                select(join, f"{keyed} AND {between(3, 1)}"),
                pairs_of(near(3, 1), left, right),
                options=DELAY,
                ends=False,  # no pair can be, so that no row waits
            ),
        ]
    return cases


MINUTE, NEXT = 60, 86_400
ORDERS = table(
    "order_id bigint, currency string, no string, amount bigint, order_time timestamp",
    *[
        (1, "euro", "x", 12, MINUTE),
        (2, "dollar", "x", 18, NEXT + 3 * MINUTE),
        (3, "rupee", "x", 40, 3 * MINUTE),
    ],
    *[(4, "euro", "x", 14, NEXT + 4 * MINUTE), (5, "rupee", "x", 40, NEXT + 3 * MINUTE)],
)
VERSIONS: Rows = [
    ("euro", "x", 114, 1),
    ("dollar", "x", 102, 2),
    ("yen", "x", 1, 3),
    ("rupee", "x", 702, 4),
    ("euro", "x", 118, NEXT + MINUTE),
    ("dollar", "x", 106, NEXT + 2 * MINUTE),
]
RATES = "currency string, no string, rate bigint, currency_time timestamp"


def _kinds(time_of_old: Callable[[float, float], float]) -> Table:
    """Return the rates as a changelog, in which a row that goes has the time of its change, or its own."""
    rows: Rows = [("+I", *row) for row in VERSIONS[:4]]
    for old, new in ((VERSIONS[0], VERSIONS[4]), (VERSIONS[1], VERSIONS[5])):
        rows += [("-U", *old[:3], time_of_old(old[3], new[3])), ("+U", *new)]
    return table(RATES, *rows, ("-D", *VERSIONS[3][:3], time_of_old(4, NEXT + 2 * MINUTE)))


def _temporals() -> list[Case]:
    name = "TemporalJoinITCase.test"
    delays = {
        "watermark": {"orders": "order_time - INTERVAL '2' DAY", "rates": "currency_time - INTERVAL '2' DAY"}
    }
    ends = table(
        f"{RATES}, op string", *((*row, "I") for row in VERSIONS), (*VERSIONS[3][:3], NEXT + 2 * MINUTE, "D")
    )
    deleted = {**delays, "deleted": {"rates": "op = 'D'"}}
    versioned = {"orders": ORDERS, "rates": ends}
    history = {"orders": ORDERS, "rates": table(RATES, *VERSIONS)}
    said = {"orders": ORDERS, "rates": _kinds(lambda old, new: new)}
    before = {"orders": ORDERS, "rates": _kinds(lambda old, new: old)}
    items = "SELECT o.order_id, o.currency, o.amount, o.order_time, r.rate, r.currency_time FROM orders AS o "
    as_of = "FOR SYSTEM_TIME AS OF o.order_time AS r ON o.currency = r.currency"
    orders = {row[0]: row for row in ORDERS[1]}
    found = {1: VERSIONS[0], 2: VERSIONS[5], 3: VERSIONS[3], 4: VERSIONS[4], 5: None}

    def rows(versions: dict[int, Any], left: bool = False) -> Rows:
        kept = [(orders[at], version) for at, version in versions.items() if version or left]
        return [(*o[:2], *o[3:], *(v[2:] if v else (None, None))) for o, v in kept]

    gone = {**found, 3: None}
    always = {**found, 5: VERSIONS[3]}
    first = {at: VERSIONS[{"euro": 0, "dollar": 1, "rupee": 3}[row[1]]] for at, row in orders.items()}
    nulls = {at: version if at == 2 else None for at, version in found.items()}
    ranked = (
        "WITH {0} AS (SELECT currency, no, rate, currency_time FROM (SELECT *, ROW_NUMBER() "
        "OVER (PARTITION BY "
    )
    ranked += "currency ORDER BY currency_time{1}) AS rn FROM rates) WHERE rn = 1) "
    last, once = ranked.format("latest", " DESC"), ranked.format("earliest", "")
    view = {"watermark": {**delays["watermark"], "r": "currency_time - INTERVAL '2' DAY"}}
    coming = {
        "orders": table(
            "order_id bigint, currency string, amount bigint", *[(1, "euro", 12), (2, "dollar", 14)]
        ),
        "rates": table("currency string, rate bigint", *[("euro", 114), ("dollar", 102)]),
    }
    no_clock = "of two streams, which Flink refuses, too"
    cases = [
        Case(
            f"{name}EventTimeTemporalJoin",
            versioned,
            f"{items}JOIN rates {as_of}",
            rows(found),
            options=deleted,
        ),
        Case(
            f"{name}EventTimeTemporalJoinThatJoinkeyContainsPk",
            versioned,
            f"{items}JOIN rates {as_of} AND o.no = r.no",
            rows(found),
            options=deleted,
        ),
        Case(
            f"{name}EventTimeTemporalJoinWithFilter",
            versioned,
            f"{items}JOIN rates {as_of} WHERE rate < 115",
            rows({1: found[1], 2: found[2]}),
            options=deleted,
        ),
        Case(
            f"{name}EventTimeLeftTemporalJoin",
            versioned,
            f"{items}LEFT JOIN rates {as_of}",
            rows(found, True),
            options=deleted,
        ),
        Case(
            f"{name}EventTimeLeftTemporalJoin, of a changelog",
            said,
            f"{items}LEFT JOIN rates {as_of}",
            rows(found, True),
            options=delays,
        ),
        Case(
            f"{name}EventTimeTemporalJoinChangelogUsingBeforeTime",
            before,
            f"{items}LEFT JOIN rates {as_of}",
            rows(gone, True),
            options=delays,
        ),
        Case(
            f"{name}EventTimeLeftTemporalJoinUpsertSource",
            {
                "orders": ORDERS,
                "rates": table(
                    f"{RATES}, op string", *((*row, "I") for row in VERSIONS), (*VERSIONS[3], "X")
                ),
            },
            f"{items}LEFT JOIN rates {as_of}",
            rows(gone, True),
            options={**delays, "deleted": {"rates": "op = 'X'"}},
        ),
        Case(
            f"{name}EventTimeTemporalJoinWithMultiKeys",
            versioned,
            f"{items}JOIN rates FOR SYSTEM_TIME AS OF o.order_time AS r "
            "ON o.no = r.no AND o.currency = r.currency",
            rows(found),
            options=deleted,
        ),
        Case(
            f"{name}EventTimeTemporalJoinWithNonEqualCondition",
            versioned,
            f"{items}JOIN rates {as_of} AND o.no = r.no AND o.order_id < 5 AND r.rate > 102 AND r.rate < 700",
            rows({at: found[at] for at in (1, 2, 4)}),
            options=deleted,
        ),
        Case(
            f"{name}EventTimeTemporalJoinEqualConditionOnKey",
            versioned,
            f"{items}JOIN rates {as_of} AND o.no = r.no AND o.currency = 'euro' AND r.rate > 102",
            rows({at: found[at] for at in (1, 4)}),
            options=deleted,
        ),
        Case(
            f"{name}EventTimeMultiTemporalJoin",
            versioned,
            "SELECT o.order_id, r.rate, r1.rate FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS "
            "OF o.order_time AS r ON o.currency = r.currency AND o.no = r.no LEFT JOIN rates FOR "
            "SYSTEM_TIME AS OF o.order_time AS r1 ON o.currency = r1.currency",
            [(at, *([version[2]] * 2 if version else (None, None))) for at, version in found.items()],
            options=deleted,
        ),
        Case(
            f"{name}EventTimeMultiTemporalJoin, nested",
            versioned,
            "SELECT o.order_id, o.rate, r1.rate FROM (SELECT o.order_id, o.currency, o.order_time, r.rate "
            "FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.order_time AS r ON o.currency = "
            "r.currency AND o.no = r.no) AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.order_time AS "
            "r1 ON o.currency = r1.currency",
            [(at, *([version[2]] * 2 if version else (None, None))) for at, version in found.items()],
            options=deleted,
        ),
        Case(
            f"{name}EventTimeTemporalJoinWithDeduplicateFirstView",
            history,
            f"{once}{items}LEFT JOIN earliest {as_of}",
            rows(first, True),
            options=view,
        ),
        *(
            Case(f"{name}{test}", history, f"{last}{items}JOIN latest {as_of}", rows(always), options=delays)
            for test in ("EventTimeTemporalJoinWithDeduplicateLastView", "MiniBatchEventTimeViewTemporalJoin")
        ),
        Case(
            f"{name}EventTimeLeftTemporalJoinWithView",
            history,
            f"{last}{items}LEFT JOIN latest {as_of} AND SUBSTR(o.currency, 1, 3) = 'dol'",
            rows(nulls, True),
            options=delays,
        ),
    ]
    clock = (
        "SELECT o.order_id, r.rate FROM orders AS o {0} {1} FOR SYSTEM_TIME AS OF o.proctime AS "
        "r ON o.currency = r.currency{2}"
    )
    latest = (
        "WITH latest AS (SELECT currency, rate FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY "
        "currency ORDER BY PROCTIME() DESC) AS rn FROM rates) WHERE rn = 1) "
    )
    twice = " JOIN rates FOR SYSTEM_TIME AS OF o.proctime AS r1 ON o.currency = r1.currency"
    more = " AND o.amount > r.rate"
    streams, arrival = (
        "proctime of the stream rates is not supported",
        "(of processing time) is not supported",
    )
    for test, query, refused in (
        ("ProcTimeTemporalJoin", clock.format("JOIN", "rates", ""), streams),
        ("ProcTimeLeftTemporalJoin", clock.format("LEFT JOIN", "rates", ""), streams),
        ("ProcTimeTemporalJoinChangelogSource", clock.format("JOIN", "rates", ""), streams),
        ("ProcTimeTemporalJoinWithView", latest + clock.format("JOIN", "latest", ""), arrival),
        ("ProcTimeLeftTemporalJoinWithView", latest + clock.format("LEFT JOIN", "latest", ""), arrival),
        ("ProcTimeTemporalJoinWithViewNonEqui", latest + clock.format("JOIN", "latest", more), arrival),
        (
            "ProcTimeLeftTemporalJoinWithViewWithPredicates",
            latest + clock.format("LEFT JOIN", "latest", more),
            arrival,
        ),
        ("ProcTimeMultiTemporalJoin", clock.format("JOIN", "rates", twice), streams),
    ):
        cases.append(
            Case(f"{name}{test}", coming, query, None, no_clock, refused, runs=STREAM, flink_refuses=True)
        )
    return cases


TIME_JOINS = [*_intervals(), *_temporals()]
