"""The parts of a query under test: sources, operators with their watermarks, and what these return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.types import StructField, StructType

from timerheap.errors import ArgumentValueError, CheckpointError
from timerheap.output_tag import OutputTag
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import FOLLOWED, LATE_ROWS, LETTERS, SIDE_OUTPUT, SIDES
from timerheap.spark._exchange.observed_times import merged, observed
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._plan.outputs import with_side_column
from timerheap.spark._plan.upstream import Upstream, strategy_behind
from timerheap.spark._query import Query
from timerheap.testing.process_tester import ProcessTester
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

_SOURCE = Upstream(sources=True)


class QueryRows:
    """Rows of a query under test, which its operators take in place of a DataFrame.

    Attributes
    ----------
    schema : pyspark.sql.types.StructType
        Their columns.
    """

    def __init__(
        self, query: object, schema: StructType, below: Upstream, behind: frozenset[OperatorRun]
    ) -> None:
        self.schema = schema
        self._of_query = query
        self._below = below
        self._behind = behind  # the operators whose watermarks these rows follow
        self._batch: list[Row] = []  # the rows of the micro-batch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.schema.simpleString()}>"


class QueryResults(QueryRows):
    """What a query under test computes: a test takes it, and further operators may process it."""

    def __init__(
        self,
        query: object,
        schema: StructType,
        below: Upstream,
        behind: frozenset[OperatorRun],
        computed: Callable[[], Iterable[Row]],
    ) -> None:
        super().__init__(query, schema, below, behind)
        self._computed = computed
        self._untaken: list[Row] = []

    def take(self) -> list[Row]:
        """Return the rows since the last call, in their order."""
        found, self._untaken = self._untaken, []
        return found

    def _run_batch(self) -> None:
        """Compute the rows of a micro-batch."""
        self._batch = list(self._computed())
        self._untaken += self._batch

    def _forget(self) -> None:
        self._batch, self._untaken = [], []


class QueryOperator(QueryResults):
    """An operator of a query under test, and its results.

    Attributes
    ----------
    tester : ProcessTester
        What runs the function, for its `timers()`, `state(name)`, `buffered_rows()`, counters and so on. Its
        rows and times come from the query.
    """

    tester: ProcessTester

    def __init__(self, query: object, run: OperatorRun) -> None:
        self.tester = run.tester
        below, behind = (Upstream(results=True), frozenset([run])) if run.leads else (_SOURCE, frozenset())
        super().__init__(query, self.tester._tested_query.result, below, behind, run.results)
        self._run = run
        self._sides: dict[str, QueryResults] = {}
        for name, type_ in run.side_types().items():
            follows = name != LATE_ROWS  # these are behind the watermark of the operator
            self._sides[name] = QueryResults(
                query,
                type_,
                below if follows else _SOURCE,
                behind if follows else frozenset(),
                partial(run.sent, name, type_),
            )

    @property
    def watermark(self) -> int:
        """The watermark of the operator, epoch ms."""
        return self.tester.watermark

    def side_output(self, tag: OutputTag) -> QueryResults:
        """Return a side output, as `timerheap.spark.side_output` does.

        Parameters
        ----------
        tag : OutputTag
            One of the function's. Values that are no rows are rows with the column ``value``.
        """
        name = getattr(tag, "tag_id", None)
        names = [each for each in self._sides if each not in (LATE_ROWS, LETTERS)]
        if name not in names:
            raise ArgumentValueError(f"tag must be one of the side outputs {names}, got {tag!r}")
        return self._sides[str(name)]

    def late_rows(self) -> QueryResults:
        """Return the late rows, with ``late="emit"``, as `timerheap.spark.late_rows` does."""
        if LATE_ROWS not in self._sides:
            raise ArgumentValueError('late must be "emit" for an operator that returns late rows')
        return self._sides[LATE_ROWS]

    def dead_letters(self) -> QueryResults:
        """Return the dead letters, with ``errors="emit"``, as `timerheap.spark.dead_letters` does."""
        if LETTERS not in self._sides:
            raise ArgumentValueError('errors must be "emit" for an operator that returns dead letters')
        return self._sides[LETTERS]


class OperatorRun:
    """Runs one operator, with the watermark that a query computes.

    inputs: its rows, by the names of the arguments
    rules: those for all keys, of a function that has any
    """

    def __init__(
        self, tester: ProcessTester, inputs: Mapping[str, QueryRows], rules: QueryRows | None
    ) -> None:
        self.tester = tester
        self.ahead: int | None = None  # the time of a row too far ahead of the clock, in the last micro-batch
        self._inputs = list(inputs.values())
        self._rules = rules
        query = tester._tested_query
        self.leads = query.has_watermark
        self._timed = query.event_time is not None
        checked = tester._inputs.checked
        self._strategies = tuple(one.strategy for one in checked)
        if self._timed:
            self._strategies = tuple(
                strategy_behind(rows._below, name, f"{one.prefix}watermark", one.strategy)
                for one, (name, rows) in zip(checked, inputs.items(), strict=True)
            )
        self._channels = [
            one.channel if strategy._is_own else None
            for one, strategy in zip(checked, self._strategies, strict=True)
        ]
        self._columns = tuple(
            channel if strategy._is_own else FOLLOWED
            for channel, strategy in zip(self._channels, self._strategies, strict=True)
        )
        delays = [each._follows for each in self._strategies if each._follows is not None]
        self._delay = max(delays, default=None)
        self._state = WatermarkState(self._strategies, self._columns)
        self._checked: dict[int, KeyedRows] = {}
        self._counts: dict[str, int] = {}  # how much of each side output has been returned
        self._moment: tuple[int, str, int | None] = (0, "", None)

    def side_types(self) -> dict[str, StructType]:
        """Return the types of the rows of side outputs, late rows and dead letters, by name."""
        query = self.tester._tested_query
        if not query.side_fields:
            return {}
        fields: Any = with_side_column(query)[SIDE_OUTPUT].dataType
        return {
            field.name: field.dataType
            if isinstance(field.dataType, StructType)
            else StructType([StructField("value", field.dataType)])
            for field in fields
        }

    def sent(self, name: str, type_: StructType) -> list[Row]:
        """Return what has been sent to a side output since the last call."""
        sent, count = self.tester._sent[name], self._counts.get(name, 0)
        self._counts[name] = len(sent)
        made = Row(*type_.names)
        return [value if isinstance(value, Row) else made(value) for value in sent[count:]]

    def begin(self, now: int, run: str, given: int | None) -> None:
        """Check the rows that sources have in a micro-batch, before any operator runs.

        now: the processing time, epoch ms
        run: the run of the query
        given: a watermark of the sources
        """
        self._checked = {}
        for number, rows in enumerate(self._inputs):
            if not isinstance(rows, QueryResults):
                hashed = self.tester._hashed(number, rows._batch)
                self._channel_names(number, hashed)
                self._checked[number] = hashed
        if self._rules is not None and not isinstance(self._rules, QueryResults):
            self.tester._expect_rules("rules").table(self._rules._batch)
        self._moment = now, run, given

    def results(self) -> list[Row]:
        """Run the micro-batch, and return the results."""
        now, run, given = self._moment
        tester = self.tester
        parts = [
            self._checked[number] if number in self._checked else tester._hashed(number, rows._batch)
            for number, rows in enumerate(self._inputs)
        ]
        clock = now if tester.has_clock else None
        watermark = self._watermark(parts, clock, run, given)
        tester._clock = clock
        broadcast = None
        if self._rules is not None and self._rules._batch:
            table = tester._expect_rules("rules").table(self._rules._batch)
            broadcast = pa.Table.from_batches([table])
        some = [part for part in parts if len(part)]
        rows = KeyedRows.concatenated(some) if some else None
        return tester._run(rows, watermark if watermark > tester.watermark else None, broadcast)

    def reached(self) -> int:
        """Return the watermark that results which follow are above."""
        mark = self.tester.watermark
        if mark == MAX_WATERMARK:
            return mark
        return max(mark - (self.tester.results_behind or 0), MIN_WATERMARK)

    def _watermark(self, parts: list[KeyedRows], now: int | None, run: str, given: int | None) -> int:
        """Return the watermark after these rows."""
        self.ahead = None
        if not self._timed:
            return MAX_WATERMARK if given == MAX_WATERMARK else self.tester.watermark
        state = self._state
        seen = [
            observed(
                len(part),
                part.timestamps,
                inputs=np.full(len(part), number, np.int8),
                channels=self._channel_names(number, part),
            )
            for number, part in enumerate(parts)
            if len(part) and self._strategies[number]._is_own
        ]
        limit = self._limit()
        state.observe(merged(seen), now, run, limit=limit)
        if state.ahead is not None:
            self.ahead = state.ahead[1]
        if given is not None and any(strategy._is_own for strategy in self._strategies):
            state.follow(given if limit is None else min(given, limit))
        return state.watermark

    def _limit(self) -> int | None:
        """Return the watermark that those of the operators before this one allow, None without any."""
        marks = [run.reached() for rows in self._inputs for run in rows._behind]
        if self._delay is None or not marks:
            return None
        mark = min(marks)
        return mark if mark == MAX_WATERMARK else max(mark - self._delay, MIN_WATERMARK)

    def _channel_names(self, number: int, rows: KeyedRows) -> pa.Array | None:
        name = self._channels[number]
        if name is None:
            return None
        column = rows.rows.column(name if len(self._inputs) == 1 else SIDES[number])
        if len(self._inputs) > 1:
            column = column.field(name)
        if column.null_count:
            raise ArgumentValueError(f"channel: a row has null in column {name!r}; give it a value")
        if pa.types.is_binary(column.type):
            return pa.array([value.hex().upper() for value in column.to_pylist()], pa.string())
        return pc.cast(column, pa.string())

    def snapshot(self) -> tuple[bytes, bytes]:
        """Return the state of the watermark, and that of the function."""
        return self._state.to_bytes(), self.tester.snapshot()

    def loaded(self, watermark: bytes, group: bytes) -> tuple[WatermarkState, tuple[Any, ...]]:
        """Return what `snapshot` has returned, for `resume`."""
        try:
            state = WatermarkState.from_bytes(watermark, self._strategies, self._columns)
        except CheckpointError as e:
            raise ArgumentValueError(f"snapshot must be what snapshot() has returned: {e}") from e
        return state, self.tester._loaded(group)

    def resume(self, state: WatermarkState, group: tuple[Query, KeyGroup, int | None]) -> None:
        """Go on from what `loaded` has returned."""
        self._state = state
        self.tester._resume(*group)
        self._counts = {name: len(sent) for name, sent in self.tester._sent.items()}


class WindowsTester(ProcessTester):
    """A tester of `timerheap.spark.window_operator`, whose windows themselves return late rows.

    late_row: their type, None if they return none
    """

    def __init__(self, *args: Any, late_row: StructType | None, **options: Any) -> None:
        self._late_row = late_row
        super().__init__(*args, **options)

    def _new_query(self) -> Query:
        query = super()._new_query()
        return query if self._late_row is None else replace(query, late_row=self._late_row)
