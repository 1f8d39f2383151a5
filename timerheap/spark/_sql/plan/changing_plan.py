"""Plans what changes as rows come: groups, first rows and joins without windows, and set operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timerheap.errors import ArgumentValueError
from timerheap.spark._aggregates.spark_aggregates import UserAggregate
from timerheap.spark._changes.aggregates.aggregate_changes import aggregate_changes
from timerheap.spark._changes.change_rows import INSERT
from timerheap.spark._changes.changes_inputs import StateOptions
from timerheap.spark._changes.joins.join_changes import join_changes
from timerheap.spark._changes.tops.top_changes import top_changes
from timerheap.spark._columns import (
    CHANGE_TYPE,
    CHANGED,
    GROUPING_SET,
    HIDDEN,
    ORDER,
    OURS,
    added_name,
    computed_name,
    distinct,
    name_without_number,
    shown_name,
)
from timerheap.spark._compat import with_columns
from timerheap.spark._order_by import Order
from timerheap.spark._plan.named_columns import backticks, quoted
from timerheap.spark._sql.nodes import Call, Combined, Distinct, Grouped, JoinedRows, Node, TopRows, United
from timerheap.spark._sql.plan.aggregate_plan import expanded
from timerheap.spark._sql.plan.called_aggregates import Functions, aggregate_in_python, aggregated_value
from timerheap.spark._sql.plan.relations import (
    pairs_of_sides,
    select_items,
    side_fields,
    unique_names,
    visible_columns,
)

RowsOf: TypeAlias = Callable[[Node], DataFrame]
"""Returns the rows of a node inside another one, with `CHANGED` if they are a changelog."""

_COUNTS = "left rows", "right rows"
_SIDE = "side"
_ONE = "row"  # the field of a table of which no column is needed


def as_changes(df: DataFrame) -> DataFrame:
    """Return the rows of a query as an operator takes them."""
    return df.withColumnRenamed(CHANGED, CHANGE_TYPE)


def as_rows(changes: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the changes that an operator returns as rows of a query, whose columns have these names."""
    return changes.toDF(*names, CHANGED)


def changed(df: DataFrame) -> list[Column]:
    """Return the column with the change type, if rows have one."""
    return [quoted(CHANGED)] if CHANGED in df.columns else []


def _met(df: DataFrame, condition: str | None) -> DataFrame:
    return df if condition is None else df.where(F.expr(condition))


def _operand_name(name: str) -> str:
    """Return the name of a column, or the text of an expression, as an operator may have it for a name."""
    name = re.sub(rf"`?{HIDDEN}\w+`?\.", "", shown_name(name))  # of the tables of a join
    return re.sub(rf"^{OURS}[_:](\d+:)?", "", name).strip("`")


# Groups.


def groups_plan(node: Grouped, rows: RowsOf, options: StateOptions, functions: Functions) -> DataFrame:
    """Return the aggregates of each key, as changes."""
    df = _met(rows(node.source), node.where)
    keys = [name for _, name in node.keys]
    df = with_columns(df, {name: F.expr(text) for text, name in node.keys if text.strip("`") != name})
    by = dict(zip(keys, keys, strict=True))
    if len(node.sets) > 1:
        by = {name: computed_name(9, name) for name in keys}  # aggregates see the row's own
        sets = {
            there: (name, [at for at, names in enumerate(node.sets) if name in names])
            for name, there in by.items()
        }
        df = expanded(df, F.array(*map(F.lit, range(len(node.sets)))), sets)
        keys = [*keys, GROUPING_SET]
        by[GROUPING_SET] = GROUPING_SET
    result = _aggregated(df, by, node.calls, options, functions)
    if node.having is not None:
        result = result.where(F.expr(node.having))
    return select_items(result, node.columns, [CHANGED])


def _aggregated(
    df: DataFrame,
    keys: dict[str, str],
    calls: dict[str, Call],
    options: StateOptions,
    functions: Functions = MappingProxyType({}),
) -> DataFrame:
    """Return aggregates of each value of columns; `keys` are their names in the result, and in the rows."""
    names = distinct(map(_operand_name, [*keys, *calls]))
    by, results = names[: len(keys)], names[len(keys) :]
    columns = [quoted(name).alias(to) for name, to in zip(keys.values(), by, strict=True)]
    values: dict[str, str] = {}  # the names of what is aggregated, by its text

    def read(column: Column, text: str | None, condition: str | None = None) -> Column:
        """Return the column of the rows that has what an aggregate reads."""
        key = f"{text} if {condition}"
        if key not in values:
            values[key] = added_name(_operand_name(str(text)), [*names, *values.values()])
            columns.append(column.alias(values[key]))
        return quoted(values[key])

    aggregates: list[Column | UserAggregate] = []
    for call, to in zip(calls.values(), results, strict=True):
        wanted = aggregate_in_python(call, to, df, functions)
        if wanted is not None:
            some = (read(F.col(one) if isinstance(one, str) else one, str(one)) for one in wanted.columns)
            aggregates.append(replace(wanted, columns=tuple(some)))
            continue
        parts = (call.argument, aggregated_value(call)), (call.by, _order_of(call))
        found = [read(column, text, call.condition) for text, column in parts if column is not None]
        aggregates.append((getattr(F, call.function)(*found) if found else F.count("*")).alias(to))
    rows = as_changes(df.select(*columns, *changed(df)))
    return as_rows(aggregate_changes(rows, by, *aggregates, **options), [*keys, *calls])


def _order_of(call: Call) -> Column | None:
    """Return what says which row is the first, or the last; null in rows that FILTER leaves out."""
    return None if call.by is None else aggregated_value(replace(call, argument=call.by))


def distinct_plan(node: Distinct, rows: RowsOf, options: StateOptions) -> DataFrame:
    """Return rows, each once, as changes."""
    df = unique_names(rows(node.source))
    names = visible_columns(df)
    result = _aggregated(df, {name: name for name in names}, {}, options)
    return as_rows(as_changes(result), [name_without_number(name) for name in names])


# First rows.


def first_rows_plan(node: TopRows, rows: RowsOf, options: StateOptions) -> DataFrame:
    """Return the first rows of each key, as changes."""
    df = _met(rows(node.source), node.where)
    terms = dict.fromkeys([*node.keys, *(one.by for one in node.order)])
    df = with_columns(df, {f"{ORDER}{at}": F.expr(text) for at, text in enumerate(terms)})
    marks = [CHANGED] * bool(changed(df))
    items = (*node.before, *node.behind)
    selected = select_items(df, items, [*(f"{ORDER}{at}" for at in range(len(terms))), *marks])
    width = len(selected.columns) - len(terms) - len(marks)
    results = selected.columns[:width]
    names = distinct(map(_operand_name, [*results, *terms, node.name]))
    there = dict(zip(terms, names[width:-1], strict=True))
    for text in terms:  # a term that is a column of the result is that column
        name = text.strip("`")
        if results.count(name) == 1 and ((text, name) in items or ("*", "*") in items):
            there[text] = names[results.index(name)]
    kept = dict.fromkeys([*names[:width], *there.values()])
    selected = selected.toDF(*names[:-1], *marks).select(*map(quoted, [*kept, *marks]))
    top = top_changes(
        as_changes(selected),
        [there[text] for text in dict.fromkeys(node.keys)],
        node.limit,
        [_ordered(there[one.by], one) for one in node.order],
        number=names[-1] if node.numbered else None,
        rank=node.function,
        **options,
    )
    at = width - len(select_items(df, node.behind, []).columns) if node.behind else width
    number = [(names[-1], node.name)] if node.numbered else []
    pairs = list(zip(names[:width], results, strict=True))
    pairs = [*pairs[:at], *number, *pairs[at:]]
    return as_rows(top.select(*(quoted(name) for name, _ in pairs), CHANGE_TYPE), [name for _, name in pairs])


def _ordered(name: str, order: Order) -> Column:
    column = quoted(name)
    if order.descending:
        return column.desc_nulls_first() if order.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if order.nulls_first else column.asc_nulls_last()


# Joins.


def joins_plan(node: JoinedRows, rows: RowsOf, options: StateOptions) -> DataFrame:
    """Return the pairs of rows of several tables, as changes, with a struct for each table."""
    pairs = _pairs(node, rows, options)
    if node.how in ("semi", "anti"):
        return pairs.select(f"{node.sides[0]}.*", CHANGED)
    return pairs_of_sides(pairs, node.sides, [CHANGED])


def _pairs(node: JoinedRows, rows: RowsOf, options: StateOptions) -> DataFrame:
    before, side = node.sides[:-1], node.sides[-1]
    if isinstance(node.left, JoinedRows) and len(before) > 1:
        left = _pairs(node.left, rows, options)
    else:
        left = _as_side(rows(node.left), before[0], node.needs[0])
    left, right = _met(left, node.filters[0]), _as_side(rows(node.right), side, node.needs[-1])
    right = _met(right, node.filters[1])
    expect_same_kind(left, right)
    keys, condition = list(node.keys), node.condition
    if node.not_in is not None:
        if _never_null(left, [x for x, _ in node.compared]) and _never_null(
            right, [y for _, y in node.compared]
        ):
            keys += [(x, y, False) for x, y in node.compared]
        else:
            condition = " AND ".join(f"({one})" for one in (condition, node.not_in) if one is not None)
    by = [of_one_type(left, right, *pair) for key in keys for pair in _without_null_safe(*key)]
    fields = [(one, name) for one in before for name in side_fields(left, one)]
    fields += [(side, name) for name in side_fields(right, side)]
    names = distinct([*(f"key {at}" for at in range(len(by))), *(_operand_name(name) for _, name in fields)])
    key, flat = names[: len(by)], dict(zip(fields, names[len(by) :], strict=True))
    parts = []
    for df, sides, values in ((left, before, [x for x, _ in by]), (right, [side], [y for _, y in by])):
        columns = [column.alias(name) for column, name in zip(values, key, strict=True)]
        columns += [quoted(one)[name].alias(to) for (one, name), to in flat.items() if one in sides]
        parts.append(as_changes(df.select(*columns, *changed(df))))
    on = None if condition is None else F.expr(_on_fields(condition, flat))
    found = join_changes(parts[0], parts[1], key, how=node.how, on=on, **options)
    kept = before if node.how in ("semi", "anti") else node.sides
    structs = []
    for one in kept:
        columns = [quoted(to).alias(name) for (of, name), to in flat.items() if of == one]
        structs.append(F.struct(*columns).alias(one))
    return as_rows(found.select(*structs, CHANGE_TYPE), kept)


def _as_side(df: DataFrame, side: str, needed: tuple[str, ...] | None) -> DataFrame:
    """Return the rows of a table, with a struct of the columns that are needed."""
    wanted = None if needed is None else {one.lower() for one in needed}
    columns = [quoted(one) for one in visible_columns(df) if wanted is None or one.lower() in wanted]
    row = F.struct(*(columns or [F.lit(1).alias(_ONE)]))
    return df.withColumn(side, row)


def _on_fields(condition: str, flat: Mapping[tuple[str, str], str]) -> str:
    """Return a condition on structs as one on their fields, by the names of the columns that have them."""
    names = {(side, field.lower()): name for (side, field), name in flat.items()}

    def there(found: re.Match[str]) -> str:
        field = found[3][1:-1].replace("``", "`") if found[3].startswith("`") else found[3]
        name = names.get((found[2], field.lower()))
        return found[0] if name is None else backticks(name)

    return re.sub(rf"(`?)({HIDDEN}\w+)\1\.(`(?:[^`]|``)+`|\w+)", there, condition)


def _without_null_safe(left: str, right: str, null_safe: bool) -> list[tuple[str, str]]:
    """Return pairs of expressions that are equal, and not null, where two are the same or both are null."""
    if not null_safe:
        return [(left, right)]
    sides = zip(
        *([f"({x}) IS NULL", f"COALESCE(CAST(({x}) AS STRING), '')"] for x in (left, right)), strict=True
    )
    return [(one, other) for one, other in sides]


def of_one_type(left: DataFrame, right: DataFrame, x: str, y: str) -> tuple[Column, Column]:
    """Return two expressions as columns of a type that has the values of both."""
    one, other = (df.select(F.expr(text)).schema[0].dataType for df, text in ((left, x), (right, y)))
    if one == other:
        return F.expr(x), F.expr(y)
    both = F.coalesce(F.lit(None).cast(one), F.lit(None).cast(other))
    common = left.select(both.alias("both")).schema["both"].dataType
    return F.expr(x).cast(common), F.expr(y).cast(common)


def _never_null(df: DataFrame, texts: Sequence[str]) -> bool:
    return not any(field.nullable for field in df.select(*map(F.expr, texts)).schema)


def expect_same_kind(left: DataFrame, right: DataFrame) -> None:
    if left.isStreaming != right.isStreaming:
        raise ArgumentValueError(
            "query: a JOIN must be of two streams or of two batches, got one of each; read both tables as "
            "streams, or join the result with the batch in Spark, behind the last operator"
        )


# Set operations.


def unions_plan(node: United, rows: RowsOf) -> DataFrame:
    """Return the rows of several queries."""
    return _united([rows(one) for one in node.sources])


def _united(parts: list[DataFrame]) -> DataFrame:
    """Return the rows of all parts, whose columns are those with the same places in the first one."""
    if any(changed(df) for df in parts):
        parts = [df if changed(df) else df.withColumn(CHANGED, F.lit(INSERT)) for df in parts]
    counts = [len(visible_columns(df)) for df in parts]
    if len(set(counts)) > 1:
        raise ArgumentValueError(
            "query: the parts of UNION, INTERSECT and EXCEPT must have as many columns as each other, got "
            f"{' and '.join(map(str, counts))}; list the columns"
        )
    names, width = parts[0].columns, len(parts[0].columns)
    return reduce(DataFrame.union, [df.toDF(*map(str, range(width))) for df in parts]).toDF(*names)


def set_operations_plan(node: Combined, rows: RowsOf, options: StateOptions) -> DataFrame:
    """Return the rows that two queries have, or the first of them alone, as changes."""
    sides = [rows(node.left), rows(node.right)]
    names = visible_columns(sides[0])
    parts = []
    for number, df in enumerate(sides):
        plain = [f"column {at}" for at in range(len(visible_columns(df)))]
        marks = [CHANGED] * bool(changed(df))
        df = df.toDF(*plain, *marks)
        parts.append(df.select(*map(quoted, plain), F.lit(number).alias(_SIDE), *changed(df)))
    both = _united(parts)
    keys = [name for name in visible_columns(both) if name != _SIDE]
    counts = {name: Call("count", None, f"`{_SIDE}` = {at}") for at, name in enumerate(_COUNTS)}
    counted = _aggregated(both, {name: name for name in keys}, counts, options)
    left, right = map(quoted, _COUNTS)
    other = right > 0 if node.function == "intersect" else right == 0
    if node.repeated:
        copies = F.least(left, right) if node.function == "intersect" else F.greatest(left - right, F.lit(0))
        counted = counted.withColumn(_SIDE, F.explode(F.array_repeat(F.lit(1), copies.cast("int"))))
    else:
        counted = counted.where((left > 0) & other)
    return counted.select(*map(quoted, keys), CHANGED).toDF(*names, CHANGED)
