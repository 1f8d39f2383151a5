"""Window joins: of two sides with the same windows, also as IN and EXISTS."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from timerheap.spark._columns import SIDES, WINDOW_COLUMNS
from timerheap.spark._sql.nodes import Aggregated, Joined, Node, Ranked, Selected, Windowing
from timerheap.spark._sql.read.dialect import as_read, refuse, text_of
from timerheap.spark._sql.rewrite.conjuncts import conjunction, equal_pair, null_safe, sides_of, without_side
from timerheap.spark._sql.rewrite.select_list import bound_of


def compares_windows(left: Node, right: Node, conditions: list[exp.Expr]) -> bool:
    """Return whether a condition says that a bound of a window is the same on both sides."""
    pairs = [pair for pair in map(equal_pair, conditions) if pair is not None]
    bounds = [
        (bound_of(without_side(x), left.bounds), bound_of(without_side(y), right.bounds)) for x, y in pairs
    ]
    return any(x is not None and x == y for x, y in bounds)


def window_join(left: Node, right: Node, how: str, conditions: list[exp.Expr]) -> Joined:
    """Return the join of two sides where all conditions are true; each names its sides before columns."""
    if bare := [one for one in conditions if "" in sides_of(one)]:
        refuse(f"the condition {as_read(bare[0])} of a JOIN", "write the name of a table before each column")
    conditions = [null_safe(one) for one in conditions]
    rest = sorted((one for one in conditions if equal_pair(one) is None), key=lambda one: len(sides_of(one)))
    filters = [[without_side(one) for one in rest if sides_of(one) == {side}] for side in SIDES]
    keys: list[tuple[str, str, bool]] = []
    same: set[str] = set()
    for one, pair in ((one, pair) for one in conditions if (pair := equal_pair(one))):
        of_left, of_right = (without_side(node) for node in pair)
        which = bound_of(of_left, left.bounds)
        if which is not None and which == bound_of(of_right, right.bounds):
            same.add(which)
        else:
            texts = _where_met(of_left, filters[0]), _where_met(of_right, filters[1])
            keys.append((*texts, isinstance(one, exp.NullSafeEQ)))
    windows = [_windows_of(node) for node in (left, right)]
    if None in windows or not same >= set(WINDOW_COLUMNS[:2]):
        refuse(
            f"{'IN or EXISTS' if how in ('semi', 'anti') else 'a JOIN'} without windows",
            "select from windows on both sides, and write L.window_start = R.window_start AND L.window_end = "
            "R.window_end AND ... in ON, or in the WHERE of the inner SELECT; or join tables by an interval "
            "of their times: L.ts BETWEEN R.ts - INTERVAL '5' MINUTE AND R.ts",
        )
    shapes = [(found.function, found.lengths) for found in windows if found is not None]
    if shapes[0] != shapes[1]:
        shown = " and ".join(_shown_windows(*shape) for shape in shapes)
        refuse(f"a window join of {shown}", "use the same windows on both sides")
    return Joined(left, right, how, tuple(keys), conjunction(rest))


def _where_met(key: exp.Expr, conditions: list[exp.Expr]) -> str:
    """Return the text of a key, null where the conditions on its side are not met: it may fail there."""
    if not conditions or isinstance(key, exp.Column):
        return text_of(key)
    return f"CASE WHEN {conjunction(conditions)} THEN {text_of(key)} END"


def _shown_windows(function: str, lengths: Mapping[str, int]) -> str:
    return f"{function.upper()}({', '.join(f'{name} {ms} ms' for name, ms in lengths.items())})"


def _windows_of(node: Node) -> Windowing | None:
    """Return the window function of the rows, None if they have no windows."""
    while isinstance(node, (Selected, Aggregated, Ranked, Joined)):
        node = node.left if isinstance(node, Joined) else node.source
    return node if isinstance(node, Windowing) else None
