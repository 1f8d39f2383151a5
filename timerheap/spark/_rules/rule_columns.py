"""Columns that Spark computes for one rule alone: beside the rows of all, and in place for its runner."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import COMPUTED
from timerheap.spark._query import Query
from timerheap.spark._rules.rule import RulePlan


@dataclass(frozen=True)
class RuleColumns:
    """The columns of one rule, which are fields of a struct among the columns of all rows.

    It is null in a row that does not reach the rule: one that its query leaves out, or that waits since
    before the rule had these columns.

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


def rule_struct(rule: str, plan: RulePlan) -> Column | None:
    """Return the struct of the columns of a rule, null in rows that do not reach it; None without either.

    Its name is for just what is computed in it.
    """
    if not plan.columns and plan.where is None:
        return None
    fields = [column.alias(name) for name, column in plan.columns.items()] or [F.lit(True).alias("reaches")]
    struct = F.struct(*fields)
    digest = hashlib.blake2b(plan.computed.encode(), digest_size=6).hexdigest()
    own = struct if plan.where is None else F.when(plan.where, struct)
    return own.alias(f"{COMPUTED}:{rule}/{digest}")
