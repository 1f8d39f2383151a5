"""Relational algebra on multisets of rows, computed anew each time: what a table is that others make up.

A table is a Counter of rows, which are tuples. Null is None, and there is one NaN, so that rows with it are
equal. Aggregates are exact: they are computed with fractions, and rounded once.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

Row = tuple[Any, ...]
Rows = Counter[Row]
NAN = math.nan
WIDE = Context(prec=100)


def one_nan(value: Any) -> Any:
    return NAN if isinstance(value, float) and math.isnan(value) else value


def row_of(values: Iterable[Any]) -> Row:
    return tuple(map(one_nan, values))


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def rank_of(value: Any) -> Any:
    """Return what a value that is not null is sorted by: NaN is larger than all others."""
    return (1, 0) if is_nan(value) else (0, value)


def compared(rows: Sequence[Row], orders: Sequence[tuple[int, bool, bool]]) -> list[tuple[Any, ...]]:
    """Return by what each row is sorted: by columns, each descending or not, and with nulls first or last."""
    found = []
    for row in rows:
        parts: list[Any] = []
        for at, descending, nulls_first in orders:
            value = row[at]
            if value is None:
                parts.append((0 if nulls_first else 2, Reversed(0) if descending else 0))
            else:
                parts.append((1, Reversed(rank_of(value)) if descending else rank_of(value)))
        found.append(tuple(parts))
    return found


class Reversed:
    """A value in descending order."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reversed) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


# Aggregates of the values of a group, without nulls: of one column, or of pairs of a value and its sequence.


def total(values: list[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], Decimal):
        with localcontext(WIDE):
            return sum(values)
    if not isinstance(values[0], float):
        return sum(values)
    special = [value for value in values if not math.isfinite(value)]
    return one_nan(sum(special)) if special else as_float(sum(map(Fraction, values)))


def as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def mean(values: list[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], Decimal):
        return WIDE.divide(total(values), Decimal(len(values)))
    return one_nan(float(total(values)) / len(values))


def variance(values: list[Any], of_sample: bool) -> Any:
    n = len(values) - of_sample
    if not values or n < 1:
        return None
    if any(not math.isfinite(value) for value in values):
        return NAN
    exact = list(map(Fraction, values))
    center = sum(exact) / len(exact)
    return as_float(sum((value - center) ** 2 for value in exact) / n)


def root(value: Any) -> Any:
    return None if value is None else math.sqrt(value)


def least(values: list[Any]) -> Any:
    return min(values, key=rank_of, default=None)


def largest(values: list[Any]) -> Any:
    return max(values, key=rank_of, default=None)


AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "count": len,
    "count_distinct": lambda values: len(set(values)),
    "sum": total,
    "avg": mean,
    "min": least,
    "max": largest,
    "var_pop": lambda values: variance(values, of_sample=False),
    "var_samp": lambda values: variance(values, of_sample=True),
    "stddev_pop": lambda values: root(variance(values, of_sample=False)),
    "stddev_samp": lambda values: root(variance(values, of_sample=True)),
}


def aggregated(
    rows: Rows,
    key: Sequence[int],
    aggregates: Sequence[tuple[str, int | None, int | None, int | None]],
    always: bool = False,
) -> Rows:
    """Return the groups with their aggregates.

    aggregates: each a function, its column, for ``min_by`` and ``max_by`` the column that orders, and a
        column that is true for the rows of a FILTER
    always: whether there is a group without rows, too, of an empty key
    """
    groups: dict[Row, list[Row]] = defaultdict(list)
    if always:
        groups[()] = []
    for row, count in rows.items():
        groups[tuple(row[at] for at in key)] += [row] * count
    found = Rows()
    for of, members in groups.items():
        results = []
        for function, column, by, kept in aggregates:
            mine = members if kept is None else [row for row in members if row[kept]]
            if by is not None:
                pairs = [(row[by], row[column]) for row in mine if row[by] is not None]  # type: ignore[index]
                last = (min if function == "min_by" else max)(
                    pairs, key=lambda p: rank_of(p[0]), default=None
                )
                results.append(None if last is None else last[1])
                continue
            values = [1] * len(mine) if column is None else [row[column] for row in mine]
            results.append(AGGREGATES[function]([value for value in values if value is not None]))
        found[row_of((*of, *results))] += 1
    return found


def first_rows(
    rows: Rows,
    key: Sequence[int],
    n: int,
    orders: Sequence[tuple[int, bool, bool]],
    rank: str,
    numbered: bool,
) -> Rows:
    """Return the rows of each key whose number is at most n, with it as the last column if `numbered`."""
    groups: dict[Row, list[Row]] = defaultdict(list)
    for row, count in rows.items():
        groups[tuple(row[at] for at in key)] += [row] * count
    found = Rows()
    for members in groups.values():
        keys = compared(members, orders)
        order = sorted(range(len(members)), key=lambda at: keys[at])
        number = dense = 0
        for place, at in enumerate(order, 1):
            if place == 1 or keys[at] != keys[order[place - 2]]:
                number, dense = place, dense + 1
            shown = {"row_number": place, "rank": number, "dense_rank": dense}[rank]
            if shown <= n:
                found[(*members[at], shown) if numbered else members[at]] += 1
    return found


def joined(
    left: Rows,
    right: Rows,
    left_key: Sequence[int],
    right_key: Sequence[int],
    how: str,
    widths: tuple[int, int],
    condition: Callable[[Row, Row], bool | None] | None = None,
) -> Rows:
    """Return pairs of rows with equal keys that meet the condition, each the left row and then the right one.

    Null equals nothing. `widths` are the numbers of columns; those of a missing side are null.
    """
    by_key: dict[Row, list[tuple[Row, int]]] = defaultdict(list)
    for row, count in right.items():
        by_key[tuple(row[at] for at in right_key)].append((row, count))
    found, matched = Rows(), set[Row]()
    for row, count in left.items():
        key = tuple(row[at] for at in left_key)
        pairs = [] if None in key else by_key.get(key, [])
        if condition is not None:
            pairs = [pair for pair in pairs if condition(row, pair[0])]
        matched.update(other for other, _ in pairs)
        if how in ("semi", "anti"):
            if bool(pairs) == (how == "semi"):
                found[row] += count
            continue
        for other, others in pairs:
            found[row + other] += count * others
        if not pairs and how in ("left", "full"):
            found[row + (None,) * widths[1]] += count
    if how in ("right", "full"):
        for row, count in right.items():
            if row not in matched:
                found[(None,) * widths[0] + row] += count
    return found


def newest(upserts: Iterable[Row], key: Sequence[int], sequence: int, deleted: int | None) -> Rows:
    """Return the row of each key with the largest sequence, without the keys whose row says `deleted`.

    Of rows with one sequence a delete is newer, then the one whose columns are greater, null being the least.
    """

    def place(row: Row) -> Any:
        order = [sequence, *([] if deleted is None else [deleted]), *range(len(row))]
        return [(row[at] is not None, row[at] is not None and rank_of(row[at])) for at in order]

    last: dict[Row, Row] = {}
    for row in upserts:
        of = tuple(row[at] for at in key)
        if of not in last or place(row) > place(last[of]):
            last[of] = row
    return Rows(row for row in last.values() if deleted is None or not row[deleted])
