"""Jobs under default settings give what pandas computes, whatever the micro-batches; without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from queries import opened, query_of

from timerheap import BatchProcessFunction, Duration, KeyedProcessFunction, Types, ValueStateDescriptor
from timerheap import WatermarkStrategy as Strategy
from timerheap.spark._arrow import KeyedRows, widen
from timerheap.spark._group import value_state
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._observed import OBSERVED
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

BOUND, SPAN = 5_000, 3_600_000
DELAYED = Strategy.for_bounded_out_of_orderness(BOUND)
Results = list[tuple[Any, ...]]


def schema(text: str) -> StructType:
    type_ = StructType()
    for column in text.split(", "):
        type_.add(*column.split())
    return type_


def events(keys: int, count: int, **columns: list[Any]) -> pd.DataFrame:
    """Return rows in order of arrival, out of order within the bound of the watermark."""
    draw = np.random.default_rng(count)
    rows = pd.DataFrame({"k": draw.integers(0, keys, count), "at": draw.permutation(SPAN)[:count]})
    for name, values in columns.items():
        rows[name] = draw.choice(values, count)
    return rows.iloc[np.argsort(rows["at"] + draw.integers(0, BOUND, count), kind="stable")]


def run(
    function: Any,
    rows: pd.DataFrame,
    output: str,
    micro_batches: int,
    strategy: Strategy = DELAYED,
    channel: str | None = None,
    silence: int = 0,
) -> tuple[Results, int]:
    """Run a function as a query does; return its results and the watermark at the end.

    The clock shows the largest event time so far. In the end there are micro-batches without rows, one a
    minute for so many minutes.
    """
    types = {"i": "long", "O": "string"}
    columns = ", ".join(f"{name} {types[dtype.kind]}" for name, dtype in rows.dtypes.items())
    times = {"watermarks": (strategy,), "channels": (channel,), "time_mode": "ProcessingTime"}
    query = query_of(function, schema(columns), schema(output), **times)
    group, state = KeyGroup(query.layout), WatermarkState(query.watermarks, query.channels)
    runner = opened(query)
    buffer = ResultBuffer(*query.outputs)
    now = 0
    for part in np.array_split(np.arange(len(rows)), micro_batches):
        batch = rows.iloc[part]
        now = max(now, int(batch["at"].max()))
        _micro_batch(query, runner, group, state, batch, now, buffer)
    for _ in range(silence):
        now += 60_000
        _micro_batch(query, runner, group, state, rows.iloc[:0], now, buffer)
    assert group.late_rows == 0
    return sorted(zip(*(c.to_pylist() for c in buffer.table().columns), strict=True)), state.watermark


def _micro_batch(
    query: Query,
    runner: Any,
    group: KeyGroup,
    state: WatermarkState,
    batch: pd.DataFrame,
    now: int,
    output: ResultBuffer,
) -> None:
    (channel,) = query.channels
    names = batch[channel] if channel is not None else pd.Series([None] * len(batch), batch.index)
    observed = [
        {"input": 0, "channel": name, "max_timestamp": int(of["at"].max()), "count": len(of)}
        for name, of in batch.groupby(names.to_numpy(), dropna=False)
    ]
    for row in observed:
        row["channel"] = None if channel is None else str(row["channel"])
    watermark = state.observe(pa.Table.from_pylist(observed, OBSERVED), now, "run")
    table = pa.RecordBatch.from_pandas(batch, preserve_index=False)
    keys, times = batch["k"].to_numpy(np.int64), batch["at"].to_numpy(np.int64)
    rows = KeyedRows(widen(table.cast(query.schema)), keys * 7919, times) if len(batch) else None
    run_key_group(MicroBatch(query, runner, now, output), group, rows, watermark)


def by_key(rows: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    for key, of in rows.sort_values("at").groupby("k"):
        yield int(key), of  # type: ignore[call-overload]


class Carts(KeyedProcessFunction):
    """Reports a cart that has been left alone for two minutes."""

    PATIENCE = 120_000

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.due.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.due.value())
            self.due.clear()
        if value.action == "add":
            self.due.update(value.at + self.PATIENCE)
            ctx.timer_service().register_event_time_timer(value.at + self.PATIENCE)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.due.clear()
        yield ctx.get_current_key(), timestamp


def carts(rows: pd.DataFrame, watermark: float) -> Results:
    found = []
    for key, of in by_key(rows):
        left = of["at"].shift(-1).fillna(np.inf) > of["at"] + Carts.PATIENCE
        due = of["at"][(of["action"] == "add") & left] + Carts.PATIENCE
        found += [(key, at) for at in due if at <= watermark]
    return found


class Deduplication(KeyedProcessFunction):
    """Passes on the first row of each key in ten minutes."""

    LIFETIME = 600_000

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.seen.value() is None:
            self.seen.update(True)
            ctx.timer_service().register_event_time_timer(value.at + self.LIFETIME)
            yield value.k, value.at

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.seen.clear()


def deduplicated(rows: pd.DataFrame, watermark: float) -> Results:
    found = []
    for key, of in by_key(rows):
        until = -1
        for at in of["at"][of["at"] <= watermark]:
            if at > until:
                found.append((key, at))
                until = at + Deduplication.LIFETIME
    return found


class Retries(KeyedProcessFunction):
    """Tries a request again after 1, 2, 4, ... minutes until it is answered, five times at most."""

    def open(self, runtime_context: Any) -> None:
        self.tries = runtime_context.get_state(ValueStateDescriptor("tries", Types.LONG()))
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.due.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.due.value())
        self.due.clear()
        if value.action == "request":
            self.retry(value.at, 1, ctx)

    def retry(self, at: int, tries: int, ctx: Any) -> None:
        self.tries.update(tries)
        self.due.update(at + (60_000 << (tries - 1)))
        ctx.timer_service().register_event_time_timer(self.due.value())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        tries = self.tries.value()
        yield ctx.get_current_key(), timestamp, tries
        self.due.clear()
        if tries < 5:
            self.retry(timestamp, tries + 1, ctx)


def retried(rows: pd.DataFrame, watermark: float) -> Results:
    found = []
    for key, of in by_key(rows):
        ends = [*of["at"].iloc[1:], watermark + 1]
        for at, action, end in zip(of["at"], of["action"], ends, strict=True):
            times = [at + 60_000 * (2**n - 1) for n in range(1, 6)] if action == "request" else []
            found += [(key, t, n) for n, t in enumerate(times, 1) if t < end and t <= watermark]
    return found


GAP = 120_000


class Sessions(KeyedProcessFunction):
    """Reports start, end and size of each session."""

    def open(self, runtime_context: Any) -> None:
        names = ("start", "last", "size")
        self.start, self.last, self.size = (
            runtime_context.get_state(ValueStateDescriptor(name, Types.LONG())) for name in names
        )

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.last.value() is None:
            self.start.update(value.at)
        else:
            ctx.timer_service().delete_event_time_timer(self.last.value() + GAP)
        self.last.update(value.at)
        self.size.update((self.size.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(value.at + GAP)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.start.value(), self.last.value(), self.size.value()
        for state in (self.start, self.last, self.size):
            state.clear()


class SessionColumns(BatchProcessFunction):
    """Does the same in columns."""

    def open(self, runtime_context: Any) -> None:
        self.start = runtime_context.get_state(ValueStateDescriptor("start", "bigint"))
        self.size = runtime_context.get_state(ValueStateDescriptor("size", "bigint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ids, at = ctx.ids, ctx.timestamps
        size = self.size.values(ids).fill_null(0).to_numpy()
        self.start.update_many(ids[size == 0], pa.array(at[size == 0]))
        self.size.update_many(ids, pa.array(size + 1))
        ctx.timer_service().register_event_time_timers(ids, at + GAP, name="end")

    def on_timers(self, due: Any, ctx: Any) -> Any:
        ids = due.ids
        columns = [
            ctx.keys(ids).column("k"),
            self.start.values(ids),
            due.timestamps - GAP,
            self.size.values(ids),
        ]
        yield pa.record_batch([pa.array(c) for c in columns], names=["k", "start", "last", "size"])
        for state in (self.start, self.size):
            state.update_many(ids, pa.nulls(len(ids), pa.int64()))


def sessions(rows: pd.DataFrame, watermark: float) -> Results:
    found = []
    for key, of in by_key(rows):
        number = (of["at"].diff() > GAP).cumsum()
        for _, session in of["at"].groupby(number):
            if session.max() + GAP <= watermark:
                found.append((key, int(session.min()), int(session.max()), len(session)))
    return found


SESSION = "k long, start long, last long, size long"
JOBS: dict[str, tuple[Any, Any, str, list[Any]]] = {
    "cart alerts": (Carts, carts, "k long, at long", ["add", "add", "buy"]),
    "deduplication": (Deduplication, deduplicated, "k long, at long", ["any"]),
    "retries": (Retries, retried, "k long, at long, tries long", ["request", "answer"]),
    "sessions": (Sessions, sessions, SESSION, ["any"]),
    "sessions in columns": (SessionColumns, sessions, SESSION, ["any"]),
}


@pytest.mark.parametrize("micro_batches", [1, 20, 200])
@pytest.mark.parametrize("job", JOBS)
def test_a_job_equals_pandas(job: str, micro_batches: int) -> None:
    function, model, output, actions = JOBS[job]
    rows = events(40, 800, action=actions)
    found, watermark = run(function(), rows, output, micro_batches)
    assert watermark == rows["at"].max() - BOUND - 1
    assert found == sorted(model(rows, watermark))
    assert len(found) > 50


@pytest.mark.parametrize("micro_batches", [1, 20, 200])
@pytest.mark.parametrize("function", [Sessions, SessionColumns])
def test_lagging_and_silent_channels_equal_pandas(function: type[Any], micro_batches: int) -> None:
    rows = events(40, 800, channel=["a", "b", "c"])
    rows = rows[(rows["channel"] != "c") | (rows["at"] < SPAN // 3)]  # it falls silent
    arrival = rows["at"] + 300_000 * (rows["channel"] == "b")  # it lags behind
    rows = rows.iloc[np.argsort(arrival.where(rows.groupby("channel").cumcount() > 0, -1), kind="stable")]
    strategy = DELAYED.with_wall_clock(after=Duration.of_minutes(10), lag=Duration.of_minutes(6))
    found, watermark = run(function(), rows, SESSION, micro_batches, strategy, "channel", silence=20)
    assert found == sorted(sessions(rows, float("inf")))
    assert watermark > rows["at"].max() + GAP


def test_a_silent_channel_without_a_clock_holds_the_results_back() -> None:
    rows = events(40, 800, channel=["a", "b"])
    rows = rows[(rows["channel"] != "b") | (rows["at"] < SPAN // 3)]
    held, last = run(Sessions(), rows, SESSION, 20, DELAYED, "channel")
    assert last == max(at for at in rows["at"][rows["channel"] == "b"]) - BOUND - 1
    assert held == sorted(sessions(rows, last))
    idle = DELAYED.with_idleness(Duration.of_minutes(10))
    found, watermark = run(Sessions(), rows, SESSION, 20, idle, "channel")
    assert found == sorted(sessions(rows, watermark))
    assert len(found) > len(held)


class Thirds(KeyedProcessFunction):
    """Counts the rows of each key up to three, and begins anew."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        count = (self.count.value() or 0) + 1
        yield value["k"], count
        if count < 3:
            self.count.update(count)
        else:
            self.count.clear()


@pytest.mark.parametrize("keys", [3, 9_000])
def test_the_states_of_a_group_last_whether_it_is_saved_or_others_run_in_between(keys: int) -> None:
    query = query_of(Thirds(), schema("k long, at long"), schema("k long, n long"))
    runner, buffer, draw = opened(query), ResultBuffer(*query.outputs), np.random.default_rng(keys)
    groups = [(KeyGroup(query.layout), dict[int, int]()) for _ in range(2)]
    for at in range(120):
        group, counts = groups[int(at % 9 == 8)]
        drawn = np.unique(draw.integers(0, keys, draw.integers(1, 600)))
        rows = pa.record_batch([drawn, np.full(len(drawn), at)], query.schema.names)
        run_key_group(
            MicroBatch(query, runner, None, buffer),
            group,
            KeyedRows(rows, drawn * 7919, rows["at"].to_numpy()),
            at,
        )
        for key in drawn.tolist():
            counts[key] = counts.get(key, 0) % 3 + 1
        assert sorted(buffer.table().to_pylist(), key=lambda row: row["k"]) == [
            {"k": key, "n": counts[key]} for key in drawn.tolist()
        ]
        if at % 7 == 6:
            for part in group.parts():
                part.changes()
        if at % 20 == 19:
            held = {key: n for key, n in counts.items() if n < 3}
            found = group.states["count"].ids()
            assert sorted(found.tolist()) == sorted(key * 7919 for key in held)


def test_what_is_known_of_a_key_is_not_looked_up_until_the_group_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[int]] = []
    look_up = value_state._loaded
    monkeypatch.setattr(
        value_state, "_loaded", lambda table, ids: asked.append(ids.tolist()) or look_up(table, ids)
    )
    query = query_of(Thirds(), schema("k long, at long"), schema("k long, n long"))
    runner, group, buffer = opened(query), KeyGroup(query.layout), ResultBuffer(*query.outputs)
    for at in range(6):
        key = 1 + at // 4
        rows = KeyedRows(pa.record_batch([[key], [at]], query.schema.names), np.array([key]), np.array([at]))
        run_key_group(MicroBatch(query, runner, None, buffer), group, rows, at)
        if at == 3:
            group.states["count"].changes()
    assert [row["n"] for row in buffer.table().to_pylist()] == [1, 2, 3, 1, 1, 2]
    assert asked == [[1], [2]]
