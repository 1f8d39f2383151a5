"""Random changelogs of a table with a key, cut into micro-batches, and the table after each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

__all__ = ["ROWS", "Step", "changelog", "row_of"]

ROWS = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("_change_type", pa.string()),
    ]
)
BEGIN = datetime(
    2026, 11, 1, 4, 30, tzinfo=UTC
)  # clocks change in the United States an hour and a half later
Row = tuple[Any, ...]  # k, v, x, at


class Step(NamedTuple):
    """The changes of a micro-batch, in any order, and the rows of the table after it, by key."""

    changes: list[dict[str, Any]]
    table: dict[Any, Row]

    def arrow(self) -> pa.Table:
        return pa.Table.from_pylist(self.changes, ROWS)


def row_of(values: dict[str, Any]) -> Row:
    """Return a row as models have it, which can be compared: NaN is equal to NaN."""
    at = values["at"]
    return values["k"], values["v"], repr(values["x"]), None if at is None else at.astimezone(UTC)


def changelog(seed: int, steps: int, keys: int, net: bool = True) -> Iterator[Step]:
    """Yield micro-batches.

    net: whether each has the net change alone; otherwise also versions of rows that come and go in it
    """
    draw, table = random.Random(seed), dict[Any, dict[str, Any]]()
    names = [None, *(f"key {number}" for number in range(keys - 1))]
    for _ in range(steps):
        found: list[dict[str, Any]] = []
        for key in draw.sample(names, draw.randrange(keys + 1)):
            before = table.get(key)
            for _ in range(1 if net else draw.randrange(1, 4)):
                after = None if before and draw.randrange(3) == 0 else new_row(draw, key)
                found += changes_between(before, after)
                before = after
            table.pop(key, None)
            if before:
                table[key] = before
        draw.shuffle(found)
        yield Step(found, {key: row_of(row) for key, row in table.items()})


def new_row(draw: random.Random, key: str | None) -> dict[str, Any]:
    value = draw.choice([None, draw.randrange(5), draw.randrange(-(2**60), 2**60)])
    number = draw.choice([0.0, 0.1, draw.random(), float("nan"), float("-inf"), None])
    at = draw.choice(
        [None, BEGIN + timedelta(seconds=draw.randrange(10_000), microseconds=draw.randrange(9))]
    )
    return {"k": key, "v": value, "x": number, "at": at}


def changes_between(before: dict[str, Any] | None, after: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    updated = before is not None and after is not None
    if before is not None:
        yield before | {"_change_type": "update_preimage" if updated else "delete"}
    if after is not None:
        yield after | {"_change_type": "update_postimage" if updated else "insert"}
