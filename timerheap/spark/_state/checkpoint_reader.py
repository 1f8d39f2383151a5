"""`read_checkpoint`: the state of a query as DataFrames, and for another query to start from."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from timerheap._arguments import instance, integer
from timerheap._native._core import from_text, xxh64
from timerheap.spark._columns import (
    ACCUMULATOR,
    HIDDEN,
    KEY,
    SESSION_START,
    SIDES,
    added_name,
    distinct,
    shown_name,
)
from timerheap.spark._compat import (
    hadoop_files,
    hadoop_path,
    refuse_connect,
    state_path,
    to_arrow_schema,
    without_globs,
)
from timerheap.spark._exchange.placement import key_group_of, label_of
from timerheap.spark._group.checkpoint import (
    CLOCK,
    EVENT_TIMERS,
    KEYS,
    MANIFEST,
    PROCESSING_TIMERS,
    ROWS,
    TIMER_NAMES,
    USER_STATE,
    Manifest,
    read_clock,
    read_schema,
)
from timerheap.spark._group.key_group import restored_state
from timerheap.spark._group.tables import shown_keys
from timerheap.spark._group.watermark import WatermarkState, decode_clock
from timerheap.spark._state import state_tables as tables
from timerheap.spark._state.epoch_store import last_epoch, partitions_of, stored_chunks
from timerheap.spark._state.state_tables import TIMESTAMP, readable
from timerheap.spark._stored_windows import WINDOWS
from timerheap.spark._worker.spark_store import LEDGER, Ledger, expect_whole, foreign
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks import WatermarkStatus, WatermarkStrategy
from timerheap.watermarks.valve import Explanation

FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_UNIQUE = re.compile(r"\d+_.+\.(zip|changelog)")  # files of version 2, unlike those of other attempts
_STATE = "chunks"  # the state variable of `timerheap.spark._worker.spark_store`


class StoredOperator(NamedTuple):
    """An operator of timerheap in a checkpoint."""

    number: int  # its operator id
    partitions: int
    first_batch: int  # the finished micro-batches whose state the checkpoint has are from this one
    last_batch: int


def path_of(checkpoint: object) -> str:
    if not isinstance(checkpoint, (str, PathLike)):
        raise TypeError(f"checkpoint must be a str or a path, got {checkpoint!r}")
    return str(fspath(checkpoint))


def find_operators(spark: SparkSession, path: str) -> list[StoredOperator]:
    """Return the operators of timerheap in a checkpoint; raise ValueError if there are none."""
    if partitions := partitions_of(spark, path):  # Spark keeps no state there
        epoch = last_epoch(spark, path)
        return _finished(path, [StoredOperator(0, partitions, epoch, epoch)])
    try:
        found = spark.read.format("state-metadata").load(path).collect()
    except (PySparkException, Py4JJavaError) as e:
        raise _not_ours(path, f"which cannot be read: {first_line(e)}") from e
    if not found:
        raise _not_ours(path, _why_empty(spark, path))
    operators = [
        StoredOperator(*map(int, (row.operatorId, row.numPartitions, row.minBatchId, row.maxBatchId)))
        for row in found
        if row.operatorName.startswith("transformWithState") and _has_chunks(row.operatorProperties)
    ]
    if not operators:
        names = ", ".join(sorted(f"{row.operatorId}: {row.operatorName}" for row in found))
        raise _not_ours(path, f"which has only other operators ({names})")
    return _finished(path, operators)


def _finished(path: str, operators: list[StoredOperator]) -> list[StoredOperator]:
    """Return the operators of a checkpoint that has a finished micro-batch."""
    if max(operator.last_batch for operator in operators) < 0:
        raise ValueError(
            f"checkpoint must have a finished micro-batch, got {path!r}, which has none; read it later"
        )
    return operators


def _has_chunks(properties: str) -> bool:
    names = [variable["stateName"] for variable in json.loads(properties).get("stateVariables", [])]
    return [name for name in names if not name.startswith("$")] == [_STATE]  # "$": Spark's own timers


def _why_empty(spark: SparkSession, path: str) -> str:
    """Return why a path has no stateful operators, by its files, wherever they are."""
    folder = hadoop_path(spark, path)
    files = hadoop_files(spark, folder)
    if not files.exists(folder):
        return "which does not exist"
    if not files.exists(hadoop_path(spark, folder, "offsets")):
        return "which is not a checkpoint: it has no offsets"
    return "which has no stateful operator"


def _not_ours(path: str, why: str) -> ValueError:
    return ValueError(
        f"checkpoint must be the checkpoint location of a streaming query with timerheap, got {path!r}, {why}"
    )


def chunks_of(spark: SparkSession, path: str, operator: StoredOperator, batch_id: int | None) -> DataFrame:
    """Return the chunks of an operator after a micro-batch that the checkpoint must have; see `Survey`."""
    _, partitions, first, last = operator
    batch = last if batch_id is None else integer("batch_id", batch_id)
    if not first <= batch <= last:
        raise ValueError(
            f"batch_id must be from {first} to {last}, the finished micro-batches whose state the checkpoint "
            f"has, got {batch}"
        )
    if partitions_of(spark, path):
        return stored_chunks(spark, path, partitions, batch)
    expect_readable(spark, path, operator.number, partitions)
    reader = spark.read.format("statestore").option("operatorId", operator.number)
    try:
        reader = reader.option("batchId", batch).option("stateVarName", _STATE)
        state = reader.load(state_path(spark, path))
        return state.select("key.label", "user_map_key.kind", "user_map_key.id", "user_map_value.text")
    except (PySparkException, Py4JJavaError) as e:
        raise ValueError(
            f"checkpoint must be where its query has written it, since Spark keeps absolute paths in it, got "
            f"{path!r}, whose operator {operator.number} cannot be read: {first_line(e)}"
        ) from e


def expect_readable(spark: SparkSession, path: str, operator: int, partitions: int) -> None:
    """Raise ValueError if Spark's reader would leave out a partition of an operator, or could not read it."""
    folder = hadoop_path(spark, f"{path}/state/{operator}")
    files = hadoop_files(spark, folder)
    found = {status.getPath().getName(): status.getPath() for status in files.listStatus(folder)}
    missing = [str(number) for number in range(partitions) if str(number) not in found]
    if missing:
        raise ValueError(
            f"checkpoint must have the state of all {partitions} partitions, got {path!r}, whose operator "
            f"{operator} lacks {', '.join(missing)}; put back a whole copy of it"
        )
    names = (status.getPath().getName() for status in files.listStatus(found["0"]))
    if spark.conf.get(FORMAT_VERSION) == "1" and any(map(_UNIQUE.fullmatch, names)):
        raise ValueError(
            f"{FORMAT_VERSION} must be 2, as in the query that has written {path!r}, got 1; set it before: "
            f'spark.conf.set("{FORMAT_VERSION}", 2)'
        )


def first_line(error: Exception) -> str:
    """Return the first line of an error of Spark or the JVM."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return text.strip().partition("\n")[0]


class StoredPart(NamedTuple):
    """A part that key groups have, with the schema of its chunks."""

    kind: int
    name: str
    schema: pa.Schema


class Survey:
    """The manifests of all key groups, and the parts that they list, each once.

    One Spark job reads the manifests and the schemas from the columns label, kind, id and text. The parts are
    by kind; that of most groups comes first among those of one kind.
    """

    def __init__(self, chunks: DataFrame) -> None:
        self._chunks = chunks
        heads = chunks.where((F.col("id") == 0) & (F.col("kind") != CLOCK))
        own = F.when(F.col("kind").isin(MANIFEST, LEDGER), F.col("label")).alias("label")
        heads = heads.groupBy(own, "kind", "text").count()
        found: list[tuple[int, bytes]] = []
        self.ledgers: list[Ledger] = []
        by_label: dict[int, Manifest] = {}
        for label, kind, text, count in heads.collect():
            data = from_text(text)
            if kind == LEDGER:
                self.ledgers += [Ledger.from_bytes(data)] * count
            elif kind != MANIFEST:
                found.append((kind, data))
            elif count > 1 or label in by_label:
                raise foreign(f"key group {key_group_of(label)} more than once")
            else:
                by_label[label] = Manifest.from_bytes(data)
        self.groups = {key_group_of(label): manifest for label, manifest in by_label.items()}
        self.manifests = list(by_label.values())
        listed = Counter(
            (run.kind, run.schema)
            for manifest in self.manifests
            for run in manifest.runs
            if run.segments or run.kind >= USER_STATE  # others are left from before a restart
        )
        often = {part: listed[part[0], xxh64(part[1]) & 0xFFFFFFFF] for part in found}
        parts = sorted((part for part in found if often[part]), key=lambda part: (part[0], -often[part]))
        self.parts = [StoredPart(kind, *read_schema(kind, data)) for kind, data in parts]

    @property
    def keys(self) -> list[pa.Field]:
        """The key columns, under their names in the rows."""
        part = self._part(KEYS)
        return [] if part is None else list(shown_keys(part.schema).values())

    @property
    def rows(self) -> pa.Schema | None:
        """The schema of the chunks of waiting rows, None if no row has ever waited."""
        part = self._part(ROWS)
        return None if part is None else part.schema

    @property
    def windows(self) -> StoredPart | None:
        return self._part(WINDOWS)

    @property
    def states(self) -> dict[str, list[StoredPart]]:
        """The user states by name; their kinds may differ from group to group."""
        found: dict[str, list[StoredPart]] = {}
        for part in self.parts:
            if part.kind >= USER_STATE:
                found.setdefault(part.name, []).append(part)
        return found

    def _part(self, kind: int) -> StoredPart | None:
        return next((part for part in self.parts if part.kind == kind), None)

    def clock(self) -> bytes:
        """Return the clock of the groups whose watermark is the highest; one more job if it is large."""
        highest = max(self.manifests, key=lambda manifest: manifest.watermark)
        if not highest.clock_apart:
            return highest.clock
        first = self._chunks.where((F.col("label") == label_of(0)) & F.col("kind").isin(MANIFEST, CLOCK))
        texts = {(row.kind, row.id): row.text for row in first.collect()}  # of what writes it
        chunks, manifest = tables.stored_chunks(texts)
        return read_clock(manifest, chunks)


WATERMARKS = pa.schema(
    [
        ("input", pa.string()),
        ("channel_column", pa.string()),
        ("channel", pa.string()),
        ("watermark", TIMESTAMP),
        ("newest", TIMESTAMP),
        ("behind_ms", pa.int64()),
        ("last_row", TIMESTAMP),
        ("status", pa.string()),
        ("aligned", pa.bool_()),
        ("holds", pa.bool_()),
        ("query_watermark", TIMESTAMP),
    ]
)


def explanations(clock: bytes) -> list[Explanation]:
    """Explain for each input of a clock which channels hold its watermark back."""
    inputs = len(decode_clock(clock).inputs)
    none = WatermarkStrategy.no_watermarks()
    return WatermarkState.from_bytes(clock, (none,) * inputs, (None,) * inputs).explain()


def watermark_rows(clock: bytes) -> list[dict[str, Any]]:
    """Return a row of `WATERMARKS` for each channel, and one for an input without channels."""
    stored, explained = decode_clock(clock), explanations(clock)
    query = _time(stored.watermark)
    if not any(explanation.channels for explanation in explained):  # Spark's watermark, or no event time
        clocked = any(input_.begun_at > MIN_WATERMARK for input_ in stored.inputs)
        spark = stored.watermark > MIN_WATERMARK and not clocked
        side = "spark" if spark else "df"
        return [{"input": side, "watermark": query, "holds": spark, "query_watermark": query}]
    names = ["df"] if len(explained) == 1 else ["left", "right"]
    counting = [one.watermark for one in explained if one.status is not WatermarkStatus.IDLE]
    lowest = min(counting, default=None)
    ended = (channel.watermark for one in explained for channel in one.channels)
    furthest = max((mark for mark in ended if mark < MAX_WATERMARK), default=MIN_WATERMARK)
    rows: list[dict[str, Any]] = []
    for name, input_, one in zip(names, stored.inputs, explained, strict=True):
        holding = one.status is not WatermarkStatus.IDLE and one.watermark == lowest != MAX_WATERMARK
        if not one.channels:
            status = one.status.name.lower()
            rows.append({"input": name, "status": status, "holds": holding, "query_watermark": query})
        times = zip(input_.max_timestamps.tolist(), input_.active_at.tolist(), strict=True)
        for channel, (newest, active_at) in zip(one.channels, times, strict=True):
            mark = channel.watermark
            rows.append(
                {
                    "input": name,
                    "channel_column": input_.column,
                    "channel": None if channel.name is None else str(channel.name),
                    "watermark": _time(mark),
                    "newest": _time(newest),
                    "behind_ms": None if mark == MIN_WATERMARK else max(furthest - mark, 0),
                    "last_row": _time(active_at),
                    "status": channel.status.name.lower(),
                    "aligned": channel.aligned,
                    "holds": holding and channel.holds,
                    "query_watermark": query,
                }
            )
    return rows


def _time(millis: int) -> datetime | None:
    return readable(np.array([millis]))[0].as_py()


_TIMERS = [KEYS, EVENT_TIMERS, PROCESSING_TIMERS, TIMER_NAMES]
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
    batch_id : int
        The micro-batch.
    max_parallelism : int
        The number of its key groups.
    key : list of str
        The key columns; empty for windows over all rows.
    states : list of str
        The names of the function's states.
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
        self._chunks = chunks
        self._survey = survey

    def timers(self) -> DataFrame:
        """Return the pending timers, one a row.

        Returns
        -------
        pyspark.sql.DataFrame
            The key columns; ``timestamp``, when it fires; ``epoch_ms`` (bigint), the same as the function has
            registered it; ``time_domain``, "event_time" or "processing_time"; ``name``, null for a timer
            without one; ``key_group``.
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
            ``key_group``. A stateful processor's values are structs; with a time to live, each is in a struct
            with ``expires``, epoch ms. Broadcast state has a row for each key group, with nulls as the key.

        Raises
        ------
        TypeError, ValueError
            If there is no such state.
        """
        instance("name", name, str)
        parts = self._survey.states.get(name)
        if parts is None:
            have = f"one of {self.states}" if self.states else "left out, since the query has no states"
            raise ValueError(f"name must be {have}, got {name!r}")
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
            `process_two` the key columns and the structs ``left`` and ``right``, one of which is null.
            Then ``event_time``, a timestamp, and ``key_group``.
        """
        rows = self._survey.rows
        if rows is None:
            return self._table(partial(tables.buffered_rows, []), [ROWS], self._with_keys(_EVENT_TIME))
        columns = {name: rows.field(name) for name in rows.names[:-2]}
        shown = row_columns(list(columns), self.key)
        fields = [columns[name].with_name(own) for name, own in shown.items()]
        fields += _named(shown.values(), _EVENT_TIME)
        return self._table(partial(tables.buffered_rows, list(shown)), [ROWS], fields)

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
        part = self._survey.windows
        if part is None:
            raise ValueError(
                f"checkpoint must be that of a query with windows, got {self.checkpoint!r}, whose operator "
                f"{self.operator_id} has none that are open; the windows of window_operator() are in states, "
                f"here {self.states}"
            )
        session = SESSION_START in part.schema.names
        bounds = ["session_start", "session_end"] if session else ["slice_end"]
        own = [(name, pa.timestamp("us")) for name in bounds]
        for field in list(part.schema)[2:]:  # behind the key and the end
            if field.name != SESSION_START:
                number, _, name = field.name.removeprefix(ACCUMULATOR).partition(".")
                own.append((f"{name}_{number}", field.type))
        return self._table(tables.windows, [KEYS, WINDOWS], self._with_keys(own))

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
            Spark's own watermark; ``channel_column`` and ``channel``, null for a watermark over all rows;
            ``watermark``, that of the channel, null before its first row; ``newest``, its largest event time;
            ``behind_ms``, how far it is behind the furthest channel of all inputs; ``last_row``, when its
            last row arrived, by the clock; ``status``, "active" or "idle"; ``aligned``, whether it has caught
            up since it became active; ``holds``, whether the query's watermark cannot advance before this one
            does; and ``query_watermark``.
        """
        rows = watermark_rows(self._survey.clock())
        return self._chunks.sparkSession.createDataFrame(pa.Table.from_pylist(rows, WATERMARKS))

    def _with_keys(self, own: Sequence[tuple[str, pa.DataType]]) -> list[pa.Field]:
        return [*self._survey.keys, *_named(self.key, own)]

    def _table(self, table: tables.Table, kinds: Collection[int], fields: list[pa.Field]) -> DataFrame:
        schema = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
        reader = tables.GroupReader(table, kinds, to_arrow_schema(schema))
        chunks = self._chunks.where(F.col("kind").isin(reader.chunks))
        return chunks.mapInArrow(lambda batches: reader(batches), schema)

    def __repr__(self) -> str:
        where = f"operator {self.operator_id}, micro-batch {self.batch_id}"
        return f"<CheckpointState: {where}: {_shown(self._survey)}>"


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
    query must begin after the rows that this one has read. Its function may have new states, and
    `state_changes` drops states that it no longer has.

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
    (operator,) = chosen
    chunks = chunks_of(spark, path, operator, batch_id)
    batch = operator.last_batch if batch_id is None else integer("batch_id", batch_id)
    try:
        survey = Survey(chunks)
        saved = {key_group: manifest.batch for key_group, manifest in survey.groups.items()}
        (row,) = spark.read.text(f"{without_globs(path)}/metadata", wholetext=True).collect()
        query = str(json.loads(row.value)["id"])
        expect_whole(survey.ledgers, query, batch, operator.partitions, saved)
    except (PySparkException, Py4JJavaError) as e:
        raise _not_ours(path, f"whose operator {operator.number} cannot be read: {first_line(e)}") from e
    if not survey.manifests:
        raise ValueError(
            f"checkpoint must have a finished micro-batch with rows, got {path!r}, whose operator "
            f"{operator.number} has no key group"
        )
    return CheckpointState(path, operator.number, batch, chunks, survey)


def _shown(survey: Survey) -> str:
    """Return a description of an operator by its keys, states and windows."""
    keys = ", ".join(field.name for field in survey.keys)
    parts = [f"key ({keys})" if keys else "no key"]
    if survey.states:
        parts.append(f"states {', '.join(sorted(survey.states))}")
    if survey.windows is not None:
        parts.append(survey.windows.name)
    return ", ".join(parts)


def row_columns(stored: Sequence[str], key: Sequence[str]) -> dict[str, str]:
    """Return the names of the columns of waiting rows in tables, by their names in the checkpoint."""
    # Expressions that arguments of the query have named are columns, too. Rows of two inputs have the `key`
    # columns, and a struct for each input.
    hidden = {name: name for name in stored}
    if SIDES[0] in hidden:
        hidden |= {f"{KEY}{number}": name for number, name in enumerate(key)}
        hidden |= {side: side.removeprefix(HIDDEN) for side in SIDES}
    names = {name: shown_name(hidden[name]) for name in stored}
    names = {name: shown for name, shown in names.items() if not shown.startswith(HIDDEN)}
    return dict(zip(names, distinct(names.values()), strict=True))


def _named(taken: Collection[str], own: Sequence[tuple[str, pa.DataType]]) -> list[pa.Field]:
    """Return the columns that timerheap adds and the key group, beside columns whose names are taken."""
    fields = [*own, ("key_group", pa.int32())]
    return [pa.field(added_name(name, taken), type_) for name, type_ in fields]
