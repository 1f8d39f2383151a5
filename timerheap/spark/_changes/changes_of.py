"""`changes_of`: the changes of a table that upserts make, in whatever order they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from timerheap._arguments import positive
from timerheap.spark._changes.guarantees import changelog_type
from timerheap.spark._changes.upserts_runner import UpsertsWork
from timerheap.spark._columns import added_name, shown_name
from timerheap.spark._flows import in_flows
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.named_columns import ColumnOrName, key_columns, quoted, ungrouped
from timerheap.spark._plan.state_changes import IfStored, changed_states
from timerheap.spark._state.initial_contents import start_of
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._state.read_checkpoint import CheckpointState


@in_flows
def changes_of(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    sequence: ColumnOrName | Sequence[ColumnOrName] = (),
    *,
    deleted: ColumnOrName | None = None,
    forget_after: int | str | timedelta | None = None,
    initial_state: CheckpointState | InitialState | None = None,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    name: str | None = None,
) -> DataFrame:
    """Return the changes of a table with one row of each key, given upserts: new rows in place of old ones.

    For a compacted Kafka topic, Debezium without images of rows before, or any log with a number that says
    which row is newer. Upserts may come late, twice and in any order.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        The upserts, of a stream or a batch. ``df.groupBy("a")`` names the key columns, too.
    key : str, Column, or list of them
        Key columns of the table. Null is a key of its own.
    sequence : str, Column, or list of them
        What makes an upsert newer: an offset, a version, a commit time. Several columns are compared from the
        first to the last. Null is an error. Of two upserts of one key and sequence a delete is newer, then
        the one whose other columns are greater, so that it does not matter which comes first.
    deleted : str or Column, optional
        A boolean column or expression, such as ``F.col("op") == "d"`` or ``F.col("value").isNull()``: an
        upsert where it is true deletes the row of its key. Null is false.
    forget_after : int, str or timedelta, optional
        How long a deleted key is remembered, by the clock: milliseconds, or "7 days". By default for ever,
        so that a late upsert that is older than the delete does not bring the row back. The rows that are
        there are never forgotten.
    initial_state : CheckpointState or InitialState, optional
        State to start from, as in `process`.
    max_parallelism, state_changes : optional
        As in `process`. The newest upsert of each key is the value state "row".
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        A changelog: the columns of `df`, and ``_change_type``. A micro-batch has at most one change of a key:
        "insert", "delete", or a pair of "update_preimage" and "update_postimage". Of a batch it is the table,
        all "insert".

    Raises
    ------
    ArgumentError
        If an argument is wrong.

    Notes
    -----
    The state has one row of each key, also of deleted ones. An upsert costs O(1). The columns are in the
    changes as they are, also `sequence` and `deleted`: an upsert that changes only its sequence is a change.

    Flink calls this an upsert source, Spark's pipelines AUTO CDC.

    Examples
    --------
    ::

        rows = kafka.select(F.from_json("value", "id long, email string").alias("row"), "key", "offset")
        customers = timerheap.spark.changes_of(
            rows.select("key", "offset", "row.*"), key="key", sequence="offset", deleted=F.col("id").isNull()
        )
    """
    rows, by = ungrouped("df", df, "key", key)
    columns = Columns("df", rows)
    source = Input.checked(columns, by, timed=False)
    order = key_columns(columns.df, "sequence", columns.many("sequence", sequence or None))
    mark = None if deleted is None else columns.boolean("deleted", deleted)
    names: dict[str, str] = {}  # in the state, by those of the columns
    for column in dict.fromkeys([*source.rows.names, *order, *([] if mark is None else [mark])]):
        if column not in source.key:
            names[column] = added_name(shown_name(column), names.values())
    if not names:  # the key is all there is, and a state has a column
        names[source.key[0]] = shown_name(source.key[0])
    work = UpsertsWork(
        names=names,
        columns=tuple(source.rows.names),
        sequence=tuple(name for name in order if name not in source.key),
        deleted=mark,
        forget_after=None if forget_after is None else positive("forget_after", forget_after),
    )
    known = columns.df.withColumns({name: _not_null(columns.df, name) for name in order})
    query = query_of(
        work,
        changelog_type(source.rows, *([source.key] if set(source.key) <= {*source.rows.names} else [])),
        source,
        processing_time=work.forget_after is not None and columns.df.isStreaming,
        max_parallelism=max_parallelism,
        state_changes=changed_states(state_changes),
        name=name,
        rows=known.schema,
    )
    return build(query, known, start=start_of(initial_state, known))


def _not_null(df: DataFrame, name: str) -> Column:
    text = (
        f"sequence must not be null, got a row with null in column {shown_name(name)!r}; filter such rows "
        "out, or give them a value"
    )
    return F.coalesce(quoted(name), F.raise_error(F.lit(text)).cast(df.schema[name].dataType))
