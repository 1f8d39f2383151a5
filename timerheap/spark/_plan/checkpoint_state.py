"""`read_checkpoint`: the state of a query as DataFrames, and for another query to start from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from os import PathLike

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from timerheap._arguments import integer
from timerheap.spark._compat import refuse_connect, to_arrow_schema
from timerheap.spark._group.chunks import EVENT_TIMERS, KEYS, PROCESSING_TIMERS, ROWS, SLICES
from timerheap.spark._group.user_states import restored_state
from timerheap.spark._group.windows_part import SESSION_START
from timerheap.spark._plan.checkpoint_source import StoredOperator, chunks_of, find_operators, path_of
from timerheap.spark._plan.checkpoint_survey import StoredPart, Survey
from timerheap.spark._plan.checkpoint_watermarks import WATERMARKS, watermark_rows
from timerheap.spark._worker import checkpoint_tables as tables
from timerheap.spark._worker.two_inputs import KEY, SIDES

__all__ = ["CheckpointState", "read_checkpoint", "survey_of"]

_RESERVED = "__timerheap_"
_TIMERS = [KEYS, EVENT_TIMERS, PROCESSING_TIMERS]
_GROUPS = [
    pa.field("key_group", pa.int32()),
    pa.field("keys", pa.int64()),
    pa.field("event_time_timers", pa.int64()),
    pa.field("processing_time_timers", pa.int64()),
    pa.field("next_event_time_timer", tables.TIMESTAMP),
    pa.field("next_processing_time_timer", tables.TIMESTAMP),
    pa.field("waiting_rows", pa.int64()),
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
    timestamps, null outside the years 1 to 9999. A column that would have the name of a key column has
    ``timerheap_`` in front of its name.

    Attributes
    ----------
    checkpoint : str
        The checkpoint location of the query.
    operator_id : int
        The number of the operator in the query.
    batch_id : int
        The micro-batch.
    max_parallelism : int
        The number of its key groups.
    key : list of str
        The key columns; empty for windows over all rows.
    states : list of str
        The names of the function's states.
    chunks : pyspark.sql.DataFrame
        The state as it is stored, in the columns label, kind, id and text.
    survey : Survey
        What the key groups have in common.
    """

    def __init__(
        self, checkpoint: str, operator_id: int, batch_id: int, chunks: DataFrame, survey: Survey
    ) -> None:
        self.checkpoint = checkpoint
        self.operator_id = operator_id
        self.batch_id = batch_id
        self.max_parallelism = survey.manifests[0].max_parallelism
        self.key = [field.name for field in survey.keys]
        self.states = sorted(survey.states)
        self.chunks = chunks
        self.survey = survey

    def timers(self) -> DataFrame:
        """Return the pending timers, one a row.

        Returns
        -------
        pyspark.sql.DataFrame
            The key columns; ``timestamp``, when it fires; ``epoch_ms`` (bigint), the same as the function has
            registered it; ``time_domain``, "event_time" or "processing_time"; ``namespace`` (bigint), 0 for
            functions on rows; ``key_group``.
        """
        own = [
            ("timestamp", tables.TIMESTAMP),
            ("epoch_ms", pa.int64()),
            ("time_domain", pa.string()),
            ("namespace", pa.int64()),
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
            ``key_group``. A stateful processor's values are structs; with a time to live, each is in a struct
            with ``expires``, epoch ms. Broadcast state has a row for each key group, with nulls as the key.

        Raises
        ------
        TypeError, ValueError
            If there is no such state.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r}")
        parts = self.survey.states.get(name)
        if parts is None:
            have = f"one of {self.states}" if self.states else "left out, since the query has no states"
            raise ValueError(f"name must be {have}, got {name!r}")
        type_ = restored_state(*parts[0]).type
        kinds = [KEYS, *{part.kind for part in parts}]
        keys = [field.type for field in self.survey.keys]
        return self._table(partial(tables.state, name, keys), kinds, self._with_keys([("value", type_)]))

    def waiting_rows(self) -> DataFrame:
        """Return the rows that wait for the watermark, in a query with ``order="event_time"``.

        Returns
        -------
        pyspark.sql.DataFrame
            The columns of the query's rows; for `process_two` the key columns and the structs ``left`` and
            ``right``, one of which is null. Then ``event_time``, a timestamp, and ``key_group``.
        """
        rows = self.survey.rows
        if rows is None:
            return self._table(partial(tables.waiting_rows, []), [ROWS], self._with_keys(_event_time()))
        columns = self._row_columns(list(rows)[:-2])
        taken = [field.name for field in columns.values()]
        fields = [*columns.values(), *_named(taken, _event_time())]
        return self._table(partial(tables.waiting_rows, list(columns)), [ROWS], fields)

    def _row_columns(self, stored: list[pa.Field]) -> dict[str, pa.Field]:
        """Return the columns of waiting rows that are the user's, by their names in the checkpoint."""
        own = {field.name: field for field in stored if not field.name.startswith(_RESERVED)}
        if own:
            return own
        names = {f"{KEY}{number}": name for number, name in enumerate(self.key)}
        names |= {side: side.removeprefix(_RESERVED) for side in SIDES}
        return {field.name: field.with_name(names[field.name]) for field in stored if field.name in names}

    def windows(self) -> DataFrame:
        """Return the open windows of a query with `tumble`, `hop`, `cumulate`, `session` or `sql`.

        Returns
        -------
        pyspark.sql.DataFrame
            The key columns; ``slice_end`` (timestamp without time zone, in the time zone of the windows), or
            ``session_start`` and ``session_end``; the columns of the accumulators, each with the number of
            its aggregate, such as ``sum_0``; and ``key_group``. Windows that overlap share slices.

        Raises
        ------
        ValueError
            If the query has no windows. Those of `window_operator` are in its states.
        """
        part = self.survey.windows
        if part is None:
            raise ValueError(
                f"checkpoint must be that of a query with windows, got {self.checkpoint!r}, whose operator "
                f"{self.operator_id} has none that are open; the windows of window_operator() are in states, "
                f"here {self.states}"
            )
        session = SESSION_START in part.schema.names
        bounds = ["session_start", "session_end"] if session else ["slice_end"]
        own = [(name, pa.timestamp("us")) for name in bounds]
        own += [(_accumulator(field.name), field.type) for field in _accumulators(part)]
        return self._table(tables.windows, [KEYS, SLICES], self._with_keys(own))

    def groups(self) -> DataFrame:
        """Return the key groups, one a row.

        Returns
        -------
        pyspark.sql.DataFrame
            ``key_group``; the numbers of its ``keys``, ``event_time_timers``, ``processing_time_timers``,
            ``waiting_rows`` and accumulators in ``windows``; ``next_event_time_timer`` and
            ``next_processing_time_timer``; ``states``, a map from the name of each state to the number of
            keys that have it; ``late_rows``, so far; ``bytes``, the size of the chunks; ``watermark``.
        """
        kinds = {part.kind for part in self.survey.parts}
        return self._table(tables.groups, sorted(kinds), _GROUPS)

    def watermarks(self) -> DataFrame:
        """Return the channels that the watermark is made of, one a row.

        Returns
        -------
        pyspark.sql.DataFrame
            ``input``, "df", or "left" and "right" for `process_two`, or "spark" for windows that follow
            Spark's own watermark; ``channel_column`` and ``channel``, null for a watermark over all rows;
            ``watermark``, that of the channel, null before its first row; ``newest``, its largest event time;
            ``behind_ms``, how far it is behind the furthest channel of all inputs; ``last_row``, when its
            last row arrived, by the clock; ``status``, "active" or "idle"; ``aligned``, whether it has caught
            up since it became active; ``holds``, whether the query's watermark cannot advance before this one
            does; and ``query_watermark``.
        """
        rows = watermark_rows(self.survey.clock())
        return self.chunks.sparkSession.createDataFrame(pa.Table.from_pylist(rows, WATERMARKS))

    def _with_keys(self, own: Sequence[tuple[str, pa.DataType]]) -> list[pa.Field]:
        return [*self.survey.keys, *_named(self.key, own)]

    def _table(self, table: tables.Table, kinds: Collection[int], fields: list[pa.Field]) -> DataFrame:
        schema = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
        reader = tables.GroupReader(table, kinds, to_arrow_schema(schema))
        chunks = self.chunks.where(F.col("kind").isin(reader.chunks))
        return chunks.mapInArrow(lambda batches: reader(batches), schema)

    def __repr__(self) -> str:
        where = f"operator {self.operator_id}, micro-batch {self.batch_id}"
        return f"<CheckpointState: {where}: {_shown(self.survey)}>"


def read_checkpoint(
    spark: SparkSession,
    checkpoint: str | PathLike[str],
    operator_id: int | None = None,
    *,
    batch_id: int | None = None,
) -> CheckpointState:
    """Read the state of a query, which may be running, from its checkpoint.

    The state can be looked at, as DataFrames, and another query can start from it:
    ``process(..., initial_state=...)`` continues where the micro-batch has ended, with its keys, timers,
    states, waiting rows and watermarks, and with another `max_parallelism` if asked. The input of the other
    query must begin after the rows that this one has read. Its function may have new states, and `drop_state`
    drops states that it no longer has.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    checkpoint : str or path
        Checkpoint location of a query with `process`, `process_two`, `transform_with_state`,
        `window_operator` or windows.
    operator_id : int, optional
        Number of the stateful operator in the query. It may be left out if only one is timerheap's.
    batch_id : int, optional
        The micro-batch after which to read the state; by default the last one that has finished. Spark keeps
        the state of ``spark.sql.streaming.minBatchesToRetain`` micro-batches.

    Returns
    -------
    CheckpointState

    Raises
    ------
    TypeError, ValueError
        If there is no such checkpoint, operator or micro-batch; if the operator has no key group yet, since
        no row has arrived; or if the checkpoint is damaged.

    Notes
    -----
    Spark's state data source reads the checkpoint, which costs O(size of the state) on the executors, for
    this function and for each action on a DataFrame. Decoding takes about 0.5 us of CPU a timer in Python.

    Examples
    --------
    Show which sensors' timers fire next::

        state = timerheap.spark.read_checkpoint(spark, "/checkpoints/silent")
        state.timers().orderBy("timestamp").show()
    """
    operator, chunks, survey = survey_of(spark, checkpoint, operator_id, batch_id)
    if not survey.manifests:
        raise ValueError(
            f"checkpoint must have a finished micro-batch with rows, got {str(checkpoint)!r}, whose operator "
            f"{operator.number} has no key group"
        )
    batch = operator.last_batch if batch_id is None else integer("batch_id", batch_id)
    return CheckpointState(path_of(checkpoint), operator.number, batch, chunks, survey)


def survey_of(
    spark: SparkSession,
    checkpoint: str | PathLike[str],
    operator_id: int | None = None,
    batch_id: int | None = None,
) -> tuple[StoredOperator, DataFrame, Survey]:
    """Return an operator of a checkpoint, its chunks, and what its key groups have in common.

    The arguments are those of `read_checkpoint`.
    """
    refuse_connect(spark, "reading a checkpoint")
    if not isinstance(spark, SparkSession):
        raise TypeError(f"spark must be a pyspark.sql.SparkSession, got {spark!r}")
    path = path_of(checkpoint)
    operators = find_operators(spark, path)
    wanted = None if operator_id is None else integer("operator_id", operator_id)
    chosen = [operator for operator in operators if wanted in (None, operator.number)]
    if len(chosen) != 1:
        described = "; ".join(
            f"{each.number}: {_shown(Survey(chunks_of(spark, path, each, None)))}" for each in operators
        )
        raise ValueError(
            f"operator_id must be that of an operator of timerheap in {path!r}, got {operator_id!r}; it has "
            f"{described}"
        )
    chunks = chunks_of(spark, path, chosen[0], batch_id)
    return chosen[0], chunks, Survey(chunks)


def _shown(survey: Survey) -> str:
    """Return a description of an operator by its keys, states and windows."""
    keys = ", ".join(field.name for field in survey.keys)
    parts = [f"key ({keys})" if keys else "no key"]
    if survey.states:
        parts.append(f"states {', '.join(sorted(survey.states))}")
    if survey.windows is not None:
        parts.append(survey.windows.name)
    return ", ".join(parts)


def _named(taken: list[str], own: Sequence[tuple[str, pa.DataType]]) -> list[pa.Field]:
    """Return columns of timerheap's own and the key group, beside columns whose names are taken."""
    fields = [*own, ("key_group", pa.int32())]
    return [pa.field(f"timerheap_{name}" if name in taken else name, type_) for name, type_ in fields]


def _event_time() -> list[tuple[str, pa.DataType]]:
    return [("event_time", tables.TIMESTAMP)]


def _accumulators(part: StoredPart) -> list[pa.Field]:
    """Return the columns of windows behind the key and the end."""
    return [field for field in list(part.schema)[2:] if field.name != SESSION_START]


def _accumulator(name: str) -> str:
    """Return the shown name of an accumulator: 'sum_0' for '__timerheap_0.sum'."""
    number, _, field = name.removeprefix(_RESERVED).partition(".")
    return f"{field}_{number}"
