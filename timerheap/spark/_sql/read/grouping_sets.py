"""GROUP BY: the grouping sets of its elements."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, combinations, product

from sqlglot import exp

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import GROUPING_SET, WINDOW_COLUMNS
from timerheap.spark._sql.read.clauses import column_name, parts_of
from timerheap.spark._sql.read.dialect import as_read, expect_only, refuse, text_of

_MAX_SETS = 64

Keys = tuple[str, ...]


def grouping_sets(group: exp.Expr) -> list[Keys]:
    """Return the keys of each grouping set; a plain GROUP BY has one set."""
    expect_only(group, {"expressions"})
    choices = [_choices(node) for node in group.expressions]
    sets = [tuple(dict.fromkeys(chain.from_iterable(chosen))) for chosen in product(*choices)]
    if len(sets) > _MAX_SETS:
        refuse(f"GROUP BY of {len(sets)} grouping sets", f"write at most {_MAX_SETS} with GROUPING SETS")
    return sets


def expect_windows(group: exp.Expr, sets: list[Keys], bounds: Mapping[str, str]) -> None:
    """Raise unless each grouping set has the bounds of the window."""
    for bound in WINDOW_COLUMNS[:2]:
        if not all(bound in [bounds.get(name) for name in names] for names in sets):
            raise ArgumentValueError(
                f"query: GROUP BY must have window_start and window_end, in or beside each grouping set; "
                f"{bound} is missing in {as_read(group).strip()}, where names are case-sensitive"
            )


def key_expressions(group: exp.Expr) -> list[exp.Expr]:
    """Return the elements of GROUP BY, of all grouping sets."""
    expect_only(group, {"expressions"})
    return [one for node in group.expressions for one in _expressions_in(node)]


def _expressions_in(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, (exp.GroupingSets, exp.Cube, exp.Rollup, exp.Tuple)):
        return [one for part in node.expressions for one in _expressions_in(part)]
    return [node.unnest()]


def _choices(node: exp.Expr) -> list[Keys]:
    """Return the columns that an element of GROUP BY contributes, for each of its grouping sets."""
    if isinstance(node, exp.GroupingSets):
        return [keys for element in node.expressions for keys in _choices(element)]
    if isinstance(node, (exp.Cube, exp.Rollup)):
        parts = [_keys_of(element) for element in node.expressions]
        if isinstance(node, exp.Cube):
            chosen = [some for n in range(len(parts), -1, -1) for some in combinations(parts, n)]
        else:
            chosen = [tuple(parts[:n]) for n in range(len(parts), -1, -1)]
        return [tuple(chain.from_iterable(some)) for some in chosen]
    return [_keys_of(node)]


def _keys_of(node: exp.Expr) -> Keys:
    return tuple(column_name(part, "GROUP BY") for part in parts_of(node))


def grouping_value(
    node: exp.Grouping | exp.GroupingId, columns: list[exp.Expr], sets: list[Keys]
) -> exp.Expr:
    """Return the value of GROUPING or GROUPING_ID: one bit per column, set if its grouping set lacks it."""
    names = [column_name(column, text_of(node)) for column in columns]
    keys = list(dict.fromkeys(chain.from_iterable(sets)))
    if not names or not set(names) <= set(keys) or (isinstance(node, exp.Grouping) and len(names) > 1):
        shown = f"columns of GROUP BY: {', '.join(keys) or 'none'}"
        refuse(as_read(node), f"write GROUPING(k) or GROUPING_ID(k, ...) with {shown}")
    values = [sum((name not in keys) << at for at, name in enumerate(reversed(names))) for keys in sets]
    if len(sets) == 1:
        return exp.cast(exp.Literal.number(values[0]), "bigint")
    case = exp.Case(this=exp.column(GROUPING_SET, quoted=True))
    for number, value in enumerate(values):
        case = case.when(exp.Literal.number(number), exp.Literal.number(value))
    return exp.cast(case, "bigint")
