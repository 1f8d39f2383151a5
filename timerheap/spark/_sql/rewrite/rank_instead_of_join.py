"""Joins that are planned as something cheaper: what is the same on both sides is computed once."""

from __future__ import annotations

from dataclasses import replace

from timerheap.spark._columns import SIDES
from timerheap.spark._order_by import Order
from timerheap.spark._sql.nodes import LEFT, RIGHT, Aggregated, Joined, Ranked, Selected


def rank_instead_of(join: Joined) -> Selected | None:
    """Return the rows with the most of a column in each window, if that is what a join finds.

    Its right side then has the maximum over the very results that are its left side. To rank these needs them
    once; Flink's planner, too, reuses what is the same on both sides.
    """
    left, right = join.left, join.right
    if join.how != "inner" or not isinstance(left, Aggregated) or not isinstance(right, Aggregated):
        return None
    results, calls = right.source, [*right.calls.items()]
    if right.keys or (right.where, right.having) != (None, None) or len(calls) != 1:
        return None
    if not isinstance(results, Aggregated) or replace(left, columns=results.columns, bounds={}) != replace(
        results, bounds={}
    ):
        return None
    here, there, most = ({name: text for text, name in node.columns} for node in (left, results, right))
    pairs = [(x, y, False) for x in here for y in most if join.condition == f"{LEFT}.{x} >= {RIGHT}.{y}"]
    ((name, call),) = calls
    keys = [*join.keys, *pairs] if pairs or join.condition is None else []
    (x, y, null_safe), *more = keys or [("", "", True)]
    maximum = call.function == "max" and call.condition is None and most.get(y) == f"`{name}`"
    if more or null_safe or not maximum or x not in here or there.get(str(call.argument)) != here[x]:
        return None
    bounds = {which: name for name, which in left.bounds.items()}
    values = {
        one: x if text == most[y] else bounds.get(right.bounds.get(one, "")) for one, text in most.items()
    }
    if None in values.values():
        return None
    fields = [
        f"named_struct({', '.join(f'{name!r}, `{value}`' for name, value in row.items())})"
        for row in (dict(zip(here, here, strict=True)), values)
    ]
    rows = Selected(left, f"`{x}` IS NOT NULL", (("*", "*"),), left.bounds)
    ranked = Ranked(rows, "rank", "rank of the row", (), (Order(f"`{x}`", True, nulls_first=False),), limit=1)
    return Selected(ranked, None, tuple(zip(fields, SIDES, strict=True)), join.bounds)
