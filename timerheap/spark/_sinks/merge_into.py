"""`merge_into`: a table of Delta or Iceberg that is kept up to date."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from timerheap._arguments import instance
from timerheap.spark._columns import HIDDEN
from timerheap.spark._plan.named_columns import backticks, quoted, types_in
from timerheap.spark._sinks.sink_keys import sink_key
from timerheap.spark._sinks.table_writes import (
    DELETED,
    IS_NEW,
    TableWriter,
    lacking_columns,
    not_unique,
)
from timerheap.spark._sinks.upserts_of import as_json

_KEY_SHOWN, _IN_TABLE = f"{HIDDEN}key_shown", f"{HIDDEN}in_table"


def merge_into(
    table: str,
    key: str | Sequence[str] | None = None,
    *,
    of: DataFrame | None = None,
    trust_key: bool = False,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that keeps a table of Delta or Iceberg up to date.

    After each micro-batch the table has the rows of the result. A micro-batch is one commit of the table, and
    one that is repeated changes nothing.

    Parameters
    ----------
    table : str
        A table that exists, as in SQL: ``"ice.sales.balances"``, or a path, ``"delta.`/lake/balances`"``.
        It has the columns of the result, by name. Others it has are null in new rows, and stay as they are.
    key : str or list of str, optional
        The columns by which the result has at most one row; by default those that `of` guarantees. Null is
        a key, and equal to null.
    of : pyspark.sql.DataFrame, optional
        The result whose changes are written. If it knows its keys, one of them must be in `key`, or this
        raises an error.
    trust_key : bool, default False
        Whether `key` is unique for certain. If neither this nor `of` says so, a new row whose key is in the
        table with other values is an error, and nothing of the micro-batch is written. True replaces such
        rows: pass it if the table has rows from before the query began, or if the changes lack their
        preimages.

    Returns
    -------
    function
        ``writeStream.foreachBatch(merge_into(...))``; on Spark Connect, too. It may be called in a function
        of your own. Each query has one of its own.

    Raises
    ------
    ArgumentError
        If an argument is wrong; from the function, if the table lacks a column, or if two rows of the result
        have the same key. The table is then as it was.

    Notes
    -----
    The final images of a micro-batch are in Spark's cache while they are written. MERGE also looks for new
    rows whose keys are there, so it reads the table no more than without that. A micro-batch without changes
    writes nothing.

    Examples
    --------
    ::

        balances = timerheap.spark.aggregate_changes(changes, "account", F.sum("amount").alias("balance"))
        (
            balances.writeStream.foreachBatch(timerheap.spark.merge_into("lake.balances", of=balances))
            .option("checkpointLocation", checkpoint)
            .start()
        )
    """
    return LakeWriter(instance("table", table, str), sink_key(key, of, trust_key))


class LakeWriter(TableWriter):
    """A function that merges each micro-batch into a table."""

    def write(self, images: DataFrame, count: int, may_be_repeated: bool) -> None:
        spark = images.sparkSession
        rows, found = images.drop(DELETED, IS_NEW).schema, spark.table(self.table).schema
        expect_columns(self.table, found.names, rows.names)
        types = {field.name.lower(): field.dataType for field in found}
        added = {_KEY_SHOWN: as_json(map(quoted, self.key.names))}
        same = list[str]()
        for name in rows.names if may_be_repeated else []:
            type_ = types[name.lower()]
            added[f"{_IN_TABLE}{len(same)}"] = quoted(name).cast(type_)
            same.append(_same_value(f"old.{backticks(name)}", f"new.{_IN_TABLE}{len(same)}", type_))
        view = f"{HIDDEN}{uuid.uuid4().hex}"
        images.withColumns(added).createOrReplaceTempView(view)
        try:
            spark.sql(self._merge(view, list(map(backticks, rows.names)), same)).collect()
        finally:
            spark.catalog.dropTempView(view)

    def _merge(self, view: str, names: list[str], same: list[str]) -> str:
        """Return the statement.

        names: the columns, quoted
        same: conditions, all true of a row of the table that is the same; none if that is wrong, too
        """
        key = list(map(backticks, self.key.names))
        clauses = [f"WHEN MATCHED AND new.{DELETED} THEN DELETE"]
        if not self.key.is_sure:
            wrong = f"new.{IS_NEW}" + (f" AND NOT ({' AND '.join(same)})" if same else "")
            before, after = (_text(text) for text in not_unique(self.key.names, self.table))
            error = f"raise_error(concat({before}, new.{_KEY_SHOWN}, {after}))"
            value = f"{names[0]} = coalesce({error}, new.{names[0]})"  # of the type of the column
            clauses.append(f"WHEN MATCHED AND {wrong} THEN UPDATE SET {value}")
        if values := ", ".join(f"{name} = new.{name}" for name in names if name not in key):
            clauses.append(f"WHEN MATCHED THEN UPDATE SET {values}")
        new = ", ".join(f"new.{name}" for name in names)
        clauses.append(
            f"WHEN NOT MATCHED AND NOT new.{DELETED} THEN INSERT ({', '.join(names)}) VALUES ({new})"
        )
        same_key = " AND ".join(f"old.{name} <=> new.{name}" for name in key)
        return "\n".join([f"MERGE INTO {self.table} AS old USING {view} AS new ON {same_key}", *clauses])


def expect_columns(table: str, columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise an error unless a table has all columns, in upper or lower case."""
    known = {name.lower() for name in columns}
    missing = [name for name in wanted if name.lower() not in known]
    if missing:
        raise lacking_columns(table, columns, missing)


def _text(text: str) -> str:
    """Return a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _same_value(old: str, new: str, type_: T.DataType) -> str:
    if not _is_comparable(type_):
        old, new = (f"to_json(named_struct('value', {value}))" for value in (old, new))
    return f"{old} <=> {new}"


def _is_comparable(type_: T.DataType) -> bool:
    if isinstance(type_, T.MapType | T.VariantType):
        return False
    return all(map(_is_comparable, types_in(type_)))
