"""The names of columns in a query, which say of which table of a JOIN a column is that does not name one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from sqlglot import exp

from timerheap.spark._columns import is_side, side_name
from timerheap.spark._sql.nodes import (
    Aggregated,
    CalledOnTables,
    Combined,
    Distinct,
    Either,
    Exploded,
    Grouped,
    IntervalJoined,
    Items,
    Joined,
    JoinedRows,
    Listed,
    Node,
    Over,
    Ranked,
    Selected,
    Table,
    TopRows,
    United,
    Windowing,
)
from timerheap.spark._sql.read.dialect import refuse, rename
from timerheap.spark._sql.read.select import SelectParts, own_nodes

ColumnsOf: TypeAlias = Callable[[tuple[str, ...]], list[str]]
"""Returns the columns of a table."""


def with_sides(select: SelectParts, sides: Mapping[str, Node], of_table: ColumnsOf | None) -> SelectParts:
    """Return a SELECT that names a side of its JOIN before each column that is of one side alone."""
    bare = [one for one in own_nodes(select.tree) if isinstance(one, exp.Column) and not one.table]
    if of_table is None or not bare:
        return select
    names = {side: {name.lower() for name in columns_of(node, of_table)} for side, node in sides.items()}
    tree = select.tree.copy()
    for column in own_nodes(tree):
        if isinstance(column, exp.Column) and not column.table and column.find_ancestor(exp.Table) is None:
            found = [side for side, known in names.items() if column.name.lower() in known]
            if len(found) > 1:
                instead = f"write the name of one before it: t.{column.name}"
                refuse(f"{column.name} of several tables", instead)
            if found:
                rename(column, found[0])
    return replace(select, tree=tree)


def columns_of(node: Node, of_table: ColumnsOf) -> list[str]:
    """Return the columns of the rows of a node, as far as they are known."""
    if isinstance(node, IntervalJoined):
        node = node.otherwise
    if isinstance(node, (Table, Windowing)):
        return [*of_table(node.table), *node.bounds]
    if isinstance(node, Over):
        return [*of_table(node.table), *node.calls]
    if isinstance(node, (Selected, Aggregated, Grouped)):
        return _of_items(node.columns, node.source, of_table)
    if isinstance(node, Ranked):
        return columns_of(node.source, of_table)
    if isinstance(node, TopRows):
        number = ((f"`{node.name}`", node.name),) if node.numbered else ()
        return _of_items((*node.before, *number, *node.behind), node.source, of_table)
    if isinstance(node, Exploded):
        more = [node.ordinality] if node.ordinality else []
        return [*columns_of(node.source, of_table), *node.columns, *more]
    if isinstance(node, (Listed, CalledOnTables)):
        return [*node.columns]
    if isinstance(node, Distinct):
        return columns_of(node.source, of_table)
    if isinstance(node, United):
        return columns_of(node.sources[0], of_table)
    if isinstance(node, Combined) or (
        isinstance(node, (Joined, JoinedRows)) and node.how in ("semi", "anti")
    ):
        return columns_of(node.left, of_table)
    if isinstance(node, (Joined, JoinedRows)):
        return [name for side in sides_of_join(node).values() for name in columns_of(side, of_table)]
    return columns_of(node.changing, of_table) if isinstance(node, Either) else []


def _of_items(items: Items, source: Node, of_table: ColumnsOf) -> list[str]:
    found: list[str] = []
    if isinstance(source, IntervalJoined):
        source = source.otherwise
    for text, name in items:
        side = text.removesuffix(".*")
        if name != "*":
            found.append(name)
        elif is_side(side) and isinstance(source, (Joined, JoinedRows)):
            found += columns_of(sides_of_join(source)[side], of_table)
        else:
            found += columns_of(source, of_table)
    return found


def sides_of_join(node: Joined | JoinedRows) -> dict[str, Node]:
    """Return the sides of a join by the names of the columns that have their rows."""
    left = node.left
    if isinstance(node, JoinedRows) and isinstance(left, JoinedRows) and len(node.sides) > 2:
        return {**sides_of_join(left), node.sides[-1]: node.right}
    return {side_name(0): node.left, side_name(1): node.right}
