"""SELECT DISTINCT ON is the first row of QUALIFY in its order; what would change is refused."""

from __future__ import annotations

import re

import pytest

from timerheap.spark._sql.read.statements import only_query
from timerheap.spark._sql.rewrite.meaning import meaning_of

WINDOWED = "FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '3' SECOND))"
SAME = {
    "the first row of each key": (
        "SELECT DISTINCT ON (k) * FROM t ORDER BY k, ts",
        "SELECT * FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) = 1",
    ),
    "keys that ORDER BY does not have": (
        "SELECT DISTINCT ON (j, k) a, b AS c FROM t WHERE a > 1 ORDER BY ts, b DESC NULLS LAST",
        "SELECT a, b AS c FROM t WHERE a > 1 QUALIFY ROW_NUMBER() OVER "
        "(PARTITION BY j, k ORDER BY ts, b DESC NULLS LAST) = 1",
    ),
    "keys with the name of a table, and in any order": (
        "SELECT DISTINCT ON (k, j) t.a FROM t ORDER BY t.j DESC, t.k, t.ts",
        "SELECT t.a FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY k, j ORDER BY t.ts) = 1",
    ),
    "a name of the list in ORDER BY": (
        "SELECT DISTINCT ON (k) k, ts AS x FROM t ORDER BY k, x",
        "SELECT k, ts AS x FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) = 1",
    ),
    "nested": (
        "SELECT a FROM (SELECT DISTINCT ON (k) a, k FROM t ORDER BY ts) WHERE a > 0",
        "SELECT a FROM (SELECT a, k FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) = 1) "
        "WHERE a > 0",
    ),
    "the first row of each window, by any order": (
        f"SELECT DISTINCT ON (window_start, window_end, k) a {WINDOWED} ORDER BY k, a DESC",
        f"SELECT a {WINDOWED} QUALIFY ROW_NUMBER() OVER "
        "(PARTITION BY window_start, window_end, k ORDER BY a DESC) = 1",
    ),
    "the first group of each window": (
        f"SELECT DISTINCT ON (window_start, window_end) k, COUNT(*) AS n {WINDOWED} "
        "GROUP BY window_start, window_end, k ORDER BY n DESC",
        f"SELECT k, COUNT(*) AS n {WINDOWED} GROUP BY window_start, window_end, k "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY COUNT(*) DESC) = 1",
    ),
}


def meant(text: str) -> object:
    return meaning_of(only_query(text)[0])


@pytest.mark.parametrize("name", SAME)
@pytest.mark.promises(
    "Flink SQL", "added", "SELECT DISTINCT ON (k) ... ORDER BY ts, the first row of each key"
)
def test_it_has_the_plan_of_qualify(name: str) -> None:
    distinct, qualify = SAME[name]
    assert meant(distinct) == meant(qualify)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT DISTINCT ON (k) n FROM t", "SELECT DISTINCT ON (k) without an order of the rows of a key"),
        ("SELECT DISTINCT ON (k) n FROM t ORDER BY k", "SELECT DISTINCT ON (k) without an order"),
        (
            "SELECT DISTINCT ON (k) LAG(n) OVER (ORDER BY ts) AS x FROM t ORDER BY ts",
            "SELECT DISTINCT ON (k) beside OVER or QUALIFY is not supported",
        ),
        ("SELECT DISTINCT ON (k) n FROM t ORDER BY ts LIMIT 3", "LIMIT is not supported"),
    ],
)
def test_what_is_refused(query: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        meant(query)
