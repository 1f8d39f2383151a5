"""`top_changes`: the first rows of each key by an order, which change as rows come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import types as T

from timerheap._arguments import positive
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._changes.changes_inputs import ChangesInput, expect_kept_types, expect_repeatable
from timerheap.spark._changes.guarantees import changelog_type, unique_keys
from timerheap.spark._changes.tops.ordered_rows import OrderBy, ordered_by
from timerheap.spark._changes.tops.top_runner import TopWork
from timerheap.spark._flows import in_flows
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.named_columns import ColumnOrName, ungrouped
from timerheap.spark._plan.state_changes import IfStored, changed_states

_RANKS = ("row_number", "rank", "dense_rank")


@in_flows
def top_changes(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    n: int = 1,
    order_by: OrderBy = (),
    *,
    number: str | None = None,
    rank: str = "row_number",
    forget_after: int | str | timedelta | None = None,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    name: str | None = None,
) -> DataFrame:
    """Return the first `n` rows of each key by an order, as a changelog.

    A leaderboard that is not bound to windows, the newest row of each key (``n=1`` and
    ``F.col("at").desc()``), or any Top-N of a table whose rows come, change and go.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        A changelog, or rows that only come, of a stream or a batch. ``df.groupBy("a")`` names the key
        columns, too.
    key : str, Column, or list of them
        Key columns. Null is a key of its own. With ``[]`` all rows are one group, in one task.
    n : int, default 1
        The last number that is in the result.
    order_by : str, Column, or list of them
        By what the rows of a key follow each other, such as ``F.col("points").desc_nulls_last()``. Without
        a direction it is ascending, null first, as in Spark; NaN is the greatest number. Rows that are equal
        here follow each other by all their other columns, ascending, so that the result depends on the data
        alone.
    number : str, optional
        The name of a column with the number of each row, from 1. Without, a row that only moves from one
        number to the next is no change, so there are far fewer of them.
    rank : {"row_number", "rank", "dense_rank"}, default "row_number"
        What the number is, as in SQL. With "rank" and "dense_rank", rows that are equal in `order_by` have
        the same number, and there may be more than `n` of them.
    forget_after : int, str or timedelta, optional
        After how long without a change of a key its state is removed, by the clock: milliseconds, or
        "7 days". By default never. The rows that it has in the result stay there; a later delete of a row
        that was forgotten is counted as ``unmatched_deletes``, and takes nothing out of the result.
    max_parallelism, state_changes : optional
        As in `process`. The rows of each key are the multiset state "rows".
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        A changelog: the columns of `df`, `number`, and ``_change_type``, with the net change of each
        micro-batch. With numbers of "row_number", and without where `n` is 1, a different row of one number
        is a pair of "update_preimage" and "update_postimage"; otherwise there are inserts and deletes. Of a
        batch it is the table, all "insert".

    Raises
    ------
    ArgumentError
        If an argument is wrong.

    Notes
    -----
    The state has all rows of a key in their order, since any of them may be among the first when others go.
    A change costs O(log N + n), however many rows N a key has. If rows only come, the state has the first
    ones alone, and of the rows that a task reads, those that cannot be among the first are not sent. Rows
    only come without ``_change_type``, and in an inner join of such rows. A row that is there several times
    takes several places. A row that is taken back before it has come is not shown.

    For rows that only come and have an event time, `drop_duplicates` with ``keep="last"`` emits one row of
    each key once nothing can change it, and no changes.

    Over a checkpoint, `order_by`, `rank`, `n` and whether there are numbers must stay as they are: rows that
    are in the result are not looked at again until their key changes. Others are refused.

    Examples
    --------
    ::

        best = timerheap.spark.top_changes(scores, "team", 3, F.col("points").desc(), number="place")
        newest = timerheap.spark.top_changes(orders, "order_id", order_by=F.col("updated_at").desc())
    """
    if rank not in _RANKS:
        raise ArgumentValueError(f"rank must be one of {', '.join(_RANKS)}, got {rank!r}")
    limit = _limit(n)
    rows, by = ungrouped("df", df, "key", key)
    source = ChangesInput.of("df", rows, by)
    columns = Columns("df", source.df)
    order = ordered_by(columns, "order_by", order_by)
    if not source.grows:
        expect_repeatable("order_by", columns.df)
    source = replace(source, df=columns.df)
    expect_kept_types("df", (field for field in source.rows if field.name not in source.key))
    work = TopWork(
        tuple(one for one in order if one.by not in source.key),
        rank,
        limit,
        number is not None,
        source.grows,
        forget_after=None if forget_after is None else positive("forget_after", forget_after),
    )
    result = T.StructType(list(source.rows.fields))
    if number is not None:
        result.add(_number(number, result), T.LongType(), nullable=False)
    query = query_of(
        work,
        changelog_type(result, *_unique(source, work, number), *unique_keys(rows)),
        source,
        processing_time=work.forget_after is not None and columns.df.isStreaming,
        max_parallelism=max_parallelism,
        state_changes=changed_states(state_changes),
        name=name,
        reduction=work.reduction(source.key),
    )
    return build(query, columns.df)


def _limit(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int):
        raise ArgumentTypeError(f"n must be an int, got {n!r}")
    if n < 1:
        raise ArgumentValueError(f"n must be 1 or more, got {n}")
    return n


def _number(name: Any, result: T.StructType) -> str:
    """Return the name of the column with the numbers, checked."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"number must be the name of a new column, got {name!r}")
    if name.lower() in map(str.lower, result.names):
        raise ArgumentValueError(
            f"number must be the name of a new column, got {name!r}, which df has; pass a different one"
        )
    return name


def _unique(source: ChangesInput, work: TopWork, number: str | None) -> list[list[str]]:
    """Return the key of the result that its numbers make, if they do."""
    key = source.named_key
    if work.rank != "row_number" or not set(key) <= {*source.rows.names}:
        return []
    if work.limit == 1:
        return [key]
    return [] if number is None else [[*key, number]]
