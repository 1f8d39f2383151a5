"""Keys settle with their lists, maps and multisets, and with what each feature keeps of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feature_queries import ALL, DELAY, SCHEMA, Feature, rows_of_changes
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from queries import query_of
from settling_groups import ALWAYS, LIVE, Driven, Pair

from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
)
from timerheap._native._core import xxh64
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import HASH
from timerheap.spark._query import Query, nullable_arrow_schema

ROWS = StructType().add("k", "string").add("at", "long").add("op", "long").add("arg", "long")
RESULT = StructType().add("k", "string").add("what", "string")
NAN = float("nan")


class Shelves(KeyedProcessFunction):
    """Does with lists and maps what the op of a row says, and tells all that they have."""

    def open(self, runtime_context: Any) -> None:
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", Types.LONG()))
        pair = Types.ROW_NAMED(["x", "ys"], [Types.DOUBLE(), Types.LIST(Types.STRING())])
        self.rows = runtime_context.get_list_state(ListStateDescriptor("rows", pair))
        self.names = runtime_context.get_map_state(MapStateDescriptor("names", Types.STRING(), Types.LONG()))
        self.ratios = runtime_context.get_map_state(
            MapStateDescriptor("ratios", Types.DOUBLE(), Types.MAP(Types.STRING(), Types.DOUBLE()))
        )
        brief = ListStateDescriptor("brief", Types.STRING())
        brief.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(60)).build())
        self.brief = runtime_context.get_list_state(brief)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        op, arg = value.op, value.arg
        if op == 0:
            self.log.add(arg)
        elif op == 1:
            self.log.add_all(list(range(arg % 40)))
            self.brief.add("b" * arg)
        elif op == 2:
            self.log.update([arg, 0, arg] if arg % 2 else [])
            self.rows.clear()
        elif op == 3:
            self.rows.add({"x": NAN if arg % 3 else -0.0, "ys": None if arg % 5 else ["", "y" * arg]})
        elif op == 4:
            self.names.put(f"n{arg % 7}", arg)
            self.ratios.put((NAN, -0.0, arg / 7)[arg % 3], {"a": NAN, "b": -arg / 3} if arg % 2 else {})
        elif op == 5:
            self.names.remove(f"n{arg % 7}")
            self.ratios.remove((NAN, 0.0, arg / 7)[arg % 3])
        elif op == 6:
            self.names.clear()
        elif op == 7:
            ctx.timer_service().register_event_time_timer(value.at + arg)
        elif op == 8:
            for state in (self.log, self.rows, self.names, self.ratios, self.brief):
                state.clear()
        yield self._told(f"row {op}", ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        if timestamp % 2:
            self.names.clear()
            self.log.clear()
        yield self._told(f"timer {timestamp}", ctx)

    def _told(self, what: str, ctx: Any) -> tuple[Any, ...]:
        held = [*map(list, (self.log, self.rows, self.names.items(), self.ratios.items(), self.brief))]
        return ctx.get_current_key(), f"{what} {held}"


def rows_of(draw: random.Random, n: int, at: int, keys: int) -> KeyedRows:
    names = [f"key {int(draw.random() ** 2 * keys)}" for _ in range(n)]
    times = [at + draw.randrange(50) for _ in range(n)]
    numbers = [[draw.randrange(most) for _ in range(n)] for most in (9, 100)]
    batch = pa.record_batch([pa.array(names, pa.large_string()), pa.array(times), *numbers], names=ROWS.names)
    hashes = np.array([xxh64(name.encode()) for name in names], np.uint64)
    return KeyedRows(batch, hashes.view(np.int64), np.array(times))


def query(function: Any) -> Query:
    return query_of(function, ROWS, RESULT, order="arrival", time_mode="ProcessingTime")


def disturbed(both: Pair, draw: random.Random) -> None:
    """Hand the groups over between processes, or load them, now and then."""
    if draw.random() < 0.3:
        both.other.hand_over()
    if draw.random() < 0.05:
        both.other.load()
    if draw.random() < 0.05:
        both.plain.load()


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("seed", range(4))
def test_lists_and_maps_settle(seed: int) -> None:
    draw = random.Random(seed)
    both = Pair((query(Shelves()), query(Shelves())), ALWAYS)
    keys, watermark, emitted = draw.choice([5, 80, 300]), 0, 0
    for number in range(25):
        n = draw.choice([0, 1, 5, 60, 300]) if number else 600
        rows = rows_of(draw, n, watermark + draw.randrange(20), keys) if n else None
        watermark += draw.choice([1, 20, 100])
        emitted += len(both.batch((seed, number), rows, watermark, 40 * number))
        disturbed(both, draw)
    assert emitted > keys
    assert both.other.most > keys // 3
    both.batch("the end of time", None, (1 << 63) - 1, 1 << 40)


def test_a_key_whose_list_is_long_stays_in_memory() -> None:
    driven = Driven(query(Shelves()), ALWAYS)
    ids = np.arange(4).repeat([1, 6, 40, 1])  # times 39 elements
    names = pa.array([f"key {id_}" for id_ in ids], pa.large_string())
    columns = [names, *(pa.array(np.full(len(ids), n)) for n in (50, 1, 39))]
    batch = pa.RecordBatch.from_arrays(columns, names=ROWS.names)
    driven.batch(KeyedRows(batch, ids, np.full(len(ids), 50)), 5, 0)
    driven.batch(None, 6, 1)
    assert driven.group.keys.table.ids().tolist() == [2]
    assert driven.has_settled == 3


@pytest.mark.in_turn(5)
def test_damage_is_noticed_before_a_list_is_read() -> None:
    draw, lost = random.Random(2), 0
    for _ in range(12):
        both = Pair((query(Shelves()), query(Shelves())), ALWAYS)
        both.batch("rows", rows_of(random.Random(1), 300, 0, 60), 5, 0)
        both.batch("settled", None, 6, 1)
        places = [(run.at, len(run.bytes)) for run in both.other.group.settling.runs]
        at, nbytes = draw.choice(places)
        fd, byte = both.other.file.descriptor, at + draw.randrange(nbytes)
        os.pwrite(fd, bytes([os.pread(fd, 1, byte)[0] ^ 1 << draw.randrange(8)]), byte)
        try:
            both.batch("damaged", rows_of(random.Random(3), 30, 20, 60), 100, 2)
        except (LIVE.SettledLost, ValueError) as e:  # in the micro-batch, or where all is compared
            lost += "damaged" in str(e)
    assert lost > 4


class Planned(Exception):
    """Ends the planning of a query."""


@pytest.fixture
def plan(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Plan the query of a feature, and return it with its rows and those for all groups."""

    def planned(feature: Feature, rows: list[dict[str, Any]]) -> tuple[Query, pa.Table, pa.Table | None]:
        found: list[Any] = []

        def packed(query: Query, df: Any, letters: Any, broadcast: Any = None, **_: Any) -> Any:
            found[:] = query, df, broadcast
            raise Planned

        monkeypatch.setattr("timerheap.spark._plan.build.packed", packed)
        with pytest.raises(Planned):
            feature(spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA)), 1)
        query, df, broadcast = found
        return query, df.toArrow(), None if broadcast is None else broadcast.toArrow()

    return planned


def keyed(query: Query, rows: pa.Table, times: np.ndarray) -> KeyedRows:
    """Return rows as they reach the key group."""
    (batch,) = rows.combine_chunks().to_batches()
    key = [batch.column(name).to_pylist() for name in query.key]
    hashes = np.array([xxh64(repr(each).encode()) for each in zip(*key, strict=True)], np.uint64)
    ids = hashes.view(np.int64)
    known = [field for field in nullable_arrow_schema(query.rows) if field.name in batch.schema.names]
    columns = [batch.column(field.name).cast(field.type) for field in known]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(known))
    if query.reduction is not None:
        reducer = query.reduction.reducer()
        reducer.add(batch, ids)
        batch = reducer.drain()
        ids = batch.column(HASH).to_numpy()
        batch, times = batch.drop_columns([HASH]), np.zeros(len(ids), np.int64)
    return KeyedRows(batch, ids, times)


def millis_of(query: Query, rows: pa.Table) -> np.ndarray:
    if query.event_time is None:
        return np.zeros(len(rows), np.int64)
    column = rows.column(query.event_time)
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 1000
    return column.to_numpy()


def many_keys(seed: int) -> list[dict[str, Any]]:
    """Return rows of about 70 keys."""
    rows = [row for batch in rows_of_changes(seed, batches=8) for row in batch]
    return [row | {"k": row["k"] and row["k"] + str(row["at"].second % 8)} for row in rows]


STAY = {name for name in ALL if name.startswith(("tumble", "hop", "cumulate"))} | {
    "session, corrected",
    "a join of windows",  # whose rows wait
    "the first of each window",  # likewise
}
"""Those of which nothing settles."""


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", sorted(ALL.keys() - {"transform_with_state"}))  # which has a loop of its own
def test_keys_of_features_settle(name: str, plan: Callable[..., Any]) -> None:
    rows = many_keys(1)
    query, table, broadcast = plan(ALL[name], rows)
    both = Pair((query, plan(ALL[name], rows)[0]), ALWAYS)
    draw, order, high = random.Random(name), np.arange(len(table)), 0
    times = millis_of(query, table)
    if query.event_time is not None:
        order = np.argsort(times + np.random.default_rng(1).integers(0, 1000 * DELAY, len(times)))
    emitted = 0
    for number, part in enumerate(np.array_split(order, 16)):
        mine = keyed(query, table.take(pa.array(part)), times[part]) if number % 5 < 4 else None
        high = max(high, times[part].max())
        watermark = None if query.event_time is None else int(high) - 1000 * DELAY
        now = None if query.time_mode == "None" else 200_000 + 10_000 * number
        emitted += len(both.batch(number, mine, watermark, now, broadcast if number % 7 == 0 else None))
        disturbed(both, draw)
    assert (both.other.most > 0) == (name not in STAY)
    end = None if query.event_time is None else (1 << 63) - 1
    emitted += len(both.batch("the end of time", None, end, None if query.time_mode == "None" else 1 << 40))
    assert emitted
