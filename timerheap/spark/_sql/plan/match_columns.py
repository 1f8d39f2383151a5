"""MATCH_RECOGNIZE on a DataFrame: the columns that it needs of each row, and those of its result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import TIMED_OUT
from timerheap.spark._compat import to_arrow_schema, to_arrow_type
from timerheap.spark._patterns.conditions import OPERATORS, Term, columns_read, leaves, of_rows, shown_column
from timerheap.spark._patterns.folds import Fold
from timerheap.spark._patterns.match_plan import MatchPlan
from timerheap.spark._patterns.match_runner import MatchRows
from timerheap.spark._patterns.measures import Measure
from timerheap.spark._patterns.spark_numbers import average_type
from timerheap.spark._patterns.term_types import typed
from timerheap.spark._plan.named_columns import backticks, collation_of, expect_comparable
from timerheap.spark._sql.nodes import Call, Matched
from timerheap.spark._sql.plan.called_aggregates import Functions, aggregate_in_python


def expect_bounded(node: Matched, df: DataFrame, unbounded: bool) -> None:
    """Raise unless the matches in a table can be found, and on a stream in bounded state."""
    pattern = f"query: PATTERN ({node.pattern.shown})"
    if unknown := {*node.keys, *node.ties} - {*df.columns}:
        raise ArgumentValueError(
            f"query: MATCH_RECOGNIZE must be by columns of the table, got {sorted(unknown)}"
        )
    for name in node.ties:
        expect_comparable("query: ORDER BY", name, df.schema[name].dataType)
    if df.isStreaming and node.pattern.anchored:
        raise ArgumentValueError(f"{pattern} must not have ^ or $ on a stream, whose partitions do not end")
    if df.isStreaming and node.pattern.grows and node.within is None and not unbounded:
        raise ArgumentValueError(
            f"{pattern} must not grow for ever on a stream; write WITHIN INTERVAL '1' HOUR after it, or pass "
            "unbounded_matches=True to sql()"
        )
    if df.isStreaming and not unbounded:
        _expect_few_matches(node)


def _expect_few_matches(node: Matched) -> None:
    """Raise if a pattern is known to have partial matches of a key that double with each row."""
    free = {number for number, term in enumerate(node.defined) if term is None}
    for term in filter(None, node.defined):
        for kind, group in ((leaf[2], leaf[1]) for leaf in leaves(term) if leaf[0] == "agg"):
            few = kind in ("count", "min", "max")
            pair = node.pattern.doubling(free, group) if group and not few else None
            if pair is not None:
                raise ArgumentValueError(
                    f"query: PATTERN ({node.pattern.shown}) must not take any row as {pair[0]} or {pair[1]} "
                    f"on a stream if DEFINE has {kind.upper()} of one of them: the partial matches of a key "
                    "double with each row; DEFINE both, so that they exclude each other, or pass "
                    "unbounded_matches=True to sql()"
                )


def shown_columns(node: Matched, columns: list[str]) -> list[str]:
    """Return the columns of a table that the result has: all of them, or the keys."""
    return (
        list(dict.fromkeys([*node.keys, node.time, *node.ties, *columns])) if node.all_rows else [*node.keys]
    )


def matching(
    node: Matched,
    df: DataFrame,
    shown: list[str],
    lead_within: int | None = None,
    timed_out: bool = False,
    lag_within: int | None = None,
    ansi: bool = True,
    functions: Functions = MappingProxyType({}),
) -> tuple[MatchRows, list[T.StructField]]:
    """Return the function of a clause, and the fields of its result.

    df: the rows, with the columns that the clause computes beforehand
    shown: the columns that the result has before the measures
    lead_within, lag_within: how far behind a row NEXT looks, and how far before it PREV, in ms
    ansi: whether Spark has ``spark.sql.ansi.enabled``
    functions: the user's aggregates
    """
    folded = tuple(term and _with_folds(term, df, functions) for term in node.defined)
    defined = tuple(
        None if term is None else _condition(name, term, df, ansi)
        for name, term in zip(node.pattern.variables, folded, strict=True)
    )
    for one in filter(None, node.defined):
        _expect_bytes(one, df)
    asked = [_with_fold(one, df, functions) for one in node.measures]
    for measure in node.measures:
        if measure.column is not None and measure.kind in ("min", "max"):
            _expect_bytes(("agg", None, measure.kind, measure.column[0]), df, "MEASURES")
    stored = [one.column[0] for one in node.measures if one.column]
    stored += [one.failed for one in node.measures if one.failed]
    for term in filter(None, defined):
        for leaf in leaves(term):
            if leaf[0] != "row" or leaf[2] or node.ahead or not of_rows(term):
                stored += [name for name, _ in columns_read(leaf)]
    others = [name for name in shown if name not in node.keys]
    rows = to_arrow_schema(T.StructType([df.schema[name] for name in sorted({*stored, *others})]))
    fields = [T.StructField(one.name, _type(one, df)) for one in asked]
    types = to_arrow_schema(T.StructType(fields)).types
    measures = tuple(replace(one, type=type_) for one, type_ in zip(asked, types, strict=True))
    program = node.pattern.takes, node.pattern.after, node.pattern.starts
    same = repr((program, node.defined, node.skip, sorted(node.target), node.within is None, rows))
    mark = int.from_bytes(hashlib.blake2b(same.encode(), digest_size=7).digest(), "big")
    plan = MatchPlan(
        node.pattern, defined, node.within, node.skip, node.target, measures, [*node.keys], others, rows,
        node.all_rows, node.shows_empty, mark, node.ahead, lead_within, timed_out,
        None if isinstance(df.schema[node.time].dataType, T.LongType) else node.time, lag_within, node.order,
    )  # fmt: skip
    fields += [T.StructField(TIMED_OUT, T.BooleanType())] if timed_out else []
    return MatchRows(plan), [*(df.schema[name] for name in (*node.keys, *others)), *fields]


_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge", "same", "least", "greatest", "agg")
_CHOOSING = ("if", "coalesce", "concat", "least", "greatest")


def _expect_bytes(term: Term, df: DataFrame, where: str = "DEFINE") -> None:
    """Raise if a term compares strings of several rows otherwise than Spark, which knows their collations."""
    compared = term[1:] if term[0] in OPERATORS else [term]
    kind = term[2] if term[0] == "agg" else term[0]
    for name in (name for one in compared for name in _strings(one)):
        collation = collation_of(df.schema[name].dataType)
        if collation is not None and term[0] in _COMPARING and kind not in ("count", "sum", "avg"):
            shown = shown_column(name)
            raise ArgumentValueError(
                f"query: {kind.upper()} in {where} must have the collation UTF8_BINARY, got {shown} with "
                f"{collation}; strings of rows are compared by their bytes: normalize them in a view, for "
                f"example with F.collate(F.lower({shown!r}), 'UTF8_BINARY')"
            )
    if term[0] in OPERATORS:
        for part in term[1:]:
            _expect_bytes(part, df, where)


def _strings(term: Term) -> Iterator[str]:
    """Yield the columns that the value of a term may be of."""
    if term[0] in _CHOOSING:
        for one in term[1 + (term[0] == "if") :]:
            yield from _strings(one)
    elif term[0] not in OPERATORS and term[0] != "class":
        yield from (name for name, _ in columns_read(term))


def _with_folds(term: Term, df: DataFrame, functions: Functions) -> Term:
    """Return a term with the user's aggregates in place of their names."""
    if term[0] == "agg" and term[2] in functions:
        return *term[:2], _user_fold(term[2], term[3], df, functions), term[3]
    if term[0] not in OPERATORS:
        return term
    return term[0], *(_with_folds(part, df, functions) for part in term[1:])


def _with_fold(measure: Measure, df: DataFrame, functions: Functions) -> Measure:
    if measure.column is None or measure.kind not in functions:
        return measure
    return replace(measure, kind=_user_fold(str(measure.kind), measure.column[0], df, functions))


def _user_fold(name: str, column: str, df: DataFrame, functions: Functions) -> Fold:
    """Return an aggregate of the user, given the column with structs of its arguments."""
    arguments = df.schema[column].dataType
    assert isinstance(arguments, T.StructType)
    first, *others = (f"{backticks(column)}.{backticks(field)}" for field in arguments.names)
    made = aggregate_in_python(Call(name, first, None, others=tuple(others)), name, df, functions)
    assert made is not None
    return Fold(name, made.function, to_arrow_type(made.returns))


def _type(measure: Measure, df: DataFrame) -> T.DataType:
    kind, type_ = measure.kind, df.schema[measure.column[0]].dataType if measure.column else T.NullType()
    if isinstance(kind, Fold):
        return from_arrow_type(kind.returns)
    if kind.startswith("classifier"):
        return T.StringType()
    if kind in ("number", "count"):
        return T.LongType()
    if kind in ("sum", "avg"):
        if not isinstance(type_, T.NumericType):
            raise ArgumentValueError(f"query: {kind.upper()} must be of numbers, got {type_.simpleString()}")
        if kind == "sum" and isinstance(type_, T.DecimalType):
            return T.DecimalType(min(38, type_.precision + 10), type_.scale)
        if isinstance(type_, T.DecimalType):
            return T.DecimalType(*average_type(type_.precision, type_.scale))
        return T.LongType() if kind == "sum" and isinstance(type_, T.IntegralType) else T.DoubleType()
    return type_


def _condition(name: str, term: Term, df: DataFrame, ansi: bool) -> Term:
    """Return what DEFINE asks of a variable, with the conversions of numbers that Spark would add."""
    found, type_ = typed(term, lambda leaf: _leaf_type(leaf, df), ansi)
    if type_ not in (pa.bool_(), pa.null()):
        raise ArgumentValueError(f"query: DEFINE {name} must be a condition, got a value of type {type_}")
    return found


def _leaf_type(leaf: Term, df: DataFrame) -> pa.DataType:
    kind = {"agg": leaf[2], "class": "classifier"}.get(leaf[0], "first")
    measure = Measure("", None, kind, column=next(columns_read(leaf), None))
    return to_arrow_schema(T.StructType([T.StructField("leaf", _type(measure, df))])).types[0]
