"""What Flink's own tests of windows in GROUP BY expect, told anew: GroupWindowITCase, TimeAttributeITCase."""

from __future__ import annotations

from flink_tables import Case, table
from flink_windows import CALLED, ONE, SALES, SOLD, TIMED, decimals, groups, hop, joined, tumble

__all__ = ["GROUP_WINDOWS"]
OF_BOTH = {"T1": "ts", "T2": "rowtime"}


def _group_windows() -> list[Case]:
    name = "GroupWindowITCase.test"
    hopped = [
        (
            n,
            s,
            e - 0.001,
            len(rows),
            len({row[2] for row in rows} - {None}),
            joined(sorted(row[3] for row in rows if row[3])),
        )
        for (s, e, n), rows in groups(SOLD, hop(4, 5), [4]).items()
    ]
    sessions = table(
        "rowtime timestamp, num int, who string, what string",
        *[
            (1, 2, "ann", "a"),
            (2, 2, "ann", "b"),
            (8, 2, "ann", "a"),
            (10, 3, "ann", "d"),
            (9, 9, "bob", "b"),
        ],
        *[(4, 1, "ann", "c"), (16, 16, "ann", "e")],
    )
    late = {"watermark": "rowtime - INTERVAL '10' SECOND"}
    rates = table(
        "currency string, rate bigint, rowtime timestamp",
        *[("+I", "euro", 114, 1), ("+I", "yen", 1, 3), ("-U", "euro", 114, 1), ("+U", "euro", 118, 18)],
    )
    upserts = {"rates": rates}
    fires = (
        "SELECT currency, COUNT(1) AS cnt, MAX(rate), TUMBLE_START(rowtime, INTERVAL '5' SECOND) FROM rates "
    )
    fires += "GROUP BY currency, TUMBLE(rowtime, INTERVAL '5' SECOND)"
    changing = "windows of rows that change: group by a column such as `DATE_TRUNC('MINUTE', at)`"
    no_windows = "rows change, is not supported"
    by_item = groups(SOLD, tumble(10), [4, 3])
    return [
        Case(
            f"{name}EventTimeSlidingWindow",
            ONE,
            "SELECT name, HOP_START(rowtime, INTERVAL '4' SECOND, INTERVAL '5' SECOND), HOP_ROWTIME(rowtime, "
            "INTERVAL '4' SECOND, INTERVAL '5' SECOND), COUNT(1), COUNT(DISTINCT price), "
            "concat_distinct(item) "
            "FROM T1 GROUP BY name, HOP(rowtime, INTERVAL '4' SECOND, INTERVAL '5' SECOND)",
            hopped,
            options=CALLED,
        ),
        Case(
            f"{name}CascadingTumbleWindow",
            ONE,
            "SELECT SUM(cnt) FROM (SELECT COUNT(1) AS cnt, TUMBLE_ROWTIME(rowtime, INTERVAL '10' "
            "SECOND) AS ts "
            "FROM T1 GROUP BY num, item, TUMBLE(rowtime, INTERVAL '10' SECOND)) "
            "GROUP BY TUMBLE(ts, INTERVAL '50' SECOND)",
            [(9,)],
            options=TIMED,
        ),
        Case(
            f"{name}MinMaxWithTumblingWindow",
            ONE,
            "SELECT MAX(high), MIN(low), name FROM (SELECT name, item, MAX(rowtime) AS high, "
            "MIN(rowtime) AS low "
            "FROM T1 GROUP BY name, item, TUMBLE(rowtime, INTERVAL '10' SECOND)) GROUP BY name",
            [
                (max(row[0] for row in rows), min(row[0] for row in rows), who)
                for who in ("ann", "bob", None)
                for rows in [[row for (*_, n, _), part in by_item.items() if n == who for row in part]]
            ],
            options=TIMED,
        ),
        Case(
            f"{name}WindowAggregateOnConstantValue",
            ONE,
            "SELECT TUMBLE_END(rowtime, INTERVAL '3' SECOND), COUNT(name) FROM T1 "
            "GROUP BY 'a', TUMBLE(rowtime, INTERVAL '3' SECOND)",
            [
                (e, sum(row[4] is not None for row in rows))
                for (_, e), rows in groups(SOLD, tumble(3), []).items()
            ],
            options=TIMED,
        ),
        Case(
            f"{name}ProctimeCascadeWindowAgg",
            ONE,
            "SELECT cnt, TUMBLE_START(pt1, INTERVAL '36500' DAY), MAX(s1) FROM (SELECT "
            "TUMBLE_START(proctime, "
            "INTERVAL '36500' DAY) AS s1, TUMBLE_PROCTIME(proctime, INTERVAL '36500' DAY) AS pt1, "
            "COUNT(name) AS cnt "
            "FROM T1 GROUP BY 'a', TUMBLE(proctime, INTERVAL '36500' DAY)) "
            "GROUP BY cnt, TUMBLE(pt1, INTERVAL '36500' DAY)",
            None,
            "windows by the processing time of windows that have ended: group by `window_start` and "
            "`window_end`",
            "for the streaming table nested SELECT 1",
            runs=("stream",),
        ),
        Case(
            f"{name}EventTimeSessionWindow",
            {"T1": sessions},
            "SELECT who, SESSION_START(rowtime, INTERVAL '5' SECOND), SESSION_ROWTIME(rowtime, "
            "INTERVAL '5' SECOND), "
            "COUNT(1), SUM(num), COUNT(DISTINCT what) FROM T1 GROUP BY who, SESSION(rowtime, "
            "INTERVAL '5' SECOND)",
            [("ann", 1, 14.999, 5, 10, 4), ("bob", 9, 13.999, 1, 9, 1), ("ann", 16, 20.999, 1, 16, 1)],
            options=late,
        ),
        Case(
            f"{name}DistinctAggWithMergeOnEventTimeSessionGroupWindow",
            {"T1": sessions},
            "SELECT who, COUNT(DISTINCT num), SESSION_END(rowtime, INTERVAL '5' SECOND) FROM T1 "
            "GROUP BY who, SESSION(rowtime, INTERVAL '5' SECOND)",
            [("ann", 3, 15), ("bob", 1, 14), ("ann", 1, 21)],
            options=late,
        ),
        Case(
            f"{name}EventTimeTumblingWindowWithAllowLateness",
            ONE,
            "SELECT name, TUMBLE_START(rowtime, INTERVAL '5' SECOND), COUNT(num), MIN(num), SUM(num) FROM T1 "
            "GROUP BY name, TUMBLE(rowtime, INTERVAL '5' SECOND)",
            [
                (n, s, len(rows), min(row[1] for row in rows), sum(row[1] for row in rows))
                for (s, _, n), rows in groups(SOLD, tumble(5), [4]).items()
            ],
            options=TIMED,
        ),
        Case(f"{name}WindowAggregateOnUpsertSource", upserts, fires, None, changing, no_windows, TIMED),
        Case(
            f"{name}WindowAggregateOnUpsertSourceWithAllowLateness",
            upserts,
            fires,
            None,
            changing,
            no_windows,
            TIMED,
        ),
        Case(
            f"{name}WindowAggregateOnUpsertSourcePushdownWatermark",
            upserts,
            fires,
            None,
            changing,
            no_windows,
            TIMED,
        ),
        Case(
            f"{name}WindowAggregateOnRetractStream",
            ONE,
            "SELECT name, TUMBLE_START(rowtime, INTERVAL '5' SECOND), COUNT(1) FROM (SELECT name, "
            "rowtime FROM "
            "(SELECT *, ROW_NUMBER() OVER (PARTITION BY name ORDER BY rowtime DESC) AS rn FROM T1) "
            "WHERE rn = 1) "
            "GROUP BY name, TUMBLE(rowtime, INTERVAL '5' SECOND)",
            None,
            changing,
            "not supported",
            TIMED,
        ),
    ]


def _time_attributes() -> list[Case]:
    name = "TimeAttributeITCase.test"
    sums = groups(SOLD, tumble(3), [])
    rows = [(e, len(part), sum(row[1] for row in part)) for (_, e), part in sums.items()]
    query = (
        "SELECT TUMBLE_END({0}, INTERVAL '3' SECOND), COUNT(rowtime), SUM(num) FROM {1} GROUP BY "
        "TUMBLE({0}, INTERVAL '3' SECOND)"
    )
    wall = {"T1": table(SALES.replace("timestamp", "timestamp_ntz"), *decimals(SOLD))}
    longs = table(
        "ts bigint, num int, price decimal(10,2), item string, name string",
        *((row[0] * 1000, *row[1:]) for row in decimals(SOLD)),
    )
    return [
        Case(f"{name}WindowAggregateOnWatermark", wall, query.format("rowtime", "T1"), rows, options=TIMED),
        Case(
            f"{name}WindowAggregateOnTimestampLtzWatermark",
            ONE,
            query.format("rowtime", "T1"),
            rows,
            options=TIMED,
        ),
        Case(
            f"{name}WindowAggregateOnComputedRowtime",
            {"T1": longs},
            query.format("rowtime", "(SELECT TO_TIMESTAMP_LTZ(ts, 3) AS rowtime, num FROM T1) AS T2"),
            rows,
            options={"watermark": {one: f"{time} - INTERVAL '1' SECOND" for one, time in OF_BOTH.items()}},
        ),
        Case(
            f"{name}WindowAggregateOnCustomizedWatermark",
            ONE,
            query.format("rowtime", "T1"),
            None,
            "a watermark is a delay, or a `WatermarkStrategy` with a generator of yours",
            "watermark must be",
            {"watermark": "my_function(rowtime, num)"},
        ),
    ]


GROUP_WINDOWS = [*_group_windows(), *_time_attributes()]
