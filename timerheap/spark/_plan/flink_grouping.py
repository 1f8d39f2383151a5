"""Parses GROUP BY in Flink's SQL: the keys of each grouping set."""

from __future__ import annotations

from itertools import chain, combinations, product

from sqlglot import exp

from timerheap.spark._plan.flink_nodes import BOUNDS, expect_only, name_of, parts_of, refuse, text_of
from timerheap.spark._worker.window_columns import GROUPING_SET

__all__ = ["grouping_sets", "grouping_value"]

_MAX_SETS = 64

Keys = tuple[str, ...]


def grouping_sets(select: exp.Select) -> list[Keys]:
    """Return the keys of each grouping set, without the window's bounds; a plain GROUP BY has one set.

    Raises
    ------
    ValueError
        If a set lacks window_start or window_end, or contains anything but columns.
    """
    group = select.args.get("group")
    if group is None:
        refuse("a query without GROUP BY", "group by window_start, window_end and the keys")
    expect_only(group, {"expressions"})
    choices = [_choices(node) for node in group.expressions]
    sets = [tuple(dict.fromkeys(chain.from_iterable(chosen))) for chosen in product(*choices)]
    if len(sets) > _MAX_SETS:
        refuse(f"GROUP BY of {len(sets)} grouping sets", f"write at most {_MAX_SETS} with GROUPING SETS")
    for bound in BOUNDS[:2]:
        if not all(bound in names for names in sets):
            raise ValueError(
                f"query: GROUP BY must have window_start and window_end, in or beside each grouping set; "
                f"{bound} is missing"
            )
    return [tuple(name for name in names if name not in BOUNDS) for names in sets]


def _choices(node: exp.Expr) -> list[Keys]:
    """Return the columns that an element of GROUP BY contributes, for each of its grouping sets."""
    if isinstance(node, exp.GroupingSets):
        return [keys for element in node.expressions for keys in _choices(element)]
    if isinstance(node, (exp.Cube, exp.Rollup)):
        parts = [_columns(element) for element in node.expressions]
        if isinstance(node, exp.Cube):
            chosen = [some for n in range(len(parts), -1, -1) for some in combinations(parts, n)]
        else:
            chosen = [tuple(parts[:n]) for n in range(len(parts), -1, -1)]
        return [tuple(chain.from_iterable(some)) for some in chosen]
    return [_columns(node)]


def _columns(node: exp.Expr) -> Keys:
    return tuple(name_of(part, "GROUP BY") for part in parts_of(node))


def grouping_value(node: exp.Grouping | exp.GroupingId, sets: list[Keys]) -> exp.Expr:
    """Return the value of GROUPING or GROUPING_ID: one bit per column, set if its grouping set lacks it."""
    names = [name_of(column, text_of(node)) for column in node.expressions]
    keys = list(dict.fromkeys(chain.from_iterable(sets)))
    for name in names:
        if name not in keys:
            refuse(text_of(node), f"use columns of GROUP BY: {', '.join(keys) or 'none'}")
    if not names or (isinstance(node, exp.Grouping) and len(names) > 1):
        refuse(text_of(node), "write GROUPING(k) or GROUPING_ID(k, ...) with columns of GROUP BY")
    values = [sum((name not in keys) << at for at, name in enumerate(reversed(names))) for keys in sets]
    if len(sets) == 1:
        return exp.cast(exp.Literal.number(values[0]), "bigint")
    case = exp.Case(this=exp.column(GROUPING_SET, quoted=True))
    for number, value in enumerate(values):
        case = case.when(exp.Literal.number(number), exp.Literal.number(value))
    return exp.cast(case, "bigint")
