"""The WINDOW clause: its definitions in place of their names."""

from __future__ import annotations

from sqlglot import exp

from timerheap.spark._sql.read.dialect import as_read, refuse
from timerheap.spark._sql.read.select import own_nodes


def with_defined_windows(select: exp.Select) -> exp.Select:
    """Return a SELECT without names of the WINDOW clause; raise for queries in its select list."""
    defined = {one.name: one for one in select.args.get("windows") or []}
    select = select.copy()
    select.set("windows", None)
    for over in [one for one in own_nodes(select) if isinstance(one, exp.Window) and one.alias]:
        if over.alias not in defined:
            refuse(as_read(over), f"define it: WINDOW {over.alias} AS (PARTITION BY ... ORDER BY ...)")
        window = defined[over.alias].copy()
        window.set("this", over.this)
        for clause in filter(over.args.get, ("order", "spec")):
            window.set(clause, over.args[clause])
        over.replace(window)
    for node in [*select.expressions, *filter(None, [select.args.get("having")])]:
        if query := node.find(exp.Query):
            refuse(f"{as_read(query)} in this place", "write it as a window join, or in Spark")
    return select
