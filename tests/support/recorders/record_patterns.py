"""Records what Flink's MATCH_RECOGNIZE answers in tests/spark/data/flink_patterns.json.

``python record_patterns.py FOLDER``; FOLDER is where pip has put apache-flink-libraries, as in
record_flink_sql.py. It needs a JDK.

Flink does not follow the standard's order of preference where a row can be several variables. Here each row
can be one variable alone, by its letter, and a condition on the match may refuse it.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from flink_sql import FlinkSql

TESTS = Path(__file__).resolve().parents[2]
TARGET = TESTS / "spark" / "data" / "flink_patterns.json"
LETTERS = "ABCD"
TABLES, ROWS, QUERIES = 3, 80, 210


def tables() -> dict[str, list[list[Any]]]:
    """Return rows of three keys: id, key, letter, value, and ms, which differ."""
    draw = random.Random(46)
    found = {}
    for number in range(TABLES):
        letters, run = draw.choice(["ABC", "ABCD", "AABBCD"]), draw.choice([0.3, 0.5])
        rows: list[list[Any]] = []
        last = dict.fromkeys("xyz", "A")
        for id_ in range(ROWS):
            key = draw.choice("xyz")
            if draw.random() > run:
                last[key] = draw.choice(letters)
            value = draw.choice([None, 0, 1, 2, 3, 4, 5])
            rows.append([id_, key, last[key], value, id_ * 60_000 + draw.randrange(60_000)])
        found[f"t{number}"] = rows
    return found


def clause(draw: random.Random) -> str:
    """Return a random clause."""
    names = draw.sample(LETTERS, draw.randint(1, 4))
    marks = [
        draw.choice(["", "", "+", "*", "?", "{2}", "{2,}", "{1,3}", "+?", "*?", "{1,3}?"]) for _ in names
    ]
    marks[-1] = draw.choice(["", "", "", "{2}", "+?", "{2,}?"])
    other, mine = (lambda: draw.choice(names)), names[-1]
    define = []
    for at, name in enumerate(names):
        mine, before = name, draw.choice(names[: at + 1])
        more = draw.choice([
            *[""] * 5, " AND v >= 1", f" AND {mine}.v <> 3", f" AND v > LAST({before}.v, 1)",
            f" AND (LAST({mine}.v, 1) IS NULL OR {mine}.v >= LAST({mine}.v, 1))",
            f" AND SUM({before}.v) < 7", f" AND COUNT({before}.v) < 3", " AND v <= FIRST(v)",
            f" AND MAX({before}.v) < 5", " AND v IS NOT NULL", f" AND v BETWEEN 1 AND FIRST({before}.v) + 2",
            f" AND AVG({before}.v * 1.0) >= 2",
        ])  # fmt: skip
        define.append(f"{name} AS {name}.letter = '{name}'{more}")
    within = draw.choice(["", "", "", " WITHIN INTERVAL '5' MINUTE", " WITHIN INTERVAL '9' MINUTE"])
    skip = draw.choice(["PAST LAST ROW", "PAST LAST ROW", "TO NEXT ROW", f"TO LAST {names[-1]}"])
    if skip.startswith("TO LAST") and len(names) == 1:
        skip = "PAST LAST ROW"
    asked = [
        *("FIRST(id) AS m0", "LAST(id) AS m1", f"{other()}.v AS m2"),
        f"FIRST({other()}.id, {draw.randrange(3)}) AS m3",
        f"LAST({other()}.v, {draw.randrange(3)}) AS m4",
        f"{draw.choice(['SUM', 'MIN', 'MAX', 'COUNT'])}({other()}.v) AS m5",
        f"{draw.choice(['SUM', 'MIN', 'MAX', 'COUNT'])}(id) AS m6",
    ]
    return (
        f"PARTITION BY k ORDER BY ts MEASURES {', '.join(asked)} ONE ROW PER MATCH AFTER MATCH SKIP {skip} "
        f"PATTERN ({' '.join(map(str.__add__, names, marks))}){within} DEFINE {', '.join(define)}"
    )


def main(libraries: Path) -> None:
    """Run the queries in Flink, and write the tables and the results."""
    flink = FlinkSql(libraries)
    columns = "id", "k", "letter", "v", "millis"
    for name, rows in tables().items():
        values = (dict(zip(columns, row, strict=True)) for row in rows)
        flink.add_table(name, "id BIGINT, k STRING, letter STRING, v BIGINT", values)
    wanted = []
    for number in range(QUERIES):
        draw = random.Random(number)
        table = f"t{draw.randrange(TABLES)}"
        wanted.append((str(number), table, clause(draw)))
    asked = {name: f"SELECT * FROM {table} MATCH_RECOGNIZE ({text}) AS m" for name, table, text in wanted}
    results, refused = flink.answers("streaming", asked)
    recorded = [
        [table, text, sorted(results[name], key=repr)] for name, table, text in wanted if name not in refused
    ]
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in recorded)
    head = json.dumps(tables(), separators=(",", ":"))
    TARGET.write_text(f'{{"flink": "2.3.0", "tables": {head}, "queries": [\n{lines}\n]}}\n')
    print(len(recorded), "queries,", sum(len(rows) for *_, rows in recorded), "rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
