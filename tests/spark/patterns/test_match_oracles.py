"""What other engines answer to MATCH_RECOGNIZE, against what `sql()` does: Flink, Trino and DuckDB.

Flink's answers are recorded (tests/support/recorders/record_patterns.py). The other cases are those of
Trino's TestRowPatternMatching and of DuckDB's test/sql/match_recognize, which has the examples of ISO/IEC
19075-5, each reduced to its rows, its pattern and its matches. Left out is what the table of
docs/compatibility has as refused, and what is not of the clause: subqueries, macros, casts of results.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import match_cases
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EVERY = 1 if "TIMERHEAP_MATCH_CASES" in os.environ else 2  # which of the recorded queries
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "flink_patterns.json").read_text())


def test_the_answers_of_flink(spark: SparkSession) -> None:
    rows = [(name, *row) for name, rows in RECORDED["tables"].items() for row in rows]
    df = spark.createDataFrame(rows, "of string, id long, k string, letter string, v long, millis long")
    queries = RECORDED["queries"][::EVERY]
    cases = [(table, clause) for table, clause, _ in queries]
    found = match_cases.answers(spark, df.selectExpr("*", "timestamp_millis(millis) AS ts"), cases)
    wrong = [
        (clause, rows, wanted)
        for (_, clause, wanted), rows in zip(queries, found, strict=True)
        if isinstance(rows, ValueError) or sorted(map(list, rows), key=repr) != wanted
    ]
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[0]}"


FALLS = "B AS B.v < PREV(B.v)"
V = f"{FALLS}, C AS C.v > PREV(C.v)"
LABELS = "LAST(id) AS i, CLASSIFIER() AS c, MATCH_NUMBER() AS m"

# By rows and DEFINE: each pattern, and its rows in ALL ROWS PER MATCH, such as 2B1, row 2 as B of the first
# match; -1 is an empty one.
ALL_ROWS: dict[tuple[str, str], dict[str, str]] = {
    ("90 80 70 70", "B AS B.v < PREV(B.v), C AS C.v = PREV(C.v)"): {
        "(() | A)": "-1 -2 -3 -4", "^A": "1A1", "A^": "", "^A^": "", "A$": "4A1", "$A": "", "$A$": "",
        "A B C": "2A1 3B1 4C1", "((A) (B (C)))": "2A1 3B1 4C1",
    },
    ("90 80 70 70", "B AS B.v < PREV(B.v), C AS C.v <= PREV(C.v)"): {"B | C | A": "1A1 2B2 3B3 4C4"},
    ("90 80 70 70", "B AS B.v < PREV(B.v), C AS C.v < PREV(C.v)"): {"PERMUTE(B, C)": "2B1 3C1"},
    ("90 80 70 70", "B AS B.v <= PREV(B.v)"): {
        "B*": "-1 2B2 3B2 4B2", "B*?": "-1 -2 -3 -4", "B+": "2B1 3B1 4B1", "B+?": "2B1 3B2 4B3",
        "B?": "-1 2B2 3B3 4B4", "B??": "-1 -2 -3 -4", "B{,}": "-1 2B2 3B2 4B2", "B{,}?": "-1 -2 -3 -4",
        "B{1,}": "2B1 3B1 4B1", "B{1,}?": "2B1 3B2 4B3", "B{2,}": "2B1 3B1 4B1", "B{2,}?": "2B1 3B1",
        "B{5,}": "", "B{5,}?": "", "B{,1}": "-1 2B2 3B3 4B4", "B{,1}?": "-1 -2 -3 -4",
        "B{,2}": "-1 2B2 3B2 4B3", "B{,2}?": "-1 -2 -3 -4", "B{,5}": "-1 2B2 3B2 4B2",
        "B{1,1}": "2B1 3B2 4B3", "B{1,1}?": "2B1 3B2 4B3", "B{1,5}": "2B1 3B1 4B1",
        "B{1,5}?": "2B1 3B2 4B3", "B{5,7}": "", "B{1}": "2B1 3B2 4B3", "B{1}?": "2B1 3B2 4B3",
        "B{2}": "2B1 3B1", "B{2}?": "2B1 3B1", "B{5}": "", "B{5}?": "",
    },
    ("90 80 70 70", FALLS): {
        "()* | B": "-1 -2 -3 -4", "()+ | B": "-1 -2 -3 -4", "(){5,} | B": "-1 -2 -3 -4",
        "B | ()*": "-1 2B2 3B3 -4", "(B ()*)*": "-1 2B2 3B2 -3", "(B ()*)*?": "-1 -2 -3 -4",
        "^* | B": "-1 -2 -3 -4", "^+ | B": "-1 2B2 3B3", "^* A B": "1A1 2B1", "$* | B": "-1 -2 -3 -4",
        "$+ | B": "2B1 3B2", "B A $+": "3B1 4A1", "B*": "-1 2B2 3B2 -3", "B+": "2B1 3B1",
    },
    ("90 80 70 80 90 50 40 60", V): {
        "A B+ C+": "1A1 2B1 3B1 4C1 5C1 6A2 7B2 8C2", "A {- B+ -} C+": "1A1 4C1 5C1 6A2 8C2",
        "{- A -} {- B+ -} C+": "4C1 5C1 8C2", "A {- {- B+ -} C+ -}": "1A1 6A2", "{- A B+ C+ -}": "",
        "A B+ {- ()* -} C+": "1A1 2B1 3B1 4C1 5C1 6A2 7B2 8C2", "A {- B -}+ {- C -}+": "1A1 6A2",
        "A {- B -}* {- C -}*": "1A1 6A2", "A {- B -}{1,2} {- C -}{1,2}": "1A1 6A2",
        "A {- C -}{2,3} {- B -}{2,3}": "3A1",
    },
    ("1 1", "X AS v = A.v"): {"(A | B)* X": "1A1 2X1"},
    ("1 1", "X AS v = B.v"): {"(A | B)* X": "1B1 2X1"},
    ("1 2 3 4 5 6", "X AS v = PREV(LAST(A.v), 3) + FIRST(A.v) + PREV(LAST(B.v), 2)"): {
        "(A | B)* X": "1B1 2A1 3A1 4A1 5B1 6X1"
    },
    ("1 " * 20, "A AS v = 1, B AS v = 2"): {"(A+)+ B": ""},
    ("0 1 2 1", "A AS A.v > 0, B AS B.v < 2, C AS true"): {
        "PERMUTE(A, B C??, B)": "1B1 2C1 3A1 4B1", "PERMUTE(A, B C?, B)": "1B1 2C1 3A1 4B1",
    },
    ("1 2 3 4 5", "A AS true, B AS true"): {
        "PERMUTE(A, B)": "1A1 2B1 3A2 4B2", "PERMUTE(B, A)": "1B1 2A1 3B2 4A2",
    },
    ("10 20 15 12 18 25", "A AS false, B AS true"): {"(A??)* B": "1B1 2B2 3B3 4B4 5B5 6B6"},
    ("1 1 10", "A AS v < 5, B AS v > AVG(A.v) * 3"): {"A+ B": "1A1 2A1 3B1"},
    ("1 2 3 10", "A AS SUM(A.v) < 100, B AS v = 10"): {"A+ B": "1A1 2A1 3A1 4B1"},
    ("4 6 2", "A AS v >= AVG(A.v) AND v >= FIRST(A.v)"): {"A+": "1A1 2A1 3A2"},
    ("10 20 30 40 50 60", "A AS SUM(A.v) < 70, B AS true"): {
        "A B A": "1A1 2B1 3A1", "(A B)+": "1A1 2B1 3A1 4B1 5A2 6B2",
    },
    ("10 20 30 40 50 60", "A AS COUNT(A.v) <= 2, B AS true, C AS v = 30"): {"(A B){1,2} C": "1A1 2B1 3C1"},
    ("2 4 6 3 20", "A AS v >= FIRST(A.v) AND SUM(A.v) < 50, B AS v > 10"): {"A+ B": "1A1 2A1 3A1 4A1 5B1"},
    ("1 2 9 10", "A AS v < 5, B AS v > SUM(A.v) AND v > FIRST(A.v)"): {"A+ B+": "1A1 2A1 3B1 4B1"},
    ("8 11 -2", "A AS true, B AS MIN(B.v) > 0"): {"A{1,2} B+": "1A1 2B1"},
    ("5 5 5 -1 9", "A AS true, B AS MIN(B.v) > 0"): {"A{1,3} B{2}": "1A1 2B1 3B1"},
    ("5 7 6 9 2", "B AS v > LAST(A.v)"): {"A B": "1A1 2B1 3A2 4B2"},
    ("1 3 5 2 8", "B AS v > FIRST(A.v)"): {"A B B": "1A1 2B1 3B1"},
    ("1 3 5 2 8", "B AS v > FIRST(v)"): {"A B": "1A1 2B1 4A2 5B2"},
    ("1 3 5 2 8", "B AS v > LAST(B.v)"): {"A B+": ""},
    ("1 - 2 3 - 4", "A AS v > 0"): {"A+": "1A1 3A2 4A2 6A3"},
    ("1 - 2 3 - 4", "A AS v IS NULL"): {"A+": "2A1 5A2"},
    ("1 - 2 3 - 4", "A AS v > PREV(v)"): {"A+": "4A1"},
}  # fmt: skip

# Rows as letters, each of which is a variable, and the lengths of the matches of each pattern.
LENGTHS: dict[str, dict[str, list[int]]] = {
    "aaaaa": {
        "(A*)*": [5], "(A+)+": [5], "(A|A A)+": [5], "A{2,4}": [4], "(A|A){5}": [5], "B{0,3}": [0] * 5,
        "^ A+": [5], "A+ $": [5], "^ A{2} $": [],
    },
    "aaab": {
        "A{0,3} B": [4], "(A+)+ B": [4], "A{2,} B": [4], "A{1,3}": [3], "A{1,3}?": [1, 1, 1], "A+? B": [4],
    },
    "abcd": {"(A|A B)(C|B C D)": [4]},
    "aaa": {"(A{0,1}){3} A{3}": [3], "A* A* A*": [3], "B*": [0, 0, 0]},
    "aaaa": {"(A{0,1}){4} A{4}": [4], "(A+)+ B": []},
    "b": {"A* B": [1]},
    "aab": {"(A|A B) B{0,1}": [1, 2], "A{1,2} A{1,2} B": [3], "A+ A B": [3], "B*": [0, 0, 1]},
    "abab": {"(A B){2}": [4], "(A B)+": [4], "(A|B)+": [4]},
    "ab": {"(A{0,1} B)|(A B)": [2], "(A|A B)": [1], "A B{0,1} B": [2]},
    "aa": {"A{0,1} A{0,1} A{0,1}": [2]},
    "a": {"((A))": [1]},
    "abac": {"(A B|A C)+": [4]},
    "aabaaa": {
        "A": [1] * 5, "A+": [2, 3], "A*": [2, 0, 3], "A A": [2, 2], "A{2}": [2, 2], "A{3}": [3],
        "A{2,3}": [2, 3],
        "A{1,}": [2, 3], "A{,2}": [2, 0, 2, 1], "A?": [1, 1, 0, 1, 1, 1], "A B?": [1, 2, 1, 1, 1],
        "A (B A)?": [1, 3, 1, 1], "A B": [2], "B A": [2], "A B A": [3], "A* B": [3], "A+ B A+": [6],
        "A | B": [1] * 6, "(A)(B)(A)": [3], "A ()": [1] * 5, "A ()*": [1] * 5, "A | ()": [1, 1, 0, 1, 1, 1],
    },
    "bacab": {
        "PERMUTE(A, B)": [2, 2], "(A B) | (B A)": [2, 2], "PERMUTE(A, B, C)": [3], "PERMUTE(A B, C)": [3],
        "PERMUTE(A, B)+": [2, 2],
    },
}  # fmt: skip

PRICES = "50 60 49 40 35 45 45 45 43 47 52 70 60"  # of ISO/IEC 19075-5, 4.3
WAVE = "40 55 61 67 79 40 49 64 76 79 61 49 79 79 46 40 46 76 73 70"
MEANS = f"PATTERN (A B+ C+) SUBSET U = (A, B, C) DEFINE {V}"
MEASURED = "MATCH_NUMBER() AS m, A.v AS s, {0}LAST(B.v) AS b, {0}LAST(C.v) AS e, {0}AVG(U.v) AS a"
SKIPS = f"PATTERN (A B+ C+ D?) SUBSET U = (C, D) DEFINE {V}, D AS false"
FROM_4 = [(1, 4), (4, 6)]
TRUE = "PATTERN (A+) DEFINE A AS true"

# Rows, measures, the rest of the clause, and what the measures are.
MEASURES: list[tuple[str, str, str, list[tuple[Any, ...]]]] = [
    (PRICES, MEASURED.format(""), MEANS, [(1, 60, 35, 45, 45.8), (2, 45, 43, 70, 51.4)]),
    (
        PRICES,
        MEASURED.format("FINAL "),
        f"ALL ROWS PER MATCH {MEANS}",
        [(1, 60, 35, 45, 45.8)] * 5 + [(2, 45, 43, 70, 51.4)] * 5,
    ),
    (
        PRICES,
        "MATCH_NUMBER() AS m, FIRST(A.v) AS f, LAST(A.v) AS l",
        "PATTERN (A*) DEFINE A AS A.v > PREV(A.v)",
        [(at, *{2: (60, 60), 6: (45, 45), 10: (47, 70)}.get(at, (None, None))) for at in range(1, 12)],
    ),
    (
        PRICES,
        "MATCH_NUMBER() AS m, LAST(v) AS v",
        "ALL ROWS PER MATCH OMIT EMPTY MATCHES PATTERN (A*) DEFINE A AS A.v > PREV(A.v)",
        [(2, 60), (6, 45), (10, 47), (10, 52), (10, 70)],
    ),
    (
        "10 20 30 40 50",
        ", ".join(f"FINAL {of}(A.v, {at}) AS {of[0]}{at}" for of in ("FIRST", "LAST") for at in range(4)),
        "PATTERN (A B A C A) DEFINE A AS v IN (10, 30, 50), B AS v = 20, C AS v = 40",
        [(10, 30, 50, None, 50, 30, 10, None)],
    ),
    (
        "10 20 30 40 50",
        ", ".join(f"COUNT({name}.v) AS {name}" for name in "ABCDS"),
        """PATTERN (A+ (B+ | C+) D) SUBSET S = (B, D)
        DEFINE A AS v <= 20, B AS v IN (30, 40), C AS v = 99, D AS v = 50""",
        [(2, 2, 0, 1, 3)],
    ),
    *(
        ("90 80 70 80 70 80", "FIRST(id) AS f, LAST(id) AS l", f"AFTER MATCH SKIP {skip} {SKIPS}", wanted)
        for skip, wanted in {
            "PAST LAST ROW": [(1, 4)],
            "TO NEXT ROW": [(1, 4), (2, 4), (4, 6)],
            **dict.fromkeys(["TO FIRST C", "TO LAST B", "TO B", "TO U"], FROM_4),
        }.items()
    ),
    *(
        ("1 2 3 4", "LAST(id) AS l", f"{skip} PATTERN (A A) DEFINE A AS true", wanted)
        for skip, wanted in {
            "AFTER MATCH SKIP TO NEXT ROW": [(2,), (3,), (4,)],
            "AFTER MATCH SKIP TO LAST A": [(2,), (3,), (4,)],
            "": [(2,), (4,)],
        }.items()
    ),
    (
        WAVE,
        "Onset.id AS s",
        """AFTER MATCH SKIP TO LAST Climb PATTERN (ONSET DIP+ CLIMB+)
        DEFINE dip AS DIP.v < PREV(Dip.v), Climb AS climb.v > PREV(CLIMB.v)""",
        [(5,), (10,), (14,)],
    ),
    (
        "5 7 2 9 4",
        "MATCH_NUMBER() AS m, COUNT(*) AS n",
        "AFTER MATCH SKIP TO NEXT ROW PATTERN (R Z* B) DEFINE R AS R.v = 5, B AS B.v > R.v",
        [(1, 4)],
    ),
    (
        "40 55 61 67 79 40 49 64 76 79",
        "FIRST(id) AS f, COUNT(*) AS n",
        "PATTERN (RISE+ (PEAK DROP)) DEFINE RISE AS v > PREV(v), DROP AS v < PREV(v)",
        [(2, 5)],
    ),
    (
        "90 80 70 80",
        "LAST(id) AS i, CLASSIFIER(U) AS u, CLASSIFIER(W) AS w",
        """ALL ROWS PER MATCH PATTERN ((L | H) A) SUBSET U = (L, H), W = (A, L, H)
        DEFINE A AS A.v = 80, L AS L.v < 80, H AS H.v > 80""",
        [(1, "H", "H"), (2, "H", "A"), (3, "L", "L"), (4, "L", "A")],
    ),
    *(
        ("10 20 30", f"{measure} AS x", f"ALL ROWS PER MATCH {TRUE}", [(value,) for value in wanted])
        for measure, wanted in {
            **{key: [10, 20, 30] for key in ["v", "LAST(v)", "RUNNING LAST(v)"]},
            **dict.fromkeys(["FIRST(v)", "RUNNING FIRST(v)", "FINAL FIRST(v)", "FINAL LAST(v, 2)"], [10] * 3),
            "FINAL LAST(v)": [30] * 3,
            "FIRST(v, 2)": [None, None, 30],  # Oracle, too; of Trino it is 30 three times
            **dict.fromkeys(["LAST(v, 10)", "FIRST(v, 10)", "PREV(FIRST(v), 10)"], [None] * 3),
            **dict.fromkeys(["PREV(FIRST(v, 10), 2)", "PREV(LAST(v, 10), 2)"], [None] * 3),
            "PREV(v)": [None, 10, 20],
            "PREV(v, 2)": [None, None, 10],
            "v - PREV(v)": [None, 10, 10],
            "PREV(FINAL LAST(v))": [20] * 3,
            "LAST(v, 1)": [None, 10, 20],
        }.items()
    ),
    *(
        ("10 20 30 30 40", f"PREV(B.v, {back}) AS x", "PATTERN (A B) DEFINE B AS B.v = PREV(B.v)", [(value,)])
        for back, value in {4: None, 3: 10, 2: 20}.items()
    ),
    (
        "90 80 60",
        "CAST(lower(LAST(CLASSIFIER())) || '_label' AS varchar(7)) AS x",
        "ALL ROWS PER MATCH PATTERN (A B+) DEFINE B AS B.v + 10 < abs(PREV(B.v))",
        [("a_label",), ("b_label",)],
    ),
    (
        "90 80 70 100 200",
        "CLASSIFIER() AS c, FINAL LAST(CLASSIFIER()) AS l, "
        + ", ".join(
            f"{how} LAST({of}v) AS x{at}{how}"
            for at, of in enumerate(["", "A.", "B.", "C."])
            for how in ("RUNNING", "FINAL")
        ),
        f"ALL ROWS PER MATCH PATTERN (A B+ C+) DEFINE {V}",
        [
            ("A", "C", 90, 200, 90, 90, None, 70, None, 200),
            ("B", "C", 80, 200, 90, 90, 80, 70, None, 200),
            ("B", "C", 70, 200, 90, 90, 70, 70, None, 200),
            ("C", "C", 100, 200, 90, 90, 70, 70, 100, 200),
            ("C", "C", 200, 200, 90, 90, 70, 70, 200, 200),
        ],
    ),
    *(
        (
            "100 200 300 400",
            f"{measure} AS x",
            f"AFTER MATCH SKIP TO NEXT ROW {TRUE}",
            [(one,) for one in wanted],
        )
        for measure, wanted in {
            "FIRST(A.v) IN (300, LAST(A.v))": [False, False, True, True],
            "CLASSIFIER() IN ('X', lower(CLASSIFIER()))": [False] * 4,
            "MATCH_NUMBER() IN (0, MATCH_NUMBER())": [True] * 4,
        }.items()
    ),
    *(
        (
            "10 20 -5 15",
            f"{measure} AS x",
            "ALL ROWS PER MATCH PATTERN (A+) DEFINE A AS v > 0",
            [(one,) for one in wanted],
        )
        for measure, wanted in {
            "RUNNING SUM(A.v) + FINAL SUM(A.v)": [40, 60, 30],
            "1 + RUNNING SUM(A.v)": [11, 31, 16],
            "CASE WHEN FINAL COUNT(*) > 1 THEN RUNNING COUNT(*) END": [1, 2, None],
        }.items()
    ),
    (
        "10 20 -5 15",
        "COUNT(*) AS n",
        "AFTER MATCH SKIP TO B PATTERN (A+ B) DEFINE A AS v > 0, B AS v <= 0",
        [(3,)],
    ),
    (
        "10 16 13 9",
        "AVG(A.v) AS a",
        "ALL ROWS PER MATCH PATTERN (A+) DEFINE A AS A.v >= AVG(A.v)",
        [(10,), (13,), (13,), (9,)],
    ),
    *(
        (
            rows,
            "COUNT(*) AS n",
            f"PATTERN ({'B* A+' if 'B.' in of else 'A+'}) DEFINE A AS {of}",
            [(one,) for one in wanted],
        )
        for rows, of, wanted in [
            ("10 20 5", "v >= AVG(v)", [2, 1]),
            ("10 - 20", "COALESCE(SUM(A.v), 0) < 25", [2, 1]),
            ("- 5 -", "COUNT(A.v) <= 1", [3]),
            ("- -", "SUM(A.v) IS NULL", [2]),
            ("5 7 9", "COUNT(B.v) = 0 AND SUM(B.v) IS NULL, B AS v > 100", [3]),
            ("5 3 9", "MIN(A.v) >= 3", [3]),
            ("5 3 9", "MAX(A.v) < 9", [2]),
            ("1 2 3", "AVG(A.v) <= 2.0", [3]),
            ("5 7 9 2", "COUNT(*) <= 2", [2, 2]),
            ("5 3 8 1", "SUM(A.v) < 20 AND MAX(A.v) < 9", [4]),
            ("9 3 7 1", "MIN(A.v) <= LAST(A.v) AND COUNT(A.v) <= 3", [3, 1]),
            ("3 4 5 1", "v >= FIRST(v) AND AVG(A.v) >= 3", [3]),
            ("1 2 3", "FIRST(v, 1) IS NULL OR FIRST(v, 1) = 2", [3]),
            ("1 2 3", "LAST(v, 1) IS NULL OR LAST(v, 1) < v", [3]),
            ("1 2 3 4", "FIRST(A.v, 2) IS NULL OR FIRST(A.v, 2) = 3", [4]),
        ]
    ),
    (
        "1 0 0 1 0 1",
        "A.id AS a, B.id AS b, CLASSIFIER() AS c, COUNT(B.id) AS n, SUM(B.id) AS s, B.id - A.id AS d",
        "PATTERN (A B+) DEFINE A AS v = 1, B AS v = 0",
        [(1, 3, "B", 2, 5, 2), (4, 5, "B", 1, 5, 1)],
    ),
    (
        "1 0 0 1 0 1",
        "A.id AS a, B.id AS b, COUNT(*) AS n, SUM(id) AS s, FINAL COUNT(*) AS f",
        "ALL ROWS PER MATCH PATTERN (A B+) DEFINE A AS v = 1, B AS v = 0",
        [(1, None, 1, 1, 3), (1, 2, 2, 3, 3), (1, 3, 3, 6, 3), (4, None, 1, 4, 2), (4, 5, 2, 9, 2)],
    ),
    (
        "3 -7 5 -1",
        "FIRST(abs(A.v)) AS f, LAST(abs(A.v)) AS l, LAST(abs(A.v), 1) AS o, FIRST(A.v * 2) AS d",
        TRUE,
        [(3, 1, 5, 6)],
    ),
    (
        "1 100 3 200 5",
        "FIRST(A.v * 1000) AS a, LAST(B.v * 1000) AS b, LAST(A.v || 'x') AS s",
        "PATTERN ((A B)+ A) DEFINE A AS v < 50, B AS v >= 50",
        [(1000, 200_000, "5x")],
    ),
    (
        "- 10 - 20",
        "FIRST(A.v) AS f, FIRST(CASE WHEN A.v IS NULL THEN 99 END) AS n, LAST(A.v * 2) AS l",
        TRUE,
        [(None, 99, 40)],
    ),
    ("-5 3 10", "COUNT(*) AS n, FIRST(id) AS f", "PATTERN (A B+) DEFINE B AS v > FIRST(-A.v)", [(2, 2)]),
    ("-5 3 10", "COUNT(*) AS n, FIRST(id) AS f", "PATTERN (A B+) DEFINE B AS v > FIRST(A.v)", [(3, 1)]),
    ("1 - 2 3 - 4", "LAST(v) AS l, FIRST(v) AS f", "PATTERN (A A)", [(None, 1), (3, 2), (4, None)]),
    ("1 - 2 3 - 4", "COUNT(*) AS n, COUNT(v) AS v, SUM(v) AS s", "PATTERN (A{6})", [(6, 4, 10)]),
    *(
        (
            "1 2 1 3 1 2",
            f"{measure} AS x",
            f"{rows} PATTERN (A B C) SUBSET U = (A, B) DEFINE A AS v = 1, C AS v = 1",
            wanted,
        )
        for measure, rows, wanted in [
            ("CLASSIFIER(U)", "ALL ROWS PER MATCH", [("A",), ("B",), ("B",)]),
            ("CLASSIFIER(U)", "", [("B",)]),
            ("LAST(CLASSIFIER(U), 1)", "ALL ROWS PER MATCH", [(None,), ("A",), ("A",)]),
        ]
    ),
]

# Rows, the rest of a clause, and the error that it is.
ERRORS = [
    (
        "90 80 70 80 70 80",
        f"AFTER MATCH SKIP TO A {SKIPS}",
        "must go forward, got the first row of the match",
    ),
    ("90 80 70 80 70 80", f"AFTER MATCH SKIP TO D {SKIPS}", "must have a row to go to"),
    ("1 2", "AFTER MATCH SKIP TO FIRST A PATTERN (A A) DEFINE A AS true", "must go forward"),
    ("1 2", "PATTERN (A B) DEFINE B AS v > LAST(FIRST(v))", "is not supported"),
    ("1 2", "PATTERN (A B) DEFINE B AS v > LAST(v, id)", "is not supported"),
    ("1 2", "PATTERN (A B) DEFINE B AS v > LAST(A.v + B.v)", "of several variables"),
    ("1 2", "PATTERN (A+) DEFINE A AS SUM(PREV(A.v)) > 0", "is not supported"),
    ("1 2", "PATTERN (A+) DEFINE A AS FINAL SUM(A.v) > 0", "in DEFINE is not supported; leave out FINAL"),
    ("1 2", "PATTERN (A+) DEFINE A AS SUM(SUM(A.v)) > 0", "is not supported"),
    ("1 2", "PATTERN (A+) DEFINE A AS SUM(DISTINCT A.v) > 0", "is not supported"),
    ("1 2", "PATTERN (A B) DEFINE B AS MATCH_NUMBER() = 1", r"MATCH_NUMBER\(\) in DEFINE is not supported"),
    ("1 2", "PATTERN (A{0,0})", "must repeat at least once"),
    ("1 2", "PATTERN ($)", "must have a variable"),
    ("1 2", "PATTERN (A B) DEFINE B AS B.v > nosuch.v", "must name variables of PATTERN, got nosuch"),
]


# Whole clauses, and the errors that they are.
REFUSED = {
    "MEASURES COUNT(*) AS n PATTERN (A)": "MATCH_RECOGNIZE without ORDER BY is not supported",
    "PARTITION BY id % 2 ORDER BY ts PATTERN (A)": "PARTITION BY id % 2 is not supported",
    "ORDER BY ts DESC PATTERN (A)": "ORDER BY ts DESC in MATCH_RECOGNIZE is not supported",
    "ORDER BY ts ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN (A)": "WITH UNMATCHED ROWS is not supported",
    "ORDER BY ts ONE ROW PER MATCH OMIT EMPTY MATCHES PATTERN (A)": "must be valid SQL: .* 'OMIT'",
    "ORDER BY ts PATTERN (A) DEFINE AUTO": "DEFINE must have a condition for each variable",
    "ORDER BY ts PATTERN (A B) SUBSET A = (B)": "SUBSET must have a new name, got A",
    **{
        f"ORDER BY ts MEASURES {measure} AS x PATTERN (A B)": "is not supported"
        for measure in [
            *("SUM(v) FILTER (WHERE v > 1)", "COUNT(DISTINCT v)", "array_agg(A.v)", "SUM(A.v + B.v)"),
            *("SUM(CASE WHEN CLASSIFIER() = 'A' THEN v END)", "PREV(CLASSIFIER())", "row_number() OVER ()"),
            *("FIRST(v, NULL)", "LAST(v, -1)", "FIRST(A.v + B.v)", "FIRST(LAST(v))"),
        ]
    },
}


def letters(pattern: str) -> str:
    """Return DEFINE, by which each variable is a row of its letter."""
    names = sorted({letter for letter in pattern.replace("PERMUTE", "") if letter.isalpha()})
    return "DEFINE " + ", ".join(f"{name} AS {name}.c = '{name.lower()}'" for name in names)


def cases() -> Iterator[tuple[str, str, list[tuple[Any, ...]]]]:
    """Yield rows, clauses and matches."""
    for (rows, define), patterns in ALL_ROWS.items():
        for pattern, shown in patterns.items():
            wanted = [
                (None, None, int(one[1:])) if one[0] == "-" else (int(one[0]), one[1], int(one[2:]))
                for one in shown.split()
            ]
            defined = [one for one in re.split(r", (?=\w AS )", define) if one[0] in pattern]
            of = f"DEFINE {', '.join(defined)}" if defined else ""
            yield rows, f"MEASURES {LABELS} ALL ROWS PER MATCH PATTERN ({pattern}) {of}", wanted
    for rows, lengths in LENGTHS.items():
        for pattern, all_ in lengths.items():
            clause = f"MEASURES COUNT(*) AS n PATTERN ({pattern}) {letters(pattern)}"
            yield rows, clause, [(one,) for one in all_]
    for rows, measures, rest, matches in MEASURES:
        yield rows, f"MEASURES {measures} {rest}", matches


@pytest.mark.promises(
    "Flink SQL",
    "different",
    "MATCH_RECOGNIZE without AFTER MATCH SKIP",
    note="skips past the last row, as the standard says; Flink goes to the next row",
)
@pytest.mark.promises(
    "Flink SQL",
    "different",
    "FIRST(x, n) of the rows up to this one",
    note="null as long as there are no n + 1 of them, as in Oracle; Trino looks at all rows of the match",
)
def test_the_answers_of_trino_and_duckdb(spark: SparkSession) -> None:
    all_ = list(cases())
    found = match_cases.asked(spark, [(rows, clause) for rows, clause, _ in all_])
    wrong = [(*case, rows) for case, rows in zip(all_, found, strict=True) if rows != case[2]]
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[:3]}"


@pytest.mark.promises("Flink SQL", "refused", "MATCH_NUMBER() in DEFINE", note="use it in MEASURES")
def test_the_errors_of_trino_and_duckdb(spark: SparkSession) -> None:
    found = match_cases.asked(spark, [(rows, f"MEASURES COUNT(*) AS n {rest}") for rows, rest, _ in ERRORS])
    for (_, rest, message), error in zip(ERRORS, found, strict=True):
        with pytest.raises(ValueError, match=message):
            raise error if isinstance(error, ValueError) else AssertionError(f"{rest} gave {error}")


@pytest.mark.promises(
    "Flink SQL", "refused", "MATCH_RECOGNIZE without ORDER BY", note="write ORDER BY with the time column"
)
@pytest.mark.promises(
    "Flink SQL", "refused", "expressions in PARTITION BY of MATCH_RECOGNIZE", note="make columns in a view"
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "aggregates with DISTINCT or FILTER, and others, in MATCH_RECOGNIZE",
    note="there are COUNT, SUM, MIN, MAX and AVG; write CASE in them, or query all rows of the matches",
)
@pytest.mark.parametrize("clause", REFUSED)
def test_what_trino_and_duckdb_have_is_refused_by_name(clause: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[clause]):
        match_cases.read(clause)
