"""`pipeline_table`: a table of a declarative pipeline as the input of a flow."""

from __future__ import annotations

from typing import cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from timerheap._arguments import instance
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._compat import on_connect
from timerheap.spark._flows import client_in_pipeline, missing_table, outside_of_flow
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._plan.schemas import arrow_schema, parsed_ddl


def pipeline_table(
    spark: SparkSession, name: str, schema: StructType | str | None = None, *, format: str | None = None
) -> DataFrame:
    """Return the rows of a table of a declarative pipeline, for functions of timerheap in a flow.

    As ``spark.readStream.table(name)``, but the pipeline may not have run yet. Spark must know the columns of
    a table when a flow with a stateful Python operator is defined, which is before a run makes its tables. So
    a table that does not exist is created, empty, as the run would have done.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session of the pipeline.
    name : str
        The table with its database, such as ``"default.orders"``.
    schema : StructType or str, optional
        The columns that are read, with which the table is created. It may be left out once the table exists.
    format : str, optional
        The format of a table that is created, that of ``@dp.table(format=)``. By default it is Spark's.

    Returns
    -------
    pyspark.sql.DataFrame
        A stream with the columns of `schema`, or all columns of the table.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If the table does not exist and there is no `schema`, or the table has other columns.

    Notes
    -----
    A dry run creates the table, too. A table with partitions is to be created by hand before the first run,
    with ``CREATE TABLE ... PARTITIONED BY``, since Spark cannot partition it later. Outside of a pipeline,
    such as in a test, the table must exist.

    Examples
    --------
    ::

        @dp.table
        def overdue():
            orders = timerheap.spark.pipeline_table(spark, "default.orders", "id string, at timestamp")
            return timerheap.spark.process(orders, "id", Overdue(), ...)
    """
    if not (isinstance(spark, SparkSession) or on_connect(spark)):
        raise ArgumentTypeError(f"spark must be a pyspark.sql.SparkSession, got {spark!r}")
    instance("name", name, str)
    if "." not in name:
        raise ArgumentValueError(
            f"name must have the table's database, got {name!r}: that of the session may be a different one "
            f'than that of the pipeline; write "DATABASE.{name}"'
        )
    client = client_in_pipeline()
    with outside_of_flow(client):
        wanted = None if schema is None else parsed_ddl("schema", schema)
        if wanted is not None:
            arrow_schema("schema", wanted)
        if not spark.catalog.tableExists(name):
            if wanted is None or client is None:
                raise missing_table(name)
            _create(spark, name, cast(StructType, wanted), format)
        rows = spark.readStream.table(name)
        return rows if wanted is None else _wanted_columns(rows, name, cast(StructType, wanted))


def _create(spark: SparkSession, name: str, schema: StructType, format: str | None) -> None:
    try:
        spark.catalog.createTable(name, source=format, schema=schema)
    except PySparkException as e:
        if e.getCondition() != "LOCATION_ALREADY_EXISTS":
            raise
        raise ArgumentValueError(
            f"name must be of a table that the catalog knows, got {name!r}, whose files are there: Spark's "
            "catalog in memory forgets the tables of a pipeline when a run ends; use one that keeps them, as "
            "with spark.sql.catalogImplementation=hive in spark-defaults.conf, and remove these files first"
        ) from None


def _wanted_columns(rows: DataFrame, name: str, wanted: StructType) -> DataFrame:
    found = {field.name: field.dataType for field in rows.schema}
    if wrong := [field for field in wanted if found.get(field.name) != field.dataType]:
        have = found.get(wrong[0].name)
        raise ArgumentValueError(
            f"schema must be of columns that table {name!r} has, got {wrong[0].name!r} of type "
            f"{wrong[0].dataType.simpleString()}, where the table has "
            f"{'no such column' if have is None else have.simpleString()}; correct it, or leave it out"
        )
    return rows.select(*map(quoted, wanted.names))
