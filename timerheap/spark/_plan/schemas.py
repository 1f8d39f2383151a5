"""Schemas that users give, parsed and checked."""

from __future__ import annotations

from collections.abc import Container
from typing import cast

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import types as T

from timerheap._values import expect_shallow
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._columns import OURS
from timerheap.spark._compat import to_arrow_schema


def parsed_schema(output_schema: object) -> T.StructType:
    """Return the result's type, parsed if it is a DDL string, and checked."""
    type_ = parsed_ddl("output_schema", output_schema)
    arrow_schema("output_schema", type_)
    return cast(T.StructType, type_)


def parsed_ddl(argument: str, schema: object) -> object:
    """Return the type of a DDL string, and everything else as it is."""
    try:
        return T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as e:
        raise ArgumentValueError(
            f"{argument} must be a DDL string such as 'plane string, at bigint', got {schema!r}: {e}"
        ) from None


def arrow_schema(argument: str, type_: object, hidden: Container[str] = ()) -> pa.Schema:
    """Return the Arrow schema of a StructType with unique column names, some of them `hidden` ones."""
    if not isinstance(type_, T.StructType):
        raise ArgumentTypeError(
            f"{argument} must be a DDL string such as 'plane string, at bigint', or a StructType, got "
            f"{type_!r}"
        )
    names = [name for name in type_.names if name not in hidden]
    taken = [n for n in names if n.startswith(OURS) or type_.names.count(n) > 1]
    if taken:
        raise ArgumentValueError(
            f"{argument} must have unique column names that do not begin with {OURS!r}, got "
            f"{min(taken)!r}; rename the column"
        )
    try:
        schema = to_arrow_schema(type_)
    except Exception as e:
        raise ArgumentValueError(
            f"{argument} must have column types that Arrow supports, got {type_.simpleString()}: {e}"
        ) from e
    for field in schema:
        expect_shallow(field.type, f"{argument}: column {field.name!r}")
    return schema
