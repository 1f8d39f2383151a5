"""What MATCH_RECOGNIZE reads beside a table: the rows of a query, and which column is their time."""

from __future__ import annotations

import re
from dataclasses import replace

from timerheap.errors import ArgumentValueError
from timerheap.spark._sql.nodes import Node, Over, Ranked, Selected, Table, Windowing
from timerheap.spark._sql.over_calls import RowCall


def origin_of(node: Node, time: str) -> Table | Windowing | None:
    """Return the table, or its windows, whose rows a query has as they are; None of another query.

    time: the column of the query that is the time of its rows; that of the table is the `time` of the result
    """
    while isinstance(node, Selected):
        source = _source_of(node, time)
        if source is None:
            return None
        time, node = source, node.source
    if isinstance(node, Table):
        return replace(node, time=time)
    if not isinstance(node, Windowing) or node.function == "session":
        return None
    if time != node.time:
        raise ArgumentValueError(
            f"query: MATCH_RECOGNIZE of the rows of windows must be ordered by their time {node.time}, got "
            f"{time}; to order by window_time, group by windows first"
        )
    return node


def comes_in_order(node: Node, time: str) -> bool:
    """Return whether the rows of a query come in the order of a column."""
    while isinstance(node, Selected):
        source = _source_of(node, time)
        if source is None:
            return False
        time, node = source, node.source
    if isinstance(node, Ranked):
        return isinstance(node.source, Table) and node.source.time == time
    waits = isinstance(node, Over) and any(
        isinstance(call, RowCall) and call.function == "lead" for call in node.calls.values()
    )
    return isinstance(node, Over) and node.time == time and not waits


def with_origin(node: Node, origin: Table | Windowing) -> Node:
    """Return a query of another origin."""
    return replace(node, source=with_origin(node.source, origin)) if isinstance(node, Selected) else origin


def _source_of(node: Selected, name: str) -> str | None:
    """Return the column that a SELECT has by a name, None if it computes that."""
    for text, given in node.columns:
        if given == name:
            found = re.fullmatch(r"(?:\w+\.)?(\w+)|`([^`]+)`", text)
            return None if found is None else str(found[1] or found[2])
    return name
