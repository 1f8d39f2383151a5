"""MATCH_RECOGNIZE on a DataFrame: the columns that it needs of each row, and those of its result."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    IntegralType,
    LongType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._patterns.conditions import Term, leaves
from timerheap.spark._patterns.match_rows import MatchPlan, MatchRows
from timerheap.spark._patterns.measures import Measure
from timerheap.spark._sql.nodes import Matched


def expect_bounded(node: Matched, df: DataFrame, time: str | None, unbounded: bool) -> None:
    """Raise unless the matches in a table can be found, and on a stream in bounded state."""
    pattern = f"query: PATTERN ({node.pattern.text})"
    if time is None:
        raise ValueError(f"query: MATCH_RECOGNIZE must be ordered by an event time, got {node.time}")
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


def matching(node: Matched, df: DataFrame, shown: list[str]) -> tuple[MatchRows, list[StructField]]:
    """Return the function of a clause, and the fields of its result.

    df: the rows, with the columns that the clause computes beforehand
    shown: the columns that the result has before the measures
    """
    for number, term in enumerate(node.defined):
        if term is not None and (kind := _kind(term, df)) not in ("boolean", "void"):
            name = node.pattern.variables[number]
            raise ValueError(f"query: DEFINE {name} must be a condition, got a value of type {kind}")
    stored = [one.column[0] for one in node.measures if one.column]
    for leaf in (leaf for term in node.defined if term for leaf in leaves(term)):
        place = {"row": 1 if leaf[2] else None, "nav": 4, "agg": 3}[leaf[0]]
        stored += [leaf[place]] if place and leaf[place] else []
    others = [name for name in shown if name not in node.keys]
    rows = to_arrow_schema(StructType([df.schema[name] for name in dict.fromkeys([*stored, *others])]))
    fields = [StructField(one.name, _type(one, df)) for one in node.measures]
    types = to_arrow_schema(StructType(fields)).types
    measures = tuple(replace(one, type=type_) for one, type_ in zip(node.measures, types, strict=True))
    how = node.pattern.text, node.defined, node.skip, node.target, node.within is None
    same = repr((how, sorted(node.columns.items()), rows))
    mark = int.from_bytes(hashlib.blake2b(same.encode(), digest_size=7).digest(), "big")
    plan = MatchPlan(
        node.pattern, node.defined, node.within, node.skip, node.target, measures, [*node.keys], others, rows,
        node.all_rows, node.shows_empty, mark,
    )  # fmt: skip
    return MatchRows(plan), [*(df.schema[name] for name in (*node.keys, *others)), *fields]


def _type(measure: Measure, df: DataFrame) -> DataType:
    kind, type_ = measure.kind, df.schema[measure.column[0]].dataType if measure.column else NullType()
    if kind.startswith("classifier"):
        return StringType()
    if kind in ("number", "count"):
        return LongType()
    if kind in ("sum", "avg"):
        if not isinstance(type_, NumericType):
            raise ValueError(f"query: {kind.upper()} must be of numbers, got {type_.simpleString()}")
        if kind == "sum" and isinstance(type_, DecimalType):
            return DecimalType(min(38, type_.precision + 10), type_.scale)
        return LongType() if kind == "sum" and isinstance(type_, IntegralType) else DoubleType()
    return type_


def _kind(term: Term, df: DataFrame) -> str:
    """Return the kind of values of a term; raise unless what it computes with fits."""
    name, *parts = term
    if name in ("row", "nav"):
        type_ = df.schema[parts[0 if name == "row" else 3]].dataType
        return "number" if isinstance(type_, NumericType) else type_.typeName()
    if name == "agg":
        _, kind, column = parts
        of = NullType() if column is None else df.schema[column].dataType
        return "number" if kind in ("count", "sum", "avg") or isinstance(of, NumericType) else of.typeName()
    kinds = [one for one in (_kind(part, df) for part in parts) if one != "void"] or ["void"]
    first, times = kinds[0], ("timestamp", "timestamp_ntz")
    if name == "null":
        return "boolean"
    if name in ("eq", "ne", "lt", "le", "gt", "ge") and len({*kinds}) == 1:
        return "boolean"
    if (name == "coalesce" and len({*kinds}) == 1) or (
        name in ("and", "or", "not") and {*kinds} <= {"boolean", "void"}
    ):
        return first
    if name in ("add", "sub", "mul", "div", "neg") and {*kinds} <= {"number", "void"}:
        return first
    if name in ("add", "sub") and kinds[1:] == ["interval"] and first in (*times, "interval"):
        return first
    if name == "sub" and first in times and kinds[1:] == [first]:
        return "interval"
    raise ValueError(
        f"query: {name.upper()} in DEFINE is not supported for {' and '.join(kinds)} of different rows; cast "
        "columns in a view, or compare values of one type"
    )
