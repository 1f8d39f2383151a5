"""`sql`: Flink's queries over windows as text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession

from timerheap._arguments import instance, not_negative
from timerheap.output_tag import OutputTag
from timerheap.spark._compat import on_connect
from timerheap.spark._plan.arguments import ColumnOrName
from timerheap.spark._plan.outputs import side_output
from timerheap.spark._sql.nodes import Aggregated, Matched, Node, Over, Ranked, Selected, Table, Windowing
from timerheap.spark._sql.over_columns import RowCall
from timerheap.spark._sql.planner import Planner
from timerheap.spark._sql.timed_tables import Tables
from timerheap.watermarks import WatermarkStrategy


def sql(
    spark: SparkSession,
    query: str,
    watermark: WatermarkStrategy
    | str
    | timedelta
    | Mapping[str, WatermarkStrategy | int | str | timedelta]
    | None = None,
    *,
    processing_time: str | None = None,
    time_zone: str | None = None,
    channel: ColumnOrName | None = None,
    late: str = "drop",
    max_parallelism: int | None = None,
    deleted: Mapping[str, str] | None = None,
    lead_within: int | str | timedelta | None = None,
    unbounded_matches: bool = False,
    timed_out: str = "drop",
) -> DataFrame:
    """Run a query over windows written in Flink's SQL.

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
        One SELECT over TUMBLE, HOP, CUMULATE or SESSION, with positional or named arguments, and with
        GROUPING SETS, CUBE and ROLLUP; over nested queries of these also a window Top-N, a window join or
        another aggregation; or functions OVER the rows of a table: aggregates, LAG, LEAD, ROW_NUMBER and so
        on; or the matches of a pattern in its rows: MATCH_RECOGNIZE; or an as-of join of two tables: ``FOR
        SYSTEM_TIME AS OF``, or ``ASOF JOIN``. Tables are the tables and temporary views of `spark`, streaming
        or batch.
    watermark : WatermarkStrategy or delay such as "5 seconds", or dict of str to these
        Replaces Flink's ``WATERMARK FOR``, whose expression it may be: ``"ts - INTERVAL '5' SECOND"``, which
        is the delay of 5 seconds. A delay is that of Flink's SQL: the watermark is the largest time minus
        the delay, and a row of just that time is late. That of a strategy is 1 ms less, as in Flink's
        DataStream. The keys of a dict are table names. Optional for batches, for
        views of a DataFrame with Spark's own ``withWatermark()`` on the time column, for views of a result of
        sql() whose time is ``window_time``, and for windows of processing time.
    processing_time : str, optional
        Name of the processing time in queries: ``DESCRIPTOR`` of this name makes windows of processing time,
        and ``ORDER BY`` finds the first row of a key to arrive. By default, any name that is not a column of
        a streaming table without a `watermark`. ``PROCTIME()`` always is one.
    time_zone : str, optional
        Time zone whose wall clock cuts the windows, by default the session's.
    late : {"drop", "emit"}, default "drop"
        What becomes of late rows. With "emit" `timerheap.spark.late_rows` returns them, as rows of the table;
        for queries that aggregate a table's windows, have functions OVER its rows, match them, or find the
        first row of a key.
    channel, max_parallelism
        As for `tumble`; of an as-of join, `channel` is a column of the left table.
    deleted : dict of str to str, optional
        For the right table of an as-of join, by its name: a condition that is true in rows which only end the
        version before them, such as ``{"rates": "op = 'D'"}``. See `join_asof`.
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

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the query.

    Raises
    ------
    ImportError
        If sqlglot is not installed: ``pip install 'timerheap[sql]'``.
    ValueError
        If the query uses an unsupported feature, such as a regular join or ORDER BY; the message names it
        and an alternative.

    Notes
    -----
    The syntax is Flink's and the values are Spark's: Spark computes scalar expressions, ``AVG`` of integers
    is a double. As in Flink, ``window_start`` and ``window_end`` are local times (timestamp_ntz), and
    ``window_time`` has the type of the time column. Column names in GROUP BY and DESCRIPTOR are
    case-sensitive, as in Flink. Rows that WHERE drops still advance the watermark, as in Flink. Windows over
    the ``window_time`` of a view end with a later window of the view, while in Flink the watermark ends them.

    The semantics are those of Flink's window table functions and window aggregation.
    """
    if not (isinstance(spark, SparkSession) or on_connect(spark)):
        raise TypeError(f"spark must be a pyspark.sql.SparkSession, got {spark!r}")
    instance("query", query, str)
    try:
        from timerheap.spark._sql.parser import parsed
    except ImportError as error:
        raise ImportError("sql() needs sqlglot; run pip install 'timerheap[sql]'") from error
    zone = time_zone if time_zone is not None else str(spark.conf.get("spark.sql.session.timeZone"))
    node = parsed(query)
    if late == "emit":
        _expect_rows_of_table(node)
    if deleted is not None and not isinstance(deleted, Mapping):
        raise TypeError(f'deleted must be a dict such as {{"rates": "op = \'D\'"}}, got {deleted!r}')
    within = None if lead_within is None else not_negative("lead_within", lead_within)
    if within is not None and not _has_lead(node):
        raise ValueError("lead_within must be None for a query without LEAD or NEXT; leave it out")
    operator = _operator(node)
    if timed_out not in ("drop", "emit"):
        raise ValueError(f'timed_out must be "drop" or "emit", got {timed_out!r}')
    if timed_out == "emit" and not (isinstance(operator, Matched) and operator.within):
        raise ValueError(
            'timed_out must be "drop" for a query without MATCH_RECOGNIZE and WITHIN; leave it out'
        )
    emits = timed_out == "emit"
    options = (zone, channel, late, max_parallelism, deleted, within, unbounded_matches, emits)
    tables = Tables(spark, watermark, processing_time, *options)
    return Planner(tables).result(node)


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
        raise ValueError(f'df must be the result of sql() with timed_out="emit": {e}') from None


def _operator(node: Node) -> Node:
    """Return what a query selects from."""
    while isinstance(node, Selected):
        node = node.source
    return node


def _expect_rows_of_table(node: Node) -> None:
    """Raise unless the late rows of a query are those of one table, and its operator the only one."""
    node = _operator(node)
    of_windows = isinstance(node, Aggregated) and isinstance(node.source, Windowing) and not node.sets[1:]
    of_table = isinstance(node, Ranked) and isinstance(node.source, Table)
    if not (of_windows or of_table or isinstance(node, (Over, Matched))):
        raise ValueError(
            'late must be "drop" for a query that joins, ranks or aggregates results, has grouping sets, or '
            'selects rows of windows, got "emit"; make a view of the inner query with late="emit", query it'
        )


def _has_lead(node: Node) -> bool:
    node = _operator(node)
    calls = node.calls.values() if isinstance(node, Over) else ()
    return (isinstance(node, Matched) and node.ahead > 0) or any(
        isinstance(call, RowCall) and call.function == "lead" for call in calls
    )
