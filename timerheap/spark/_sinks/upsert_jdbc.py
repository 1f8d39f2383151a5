"""`upsert_jdbc`: a table of PostgreSQL that is kept up to date."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap._arguments import instance
from timerheap.errors import UnsupportedError
from timerheap.spark._plan.named_columns import is_atomic, quoted
from timerheap.spark._sinks import postgres_table
from timerheap.spark._sinks.postgres_table import (
    PostgresTable,
    catalog_query,
    expect_staging,
    quoted_table,
)
from timerheap.spark._sinks.sink_keys import SinkKey, sink_key
from timerheap.spark._sinks.table_writes import DELETED, IS_NEW, TableWriter

_SUFFIX = "__changes"


def upsert_jdbc(
    url: str,
    table: str,
    key: str | Sequence[str] | None = None,
    *,
    of: DataFrame | None = None,
    trust_key: bool = False,
    properties: Mapping[str, str] | None = None,
    staging: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that keeps a table of PostgreSQL up to date.

    After each micro-batch the table has the rows of the result. A micro-batch is one transaction, and one
    that is repeated changes nothing.

    Parameters
    ----------
    url : str
        Such as ``"jdbc:postgresql://database/shop"``.
    table : str
        A table that exists, ``"balances"`` or ``"public.balances"``, in exactly this spelling. It has a
        unique constraint on `key`, and the columns of the result, by name. Others it has get their defaults
        in new rows, and stay as they are.
    key : str or list of str, optional
        The columns by which the result has at most one row; by default those that `of` guarantees. If nulls
        are among the keys, the constraint must be ``UNIQUE NULLS NOT DISTINCT``.
    of : pyspark.sql.DataFrame, optional
        The result whose changes are written. If it knows its keys, one of them must be in `key`, or this
        raises an error.
    trust_key : bool, default False
        Whether `key` is unique for certain. If neither this nor `of` says so, a new row whose key is in the
        table with other values is an error, and nothing of the micro-batch is written. True replaces such
        rows: pass it if the table has rows from before the query began, or if the changes lack their
        preimages.
    properties : mapping of str to str, optional
        Options of Spark's JDBC source, such as ``{"user": ..., "password": ...}``.
    staging : str, optional
        The table that each micro-batch fills before it is applied; by default `table` with ``__changes``
        added. It is created anew each time, and empty afterwards. Each query needs its own.

    Returns
    -------
    function
        ``writeStream.foreachBatch(upsert_jdbc(...))``; on Spark Connect, too. It may be called in a function
        of your own. Each query has one of its own.

    Raises
    ------
    ArgumentError
        If an argument is wrong; from the function, if the table has no unique constraint on the key or lacks
        a column, or if two rows of the result have the same key. The table is then as it was.
    UnsupportedError
        If `url` is not that of a PostgreSQL.

    Notes
    -----
    The driver of PostgreSQL is a jar for the driver and the executors, ``org.postgresql:postgresql``; nothing
    else is needed. All tasks write to the staging table; then one statement takes it into the table. The user
    must be allowed to create the staging table and a temporary one.

    Structs, maps and variants are written as JSON. A timestamp in a column without a time zone is the local
    time of the session.

    Examples
    --------
    ::

        write = timerheap.spark.upsert_jdbc("jdbc:postgresql://database/shop", "balances", of=balances)
        query = balances.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    """
    if not instance("url", url, str).startswith("jdbc:postgresql:"):
        raise UnsupportedError(
            f"url must begin with 'jdbc:postgresql:', got {url!r}; for other databases write upserts_of() in "
            "a function of your own"
        )
    name = quoted_table("table", instance("table", table, str))
    own = quoted_table("staging", f'{name[:-1]}{_SUFFIX}"' if staging is None else staging)
    options = {"driver": "org.postgresql.Driver", **(properties or {}), "url": url}
    return PostgresWriter(table, sink_key(key, of, trust_key), name, own, options)


class PostgresWriter(TableWriter):
    """A function that applies each micro-batch to a table in one transaction."""

    def __init__(self, table: str, key: SinkKey, name: str, staging: str, options: dict[str, str]) -> None:
        super().__init__(table, key)
        self._name, self._staging, self._options = name, staging, options
        self._target: PostgresTable | None = None

    def write(self, images: DataFrame, count: int, may_be_repeated: bool) -> None:
        spark, columns = images.sparkSession, images.drop(DELETED, IS_NEW).schema
        target = self._target_in(spark, columns.names)
        token = uuid.uuid4().hex
        staged = [
            F.lit(token).alias(postgres_table.TOKEN),
            F.col(DELETED).alias(postgres_table.DELETED),
            F.col(IS_NEW).alias(postgres_table.IS_NEW),
            *(_staged(field).alias(f"c{number}") for number, field in enumerate(columns)),
        ]
        writer = images.select(*staged).write.format("jdbc").options(**self._options)
        writer.option("dbtable", self._staging).mode("overwrite").save()
        apply = target.statement(
            self._staging, token, count, self.key.is_sure, may_be_repeated, shown=self.table
        )
        self._read(spark, "SELECT 1 AS applied", apply)

    def _target_in(self, spark: SparkSession, columns: Sequence[str]) -> PostgresTable:
        if self._target is None or list(self._target.types) != list(columns):
            expect_staging("staging", self._staging, self._read(spark, catalog_query(self._staging)))
            found = self._read(spark, catalog_query(self._name))
            self._target = PostgresTable.of_catalog(self.table, self._name, self.key.names, columns, found)
        return self._target

    def _read(self, spark: SparkSession, query: str, first: str = "SELECT 1") -> list[Row]:
        """Run a query, in a session whose first statement is a transaction of its own."""
        reader = spark.read.format("jdbc").options(**self._options, fetchsize=0)
        return reader.options(query=query, sessionInitStatement=first).load().collect()


def _staged(field: T.StructField) -> Column:
    """Return a column as a type of PostgreSQL that loses nothing on its way through JDBC."""
    column, type_ = quoted(field.name), field.dataType
    if isinstance(type_, T.TimestampType):
        return F.date_format(column, "yyyy-MM-dd HH:mm:ss.SSSSSSXXXXX")  # the offset, with seconds
    if isinstance(type_, T.TimestampNTZType | T.TimeType):
        return column.cast("string")  # JDBC would have it in the zone of the JVM
    if is_atomic(type_) or (isinstance(type_, T.ArrayType) and is_atomic(type_.elementType)):
        return column
    return F.to_json(column)
