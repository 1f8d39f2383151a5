"""How a query starts from the state of another, or from tables: split by the key groups that it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from timerheap._expiry import Expiry
from timerheap.errors import ArgumentTypeError, ArgumentValueError, CheckpointMismatchError
from timerheap.spark._columns import (
    INPUT,
    SESSION_START,
    SIDES,
    SLICE_END,
    TIME,
    TIMER,
    VALUE,
    added_name,
)
from timerheap.spark._compat import nullable, to_arrow_schema
from timerheap.spark._group.key_group import KeyGroup, expiry_namespace
from timerheap.spark._group.layout import OwnPart
from timerheap.spark._group.state_names import BROADCAST_STATE, expect_known
from timerheap.spark._group.stored.kinds import OWN, USER_STATE
from timerheap.spark._group.stored.watermark_bytes import (
    InputWatermark,
    StoredWatermark,
    decode_watermark,
    encode_watermark,
)
from timerheap.spark._group.user_states import UserState, new_state, restored_state
from timerheap.spark._plan.build import hashed, naive_millis
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._plan.python_stage import map_batches
from timerheap.spark._plan.starts import Start
from timerheap.spark._query import Query
from timerheap.spark._rule_timers import RULE_TIMERS
from timerheap.spark._state.changed_inputs import input_rows
from timerheap.spark._state.checkpoint_survey import row_columns, window_columns
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._state.read_checkpoint import CheckpointState
from timerheap.spark._state.state_tables import (
    EVENT_TIME,
    INITIAL,
    PROCESSING_TIME,
    BroadcastSplitter,
    ContentsTable,
    PartTable,
    RowTable,
    Splits,
    Splitter,
    TableSplitter,
    WatermarkSplitter,
    rule_timer_entries,
    timer_entries,
)
from timerheap.spark._stored_windows import UNSHOWN, WINDOWS
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.ledger import LEDGER
from timerheap.spark._worker.work import Rehearsal
from timerheap.timer import MIN_WATERMARK


@dataclass(frozen=True)
class FromCheckpoint:
    """The state of another query; see `timerheap.spark._plan.starts.Start`.

    gone: its inputs that the user has given up, of `timerheap.spark._state.changed_inputs.INPUTS`
    """

    state: CheckpointState
    gone: frozenset[str] = frozenset()

    def group(self, query: Query) -> KeyGroup:
        """Return a group with the keys and states of the checkpoint, without contents, if the query fits."""
        group = KeyGroup(query.layout)
        for kind, name, schema in self.state._survey.parts:
            if kind in OWN and all(part.kind != kind for part in group.own):
                raise CheckpointMismatchError(
                    "initial_state must be state that the query can keep, got that of "
                    f"{self.state.checkpoint!r}, which has {name}, and would lose it; start from the state "
                    "of the same function"
                )
            name = query.state_changes.rename.get(name, name)
            if kind < USER_STATE or (not group.layout.drops(name) and name not in group.states):
                group.part(kind, name, schema).replay(pa.RecordBatch.from_pylist([], schema))
        return group.loaded()

    def partitions(
        self, query: Query, letters: Mail, rehearsal: Rehearsal, group: KeyGroup | None
    ) -> GroupedData:
        """Return the state split by the key groups of a new query, grouped as its packed rows are."""
        parts = [part for parts_of_one in self.state._survey.states.values() for part in parts_of_one]
        types = {part.name: restored_state(*part).type for part in parts}
        expect_known(query.state_changes.expected, types, query.state_changes.rename)
        rows = input_rows(self.state, query, self.gone)
        splitter = Splitter(query.max_parallelism, rows.loaded)
        groups = self.state._chunks.where(F.col("kind") != LEDGER)
        split = groups.groupBy("label").applyInArrow(lambda chunks: splitter(chunks), INITIAL)
        return split.groupBy("label")


@dataclass(frozen=True)
class _FromTables:
    """Tables of states, timers and rows; see `timerheap.spark._plan.starts.Start`."""

    initial: InitialState
    spark: SparkSession

    def group(self, query: Query) -> KeyGroup:
        return KeyGroup(query.layout)

    def partitions(
        self, query: Query, letters: Mail, rehearsal: Rehearsal, group: KeyGroup | None
    ) -> GroupedData:
        """Return tables split by the key groups of a new query, grouped as its packed rows are."""
        assert group is not None
        types = {name: group.states[name].type for name in self.initial.states if name in group.states}
        of_tables = dict.fromkeys(self.initial.states, pa.null()) | types
        expect_known(query.state_changes.expected, of_tables, query.state_changes.rename)
        return _split_tables(self.initial, query, self.spark, rehearsal, group)


def start_of(initial_state: object, df: DataFrame) -> Start | None:
    """Return what a query of `df` starts from, checked."""
    if initial_state is None:
        return None
    start = checked_start("initial_state", initial_state, df.sparkSession)
    if not df.isStreaming:
        raise not_of_batch(initial_state)
    return start


def checked_start(argument: str, initial_state: object, spark: SparkSession) -> Start:
    """Return what a query starts from that a user has passed as an argument."""
    if isinstance(initial_state, CheckpointState):
        return FromCheckpoint(initial_state)
    if isinstance(initial_state, InitialState):
        return _FromTables(initial_state, spark)
    raise ArgumentTypeError(
        f"{argument} must be what timerheap.spark.read_checkpoint(spark, checkpoint) returns, or a "
        f"timerheap.spark.InitialState, got {initial_state!r}"
    )


def not_of_batch(initial_state: object) -> ArgumentValueError:
    what = repr(initial_state)
    if isinstance(initial_state, CheckpointState):
        what = f"that of {initial_state.checkpoint!r}"
    return ArgumentValueError(f"initial_state must be None for a batch DataFrame, got {what}")


def _split_tables(
    initial: InitialState, query: Query, spark: SparkSession, rehearsal: Rehearsal, group: KeyGroup
) -> GroupedData:
    fields = [field.with_name(name) for field, name in zip(query.layout.key_fields, query.key, strict=True)]

    def split(argument: str, df: DataFrame, columns: dict[str, Column], table: Splits) -> DataFrame:
        own = {} if set(query.key) <= columns.keys() else _columns_of_key(query, argument, df)
        rows = df.select(*(column.alias(name) for name, column in (own | columns).items()))
        splitter = TableSplitter(query.max_parallelism, fields, table)
        return map_batches(hashed(rows, query.key), splitter, INITIAL)

    watermark_state = encode_watermark(StoredWatermark(MIN_WATERMARK, None))
    if initial.watermarks is not None:
        watermark_state = _watermark_state(initial.watermarks)
    parts = [map_batches(spark.range(1), WatermarkSplitter(query.max_parallelism, watermark_state), INITIAL)]
    for name, df in initial.states.items():
        if name in query.state_changes.drop:
            continue
        argument, state = f"states[{name!r}]", group.states.get(name)
        if name.startswith(BROADCAST_STATE) and query.broadcast is not None:
            parts.append(_of_all_groups(query, argument, df, name))
            continue
        if state is None:
            raise ArgumentValueError(
                f"states must have the names of the query's states, {sorted(group.states)}, got {name!r}"
            )
        value = _added(query, argument, df, "value", from_arrow_type(state.type, True))
        parts.append(split(argument, df, {VALUE: value}, _table_of(state, _expiry(rehearsal, name))))
    if initial.timers is not None:
        columns = dict(zip(TIMER, _timer_columns(query, initial.timers), strict=True))
        of_rules = any(part.kind == RULE_TIMERS for part in group.own)
        entries = rule_timer_entries if of_rules else timer_entries
        parts.append(split("timers", initial.timers, columns, entries))
    if initial.buffered_rows is not None:
        if query.order != "event_time" or query.event_time is None:
            raise ArgumentValueError(
                'buffered_rows must be None unless order is "event_time", got a DataFrame'
            )
        columns = _row_columns(query, initial.buffered_rows)
        waiting = RowTable(group.rows.schema, query.event_time, decode_watermark(watermark_state).watermark)
        parts.append(split("buffered_rows", initial.buffered_rows, columns, waiting))
    if initial.windows is not None:
        for part, df in _parts_of_windows(initial.windows, group, query.key_columns):
            columns = _accumulator_columns(df, part.schema, query.key_columns)
            parts.append(
                split("windows", df, columns, PartTable(part.kind, part.name, part.schema, part.id_column))
            )
    return reduce(DataFrame.unionAll, parts).groupBy("label")


def _columns_of_key(query: Query, argument: str, df: DataFrame) -> dict[str, Column]:
    """Return the key columns of a table under their names in the query's rows."""
    shown = query.key_columns
    types = [query.rows[name].dataType for name in query.key]
    if not shown and len(types) == 1:  # all rows have one
        return {query.key[0]: F.lit(0).cast(types[0])}
    if len(shown) < len(types):  # nothing is kept by such keys but rows that wait, which have them
        wrong = F.lit(f"{argument} must have no rows in a query whose keys have no names; leave it out")
        return {name: F.raise_error(wrong).cast(type_) for name, type_ in zip(query.key, types, strict=True)}
    columns = zip(query.key, shown, types, strict=True)
    return {name: _table_column(argument, df, own, type_) for name, own, type_ in columns}


def _table_of(state: UserState, ttl: Expiry | None) -> ContentsTable:
    name = state.name
    return ContentsTable(name, state.shape, state.type, state.schema, ttl, expiry_namespace(name))


def _of_all_groups(query: Query, argument: str, df: DataFrame, name: str) -> DataFrame:
    """Return a broadcast state, whose function has not said its type yet, split by key groups."""
    column = _added(query, argument, df, "value")
    rows = df.select(column.alias(VALUE))
    type_ = to_arrow_schema(rows.schema).field(VALUE).type
    if not pa.types.is_map(type_):
        raise ArgumentValueError(f"{argument} must have maps in the column 'value', got {type_}")
    table = _table_of(new_state(USER_STATE, name, "map", type_), None)
    return map_batches(rows.coalesce(1), BroadcastSplitter(query.max_parallelism, table), INITIAL)


def _parts_of_windows(
    df: DataFrame, group: KeyGroup, key: Sequence[str]
) -> Iterator[tuple[OwnPart, DataFrame]]:
    """Yield the parts of a key group that have windows, each with its rows in a table of them."""
    parts = {part.kind: part for part in group.own if part.kind in (WINDOWS, UNSHOWN)}
    shown = added_name("shown", key)
    marked = shown in df.columns
    if WINDOWS not in parts or (marked and UNSHOWN not in parts):
        kind = "windows that show early results of Corrections" if parts else "windows"
        raise ArgumentValueError(f"windows must be None for a query without {kind}, got a DataFrame")
    yield parts[WINDOWS], df.where(quoted(shown)) if marked else df
    if marked:
        yield parts[UNSHOWN], df.where(~quoted(shown))


def _accumulator_columns(df: DataFrame, stored: pa.Schema, key: Sequence[str]) -> dict[str, Column]:
    """Return the columns of windows under their names in the checkpoint."""
    columns = {}
    for name, field in window_columns(stored).items():
        column = _table_column("windows", df, added_name(field.name, key), from_arrow_type(field.type, True))
        if name in (SLICE_END, SESSION_START):
            null = F.lit(f"windows must have no null in the column {field.name!r}; filter such rows out")
            column = F.coalesce(naive_millis(column), F.raise_error(null).cast("bigint"))
        columns[name] = column
    return columns


def _expiry(rehearsal: Rehearsal, name: str) -> Expiry | None:
    config = rehearsal.times_to_live.get(name)
    return None if config is None else Expiry.of(config, fixed=rehearsal.keeps_expiries)


def _table_column(
    argument: str, df: DataFrame, name: str, type_: DataType | None = None, why: str = ""
) -> Column:
    """Return a column of a table, which must be of a type, unless that is None; errors say `why` its name."""
    if name not in df.columns:
        raise ArgumentValueError(f"{argument} must have a column {name!r}{why}, got the columns {df.columns}")
    found = df.schema[name].dataType
    if type_ is not None and _nullable(found) != _nullable(type_):
        raise ArgumentValueError(
            f"{argument} must have a column {name!r} of type {type_.simpleString()}, as in the query, got "
            f"{found.simpleString()}; cast it"
        )
    return quoted(name)


def _added(query: Query, argument: str, df: DataFrame, own: str, type_: DataType | None = None) -> Column:
    """Return a column of a table that is none of the user's."""
    name = added_name(own, query.key_columns)
    why = "" if name == own else f", since {own!r} is a key column"
    return _table_column(argument, df, name, type_, why)


def _nullable(type_: DataType) -> DataType:
    return nullable(StructType([StructField("", type_)]))


def _timer_columns(query: Query, df: DataFrame) -> list[Column]:

    def has(name: str) -> bool:
        return added_name(name, query.key_columns) in df.columns

    def column(name: str, type_: DataType) -> Column:
        return _added(query, "timers", df, name, type_)

    time = F.unix_millis(column("timestamp", TimestampType())) if has("timestamp") else None
    if has("epoch_ms") or time is None:
        millis = column("epoch_ms", LongType())
        agree = millis if time is None else F.when(F.coalesce(time == millis, F.lit(True)), millis)
        time = agree
    domain = column("time_domain", StringType())
    known = F.when(domain.isin(EVENT_TIME, PROCESSING_TIME), domain == EVENT_TIME)
    name = column("name", StringType()) if has("name") else F.lit(None)
    wrong = "timers must have epoch_ms and timestamp that agree, or one of them; drop the other"
    unknown = f"timers must have the time_domain {EVENT_TIME!r} or {PROCESSING_TIME!r}, got another"
    return [
        F.coalesce(time, F.raise_error(F.lit(wrong)).cast("bigint")),
        F.coalesce(known, F.raise_error(F.lit(unknown)).cast("boolean")),
        name.cast("string"),
    ]


def _row_columns(query: Query, df: DataFrame) -> dict[str, Column]:
    """Return the columns of buffered rows under their names in the query's rows."""
    columns = {}
    shown = row_columns(query.rows.names, query.key_columns)
    for field in query.rows:
        name, type_ = field.name, field.dataType
        if name == TIME:
            time = added_name("event_time", shown.values())
            columns[name] = _time_of(type_, _table_column("buffered_rows", df, time, TimestampType()))
        elif name == INPUT and SIDES[0] in shown:
            columns[name] = F.when(quoted(shown[SIDES[0]]).isNotNull(), 0).otherwise(1).cast(type_)
        elif name in query.ties and shown[name] not in df.columns:
            columns[name] = F.lit(None).cast(type_)
        else:
            columns[name] = _table_column("buffered_rows", df, shown[name], type_)
    return columns


def _time_of(type_: DataType, time: Column) -> Column:
    if isinstance(type_, LongType):
        return F.unix_millis(time)
    if isinstance(type_, TimestampType):
        return time
    return F.timestamp_add("MICROSECOND", F.unix_micros(time), F.lit("1970-01-01").cast("timestamp_ntz"))


def _watermark_state(watermarks: DataFrame | int) -> bytes:
    """Return a watermark's state in bytes, given a watermark or what `CheckpointState.watermarks` returns."""
    if isinstance(watermarks, int):
        return encode_watermark(StoredWatermark(watermarks, None))
    times = {"query_watermark", "watermark", "newest", "last_row"} & set(watermarks.columns)
    rows = watermarks.withColumns({name: F.unix_millis(name) for name in times}).collect() if times else []
    missing = {"input", "query_watermark", "channel", "channel_column"} - set(watermarks.columns)
    if missing or not rows:
        raise ArgumentValueError(
            "watermarks must be what CheckpointState.watermarks() returns, or an int, got a DataFrame "
            f"without {', '.join(sorted(missing)) or 'rows'}"
        )
    query_watermark = _known_watermark(rows[0].query_watermark)
    inputs = []
    for side in ("left", "right") if any(row.input == "right" for row in rows) else ("df",):
        channels = [row for row in rows if row.input == side and row.aligned is not None]
        marks, newest, active_at = (
            np.array([_known_watermark(row[name]) for row in channels], np.int64)
            for name in ("watermark", "newest", "last_row")
        )
        aligned = [mark for mark, row in zip(marks.tolist(), channels, strict=True) if row.aligned]
        watermark = min(aligned, default=query_watermark) if side != "df" else query_watermark
        active = np.array([row.status == "active" for row in channels], bool)
        names = [row.channel for row in channels]
        column = channels[0].channel_column if channels else None
        idle = any(row.input == side and row.status == "idle" for row in rows)
        inputs.append(
            InputWatermark(column, watermark, names, marks, newest, active, active_at, MIN_WATERMARK, idle)
        )
    return encode_watermark(StoredWatermark(query_watermark, None, inputs))


def _known_watermark(time: int | None) -> int:
    return MIN_WATERMARK if time is None else time
