"""Columns that Spark computes for one rule alone: beside the rows of all, and in place for its runner."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import COMPUTED
from timerheap.spark._query import Query


@dataclass(frozen=True)
class RuleColumns:
    """The columns of one rule, which are fields of a struct among the columns of all rows.

    A row that waits since before the rule had these columns has null there, and does not reach the rule.

    name: of the struct
    type: of the struct
    """

    name: str
    type: StructType

    def query(self, query: Query) -> Query:
        """Return a query over the rows that reach the rule."""
        return replace(query, rows=StructType([*query.seen_rows, *self.type]))

    def rows(self, rows: KeyedRows) -> KeyedRows:
        """Return the rows that reach the rule, with its columns behind those of all."""
        has = rows.rows.column(self.name).is_valid()
        if has.true_count < len(rows):
            rows = rows.where(has.to_numpy(zero_copy_only=False))
        own = rows.rows.column(self.name)
        columns = [*rows.rows.columns, *own.flatten()]
        names = [*rows.rows.schema.names, *own.type.names]
        return replace(rows, rows=pa.RecordBatch.from_arrays(columns, names=names))


def rule_struct(rule: str, columns: Mapping[str, Column], computed: str) -> Column:
    """Return the struct of the columns of a rule, under a name for just what is computed in them."""
    digest = hashlib.blake2b(computed.encode(), digest_size=6).hexdigest()
    fields = (column.alias(name) for name, column in columns.items())
    return F.struct(*fields).alias(f"{COMPUTED}:{rule}/{digest}")
