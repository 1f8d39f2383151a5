"""Random changelogs: of tables whose rows are inserted, updated and deleted, cut into micro-batches."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from changes_model import WEIGHTS
from changing_tables import NAN, Row, Rows, row_of

Change = tuple[str, Row]

PAIR = ("update_preimage", "update_postimage")
CHANGE_TYPE = "_change_type"

# The tables by name, with the types of their columns. The last is a number that rows do not share, except
# copies of a row, so that an order by it is total.
TABLES = {
    "orders": pa.schema(
        [
            ("id", pa.int64()),
            ("k", pa.string()),
            ("g", pa.int32()),
            ("v", pa.float64()),
            ("n", pa.int64()),
            ("d", pa.decimal128(9, 2)),
            ("s", pa.string()),
            ("f", pa.float32()),
            ("e", pa.decimal128(38, 10)),
            ("t", pa.timestamp("us", "UTC")),
            ("yes", pa.bool_()),
            ("u", pa.int64()),
        ]
    ),
    "people": pa.schema(
        [
            ("k", pa.string()),
            ("g", pa.int32()),
            ("w", pa.float64()),
            ("m", pa.int64()),
            ("name", pa.string()),
            ("r", pa.int64()),
        ]
    ),
}

EASY = [None, 1.0, 2.0, 2.0, 3.5, -0.25, 0.0]
HARD = [*EASY, NAN, -0.0, float("inf"), float("-inf"), 1e17, 0.1, -1e17, 1e-9, 1e308, 1e308, 5e-324]
VALUES: dict[str, Sequence[Any]] = {
    "id": range(6),
    "k": ["a", "b", "c", "", None],
    "g": [1, 2, -3, None],
    "n": [None, 1, 2, 3, -4, 10],
    "d": [None, Decimal("1.25"), Decimal("-0.50"), Decimal("2.00"), Decimal("99999.99")],
    "s": [None, "x", "y", "zz", "", "\u00e9", "\U0001f600"],
    "f": [None, 0.5, 1.25, -2.0],
    "e": [None, Decimal("1e-10"), Decimal("12345678901234567890.5"), Decimal(-3)],
    "t": [None, *(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in (0, 1, 10**9))],
    "yes": [True, False, None],
    "m": [None, 1, 2, 3, 7],
    "name": ["ann", "bo", None],
}


class Changing:
    """A table that changes at random."""

    def __init__(self, rng: random.Random, name: str, hard: bool, few_keys: bool) -> None:
        self.rng = rng
        self.names = TABLES[name].names
        self.live: list[Row] = []
        self.number = 0
        self.values = {**VALUES, "v": HARD if hard else EASY, "w": HARD if hard else EASY}
        if hard:
            self.values["f"] = [None, 0.5, 1.25, -2.0, NAN]
        if few_keys:
            self.values |= {"k": ["a", None], "g": [1], "id": range(2)}

    def new_row(self) -> Row:
        self.number += 1
        choose = self.rng.choice
        return (*row_of(choose(self.values[name]) for name in self.names[:-1]), self.number)

    def changes(self, events: int, inserts_only: bool) -> list[Change]:
        """Return the next changes; an update is two of them."""
        found: list[Change] = []
        shrinks = self.rng.random() < 0.3  # more is deleted than inserted
        for _ in range(events):
            kind = self.rng.random()
            if inserts_only or not self.live or kind < (0.25 if shrinks else 0.5):
                copies = bool(self.live) and self.rng.random() < 0.1
                row = self.rng.choice(self.live) if copies else self.new_row()
                found.append(("insert", row))
                self.live.append(row)
                continue
            old = self.live.pop(self.rng.randrange(len(self.live)))
            if kind < 0.7:
                new, at = list(self.new_row()), self.rng.randrange(len(self.names))
                row = tuple(new[i] if i in (at, len(new) - 1) else old[i] for i in range(len(new)))
                if self.rng.random() < 0.2:
                    row = tuple(new)
                found += [(PAIR[0], old), (PAIR[1], row)]
                self.live.append(row)
            else:
                found.append(("delete", old))
        return found


def upserts(rng: random.Random, count: int, hard: bool) -> list[Row]:
    """Return rows of "orders" with a key in ``id`` and a sequence in ``u``; some come late, some twice."""
    table = Changing(rng, "orders", hard, few_keys=False)
    rows = [table.new_row() for _ in range(count)]
    rows += [rng.choice(rows) for _ in range(count // 6)]
    for _ in range(count // 8):  # others with the same sequence
        same = rng.choice(rows)
        rows.append((same[0], *table.new_row()[1:-1], same[-1]))
    places = [(at + rng.choice([0, 0, 0, rng.randrange(12)])) for at in range(len(rows))]
    return [rows[at] for at in sorted(range(len(rows)), key=lambda at: places[at])]


def cut(rng: random.Random, items: list[Any], batches: int) -> list[list[Any]]:
    """Return items in so many micro-batches, each in any order; some are empty."""
    places = sorted(rng.randrange(len(items) + 1) for _ in range(batches - 1))
    parts = [items[start:end] for start, end in zip([0, *places], [*places, len(items)], strict=True)]
    for part in parts:
        rng.shuffle(part)
    return parts


def disordered(rng: random.Random, parts: list[list[Any]]) -> list[list[Any]]:
    """Return micro-batches of which some items have come a micro-batch later."""
    found: list[list[Any]] = [[] for _ in range(len(parts) + 1)]
    for at, part in enumerate(parts):
        for item in part:
            found[at + (rng.random() < 0.2)].append(item)
    return found


def of_changes(changes: Iterable[Change], schema: pa.Schema) -> pa.RecordBatch:
    """Return changes as columns, with `CHANGE_TYPE`."""
    types, rows = zip(*changes, strict=True) if changes else ((), ())
    return of_rows(rows, schema).append_column(CHANGE_TYPE, pa.array(types, pa.string()))


def of_rows(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [
        pa.array(column, field.type, from_pandas=False) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(batch: pa.RecordBatch | pa.Table) -> Iterator[Row]:
    """Yield the rows of columns."""
    return map(row_of, zip(*(column.to_pylist() for column in batch.columns), strict=True))


MINUS_ZERO = object()  # differs from 0.0 where rows are compared


def exact(row: Row) -> Row:
    """Return a row that equals only rows that are the same in a multiset."""
    return tuple(
        MINUS_ZERO if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0 else value
        for value in row
    )


class Applied:
    """A table that changes are applied to, and what is wrong with them."""

    def __init__(self) -> None:
        self._exact = Rows()

    def apply(self, batch: pa.RecordBatch | pa.Table, paired: bool = True) -> list[str]:
        """Apply the changes of one micro-batch; return what is wrong.

        paired: whether no image of an update is alone; a WHERE may leave one
        """
        types = batch.column(CHANGE_TYPE).to_pylist()
        gone, come = Rows(), Rows()
        for type_, row in zip(types, rows_of(batch.drop_columns([CHANGE_TYPE])), strict=True):
            (come if WEIGHTS[type_] > 0 else gone)[exact(row)] += 1
        wrong = [f"{row} both comes and goes" for row in gone.keys() & come.keys()]
        pairs = Counter(types)
        if paired and pairs[PAIR[0]] != pairs[PAIR[1]]:
            wrong.append(f"there are {pairs[PAIR[0]]} preimages and {pairs[PAIR[1]]} postimages")
        self._exact.update(come)
        self._exact.subtract(gone)
        wrong += [f"{row} went that was not there" for row, count in self._exact.items() if count < 0]
        self._exact = +self._exact
        return wrong

    @property
    def rows(self) -> Rows:
        found = Rows()
        for row, count in self._exact.items():
            found[tuple(0.0 if value is MINUS_ZERO else value for value in row)] += count
        return found


def differences(found: Rows, wanted: Rows) -> list[str]:
    """Return in what two tables differ; numbers that are nearly the same do not."""
    if found == wanted:
        return []
    more, less = found - wanted, wanted - found
    for row in list(more.elements()):
        near = next((other for other in less if are_near(row, other)), None)
        if near is not None:
            more[row] -= 1
            less[near] -= 1
            less = +less
    return [
        *(f"{count} x {row} is wrong" for row, count in (+more).items()),
        *(f"{count} x {row} is missing" for row, count in less.items()),
    ]


def are_near(one: Row, other: Row) -> bool:
    """Return whether rows are the same up to the rounding of variances, and of DuckDB's mean of decimals."""
    return len(one) == len(other) and all(
        x == y
        or x is y
        or (isinstance(x, float) and is_near(x, y))
        or (isinstance(y, float) and is_near(y, x))
        for x, y in zip(one, other, strict=True)
    )


def is_near(x: float, y: Any) -> bool:
    if isinstance(y, Decimal):
        return abs(x - float(y)) <= max(1e-6, 1e-12 * abs(x))
    return isinstance(y, float) and abs(x - y) <= 1e-9 * max(abs(x), abs(y))
