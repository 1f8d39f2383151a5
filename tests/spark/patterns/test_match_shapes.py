"""Shapes that DuckDB and Trino look for with MATCH_RECOGNIZE, and what they answer.

The cases are those of DuckDB's test/sql/match_recognize, many of which Oracle answered, and of Trino's
TestAggregationsInRowPatternMatching, beside those of test_match_oracles.py: each reduced to its rows, its
measures, the rest of the clause, and its matches.
"""

from __future__ import annotations

from typing import Any

import match_cases
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap.spark._sql.read.statements import only_query
from timerheap.spark._sql.rewrite.meaning import meaning_of

pytestmark = pytest.mark.spark

D = "DOWN AS v < PREV(v), UP AS v > PREV(v)"
V = f"PATTERN (S DOWN+ UP+) DEFINE {D}"
LABELS, STARTS = "LAST(id); CLASSIFIER()", "MATCH_NUMBER(); FIRST(id); COUNT(*)"
ALL = "ALL ROWS PER MATCH "
NEXT_ROW = "AFTER MATCH SKIP TO NEXT ROW "
A_B, A_B_C = "DEFINE A AS c = 'a', B AS c = 'b'", "DEFINE A AS c = 'a', B AS c = 'b', C AS c = 'c'"
ANY = "DEFINE A AS c IN ('a', 'b', 'c')"
ANY_AB = f"{ANY}, B AS c IN ('a', 'b', 'c')"
TICKS = "10 8 6 9 12 12 7 5 9 9 3 15 / 5 4 4 6 - 7"
EVENTS = "aabac / bbb / a"
WAVE = "40 55 61 67 79 40 49 64 76 79 61 49 79 79 46 40 46 76 73 70"
TIERS = "20l 30l 60m 150h 10l 70m 80m 120h 200h 5l"
LMH = "DEFINE A AS c = 'l', B AS c = 'm', C AS c = 'h'"
SIGN_INS = (  # minutes; granted or denied
    "800g 847d 859d 868d 881d 898d 902g / 960d 966d 972d 978d 982g / 552d 564d 573d 587d 641d 652d 658g / "
    "423d 431d 439d 446d 454d 462d 471d 478g"
)
PRICES = (
    "592 586 572 556 546 564 576 600 596 / 244 240 236 248 256 264 / "
    "132 126 120 114 121 128 136 130 124 118 124 134 144"
)
VISITS = "0s 0p 0p 2c / 0p 0p 1c 1x / 0p 1c / 0p 0p 0c / 0p 0p 3c"
PUMPS = "62 62 62 66 71 77 84 89j 83 79 / 62 67 72 77 83 80 / 62 65 69 74 72j"
WARM = "WARM AS v > PREV(v), JOLT AS c = 'j'"
STAGES = "0o 0p 0v 1s 2s / 0o 0e 0x / 0p 1s / 0o 3s 0o"
TENS = "10 20 30 40 50 60"
ONES = "1 1 1 1 1 1 / 10 10 10 / 100 100 100"
KINDS = "10a 20b 30a 40c 50a 60b"
RANGES = " ".join(f"{low}{'c' * high}" for low, high in [(1, 3), (2, 5), (6, 7), (7, 9), (12, 13)])

# Rows; measures; the rest of the clause; matches, with the number of the partition if there are several.
CASES: list[tuple[str, str, str, str]] = [
    # Checked against Oracle
    (TICKS, "FIRST(id); LAST(DOWN.id); LAST(id); COUNT(*)", V, "1 1 3 5 5 | 1 6 8 9 4 | 1 10 11 12 3"),
    (TICKS, "FIRST(id); COUNT(*)", "PATTERN (A+ B B) DEFINE A AS v > 0, B AS v > 0", "1 1 12 | 2 1 4"),
    (
        TICKS, "FIRST(id); COUNT(*)", "PATTERN (A* B) DEFINE A AS v >= 9, B AS v < 9",
        "1 1 2 | 1 3 1 | 1 4 4 | 1 8 1 | 1 9 3 | 2 1 1 | 2 2 1 | 2 3 1 | 2 4 1 | 2 6 1",
    ),
    (
        EVENTS, "MATCH_NUMBER(); CLASSIFIER(); COUNT(*)", ALL + "PATTERN (Z*) DEFINE Z AS c = 'z'",
        "1 1 - 0 | 1 2 - 0 | 1 3 - 0 | 1 4 - 0 | 1 5 - 0 | 2 1 - 0 | 2 2 - 0 | 2 3 - 0 | 3 1 - 0",
    ),
    (
        EVENTS, "MATCH_NUMBER(); COUNT(*)", "PATTERN (Z*) DEFINE Z AS c = 'z'",
        "1 1 0 | 1 2 0 | 1 3 0 | 1 4 0 | 1 5 0 | 2 1 0 | 2 2 0 | 2 3 0 | 3 1 0",
    ),
    (EVENTS, "FIRST(id); COUNT(*)", "PATTERN (A B?) " + A_B, "1 1 1 | 1 2 2 | 1 4 1 | 3 1 1"),
    *(
        (EVENTS, LABELS, f"{ALL} PATTERN (({first} | {other})+) {ANY_AB}",
         f"1 1 {first} | 1 2 {first} | 1 3 {first} | 1 4 {first} | 1 5 {first} | "
         f"2 1 {first} | 2 2 {first} | 2 3 {first} | 3 1 {first}")
        for first, other in ("AB", "BA")
    ),
    (EVENTS, STARTS, "PATTERN (A A) " + ANY, "1 1 1 2 | 1 2 3 2 | 2 1 1 2"),
    (
        EVENTS, STARTS, NEXT_ROW + "PATTERN (A A) " + ANY,
        "1 1 1 2 | 1 2 2 2 | 1 3 3 2 | 1 4 4 2 | 2 1 1 2 | 2 2 2 2",
    ),
    *(
        (TICKS, STARTS, f"AFTER MATCH SKIP TO {to} {V}",
         "1 1 1 5 | 1 2 6 4 | 1 3 10 3")
        for to in ("LAST DOWN", "FIRST UP")
    ),
    (
        TICKS, "LAST(id); COUNT(*); FINAL COUNT(*); MAX(v); FINAL MAX(v)",
        ALL + "PATTERN (A+) DEFINE A AS v > 0",
        "1 1 1 12 10 15 | 1 2 2 12 10 15 | 1 3 3 12 10 15 | 1 4 4 12 10 15 | 1 5 5 12 12 15 | "
        "1 6 6 12 12 15 | 1 7 7 12 12 15 | 1 8 8 12 12 15 | 1 9 9 12 12 15 | 1 10 10 12 12 15 | "
        "1 11 11 12 12 15 | 1 12 12 12 15 15 | 2 1 1 4 5 6 | 2 2 2 4 5 6 | 2 3 3 4 5 6 | 2 4 4 4 6 6 | "
        "2 6 1 1 7 7",
    ),
    (
        TICKS, "FIRST(v, 0); FIRST(v, 1); LAST(v, 0); LAST(v, 1)", "PATTERN (A{4}) DEFINE A AS v > 0",
        "1 10 8 9 6 | 1 12 12 5 7 | 1 9 9 15 3 | 2 5 4 6 4",
    ),
    (
        TICKS, "LAST(id); PREV(v); NEXT(v)", ALL + "PATTERN (A+) DEFINE A AS v > 0",
        "1 1 - 8 | 1 2 10 6 | 1 3 8 9 | 1 4 6 12 | 1 5 9 12 | 1 6 12 7 | 1 7 12 5 | 1 8 7 9 | 1 9 5 9 | "
        "1 10 9 3 | 1 11 9 15 | 1 12 3 - | 2 1 - 4 | 2 2 5 4 | 2 3 4 6 | 2 4 4 - | 2 6 - -",
    ),
    (
        TICKS, "FIRST(id); COUNT(*)", "PATTERN (A+) DEFINE A AS v > PREV(v, 2)",
        "1 4 3 | 1 9 2 | 1 12 1 | 2 4 1 | 2 6 1",
    ),
    (
        TICKS, "LAST(id); MATCH_NUMBER(); CLASSIFIER()", ALL + V,
        "1 1 1 S | 1 2 1 DOWN | 1 3 1 DOWN | 1 4 1 UP | 1 5 1 UP | 1 6 2 S | 1 7 2 DOWN | 1 8 2 DOWN | "
        "1 9 2 UP | 1 10 3 S | 1 11 3 DOWN | 1 12 3 UP",
    ),
    (
        TICKS, "LAST(id); MATCH_NUMBER(); CLASSIFIER(); FINAL COUNT(*)",
        ALL + V.replace("S D", "{- S -} D"),
        "1 2 1 DOWN 5 | 1 3 1 DOWN 5 | 1 4 1 UP 5 | 1 5 1 UP 5 | 1 7 2 DOWN 4 | 1 8 2 DOWN 4 | 1 9 2 UP 4 | "
        "1 11 3 DOWN 3 | 1 12 3 UP 3",
    ),
    (
        TICKS, "FIRST(id); LAST(DU.id); COUNT(*)", V.replace("DEFINE", "SUBSET DU = (DOWN, UP) DEFINE"),
        "1 1 5 5 | 1 6 9 4 | 1 10 12 3",
    ),
    (EVENTS, STARTS, "PATTERN (A+? B) " + ANY_AB, "1 1 1 2 | 1 2 3 2 | 2 1 1 2"),
    *(
        (EVENTS, STARTS, rest,
         "1 1 1 1 | 1 2 2 1 | 1 3 3 1 | 1 4 4 1 | 1 5 5 1 | 2 1 1 1 | 2 2 2 1 | 2 3 3 1 | 3 1 1 1")
        for rest in (
            f"PATTERN (A*? B) {ANY_AB}",
            f"PATTERN (A{{1,3}}?) {ANY}",
            f"PATTERN (A?? B) {ANY_AB}",
            "PATTERN (A)",
        )
    ),
    (EVENTS, STARTS, "PATTERN (PERMUTE(A, B)) " + A_B, "1 1 2 2"),
    (
        EVENTS, LABELS, f"{ALL} PATTERN (PERMUTE(A, B)) {ANY_AB}",
        "1 1 A | 1 2 B | 1 3 A | 1 4 B | 2 1 A | 2 2 B",
    ),
    (EVENTS, LABELS, f"{ALL} PATTERN (PERMUTE(A, B, C)) {A_B_C}", "1 3 B | 1 4 A | 1 5 C"),
    (
        EVENTS, STARTS, "PATTERN (^ A+) " + ANY,
        "1 1 1 5 | 2 1 1 3 | 3 1 1 1",
    ),
    (EVENTS, STARTS, "PATTERN (^ A{2} $) " + ANY, ""),
    (EVENTS, STARTS, "PATTERN (A{2} $) " + ANY, "1 1 4 2 | 2 1 2 2"),
    (TICKS, "FIRST(id); COUNT(*)", "PATTERN (A+) DEFINE A AS v > 0", "1 1 12 | 2 1 4 | 2 6 1"),
    (
        TICKS, "FIRST(v); LAST(v); COUNT(*)", "PATTERN (A A)",
        "1 10 8 2 | 1 6 9 2 | 1 12 12 2 | 1 7 5 2 | 1 9 9 2 | 1 3 15 2 | 2 5 4 2 | 2 4 6 2 | 2 - 7 2",
    ),
    (TICKS, "COUNT(*); COUNT(v); SUM(v)", "PATTERN (A+)", "1 12 12 105 | 2 6 5 26"),
    (EVENTS, STARTS, "PATTERN (A{2,3})", "1 1 1 3 | 1 2 4 2 | 2 1 1 3"),
    (EVENTS, STARTS, "PATTERN ((A B?)+) " + A_B, "1 1 1 4 | 3 1 1 1"),
    (
        TICKS, "LAST(id); FIRST(v, 1); LAST(v, 1)", ALL + "PATTERN (A+)",
        "1 1 - - | 1 2 8 10 | 1 3 8 8 | 1 4 8 6 | 1 5 8 9 | 1 6 8 12 | 1 7 8 12 | 1 8 8 7 | 1 9 8 5 | "
        "1 10 8 9 | 1 11 8 9 | 1 12 8 3 | 2 1 - - | 2 2 4 5 | 2 3 4 4 | 2 4 4 4 | 2 5 4 6 | 2 6 4 -",
    ),
    (TICKS, "FIRST(id); LAST(DOWN.v, 0); LAST(DOWN.v, 1)", V, "1 1 6 8 | 1 6 5 7 | 1 10 3 -"),
    (
        EVENTS, "MATCH_NUMBER(); CLASSIFIER(); COUNT(*)", ALL + "PATTERN (B*) DEFINE B AS c = 'b'",
        "1 1 - 0 | 1 2 - 0 | 1 3 B 1 | 1 4 - 0 | 1 5 - 0 | 2 1 B 1 | 2 1 B 2 | 2 1 B 3 | 3 1 - 0",
    ),
    (
        EVENTS, "MATCH_NUMBER(); COUNT(*); SUM(id); LAST(id)", "PATTERN (B*) DEFINE B AS c = 'b'",
        "1 1 0 - - | 1 2 0 - - | 1 3 1 3 3 | 1 4 0 - - | 1 5 0 - - | 2 1 3 6 3 | 3 1 0 - -",
    ),
    (
        EVENTS, "FIRST(id); LAST(B.id); COUNT(B.id)", "PATTERN (A B?) DEFINE A AS c = 'a', B AS c = 'z'",
        "1 1 - 0 | 1 2 - 0 | 1 4 - 0 | 3 1 - 0",
    ),
    ("1 / 1 2 3 / 0 0", "MATCH_NUMBER(); COUNT(*)", "PATTERN (A{2})", "2 1 2 | 3 1 2"),
    (TICKS, "COUNT(*)", "PATTERN (A+) DEFINE A AS v > 100", ""),
    (
        EVENTS, "LAST(id); PREV(id, 2); NEXT(id, 2)", ALL + "PATTERN (A+)",
        "1 1 - 3 | 1 2 - 4 | 1 3 1 5 | 1 4 2 - | 1 5 3 - | 2 1 - 3 | 2 2 - - | 2 3 1 - | 3 1 - -",
    ),
    (EVENTS, "LAST(id)", ALL + "PATTERN ({- A+ -}) " + "DEFINE A AS c = 'a'", ""),
    *(
        (EVENTS, "LAST(id); MATCH_NUMBER(); CLASSIFIER()", f"{ALL} PATTERN ({pattern}) {A_B}",
         "1 2 1 A | 1 4 1 A")
        for pattern in ("A {- B -} A", "A ({- B -})+ A")
    ),
    (
        EVENTS, "FIRST(id); LAST(U.id)", "PATTERN (A+ B?) SUBSET U = (A) " + A_B,
        "1 1 2 | 1 4 4 | 3 1 1",
    ),
    (
        EVENTS, "FIRST(id); LAST(U.id, 0); LAST(U.id, 1)", "PATTERN ((A | B)+) SUBSET U = (A, B) " + A_B,
        "1 1 4 3 | 2 1 3 2 | 3 1 1 -",
    ),
    (
        EVENTS, "LAST(id); MATCH_NUMBER(); CLASSIFIER()", ALL + NEXT_ROW + "PATTERN (A A)",
        "1 1 1 A | 1 2 1 A | 1 2 2 A | 1 3 2 A | 1 3 3 A | 1 4 3 A | 1 4 4 A | 1 5 4 A | 2 1 1 A | "
        "2 2 1 A | 2 2 2 A | 2 3 2 A",
    ),
    (
        "1 2 3", "PREV(id, 9); FIRST(id, 9); LAST(id, 9)", ALL + "PATTERN (A+)", "- - - | - - - | - - -",
    ),
    (
        TICKS, "COUNT(*); MIN(v); MAX(v); SUM(v)", "PATTERN (A{3})",
        "1 3 6 10 24 | 1 3 9 12 33 | 1 3 5 9 21 | 1 3 3 15 27 | 2 3 4 5 13 | 2 3 6 7 13",
    ),
    (
        EVENTS, "FIRST(id); SUM(B.id); COUNT(B.id); MIN(B.id)",
        "PATTERN (A+ B?) DEFINE A AS c = 'a', B AS c = 'z'", "1 1 - 0 - | 1 4 - 0 - | 3 1 - 0 -",
    ),
    (
        EVENTS, "FIRST(id); SUM(U.id); COUNT(U.id)", "PATTERN ((A | B)+) SUBSET U = (A, B) " + A_B,
        "1 1 10 4 | 2 1 6 3 | 3 1 1 1",
    ),
    (
        EVENTS, LABELS, ALL + "PATTERN ((A | B)+) SUBSET U = (A, B) " + A_B,
        "1 1 A | 1 2 A | 1 3 B | 1 4 A | 2 1 B | 2 2 B | 2 3 B | 3 1 A",
    ),
    ("1 2 3", LABELS, ALL + "PATTERN ((A | A)+)", "1 A | 2 A | 3 A"),
    (
        EVENTS, "LAST(id); CLASSIFIER(); FINAL COUNT(*)", f"{ALL} PATTERN (A+ {{- B -}}) {A_B}",
        "1 1 A 3 | 1 2 A 3",
    ),
    (EVENTS, STARTS, "PATTERN (PERMUTE(A, A))", "1 1 1 2 | 1 2 3 2 | 2 1 1 2"),
    (EVENTS, STARTS, "PATTERN (PERMUTE(A+, B)) " + A_B, "1 1 1 3"),
    (
        TICKS,
        "LAST(UP.id) - FIRST(S.id); (LAST(DOWN.v) - FIRST(S.v)) + (LAST(UP.v) - LAST(DOWN.v))", V,
        "1 4 2 | 1 3 -3 | 1 2 6",
    ),
    # Aggregates and unions in conditions
    (
        "10 12 11 14 13 15 9", LABELS,
        f"""{ALL} PATTERN (S UP+ DOWN+ UP2+ DOWN+ UP+ DOWN2+)
        DEFINE {D}, UP2 AS v > MAX(UP.v), DOWN2 AS v < MIN(DOWN.v)""",
        "1 S | 2 UP | 3 DOWN | 4 UP2 | 5 DOWN | 6 UP | 7 DOWN2",
    ),
    (
        "10 12 15 30 31 60", "FIRST(id); COUNT(*)",
        NEXT_ROW + "PATTERN (Y+) DEFINE Y AS MAX(Y.v) - MIN(Y.v) < FIRST(Y.v)",
        "1 3 | 2 2 | 3 1 | 4 2 | 5 2 | 6 1",
    ),
    (
        "6 5 3 4 1", LABELS, ALL + "PATTERN ((X | {- REST -})+) DEFINE X AS SUM(X.v) <= 10",
        "1 X | 3 X | 5 X",
    ),
    (
        "0alpha 0be 0ce 0delta 0e", "MIN(id); COUNT(*)",
        "PATTERN (I L*) DEFINE L AS length(I.c) + SUM(length(L.c) + 2) <= 12", "1 2 | 3 3",
    ),
    (
        "1ccc 3cc 5cccc 12c 13ccccc", "CLASSIFIER(); A.v + SUM(length(c)) - length(c)",
        ALL + "PATTERN (A B*) DEFINE B AS v <= A.v + SUM(length(c)) - length(c)",
        "A 1 | B 4 | B 6 | A 12 | B 13",
    ),
    *(
        (RANGES, "FIRST(v); MAX(length(c)); COUNT(*)", f"PATTERN {pattern} <= MAX(length(c))", wanted)
        for pattern, wanted in {
            "(S J*) DEFINE J AS v": "1 13 5", "(J* L) DEFINE J AS NEXT(v)": "1 5 2 | 6 9 2 | 12 13 1",
        }.items()
    ),
    (
        "100 110 121 130 131 100", "FIRST(id); FINAL COUNT(*); NEXT(FINAL LAST(v))",
        "PATTERN (P+) DEFINE P AS (NEXT(v) * 1.0D / FIRST(v) - 1) / COUNT(*) >= 0.04", "1 4 131",
    ),
    (
        "5 4 4 6 6 3 7", "MIN(id); COUNT(*)",
        f"""AFTER MATCH SKIP TO LAST UPS PATTERN (S (DOWN | SAME)+ (UP | SAME)+) SUBSET UPS = (UP, SAME)
        DEFINE {D}, SAME AS v = PREV(v)""",
        "1 5 | 5 3",
    ),
    (
        "10a 20b 25c 60c 30c", "MIN(id); COUNT(*)",
        NEXT_ROW + """PATTERN ((A | B) (C | D)) SUBSET U = (A, B)
        DEFINE A AS c = 'a', B AS c = 'b', C AS c = 'c' AND v <= U.v + 10, D AS c = 'c' AND v <= U.v + 40""",
        "2 2",
    ),
    (
        "10 9 9 8 9 9 11 7", LABELS,
        ALL + """AFTER MATCH SKIP TO LAST PAT PATTERN (S ((DN+ {- FLAT -}*)+ (UP+ {- FLAT -}*)+)+ BRK)
        SUBSET PAT = (DN, UP, BRK) DEFINE UP AS v > PREV(v) AND v <= S.v, DN AS v < PREV(v), BRK AS v > S.v,
        FLAT AS v = PREV(v)""",
        "1 S | 2 DN | 4 DN | 5 UP | 7 BRK",
    ),
    ("10a 20b 30a 40c 50a 60b", LABELS,
     ALL + "PATTERN ((A | B)+) DEFINE A AS c = 'a' AND SUM(A.v) < 100, B AS c <> 'a'",
     "1 A | 2 B | 3 A | 4 B | 5 A | 6 B"),
    *(
        (TENS, LABELS, f"""{ALL} {skip} PATTERN (A B+ C+ D) SUBSET BC = (B, C)
         DEFINE A AS v > 5, B AS B.v > A.v, C AS C.v < AVG(B.v) + 100,
         D AS D.v > MAX(BC.v) AND COUNT(*) > 0""",
         "1 A | 2 B | 3 B | 4 B | 5 C | 6 D")
        for skip in ("", "AFTER MATCH SKIP TO LAST BC")
    ),
    (TENS, LABELS, ALL + """PATTERN (A B+) SUBSET U = (A, B)
     DEFINE A AS v < 15, B AS v > LAST(U.v, 1) AND v < 50""", "1 A | 2 B | 3 B | 4 B"),
    (TENS, LABELS, ALL + """PATTERN (A B C) SUBSET U = (A, B)
     DEFINE A AS v < 15, C AS v = U.v + 10""", "1 A | 2 B | 3 C"),
    (TENS, LABELS, ALL + """PATTERN (A B+ C) SUBSET U = (A, B)
     DEFINE A AS v < 15, B AS v < 40, C AS v < SUM(U.v)""", "1 A | 2 B | 3 B | 4 C"),
    (TENS, LABELS, ALL + """PATTERN ({- Y Y -} X {- Y Z -}) SUBSET W = (Y, Z)
     DEFINE Z AS X.v > 0.7 * AVG(W.v)""", "3 X"),
    (TENS, LABELS, ALL + "PATTERN (B{3} C) DEFINE C AS PREV(LAST(B.v, 1), 1) = 10",
     "1 B | 2 B | 3 B | 4 C"),
    (TENS, LABELS, ALL + "PATTERN (B C+) DEFINE B AS v = 10, C AS PREV(B.v) IS NULL",
     "1 B | 2 C | 3 C | 4 C | 5 C | 6 C"),
    *((TENS, "LAST(id)", f"{ALL} PATTERN (A+) DEFINE A AS PREV({of}v) > 30", "5 | 6") for of in ("", "A.")),
    # Runs, tiers, and what is optional
    *(
        (TIERS, "COUNT(*)", f"{rest} {LMH}", wanted)
        for rest, wanted in {
            "PATTERN (A+ B* C+)": "4 | 5", "PATTERN (A+ B+ C+)": "4 | 5", "PATTERN (A+ (B | C))": "3 | 2",
            "PATTERN (A B* C)": "3 | 4", "AFTER MATCH SKIP TO LAST C PATTERN (A B* C)": "3 | 4",
            "PATTERN ((A | B)+ | C)": "3 | 1 | 3 | 1 | 1 | 1",
        }.items()
    ),
    (TIERS, "COUNT(*)", "PATTERN (A? B+) DEFINE A AS c = 'l', B AS c <> 'l'", "3 | 5"),
    (TIERS, "COUNT(*)", f"PATTERN (DOWN UP{{3,}}) DEFINE {D}", "5"),
    (TIERS, "LAST(C.id) - FIRST(A.id); SUM(B.v * 2 + B.id); 42", "PATTERN (A+ B+ C+) " + LMH,
     "3 123 42 | 4 313 42"),
    (TIERS, "FIRST(id)", "PATTERN (P Q) DEFINE P AS c = 'l', Q AS NEXT(P.c) = 'm'", "2 | 5"),
    (TIERS, "COUNT(*)", "PATTERN (A B) DEFINE A AS LAST(B.v) IS NULL", "2 | 2 | 2 | 2 | 2"),
    # Patterns that have many ways
    ("aabac / bbb / a", "MATCH_NUMBER(); COUNT(*)", "PATTERN (A{1,1000})", "1 1 5 | 2 1 3 | 3 1 1"),
    (EVENTS, STARTS, "PATTERN ((((A | B)+ )?){1,2}) " + A_B,
     "1 1 1 4 | 1 2 - 0 | 2 1 1 3 | 3 1 1 1"),
    *(("1", "COUNT(*)", f"PATTERN ({one}) DEFINE B AS FIRST(A.v) < 0", "") for one in ("(A*)* B", "(A+)* B")),
    ("1 2 3", "COUNT(*)", "PATTERN ((A*?)*? B) DEFINE B AS FIRST(A.v) < 0", ""),
    ("0 1 2 3", "COUNT(*)", "PATTERN ((A*)* B) DEFINE A AS v < 2, B AS FIRST(A.v) = 0", "3"),
    *(("1 2", "COUNT(*)", f"PATTERN ({one}) DEFINE {a} C AS FIRST(B.v) IS NOT NULL", "2")
      for one, a in [("(A | B) C", ""), ("A C | B C", ""), ("(A | B) C", "A AS false, ")]),
    ("0 / 11", "COUNT(*)", "PATTERN (A? B) DEFINE B AS v % 2 = 1", "2 1"),
    *(("aaaaa", "COUNT(*)", f"PATTERN ({one})", "5")
      for one in ["A+ B", "A+ B B", "A+ B B B", "A+ B C", "A+ B+ C", "A* B B", "A{2,4} B B", "A+ (B C)",
                  "(A|B)+ C", "A B+ C C", "^ A+ $"]),
    *(("aaab", "COUNT(*)", f"PATTERN ({one}) DEFINE A AS c = 'a'", wanted)
      for one, wanted in {"A+ B": "4", "A+? B": "2 | 2", "A* B": "4", "A*? B": "1 | 1 | 1 | 1",
                          "A?? B": "1 | 1 | 1 | 1"}.items()),
    ("aaab", "COUNT(*)", "PATTERN (A+? C) DEFINE A AS c = 'a', C AS c = 'b'", "4"),
    ("0 1 2 3 4 5", "LAST(id); COUNT(*); CLASSIFIER()", ALL + """PATTERN (^ A{1,2}? (B | C)* {- D -}? $)
     DEFINE B AS v > 0, C AS v < 0, D AS false""", "1 1 A | 2 2 B | 3 3 B | 4 4 B | 5 5 B | 6 6 B"),
    ("1 2 3 4 5 6", "COUNT(*)", "PATTERN (A{2,3}?)", "2 | 2 | 2"),
    ("a" * 50, "COUNT(*)", "PATTERN ((A{0,1}){50} A{50})", "50"),
    ("1 2 3", LABELS, ALL + "PATTERN ((A | B) C) DEFINE A AS v = 1, B AS v = 2", "1 A | 2 C"),
    ("1 2 3 4", "CLASSIFIER()", ALL + "PATTERN (Z Y Z)", "Z | Y | Z"),
    ("bacab", "COUNT(*)", "PATTERN (PERMUTE) DEFINE PERMUTE AS c = 'a'", "1 | 1"),
    ("0 1 2 1", "CLASSIFIER()", ALL + """PATTERN ((A) (B C??) (B) | (A) (B) (B C??) | (B C??) (A) (B) |
     (B C??) (B) (A) | (B) (A) (B C??) | (B) (B C??) (A)) DEFINE A AS v > 0, B AS v < 2""", "B | C | A | B"),
    ("1 2", "42", "PATTERN (A)", "42 | 42"),
    ("1 2", "array_max(transform(array(1, 2), e -> e + 1))", "PATTERN (A)", "3 | 3"),
    # What rows are taken as
    ("1 2 3", "id", "PATTERN (A) DEFINE A AS CLASSIFIER() = 'A'", "1 | 2 | 3"),
    ("1 2 3", "id", "PATTERN (A) DEFINE A AS CLASSIFIER() = 'B'", ""),
    ("1 0 0 1 0 1", "id", "PATTERN (A B) DEFINE A AS v = 1, B AS CLASSIFIER() = 'A'", ""),
    ("1 0 0 1 0 1", "id", """PATTERN (A B+)
     DEFINE A AS v = 1 AND CLASSIFIER() = 'A', B AS v = 0 AND CLASSIFIER() = 'B'""", "3 | 5"),
    ("5 7 6 9 2", LABELS, ALL + "PATTERN (A B) DEFINE B AS v > LAST(A.v) AND CLASSIFIER() = 'B'",
     "1 A | 2 B | 3 A | 4 B"),
    (KINDS, "CLASSIFIER(A)", ALL + "PATTERN (A B) DEFINE A AS c = 'a'", "A | A | A | A | A | A"),
    (KINDS, LABELS, ALL + """PATTERN (A B C) SUBSET U = (A, B)
     DEFINE A AS c = 'a', C AS CLASSIFIER(U) = 'B'""", "1 A | 2 B | 3 C"),
    (KINDS, "LAST(CLASSIFIER(U), 1)", ALL + """PATTERN (A B C) SUBSET U = (A, B)
     DEFINE A AS c = 'a', C AS LAST(CLASSIFIER(U), 1) = 'A'""", "- | A | A"),
    *(("1 2", LABELS, f"{ALL} PATTERN ((A | B) C) DEFINE C AS {of} = 'B'", "1 B | 2 C")
      for of in ("LAST(CLASSIFIER(), 1)", "FIRST(CLASSIFIER())")),
    # Names, in any case and in quotes
    ("1 2 1", LABELS, ALL + 'PATTERN (`up down`+) DEFINE `up down` AS `up down`.v > 1',
     "2 up down"),
    ("1 2 1", "COUNT(*)", "PATTERN (V+) DEFINE v AS v.v = 1", "1 | 1"),
    ("1 2 1", "LAST(`u`.v)", """PATTERN (`x` `y`) SUBSET `u` = (`x`, `y`)
     DEFINE `x` AS `x`.v = 1, `y` AS `y`.v = 2""", "2"),
    ("1 2", "SUM(v) + COUNT(v); LAST(A.s.v); transform(LAST(A.l), e -> e + 1)[1]", "PATTERN (A+)", "5 2 5"),
    ("1 2", "COUNT(*)", "PATTERN (A+) DEFINE A AS exists(l, e -> e > 0) AND A.s.v > 0", "2"),
    # Nothing, and offsets
    ("1", "v; LAST(v); COUNT(*); MATCH_NUMBER()", "PATTERN (A*) DEFINE A AS false", "- - 0 1"),
    ("1", "COUNT(*)", "PATTERN (A) DEFINE A AS NULL", ""),
    ("1 2", "COUNT(*)", "PATTERN (A B) DEFINE A AS B.v > 0", ""),
    ("1 2", "COUNT(*)", "PATTERN (A{0,} B) DEFINE A AS v > 900", "1 | 1"),
    ("1 2 3", "FIRST(v, 0); FIRST(v, 1); LAST(v, 1); FIRST(v, 5); LAST(v, 5); PREV(v, 0); NEXT(v, 0)",
     "PATTERN (A+)", "1 2 2 - - 3 3"),
    ("1 2 3", "FIRST(v, 2147483647); LAST(v, 2147483647)", "PATTERN (A+)", "- -"),
    ("10 20 30 40 50",
     "PREV(A.v); PREV(A.v, 2); PREV(FIRST(A.v), 0); PREV(FIRST(A.v, 1), 0); NEXT(LAST(A.v), 0)",
     "PATTERN (A+)", "40 30 10 20 50"),
    ("10 20 30 40 50", "PREV(B.v)", "PATTERN (B+ C+) DEFINE B AS v < 30", "10"),
    ("10 20 30", "LAST(id); PREV(A.v); NEXT(A.v)", ALL + "PATTERN (A+)", "1 - 20 | 2 10 30 | 3 20 -"),
    ("5 7 6 9 2", "id", "PATTERN (A) DEFINE A AS v < NEXT(v)", "1 | 3"),
    # Falls, rises and waves
    (WAVE, "S.id; LAST(DOWN.id); LAST(UP.id); COUNT(UP.id); AVG(F.v); MIN(L.v); MAX(H.v); COUNT(W.v)",
     V.replace("DEFINE", "SUBSET F = (S, DOWN), L = (DOWN), H = (S, UP), W = (S, DOWN, UP) DEFINE"),
     "5 6 10 4 59.5 40 79 6 | 11 12 13 1 55 49 79 3 | 14 16 18 2 55 40 79 5"),
    (WAVE, "LAST(id); MATCH_NUMBER(); CLASSIFIER(); COUNT(UP.id); FINAL COUNT(UP.id)", ALL + V,
     "5 1 S 0 4 | 6 1 DOWN 0 4 | 7 1 UP 1 4 | 8 1 UP 2 4 | 9 1 UP 3 4 | 10 1 UP 4 4 | 11 2 S 0 1 | "
     "12 2 DOWN 0 1 | 13 2 UP 1 1 | 14 3 S 0 2 | 15 3 DOWN 0 2 | 16 3 DOWN 0 2 | 17 3 UP 1 2 | 18 3 UP 2 2"),
    (WAVE, LABELS, f"{ALL} PATTERN (S DOWN+ UP+ DOWN+ UP+) DEFINE {D}",
     "5 S | 6 DOWN | 7 UP | 8 UP | 9 UP | 10 UP | 11 DOWN | 12 DOWN | 13 UP"),
    (WAVE, "LAST(id); MATCH_NUMBER()", f"{ALL} PATTERN (UP+) DEFINE UP AS v > PREV(v)",
     "2 1 | 3 1 | 4 1 | 5 1 | 7 2 | 8 2 | 9 2 | 10 2 | 13 3 | 17 4 | 18 4"),
    (WAVE, "S.id; LAST(DOWN.id); LAST(UP.id)", "AFTER MATCH SKIP TO LAST UP " + V,
     "5 6 10 | 10 12 13 | 14 16 18"),
    (WAVE, "LAST(id); MATCH_NUMBER(); FINAL COUNT(*); FINAL COUNT(U.v)",
     ALL + "PATTERN ({- S -} UP+) SUBSET U = (S, UP) DEFINE UP AS v > PREV(v)",
     "2 1 5 5 | 3 1 5 5 | 4 1 5 5 | 5 1 5 5 | 7 2 5 5 | 8 2 5 5 | 9 2 5 5 | 10 2 5 5 | 13 3 2 2 | "
     "17 4 3 3 | 18 4 3 3"),
    (WAVE, "LAST(id)", f"{ALL} PATTERN ({{- S DOWN+ -}} UP+) DEFINE {D}", "7 | 8 | 9 | 10 | 13 | 17 | 18"),
    ("20 23 27 25 31 34", "FIRST(id); LAST(id); COUNT(*)", f"PATTERN (S UP+) DEFINE {D[20:]}",
     "1 3 3 | 4 6 3"),
    *(("90 84 79 86 91 82 76 88 95", "FIRST(id); LAST(id); COUNT(*); COUNT(Y.v)", """PATTERN (S W+ X+ Y+ Z+)
     DEFINE W AS v < PREV(v), X AS v > PREV(v), Y AS v < PREV(v), Z AS v > PREV(v)""", "1 9 9 2"),),
    # What people look for
    *((SIGN_INS, "FIRST(BAD.v); LAST(BAD.v); GOOD.v; COUNT(BAD.v)", f"""PATTERN (BAD{{5,}} GOOD)
     DEFINE BAD AS c = 'd' AND {within}, GOOD AS c = 'g'""", wanted) for within, wanted in {
        "(FIRST(BAD.m) IS NULL OR m <= FIRST(BAD.m) + INTERVAL '1' HOUR)":
            "1 847 898 902 5 | 4 423 471 478 7",
        "m <= FIRST(BAD.m) + INTERVAL '1' HOUR": "1 847 898 902 5 | 4 423 471 478 7",
        "true": "1 847 898 902 5 | 3 552 652 658 6 | 4 423 471 478 7",
    }.items()),
    (PRICES, "FIRST(DOWN.id); LAST(UP.id); FIRST(DOWN.v); MIN(DOWN.v); LAST(UP.v)",
     f"PATTERN (DOWN{{3,}} UP{{3,}}) DEFINE {D}",
     "1 2 8 586 546 600 | 3 2 7 126 114 136 | 3 8 13 130 118 144"),
    (PRICES, "COUNT(*)", f"PATTERN (^ DOWN{{3,}} UP{{3,}}) DEFINE {D}", ""),
    (PRICES, "COUNT(*)", f"PATTERN (DOWN{{3,}} UP{{3,}}) DEFINE {D} AND v > FIRST(DOWN.v)", ""),
    (PRICES, "FIRST(DOWN.id); SHUT.v", f"""PATTERN (DOWN{{3,}} UP{{2,}} SHUT)
     DEFINE {D}, SHUT AS v > PREV(v) AND v > FIRST(DOWN.v)""", "1 2 600 | 3 2 136 | 3 8 144"),
    (VISITS, "COUNT(LOOK.id); BASKET.id",
     "PATTERN (LOOK{2,} BASKET $) DEFINE LOOK AS c = 'p', BASKET AS c = 'c' AND v > 0",
     "1 2 4 | 5 2 3"),
    (VISITS, "BASKET.id", "PATTERN (LOOK{2,} BASKET) DEFINE LOOK AS c = 'p', BASKET AS c = 'c' AND v > 0",
     "1 4 | 2 3 | 5 3"),
    (PUMPS, "FIRST(WARM.id); JOLT.id; FIRST(WARM.v); LAST(WARM.v)",
     f"PATTERN (WARM{{4,}} JOLT) DEFINE {WARM}",
     "1 4 8 66 84"),
    (PUMPS, LABELS, f"{ALL} PATTERN (WARM{{4,}} JOLT) DEFINE {WARM}",
     "1 4 WARM | 1 5 WARM | 1 6 WARM | 1 7 WARM | 1 8 JOLT"),
    (PUMPS, "JOLT.id", f"PATTERN (WARM{{3,}} JOLT) DEFINE {WARM}", "1 8 | 3 5"),
    ("483 492 507 580 584 690 / 420 425", "MATCH_NUMBER(); FIRST(v); LAST(v); COUNT(*)",
     "PATTERN (S T*) DEFINE T AS m <= PREV(m) + INTERVAL '20' MINUTE",
     "1 1 483 507 3 | 1 2 580 584 2 | 1 3 690 690 1 | 2 1 420 425 2"),
    (STAGES, """CASE WHEN COUNT(S.id) > 0 AND COUNT(X.id) + COUNT(E.id) = 0 THEN 'staged'
     WHEN COUNT(X.id) > 0 AND COUNT(E.id) > 0 THEN 'both' ELSE 'none' END; COUNT(S.id); FIRST(S.v); LAST(S.v);
     FIRST(S.v) <> LAST(S.v); COUNT(G.id); COUNT(CASE WHEN G.c = 'p' THEN 1 END); LAST(S.id) - FIRST(id)""",
     """PATTERN (W G* (S | X | E)*) DEFINE W AS c = 'o', S AS c = 's', X AS c = 'x', E AS c = 'e',
     G AS c NOT IN ('o', 's', 'x', 'e')""",
     "1 staged 2 1 2 True 2 1 4 | 2 both 0 - - - 0 0 - | 4 staged 1 3 3 False 0 0 1 | 4 none 0 - - - 0 0 -"),
    ("11 12 13 / 21 22 23", "FIRST(A.v); B.v", NEXT_ROW + "PATTERN (A B) DEFINE A AS v > 11, B AS v > 12",
     "1 12 13 | 2 21 22 | 2 22 23"),
    # Aggregates of Trino
    ("1 2 3 4 5 6 7 8", "LAST(id); SUM(v)", ALL + "PATTERN (A*)",
     "1 1 | 2 3 | 3 6 | 4 10 | 5 15 | 6 21 | 7 28 | 8 36"),
    (ONES, "LAST(id); SUM(v)", ALL + "PATTERN (B+)",
     "1 1 1 | 1 2 2 | 1 3 3 | 1 4 4 | 1 5 5 | 1 6 6 | "
     "2 1 10 | 2 2 20 | 2 3 30 | 3 1 100 | 3 2 200 | 3 3 300"),
    ("10 10 10 / 100 100 100", "MATCH_NUMBER(); LAST(id); SUM(v)", ALL + NEXT_ROW + "PATTERN (B+)",
     "1 1 1 10 | 1 1 2 20 | 1 1 3 30 | 1 2 2 10 | 1 2 3 20 | 1 3 3 10 | "
     "2 1 1 100 | 2 1 2 200 | 2 1 3 300 | 2 2 2 100 | 2 2 3 200 | 2 3 3 100"),
    ("4 6 0", "CLASSIFIER(); AVG(B.v)", ALL + "PATTERN ((A | B)*) DEFINE A AS AVG(B.v) = 5",
     "B 4 | B 5 | A 5"),
    ("4 6 0 5", "CLASSIFIER(); AVG(A.v)", ALL + "PATTERN ((A | B)*) DEFINE A AS AVG(A.v) = 5",
     "B - | B - | B - | A 5"),
    *((ONES, "LAST(id); SUM(v)", f"{ALL} PATTERN (B (A | B) B) DEFINE A AS {of} > 1000",
       "1 1 1 | 1 2 2 | 1 3 3 | 1 4 1 | 1 5 2 | 1 6 3 | "
       "2 1 10 | 2 2 20 | 2 3 30 | 3 1 100 | 3 2 200 | 3 3 300")
      for of in ("SUM(v)", "MAX(v)")),
    ("1 1 1 1 1 / 2 2 2 2 2", "CLASSIFIER(); SUM(v)", ALL + "PATTERN ((A | B)*) DEFINE A AS SUM(v) > 4",
     "1 B 1 | 1 B 2 | 1 B 3 | 1 B 4 | 1 A 5 | 2 B 2 | 2 B 4 | 2 A 6 | 2 A 8 | 2 A 10"),
    ("1 2 3 4 5 / 2 4 6 8 10", "CLASSIFIER(); MAX(v)", ALL + "PATTERN ((A | B)*) DEFINE A AS MAX(v) > 4",
     "1 B 1 | 1 B 2 | 1 B 3 | 1 B 4 | 1 A 5 | 2 B 2 | 2 B 4 | 2 A 6 | 2 A 8 | 2 A 10"),
    ("1 2 3 4", "LAST(id); COUNT(*)", ALL + "PATTERN (X Y Z) DEFINE X AS v > 1", "2 1 | 3 2 | 4 3"),
    ("1 2 3 4", "RUNNING COUNT(*); FINAL COUNT(*); COUNT(C.*); COUNT(U.*)",
     ALL + "PATTERN (A B C D) SUBSET U = (B, D)", "1 4 0 0 | 2 4 0 1 | 3 4 1 1 | 4 4 1 2"),
    ("1 2 - 4", "CLASSIFIER(); COUNT(V.v); COUNT(v); COUNT(V.*)", ALL + "PATTERN (V B V V)",
     "V 1 1 1 | B 1 2 1 | V 1 2 2 | V 2 3 3"),
    ("4 6 10 1 1 1 10 5 1", "CLASSIFIER(); SUM(A.v); SUM(B.v)",
     ALL + "PATTERN ((A | B)*) DEFINE A AS SUM(A.v) - A.v <= SUM(B.v)",
     "B - 4 | A 6 4 | B 6 14 | A 7 14 | A 8 14 | A 9 14 | A 19 14 | B 19 19 | A 20 19"),
    ("3 4 5 8 9 / 2 3 4", "COALESCE(SUM(C.v) - SUM(A.v), 0)", """PATTERN ((A B* C | D)*)
     DEFINE B AS v = PREV(v) + 1, C AS v = PREV(v) + 1""", "1 3 | 2 2"),
    ("1 2 3 4 5 6 7 8", "CLASSIFIER()", ALL + """PATTERN (^ (A | B)* (X | Y) $)
     DEFINE X AS SUM(A.v) + v = SUM(B.v), Y AS SUM(B.v) + v = SUM(A.v)""", "A | A | A | A | B | B | B | X"),
    ("1 2 3 4 5 6", "CLASSIFIER()", ALL + """PATTERN (^ (A | B | C)* (X | Y | Z) $)
     DEFINE X AS SUM(A.v) + v = SUM(B.v) AND SUM(B.v) = SUM(C.v),
     Y AS SUM(B.v) + v = SUM(A.v) AND SUM(A.v) = SUM(C.v),
     Z AS SUM(C.v) + v = SUM(A.v) AND SUM(A.v) = SUM(B.v)""", "A | B | C | C | B | X"),
    *(("1 2 3", "CLASSIFIER()", f"{ALL} PATTERN ((A | B)* X) DEFINE X AS {of} = 1", "B | A | X")
      for of in ("AVG(CAST(B.v % 10 AS decimal(2, 1)))", "AVG(CAST(B.v AS decimal(30, 20)))",
                 "SUM(CAST(B.v % 10 AS decimal(2, 1)))", "SUM(CAST(B.v AS decimal(30, 20)))")),
]  # fmt: skip


def shown(value: Any) -> str:
    """Return a value as the cases have it."""
    return "-" if value is None else str(value) if isinstance(value, (str, bool)) else f"{float(value):g}"


def measured(text: str) -> str:
    """Return measures with names."""
    return ", ".join(f"{one} AS x{at}" for at, one in enumerate(text.split(";")))


@pytest.mark.promises("Flink SQL", "added", "CLASSIFIER() in DEFINE")
def test_the_shapes_of_duckdb_and_trino(spark: SparkSession) -> None:
    found = match_cases.asked(
        spark, [(rows, f"MEASURES {measured(of)} {rest}") for rows, of, rest, _ in CASES]
    )
    wrong = []
    for (rows, of, rest, wanted), answer in zip(CASES, found, strict=True):
        texts = answer
        if not isinstance(answer, ValueError):
            texts = " | ".join(" ".join(map(shown, row)) for row in answer)
        if texts != wanted:
            wrong.append(f"{rows}: {of}; {rest}\n  wanted {wanted}\n  got    {texts}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(found)}", *wrong])


# Many rows: what `v` is of `id`, and of `k`, which is `n`.
MANY = {
    "runs": "SELECT n DIV 250 AS k, n % 250 AS id, CAST((n % 250) % 7 < 3 AS int) AS v FROM range(4000) r(n)",
    "ones": "SELECT 0 AS k, n AS id, 1 AS v FROM range(1000) r(n)",
    "ends": "SELECT 0 AS k, n AS id, IF(n = 999, 2, 1) AS v FROM range(1000) r(n)",
    "wide": "SELECT 0 AS k, n AS id, n % 13 AS v FROM range(30000) r(n)",
    "nulls": "SELECT 0 AS k, n AS id, NULLIF(n % 9, 0) AS v FROM range(12000) r(n)",
    "keys": "SELECT n % 37 AS k, n AS id, n * 7 % 11 AS v FROM range(60000) r(n)",
    "span": "SELECT 0 AS k, n AS id, CAST(n BETWEEN 2040 AND 2060 AS int) AS v FROM range(4096) r(n)",
    "parts": "SELECT n DIV 3000 AS k, n AS id, n % 3 AS v FROM range(9000) r(n)",
}
ONE_TWO = "DEFINE A AS v = 1, B AS v = 2"

# A table; the rest of a clause that measures COUNT(*); how many rows it gives, and the sum of the counts.
COUNTS: list[tuple[str, str, int, int]] = [
    ("runs", "PATTERN (A+) DEFINE A AS v = 1", 576, 1728),
    ("runs", ALL + "PATTERN (A+) DEFINE A AS v = 1", 1728, 3456),
    ("runs", ALL + NEXT_ROW + "PATTERN (A+) DEFINE A AS v = 1", 3456, 5760),
    ("runs", "PATTERN (A+) DEFINE A AS v = 1 AND id >= FIRST(id)", 576, 1728),
    *(("ones", f"PATTERN ({one}) {ONE_TWO}", 0, 0) for one in ("(A+)+ B", "A+ A+ A+ B", "A* A* A* A* B")),
    *(("ends", f"PATTERN ({one}) {ONE_TWO}", 1, 1000) for one in ("(A+)+ B", "A+ A+ A+ B", "A+ B")),
    ("ones", "PATTERN ((A*)*)", 1, 1000),
    ("ones", NEXT_ROW + "PATTERN (A+)", 1000, 500_500),
    ("wide", "PATTERN (A+ B) DEFINE A AS v < 12, B AS FIRST(A.v) = 0", 2308, 30_000),
    ("wide", "PATTERN (A+ B) DEFINE A AS v < 12, B AS FIRST(A.v) = 0 AND LAST(A.v) = 11", 2307, 29_991),
    ("wide", "PATTERN (A+) DEFINE A AS id % 5 < 4 AND FIRST(v + 1) IS NOT NULL", 6000, 24_000),
    (
        "nulls", "PATTERN (A+ B) DEFINE A AS v IS NOT NULL, B AS FIRST(A.v) = 1 OR FIRST(A.v) IS NULL",
        1334, 11_999,
    ),
    ("keys", ALL + "PATTERN (A+ B) DEFINE A AS v < 9, B AS FIRST(A.v) = 0", 43_543, 195_811),
    ("span", "PATTERN (A+) DEFINE A AS v = 1", 1, 21),
    ("span", "PATTERN (A B+) DEFINE A AS v = 1 AND PREV(v) = 0, B AS v = 1 AND LAST(A.v) = 1", 1, 21),
    ("parts", "PATTERN (A) DEFINE A AS v = 0", 3000, 3000),
]  # fmt: skip


def test_the_counts_of_duckdb_over_many_rows(spark: SparkSession) -> None:
    tables = " UNION ALL ".join(f"SELECT '{name}' AS of, * FROM ({text})" for name, text in MANY.items())
    df = spark.sql(f"SELECT *, timestamp_seconds(id) AS ts FROM ({tables})")
    found = match_cases.answers(
        spark,
        df,
        [(table, f"PARTITION BY k ORDER BY ts MEASURES COUNT(*) AS n {rest}") for table, rest, *_ in COUNTS],
    )
    shown = [
        (table, rest, len(rows), sum(row[1] for row in rows))
        for (table, rest, *_), rows in zip(COUNTS, found, strict=True)
    ]
    assert shown == COUNTS


# Clauses behind ORDER BY ts, and the errors that they are.
REFUSED = {
    "MEASURES (SELECT MIN(v) FROM t) AS x PATTERN (A)": "a subquery in MATCH_RECOGNIZE is not supported",
    "PATTERN (A) DEFINE A AS v > (SELECT 1)": "a subquery in MATCH_RECOGNIZE is not supported",
    "MEASURES t.v AS x PATTERN (A)": "t.v must name variables of PATTERN, got t; there are A",
    "PATTERN (A) DEFINE A AS s.v > 0": "s.v must name variables of PATTERN, got s; there are A",
    "PATTERN (A) DEFINE A AS LAG(v) OVER (ORDER BY ts) IS NULL": "of several rows in DEFINE is not supported",
    "MEASURES ROW_NUMBER() OVER () AS x PATTERN (A)": r"OVER \(\) is not supported",
    "PATTERN (A) DEFINE A AS true, a AS false": "must define each name once, got A twice",
    "PATTERN (A) SUBSET U = (A), U = (A)": "must define each name once, got U twice",
    "PATTERN (A B C) SUBSET U = (A, B), V = (U, C)": "SUBSET must name variables of PATTERN, got U",
    "PATTERN (A) WITHIN INTERVAL '1' HOUR WITHIN INTERVAL '2' HOUR": "must define each name once, got WITHIN",
    "PATTERN (A) DEFINE A AS v > 0": "ONE ROW PER MATCH without MEASURES and PARTITION BY is not supported",
    "PATTERN (A) DEFINE A": "must have a condition for each variable, got A",
    "PATTERN (A) DEFINE AUTO": "must have a condition for each variable, got AUTO",
    "PATTERN (A) ALL ROWS PER MATCH": "must be valid SQL",
    "PATTERN ()": r"PATTERN \(\) must have a variable",
    "PATTERN (((A?){700}){700})": "must have at most 10,000 steps",
    "PATTERN (A{99999999999999999999})": "must have at most 10,000 steps",
    "MEASURES A.* AS x PATTERN (A)": r"A.\* is not supported; name a column",
    "MEASURES COUNT() AS x PATTERN (A)": "the aggregates are COUNT, SUM, MIN, MAX, AVG, of one argument",
    **{
        f"MEASURES {measure} AS x PATTERN (A)": "is not supported; write (PREV|NEXT|FIRST|LAST)"
        for measure in [
            *("PREV()", "FIRST()", "NEXT(v, 1, 2)", "PREV(v, -1)", "PREV(v, NULL)", "NEXT(v, id)"),
            *("FIRST(v, 18446744073709551615)", "PREV(NEXT(v))", "FIRST(PREV(v))", "FIRST(abs(LAST(v)))"),
        ]
    },
    "PATTERN (A) DEFINE A AS LAST(v, 18446744073709551615) IS NULL": "is not supported; write LAST",
    "PATTERN (A) DEFINE A AS FIRST() > 0": r"FIRST\(\) is not supported; write FIRST",
    "MEASURES FINAL PREV(v) AS x PATTERN (A)": "FINAL PREV.* is not supported; it is for FIRST",
    "MEASURES RUNNING NEXT(v) AS x PATTERN (A)": "RUNNING NEXT.* is not supported; it is for FIRST",
    "PATTERN (A B) DEFINE B AS PREV(CLASSIFIER()) = 'A'": r"write LAST\(CLASSIFIER\(\), 1\)",
    "PATTERN (A B) DEFINE B AS COUNT(CLASSIFIER(A)) > 0": "aggregates are of columns",
    "PATTERN (A) DEFINE A AS CLASSIFIER(nope) = 'A'": "must name variables of PATTERN, got nope",
    "MEASURES SUM(v + A.v) AS x PATTERN (A)": "of several variables is not supported",
    "MEASURES CLASSIFIER(Q) AS x PATTERN (A)": "must name variables of PATTERN, got Q",
}


@pytest.mark.promises(
    "Flink SQL", "refused", "PREV or NEXT of CLASSIFIER()", note="write `LAST(CLASSIFIER(), 1)`"
)
@pytest.mark.promises(
    "Flink SQL", "refused", "subqueries in MATCH_RECOGNIZE", note="join in a view, or join the matches"
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "names of tables, and of structs alone, before columns in MATCH_RECOGNIZE",
    note="a column, or `A.s.x` of the variable `A` and the struct `s`",
)
@pytest.mark.promises(
    "Flink SQL", "refused", "window functions in MATCH_RECOGNIZE", note="use PREV and NEXT, or a view"
)
@pytest.mark.promises(
    "Flink SQL", "refused", "PREV or NEXT in FIRST or LAST", note="write `PREV(FIRST(x))`, as in the standard"
)
@pytest.mark.promises(
    "Flink SQL", "refused", "DEFINE AUTO, clauses of MATCH_RECOGNIZE in any order", note="use the standard's"
)
@pytest.mark.parametrize("clause", REFUSED)
def test_more_that_duckdb_has_or_refuses_is_refused_by_name(clause: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[clause]):
        match_cases.read(f"ORDER BY ts {clause}")


@pytest.mark.promises(
    "Flink SQL", "refused", "names of columns in the alias of MATCH_RECOGNIZE", note="name the measures"
)
@pytest.mark.promises(
    "Flink SQL", "refused", "row patterns in WINDOW, with INITIAL or SEEK", note="use MATCH_RECOGNIZE"
)
@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES v AS x PATTERN (A)) AS m(y)",
            r"m\(y\) of MATCH_RECOGNIZE is not supported; name the measures",
        ),
        (
            "SELECT m OVER w FROM t WINDOW w AS (ORDER BY ts MEASURES v AS m INITIAL PATTERN (A))",
            "must be valid SQL",
        ),
        (
            "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts ALL ROWS PER MATCH PATTERN (A)) AS m "
            "MATCH_RECOGNIZE (ORDER BY ts ALL ROWS PER MATCH PATTERN (A)) AS n",
            "must be valid SQL",
        ),
    ],
)
def test_forms_around_the_clause_are_refused(query: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        meaning_of(only_query(query)[0])


def test_columns_have_any_name(spark: SparkSession) -> None:
    df = spark.sql("SELECT 'x' AS of, timestamp_seconds(id) AS time, id AS bits FROM range(3)")
    clause = "ORDER BY time, bits MEASURES SUM(bits) AS x ALL ROWS PER MATCH PATTERN (A+)"
    assert match_cases.answers(spark, df, [("x", clause)]) == [[(0,), (1,), (3,)]]


@pytest.mark.promises(
    "Flink SQL", "refused", "measures of measures", note="compute them in the SELECT of the query"
)
def test_a_measure_of_a_measure_is_a_column_that_is_not_there(spark: SparkSession) -> None:
    spark.sql("SELECT timestamp_seconds(1) AS ts, 1 AS v").createOrReplaceTempView("one_row")
    clause = "ORDER BY ts MEASURES SUM(v) AS total, total + 1 AS more PATTERN (A)"
    with pytest.raises(AnalysisException, match="`total`"):
        timerheap.spark.sql(spark, f"SELECT * FROM one_row MATCH_RECOGNIZE ({clause}) AS m")
