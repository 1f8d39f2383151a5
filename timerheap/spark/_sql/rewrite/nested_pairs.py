"""A SELECT over pairs of rows as one over a nested SELECT, which has the columns of both sides."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from timerheap.spark._columns import is_side
from timerheap.spark._sql.nodes import IntervalJoined, Selected
from timerheap.spark._sql.read.dialect import rename
from timerheap.spark._sql.read.select import SelectParts, own_nodes
from timerheap.spark._sql.rewrite.select_list import projected


def nested_pairs(
    select: SelectParts, source: IntervalJoined, conditions: list[exp.Expr]
) -> tuple[SelectParts, Selected]:
    """Return a SELECT whose columns name no tables, and the nested one, which filters the pairs."""
    tree, names, taken = select.tree.copy(), dict[tuple[str, str], str](), set[str]()
    tree.set("where", None)
    tree.set("joins", None)
    for column in [one for one in own_nodes(tree) if isinstance(one, exp.Column) and is_side(one.table)]:
        side = column.table, column.name
        if side not in names:
            names[side] = column.name if column.name.lower() not in taken else f"{column.name}_{len(taken)}"
            taken.add(names[side].lower())
        if column.parent is tree:  # an item of the select list keeps its name
            column.replace(exp.alias_(column.copy(), column.name, quoted=True))
    for column in [one for one in own_nodes(tree) if isinstance(one, exp.Column) and is_side(one.table)]:
        shown = names[column.table, column.name]
        rename(column, None)
        column.set("this", exp.to_identifier(shown, quoted=True))
    items: list[exp.Expr] = [
        exp.alias_(exp.column(name, side, quoted=True), shown, quoted=True)
        for (side, name), shown in names.items()
    ]
    return replace(select, tree=tree), projected(source, conditions, items)
