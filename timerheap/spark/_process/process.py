"""`process`, `process_two` and `process_broadcast`: Flink's process functions on Spark DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.functions import BatchProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.interval_join import IntervalJoin
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import INPUT, KEY, SIDES, TIME, computed_name, shown_name
from timerheap.spark._plan.arguments import (
    arrow_schema,
    changed_states,
    channel_column,
    data_frame,
    expect_event_time,
    key_columns,
    key_groups,
    late_rows,
    null_times,
    parsed_schema,
    quoted,
    row_order,
    sendable,
    tie_columns,
)
from timerheap.spark._plan.build import Input, build, marked, time_mode
from timerheap.spark._plan.named_columns import ColumnOrName, Columns, assigns_time, ungrouped
from timerheap.spark._plan.outputs import side_tags
from timerheap.spark._process.wrapped_runners import work_of
from timerheap.spark._query import Query, TimeColumn
from timerheap.spark._state.checkpoint_reader import CheckpointState
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._state.starts import start_of
from timerheap.watermarks import WatermarkStrategy


def process(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedProcessFunction | BatchProcessFunction | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    order: str | None = None,
    tie_break: ColumnOrName | Sequence[ColumnOrName] | None = None,
    channel: ColumnOrName | None = None,
    late: str | None = None,
    null_time: str = "error",
    processing_time: bool = False,
    max_parallelism: int | None = None,
    output_event_time: ColumnOrName | None = None,
    drop_state: Sequence[str] = (),
    rename_state: Mapping[str, str] | None = None,
    initial_state: CheckpointState | InitialState | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
) -> DataFrame:
    """Run a process function, with its timers and its state for each key, on a streaming or batch DataFrame.

    The function is called with the rows and due timers of each key. Timers and state are in the checkpoint of
    the query, and a micro-batch writes what it has changed. The end of a batch DataFrame is a watermark that
    fires all event-time timers.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        ``df.groupBy("a", "b")`` names the key columns, too.
    key : str, Column, or list of them
        Key columns, of atomic types; left out if `df` is grouped. Null is a key of its own, as in SQL's GROUP
        BY. An expression is the key, but no column of the rows that the function sees. So is a field of a
        struct, which has a name such as "order.id", as in Spark.
    function : KeyedProcessFunction or BatchProcessFunction
        An instance, pickled to the workers by cloudpickle. A copy is opened and closed on the driver first,
        so that errors in its states are raised here; see `timerheap.functions.Function`.
    output_schema : str or pyspark.sql.types.StructType
        Schema of the result.
    event_time : str or Column, optional
        Event-time column or expression: a timestamp (cut to ms), or a bigint of epoch ms. By default, the
        column of a stream that Spark's ``withWatermark`` names. Without one the watermark does not advance
        until the end of a batch DataFrame, unless `watermark` has a timestamp assigner.
    watermark : WatermarkStrategy, int, str or timedelta, optional
        Required with `event_time`, unless ``withWatermark`` names the column: its delay is the default. "5
        seconds", or 5000, is ``WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")``. A strategy with
        ``with_timestamp_assigner`` computes the event time of each row in Python, in place of `event_time`; a
        column is faster. A strategy receives the largest event time of each micro-batch, over all partitions
        or for each channel. ``with_idleness`` ignores a channel that has had no rows for a while, and
        ``with_wall_clock`` lets it follow the clock; both imply `processing_time` on a stream.
        ``with_max_ahead`` keeps rows too far ahead of the micro-batch's time from advancing the watermark;
        the metric ``ahead_rows`` counts them. By default rows more than
        a day ahead do not advance it, and the driver logs them.
    order : {"event_time", "arrival"}, optional
        "event_time", the default with `event_time`: a row reaches the function once the watermark has passed
        it, and rows and timers are processed in event-time order, rows before timers of the same timestamp.
        Rows of one key and timestamp are in the order of `tie_break`, not in that of their arrival. Results
        then depend on the data alone, not on micro-batches and partitions, as long as no row is late.
        Rows wait in state until the watermark passes them. A row behind the watermark is late; which rows are
        depends on micro-batches. "arrival", the default without `event_time`: rows are processed as they
        arrive. Within a micro-batch all rows are processed before the watermark advances, so a row may reach
        the function before a timer that is due earlier.
    tie_break : str, Column, or list of them, optional
        Columns or expressions that order the rows of one key and timestamp, such as a sequence number or
        Kafka's ``["partition", "offset"]``; null comes last. By default, and where they are equal, rows are
        in the order of all of their columns, from the first to the last: "cancelled" before "created". Only
        with ``order="event_time"``.
    channel : str or Column, optional
        Column of an atomic type without nulls whose values have a watermark each: Kafka's partition, a
        device, an airport. Event time is the lowest of them (Flink's StatusWatermarkValve), so a channel that
        lags behind the others loses no row. A new value counts once it has caught up with the watermark.
        Meant for up to some 10,000 values, since every task keeps all of them.
    late : {"drop", "emit"}, optional
        What becomes of rows behind the watermark. "emit": `timerheap.spark.late_rows` returns them. "drop":
        they are counted, and the driver logs the number once a minute. By default they are dropped with
        ``order="event_time"``, and reach the function with ``order="arrival"``, as in Flink. The guide to
        event-time order has a table of the defaults of all operators.
    null_time : {"error", "drop"}, default "error"
        What becomes of rows whose event time is null. "drop": they are dropped, and the metric
        ``null_time_rows`` counts them.
    processing_time : bool
        Whether there are processing-time timers. "Now" is the time of the micro-batch, so that a repeated
        attempt sees the same time. Spark then runs a micro-batch at every trigger, even without rows, once
        the first has run: `timerheap.spark.start` does not wait for it. For a run that ends, use
        `timerheap.spark.run_available_now` in place of ``availableNow``.
    max_parallelism : int, optional
        Number of key groups, 1 to 32768: the most tasks that can share the keys. A checkpoint keeps it. By
        default it is the smallest multiple of ``spark.sql.shuffle.partitions`` that is 16 or more.
    output_event_time : str or Column, optional
        Timestamp column of the result that becomes Spark's event time, with delay 0, for stateful operators
        that follow. By default the result has no event time.
    drop_state : list of str
        Names of states in the checkpoint that the function no longer has, or of fields of their row types,
        such as "last.note". They are dropped; a state then keeps no key alive. A state that the function
        still uses is an error; a name that is not in the checkpoint is ignored. A state that is neither used
        in ``open`` nor named here stays, and the driver logs a warning.
    rename_state : dict of str to str, optional
        New names of states in the checkpoint by their old names, or of fields, such as
        ``{"last.note": "last.text"}``. An old name that is not in the checkpoint is ignored, so that the
        argument may stay.
    initial_state : CheckpointState or InitialState, optional
        State to start from, on a stream with a new checkpoint: that of another query, as
        `timerheap.spark.read_checkpoint` returns it, or tables of states, timers, rows and watermarks.
        `max_parallelism` may differ.
    side_outputs : list of OutputTag, optional
        The side outputs of the function, which `timerheap.spark.side_output` returns. By default those tags
        that are attributes of the function, and globals and closures of its methods.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, before the query starts. The query fails if an event time is null or a result
        does not fit `output_schema`.

    Notes
    -----
    The semantics are those of Flink's timer service (`timerheap.flink.InternalTimerService`), except that the
    watermark is part of the state and survives a restart.

    A checkpoint also keeps the types of the key columns, and Spark keeps ``spark.sql.shuffle.partitions`` in
    it. Streams need the RocksDB state store provider.

    Examples
    --------
    ::

        class Silent(KeyedProcessFunction):
            def process_element(self, value, ctx):
                timers = ctx.timer_service()
                timers.register_event_time_timer(ctx.timestamp() + 60_000, name="silent")

            def on_timer(self, timestamp, ctx):
                yield ctx.get_current_key(), timestamp

        alerts = timerheap.spark.process(
            readings,
            key="sensor",
            function=Silent(),
            output_schema="sensor string, silent_at timestamp",
            event_time="at",
            watermark="5 seconds",
        )
    """
    query, rows = planned_query(
        sendable(function, KeyedProcessFunction, BatchProcessFunction),
        df,
        key,
        output_schema,
        event_time,
        watermark=watermark,
        order=order,
        tie_break=tie_break,
        channel=channel,
        late=late,
        null_time=null_time,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        drop_state=drop_state,
        rename_state=rename_state,
        side_outputs=side_outputs,
    )
    start = start_of(initial_state, rows)
    return build(query, rows, start=start, output_event_time=output_event_time)


def planned_query(
    function: object,
    df: object,
    key: object,
    output_schema: str | StructType | None,
    event_time: object,
    *,
    watermark: object,
    order: str | None,
    tie_break: object = None,
    channel: object,
    late: str | None,
    null_time: str = "error",
    processing_time: bool,
    max_parallelism: int | None,
    drop_state: Sequence[str],
    rename_state: Mapping[str, str] | None,
    side_outputs: Sequence[OutputTag] | None,
    broadcast: StructType | None = None,
) -> tuple[Query, DataFrame]:
    """Return the query that runs a checked `function`, and the rows with their marks.

    broadcast: type of the rows that go to every key group
    """
    source, grouping = ungrouped("df", df, "key", key)
    columns = Columns("df", source)
    input_type = columns.df.schema
    arrow_schema("df", input_type)
    grouping, by_channel = columns.many("key", grouping), columns.one("channel", channel)
    tie_break = columns.many("tie_break", tie_break)
    time, delay = columns.timed("", event_time, watermark)
    rows = columns.df
    keys = key_columns(rows, "key", grouping)
    nulls = null_times(null_time)
    dropping = nulls == "drop" and nulls
    strategy = expect_event_time(rows, time, delay, late=late, channel=by_channel, null_time=dropping)
    rows_order = row_order(order, rows, time, strategy)
    if by_channel is not None:
        channel_column(rows, "channel", by_channel)
    key_groups(max_parallelism)
    query = Query(
        work=work_of(function),
        key=keys,
        rows=rows.schema,
        result=parsed_schema(output_schema),
        event_time=time,
        null_time=nulls,
        watermarks=(strategy,),
        channels=(by_channel,),
        order=rows_order,
        ties=tie_columns(rows, "tie_break", tie_break, rows_order),
        time_mode=time_mode(rows, processing_time, strategy),
        max_parallelism=max_parallelism,
        late=late_rows(late, rows_order),
        late_row=input_type if late == "emit" else None,
        late_columns=tuple(input_type.names),
        **changed_states(drop_state, rename_state),
        side_outputs=side_tags(side_outputs, function),
        key_names=[shown_name(name) for name in keys],
        broadcast=broadcast,
    )
    return query, marked(Input(rows, time, strategy, by_channel))


def process_two(
    left: DataFrame | GroupedData,
    right: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedCoProcessFunction | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | None = None,
    *,
    right_key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    right_event_time: ColumnOrName | None = None,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    right_watermark: WatermarkStrategy | int | str | timedelta | None = None,
    order: str | None = None,
    tie_break: ColumnOrName | Sequence[ColumnOrName] | None = None,
    right_tie_break: ColumnOrName | Sequence[ColumnOrName] | None = None,
    channel: ColumnOrName | None = None,
    right_channel: ColumnOrName | None = None,
    late: str | None = None,
    null_time: str = "error",
    processing_time: bool = False,
    max_parallelism: int | None = None,
    output_event_time: ColumnOrName | None = None,
    drop_state: Sequence[str] = (),
    rename_state: Mapping[str, str] | None = None,
    initial_state: CheckpointState | InitialState | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
) -> DataFrame:
    """Run a two-input process function on two streaming, or two batch, DataFrames.

    Rows of both inputs that have the same key share the function's timers and state. Each input has its own
    watermark. Event time is the lower of the two, so that no row is late because the other input is ahead.

    Parameters
    ----------
    left, right : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        Rows of `left` are passed to ``process_element1``, rows of `right` to ``process_element2``.
        ``left.groupBy("a")`` and ``right.groupBy("b")`` name the key columns, too.
    key : str, Column, or list of them
        Key columns of `left`, and of `right` unless `right_key` names other columns of the same types. Null
        is a key, too. An expression may be a key, as in `process`.
    function : KeyedCoProcessFunction
    output_schema : str or pyspark.sql.types.StructType
    event_time, watermark, channel : optional
        As in `process`, for `left`. `right_event_time` (a column of the same type), `right_watermark` and
        `right_channel` are those of `right`. By default `right` has the same event time and watermark, or
        those of its ``withWatermark`` if `event_time` and `watermark` are left out, and no channel.
    order : {"event_time", "arrival"}, optional
        As in `process`, over the rows of both inputs. The default is "event_time", except for an
        `IntervalJoin`, which finds the same pairs in any order: with "arrival" it emits each pair when its
        second row arrives, and passes late rows to ``late_left`` and ``late_right``.
    tie_break, right_tie_break : str, Column, or list of them, optional
        As in `process`; by default those of `right` have the names of those of `left`. At one timestamp they
        order the rows of both inputs, of which those of `left` come first by default. To have `right` first,
        pass ``tie_break=F.lit(1), right_tie_break=F.lit(0)``.
    null_time, processing_time, max_parallelism, output_event_time, drop_state, rename_state : optional
        As in `process`.
    initial_state, side_outputs : optional
        As in `process`.
    late : {"drop", "emit"}, optional
        As in `process`; late rows have the columns ``left`` and ``right``, one of which is null.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    TypeError, ValueError
        As in `process`, and if the two inputs do not match.

    Notes
    -----
    The semantics are those of Flink's ``KeyedCoProcessOperator``: a StatusWatermarkValve for each input, and
    an IndexedCombinedWatermarkStatus over both. An input without new rows holds back event time; with
    ``watermark.with_idleness(...)`` event time advances without it, and with
    ``watermark.with_wall_clock(...)`` it follows the clock.
    """
    left_rows, left_by = ungrouped("left", left, "key", key)
    right_rows, right_by = ungrouped("right", right, "right_key", right_key)
    if order is None and isinstance(function, IntervalJoin):
        order = "arrival"
    nulls = null_times(null_time)
    needing = {"late": late, "null_time": nulls == "drop" and nulls}
    one = _Side.of("", "left", left_rows, left_by, event_time, watermark, channel, needing, order, tie_break)
    two = _Side.of(
        "right_",
        "right",
        right_rows,
        left_by if right_by is None else right_by,
        event_time if right_event_time is None and not assigns_time(right_watermark) else right_event_time,
        watermark if right_watermark is None else right_watermark,
        right_channel,
        needing,
        order,
        tie_break if right_tie_break is None else right_tie_break,
    )
    one.expect_to_match(two)
    rows_order = row_order(order, one.df, one.event_time, one.strategy, two.strategy)
    key_groups(max_parallelism)
    timed = one.event_time is not None
    ties = one.tie_names()
    names = [f"{KEY}{number}" for number in range(len(one.key))]
    both = one.tagged(0, two).unionAll(two.tagged(1, one))
    columns = [*names, *([TIME] if timed else []), *ties, INPUT, *SIDES]
    late_row = StructType([StructField("left", one.rows), StructField("right", two.rows)])
    query = Query(
        work=work_of(sendable(function, KeyedCoProcessFunction)),
        key=names,
        rows=StructType([both.schema[name] for name in columns]),
        result=parsed_schema(output_schema),
        event_time=TIME if timed else None,
        times=(*one.times(), *two.times()),
        null_time=nulls,
        watermarks=(one.strategy, two.strategy),
        channels=(one.channel, two.channel),
        order=rows_order,
        ties=ties,
        time_mode=time_mode(one.df, processing_time, one.strategy, two.strategy),
        max_parallelism=max_parallelism,
        late=late_rows(late, rows_order),
        late_row=late_row if late == "emit" else None,
        late_columns=SIDES,
        **changed_states(drop_state, rename_state),
        side_outputs=side_tags(side_outputs, function),
        key_names=[shown_name(name) for name in one.key],
    )
    start = start_of(initial_state, both)
    return build(query, both, start=start, output_event_time=output_event_time)


@dataclass(frozen=True)
class _Side(Input):
    """One of the two inputs; `prefix` + name are the names of its arguments."""

    prefix: str
    key: list[str]
    rows: StructType
    ties: tuple[str, ...]

    @classmethod
    def of(
        cls,
        prefix: str,
        argument: str,
        df: DataFrame,
        key: object,
        event_time: object,
        watermark: object,
        channel: object,
        needing: Mapping[str, object],
        order: object,
        tie_break: object,
    ) -> _Side:
        """Check the arguments of one input."""
        columns = Columns(argument, df)
        rows = columns.df.schema
        arrow_schema(argument, rows)
        key, by_channel = columns.many(prefix + "key", key), columns.one(prefix + "channel", channel)
        tie_break = columns.many(prefix + "tie_break", tie_break)
        time, delay = columns.timed(prefix, event_time, watermark)
        df = columns.df
        keys = key_columns(df, prefix + "key", key)
        asks: dict[str, Any] = {**needing, prefix + "channel": by_channel}
        strategy = expect_event_time(df, time, delay, prefix, **asks)
        if by_channel is not None:
            channel_column(df, prefix + "channel", by_channel)
        ties = tie_columns(df, prefix + "tie_break", tie_break, row_order(order, df, time))
        return cls(df, time, strategy, by_channel, prefix, keys, rows, ties)

    def times(self) -> list[TimeColumn]:
        """Return what the event time is to the user, if there is one."""
        df = "right" if self.prefix else "left"
        return (
            [] if self.event_time is None else [TimeColumn(f"{self.prefix}event_time", self.event_time, df)]
        )

    def tie_names(self) -> tuple[str, ...]:
        """Return the names of the columns that order rows of one key and time, in the rows of both inputs."""
        return tuple(computed_name(number, shown_name(name)) for number, name in enumerate(self.ties))

    def expect_to_match(self, other: _Side) -> None:
        """Raise an error unless both inputs are of one kind, with keys and event times of the same types."""
        if (self.event_time is None) != (other.event_time is None):
            timed, untimed = ("left", "right_") if other.event_time is None else ("right", "")
            raise ValueError(
                f"{untimed}event_time must name the event-time column, since {timed} has one in "
                f"{self.event_time or other.event_time!r}, got None; pass it, with {untimed}watermark"
            )
        if self.df.isStreaming != other.df.isStreaming:
            kinds = ["a stream" if side.df.isStreaming else "a batch" for side in (self, other)]
            raise ValueError(f"right must be {kinds[0]} like left, got {kinds[1]}")
        pairs = []
        for argument, own, others in (
            ("key", self.key, other.key),
            ("tie_break", self.ties, other.ties),
        ):
            if len(own) != len(others):
                raise ValueError(
                    f"right_{argument} must have as many columns as {argument}, which is "
                    f"{[*map(shown_name, own)]}, got {[*map(shown_name, others)]}"
                )
            pairs += [(argument, *names) for names in zip(own, others, strict=True)]
        if self.event_time is not None and other.event_time is not None:
            pairs.append(("event_time", self.event_time, other.event_time))
        for argument, mine, theirs in pairs:
            types = self.df.schema[mine].dataType, other.df.schema[theirs].dataType
            if types[0] != types[1]:
                raise ValueError(
                    f"right_{argument} must be of type {types[0].simpleString()} like column "
                    f"{shown_name(mine)!r} of left, got {shown_name(theirs)!r} of type "
                    f"{types[1].simpleString()}; cast one of them"
                )

    def tagged(self, number: int, other: _Side) -> DataFrame:
        """Return the rows in the columns of both sides: key, event time, input, and two structs.

        The struct of the other side is null.
        """
        marks = marked(self, other)
        columns = [quoted(name).alias(f"{KEY}{i}") for i, name in enumerate(self.key)]
        if self.event_time is not None:
            columns.append(quoted(self.event_time).alias(TIME))
        ties = zip(self.ties, self.tie_names(), strict=True)
        columns += [quoted(column).alias(name) for column, name in ties]
        columns.append(F.lit(number).cast("tinyint").alias(INPUT))
        row, none = F.struct(*map(quoted, self.rows.names)), F.lit(None).cast(other.rows)
        for side, content in zip(SIDES, (none, row) if number else (row, none), strict=True):
            columns.append(content.alias(side))
        return marks.select(*columns, *(quoted(name) for name in marks.columns[len(self.df.columns) :]))


def process_broadcast(
    df: DataFrame | GroupedData,
    rules: DataFrame,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedBroadcastProcessFunction | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    order: str | None = None,
    tie_break: ColumnOrName | Sequence[ColumnOrName] | None = None,
    channel: ColumnOrName | None = None,
    late: str | None = None,
    null_time: str = "error",
    processing_time: bool = False,
    max_parallelism: int | None = None,
    output_event_time: ColumnOrName | None = None,
    drop_state: Sequence[str] = (),
    rename_state: Mapping[str, str] | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
) -> DataFrame:
    """Run a function on rows by key, and on rows that go to all keys, of two streams or batch DataFrames.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        Rows that are passed to ``process_element``, with the state and the timers of their key.
    rules : pyspark.sql.DataFrame
        Rows that are passed to ``process_broadcast_element``, each in every key group. They should be few,
        since each is sent to all partitions and its state is kept `max_parallelism` times.
    key, output_schema, event_time : optional
        As in `process`, of `df`.
    function : KeyedBroadcastProcessFunction
    watermark, order, tie_break, channel, late, null_time, processing_time : optional
    max_parallelism, output_event_time : optional
        As in `process`, of `df`. `rules` have no event time and do not hold back the watermark.
    drop_state, rename_state, side_outputs : optional
        As in `process`. The state of a descriptor "limits" is called "broadcast:limits" in a checkpoint.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    TypeError, ValueError
        As in `process`, and if `rules` is not a stream like `df`, or a batch DataFrame like it.

    Notes
    -----
    Flink: ``CoBroadcastWithKeyedOperator``. As there, the order between the two sides is not defined: the
    rules of a micro-batch are processed before its rows and timers, and a batch DataFrame has all rules
    first. Rules of one partition of `rules` keep their order.

    Examples
    --------
    ::

        LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.DOUBLE())

        class TooWarm(KeyedBroadcastProcessFunction):
            def process_element(self, value, ctx):
                limit = ctx.get_broadcast_state(LIMITS).get(value.room)
                if limit is not None and value.degrees > limit:
                    yield value.sensor, value.degrees

            def process_broadcast_element(self, value, ctx):
                ctx.get_broadcast_state(LIMITS).put(value.room, value.limit)

        warm = timerheap.spark.process_broadcast(
            readings, limits, "sensor", TooWarm(), "sensor string, degrees double"
        )
    """
    rules = data_frame("rules", rules)
    arrow_schema("rules", rules.schema)
    query, rows = planned_query(
        sendable(function, KeyedBroadcastProcessFunction),
        df,
        key,
        output_schema,
        event_time,
        watermark=watermark,
        order=order,
        tie_break=tie_break,
        channel=channel,
        late=late,
        null_time=null_time,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        drop_state=drop_state,
        rename_state=rename_state,
        side_outputs=side_outputs,
        broadcast=rules.schema,
    )
    if rules.isStreaming != rows.isStreaming:
        kinds = ["a stream" if each.isStreaming else "a batch" for each in (rows, rules)]
        raise ValueError(f"rules must be {kinds[0]} like df, got {kinds[1]}")
    return build(query, rows, output_event_time=output_event_time, broadcast=rules)
