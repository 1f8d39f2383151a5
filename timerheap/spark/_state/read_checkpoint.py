"""`read_checkpoint`: the state of a query as DataFrames, and for another query to start from."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import partial
from os import PathLike
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from timerheap._arguments import instance, integer
from timerheap.errors import ArgumentTypeError, ArgumentValueError, CheckpointError, CheckpointMismatchError
from timerheap.spark._columns import added_name
from timerheap.spark._compat import (
    refuse_connect,
    to_arrow_schema,
    without_globs,
)
from timerheap.spark._group.stored.kinds import (
    EVENT_TIMERS,
    KEYS,
    PROCESSING_TIMERS,
    ROWS,
    TIMER_NAMES,
)
from timerheap.spark._group.user_states import restored_state
from timerheap.spark._rule_timers import RULE_TIMERS
from timerheap.spark._state import epoch_store
from timerheap.spark._state import state_tables as tables
from timerheap.spark._state.checkpoint_survey import (
    Survey,
    described_operator,
    numbered_operator,
    row_columns,
    window_columns,
)
from timerheap.spark._state.stored_operators import (
    StoredOperator,
    chunks_of,
    find_operators,
    first_line,
    not_ours,
    path_of,
)
from timerheap.spark._state.watermark_table import WATERMARKS, watermark_rows
from timerheap.spark._stored_windows import UNSHOWN, WINDOWS
from timerheap.spark._worker.ledger import expect_whole

_TIMERS = [KEYS, EVENT_TIMERS, PROCESSING_TIMERS, TIMER_NAMES, RULE_TIMERS]
_EVENT_TIME = [("event_time", tables.TIMESTAMP)]
_GROUPS = [
    pa.field("key_group", pa.int32()),
    pa.field("keys", pa.int64()),
    pa.field("event_time_timers", pa.int64()),
    pa.field("processing_time_timers", pa.int64()),
    pa.field("next_event_time_timer", tables.TIMESTAMP),
    pa.field("next_processing_time_timer", tables.TIMESTAMP),
    pa.field("buffered_rows", pa.int64()),
    pa.field("windows", pa.int64()),
    pa.field("states", pa.map_(pa.string(), pa.int64())),
    pa.field("late_rows", pa.int64()),
    pa.field("bytes", pa.int64()),
    pa.field("watermark", tables.TIMESTAMP),
]


class CheckpointState:
    """The state of a query after one of its micro-batches; `read_checkpoint` returns it.

    Its methods return DataFrames, which Spark's executors read from the checkpoint when they are used. All of
    them have the query's key columns under their names, and the key group in `key_group`. Times are
    timestamps, null outside the years 1 to 9999. A column that would have the name of a key column, in
    upper or lower case, has ``timerheap_`` in front of its name; `InitialState` reads it there.

    Attributes
    ----------
    checkpoint : str
        The checkpoint location of the query.
    operator_id : int
        The number of the operator in the query.
    name : str or None
        Its name; None in real-time mode before the first epoch has ended.
    batch_id : int
        The micro-batch.
    max_parallelism : int
        The number of its key groups.
    key : list of str
        The key columns; empty for windows over all rows.
    states : list of str
        The names of its states.
    """

    def __init__(
        self, checkpoint: str, operator_id: int, batch_id: int, chunks: DataFrame, survey: Survey
    ) -> None:
        self.checkpoint = checkpoint
        self.operator_id = operator_id
        self.name = survey.operator
        self.batch_id = batch_id
        self.max_parallelism = survey.manifests[0].max_parallelism
        self.key = [field.name for field in survey.keys]
        self.states = sorted(survey.states)
        self._chunks = chunks
        self._survey = survey

    def timers(self) -> DataFrame:
        """Return the pending timers, one a row.

        Returns
        -------
        pyspark.sql.DataFrame
            The key columns; ``timestamp``, when it fires; ``epoch_ms`` (bigint), the same as the function has
            registered it; ``time_domain``, "event_time" or "processing_time"; ``name``, null for a timer
            without one; ``key_group``. Timers of `process_all` have names such as "spikes/due", with that of
            their rule, or "spikes/" without one of their own.
        """
        own = [
            ("timestamp", tables.TIMESTAMP),
            ("epoch_ms", pa.int64()),
            ("time_domain", pa.string()),
            ("name", pa.string()),
        ]
        return self._table(tables.timers, _TIMERS, self._with_keys(own))

    def state(self, name: str) -> DataFrame:
        """Return the contents of a state, one key a row.

        Parameters
        ----------
        name : str
            The name in its descriptor.

        Returns
        -------
        pyspark.sql.DataFrame
            The key columns; ``value``, of the declared type, an array for a list state, or a map; and
            ``key_group``. With a time to live, each value, element or entry is a struct of ``value`` and
            ``at``, the time of its last access in epoch ms. A stateful processor's values are structs; with a
            time to live, each is in a struct with ``expires``, epoch ms. Broadcast state has a row for each
            key group, with nulls as the key.

        Raises
        ------
        ArgumentError
            If there is no such state.
        """
        instance("name", name, str)
        parts = self._survey.states.get(name)
        if parts is None:
            have = f"one of {self.states}" if self.states else "left out, since the query has no states"
            raise ArgumentValueError(f"name must be {have}, got {name!r}")
        type_ = restored_state(*parts[0]).type
        kinds = [KEYS, *{part.kind for part in parts}]
        keys = [field.type for field in self._survey.keys]
        return self._table(partial(tables.state, name, keys), kinds, self._with_keys([("value", type_)]))

    def buffered_rows(self) -> DataFrame:
        """Return the rows that wait for the watermark, in a query with ``order="event_time"``.

        Returns
        -------
        pyspark.sql.DataFrame
            The columns of the query's rows, and expressions that its arguments have named; for
            `process_two` the key columns and the structs ``left`` and ``right``, one of which is null. There
            may be others that the query has computed, such as ``window_end``, or ``input`` for the number of
            the input. Then ``event_time``, a timestamp, and ``key_group``.
        """
        rows = self._survey.rows
        if rows is None:
            return self._table(partial(tables.buffered_rows, []), [ROWS], self._with_keys(_EVENT_TIME))
        columns = {name: rows.field(name) for name in rows.names[:-2]}
        shown = row_columns(list(columns), self.key)
        fields = [columns[name].with_name(own) for name, own in shown.items()]
        fields += _added_fields(shown.values(), _EVENT_TIME)
        return self._table(partial(tables.buffered_rows, list(shown)), [ROWS], fields)

    def windows(self) -> DataFrame:
        """Return the open windows of a query with `tumble`, `hop`, `cumulate`, `session` or `sql`.

        Returns
        -------
        pyspark.sql.DataFrame
            The key columns; ``slice_end`` (timestamp without time zone, in the time zone of the windows), or
            ``session_start`` and ``session_end``; the columns of the accumulators, each with the number of
            its aggregate, such as ``sum_0``; and ``key_group``. Windows that overlap share slices. Windows
            with `Corrections` are open until they are final; if rows have come that they do not show yet,
            these have accumulators of their own, with false in a column ``shown``, which is true in the rest.

        Raises
        ------
        CheckpointMismatchError
            If the query has no windows. Those of `window_operator` are in its states.
        """
        part = self._survey.windows
        if part is None:
            raise CheckpointMismatchError(
                f"checkpoint must be that of a query with windows, got {self.checkpoint!r}, whose operator "
                f"{self.operator_id} has none that are open; the windows of window_operator() are in states, "
                f"here {self.states}"
            )
        own = [(field.name, field.type) for field in window_columns(part.schema).values()]
        marked = self._survey.has_unshown
        own += [("shown", pa.bool_())] if marked else []
        return self._table(partial(tables.windows, marked), [KEYS, WINDOWS, UNSHOWN], self._with_keys(own))

    def groups(self) -> DataFrame:
        """Return the key groups, one a row.

        Returns
        -------
        pyspark.sql.DataFrame
            ``key_group``; the numbers of its ``keys``, ``event_time_timers``, ``processing_time_timers``,
            ``buffered_rows`` and accumulators in ``windows``; ``next_event_time_timer`` and
            ``next_processing_time_timer``; ``states``, a map from the name of each state to the number of
            keys that have it; ``late_rows``, so far; ``bytes``, the size of the chunks; ``watermark``.
        """
        kinds = {part.kind for part in self._survey.parts}
        return self._table(tables.groups, sorted(kinds), _GROUPS)

    def watermarks(self) -> DataFrame:
        """Return the channels that the watermark is made of, one a row.

        Returns
        -------
        pyspark.sql.DataFrame
            ``input``, "df", or "left" and "right" for `process_two`, or "spark" for a processor, of
            Spark's own watermark, or "operators" for that of the operators before this one;
            ``channel_column`` and ``channel``, null for a watermark over all rows; ``watermark``, that of the
            channel, null before its first row; ``newest``, its largest event time; ``behind_ms``, how far it
            is behind the furthest channel of all inputs; ``last_row``, when its last row arrived, by the
            clock; ``status``, "active" or "idle"; ``aligned``, whether it has caught up since it became
            active; ``holds``, whether the query's watermark cannot advance before this one does; and
            ``query_watermark``.
        """
        rows = watermark_rows(self._survey.watermark_state())
        return self._chunks.sparkSession.createDataFrame(pa.Table.from_pylist(rows, WATERMARKS))

    def _with_keys(self, own: Sequence[tuple[str, pa.DataType]]) -> list[pa.Field]:
        return [*self._survey.keys, *_added_fields(self.key, own)]

    def _table(self, table: tables.Table, kinds: Collection[int], fields: list[pa.Field]) -> DataFrame:
        schema = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
        reader = tables.GroupReader(table, kinds, to_arrow_schema(schema))
        chunks = self._chunks.where(F.col("kind").isin(reader.chunks))
        return chunks.mapInArrow(lambda batches: reader(batches), schema)

    def _is_copy_of(self, other: CheckpointState) -> bool:
        """Return whether two operators of a query have the same state, as those of a DataFrame used twice."""
        mine, theirs = (
            {
                number: (group.standing, group.watermark, group.late_rows)
                for number, group in each.groups.items()
            }
            for each in (self._survey, other._survey)
        )
        return mine == theirs and self._survey.parts == other._survey.parts

    def __repr__(self) -> str:
        where = f"{numbered_operator(self.operator_id, self.name)}, micro-batch {self.batch_id}"
        return f"<CheckpointState: {where}: {described_operator(self._survey)}>"


def read_checkpoint(
    spark: SparkSession,
    checkpoint: str | PathLike[str],
    operator: str | int | None = None,
    *,
    batch_id: int | None = None,
) -> CheckpointState:
    """Read the state of a query, which may be running, from its checkpoint.

    The state can be looked at, as DataFrames, and another query can start from it, or from its tables:
    ``process(..., initial_state=...)``, or `start_from` for any query, continues where the micro-batch has
    ended, with its keys, timers, states, waiting rows, windows and watermarks, and with another
    `max_parallelism` if asked. The input of the other query must begin after the rows that this one has read.
    Its function may have new states, and `state_changes` drops states that it no longer has.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    checkpoint : str or path
        Checkpoint location of a query with functions of timerheap.
    operator : str or int, optional
        The `name` of the operator, or its number in the query. It may be left out if only one is timerheap's.
    batch_id : int, optional
        The micro-batch after which to read the state; by default the last one that has finished. Spark keeps
        the state of ``spark.sql.streaming.minBatchesToRetain`` micro-batches.

    Raises
    ------
    ArgumentError
        If there is no such operator or micro-batch, or several operators have the name.
    ForeignCheckpointError
        If there is no checkpoint, or none of timerheap.
    DamagedCheckpointError
        If a part of it is missing or has changed.
    CheckpointError
        If no micro-batch has finished, or no row has arrived yet.

    Notes
    -----
    Spark's state data source reads the checkpoint, which costs O(size of the state) on the executors, for
    this function and for each action on a DataFrame. Decoding costs CPU in Python for each timer.

    Examples
    --------
    Show which sensors' timers fire next::

        state = timerheap.spark.read_checkpoint(spark, "/checkpoints/silent")
        state.timers().orderBy("timestamp").show()
    """
    refuse_connect(spark, "reading a checkpoint")
    if not isinstance(spark, SparkSession):
        raise ArgumentTypeError(f"spark must be a pyspark.sql.SparkSession, got {spark!r}")
    path = path_of(checkpoint)
    operators = find_operators(spark, path)
    found = _chosen(spark, path, operators, operator)
    state = _state_of(spark, path, found, batch_id)
    if state is None:
        raise CheckpointError(
            f"checkpoint must have a finished micro-batch with rows, got {path!r}, whose operator "
            f"{found.number} has no key group"
        )
    return state


def states_of(spark: SparkSession, path: str, batch: int) -> list[CheckpointState]:
    """Return the states of all operators of timerheap after a micro-batch that have had rows."""
    found = (_state_of(spark, path, operator, batch) for operator in find_operators(spark, path))
    return [state for state in found if state is not None]


def _state_of(
    spark: SparkSession, path: str, operator: StoredOperator, batch_id: int | None
) -> CheckpointState | None:
    """Return the state of an operator, checked; None if it has no key group."""
    chunks = chunks_of(spark, path, operator, batch_id)
    batch = operator.last_batch if batch_id is None else integer("batch_id", batch_id)
    try:
        survey = Survey(chunks)
        if epoch_store.partitions_of(spark, path):
            epoch_store.expect_every_key_group(survey.groups)
        saved = {key_group: manifest.batch for key_group, manifest in survey.groups.items()}
        (row,) = spark.read.text(f"{without_globs(path)}/metadata", wholetext=True).collect()
        query = str(json.loads(row.value)["id"])
        expect_whole(survey.ledgers, query, batch, operator.partitions, saved)
    except (PySparkException, Py4JJavaError) as e:
        raise not_ours(path, f"whose operator {operator.number} cannot be read: {first_line(e)}") from e
    return CheckpointState(path, operator.number, batch, chunks, survey) if survey.manifests else None


def _chosen(
    spark: SparkSession, path: str, operators: Sequence[StoredOperator], operator: Any
) -> StoredOperator:
    """Return the operator of a checkpoint that has this name or number; for None, the only one."""
    if not isinstance(operator, str):
        number = None if operator is None else integer("operator, unless it is a name,", operator)
        chosen = [each for each in operators if number in (None, each.number)]
        if len(chosen) == 1:
            return chosen[0]
    try:  # names are in the chunks
        surveys = [(each, Survey(chunks_of(spark, path, each, None))) for each in operators]
    except (PySparkException, Py4JJavaError) as e:
        raise not_ours(path, f"whose operators cannot be read: {first_line(e)}") from e
    chosen = [each for each, found in surveys if found.operator == operator]
    if len(chosen) == 1:
        return chosen[0]
    described = "; ".join(
        f"{numbered_operator(each.number, found.operator)}: {described_operator(found)}"
        for each, found in surveys
    )
    raise ArgumentValueError(
        f"operator must be the name or the number of one operator of timerheap in {path!r}, got "
        f"{operator!r}; it has {described}"
    )


def _added_fields(taken: Collection[str], own: Sequence[tuple[str, pa.DataType]]) -> list[pa.Field]:
    """Return the columns that timerheap adds and the key group, beside columns whose names are taken."""
    fields = [*own, ("key_group", pa.int32())]
    return [pa.field(added_name(name, taken), type_) for name, type_ in fields]
