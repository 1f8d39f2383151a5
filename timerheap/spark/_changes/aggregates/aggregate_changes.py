"""`aggregate_changes`: aggregates by key that are corrected as rows come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from pyspark.sql import Column, DataFrame, GroupedData

from timerheap._arguments import positive
from timerheap.spark._aggregates.spark_aggregates import UserAggregate
from timerheap.spark._changes.aggregates.aggregate_changes_plan import aggregated_changes
from timerheap.spark._changes.changes_inputs import ChangesInput
from timerheap.spark._flows import in_flows
from timerheap.spark._plan.named_columns import ColumnOrName
from timerheap.spark._plan.state_changes import IfStored, changed_states
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._state.read_checkpoint import CheckpointState


@in_flows
def aggregate_changes(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None,
    *aggregates: Column | UserAggregate,
    forget_after: int | str | timedelta | None = None,
    initial_state: CheckpointState | InitialState | None = None,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    name: str | None = None,
) -> DataFrame:
    """Aggregate the rows of each key, and correct the results as rows come and go.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        A changelog: rows with ``_change_type``, or rows that only come. With ``df.groupBy("a")`` pass None as
        `key`.
    key : str, Column, or list of them
        Key columns. Null is a key of its own. With ``[]`` all rows are one group, which keeps its row in the
        result when all rows have gone; of a batch without rows it has one, too.
    *aggregates : Column or udaf(...)
        Aggregates of PySpark: ``count``, ``sum``, ``avg``, ``count_distinct``, ``sum_distinct``, ``min``,
        ``max``, ``min_by``, ``max_by``, ``bool_and``, ``bool_or``, ``var_samp``, ``var_pop``,
        ``stddev_samp`` and ``stddev_pop``, with or without ``alias``. The first and the last value by a
        sequence are ``F.min_by("value", "sequence")`` and ``F.max_by``. To aggregate some rows only, use
        ``F.when``: ``F.count(F.when(F.col("paid"), 1))``. A function of your own is one of `udaf`, which
        needs a method ``retract`` where rows may be taken back. Without aggregates, the result has the keys
        that have rows, as SELECT DISTINCT does.
    forget_after : int, str or timedelta, optional
        The time by the clock after which a key that has not changed is forgotten: milliseconds, or "30 days".
        By default never. See the notes.
    initial_state : CheckpointState or InitialState, optional
        State to start from, as in `process`.
    max_parallelism, state_changes : optional
        As in `process`. What is kept of a key is the value state "aggregates". The values of a column of
        which the least, the greatest or the different ones are wanted are a multiset, "values of" the column.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        A changelog: the key columns, the aggregates, and ``_change_type``. A micro-batch has at most one
        change of a key: "insert", "delete" when the last row of the key goes, or a pair of "update_preimage"
        and "update_postimage"; nothing if the result is the same. Of a batch it is the table, all "insert".

    Raises
    ------
    ArgumentError
        If an argument is wrong.

    Notes
    -----
    The results, their types and nulls are those of Spark's ``groupBy().agg()`` on the rows that are there.
    Sums are exact: those of doubles are rounded once, when they are read, so that nothing drifts, and NaN and
    infinities go as they have come. Rows are added up by key before they are sent, and the state of a key is
    what its aggregates need of it. For sums and counts that is of one size, and a change costs O(1), as for
    MIN and MAX of rows that only come. MIN and MAX of changes, and DISTINCT, keep the values of a key in an
    order: a change costs O(log n). Aggregates of a query cannot be added or left out later: rows of the past
    would be missing.

    There is no event time, and no row is late, even after ``withWatermark``. A delete may come before its
    row.

    With `forget_after` state stays bounded, and the result is no longer exact. A forgotten key stays in the
    table as it was. If a row of it comes, it begins anew, with an "insert" of what has come since: in a table
    by key this replaces the row before, and elsewhere it is beside that. A delete of a row that is not known
    is counted in ``unmatched_deletes`` and not applied, so a delete must not come before its row. The query
    has micro-batches also while there are no rows.

    Examples
    --------
    ::

        balances = timerheap.spark.aggregate_changes(
            entries, "account", F.count("*").alias("entries"), F.sum("amount").alias("balance")
        )
    """
    source = ChangesInput.of("df", df, key)
    forget = None if forget_after is None else positive("forget_after", forget_after)
    return aggregated_changes(
        source, aggregates, forget, initial_state, max_parallelism, changed_states(state_changes), name
    )
