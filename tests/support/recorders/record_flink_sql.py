"""Records what Flink's SQL answers in tests/spark/data/flink_sql.json: ``python record_flink_sql.py FOLDER``.

FOLDER is where pip has put apache-flink-libraries: ``pip install --no-deps --target FOLDER
apache-flink-libraries==2.3.0``. It needs a JDK. RANK and DENSE_RANK are recorded in batch mode, since
Flink's window Top-N has only ROW_NUMBER in streaming mode. So is the first row of a key, which changes there.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from flink_sql import FlinkSql

TESTS = Path(__file__).resolve().parents[2]
TARGET = TESTS / "spark" / "data" / "flink_sql.json"
BY = "window_start, window_end"
SAME = "L.window_start = R.window_start AND L.window_end = R.window_end"
WINDOWS = {
    "TUMBLE": "INTERVAL '5' MINUTES",
    "HOP": "INTERVAL '2' MINUTES, INTERVAL '6' MINUTES",
    "CUMULATE": "INTERVAL '3' MINUTES, INTERVAL '6' MINUTES",
}


def rows_of(table: str, kind: str = "TUMBLE") -> str:
    """Return the window function of a table, as FROM has it."""
    return f"TABLE({kind}(TABLE {table}, DESCRIPTOR(ts), {WINDOWS[kind]}))"


def counts(table: str, kind: str = "TUMBLE") -> str:
    """Return a query that counts the rows of each key and window."""
    return f"SELECT k, COUNT(*) AS n, SUM(v) AS s, {BY} FROM {rows_of(table, kind)} GROUP BY k, {BY}"


def queries() -> dict[str, str]:
    """Return the queries by name."""
    found: dict[str, str] = {}
    start = "COALESCE(L.window_start, R.window_start) AS w1"
    for how in ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL OUTER JOIN"):
        sides = f"FROM (SELECT * FROM {rows_of('l')}) L {how} (SELECT * FROM {rows_of('r')}) R"
        select = f"SELECT L.id AS lid, R.id AS rid, {start}"
        found[how] = f"{select} {sides} ON L.k = R.k AND {SAME}"
        found[f"{how} with a condition"] = f"{select} {sides} ON L.k = R.k AND {SAME} AND L.v < R.v"
    found["FULL OUTER JOIN of aggregates"] = (
        f"SELECT L.k AS lk, R.k AS rk, L.n AS n1, R.n AS n2, {start} FROM ({counts('l')}) L {how} "
        f"({counts('r')}) R ON L.k = R.k AND {SAME}"
    )
    found["JOIN without a key"] = f"SELECT L.id AS lid, R.id AS rid {sides.replace(how, 'JOIN')} ON {SAME}"
    for kind in ("HOP", "CUMULATE"):
        found[f"JOIN of {kind}"] = (
            f"SELECT L.id AS lid, R.n, R.window_end FROM (SELECT * FROM {rows_of('l', kind)} WHERE v > 1) L "
            f"JOIN ({counts('r', kind)}) R ON {SAME} AND L.k = R.k WHERE L.id > 3"
        )
    for no in ("", "NOT "):
        of_right = f"FROM (SELECT * FROM {rows_of('r')} WHERE v IS NOT NULL) R WHERE {SAME}"
        found[f"{no}IN"] = (
            f"SELECT id, window_start FROM (SELECT * FROM {rows_of('l')}) L WHERE L.v {no}IN "
            f"(SELECT v {of_right} AND R.v > 1)"
        )
        found[f"{no}EXISTS"] = (
            f"SELECT id, window_start FROM (SELECT * FROM {rows_of('l')}) L WHERE id > 2 AND {no}EXISTS "
            f"(SELECT * {of_right} AND L.k = R.k AND R.v > 2)"
        )
    found["NOT IN with null"] = found["NOT IN"].replace("WHERE v IS NOT NULL", "").replace("AND R.v > 1", "")
    found["windows of windows"] = (
        f"SELECT {BY}, COUNT(*) AS c1, MAX(n) AS m1, SUM(n) FILTER (WHERE k = 'a') AS a1 "
        f"FROM ({counts('l', 'HOP')}) GROUP BY {BY} HAVING COUNT(*) > 1"
    )
    inner = "SELECT COUNT(*) AS n, window_start AS s1, window_end AS e1"
    hot = f"SELECT MAX(n) AS m, s1, e1 FROM ({inner}"
    found["hottest keys"] = (
        f"SELECT L.k, L.n, L.window_start FROM ({counts('l', 'HOP')}) AS L JOIN ({hot} FROM "
        f"{rows_of('l', 'HOP')} GROUP BY k, {BY}) GROUP BY s1, e1) AS R ON "
        "L.window_start = R.s1 AND L.window_end = R.e1 AND L.n >= R.m"
    )
    found["WITH, and a JOIN of a Top-N"] = (
        f"WITH a AS ({counts('l')}), b AS (SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY {BY} "
        "ORDER BY n DESC, k) AS p1 FROM a) WHERE p1 <= 2) SELECT R.k, R.p1, L.id FROM "
        f"(SELECT * FROM {rows_of('r')}) L JOIN b R ON L.k = R.k AND {SAME}"
    )
    for rank in ("ROW_NUMBER", "RANK", "DENSE_RANK"):
        order = "v DESC NULLS LAST" + (", id" if rank == "ROW_NUMBER" else "")
        found[f"{rank} of rows"] = (
            f"SELECT id, p1 FROM (SELECT *, {rank}() OVER (PARTITION BY {BY}, k ORDER BY {order}) AS "
            f"p1 FROM {rows_of('l', 'HOP')}) WHERE p1 <= 2"
        )
        if rank == "ROW_NUMBER":
            continue
        found[f"{rank} of aggregates"] = (
            f"SELECT * FROM (SELECT k, n, window_end, {rank}() OVER (PARTITION BY {BY} ORDER BY n DESC) "
            f"AS p1 FROM ({counts('l')})) WHERE p1 <= 2 AND n > 1"
        )
    for frame in (
        "RANGE BETWEEN INTERVAL '3' MINUTES PRECEDING AND CURRENT ROW",
        "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
    ):
        found[f"OVER {frame.split()[0]}"] = (
            "SELECT id, COUNT(*) OVER w AS n, COUNT(v) OVER w AS v, SUM(v) OVER w AS s, MIN(v) OVER w AS v1, "
            f"MAX(v) OVER w AS v2 FROM l WHERE id > 2 WINDOW w AS (PARTITION BY k ORDER BY ts {frame})"
        )
    found["the first row of a key"] = (
        "SELECT id, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n FROM l "
        "WHERE v > 0) WHERE n = 1"
    )
    for kind, lengths in (("SESSION", "INTERVAL '2' MINUTES"), ("HOP", WINDOWS["HOP"])):
        found[f"GROUP BY {kind}"] = (
            f"SELECT k, COUNT(*) AS n, {kind}_START(ts, {lengths}) AS s, {kind}_END(ts, {lengths}) AS e "
            f"FROM l GROUP BY k, {kind}(ts, {lengths}) HAVING COUNT(*) > 1"
        )
    return found


def tables() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables: 40 minutes, with some keys and values that are null."""
    draw = random.Random(20)
    return {
        name: [
            {
                "id": number,
                "k": draw.choice(["a", "b", "c", None]),
                "v": draw.choice([None, 0, 1, 2, 3, 4]),
                "millis": number * 60_000 + 30_000 * draw.randrange(5),
            }
            for number in range(40)
        ]
        for name in ("l", "r")
    }


def main(libraries: Path) -> None:
    """Run the queries in Flink, and write the tables and the results."""
    flink = FlinkSql(libraries)
    for name, rows in tables().items():
        flink.add_table(name, "id BIGINT, k STRING, v BIGINT", rows)
    wanted = queries()
    results: dict[str, list[Any]] = {}
    for mode in ("streaming", "batch"):
        in_batches = mode == "batch"
        asked = {
            name: sql
            for name, sql in wanted.items()
            if name.startswith(("RANK", "DENSE", "the first")) == in_batches
        }
        results |= flink.answers(mode, asked)[0]
    recorded = [
        {"name": name, "sql": sql, "rows": sorted(results[name], key=repr)} for name, sql in wanted.items()
    ]
    lines = ",\n".join(json.dumps(one) for one in recorded)
    TARGET.write_text(f'{{"flink": "2.3.0", "tables": {json.dumps(tables())}, "queries": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
