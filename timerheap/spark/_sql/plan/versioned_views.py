"""Views of the last row of each key as the versions of an as-of join: each row held until the next one."""

from __future__ import annotations

from collections.abc import Sequence

from timerheap.spark._sql.nodes import COLUMN, Node, Selected, TopRows


def rows_of_view(node: Node, keys: Sequence[str]) -> tuple[Node, str | None]:
    """Return all rows behind such a view, and the column that orders them; any other query as it is.

    The last row of a key at any time is the newest one until then, so that the rows are the versions.

    keys: the columns of the join, which must be those of the view
    """
    if isinstance(node, Selected):
        rows, order = rows_of_view(node.source, [_behind(node, key) for key in keys])
        shown = next((name for text, name in node.columns if text.strip("`") in (order, "*")), None)
        if order is None or shown is None:
            return node, None
        return Selected(rows, node.where, node.columns, node.bounds), order if shown == "*" else shown
    if not isinstance(node, TopRows) or node.numbered or (node.function, node.limit) != ("row_number", 1):
        return node, None
    by = [one.by.strip("`") for one in node.order if one.descending]
    columns = node.before + node.behind
    plain = all(COLUMN.fullmatch(text) or text == "*" for text, _ in columns)
    same = {key.strip("`") for key in node.keys} == {key.strip("`") for key in keys}
    if len(by) != 1 or len(node.order) != 1 or not plain or not same:
        return node, None
    return Selected(node.source, node.where, columns, {}), by[0]


def _behind(node: Selected, key: str) -> str:
    """Return what a query calls a column of its result."""
    return next((text for text, name in node.columns if name == key.strip("`")), key)
