"""`join_asof`: for each row of a DataFrame, the newest row of another one at or before its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import DataFrame, GroupedData

from timerheap.errors import ArgumentValueError
from timerheap.output_tag import OutputTag
from timerheap.spark._asof.asof_inputs import AsofArguments, AsofInputs
from timerheap.spark._asof.newest_plan import UNMATCHED, newest_joined
from timerheap.spark._asof.table_on_the_right import is_table, joined_with_table, table_inputs
from timerheap.spark._changes.corrections import Corrections
from timerheap.spark._flows import in_flows
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.inputs import RightInput
from timerheap.spark._plan.named_columns import ColumnOrName
from timerheap.spark._plan.state_changes import IfStored
from timerheap.spark._side_outputs import side_output
from timerheap.watermarks import WatermarkStrategy


@in_flows
def join_asof(
    left: DataFrame | GroupedData,
    right: DataFrame | GroupedData | RightInput,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    event_time: ColumnOrName | EventTime | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    how: str = "left",
    tolerance: int | str | timedelta | None = None,
    allow_exact_matches: bool = True,
    deleted: ColumnOrName | None = None,
    suffix: str = "_right",
    late: str | Corrections | None = None,
    unmatched: str | None = None,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join each left row with the newest right row of its key at or before its time.

    An as-of join, also called a point-in-time join, of two streaming, or two batch, DataFrames, or of a
    stream with a table. The result depends on the data alone, as long as no row is late: it is the same for a
    batch, and for a stream in any micro-batches.

    Parameters
    ----------
    left : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        ``left.groupBy("a")`` names the key columns, too.
    right : pyspark.sql.DataFrame, pyspark.sql.GroupedData or RightInput
        The versions of what is joined: prices, addresses, measurements. A `RightInput` names its key columns,
        its event time and its watermark, if they are other than those of `left`. A table beside a stream
        (see the notes) is joined without a watermark.
    key : str, Column, or list of them
        Key columns of `left`, and by default of `right`. Null is a key of its own, as in `process`; to have
        null match nothing, as in SQL, leave such rows of `right` out.
    event_time, watermark : optional
        As in `process_two`. Times are compared as they are, down to microseconds. Right rows of one key and
        time are ordered by ``EventTime.tie_break`` of `right`, then by all of their columns, from the first
        to the last, null last; the last one is joined. A tie break of `left` changes nothing.
    how : {"left", "inner"}, default "left"
        Whether a left row without a match is in the result, with null in the columns of `right`.
    tolerance : int, str or timedelta, optional
        The greatest distance between the two times: milliseconds, or "10 minutes". By default any. With it a
        right row leaves the state when it has become too old; after a restart with another tolerance, those
        already in state leave it when they would have before.
    allow_exact_matches : bool, default True
        Whether a right row of the same time is a match. If not, only those before it are.
    deleted : str or Column, optional
        A boolean column or expression of `right`. A right row where it is true ends the row before it: left
        rows from its time on have no match until the next right row. It is no match itself.
    suffix : str, default "_right"
        Ends the name of a column of `right` whose name `left` has, too. A key column that has the same name
        in both is one column of the result.
    late : {"drop", "emit"} or Corrections, optional
        As in `process_two`: what becomes of rows of both inputs behind the watermark. With `Corrections` the
        result is a changelog: a right row that changes answers gives an "update_preimage" and an
        "update_postimage" for each, or an "insert" or a "delete" with ``how="inner"``; a late left row is
        answered when it comes. With ``early=True`` each left row is.
    unmatched : {"drop", "emit"}, optional
        Whether `timerheap.spark.unmatched_rows` returns the rows of both inputs that had no match.
    max_parallelism, state_changes : optional
        As in `process`. The newest right rows are the value state "right".
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of `left`, then those of `right`, in append mode; with `Corrections`, then
        ``_change_type``.

    Raises
    ------
    ArgumentError
        If an argument is wrong, or the two inputs do not match.

    Notes
    -----
    A left row is answered once the watermark, the lower one of both inputs, has passed its time: until then a
    right row may come. It waits in state, as right rows do that are ahead of the watermark. Of those behind
    it the state has the newest of each key. Rows are sorted and searched in columns, without a call in Python
    for each.

    If `left` is a stream and `right` is not, each left row is answered in its own micro-batch, from what the
    table has then. This is Spark's own join of a stream with a table, behind ``LEAD`` over the versions of
    each key: there is no state and no watermark, and `watermark`, `late`, `unmatched`, `max_parallelism`,
    `state_changes` and `name` must be left out. Each micro-batch reads the table; rows of one key and
    micro-batch are compared with all versions of the key.

    The name is that of Polars' ``join_asof``; pandas has ``merge_asof``, where Spark says join. Unlike there
    the inputs need no order, a result has the time of the right row, too, and tolerance is in milliseconds.
    The next right row, or the nearest one, is a query of `sql`: see the guide.

    Examples
    --------
    ::

        priced = timerheap.spark.join_asof(
            orders,
            RightInput(prices, event_time="valid_from", watermark="1 hour"),
            key="product",
            event_time="ordered_at",
            watermark="10 minutes",
            tolerance="30 days",
        )
    """
    arguments = AsofArguments.checked(how, tolerance, allow_exact_matches, unmatched, late)
    arguments = replace(
        arguments, suffix=suffix, max_parallelism=max_parallelism, state_changes=state_changes, name=name
    )
    if is_table(left, right):
        of_streams = {
            "watermark": watermark,
            "late": late,
            "unmatched": unmatched,
            "max_parallelism": max_parallelism,
            "state_changes": state_changes,
            "name": name,
        }
        return joined_with_table(table_inputs(left, right, key, event_time, deleted, **of_streams), arguments)
    inputs = AsofInputs.checked(left, right, key, event_time, watermark, deleted, arguments.late)
    return newest_joined(inputs, arguments)


@in_flows
def unmatched_rows(df: DataFrame) -> DataFrame:
    """Return the rows of both inputs of a `join_asof` with ``unmatched="emit"`` that had no match.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `join_asof`, or of `with_side_outputs`; it may be changed as for `side_output`.

    Returns
    -------
    pyspark.sql.DataFrame
        The structs ``left`` and ``right``, one of which is null. A left row comes when it is answered. A
        right row comes when no further left row can match it: when the next right row of its key has come,
        it has become too old for `tolerance`, or a batch DataFrame ends. Rows that `deleted` marks are not
        among them.

    Examples
    --------
    ::

        priced = timerheap.spark.join_asof(orders, prices, "product", unmatched="emit", ...)
        without_price = timerheap.spark.unmatched_rows(priced).where("left is not null")
    """
    try:
        return side_output(df, OutputTag(UNMATCHED, "boolean"))
    except ValueError as e:
        raise ArgumentValueError(f'df must be the result of a join_asof with unmatched="emit": {e}') from None
