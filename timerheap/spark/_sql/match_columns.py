"""MATCH_RECOGNIZE on a DataFrame: the columns that it needs of each row, and those of its result."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from timerheap.spark._columns import TIMED_OUT
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._patterns.conditions import OPERATORS, Term, columns_of, leaves, of_rows
from timerheap.spark._patterns.match_rows import MatchPlan, MatchRows
from timerheap.spark._patterns.measures import Measure
from timerheap.spark._sql.nodes import Matched


def expect_bounded(node: Matched, df: DataFrame, time: str | None, unbounded: bool) -> None:
    """Raise unless the matches in a table can be found, and on a stream in bounded state."""
    pattern = f"query: PATTERN ({node.pattern.text})"
    if time is None:
        raise ValueError(f"query: MATCH_RECOGNIZE must be ordered by an event time, got {node.time}")
    if unknown := {*node.keys, *node.ties} - {*df.columns}:
        raise ValueError(f"query: MATCH_RECOGNIZE must be by columns of the table, got {sorted(unknown)}")
    if df.isStreaming and node.pattern.anchored:
        raise ValueError(f"{pattern} must not have ^ or $ on a stream, whose partitions do not end")
    if df.isStreaming and node.pattern.grows and node.within is None and not unbounded:
        raise ValueError(
            f"{pattern} must not grow for ever on a stream; write WITHIN INTERVAL '1' HOUR after it, or pass "
            "unbounded_matches=True to sql()"
        )


def shown_columns(node: Matched, columns: list[str]) -> list[str]:
    """Return the columns of a table that the result has: all of them, or the keys."""
    return (
        list(dict.fromkeys([*node.keys, node.time, *node.ties, *columns])) if node.all_rows else [*node.keys]
    )


def matching(
    node: Matched, df: DataFrame, shown: list[str], lead_within: int | None = None, timed_out: bool = False
) -> tuple[MatchRows, list[T.StructField]]:
    """Return the function of a clause, and the fields of its result.

    df: the rows, with the columns that the clause computes beforehand
    shown: the columns that the result has before the measures
    lead_within: how far behind a row NEXT looks, in ms
    """
    for number, term in enumerate(node.defined):
        if term is not None and (type_ := _type_of(term, df)) not in (pa.bool_(), pa.null()):
            name = node.pattern.variables[number]
            raise ValueError(f"query: DEFINE {name} must be a condition, got a value of type {type_}")
    stored = [one.column[0] for one in node.measures if one.column]
    for term in filter(None, node.defined):
        for leaf in leaves(term):
            if leaf[0] != "row" or leaf[2] or node.ahead or not of_rows(term):
                stored += [name for name, _ in columns_of(leaf)]
    others = [name for name in shown if name not in node.keys]
    rows = to_arrow_schema(T.StructType([df.schema[name] for name in sorted({*stored, *others})]))
    fields = [T.StructField(one.name, _type(one, df)) for one in node.measures]
    types = to_arrow_schema(T.StructType(fields)).types
    measures = tuple(replace(one, type=type_) for one, type_ in zip(node.measures, types, strict=True))
    program = node.pattern.takes, node.pattern.after, node.pattern.starts
    same = repr((program, node.defined, node.skip, sorted(node.target), node.within is None, rows))
    mark = int.from_bytes(hashlib.blake2b(same.encode(), digest_size=7).digest(), "big")
    plan = MatchPlan(
        node.pattern, node.defined, node.within, node.skip, node.target, measures, [*node.keys], others, rows,
        node.all_rows, node.shows_empty, mark, node.ahead, lead_within, timed_out,
    )  # fmt: skip
    fields += [T.StructField(TIMED_OUT, T.BooleanType())] if timed_out else []
    return MatchRows(plan), [*(df.schema[name] for name in (*node.keys, *others)), *fields]


def _type(measure: Measure, df: DataFrame) -> T.DataType:
    kind, type_ = measure.kind, df.schema[measure.column[0]].dataType if measure.column else T.NullType()
    if kind.startswith("classifier"):
        return T.StringType()
    if kind in ("number", "count"):
        return T.LongType()
    if kind in ("sum", "avg"):
        if not isinstance(type_, T.NumericType):
            raise ValueError(f"query: {kind.upper()} must be of numbers, got {type_.simpleString()}")
        if kind == "sum" and isinstance(type_, T.DecimalType):
            return T.DecimalType(min(38, type_.precision + 10), type_.scale)
        return T.LongType() if kind == "sum" and isinstance(type_, T.IntegralType) else T.DoubleType()
    return type_


def _type_of(term: Term, df: DataFrame) -> pa.DataType:
    """Return the type of a term; raise unless what it computes with fits."""
    name, *parts = term
    if name not in OPERATORS:
        kind = {"agg": term[2], "class": "classifier"}.get(name, "first")
        leaf = Measure("", None, kind, column=next(columns_of(term), None))
        return to_arrow_schema(T.StructType([T.StructField("leaf", _type(leaf, df))])).types[0]
    types = [_type_of(part, df) for part in parts]
    moments = [one for one in types if pa.types.is_date(one) or pa.types.is_timestamp(one)]
    with suppress(pa.ArrowException):
        if len({getattr(one, "tz", None) for one in moments}) < 2:  # else it depends on the time zone
            return OPERATORS[name][1](*(pa.array([], one) for one in types)).type
    raise ValueError(
        f"query: {name.upper()} in DEFINE is not supported for {' and '.join(map(str, types))} of different "
        "rows; cast columns in a view, or compare values of one type"
    )
