"""The tables of Flink's own tests of SQL, and what a test of them expects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "AB",
    "FIVES",
    "SMALL",
    "TRIPLES",
    "WORDS",
    "A",
    "Case",
    "Rows",
    "Table",
    "markdown",
    "table",
    "write_page",
]

WORDS = {"+I": "insert", "-U": "update_preimage", "+U": "update_postimage", "-D": "delete"}

Rows = list[tuple[Any, ...]]
Table = tuple[str, Rows]
"""The columns of a table, and its rows; those of a changelog begin with what Flink calls their kind."""

SMALL = [(1, 1, "Hi"), (2, 2, "Hello"), (3, 2, "Hello world")]
TRIPLES = [
    *SMALL, (4, 3, "Hello world, how are you?"), (5, 3, "I am fine."), (6, 3, "Luke Skywalker"),
    *((6 + n, 4 + (n > 4) + (n > 9), f"Comment#{n}") for n in range(1, 16)),
]  # fmt: skip
TEXTS = "Hallo|Hallo Welt|Hallo Welt wie|Hallo Welt wie gehts?|ABC|BCD|CDE|DEF|EFG|FGH|GHI|HIJ|IJK|JKL|KLM"
FIVES = [
    (group, at + 1, at, text, last)
    for at, (group, text, last) in enumerate(
        zip(
            [1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5],
            TEXTS.split("|"),
            [1, 2, 1, 2, 2, 3, 2, 1, 1, 2, 1, 3, 3, 2, 2],
            strict=True,
        )
    )
]
A: Table = ("a1 int, a2 bigint, a3 string", SMALL)
B: Table = ("b1 int, b2 bigint, b3 int, b4 string, b5 bigint", FIVES)
AB = {"A": A, "B": B}


def table(columns: str, *rows: tuple[Any, ...]) -> Table:
    return columns, list(rows)


@dataclass(frozen=True)
class Case:
    """A test of Flink.

    result: its final table, or if ours differs, ours; None if we refuse the query, with `refused`
    note: why it differs, or is refused
    refused: a part of the error; a test of Flink that expects one, too, is the same
    options: arguments of sql(); the tables of a `watermark` get a row behind all others, if they are streams
    still: tables that are no streams beside those that are
    runs: whether it runs on batches and on streams, or on one of them
    clock: whether the query follows the clock, so that it is not over when there are no more rows
    ends: whether a stream gets that last row, which has a result at once where rows do not wait
    """

    test: str
    tables: dict[str, Table]
    query: str
    result: Rows | None
    note: str = ""
    refused: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    still: tuple[str, ...] = ()
    runs: tuple[str, ...] = ("batch", "stream")
    ends: bool = True
    clock: bool = False
    flink_refuses: bool = False

    @property
    def status(self) -> str:
        if self.flink_refuses:
            return "same"
        if self.result is None:
            return "refused"
        return "differs" if self.note else "same"


def markdown(cases: Sequence[Case]) -> list[str]:
    """Return the table of a page: each case, and whether its result is the same."""
    counts = Counter(case.status for case in cases)
    shown = ", ".join(f"{counts[status]} {status}" for status in ("same", "differs", "refused"))
    lines = [f"Of {len(cases)}: {shown}.", "", "| test of Flink | result | |", "|---|---|---|"]
    order = ["refused", "differs", "same"]
    return [
        *lines,
        *(
            f"| `{case.test.split(',')[0]}`{''.join(case.test.partition(',')[1:])} | {case.status} "
            f"| {case.note} |"
            for case in sorted(cases, key=lambda case: order.index(case.status))
        ),
    ]


def write_page(page: str, cases: Sequence[Case]) -> None:
    """Put the table of a page, which is its last part, into it."""
    file = Path(__file__).parents[3] / page
    before, _, _ = file.read_text().partition("\nOf ")
    file.write_text("\n".join([before, *markdown(cases), ""]))
