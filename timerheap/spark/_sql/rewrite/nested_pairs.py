"""A SELECT over the pairs of its first join as one over a nested SELECT with the columns of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from timerheap.spark._columns import is_side, side_name
from timerheap.spark._sql.nodes import LEFT, IntervalJoined, Node, Selected
from timerheap.spark._sql.read.dialect import refuse, rename
from timerheap.spark._sql.read.select import SelectParts, own_nodes
from timerheap.spark._sql.rewrite.column_names import ColumnsOf, columns_of
from timerheap.spark._sql.rewrite.select_list import projected


def nested_pairs(
    select: SelectParts, source: IntervalJoined, conditions: list[exp.Expr]
) -> tuple[SelectParts, Selected]:
    """Return a SELECT whose columns name no tables, and the nested one, which filters the pairs."""
    tree = select.tree.copy()
    tree.set("where", None)
    return without_first_join(replace(select, tree=tree), source, conditions)


def without_first_join(
    select: SelectParts, source: Node, conditions: list[exp.Expr], of_left: list[str] | None = None
) -> tuple[SelectParts, Selected]:
    """Return a SELECT in which its first join is a table, and the nested one that is this table.

    source: the rows of that join
    conditions: which of them are in the table
    of_left: the columns of its left side, if they are known; what is none of them is a processing time
    """
    tree, versions = select.tree.copy(), [one and one.copy() for one in select.versions[1:]]
    later = [one.copy() for one in select.joins[1:]]
    tree.set("joins", later or None)
    sides = {side_name(at): side_name(at - 1) for at in range(2, len(later) + 2)}
    names, taken = dict[tuple[str, str], str](), set[str]()
    for column in _columns_of_sides(tree):
        if column.parent is tree:  # an item of the select list keeps its name
            column.replace(exp.alias_(column.copy(), column.name, quoted=True))
    for column in [one for root in (tree, *versions) if root for one in _columns_of_sides(root)]:
        side = column.table, column.name
        if column.table in sides:
            rename(column, sides[column.table])
            continue
        arrives = column.table == LEFT and of_left is not None and column.name not in of_left
        if not arrives:
            if side not in names:
                names[side] = (
                    column.name if column.name.lower() not in taken else f"{column.name}_{len(taken)}"
                )
                taken.add(names[side].lower())
            column.set("this", exp.to_identifier(names[side], quoted=True))
        rename(column, LEFT if later else None)
    items: list[exp.Expr] = [
        exp.alias_(exp.column(name, side, quoted=True), shown, quoted=True)
        for (side, name), shown in names.items()
    ]
    return SelectParts(tree, select.match, tuple(versions)), projected(source, conditions, items)


def _columns_of_sides(root: exp.Expr) -> list[exp.Column]:
    return [one for one in own_nodes(root) if isinstance(one, exp.Column) and is_side(one.table)]


def without_stars(select: SelectParts, sides: Mapping[str, Node], of_table: ColumnsOf | None) -> SelectParts:
    """Return a SELECT of joins that names each column in place of ``*``."""
    tree, items = select.tree.copy(), list[exp.Expr]()
    for item in tree.expressions:
        if not item.is_star:
            items.append(item)
            continue
        if of_table is None:
            refuse(item.sql(), "name the columns")
        of = item.table if isinstance(item, exp.Column) else ""
        for side, node in sides.items():
            if of in ("", side):
                items += [exp.column(name, side, quoted=True) for name in columns_of(node, of_table)]
    tree.set("expressions", items)
    return replace(select, tree=tree)
