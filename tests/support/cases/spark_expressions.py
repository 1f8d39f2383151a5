"""Some expressions of Spark's SQL, computed of columns without Spark: those that functions on changes add."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import expressions as e

Columns = Mapping[str, pa.Array]
TYPES = {
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "INT": pa.int32(),
    "TINYINT": pa.int8(),
}


def value_of(text: str, columns: Columns, n: int) -> Any:
    """Return an expression, computed of columns of n rows."""
    return _value(_parsed(text), columns, n)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> e.Expression:
    return sqlglot.parse_one(text, read="spark")


def _value(node: Any, columns: Columns, n: int) -> Any:
    def of(child: Any) -> Any:
        return _value(child, columns, n)

    return COMPUTED[type(node)](node, of, columns, n)


def _case(node: Any, of: Callable[[Any], Any], columns: Columns, n: int) -> pa.Array:
    default = node.args.get("default")
    found = None if default is None else of(default)
    for one in reversed(node.args["ifs"]):
        value = of(one.args["true"])
        other = pa.nulls(n, value.type) if found is None else found
        found = pc.if_else(of(one.this).fill_null(False), value, other)
    return found


def _struct(node: Any, of: Callable[[Any], Any], columns: Columns, n: int) -> pa.Array:
    parts = {one.this.name: of(one.expression) for one in node.expressions}
    return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))


COMPUTED: dict[type, Callable[..., Any]] = {
    e.Column: lambda node, of, columns, n: columns[node.name],
    e.Literal: lambda node, of, columns, n: pa.array([int(node.this)] * n, pa.int32()),
    e.Boolean: lambda node, of, columns, n: pa.array([bool(node.this)] * n),
    e.Paren: lambda node, of, columns, n: of(node.this),
    e.TryCast: lambda node, of, columns, n: of(node.this).cast(TYPES[node.args["to"].sql("spark")]),
    e.Cast: lambda node, of, columns, n: of(node.this).cast(TYPES[node.args["to"].sql("spark")]),
    e.Not: lambda node, of, columns, n: pc.invert(of(node.this)),
    e.And: lambda node, of, columns, n: pc.and_kleene(of(node.this), of(node.expression)),
    e.Is: lambda node, of, columns, n: of(node.this).is_null(),
    e.EQ: lambda node, of, columns, n: pc.equal(of(node.this), of(node.expression)),
    e.Case: _case,
    e.Struct: _struct,
}
