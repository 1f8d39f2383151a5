"""Joins of rows without windows: which conditions are keys, which filter a side, and which remain."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from timerheap.spark._columns import side_name
from timerheap.spark._sql.nodes import JoinedRows, Node
from timerheap.spark._sql.read.dialect import as_read, refuse, text_of
from timerheap.spark._sql.read.select import SelectParts, own_nodes
from timerheap.spark._sql.rewrite.conjuncts import conjunction, equal_pair, null_safe, sides_of, without_side

_FILTERED = {  # which sides may lose rows before a join, by how it joins
    "inner": (True, True),
    "left": (False, True),
    "right": (True, False),
    "full": (False, False),
    "semi": (True, True),
    "anti": (False, True),
}


def row_join(
    left: Node,
    right: Node,
    tables: int,
    how: str,
    conditions: list[exp.Expr],
    needs: tuple[tuple[str, ...] | None, ...] = (),
) -> JoinedRows:
    """Return the join of two sides where all conditions are true; each names its sides before columns.

    tables: how many the result has; the last one is the right side, those before it are the left
    needs: the columns of each table that the result must have, None for all
    """
    if bare := [one for one in conditions if "" in sides_of(one)]:
        refuse(f"the condition {as_read(bare[0])} of a JOIN", "write the name of a table before each column")
    sides = tuple(map(side_name, range(tables)))
    keys: list[tuple[str, str, bool]] = []
    filters: tuple[list[exp.Expr], list[exp.Expr]] = ([], [])
    rest = []
    for one in map(null_safe, conditions):
        if _is_true(one):
            continue
        pair, found = equal_pair(one, sides[-1]), sides_of(one)
        right_only = found == {sides[-1]}
        if pair is not None:
            of_left, of_right = pair[0] if tables > 2 else without_side(pair[0]), without_side(pair[1])
            keys.append((text_of(of_left), text_of(of_right), isinstance(one, exp.NullSafeEQ)))
        elif found and (right_only or sides[-1] not in found) and _FILTERED[how][right_only]:
            filters[right_only].append(one if tables > 2 and not right_only else without_side(one))
        else:
            rest.append(one)
    where = conjunction(filters[0]), conjunction(filters[1])
    needs = needs or (None,) * tables
    if how in ("semi", "anti"):
        needs = None, needed_of(sides[1], rest)
    return JoinedRows(left, right, sides, how, tuple(keys), conjunction(rest), where, needs)


def needed_of(side: str, conditions: list[exp.Expr]) -> tuple[str, ...]:
    """Return the columns of a side in conditions."""
    columns = [column for one in conditions for column in one.find_all(exp.Column)]
    return tuple(dict.fromkeys(column.name for column in columns if column.table == side))


def needs_of(select: SelectParts, sides: list[str]) -> tuple[tuple[str, ...] | None, ...]:
    """Return the columns of each side that a SELECT with joins reads, None for all of them."""
    found: dict[str, list[str] | None] = {side: [] for side in sides}
    for node in own_nodes(select.tree):
        if isinstance(node, exp.Star) and isinstance(node.parent, exp.Count):
            continue
        table = node.table if isinstance(node, exp.Column) else ""
        if (
            isinstance(node, exp.Column)
            and not isinstance(node.this, exp.Star)
            and found.get(table) is not None
        ):
            found[table] = [*(found[table] or []), node.name]
        elif isinstance(node, exp.Column) and table in found:
            found[table] = None
        elif isinstance(node, (exp.Column, exp.Star)) and not isinstance(node.parent, exp.Column):
            return (None,) * len(sides)
    return tuple(None if names is None else tuple(dict.fromkeys(names)) for names in found.values())


def _is_true(condition: exp.Expr) -> bool:
    return isinstance(condition, exp.Boolean) and bool(condition.this)


def conditions_of_joins(
    hows: list[str], ons: list[list[exp.Expr]], where: list[exp.Expr]
) -> tuple[list[list[exp.Expr]], list[exp.Expr]]:
    """Return the conditions of each join of a chain, and those that remain in WHERE.

    In a chain of inner joins it does not matter where a condition is written: each is one of the first join
    that has its sides.
    """
    if set(hows) != {"inner"}:
        return ons, where
    found: list[list[exp.Expr]] = [[] for _ in hows]
    rest = []
    for one in [*where, *(each for on in ons for each in on)]:
        sides = sides_of(one)
        at = max((_place_of_side(side) for side in sides), default=1)
        if "" in sides and one in where:
            rest.append(one)
        else:
            found[max(at, 1) - 1].append(one)
    return found, rest


def _place_of_side(side: str) -> int:
    return next((at for at in range(64) if side_name(at) == side), 1)


def with_conditions_of_using(select: SelectParts, names: list[str]) -> SelectParts:
    """Return a SELECT with ON in place of USING; a column of it is that of the side that is always there."""
    tree = select.tree.copy()
    if any(one.is_star for one in tree.expressions):
        refuse("SELECT * of a JOIN with USING", "list the columns")
    of: dict[str, exp.Expr] = {}
    for join, name in zip(tree.args["joins"], names[1:], strict=True):
        using, how = (
            [one.name for one in join.args.get("using") or []],
            str(join.args.get("side") or "").lower(),
        )
        join.set("using", None)
        for column in using:
            before, own = of.get(column, exp.column(column, names[0])), exp.column(column, name)
            on = exp.EQ(this=before.copy(), expression=own)
            join.set("on", on if join.args.get("on") is None else exp.and_(join.args["on"], on))
            both = exp.Coalesce(this=before.copy(), expressions=[own.copy()])
            of[column] = {"right": own, "full": both}.get(how, before)

    def there(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and not node.table and node.name in of:
            return of[node.name].copy()
        return node

    items = []
    for item in tree.expressions:
        shared = isinstance(item, exp.Column) and not item.table and item.name in of
        items.append(exp.alias_(there(item), item.name, quoted=True) if shared else item.transform(there))
    tree.set("expressions", items)
    for clause in ("where", "group", "having"):
        if tree.args.get(clause) is not None:
            tree.set(clause, tree.args[clause].transform(there))
    return replace(select, tree=tree)
