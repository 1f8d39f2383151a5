"""`sql_script`: several statements in Flink's SQL, as they are pasted: tables, views and INSERT INTO."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache, partial
from typing import Any, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap._arguments import instance
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._flows import in_flows
from timerheap.spark._plan.named_columns import backticks
from timerheap.spark._sql.options import SqlOptions
from timerheap.spark._sql.plan.called_aggregates import checked_functions
from timerheap.spark._sql.sql import Known, answer, expect_session, given_frames, parsing
from timerheap.watermarks import WatermarkStrategy

_PROCTIME = re.compile(r"(?i)\s*PROCTIME\s*\(\s*\)\s*")


@in_flows
def sql_script(
    spark: SparkSession,
    script: str,
    watermark: Mapping[str, WatermarkStrategy | int | str | timedelta] | None = None,
    *,
    tables: Mapping[str, DataFrame] | None = None,
    functions: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Unpack[SqlOptions],
) -> dict[str, DataFrame]:
    """Run a script in Flink's SQL: return a DataFrame for each INSERT INTO, by the name of its table.

    ::

        CREATE TABLE clicks (user_id BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
            WITH ('connector' = 'kafka', ...);
        CREATE TEMPORARY VIEW known AS SELECT * FROM clicks WHERE user_id > 0;
        INSERT INTO totals SELECT user_id, COUNT(*) AS n FROM known GROUP BY user_id;

    is ``{"totals": sql(...)}``, with the rows of ``tables["clicks"]``.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    script : str
        Statements, each with a semicolon behind it. CREATE TABLE tells the columns of a table, which may be
        computed, and its watermark. CREATE VIEW names a query for the statements after it. INSERT INTO has
        the columns of its list, or of the CREATE TABLE of its table. EXECUTE STATEMENT SET is the same
        without it: each INSERT INTO is a query of its own.
    watermark : dict, optional
        As for `sql`, by the names of tables. It replaces what WATERMARK FOR says.
    tables : dict of str to DataFrame, optional
        The rows of tables. Others are tables and temporary views of `spark`. No connector is read: the rows
        are those of Spark's source.
    functions, name, **options
        As for `sql`, for each of the queries.

    Returns
    -------
    dict of str to pyspark.sql.DataFrame
        The results, in the order of the statements. To write them is up to you: WITH of their tables is not
        read.

    Raises
    ------
    ArgumentValueError
        If a statement is none of these, a table has no rows, or `sql` refuses a query.
    """
    expect_session(spark)
    instance("script", script, str)
    if watermark is not None and not isinstance(watermark, Mapping):
        raise ArgumentTypeError(
            f'watermark must be a dict such as {{"t": "ts - INTERVAL \'5\' SECOND"}}, got {watermark!r}'
        )
    aggregates, on_tables = checked_functions(functions)
    known = Known(frames=given_frames(tables), functions=aggregates, on_tables=on_tables)
    names = _Script(spark, known, dict(watermark or {}), name, options)
    statements = parsing()
    results: dict[str, DataFrame] = {}
    for one in statements.statements_of(script):
        if isinstance(one, statements.Declared):
            names.declare(one)
        elif isinstance(one, statements.View):
            names.add_view(one)
        elif isinstance(one, statements.Insert):
            if one.target in results:
                raise ArgumentValueError(
                    f"script must have one INSERT INTO {one.target}, got two; write one with UNION ALL"
                )
            results[one.target] = names.answer(one.query, one.columns or names.stored.get(one.target, ()))
        else:
            raise ArgumentValueError(
                "script must have INSERT INTO before each SELECT, which names its result; or use sql()"
            )
    known.expect_asked(options.get("deleted"))
    return results


class _Script:
    """What the statements so far have named.

    stored: the columns of tables that CREATE TABLE lists
    """

    def __init__(
        self,
        spark: SparkSession,
        known: Known,
        watermark: dict[str, Any],
        name: str | None,
        options: SqlOptions,
    ) -> None:
        self.stored: dict[str, tuple[str, ...]] = {}
        self._spark, self._known, self._watermark = spark, known, watermark
        self._name, self._options = name, options
        self._given = dict(known.frames)

    def declare(self, table: Any) -> None:
        """Record a table that CREATE TABLE declares; its rows are looked up when a query reads it."""
        self.stored[table.name] = table.columns
        if table.watermark is not None:
            self._watermark.setdefault(table.name, table.watermark)
        computed = {name: text for name, text in table.computed.items() if not _PROCTIME.fullmatch(text)}
        times = [name for name in table.computed if name not in computed]
        if times and self._options.setdefault("processing_time", times[0]) != times[0]:
            raise ArgumentValueError(
                f"script must have one name of the processing time, got {times[0]!r} beside "
                f"{self._options['processing_time']!r}; rename one"
            )
        self._add(table.name, partial(self._rows, table, computed))

    def add_view(self, view: Any) -> None:
        """Record a view: the meaning of its query."""
        from timerheap.spark._sql.read.aggregate_calls import with_aggregates
        from timerheap.spark._sql.rewrite.meaning import meaning_of

        query = parsing().with_names(view)
        query = with_aggregates(query, self._known.functions)
        known = self._known
        columns = partial(known.columns, self._spark)
        known.views[view.name] = meaning_of(query, columns, known.views, known.nested, known.on_tables)

    def answer(self, query: Any, into: tuple[str, ...]) -> DataFrame:
        watermark = self._watermark or None
        return answer(self._spark, query, into, self._known, watermark, self._name, self._options)

    def _add(self, name: str, make: Callable[[], DataFrame]) -> None:
        self._known.frames[tuple(name.split("."))] = cache(make)

    def _rows(self, table: Any, computed: Mapping[str, str]) -> DataFrame:
        """Return the rows of a table, with the columns that are computed."""
        path = tuple(table.name.split("."))
        if path in self._given:
            df = self._given[path]()
        else:
            if table.connector:
                raise ArgumentValueError(
                    f"script: the connector {table.connector!r} of table {table.name} is not supported; read "
                    f'the rows with spark.readStream, and pass them: tables={{"{table.name}": df}}'
                )
            df = self._spark.table(".".join(map(backticks, path)))
        lower = {name.lower() for name in df.columns}
        missing = [name for name in table.columns if name.lower() not in lower]
        if missing:
            raise ArgumentValueError(
                f"script: table {table.name} must have the columns of CREATE TABLE, got {df.columns} without "
                f"{missing}; select them from what you pass"
            )
        for name, text in computed.items():
            if name.lower() not in lower:
                df = df.withColumn(name, F.expr(parsing().expression_of(text)))
        return df
