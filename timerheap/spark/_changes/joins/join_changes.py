"""`join_changes`: the join by key of two tables that change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData

from timerheap._arguments import positive
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._changes.joins.join_changes_inputs import JoinInputs
from timerheap.spark._changes.joins.join_changes_plan import HOW, joined_by_key, joined_on
from timerheap.spark._flows import in_flows
from timerheap.spark._plan.inputs import RightInput
from timerheap.spark._plan.named_columns import ColumnOrName
from timerheap.spark._plan.operator_names import checked_name, named_after
from timerheap.spark._plan.state_changes import IfStored


@in_flows
def join_changes(
    left: DataFrame | GroupedData,
    right: DataFrame | GroupedData | RightInput,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    *,
    how: str = "inner",
    on: Column | None = None,
    suffix: str = "_right",
    forget_after: int | str | timedelta | None = None,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join two tables that change by equal keys, as a changelog that is right after each micro-batch.

    Orders with their customers, which may change later: each change of a customer corrects all orders of it.

    Parameters
    ----------
    left : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        A changelog, or rows that only come, of a stream or a batch. ``left.groupBy("a")`` names the key
        columns, too.
    right : pyspark.sql.DataFrame, pyspark.sql.GroupedData or RightInput
        The other one. A `RightInput` names its key columns, if they are other than those of `left`.
    key : str, Column, or list of them
        Key columns of `left`, and by default of `right`. As in SQL, null equals nothing. With ``[]`` each row
        of one side is joined with each of the other, in one task.
    how : {"inner", "left", "right", "full", "semi", "anti"}, default "inner"
        Which rows are in the result: those that match; also those of a side that match none, with null in the
        columns of the other; left rows that match any, or none, by themselves.
    on : Column, optional
        What else a match must fulfil: a condition on columns of both sides by their names in the result, such
        as ``F.col("amount") > F.col("limit")``. With "semi" and "anti" those of `right` are called so, too.
    suffix : str, default "_right"
        Ends the name of a column of `right` whose name `left` has, too. A key column that has the same name
        in both is one column of the result.
    forget_after : int, str or timedelta, optional
        After how long without a change of a key on either side its state is removed, by the clock:
        milliseconds, or "7 days". By default never. The rows that it has in the result stay there, and match
        nothing that comes later; a later delete of a row that was forgotten is counted as
        ``unmatched_deletes``, and takes nothing out of the result. Not with `on`, unless `how` is "inner".
    max_parallelism, state_changes : optional
        As in `process`. The rows of each key are the multiset states "left" and "right".
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that. Of several
        operators the first has the name, such as "totals", and the others are "totals_2" and so on.

    Returns
    -------
    pyspark.sql.DataFrame
        A changelog: the columns of `left`, those of `right` unless `how` is "semi" or "anti", and
        ``_change_type``: "insert" and "delete", the net change of each micro-batch. Of a batch it is the
        table, all "insert".

    Raises
    ------
    ArgumentError
        If an argument is wrong, or the two inputs do not match.

    Notes
    -----
    The state has all rows of both sides, by key; of the right side of "semi" and "anti" without `on` only
    how many there are. A change of a row costs O(log N), and O(1) for each of its matches. A row that only
    one side has is kept, and not looked at again.

    With `on` and anything but "inner", the rows are matched by key first, and a second operator counts the
    matches of each row of the sides that are kept, a third one with "full". The columns of those sides must
    then be of atomic types. A condition on one side alone is better written as ``right.where(...)``.

    A row that is taken back before it has come matches nothing until it has. An inner join of rows that only
    come only grows, which `top_changes` and `aggregate_changes` over it make use of.

    Over a checkpoint, `how` must stay as it is, and so must whether there is a condition; others are refused.

    Examples
    --------
    ::

        enriched = timerheap.spark.join_changes(orders, customers, "customer_id", how="left")
        late = timerheap.spark.join_changes(
            orders, shipments, "order_id", how="anti", on=F.col("shipped_at") <= F.col("due_at")
        )
    """
    if how not in HOW:
        raise ArgumentValueError(f"how must be one of {', '.join(HOW)}, got {how!r}")
    inputs = JoinInputs.checked(left, right, key, suffix)
    options: dict[str, Any] = {
        "max_parallelism": max_parallelism,
        "state_changes": state_changes,
        "forget_after": None if forget_after is None else positive("forget_after", forget_after),
    }
    if not (on is None or isinstance(on, Column)):
        raise ArgumentTypeError(f'on must be a Column, got {on!r}; pass for example F.expr("amount > 10")')
    with named_after(checked_name(name)):
        return joined_by_key(inputs, how, **options) if on is None else joined_on(inputs, how, on, **options)
