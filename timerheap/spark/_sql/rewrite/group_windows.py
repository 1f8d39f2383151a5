"""GROUP BY TUMBLE(ts, ...), the older form of windows in Flink's SQL: as windows of a table function."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from timerheap.spark._columns import WINDOW
from timerheap.spark._sql.nodes import Table, Windowing
from timerheap.spark._sql.read.clauses import LENGTHS, column_name, interval_ms, time_of
from timerheap.spark._sql.read.dialect import as_read, refuse
from timerheap.spark._sql.read.select import SelectParts
from timerheap.spark._sql.rewrite.select_list import named

_OF_GROUP_WINDOWS: dict[str, exp.Expr] = {
    **{end: exp.column(bound) for end, bound in zip(("START", "END", "ROWTIME"), WINDOW, strict=True)},
    "PROCTIME": exp.CurrentTimestamp(),
}
"""What TUMBLE_START and so on stand for, by the end of their names."""


@dataclass(frozen=True)
class GroupWindow:
    """A call such as ``TUMBLE(ts, ...)``, or ``TUMBLE_START(ts, ...)`` of the same windows."""

    function: str
    time: str
    lengths: dict[str, int]

    @classmethod
    def of(cls, call: exp.Anonymous, function: str) -> GroupWindow:
        """Read a call; `function` is the name of the windows, in upper case."""
        names, (time, *lengths) = LENGTHS[function], call.expressions or [exp.null()]
        if len(lengths) != len(names):
            refuse(as_read(call), f"write {call.name.upper()}(ts, {', '.join(names)})")
        pairs = zip(names.items(), lengths, strict=True)
        found = time_of(time, call.name)
        return cls(function, found, {to: interval_ms(length, name) for (name, to), length in pairs})


def group_windows(select: SelectParts) -> list[exp.Anonymous]:
    """Return the calls of windows in GROUP BY."""
    terms = [] if select.group is None else select.group.expressions
    return [one for one in terms if isinstance(one, exp.Anonymous) and one.name.upper() in LENGTHS]


def with_group_windows(select: SelectParts, table: Table) -> tuple[SelectParts, Windowing]:
    """Return a SELECT that groups by the bounds of windows in place of their function, and the windows."""
    group = select.group
    assert group is not None
    terms = group.expressions
    calls = group_windows(select)
    if len(calls) > 1:
        refuse(f"GROUP BY {', '.join(map(as_read, calls))}", "write one window in a SELECT")
    (call,) = calls
    windows = GroupWindow.of(call, call.name.upper())
    keys = [one for one in terms if one is not call]
    tree = select.tree.copy()
    bounds = [exp.column(bound) for bound in WINDOW[:2]]
    by = group.copy()
    by.set("expressions", [*(key.copy() for key in keys), *bounds])
    tree.set("group", by)
    items = [(one, _with_columns(one, call, windows)) for one in select.items]
    tree.set("expressions", [one if one == new else named(one, new) for one, new in items])
    if select.having is not None:
        tree.set("having", _with_columns(select.having, call, windows))
    partition = tuple(column_name(key, "GROUP BY") for key in keys) if windows.function == "SESSION" else ()
    function = windows.function.lower()
    found = Windowing(function, table.table, windows.time, windows.lengths, partition, tuple(WINDOW))
    return replace(select, tree=tree), found


def _with_columns(clause: exp.Expr, call: exp.Anonymous, windows: GroupWindow) -> exp.Expr:
    """Return a clause with columns in place of TUMBLE_START(ts, ...) and so on."""

    def column(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Anonymous):
            return node
        kind, _, end = node.name.upper().rpartition("_")
        if kind not in LENGTHS or end not in _OF_GROUP_WINDOWS:
            return node
        if kind != windows.function or GroupWindow.of(node, kind) != windows:
            refuse(f"{as_read(node)} with GROUP BY {as_read(call)}", "write the same window in both")
        return _OF_GROUP_WINDOWS[end].copy()

    return clause.transform(column)
