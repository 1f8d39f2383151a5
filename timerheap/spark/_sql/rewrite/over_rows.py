"""Functions OVER the rows of a table: which rows, in which order, and which functions."""

from __future__ import annotations

from sqlglot import exp

from timerheap.spark._columns import computed_name
from timerheap.spark._sql.nodes import Call, Node, Over, Selected, Table
from timerheap.spark._sql.over_calls import Frame, RowCall
from timerheap.spark._sql.read.dialect import as_read, refuse, text_of
from timerheap.spark._sql.read.over_clause import over_call, partition_and_order
from timerheap.spark._sql.read.select import SelectParts
from timerheap.spark._sql.rewrite.conjuncts import conjunction
from timerheap.spark._sql.rewrite.select_list import named, projected


def over_rows(
    select: SelectParts, source: Node, conditions: list[exp.Expr], overs: list[exp.Window]
) -> Selected:
    """Return the plan of a SELECT with functions OVER the rows of a table."""
    if not isinstance(source, Table) or select.group is not None:
        refuse(f"{as_read(overs[0])} of windows or groups", "compute it from a table or a view")
    keys, time, order = partition_and_order(overs)
    calls: dict[str, RowCall | tuple[Call, Frame]] = {}

    def replaced(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window):
            return node
        name = computed_name(0, text_of(node))
        calls[name] = over_call(node)
        return exp.column(name, quoted=True)

    items = [item if item.is_star else named(item, item.transform(replaced)) for item in select.items]
    rows = Over(source.table, conjunction(conditions), keys, time, order, calls)
    return projected(rows, [], items)
