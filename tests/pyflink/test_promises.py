"""Each public name of the classes that PyFlink has is promised by a test."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from promises import markdown, promises, promises_of

import timerheap
import timerheap.flink
from timerheap import (
    functions,
    interval_join,
    output_tag,
    row,
    state,
    time,
    types,
    watermarks,
    windows,
)
from timerheap.async_io import function, retry

PROMISED = promises_of("PyFlink")
SURFACE = [
    functions,
    output_tag,
    row,
    state,
    time,
    types,
    watermarks,
    interval_join,
    windows,
    function,
    retry,
]


def public_names(of: str, found: Any) -> Iterator[str]:
    """Yield the public names of a class: those that no public base has, or if there are none, its own."""
    if not inspect.isclass(found):
        yield of
        return
    bases = [base for base in found.__mro__[1:] if base.__name__[0] != "_"]
    own = [name for name in dir(found) if name[0] != "_" and not any(hasattr(base, name) for base in bases)]
    if not own:
        yield of
    for name in own:
        yield from public_names(f"{of}.{name}", getattr(found, name))


def surface(module: ModuleType) -> Iterator[str]:
    for name, found in vars(module).items():
        own = inspect.isclass(found) and f"{found.__module__}.".startswith(f"{module.__name__}.")
        if own and name in getattr(module, "__all__", timerheap.__all__):
            yield from public_names(name, found)


def test_every_public_name_is_promised() -> None:
    missing = sorted({name for module in SURFACE for name in surface(module)} - PROMISED.keys())
    assert not missing, "mark the tests that hold them, as tests/support/pages/promises.py says"


def test_every_promised_name_exists_unless_it_is_refused() -> None:
    unknown = []
    for name, status in PROMISED.items():
        for module in (timerheap, timerheap.flink, *SURFACE):
            try:
                attrgetter(name)(module)
            except (AttributeError, ImportError):
                continue
            break
        else:
            unknown += [name] * (status != "refused")
    assert not unknown


QUERIES = {  # in Flink's documentation of SQL, by page
    "Windowing table-valued functions": [
        "TUMBLE",
        "HOP",
        "CUMULATE",
        "SESSION",
        "SELECT of the rows of TUMBLE, HOP and CUMULATE",
        "SELECT of the rows of SESSION",
        "arguments by name",
        "PROCTIME",
    ],
    "Window aggregation": [
        "GROUPING SETS",
        "ROLLUP",
        "CUBE",
        "aggregation over a nested window aggregation",
        "windows over window_time",
        "GROUP BY TUMBLE(...), HOP(...), SESSION(...)",
    ],
    "Group aggregation": ["GROUP BY without windows", "COUNT(DISTINCT)", "FILTER", "SELECT DISTINCT"],
    "Over aggregation": [
        "OVER RANGE BETWEEN ... PRECEDING AND CURRENT ROW",
        "OVER ROWS BETWEEN ... PRECEDING AND CURRENT ROW",
        "OVER, RANGE or ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW (COUNT, SUM, AVG, MIN, MAX)",
        "OVER, ROW_NUMBER, RANK, DENSE_RANK without a limit",
        "LAG",
        "LEAD",
        "FIRST_VALUE and LAST_VALUE OVER rows",
        "OVER, different PARTITION BY or ORDER BY in one SELECT",
        "OVER, processing time",
    ],
    "Window joins": [
        "window JOIN (INNER, LEFT, RIGHT, FULL OUTER)",
        "window SEMI JOIN (IN, EXISTS)",
        "window ANTI JOIN (NOT IN, NOT EXISTS)",
        "window JOIN of different windows",
    ],
    "Joins": [
        "regular JOIN",
        "interval JOIN (INNER, LEFT, RIGHT, FULL OUTER)",
        "temporal JOIN (FOR SYSTEM_TIME AS OF)",
        "lookup JOIN",
        "CROSS JOIN UNNEST",
        "LATERAL TABLE",
    ],
    "Top-N": ["Top-N of all rows"],
    "Window Top-N": ["window Top-N", "Top-N of the rows of SESSION"],
    "Deduplication": [
        "deduplication, first row (ORDER BY time)",
        "deduplication, last row (ORDER BY time DESC)",
    ],
    "Window deduplication": ["window deduplication"],
    "Other queries": ["WITH", "ORDER BY", "LIMIT", "UNION", "MATCH_RECOGNIZE", "INSERT INTO"],
}


def test_every_kind_of_query_of_flink_is_promised() -> None:
    promised = promises_of("Flink SQL")
    missing = {page: sorted(set(kinds) - promised.keys()) for page, kinds in QUERIES.items()}
    assert not {page: kinds for page, kinds in missing.items() if kinds}


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ('"PyFlink", "supported"', "and names"),
        ('"Flink", "supported", "open"', "must be of one of"),
        ('"PyFlink", "done", "open"', "have one of"),
        ('"PyFlink", "refused", "OutputTag"', "must have a note"),
        ('"PyFlink", "supported", "ListState.add", note="as a set"', "must agree"),
    ],
)
def test_a_promise_that_says_too_little_raises(tmp_path: Path, marker: str, message: str) -> None:
    path = tmp_path / "test_lists.py"
    sound = '@pytest.mark.promises("PyFlink", "supported", "ListState.add")\ndef test_lists(): ...\n'
    path.write_text(sound)
    assert [promise.test for promise in promises(tmp_path)] == ["test_lists.py::test_lists"]
    assert markdown("PyFlink", folder=tmp_path) == markdown("PyFlink", "supported", tmp_path)
    assert len(markdown("PyFlink", "different", tmp_path)) == 2
    path.write_text(f"{sound}@pytest.mark.promises({marker})\ndef test_more(): ...\n")
    with pytest.raises(ValueError, match=message):
        promises(tmp_path)
