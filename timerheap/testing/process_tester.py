"""`ProcessTester`: runs a process function row by row, with its time in the hands of a test.

A snapshot has the chunks of a checkpoint in one Arrow stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, Self, cast, get_args

import numpy as np
import pyarrow as pa
from pyspark.cloudpickle import dumps, loads
from pyspark.sql import Row
from pyspark.sql.types import StructType

from timerheap._arguments import instance, int64
from timerheap._native._core import row_order as time_order
from timerheap._values import ArrowTypes
from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.errors import ArgumentValueError
from timerheap.functions import KeyedCoProcessFunction
from timerheap.interval_join import IntervalJoin
from timerheap.metrics import DistributionResult, Metrics
from timerheap.output_tag import OutputTag
from timerheap.spark._arrow import KeyedRows, event_times, narrow_column
from timerheap.spark._columns import LATE_ROWS, LETTERS, SIDE_OUTPUT
from timerheap.spark._compat import to_rows
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._functions.guarded.dead_letters import DeadLetters, guard_of
from timerheap.spark._functions.sendable import sendable
from timerheap.spark._functions.side_tags import side_tags
from timerheap.spark._group import saving
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import content_order
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.state_names import BROADCAST_STATE, expect_stored
from timerheap.spark._group.stored.chunk_store import Chunks
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.user_states import UserState
from timerheap.spark._plan.assemble import key_groups
from timerheap.spark._plan.event_time import EventTime, assigns_time
from timerheap.spark._plan.inputs import RightInput
from timerheap.spark._plan.outputs import with_side_column
from timerheap.spark._plan.schemas import arrow_schema
from timerheap.spark._plan.state_changes import IfStored, changed_states, with_expected
from timerheap.spark._python_rows import python_values
from timerheap.spark._query import Query
from timerheap.spark._row_objects import row_source
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch, Runner
from timerheap.spark._worker.work import Rehearsal
from timerheap.testing.inputs import Function, Inputs, PushedRows, checked_input, columns_type
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK
from timerheap.watermarks import WatermarkStrategy

_SCHEMA = pa.schema([("kind", pa.int16()), ("id", pa.int32()), ("data", pa.binary())])
_CLOCK = b"timerheap.now"
_log = logging.getLogger("timerheap")


class PendingTimer(NamedTuple):
    """A timer that has not fired.

    Parameters
    ----------
    key : object
        As ``ctx.get_current_key()`` returns it: a value, or a Row of several key columns.
    timestamp : int
        Epoch ms.
    name : str or None, default None
    time_domain : TimeDomain
    """

    key: Any
    timestamp: int
    name: str | None = None
    time_domain: TimeDomain = TimeDomain.EVENT_TIME


def _contents(table: UserState) -> tuple[np.ndarray, list[Any]]:
    """Return the ids of the keys that have a state, and their contents as its handle returns them."""
    ids = np.sort(table.ids())
    contents = python_values(narrow_column(table.get_many(ids), table.type))
    return ids, list(map(_decoder(table.type, table.shape), contents))


def _decoder(type_: pa.DataType, shape: str) -> Callable[[Any], Any]:
    """Return the function that makes what a handle returns of Arrow's contents of a key."""
    types = ArrowTypes(Row, Row)
    if shape == "map":
        key, value = (types.codec(each, "").decode for each in (type_.key_type, type_.item_type))
        return lambda pairs: {key(k): value(v) for k, v in pairs}
    if shape == "list":
        element = types.codec(type_.value_type, "").decode
        return lambda elements: list(map(element, elements))
    return types.codec(type_, "").decode


def save_group(group: KeyGroup, max_parallelism: int, now: int | None) -> bytes:
    """Return a key group as bytes, which `load_group` reads."""
    store = Chunks()
    stored = Stored(Manifest(max_parallelism))
    stored.save(store, group, b"", whole=True)
    rows = [{"kind": kind, "id": id_, "data": data} for (kind, id_), data in sorted(store.items())]
    schema = _SCHEMA.with_metadata({_CLOCK: b"" if now is None else str(now).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
    return bytes(sink.getvalue())


def load_group(query: Query, max_parallelism: int, data: bytes) -> tuple[KeyGroup, int | None]:
    """Return the key group of a query and the time that `save_group` has written."""
    try:
        stream = pa.ipc.open_stream(data)
        now = (stream.schema.metadata or {}).get(_CLOCK)
        if now is None or stream.schema.remove_metadata() != _SCHEMA:
            raise ValueError("got another Arrow stream")
        batch = stream.read_next_batch()
        batch.validate(full=True)
    except (ValueError, pa.ArrowException, OSError, StopIteration) as e:
        raise ArgumentValueError(f"snapshot must be what snapshot() has returned: {e}") from e
    store = Chunks(((row["kind"], row["id"]), row["data"]) for row in batch.to_pylist())
    manifest = store.read_manifest()
    if manifest is None:
        raise ArgumentValueError("snapshot must be what snapshot() has returned, got one without a manifest")
    manifest.check(max_parallelism)
    expect_stored(query.layout, store, manifest)
    group, _ = saving.loaded_group(store, manifest, query.layout)
    return group, int(now) if now else None


class ProcessTester:
    """Runs a process function without Spark: a test pushes rows and advances the watermark and the clock.

    The function runs on the code that runs it in `timerheap.spark.process`, `process_two` and
    `process_broadcast`, with all keys in one key group, and the types of rows, states and results are checked
    as there. What runs is a copy of the function, as on Spark, which pickles it to its workers.

    Parameters
    ----------
    function : KeyedProcessFunction or another process function
        The others are BatchProcessFunction, KeyedCoProcessFunction and KeyedBroadcastProcessFunction.
    key : str or list of str
        Key columns.
    input_schema : str or pyspark.sql.types.StructType
        The columns of the rows, for instance "plane string, at bigint"; of two inputs, those of the left.
    output_schema : str or pyspark.sql.types.StructType
        The columns of the results.
    event_time : str or EventTime, optional
        Event-time column, a timestamp or a bigint of epoch ms. Without ``EventTime.tie_break``, rows of one
        key and timestamp come in the order of all columns, as on Spark, and not in the order in which they
        are pushed; if that differs, the tester logs it once.
    right_schema : str, StructType or RightInput, optional
        The columns of the right input of a KeyedCoProcessFunction; by default those of the left.
    rules_schema : str or pyspark.sql.types.StructType, optional
        The columns of the broadcast rows of a KeyedBroadcastProcessFunction.
    watermark : WatermarkStrategy, int, str or timedelta, optional
        As in `timerheap.spark.process`, for its timestamp assigner: without `event_time` this computes the
        event time of each row. Nothing else of it is used, since the test itself advances the watermark.
    order : {"event_time", "arrival"}, optional
        As in `timerheap.spark.process`.
    late : {"drop", "emit"}, optional
        What becomes of rows behind the watermark, as in `timerheap.spark.process`; `late_rows` returns them.
    processing_time : bool
        Whether there is a clock, which then starts at 0. Without one the test is like a batch DataFrame:
        there are no processing-time timers, and a time to live of processing time never ends. A stream
        refuses a function with such a state unless it has `processing_time`, too.
    max_parallelism : int
        The number of key groups, which the function can ask for.
    state_changes : dict of str to str or None, or IfStored, optional
        The new names of states, or of fields, in a restored snapshot by their old names; None drops one. As
        in `timerheap.spark.process`, with `timerheap.spark.IfStored` around them if they stay.
    side_outputs : list of OutputTag, optional
        The side outputs of the function, as in `timerheap.spark.process`.
    errors : {"raise", "emit"} or DeadLetters, default "raise"
        What becomes of rows and timers for which the function raises an exception, as in
        `timerheap.spark.process`; `dead_letters` returns them. Each push and each advance is a micro-batch.

    Attributes
    ----------
    function
        The copy that runs. `restore` opens a new one.

    Examples
    --------
    >>> from timerheap import KeyedProcessFunction
    >>> class Reminder(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(value.at + 1000)
    ...
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    >>> tester = ProcessTester(Reminder(), "user", "user string, at bigint", "user string, due bigint", "at")
    >>> tester.push([("ann", 500), ("bob", 700)])
    []
    >>> tester.advance_watermark(1_499)
    []
    >>> tester.timers()[0]
    PendingTimer(key='ann', timestamp=1500, name=None, time_domain=<TimeDomain.EVENT_TIME: 0>)
    >>> tester.advance_watermark(1_500)
    [Row(user='ann', due=1500)]
    """

    function: Function

    def __init__(
        self,
        function: Function,
        key: str | Sequence[str],
        input_schema: str | StructType,
        output_schema: str | StructType,
        event_time: str | EventTime | None = None,
        *,
        right_schema: str | StructType | RightInput | None = None,
        rules_schema: str | StructType | None = None,
        watermark: WatermarkStrategy | int | str | timedelta | None = None,
        order: str | None = None,
        late: str | None = None,
        processing_time: bool = False,
        max_parallelism: int = 16,
        state_changes: Mapping[str, str | None] | IfStored | None = None,
        side_outputs: Sequence[OutputTag] | None = None,
        errors: str | DeadLetters = "raise",
    ) -> None:
        sendable(function, *get_args(Function))
        if order is None and isinstance(function, IntervalJoin):
            order = "arrival"
        self._inputs = Inputs()
        self._inputs.add(
            *checked_input("input_schema", input_schema, key, event_time, watermark, order, late)
        )
        result = columns_type("output_schema", output_schema)
        arrow_schema("output_schema", result)
        if isinstance(function, KeyedCoProcessFunction):
            schema = input_schema if right_schema is None else right_schema
            right = schema if isinstance(schema, RightInput) else RightInput(schema)
            timed = right.event_time is not None or assigns_time(right.watermark)
            self._inputs.add(
                *checked_input(
                    "right_schema",
                    right.rows,
                    key if right.key is None else right.key,
                    right.event_time if timed else event_time,
                    watermark if right.watermark is None else right.watermark,
                    order,
                    late,
                    "right.",
                )
            )
        elif right_schema is not None:
            raise ArgumentValueError("right_schema needs a KeyedCoProcessFunction")
        self._rules = _rules(function, rules_schema)
        self._pickled = dumps(function)  # type: ignore[no-untyped-call]
        self._max_parallelism = cast(int, key_groups(max_parallelism))
        self._clock: int | None = 0 if processing_time else None
        self._failed = False
        self._warned: set[str] = set()
        self._result = result
        self._options: dict[str, Any] = {
            "order": order,
            "late": late,
            "max_parallelism": self._max_parallelism,
            "state_changes": changed_states(state_changes),
            "side_outputs": side_tags(side_outputs, function),
            "guard": guard_of(errors),
            "broadcast": None if self._rules is None else self._rules.type,
        }
        self._hints = True  # whether nothing has been said of the order of rows
        query = self._new_query()
        self._sent: dict[str, list[Any]] = {field.name: [] for field in query.side_fields}
        self._begin(query, KeyGroup(query.layout), self._clock)
        states = {name: state.type for name, state in self._group.states.items()}
        self._options["state_changes"] = with_expected(query, Rehearsal(states=states)).state_changes

    def _new_query(self) -> Query:
        """Return the query of a new copy of the function."""
        query = self._inputs.query(loads(self._pickled), self._result, **self._options)
        return query if self._clock is None else replace(query, time_mode="ProcessingTime")

    def _begin(self, query: Query, group: KeyGroup, now: int | None) -> None:
        """Open the function of a query, and go on with a key group."""
        runner: Runner = query.work.runner(query, Placement(1, self._max_parallelism))
        runner.open()
        runner.begin(group, now, ResultBuffer(*query.outputs))
        function = query.work.function
        self.function = getattr(function, "function", function)  # of two inputs, or with broadcast state
        self._tested_query, self._group, self._runner, self._clock = query, group, runner, now
        self._counters: dict[str, int] = {}
        self._distributions: dict[str, DistributionResult] = {}
        self._failed = False

    def push(self, rows: object) -> list[Row]:
        """Process rows of one micro-batch; with two inputs, rows of the left.

        The watermark does not advance, so no event-time timer fires, not even one that a row registers for
        the past: that fires with the next watermark, as in Flink.

        Parameters
        ----------
        rows : list of dict, tuple or Row, or a pyarrow.Table or RecordBatch
            A timestamp is a datetime, which without a time zone is local time, or an int of epoch ms. Rows
            wait for the watermark with ``order="event_time"``, where late rows are dropped.

        Returns
        -------
        list of Row
            The results.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If a row does not fit `input_schema`; then none is processed.
        """
        return self._push(0, rows)

    def push_right(self, rows: object) -> list[Row]:
        """Process rows of the right input; see `push`."""
        if len(self._inputs) == 1:
            raise ArgumentValueError("function must be a KeyedCoProcessFunction to have a right input")
        return self._push(1, rows)

    def push_rules(self, rows: object) -> list[Row]:
        """Process rows of the broadcast input; see `push`."""
        rules = self._expect_rules("a broadcast input")
        table = pa.Table.from_batches([rules.table(rows)])
        return self._run(None, None, table)

    def _expect_rules(self, what: str) -> PushedRows:
        if self._rules is None:
            raise ArgumentValueError(f"function must be a KeyedBroadcastProcessFunction to have {what}")
        return self._rules

    def _push(self, number: int, rows: object) -> list[Row]:
        return self._run(self._hashed(number, rows), None)

    def _hashed(self, number: int, rows: object) -> KeyedRows:
        """Return rows of an input as they reach the key group."""
        query, pushed = self._tested_query, self._inputs.hashed(number, rows, self._tested_query)
        if query.order == "event_time" and not query.ties:
            every = (
                event_times(pushed.rows.column(str(query.event_time))),
                pushed.ids,
                np.arange(len(pushed)),
            )
            if self._hints and (content_order(pushed.rows, *every) != time_order(*every)).any():
                self._hints = False
                _log.warning(
                    "rows of one key and timestamp come in the order of their columns, as on Spark, and not "
                    "as pushed; if their order matters, pass EventTime(column, tie_break=...) with the "
                    "columns that have it"
                )
        return pushed

    def advance_watermark(self, timestamp: int) -> list[Row]:
        """Advance the watermark, release the rows that wait for it, fire timers, and return the results.

        Parameters
        ----------
        timestamp : int
            Epoch ms, at least the present watermark. The same one fires timers that were registered for the
            past, as in Flink's test harnesses.
        """
        timestamp = int64("timestamp", timestamp)
        if timestamp < self._group.watermark:
            raise ArgumentValueError(
                f"timestamp must be at least the watermark, {self._group.watermark}, got {timestamp}"
            )
        return self._run(None, timestamp)

    def finish(self) -> list[Row]:
        """Advance the watermark to the end of the input, as the end of a batch DataFrame does."""
        return self._run(None, MAX_WATERMARK)

    def advance_clock(self, now: int) -> list[Row]:
        """Advance the processing time, fire the timers that it passes, and return the results.

        A timer of time t fires when the clock shows t + 1, as in Flink.

        Parameters
        ----------
        now : int
            Epoch ms, at least the present time.
        """
        if self._clock is None:
            raise RuntimeError("processing_time must be True for a test with a clock, got False")
        now = int64("now", now)
        if now < self._clock:
            raise ArgumentValueError(f"now must be at least the present time, {self._clock}, got {now}")
        self._clock = now
        return self._run(None, None)

    def _run(
        self, rows: KeyedRows | None, watermark: int | None, broadcast: pa.Table | None = None
    ) -> list[Row]:
        if self._failed:
            raise RuntimeError(
                "the function must not have failed before; restore() a snapshot, or begin anew"
            )
        query, group = self._tested_query, self._group
        output = ResultBuffer(*query.outputs)
        self._failed = True  # as on Spark, where the micro-batch is done again from the checkpoint
        run_key_group(MicroBatch(query, self._runner, self._clock, output), group, rows, watermark, broadcast)
        notices = {each: each for each in group.notices()}
        for about, message in {**self._runner.warnings, **notices}.items():
            if about not in self._warned:
                _log.warning("%s", message)
            self._warned.add(about)
        table = output.table()
        group.forget_dead_keys()
        for part in group.parts():
            part.changes()  # as a save does, after which nothing of the micro-batch is kept apart
        self._failed = False
        if self._runner.metrics is not None:
            self._count(self._runner.metrics)
        if not query.side_fields:
            return to_rows(table, query.result)
        for *_, sent in to_rows(table, with_side_column(query)):
            for name, value in zip(self._sent, sent or (), strict=False):
                self._sent[name] += [] if value is None else [value]
        main = table.filter(table.column(SIDE_OUTPUT).is_null()).drop_columns([SIDE_OUTPUT])
        return to_rows(main, query.result)

    def side_output(self, tag: OutputTag) -> list[Any]:
        """Return what the function has sent to a side output so far; a row is a Row."""
        if getattr(tag, "tag_id", None) not in self._sent:
            raise ArgumentValueError(f"tag must be one of the side outputs {list(self._sent)}, got {tag!r}")
        return list(self._sent[tag.tag_id])

    def late_rows(self) -> list[Row]:
        """Return the late rows so far, with ``late="emit"``, as `timerheap.spark.late_rows` does."""
        if LATE_ROWS not in self._sent:
            raise ArgumentValueError('late must be "emit" for a test that returns late rows')
        return list(self._sent[LATE_ROWS])

    def dead_letters(self) -> list[Row]:
        """Return the dead letters so far, with ``errors="emit"``, as `timerheap.spark.dead_letters` does."""
        if LETTERS not in self._sent:
            raise ArgumentValueError('errors must be "emit" for a test that returns dead letters')
        return list(self._sent[LETTERS])

    @property
    def watermark(self) -> int:
        """The watermark, epoch ms."""
        return self._group.watermark

    @property
    def has_clock(self) -> bool:
        """Whether there is a processing time, which `advance_clock` advances."""
        return self._clock is not None

    @property
    def results_behind(self) -> int | None:
        """By how many ms results may be behind the watermark, as in an `IntervalJoin`; None for no limit."""
        behind: int | None = self._tested_query.work.results_behind
        return behind

    @property
    def late_row_count(self) -> int:
        """The number of late rows so far."""
        return self._group.late_rows

    @property
    def counters(self) -> dict[str, int]:
        """The counters of the function, and the events of its meters, by name; `restore` begins anew."""
        return dict(self._counters)

    @property
    def distributions(self) -> dict[str, DistributionResult]:
        """The distributions of the function that have had values, by name; `restore` begins anew."""
        return dict(self._distributions)

    def _count(self, metrics: Metrics) -> None:
        for name, n in metrics.take_counters().items():
            self._counters[name] = self._counters.get(name, 0) + n
        for name, result in metrics.take_distributions().items():
            before = self._distributions.get(name)
            self._distributions[name] = result if before is None else before.merged(result)

    def snapshot(self) -> bytes:
        """Return everything that a checkpoint would hold, and the clock."""
        if self._failed:
            raise RuntimeError("the function must not have failed before a snapshot")
        return save_group(self._group, self._max_parallelism, self._clock)

    def restore(self, snapshot: bytes) -> None:
        """Go on from a snapshot with a new copy of the function, as a query does after a restart.

        The snapshot may be that of another tester, whose function has had other code or other states.

        Raises
        ------
        ArgumentValueError
            If these are other bytes, or do not fit the function; the tester is not changed then.
        """
        self._resume(*self._loaded(snapshot))

    def _loaded(self, snapshot: bytes) -> tuple[Query, KeyGroup, int | None]:
        """Return a snapshot with the query of a new copy of the function, for `_resume`."""
        query = self._new_query()
        group, now = load_group(query, self._max_parallelism, snapshot)
        return query, group, self._clock if now is None or self._clock is None else now

    def _resume(self, query: Query, group: KeyGroup, now: int | None) -> None:
        old = self._runner
        self._begin(query, group, now)
        old.close()

    def close(self) -> None:
        """Close the function."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def timers(self) -> list[PendingTimer]:
        """Return the pending timers in the order in which they fire, those of event time first."""
        found = []
        for domain, timers in (
            (TimeDomain.EVENT_TIME, self._group.event_timers),
            (TimeDomain.PROCESSING_TIME, self._group.processing_timers),
        ):
            ids = timers.heap.key_hashes
            columns = (timers.heap.timestamps.tolist(), ids.tolist(), timers.heap.namespaces.tolist())
            pending = list(zip(*columns, self._keys(ids), strict=True))
            pending = sorted(pending, key=lambda timer: timer[:3])
            name = self._group.timer_names.name
            found += [PendingTimer(key, at, name(namespace), domain) for at, _, namespace, key in pending]
        return found

    def state(self, name: str) -> dict[Any, Any]:
        """Return the contents of a state: by key, its value, list or dict.

        Of a state with a time to live, each value, element or entry is a row of ``value`` and ``at``, the
        time of its last access in epoch ms.
        """
        keyed = sorted(each for each in self._group.states if not each.startswith(BROADCAST_STATE))
        if name not in keyed:
            raise ArgumentValueError(f"name must be one of {keyed}, got {name!r}")
        ids, contents = _contents(self._group.states[name])
        return dict(zip(self._keys(ids), contents, strict=True))

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """Return the entries of a broadcast state.

        Parameters
        ----------
        name : str
            The name in its descriptor. Until the function calls ``get_broadcast_state`` for the first time,
            no name is known, and all broadcast states are empty.

        Raises
        ------
        ArgumentValueError
            If the function has asked for other broadcast states only.
        """
        self._expect_rules("broadcast states")
        instance("name", name, str)
        states = {
            each.removeprefix(BROADCAST_STATE): table
            for each, table in self._group.states.items()
            if each.startswith(BROADCAST_STATE)
        }
        if not states:
            return {}
        if name not in states:
            raise ArgumentValueError(
                "name must be one of the broadcast states that the function has asked for so far, "
                f"{sorted(states)}, got {name!r}"
            )
        _, contents = _contents(states[name])
        return contents[0] if contents else {}

    def buffered_rows(self) -> list[Row]:
        """Return the rows that wait for the watermark, by event time; of two inputs, those of both."""
        waiting = self._group.rows.waiting()
        waiting = waiting.take(np.argsort(waiting.timestamps, kind="stable"))
        seen = self._tested_query.seen_rows
        rows = to_rows(pa.Table.from_batches([waiting.rows]).select(seen.names), seen)
        return self._inputs.untagged(rows)

    def _keys(self, ids: np.ndarray) -> list[Any]:
        key = self._tested_query.key
        type_ = StructType([self._tested_query.rows[name] for name in key])
        return list(row_source(self._group.keys.keys(ids), type_, key).keys())


def _rules(function: object, schema: object) -> PushedRows | None:
    """Return the broadcast rows of a function, None if it is of another kind."""
    if not isinstance(function, KeyedBroadcastProcessFunction):
        if schema is not None:
            raise ArgumentValueError("rules_schema needs a KeyedBroadcastProcessFunction")
        return None
    type_ = columns_type("rules_schema", schema)
    arrow_schema("rules_schema", type_)
    return PushedRows(type_, [], None)
