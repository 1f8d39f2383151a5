"""`QueryTester`: runs the operators of a whole query without Spark, micro-batch by micro-batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypedDict, Unpack

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from timerheap._arguments import instance, int64
from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import BatchProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.output_tag import OutputTag
from timerheap.spark._compat import to_rows
from timerheap.spark._functions.guarded.dead_letters import DeadLetters
from timerheap.spark._functions.side_tags import side_tags
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.inputs import RightInput
from timerheap.spark._plan.state_changes import IfStored
from timerheap.spark._plan.upstream import Upstream
from timerheap.spark._windows.window_operator import WindowedBy, checked_windows
from timerheap.testing.inputs import PushedRows, checked_input, columns_type
from timerheap.testing.process_tester import ProcessTester
from timerheap.testing.query_operator import (
    OperatorRun,
    QueryOperator,
    QueryResults,
    QueryRows,
    WindowsTester,
)
from timerheap.timer import MAX_WATERMARK, shown_time
from timerheap.watermarks import WatermarkStrategy
from timerheap.windows import ProcessWindowFunction, WindowAssigner, WindowFunction

_SNAPSHOT = pa.schema([("watermark", pa.binary()), ("group", pa.binary())])
_NOW = b"timerheap.now"
_log = logging.getLogger("timerheap")

Watermark = WatermarkStrategy | int | str | timedelta | None


class Options(TypedDict, total=False):
    """What the functions of `timerheap.spark` have in common, and `ProcessTester` describes."""

    order: str | None
    late: str | None
    processing_time: bool
    max_parallelism: int
    state_changes: Mapping[str, str | None] | IfStored | None
    side_outputs: Sequence[OutputTag] | None
    errors: str | DeadLetters


class QueryTester:
    """Runs the operators of a query without Spark: a test pushes rows to its sources, and moves the clock.

    A test builds the query with methods that are named like the functions of `timerheap.spark` and take the
    same arguments. Their rows are those of a `source`, or the results of an operator, also its side outputs,
    late rows and dead letters.

    Each call of `push`, `advance_clock`, `advance_watermark` and `finish` is one micro-batch, in which all
    operators run, each after those whose results it has. Watermarks are computed as on Spark: from rows, by
    the strategy and the channel of each input, from the clock, and an operator behind others follows theirs.
    Every operator runs on the code that runs it in a query, with all keys in one key group.

    Parameters
    ----------
    now : int, default 0
        The processing time at the beginning, epoch ms. Operators with ``processing_time=True``,
        ``with_idleness`` or ``with_wall_clock`` have it. If these also have event time, begin near the times
        of the rows: as on a stream, rows more than a day ahead of the clock do not advance the watermark.

    Examples
    --------
    >>> from timerheap import KeyedProcessFunction
    >>> class Reminder(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(value.at + 1000)
    ...
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    >>> query, schema = QueryTester(), "user string, at bigint"
    >>> visits = query.source(schema)
    >>> first = query.process(visits, "user", Reminder(), schema, "at", watermark="1 second")
    >>> second = query.process(first, "user", Reminder(), schema, "at")
    >>> query.push({visits: [("ann", 500), ("bob", 2_501)]})
    >>> first.take(), second.take()
    ([Row(user='ann', at=1500)], [])
    >>> query.advance_watermark(2_500)
    >>> second.take()
    [Row(user='ann', at=2500)]
    """

    def __init__(self, *, now: int = 0) -> None:
        self._now = int64("now", now)
        self._sources: list[QueryRows] = []
        self._derived: list[QueryResults] = []  # in an order in which each is behind what it is made of
        self._operators: list[QueryOperator] = []
        self._run = 0  # the number of restores
        self._begun = self._failed = False

    def source(self, schema: str | StructType) -> QueryRows:
        """Add a source.

        Parameters
        ----------
        schema : str or pyspark.sql.types.StructType
            Its columns, for instance "sensor string, at bigint".

        Returns
        -------
        QueryRows
            What functions of the query take in place of a DataFrame, and `push` takes rows for.
        """
        self._expect_no_rows()
        source = QueryRows(self, columns_type("schema", schema), Upstream(sources=True), frozenset())
        self._sources.append(source)
        return source

    def process(
        self,
        rows: QueryRows,
        key: str | Sequence[str],
        function: KeyedProcessFunction | BatchProcessFunction,
        output_schema: str | StructType,
        event_time: str | EventTime | None = None,
        *,
        watermark: Watermark = None,
        **options: Unpack[Options],
    ) -> QueryOperator:
        """Add a process function, as `timerheap.spark.process` does.

        Parameters
        ----------
        rows : QueryRows
            A source, or results.
        key, function, output_schema, event_time, watermark
            As in `timerheap.spark.process`; columns are named, not computed. Without `watermark`, that of a
            source follows its rows without a delay.
        **options
            `order`, `late`, `processing_time`, `max_parallelism`, `state_changes`, `side_outputs` and
            `errors`, as in `ProcessTester`.

        Returns
        -------
        QueryOperator
            Its results.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If an argument is wrong, also of `process_two` and the others.
        """
        instance("function", function, KeyedProcessFunction, BatchProcessFunction)
        return self._with_operator(
            {"rows": rows}, [watermark], function, key, output_schema, event_time, **options
        )

    def process_two(
        self,
        left: QueryRows,
        right: QueryRows | RightInput,
        key: str | Sequence[str],
        function: KeyedCoProcessFunction,
        output_schema: str | StructType,
        event_time: str | EventTime | None = None,
        *,
        watermark: Watermark = None,
        **options: Unpack[Options],
    ) -> QueryOperator:
        """Add a function of two inputs, or an `IntervalJoin`, as `timerheap.spark.process_two` does.

        Parameters
        ----------
        left : QueryRows
        right : QueryRows or RightInput
            A RightInput has QueryRows, with what differs from the left.
        key, function, output_schema, event_time, watermark
            As in `timerheap.spark.process_two`.
        **options
            As in `process`.
        """
        instance("function", function, KeyedCoProcessFunction)
        other = right if isinstance(right, RightInput) else RightInput(right)
        inputs = {"left": left, "right": other.rows}
        self._expect_rows(inputs)
        if other.watermark is None:  # results do not wait for what the rows of a source wait for
            follows = not other.rows._below.sources
            own = WatermarkStrategy.for_monotonous_timestamps() if follows else watermark
            other = replace(other, watermark=own)
        return self._with_operator(
            inputs,
            [watermark, other.watermark],
            function,
            key,
            output_schema,
            event_time,
            right_schema=replace(other, rows=other.rows.schema),
            **options,
        )

    def process_broadcast(
        self,
        rows: QueryRows,
        rules: QueryRows,
        key: str | Sequence[str],
        function: KeyedBroadcastProcessFunction,
        output_schema: str | StructType,
        event_time: str | EventTime | None = None,
        *,
        watermark: Watermark = None,
        **options: Unpack[Options],
    ) -> QueryOperator:
        """Add a function with rules for all keys, as `timerheap.spark.process_broadcast` does.

        Parameters
        ----------
        rows, rules : QueryRows
            The rules of a micro-batch are processed before its rows.
        key, function, output_schema, event_time, watermark
            As in `timerheap.spark.process_broadcast`.
        **options
            As in `process`.
        """
        instance("function", function, KeyedBroadcastProcessFunction)
        self._expect_rows({"rows": rows, "rules": rules})
        return self._with_operator(
            {"rows": rows},
            [watermark],
            function,
            key,
            output_schema,
            event_time,
            rules=rules,
            rules_schema=rules.schema,
            **options,
        )

    def window_operator(
        self,
        rows: QueryRows,
        key: str | Sequence[str],
        assigner: WindowAssigner | WindowedBy,
        function: Any,
        output_schema: str | StructType,
        event_time: str | EventTime | None = None,
        *,
        window_function: ProcessWindowFunction | WindowFunction | None = None,
        accumulator_type: object = None,
        watermark: Watermark = None,
        late: str = "drop",
        order: str = "arrival",
        processing_time: bool = False,
        max_parallelism: int = 16,
        side_outputs: Sequence[OutputTag] | None = None,
    ) -> QueryOperator:
        """Add Flink's windows, as `timerheap.spark.window_operator` does.

        Parameters
        ----------
        rows : QueryRows
        key, assigner, function, output_schema, event_time, window_function, accumulator_type
            As in `timerheap.spark.window_operator`.
        watermark, late, order, processing_time, max_parallelism, side_outputs
            The same.
        """
        self._expect_rows({"rows": rows})
        source, _ = checked_input("rows", rows.schema, key, event_time, watermark, order)
        windows = checked_windows(
            source,
            assigner if isinstance(assigner, WindowedBy) else WindowedBy(assigner),
            function,
            columns_type("output_schema", output_schema),
            window_function=window_function,
            accumulator_type=accumulator_type,
            late=late,
            order=order,
            processing_time=processing_time,
        )
        return self._with_operator(
            {"rows": rows},
            [watermark],
            windows.hosted,
            key,
            windows.result,
            event_time,
            tester=partial(WindowsTester, late_row=windows.late_row),
            order=order,
            late=windows.late,
            processing_time=processing_time,
            max_parallelism=max_parallelism,
            side_outputs=side_tags(side_outputs, windows.function, window_function),
        )

    def flat_map(
        self, rows: QueryRows, function: Callable[[Row], Iterable[Any]], output_schema: str | StructType
    ) -> QueryResults:
        """Add a step without state, in place of Spark's ``where``, ``select`` and ``withColumn``.

        Parameters
        ----------
        rows : QueryRows
        function : callable
            Returns the results for a row: dicts, tuples or Rows.
        output_schema : str or pyspark.sql.types.StructType
            Their columns.

        Returns
        -------
        QueryResults
            What operators behind it follow as they follow `rows`.

        Examples
        --------
        >>> query = QueryTester()
        >>> readings = query.source("sensor string, at bigint, value double")
        >>> high = query.flat_map(readings, lambda row: [row] if row.value > 30 else [], readings.schema)
        >>> query.push({readings: [("a", 0, 31.0), ("b", 1, 20.0)]})
        >>> high.take()
        [Row(sensor='a', at=0, value=31.0)]
        """
        self._expect_rows({"rows": rows})
        if not callable(function):
            raise ArgumentTypeError(f"function must be callable with a row, got {function!r}")
        pushed = PushedRows(columns_type("output_schema", output_schema), [], None)

        def computed() -> list[Row]:
            found = [each for row in rows._batch for each in function(row)]
            return to_rows(pa.Table.from_batches([pushed.table(found)]), pushed.type)

        return self._with_results(QueryResults(self, pushed.type, rows._below, rows._behind, computed))

    def union(self, *parts: QueryRows) -> QueryResults:
        """Add a union by position, as Spark's ``union`` is.

        Parameters
        ----------
        *parts : QueryRows
            Two or more, with columns of the same types.
        """
        self._expect_rows({f"parts[{number}]": part for number, part in enumerate(parts)})
        types = [[field.dataType for field in part.schema] for part in parts]
        if len(parts) < 2 or any(each != types[0] for each in types):
            shown = [part.schema.simpleString() for part in parts]
            raise ArgumentValueError(f"parts must be two or more with columns of the same types, got {shown}")
        names, below, behind = parts[0].schema.names, Upstream(), frozenset[OperatorRun]()
        for part in parts:
            below, behind = below | part._below, behind | part._behind

        def computed() -> list[Row]:
            made = Row(*names)
            return [made(*row) for part in parts for row in part._batch]

        return self._with_results(QueryResults(self, parts[0].schema, below, behind, computed))

    def push(self, rows: Mapping[QueryRows, object] | None = None) -> None:
        """Run a micro-batch with rows of some sources, at the present time.

        Parameters
        ----------
        rows : dict of QueryRows to rows, optional
            Rows by their source, each as in `ProcessTester.push`. Without rows, the clock alone may advance
            watermarks.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If a row does not fit its source; then none is processed.
        """
        given = {} if rows is None else rows
        instance("rows", given, Mapping)
        for source in given:
            if not any(source is each for each in self._sources):
                raise ArgumentValueError(f"rows must be by sources of this query, got {source!r}")
        found = {
            source: PushedRows(source.schema, [], None).table(pushed) for source, pushed in given.items()
        }
        self._micro_batch(found)

    def advance_clock(self, now: int) -> None:
        """Advance the processing time, in a micro-batch without rows.

        Timers of processing time fire that it passes. Channels that have been silent become idle, or follow
        the clock, as their strategies say.

        Parameters
        ----------
        now : int
            Epoch ms, at least the present time.
        """
        now = int64("now", now)
        if now < self._now:
            raise ArgumentValueError(f"now must be at least the present time, {self._now}, got {now}")
        self._expect_not_failed("before a micro-batch")
        self._now = now
        self._micro_batch({})

    def advance_watermark(self, timestamp: int) -> None:
        """Advance the watermark of all sources, whatever their strategies say; operators behind follow.

        Parameters
        ----------
        timestamp : int
            Epoch ms. Where a watermark is further already, it stays.
        """
        self._micro_batch({}, int64("timestamp", timestamp))

    def finish(self) -> None:
        """Advance all watermarks to the end of the input, as the end of a batch DataFrame does."""
        self._micro_batch({}, MAX_WATERMARK)

    @property
    def now(self) -> int:
        """The processing time, epoch ms."""
        return self._now

    def snapshot(self) -> bytes:
        """Return everything that the checkpoint of the query would hold, and the clock."""
        self._expect_not_failed("before a snapshot")
        rows = [each._run.snapshot() for each in self._operators]
        schema = _SNAPSHOT.with_metadata({_NOW: str(self._now).encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            columns = list(zip(*rows, strict=True)) or [(), ()]
            writer.write_batch(pa.record_batch([pa.array(each, pa.binary()) for each in columns], schema))
        return bytes(sink.getvalue())

    def restore(self, snapshot: bytes) -> None:
        """Go on from a snapshot with new copies of the functions, as a query does after a restart.

        The snapshot may be that of another tester whose operators are the same, in the same order, with other
        code or other states. Results that have not been taken are forgotten, and the time without rows of
        silent channels begins again.

        Raises
        ------
        ArgumentValueError
            If these are other bytes, or do not fit the query; the tester is not changed then.
        """
        try:
            stream = pa.ipc.open_stream(snapshot)
            now = int((stream.schema.metadata or {})[_NOW])
            batch = stream.read_next_batch().select(_SNAPSHOT.names)
            batch.validate(full=True)
        except (KeyError, TypeError, ValueError, pa.ArrowException, OSError, StopIteration) as e:
            raise ArgumentValueError(f"snapshot must be what snapshot() has returned: {e}") from e
        if batch.num_rows != len(self._operators):
            raise ArgumentValueError(
                f"snapshot must be that of a query with {len(self._operators)} operators, got one of "
                f"{batch.num_rows}"
            )
        pairs = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        loaded = [each._run.loaded(*pair) for each, pair in zip(self._operators, pairs, strict=True)]
        for operator, each in zip(self._operators, loaded, strict=True):
            operator._run.resume(*each)
        for results in self._derived:
            results._forget()
        self._now, self._begun, self._failed = now, True, False
        self._run += 1

    def close(self) -> None:
        """Close the functions."""
        for operator in self._operators:
            operator.tester.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _with_operator(
        self,
        inputs: Mapping[str, QueryRows],
        watermarks: Sequence[Watermark],
        function: Any,
        key: Any,
        output_schema: Any,
        event_time: Any,
        *,
        rules: QueryRows | None = None,
        tester: Callable[..., ProcessTester] = ProcessTester,
        **options: Any,
    ) -> QueryOperator:
        self._expect_no_rows()
        self._expect_rows(inputs)
        first, *_ = inputs.values()
        clocked = options.pop("processing_time", False) or any(
            isinstance(one, WatermarkStrategy)
            and (one.idle_timeout, one.wall_clock) != (None, None)
            and rows._below.sources
            for rows, one in zip(inputs.values(), watermarks, strict=True)
        )
        tested = tester(
            function,
            key,
            first.schema,
            output_schema,
            event_time,
            watermark=watermarks[0],
            processing_time=clocked,
            **options,
        )
        operator = QueryOperator(self, OperatorRun(tested, inputs, rules))
        self._operators.append(operator)
        self._derived += [operator, *operator._sides.values()]
        return operator

    def _with_results(self, results: QueryResults) -> QueryResults:
        """Add what is computed from rows that come before it."""
        self._expect_no_rows()
        self._derived.append(results)
        return results

    def _expect_rows(self, inputs: Mapping[str, object]) -> None:
        for name, rows in inputs.items():
            if not isinstance(rows, QueryRows):
                raise ArgumentTypeError(
                    f"{name} must be a source or results of this query, got {rows!r}; "
                    "query.source(schema) makes a source"
                )
            if rows._of_query is not self:
                raise ArgumentValueError(f"{name} must be rows of this query, got those of a different one")

    def _expect_no_rows(self) -> None:
        if self._begun:
            raise RuntimeError("a query must be whole before its first micro-batch; add operators before")

    def _expect_not_failed(self, when: str) -> None:
        if self._failed:
            raise RuntimeError(f"no function must have failed {when}; restore() a snapshot, or begin anew")

    def _micro_batch(self, pushed: Mapping[QueryRows, pa.RecordBatch], given: int | None = None) -> None:
        """Run all operators once; `given` is a watermark of the sources."""
        self._expect_not_failed("before a micro-batch")
        before = [source._batch for source in self._sources]
        try:
            for source in self._sources:
                found = pushed.get(source)
                table = None if found is None else pa.Table.from_batches([found])
                source._batch = [] if table is None else to_rows(table, source.schema)
            for operator in self._operators:
                operator._run.begin(self._now, f"run {self._run}", given)
        except ArgumentValueError:
            for source, rows in zip(self._sources, before, strict=True):
                source._batch = rows
            raise
        self._begun = self._failed = True
        for results in self._derived:
            results._run_batch()
        self._failed = False
        for operator in self._operators:
            if operator._run.ahead is not None:
                _log.warning(
                    "a row at %s is more than a day ahead of the clock, %s, and does not advance the "
                    "watermark; begin near the times of the rows: QueryTester(now=...)",
                    shown_time(operator._run.ahead),
                    shown_time(self._now),
                )
