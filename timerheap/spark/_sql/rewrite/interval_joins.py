"""Interval joins in the text of a query: conditions that say how far apart the times of two rows may be."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sqlglot import exp

from timerheap.spark._sql.nodes import LEFT, RIGHT, IntervalJoined, JoinedRows, Node
from timerheap.spark._sql.read.clauses import interval_ms
from timerheap.spark._sql.read.select import all_comparisons
from timerheap.spark._sql.rewrite.row_joins import row_join

_Columns = dict[tuple[str, str], int]
"""How often each column is added, by the name of its side and its own."""


def rows_joined(
    left: Node,
    right: Node,
    names: tuple[str, str],
    how: str,
    conditions: list[exp.Expr],
    needs: tuple[tuple[str, ...] | None, ...],
) -> JoinedRows | IntervalJoined:
    """Return the join of the rows of two sides: an interval join if conditions bound their times.

    names: of the tables, or of nested queries
    """
    any_time = row_join(left, right, 2, how, conditions, needs)
    found = _bounds(conditions)
    if found is None:
        return any_time
    times, bounds = found
    rest = [one for one in all_comparisons(conditions) if one not in bounds.conditions]
    rows = row_join(left, right, 2, how, rest, needs)
    return IntervalJoined(rows, names, times, (max(bounds.least), min(bounds.most)), any_time)


@dataclass
class _Bounds:
    """How far the right time is from the left one in ms, and the conditions that say so."""

    least: list[int] = field(default_factory=list)
    most: list[int] = field(default_factory=list)
    conditions: list[exp.Expr] = field(default_factory=list)


def _bounds(conditions: list[exp.Expr]) -> tuple[tuple[str, str], _Bounds] | None:
    """Return the first two columns whose distance has bounds on both sides, and these bounds."""
    found: dict[tuple[str, str], _Bounds] = defaultdict(_Bounds)
    for one in all_comparisons(conditions):
        known = _times_apart(one)
        if known is None:
            continue
        times, at_least, ms = known
        bounds = found[times]
        (bounds.least if at_least else bounds.most).append(ms)
        bounds.conditions.append(one)
    for times, bounds in found.items():
        if bounds.least and bounds.most and max(bounds.least) <= min(bounds.most):
            return times, bounds
    return None


def _times_apart(condition: exp.Expr) -> tuple[tuple[str, str], bool, int] | None:
    """Return a left and a right time, and by how many ms the right one is behind: at least, or at most.

    None for any condition that is not a comparison of sums of the two times and intervals.
    """
    if not isinstance(condition, (exp.GTE, exp.GT, exp.LTE, exp.LT)):
        return None
    columns: _Columns = defaultdict(int)
    sums = [_ms_added(condition.this, 1, columns), _ms_added(condition.expression, -1, columns)]
    signs = {side: (name, sign) for (side, name), sign in columns.items() if sign}
    if None in sums or len(signs) != sum(map(bool, columns.values())) or set(signs) != {LEFT, RIGHT}:
        return None
    (left, of_left), (right, of_right) = signs[LEFT], signs[RIGHT]
    if (of_left, of_right) not in ((1, -1), (-1, 1)):
        return None
    more = sum(ms for ms in sums if ms is not None)
    at_least, exact = isinstance(condition, (exp.GTE, exp.GT)), isinstance(condition, (exp.GTE, exp.LTE))
    if of_right < 0:
        at_least = not at_least
    ms = -more * of_right
    if not exact:
        ms += 1 if at_least else -1
    return (left, right), at_least, ms


def _ms_added(node: exp.Expr, sign: int, columns: _Columns) -> int | None:
    """Add the columns of a sum to `columns`, and return the ms in it, None if it has something else."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        columns[node.table, node.name] += sign
        return 0
    if isinstance(node, (exp.Add, exp.Sub)):
        sums = (
            _ms_added(node.left, sign, columns),
            _ms_added(node.right, -sign if isinstance(node, exp.Sub) else sign, columns),
        )
        return None if sums[0] is None or sums[1] is None else sums[0] + sums[1]
    if isinstance(node, exp.Neg) and not isinstance(node.this, exp.Interval):
        return _ms_added(node.this, -sign, columns)
    ms = length_ms(node)
    return None if ms is None else sign * ms


def length_ms(node: exp.Expr) -> int | None:
    """Return a length in ms: an interval, or a number, which is one of times that are numbers."""
    if isinstance(node, exp.Literal) and node.is_int:
        return int(node.name)
    try:
        return interval_ms(node, "a bound")
    except ValueError:
        return None
