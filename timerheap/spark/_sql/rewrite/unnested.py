"""UNNEST, LATERAL and VALUES in FROM: rows that are made of the values of a row, or written in the query."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from timerheap.spark._sql.nodes import Exploded, Listed, Node, Selected
from timerheap.spark._sql.read.dialect import as_read, expect_only, refuse, text_of
from timerheap.spark._sql.read.select import SelectParts, with_tables
from timerheap.spark._sql.rewrite.column_names import ColumnsOf, columns_of

ONE_ROW = Listed("VALUES (0)", ())
"""What a SELECT without FROM reads."""

_OUTER = ("explode", "posexplode", "inline")


def is_unnested(join: exp.Join) -> bool:
    """Return whether what is joined are values of the row."""
    return isinstance(join.this, (exp.Unnest, exp.Lateral))


def with_unnested(
    select: SelectParts, source: Node, name: str, of_table: ColumnsOf | None
) -> tuple[SelectParts, Node]:
    """Return a SELECT without such joins, and the rows that they make; its columns name no tables."""
    names: dict[str, str | None] = {name: None} if name else {}
    rows = source
    for join in select.joins:
        if not is_unnested(join):
            refuse(
                f"{as_read(join).lstrip(', ')} beside UNNEST or LATERAL",
                "nest it: FROM (SELECT ... JOIN ...)",
            )
        rows = _exploded(join, rows, names, of_table)
        if join.this.alias:
            names[join.this.alias] = None
    tree = select.tree.copy()
    tree.set("joins", None)
    return replace(select, tree=tree).with_names(names), rows


def _exploded(
    join: exp.Join, source: Node, names: dict[str, str | None], of_table: ColumnsOf | None
) -> Exploded:
    item, shown = join.this, as_read(join.this)
    expect_only(join, {"this", "on", "side", "kind"})
    side, on = str(join.args.get("side") or "").lower(), join.args.get("on")
    if side not in ("", "left") or not (on is None or on == exp.true()):
        refuse(
            as_read(join).lstrip(", "), "write CROSS JOIN, or LEFT JOIN ... ON TRUE, and conditions in WHERE"
        )
    columns = tuple(item.alias_column_names)
    if isinstance(item, exp.Unnest):
        if len(item.expressions) != 1:
            refuse(shown, "write UNNEST of one column")
        call, offset = item.expressions[0], item.args.get("offset")
        ordinality = offset.name if isinstance(offset, exp.Identifier) else ("ORDINALITY" if offset else "")
        return _with_new_names(
            source,
            Exploded(source, text_of(with_tables(call, names)), columns, side == "left", ordinality),
            of_table,
        )
    text = text_of(with_tables(_lateral_call(item), names))
    function, _, rest = text.partition("(")
    if side == "left":
        if function.lower() not in _OUTER:
            refuse(f"LEFT JOIN {shown}", f"use CROSS JOIN, or one of {', '.join(_OUTER).upper()}")
        text = f"{function}_outer({rest}"
    return _with_new_names(source, Exploded(source, text, columns, True, None), of_table)


def _lateral_call(item: exp.Lateral) -> exp.Expr:
    """Return the call of a function that returns rows."""
    call = item.this
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        (call,) = call.expressions
    if not isinstance(call, exp.Func):
        refuse(as_read(item), "write the expressions in the select list, or LATERAL TABLE(f(x)) AS T(a)")
    return call


def _with_new_names(source: Node, found: Exploded, of_table: ColumnsOf | None) -> Exploded:
    """Return rows whose new columns have other names than those that are there."""
    there = {one.lower() for one in columns_of(source, of_table)} if of_table is not None else set()
    same = [one for one in found.columns if one.lower() in there]
    if same:
        refuse(f"two columns {same[0]} of a table and of its values", "give the values other names: AS T(x)")
    return found


def rows_of_values(item: exp.Values) -> Listed:
    """Return the rows that VALUES lists."""
    rows = [one.expressions if isinstance(one, exp.Tuple) else [one] for one in item.expressions]
    texts = ", ".join(f"({', '.join(map(text_of, row))})" for row in rows)
    return Listed(f"VALUES {texts}", tuple(item.alias_column_names))


def called(item: exp.Lateral) -> Listed:
    """Return the rows that a function makes of no other row: ``FROM LATERAL TABLE(f('a'))``."""
    return Listed(text_of(_lateral_call(item)), tuple(item.alias_column_names))


def renamed(node: Node, columns: list[str], shown: str, of_table: ColumnsOf | None) -> Node:
    """Return rows whose columns have other names: ``AS t (a, b)``."""
    there = [] if of_table is None else columns_of(node, of_table)
    if len(there) != len(columns) or len({one.lower() for one in there}) < len(there):
        of = f"{len(there)} columns" if there else "columns that are not known"
        refuse(f"renaming columns with {shown} ({', '.join(columns)}) of {of}", "rename them in SELECT")
    items = tuple((f"`{old}`", new) for old, new in zip(there, columns, strict=True))
    bounds = {new: node.bounds[old] for old, new in zip(there, columns, strict=True) if old in node.bounds}
    return Selected(node, None, items, bounds)
