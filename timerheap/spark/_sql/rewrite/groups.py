"""GROUP BY: aggregates of windows and keys, and what of them the select list and HAVING compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from sqlglot import exp

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import GROUPING_SET, WINDOW_COLUMNS, computed_name, is_side
from timerheap.spark._sql.nodes import Aggregated, Call, Grouped, Joined, Node, Selected, Table, Windowing
from timerheap.spark._sql.read.aggregate_calls import KNOWN, OTHERWISE, aggregate_call, ordered_call
from timerheap.spark._sql.read.clauses import LENGTHS
from timerheap.spark._sql.read.dialect import as_read, refuse, text_of
from timerheap.spark._sql.read.grouping_sets import (
    expect_windows,
    grouping_sets,
    grouping_value,
    key_expressions,
)
from timerheap.spark._sql.read.select import SelectParts
from timerheap.spark._sql.rewrite.column_names import ColumnsOf, columns_of
from timerheap.spark._sql.rewrite.conjuncts import conjunction
from timerheap.spark._sql.rewrite.group_windows import group_windows, with_group_windows
from timerheap.spark._sql.rewrite.select_list import bounds_of, name_of, shown_text

_OF_CHANGES = f"{OTHERWISE}; where rows may be taken back it needs retract()"


def is_aggregated(select: SelectParts) -> bool:
    """Return whether a SELECT is of groups, or of all rows as one."""
    clauses = [*select.items, *filter(None, [select.having])]
    return select.group is not None or any(one.find(exp.AggFunc) for one in clauses)


def select_of_groups(
    select: SelectParts, source: Node, conditions: list[exp.Expr], of_table: ColumnsOf | None
) -> Aggregated | Grouped:
    """Return what a SELECT of groups means, which are those of windows or change as rows come."""
    if of_table is not None and select.group is not None:
        select = _with_aliased_keys(select, source, of_table)
    if isinstance(source, Table) and group_windows(select):
        select, source = with_group_windows(select, source)
    if _of_windows(select, source):
        return aggregated(select, source, conditions)
    return grouped(select, source, conditions)


def _of_windows(select: SelectParts, source: Node) -> bool:
    """Return whether groups are of windows: of rows of windows, or of results by a bound of theirs."""
    inner = source
    while isinstance(inner, Selected):
        inner = inner.source
    if isinstance(inner, (Windowing, Joined)) and source.bounds:
        return True
    names = [] if select.group is None else [one.name.lower() for one in select.group.find_all(exp.Column)]
    bounds = {*(name.lower() for name in source.bounds), *WINDOW_COLUMNS[:2]} if source.bounds else set()
    return not bounds.isdisjoint(names)


def aggregated(select: SelectParts, source: Node, conditions: list[exp.Expr]) -> Aggregated:
    """Return what a SELECT with GROUP BY of windows means."""
    bounds, group = source.bounds, select.group
    if group is None:
        aggregate = next(
            one for item in [*select.items, select.having] if item for one in item.find_all(exp.AggFunc)
        )
        refuse(f"SELECT with {as_read(aggregate)}", "add GROUP BY window_start, window_end")
    if isinstance(source, Joined) and source.how not in ("semi", "anti"):
        refuse("GROUP BY of a JOIN", "write the JOIN as a nested SELECT: FROM (SELECT ... JOIN ...) GROUP BY")
    if isinstance(source, Selected) and isinstance(source.source, Windowing):
        refuse(
            "GROUP BY of a nested SELECT of the rows of windows",
            "write FROM TABLE(...) and GROUP BY in one SELECT, with its expressions in the aggregates",
        )
    columns_of_keys = _columns_of_keys(group)
    sets = grouping_sets(_with_key_columns(group, columns_of_keys))
    expect_windows(group, sets, bounds)
    sets = [tuple(name for name in names if name not in bounds) for names in sets]
    keys = tuple(dict.fromkeys(name for one in sets for name in one))
    if isinstance(source, Windowing):
        _expect_keys_of_rows(source, conditions, keys, sets)
    computed = {one: name for one, name in columns_of_keys.items() if not _is_bare_column(one)}
    outside = Outside({*bounds, *keys}, sets, computed)
    columns = tuple(outside.column(item) for item in select.items)
    having = select.having
    return Aggregated(
        source=source,
        where=conjunction(conditions),
        keys=keys,
        sets=tuple(sets),
        calls=outside.calls,
        having=None if having is None else outside.text(having.this, "HAVING"),
        columns=columns,
        bounds=bounds_of(select.items, bounds),
        computed=tuple((text_of(one), name) for one, name in computed.items()),
    )


def grouped(select: SelectParts, source: Node, conditions: list[exp.Expr]) -> Grouped:
    """Return what a SELECT of groups without windows means; without GROUP BY, all rows are one group."""
    columns = {} if select.group is None else _columns_of_keys(select.group)
    sets: list[tuple[str, ...]] = [()]
    if select.group is not None:
        sets = grouping_sets(_with_key_columns(select.group, columns))
    outside = Outside({*columns.values()}, sets, columns, _OF_CHANGES)
    items = tuple(outside.column(item) for item in select.items)
    having = select.having
    return Grouped(
        source,
        conjunction(conditions),
        tuple((text_of(one), name) for one, name in columns.items()),
        tuple(sets),
        outside.calls,
        None if having is None else outside.text(having.this, "HAVING"),
        items,
    )


def _columns_of_keys(group: exp.Expr) -> dict[exp.Expr, str]:
    """Return the columns that have the elements of GROUP BY."""
    columns: dict[exp.Expr, str] = {}
    for term in key_expressions(group):
        if isinstance(term, exp.Literal) and not term.is_string:
            refuse(f"GROUP BY {as_read(term)}", "write the expression; a number is no column")
        plain = _is_bare_column(term)
        columns.setdefault(term, term.name if plain else computed_name(1 + len(columns), name_of(term)))
    return columns


def _is_bare_column(term: exp.Expr) -> bool:
    return isinstance(term, exp.Column) and not term.table


def _with_aliased_keys(select: SelectParts, source: Node, of_table: ColumnsOf) -> SelectParts:
    """Return a SELECT whose GROUP BY has expressions in place of their names in the select list.

    As in Spark, a column of the rows goes before such a name.
    """
    aliases = {
        one.alias.lower(): one.this
        for one in select.items
        if isinstance(one, exp.Alias) and not one.find(exp.AggFunc)
    }
    known = {name.lower() for name in columns_of(source, of_table)} if aliases else set()
    if not known:
        return select

    def there(node: exp.Expr) -> exp.Expr:
        is_alias = _is_bare_column(node) and node.name.lower() in aliases and node.name.lower() not in known
        return exp.paren(aliases[node.name.lower()].copy()) if is_alias else node

    tree = select.tree.copy()
    tree.set("group", tree.args["group"].transform(there))
    return replace(select, tree=tree)


def _with_key_columns(group: exp.Expr, columns: Mapping[exp.Expr, str]) -> exp.Expr:
    """Return GROUP BY with columns in place of its expressions."""

    def there(node: exp.Expr) -> exp.Expr:
        return exp.column(columns[node], quoted=True) if node in columns else node

    return group.transform(there)


def _expect_keys_of_rows(
    source: Windowing, conditions: list[exp.Expr], keys: tuple[str, ...], sets: list[tuple[str, ...]]
) -> None:
    """Raise unless the rows of windows can be aggregated so: their windows are not known yet."""
    for node in conditions:
        for column in node.find_all(exp.Column):
            if column.name in source.bounds:
                refuse(f"WHERE with {column.name}", "move conditions on windows to HAVING")
    if source.function == "session" and len(sets) > 1:
        refuse(
            "SESSION with GROUPING SETS, CUBE or ROLLUP",
            "write one query per grouping set and union() the results, since each set has its own sessions",
        )
    if source.function == "session" and set(source.partition) != set(keys):
        refuse(
            f"SESSION partitioned by ({', '.join(source.partition)}) and grouped by ({', '.join(keys)})",
            "use the same columns in both: SESSION(TABLE t PARTITION BY k, ...) with GROUP BY k",
        )


class Outside:
    """Rewrites expressions over groups: replaces each aggregate by a column and records it in `calls`.

    keys: the expressions of GROUP BY, and the names of the columns that have them
    otherwise: what computes other aggregates
    """

    def __init__(
        self,
        grouped: set[str],
        sets: list[tuple[str, ...]],
        keys: Mapping[exp.Expr, str] = MappingProxyType({}),
        otherwise: str = OTHERWISE,
    ) -> None:
        self._grouped = {*grouped, GROUPING_SET}
        self._sets = sets
        self._keys, self._otherwise = keys, otherwise
        self.calls: dict[str, Call] = {}

    def column(self, item: exp.Expr) -> tuple[str, str]:
        """Return the expression and the name of an item of the SELECT list."""
        return self.text(item.unalias(), "SELECT"), name_of(item)

    def text(self, node: exp.Expr, clause: str) -> str:
        """Return an expression in Spark's SQL, with its aggregates replaced."""
        shown = as_read(node)
        node = node.copy().transform(self._replaced)
        if node.find(exp.Star):
            refuse(f"{clause} *", "list the columns: keys, window_start, window_end and aggregates")
        for column in node.find_all(exp.Column):
            root = column.name if is_side(column.table) else column.parts[0].name
            if is_side(column.table) or (root not in self._grouped and root not in self.calls):
                raise ArgumentValueError(
                    f"query: columns in {clause} must be in GROUP BY or inside an aggregate, got {root!r} in "
                    f"{shown}; aggregates are {KNOWN}; {self._otherwise}"
                )
        return text_of(node)

    def _replaced(self, node: exp.Expr) -> exp.Expr:
        if node in self._keys:
            return exp.column(self._keys[node], quoted=True)
        if isinstance(node, (exp.Grouping, exp.GroupingId)):
            columns = [one.copy() for one in node.expressions]
            columns = [exp.column(self._keys[one]) if one in self._keys else one for one in columns]
            return grouping_value(node, columns, self._sets)
        if isinstance(node, exp.Anonymous) and node.name.upper() == "GROUP_ID":
            refuse(as_read(node), "write GROUPING_ID(k, ...) with columns of GROUP BY")
        if isinstance(node, exp.Anonymous) and node.name.upper().rpartition("_")[0] in LENGTHS:
            refuse(f"{as_read(node)} with a window table function", f"write {', '.join(WINDOW_COLUMNS)}")
        if not isinstance(node, (exp.AggFunc, exp.Filter)):
            return node
        name = computed_name(0, shown_text(node))
        call = ordered_call(node) if self._otherwise is _OF_CHANGES else None
        self.calls[name] = call or aggregate_call(node, self._otherwise)
        return exp.column(name, quoted=True)
