"""`process`, `process_two` and `process_broadcast`: Flink's process functions on Spark DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, StructField, StructType

from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.errors import ArgumentValueError
from timerheap.functions import BatchProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.interval_join import IntervalJoin
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import INPUT, KEPT, KEY, SIDES, TIME, computed_name, shown_name
from timerheap.spark._flows import in_flows
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._functions.guarded.dead_letters import DeadLetters, guard_of
from timerheap.spark._functions.guarded.letter_columns import letters_tag, with_letters
from timerheap.spark._functions.sendable import sendable
from timerheap.spark._functions.side_tags import side_tags
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import marked
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.inputs import Input, RightInput, two_inputs
from timerheap.spark._plan.named_columns import ColumnOrName, data_frame, quoted, ungrouped
from timerheap.spark._plan.schemas import arrow_schema, parsed_schema
from timerheap.spark._plan.state_changes import IfStored, changed_states
from timerheap.spark._query import Query
from timerheap.spark._state.initial_contents import start_of
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._state.read_checkpoint import CheckpointState
from timerheap.watermarks import WatermarkStrategy


@in_flows
def process(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedProcessFunction | BatchProcessFunction | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | EventTime | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    order: str | None = None,
    late: str | None = None,
    processing_time: bool = False,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    initial_state: CheckpointState | InitialState | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
    errors: str | DeadLetters = "raise",
    name: str | None = None,
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
        so that errors in its states are raised here.
    output_schema : str or pyspark.sql.types.StructType
        Schema of the result.
    event_time : str, Column or EventTime, optional
        Event-time column or expression: a timestamp (cut to ms), or a bigint of epoch ms. By default, the
        column of a stream that Spark's ``withWatermark`` names. Without one the watermark does not advance
        until the end of a batch DataFrame, unless `watermark` has a timestamp assigner. An `EventTime` also
        says which column has a watermark for each of its values, what orders rows of one time, and what
        becomes of rows without one.
    watermark : WatermarkStrategy, int, str or timedelta, optional
        Required with `event_time`, unless ``withWatermark`` names the column: its delay is the
        default. "5 seconds", or 5000, is ``WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")``. The
        result of another operator has the watermark of that operator by default, and a delay is a distance
        from it. A strategy with
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
        Rows of one key and timestamp are in the order of ``EventTime.tie_break``, not of their arrival.
        Results then depend on the data alone, not on micro-batches and partitions, if no row is late.
        Rows wait in state until the watermark passes them. A row behind the watermark is late; which rows are
        depends on micro-batches. "arrival", the default without `event_time`: rows are processed as they
        arrive. Within a micro-batch all rows are processed before the watermark advances, so a row may reach
        the function before a timer that is due earlier.
    late : {"drop", "emit"}, optional
        What becomes of rows behind the watermark. "emit": `timerheap.spark.late_rows` returns them. "drop":
        they are counted, and the driver logs the number once a minute. By default they are dropped with
        ``order="event_time"``, and reach the function with ``order="arrival"``, as in Flink. The guide to
        event-time order has a table of the defaults of all operators.
    processing_time : bool
        Whether there are processing-time timers. "Now" is the time of the micro-batch, so that a repeated
        attempt sees the same time. Spark then runs a micro-batch at every trigger, even without rows, once
        the first has run: `timerheap.spark.start` does not wait for it. For a run that ends, use
        `timerheap.spark.run_available_now` in place of ``availableNow``.
    max_parallelism : int, optional
        Number of key groups, 1 to 32768: the most tasks that can share the keys. A checkpoint keeps it. By
        default it is the smallest multiple of ``spark.sql.shuffle.partitions`` that is 4 or more, and that
        number itself behind `in_real_time`.
    state_changes : dict of str to str or None, or IfStored, optional
        The new names of states in the checkpoint by their old names, and None for those that the function no
        longer has, such as ``{"count": "rows", "seen": None}``; also of fields of their row types, such as
        ``{"last.note": "last.text"}``. A dropped state then keeps no key alive. To drop one that the function
        still uses is an error, and so is a name that neither the checkpoint nor the function has: put
        `IfStored` around the dict if it stays for later runs. A state that is neither used in ``open`` nor
        named here stays, and the driver logs a warning.
    initial_state : CheckpointState or InitialState, optional
        State to start from, on a stream with a new checkpoint: that of another query, as
        `timerheap.spark.read_checkpoint` returns it, or tables of states, timers, rows and watermarks.
        `max_parallelism` may differ.
    side_outputs : list of OutputTag, optional
        The side outputs of the function, which `timerheap.spark.side_output` returns. By default those tags
        that are attributes of the function, and globals and closures of its methods.
    errors : {"raise", "emit"} or DeadLetters, default "raise"
        What becomes of a row or timer for which the function raises an exception. "raise": the query fails.
        "emit": what the call has done is undone, `timerheap.spark.dead_letters` returns the row or timer
        with its error, and the others go on; a `DeadLetters` also says how many errors end the query.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
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
    checked = sendable(function, KeyedProcessFunction, BatchProcessFunction)
    given = df, key, output_schema, event_time, watermark
    query, rows = planned(
        checked,
        *given,
        order=order,
        late=late,
        errors=errors,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        state_changes=state_changes,
        side_outputs=side_tags(side_outputs, checked),
        name=name,
    )
    return build(query, rows, start=start_of(initial_state, rows))


def planned(
    function: object,
    df: object,
    key: object,
    output_schema: object,
    event_time: object,
    watermark: object,
    *,
    order: object,
    late: object,
    errors: object = None,
    side_outputs: tuple[OutputTag, ...] = (),
    state_changes: object = None,
    broadcast: StructType | None = None,
    **fields: Any,
) -> tuple[Query, DataFrame]:
    """Return the query that runs a checked function on one input, and the rows with their marks."""
    rows, grouping = ungrouped("df", df, "key", key)
    source = Input.checked(Columns("df", rows), grouping, event_time, watermark, order=order, late=late)
    guard = guard_of(errors)
    tag = None if guard is None else letters_tag(source, broadcast=broadcast)
    query = query_of(
        work_of(function, guard),
        parsed_schema(output_schema),
        source,
        order=order,
        late=late,
        state_changes=changed_states(state_changes),
        side_outputs=with_letters(side_outputs, tag),
        broadcast=broadcast,
        **fields,
    )
    return query, marked(source)


@in_flows
def process_two(
    left: DataFrame | GroupedData,
    right: DataFrame | GroupedData | RightInput,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedCoProcessFunction | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | EventTime | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    order: str | None = None,
    late: str | None = None,
    processing_time: bool = False,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    initial_state: CheckpointState | InitialState | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
    errors: str | DeadLetters = "raise",
    name: str | None = None,
) -> DataFrame:
    """Run a two-input process function on two streaming, or two batch, DataFrames.

    Rows of both inputs that have the same key share the function's timers and state. Each input has its own
    watermark. Event time is the lower of the two, so that no row is late because the other input is ahead.

    Parameters
    ----------
    left : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        Its rows are passed to ``process_element1``. ``left.groupBy("a")`` names the key columns, too.
    right : pyspark.sql.DataFrame, pyspark.sql.GroupedData or RightInput
        Its rows are passed to ``process_element2``. A `RightInput` names its key columns, its event time and
        its watermark, if they are other than those of `left`.
    key : str, Column, or list of them
        Key columns of `left`, and by default of `right`. Null is a key, too. An expression may be a key, as
        in `process`.
    function : KeyedCoProcessFunction
    output_schema : str or pyspark.sql.types.StructType
    event_time, watermark : optional
        As in `process`, for `left`. By default `right` has the same, without the channel, or those of its
        ``withWatermark`` if both are left out; the result of another operator has the watermark of that
        operator by default. At one timestamp ``EventTime.tie_break`` orders the rows of
        both inputs, of which those of `left` come first by default. To have `right` first, give `left`
        ``tie_break=F.lit(1)`` and `right` ``tie_break=F.lit(0)``.
    order : {"event_time", "arrival"}, optional
        As in `process`, over the rows of both inputs. The default is "event_time", except for an
        `IntervalJoin`, which finds the same pairs in any order: with "arrival" it emits each pair when its
        second row arrives, and passes late rows to ``late_left`` and ``late_right``.
    processing_time, max_parallelism, state_changes : optional
        As in `process`.
    initial_state, side_outputs : optional
        As in `process`.
    late : {"drop", "emit"}, optional
        As in `process`; late rows have the columns ``left`` and ``right``, one of which is null.
    errors : {"raise", "emit"} or DeadLetters, default "raise"
        As in `process`; so has the column ``input`` of dead letters.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `process`, and if the two inputs do not match.

    Notes
    -----
    The semantics are those of Flink's ``KeyedCoProcessOperator``: each input has a watermark, and the lower
    one counts. An input without new rows holds back event time; with ``watermark.with_idleness(...)`` event
    time advances without it, and with ``watermark.with_wall_clock(...)`` it follows the clock.
    """
    function = sendable(function, KeyedCoProcessFunction)
    if order is None and isinstance(function, IntervalJoin):
        order = "arrival"
    one, two = two_inputs(left, right, key, event_time, watermark, order=order, late=late)
    one.expect_to_match(two)
    columns = columns_of_two(one, two)
    both = tagged(0, one, two, columns["rows"]).unionAll(tagged(1, two, one, columns["rows"]))
    guard = guard_of(errors)
    tag = None if guard is None else letters_tag(one, columns["late_row"])
    query = query_of(
        work_of(function, guard),
        parsed_schema(output_schema),
        one,
        two,
        order=order,
        late=late,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        **columns,
        state_changes=changed_states(state_changes),
        side_outputs=with_letters(side_tags(side_outputs, function), tag),
        name=name,
    )
    return build(query, both, start=start_of(initial_state, both))


def columns_of_two(one: Input, two: Input) -> dict[str, Any]:
    """Return the columns that rows of both inputs have, as fields of a `Query`."""
    # The rows have the key, the event time, the ties, the number of their input, and a struct for each input.
    times = [one.event_time] if one.event_time is not None else []
    keys = [f"{KEY}{number}" for number in range(len(one.key))]
    ties = tuple(computed_name(number, shown_name(name)) for number, name in enumerate(one.ties))
    types = [one.df.schema[name].dataType for name in (*one.key, *times, *one.ties)]
    names = [*keys, *([TIME] if times else []), *ties, INPUT, *SIDES]
    fields = map(StructField, names, [*types, ByteType(), one.rows, two.rows])
    return {
        "key": keys,
        "rows": StructType(list(fields)),
        "event_time": TIME if times else None,
        "times": (one.time_column(), two.time_column()) if times else (),
        "ties": ties,
        "late_row": StructType([StructField("left", one.rows), StructField("right", two.rows)]),
        "late_columns": SIDES,
    }


def tagged(number: int, side: Input, other: Input, rows: StructType, kept: Column | None = None) -> DataFrame:
    """Return the rows of a side in the columns `rows` of both; the struct of the other side is null.

    kept: false in rows that only advance the watermark
    """
    marks = marked(side, other)
    times = [] if side.event_time is None else [side.event_time]
    row, none = F.struct(*map(quoted, side.rows.names)), F.lit(None).cast(other.rows)
    structs = (none, row) if number else (row, none)
    own = [*map(quoted, (*side.key, *times, *side.ties)), F.lit(number).cast("tinyint"), *structs]
    columns = [column.alias(name) for column, name in zip(own, rows.names, strict=True)]
    others = [quoted(name) for name in marks.columns[len(side.df.columns) :]]
    return marks.select(*columns, *others, *([] if kept is None else [kept.alias(KEPT)]))


@in_flows
def process_broadcast(
    df: DataFrame | GroupedData,
    rules: DataFrame,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedBroadcastProcessFunction | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | EventTime | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    order: str | None = None,
    late: str | None = None,
    processing_time: bool = False,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
    errors: str | DeadLetters = "raise",
    name: str | None = None,
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
    watermark, order, late, processing_time, max_parallelism : optional
        As in `process`, of `df`. `rules` have no event time and do not hold back the watermark.
    state_changes, side_outputs : optional
        As in `process`. The state of a descriptor "limits" is called "broadcast:limits" in a checkpoint.
    errors : {"raise", "emit"} or DeadLetters, default "raise"
        As in `process`. A row of `rules` that raises is a dead letter of each key group where it does, in the
        column ``broadcast``.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `process`, and if `rules` is not a stream like `df`, or a batch DataFrame like it.

    Notes
    -----
    Flink: ``CoBroadcastWithKeyedOperator``. As there, the order between the two sides is not defined: the
    rules of a micro-batch are processed before its rows and timers, and a batch DataFrame has all rules
    first. Behind `in_real_time`, each step of a few ms has its rules first. Rules of one partition of `rules`
    keep their order.

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
    checked = sendable(function, KeyedBroadcastProcessFunction)
    given = df, key, output_schema, event_time, watermark
    query, rows = planned(
        checked,
        *given,
        order=order,
        late=late,
        errors=errors,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        state_changes=state_changes,
        side_outputs=side_tags(side_outputs, checked),
        name=name,
        broadcast=rules.schema,
    )
    if rules.isStreaming != rows.isStreaming:
        kinds = ["a stream" if each.isStreaming else "a batch" for each in (rows, rules)]
        raise ArgumentValueError(f"rules must be {kinds[0]} like df, got {kinds[1]}")
    return build(query, rows, broadcast=rules)
