"""`sql`: Flink's queries as text, over windows, and over tables that change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any, Unpack

from pyspark.sql import DataFrame, SparkSession

from timerheap._arguments import instance, not_negative, positive
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import CHANGE_TYPE
from timerheap.spark._compat import on_connect
from timerheap.spark._flows import in_flows
from timerheap.spark._plan.named_columns import backticks, data_frame
from timerheap.spark._plan.operator_names import checked_name, named_after
from timerheap.spark._side_outputs import side_output
from timerheap.spark._sql.nodes import (
    Aggregated,
    Either,
    Matched,
    NestedQuery,
    Node,
    Over,
    Ranked,
    Selected,
    Table,
    Windowing,
)
from timerheap.spark._sql.options import SqlOptions, expect_options
from timerheap.spark._sql.over_calls import RowCall
from timerheap.spark._sql.plan.called_aggregates import Functions, checked_functions
from timerheap.spark._sql.plan.planner import Planner
from timerheap.spark._sql.plan.timed_tables import Tables
from timerheap.spark._sql.plan.upserts import Upserts
from timerheap.spark._sql.table_function import TableFunction
from timerheap.watermarks import WatermarkStrategy


@in_flows
def sql(
    spark: SparkSession,
    query: str,
    watermark: WatermarkStrategy
    | str
    | timedelta
    | Mapping[str, WatermarkStrategy | int | str | timedelta]
    | None = None,
    *,
    tables: Mapping[str, DataFrame] | None = None,
    functions: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Unpack[SqlOptions],
) -> DataFrame:
    """Run a query written in Flink's SQL: over windows, rows in their order, or tables that change.

    ::

        SELECT window_start, window_end, k, COUNT(*) AS n
        FROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '5' MINUTE))
        GROUP BY window_start, window_end, k

    is ``cumulate(spark.table("t"), "ts", step=5_000, max_size=300_000, ...)``, then
    ``.groupBy("k").agg(F.count("*"))`` and the projection of the SELECT list.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    query : str
        One SELECT, or INSERT INTO with one, whose columns the result then has: over TUMBLE, HOP, CUMULATE or
        SESSION, with positional or named arguments, and with GROUPING SETS, CUBE and ROLLUP; over nested
        queries of these also a window Top-N, a window join or another aggregation; or functions OVER the rows
        of a table: aggregates, LAG, LEAD, ROW_NUMBER and so on, with QUALIFY; or the matches of a pattern in
        its rows: MATCH_RECOGNIZE; or an as-of join of two tables or nested queries: ``FOR SYSTEM_TIME AS
        OF``, or ``ASOF JOIN``, where further conditions narrow which row is the match; or an interval join,
        whose conditions say how far apart two times may be. Or groups, DISTINCT, a Top-N, joins, IN and
        EXISTS, UNION, INTERSECT and EXCEPT without windows, whose results change. Tables are those of
        `tables`, and the tables and temporary views of `spark`, streams or batches; those with a column
        ``_change_type`` are changelogs.
    watermark : WatermarkStrategy or delay such as "5 seconds", or dict of str to these
        Replaces Flink's ``WATERMARK FOR``, whose expression it may be: ``"ts - INTERVAL '5' SECOND"``, which
        is the delay of 5 seconds. A delay is that of Flink's SQL: the watermark is the largest time minus
        the delay, and a row of just that time is late. That of a strategy is 1 ms less, as in Flink's
        DataStream. The keys of a dict are table names, or those of nested queries in a join by time. Optional
        for batches, for views of a DataFrame with Spark's own ``withWatermark()`` on the time column, for
        views of results of other operators, whose watermark they follow, and for windows of processing time.
    tables : dict of str to pyspark.sql.DataFrame, optional
        Rows of tables by the names that they have in the query, before the tables and views of `spark`: for
        sessions where views cannot be made.
    functions : dict of str to UserAggregate, pandas UDF or TableFunction, optional
        Your own functions by the names that they have in the query: aggregates of `udaf` without columns, or
        a ``pandas_udf`` from a series to a value, which keeps all values of a group; and process functions
        that are called on tables, of `table_function`. Functions of rows are called by the names with which
        they are registered: ``spark.udf.register``.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that. Of several
        operators the first has the name, such as "totals", and the others are "totals_2" and so on, in the
        order in which they are planned.
    **options
        As below.

    Other Parameters
    ----------------
    processing_time : str, optional
        Name of the processing time in queries, which is that of the micro-batch of a row: for windows, the
        order of rows as they arrive, interval joins and lookup joins. By default, any name that is not a
        column of a streaming table without a `watermark`. ``PROCTIME()`` always is one.
    time_zone : str, optional
        Time zone whose wall clock cuts the windows, by default the session's.
    late : {"drop", "emit"}, default "drop"
        What becomes of late rows. With "emit" `timerheap.spark.late_rows` returns them, as rows of the table;
        for queries that aggregate a table's windows, have functions OVER its rows, match them, or find the
        first row of a key.
    channel, max_parallelism
        As for `tumble`; of a join by time, `channel` is a column of the left table.
    deleted : dict of str to str, optional
        For the right table of an as-of join, by its name: a condition that is true in rows which only end the
        version before them, such as ``{"rates": "op = 'D'"}``. See `join_asof`. For a table in `changes`: a
        condition that is true in upserts which delete the row of their key.
    lead_within : int, str or timedelta, optional
        How far behind a row LEAD, and NEXT of MATCH_RECOGNIZE, look, in milliseconds or as "1 hour". What is
        further away is null, or the default, on batches, too. Without it a row of a stream waits for the next
        one of its key.
    unbounded_matches : bool, default False
        Whether a pattern of MATCH_RECOGNIZE on a stream may have ``*``, ``+`` or ``{n,}`` without WITHIN: a
        partial match of it can keep any number of rows in the state.
    timed_out : {"drop", "emit"}, default "drop"
        What becomes of the partial matches that WITHIN of MATCH_RECOGNIZE ends. With "emit"
        `timed_out_matches` returns them.
    lag_within : int, str or timedelta, optional
        How far before a row PREV of MATCH_RECOGNIZE looks, in milliseconds or as "1 hour". What is further
        away is null, on batches, too. Without it a pattern whose first variable has PREV keeps the last rows
        of each key for ever.
    changes : dict, optional
        Tables whose rows are upserts, by name: the key, and the column that makes an upsert newer, such as
        ``{"orders": ("id", "version")}`` or ``{"orders": (["shop", "id"], "version")}``. A key alone takes
        the time of the table's watermark. See `changes_of`.
    forget_after : int, str or timedelta, optional
        For results that change: how long after its last change a key of a GROUP BY, a Top-N or a JOIN is
        forgotten, by the clock, in milliseconds or as "30 days", like Flink's ``table.exec.state.ttl``. State
        stays bounded, and a result that comes back later begins anew; see `aggregate_changes`.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the query. If its result changes as rows come, it is a changelog: its last column is
        ``_change_type``, and each micro-batch has the net change.

    Raises
    ------
    ImportError
        If sqlglot is not installed: ``pip install 'timerheap[sql]'``.
    ArgumentValueError
        If the query uses an unsupported feature, such as ORDER BY without LIMIT, or windows of rows that
        change; the message names it and an alternative.

    Notes
    -----
    The syntax is Flink's and the values are Spark's: Spark computes scalar expressions, ``AVG`` of integers
    is a double. As in Flink, ``window_start`` and ``window_end`` are local times (timestamp_ntz), and
    ``window_time`` has the type of the time column. Column names in GROUP BY and DESCRIPTOR are
    case-sensitive, as in Flink. Rows that WHERE drops still advance the watermark, as in Flink. Windows over
    the ``window_time`` of a view end with a later window of the view, while in Flink the watermark ends them.

    The semantics are those of Flink's window table functions and window aggregation.
    """
    expect_session(spark)
    instance("query", query, str)
    tree, into = parsing().only_query(query)
    aggregates, on_tables = checked_functions(functions)
    known = Known(frames=given_frames(tables), functions=aggregates, on_tables=on_tables)
    for option in ("changes", "deleted"):
        _expect_in_query(option, options.get(option), parsing().identifiers(tree))
    result = answer(spark, tree, into, known, watermark, name, options)
    known.expect_asked(options.get("deleted"))
    return result


def _expect_in_query(option: str, given: object, identifiers: frozenset[str]) -> None:
    """Raise if an option is for a table whose name is nowhere in the query."""
    for table in given if isinstance(given, Mapping) else ():
        if not identifiers.issuperset(str(table).split(".")):
            raise ArgumentValueError(
                f"{option} must have names of tables as the query has them, got {table!r}, which it has not"
            )


def expect_session(spark: object) -> None:
    if not (isinstance(spark, SparkSession) or on_connect(spark)):
        raise ArgumentTypeError(f"spark must be a pyspark.sql.SparkSession, got {spark!r}")


def given_frames(tables: object) -> dict[tuple[str, ...], Callable[[], DataFrame]]:
    """Return what makes the rows of tables that are given by name."""
    if tables is not None and not isinstance(tables, Mapping):
        raise ArgumentTypeError(f'tables must be a dict such as {{"orders": df}}, got {tables!r}')
    frames: dict[tuple[str, ...], Callable[[], DataFrame]] = {}
    for name, df in (tables or {}).items():
        make = partial(data_frame, f"tables[{name!r}]", df)
        make()
        frames[tuple(str(name).split("."))] = make
    return frames


def parsing() -> Any:
    """Return the module that parses statements; raise if sqlglot is not there."""
    try:
        return import_module("timerheap.spark._sql.read.statements")
    except ImportError as error:
        raise ImportError("sql() needs sqlglot; run pip install 'timerheap[sql]'") from error


@dataclass(frozen=True)
class Known:
    """What the statements before a query have named.

    views: what queries mean that have names
    frames: what makes the rows of tables that have been given, which is called once
    nested: queries whose results are tables of others
    functions: the user's aggregates
    on_tables: the user's functions that are called on tables
    asked: tables of whose rows queries have asked which of them `deleted` means
    """

    views: dict[str, Node] = field(default_factory=dict)
    frames: dict[tuple[str, ...], Callable[[], DataFrame]] = field(default_factory=dict)
    nested: dict[tuple[str, ...], NestedQuery] = field(default_factory=dict)
    functions: Functions = field(default_factory=dict)
    on_tables: Mapping[str, TableFunction] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def expect_asked(self, deleted: Mapping[str, str] | None) -> None:
        """Raise unless each table of `deleted` is one whose rows can be deleted."""
        if ignored := sorted({*(deleted or {})} - self.asked):
            raise ArgumentValueError(
                "deleted must have names of tables in changes, or of the right one of an as-of join, got "
                f"{', '.join(map(repr, ignored))}; name its key in changes, or leave it out"
            )

    def columns(self, spark: SparkSession, table: tuple[str, ...]) -> list[str]:
        make = self.frames.get(table)
        df = spark.table(".".join(map(backticks, table))) if make is None else make()
        return df.columns


def answer(
    spark: SparkSession,
    tree: Any,
    into: Sequence[str],
    known: Known,
    watermark: Any,
    name: str | None,
    options: SqlOptions,
) -> DataFrame:
    """Return what a query answers, which has been parsed; see `sql`.

    into: the columns of the table that it is for, if they are known
    """
    from timerheap.spark._sql.read.aggregate_calls import with_aggregates
    from timerheap.spark._sql.rewrite.meaning import meaning_of

    expect_options(options)
    late, timed_out = options.get("late", "drop"), options.get("timed_out", "drop")
    deleted, forget_after = options.get("deleted"), options.get("forget_after")
    zone = options.get("time_zone") or str(spark.conf.get("spark.sql.session.timeZone"))
    tree = with_aggregates(tree, known.functions)
    node = meaning_of(tree, partial(known.columns, spark), known.views, known.nested, known.on_tables)
    if late == "emit":
        _expect_rows_of_table(node, known.nested)
    if deleted is not None and not isinstance(deleted, Mapping):
        raise ArgumentTypeError(f'deleted must be a dict such as {{"rates": "op = \'D\'"}}, got {deleted!r}')
    lead_within, lag_within = options.get("lead_within"), options.get("lag_within")
    within = None if lead_within is None else not_negative("lead_within", lead_within)
    if within is not None and not _has_lead(node):
        raise ArgumentValueError("lead_within must be None for a query without LEAD or NEXT; leave it out")
    operator = _operator(node)
    before = None if lag_within is None else not_negative("lag_within", lag_within)
    if before is not None and not (isinstance(operator, Matched) and operator.before):
        raise ArgumentValueError(
            "lag_within must be None for a query without PREV of MATCH_RECOGNIZE; leave it out"
        )
    if timed_out not in ("drop", "emit"):
        raise ArgumentValueError(f'timed_out must be "drop" or "emit", got {timed_out!r}')
    if timed_out == "emit" and not (isinstance(operator, Matched) and operator.within):
        raise ArgumentValueError(
            'timed_out must be "drop" for a query without MATCH_RECOGNIZE and WITHIN; leave it out'
        )
    emits = timed_out == "emit"
    tables = Tables(
        spark,
        watermark,
        options.get("processing_time"),
        zone,
        channel=options.get("channel"),
        late=late,
        max_parallelism=options.get("max_parallelism"),
        deleted=deleted,
        upserts=Upserts.of(options.get("changes")),
        lead_within=within,
        unbounded_matches=options.get("unbounded_matches", False),
        timed_out=emits,
        lag_within=before,
        forget_after=None if forget_after is None else positive("forget_after", forget_after),
        functions=known.functions,
        on_tables=known.on_tables,
        frames={**known.frames},
        nested=known.nested,
        asked=known.asked,
    )
    for path, query in known.nested.items():
        tables.frames[path] = partial(_rows_of_query, tables, query.node)
    with named_after(checked_name(name)):
        result = Planner(tables).result(node)
    if forget_after is not None and CHANGE_TYPE not in result.columns:
        raise ArgumentValueError(
            "forget_after must be None for a query whose result does not change, got "
            f"{forget_after!r}; leave it out: windows and joins by time forget by themselves"
        )
    return _for_table(result, into)


def _rows_of_query(tables: Tables, node: Node) -> DataFrame:
    """Return the result of a query inside another one."""
    return Planner(replace(tables, late="drop", timed_out=False)).result(node)


def _for_table(df: DataFrame, into: Sequence[str]) -> DataFrame:
    """Return a result with the names of the columns that INSERT INTO has; what is behind them stays."""
    changes = [name for name in df.columns[-1:] if name == CHANGE_TYPE]
    if not into:
        return df
    if len(df.columns) != len(into) + len(changes):
        raise ArgumentValueError(
            f"query: INSERT INTO must have as many columns as its SELECT, got {list(into)} and {df.columns}"
        )
    return df.toDF(*into, *changes)


@in_flows
def timed_out_matches(df: DataFrame) -> DataFrame:
    """Return the partial matches that WITHIN has ended, of a query with ``timed_out="emit"``.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `sql`, or of `with_side_outputs`; it may be changed as for `side_output`.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the query. For each row where no match has begun, but one could have with more time,
        it has the preferred partial match: variables that no row was taken as are null, and so is
        ``MATCH_NUMBER()``. At the end of a batch all partial matches are timed out.
    """
    try:
        return side_output(df, OutputTag("timed_out", "boolean"))
    except ValueError as e:
        raise ArgumentValueError(f'df must be the result of sql() with timed_out="emit": {e}') from None


def _operator(node: Node) -> Node:
    """Return what a query selects from; of ranks that may be by time, those."""
    while isinstance(node, (Selected, Either)):
        node = node.source if isinstance(node, Selected) else node.by_time
    return node


def _expect_rows_of_table(node: Node, nested: Mapping[tuple[str, ...], NestedQuery]) -> None:
    """Raise unless the late rows of a query are those of one table, and its operator the only one."""
    node = _operator(node)
    rows = node if isinstance(node, Over | Matched) else getattr(node, "source", None)
    of_windows = isinstance(node, Aggregated) and isinstance(rows, Windowing) and not node.sets[1:]
    of_table = isinstance(node, Ranked) and isinstance(rows, Table)
    matches = isinstance(node, Matched) and node.source is None
    plain = of_windows or of_table or matches or isinstance(node, Over)
    inner = nested.get(getattr(rows, "table", ()))
    if not plain or not (inner is None or isinstance(_operator(inner.node), Table)):
        raise ArgumentValueError(
            'late must be "drop" for a query of several operators: one that joins, ranks or aggregates '
            'results, has grouping sets, selects rows of windows, or is over changes, got "emit". A query of '
            "one operator over the rows of a table has late rows: write it as a sql() of its own, take its "
            "results and its late rows by with_side_outputs(), and query the table that its results are "
            "written to"
        )


def _has_lead(node: Node) -> bool:
    node = _operator(node)
    if isinstance(node, Matched) and node.source is not None and _has_lead(node.source):
        return True
    calls = node.calls.values() if isinstance(node, Over) else ()
    return (isinstance(node, Matched) and node.ahead > 0) or any(
        isinstance(call, RowCall) and call.function == "lead" for call in calls
    )
