"""The queries that keep rows for each key: q3, q18, q19 and q20, in the vectorized API.

A function sees all rows that a micro-batch has for its keys in one call, and emits what has changed: for
Flink's update of a row, a new row with the same key. There are no retractions, since a Spark operator only
appends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

import timerheap.spark
from nexmark.generator import AUCTION, BID, PERSON
from nexmark.streams import AUCTIONS, BIDS, bids
from timerheap import BatchProcessFunction, Types, ValueStateDescriptor


def state_type(type_: DataType) -> str:
    """Return a type for states, where Spark's timestamp is a moment."""
    return type_.simpleString().replace("timestamp", "timestamp_ltz")


def _schema(df: DataFrame, *more: str) -> str:
    return ", ".join([*(f"{field.name} {field.dataType.simpleString()}" for field in df.schema), *more])


class LastBids(BatchProcessFunction):
    """Emits the latest row of each key, by `dateTime`; of equal ones, the last to arrive."""

    def open(self, runtime_context: Any) -> None:
        self.time = runtime_context.get_state(ValueStateDescriptor("time", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        times = batch.column("dateTime").cast(pa.int64()).to_numpy()
        rows = np.lexsort((times, ctx.ids))
        rows = rows[np.flatnonzero(np.diff(ctx.ids[rows], append=-1))]  # the last of each key
        before = pc.fill_null(self.time.values(ctx.ids[rows]), np.iinfo(np.int64).min).to_numpy()
        rows = rows[times[rows] >= before]
        self.time.update_many(ctx.ids[rows], times[rows])
        yield batch.take(rows)


def q18(events: DataFrame) -> DataFrame:
    """Find the last bid of each bidder on each auction."""
    rows = bids(events)
    return timerheap.spark.process(
        rows, key=["bidder", "auction"], function=LastBids(), output_schema=_schema(rows)
    )


class TopBids(BatchProcessFunction):
    """Emits the places of each key that have changed among its `limit` highest prices."""

    def __init__(self, limit: int, row: str) -> None:
        self.limit, self.row_type = limit, row

    def open(self, runtime_context: Any) -> None:
        self.top = runtime_context.get_state(ValueStateDescriptor("top", f"array<{self.row_type}>"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = np.unique(ctx.ids)
        kept_ids, kept = flat(keys, self.top.values(keys))
        before = np.append(_places(kept_ids), np.full(len(ctx.ids), -1))
        ids, rows = joined((kept_ids, kept), (ctx.ids, batch.to_struct_array()))
        order = np.lexsort((-rows.field("price").to_numpy(), ids))  # of equal prices the first to arrive
        places = _places(ids[order])
        order, places = order[places < self.limit], places[places < self.limit]
        self.top.update_many(*lists(ids[order], rows.take(order)))
        top = pa.RecordBatch.from_struct_array(rows.take(order)).append_column(
            "rank_number", pa.array(places + 1)
        )
        yield top.filter(pa.array(before[order] != places))


def q19(events: DataFrame) -> DataFrame:
    """Find the 10 highest bids on each auction."""
    rows = bids(events)
    return timerheap.spark.process(
        rows,
        key="auction",
        function=TopBids(10, state_type(rows.schema)),
        output_schema=_schema(rows, "rank_number bigint"),
    )


class RowsOfOne(BatchProcessFunction):
    """Joins each row `many` of a key with its row `one`; those that come before it wait for it.

    Rows of a key whose `one` is not `wanted` are dropped, and so is that row.
    """

    def __init__(self, one: str, many: str) -> None:
        self.one_type, self.many_type = one, many

    def open(self, runtime_context: Any) -> None:
        self.wanted = runtime_context.get_state(ValueStateDescriptor("wanted", Types.BOOLEAN()))
        self.one = runtime_context.get_state(ValueStateDescriptor("one", self.one_type))
        self.early = runtime_context.get_state(ValueStateDescriptor("early", f"array<{self.many_type}>"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        is_many = batch.column("many").is_valid().to_numpy(zero_copy_only=False)
        ones, begun = batch.filter(pa.array(~is_many)), ctx.ids[~is_many]
        wanted = ones.column("wanted").to_numpy(zero_copy_only=False)
        self.wanted.update_many(begun, wanted)
        self.one.update_many(begun[wanted], ones.column("one").filter(wanted))
        waited = flat(begun, self.early.values(begun))
        self.early.update_many(begun, pa.nulls(len(begun), pa.list_(waited[1].type)))
        ids, many = joined(waited, (ctx.ids[is_many], batch.column("many").filter(is_many)))
        known = self.wanted.values(ids)
        chosen = pc.fill_null(known, False).to_numpy(zero_copy_only=False)
        yield pa.record_batch([self.one.values(ids[chosen]), many.filter(chosen)], names=["one", "many"])
        unknown = known.is_null().to_numpy(zero_copy_only=False)
        keys = np.unique(ids[unknown])
        before = flat(keys, self.early.values(keys))
        self.early.update_many(*lists(*joined(before, (ids[unknown], many.filter(unknown)))))


def _with_one(rows: DataFrame, key: str) -> DataFrame:
    """Return the rows `one` and `many` that `RowsOfOne` joins."""
    types = [state_type(rows.schema[name].dataType) for name in ("one", "many")]
    schema = rows.select("one", "many").schema
    return timerheap.spark.process(rows, key=key, function=RowsOfOne(*types), output_schema=schema)


def q3(events: DataFrame) -> DataFrame:
    """Find who sells in category 10 in three states."""
    kind = F.col("event_type")
    rows = events.where((kind == PERSON) | ((kind == AUCTION) & (F.col("category") == 10))).select(
        F.when(kind == PERSON, F.col("id")).otherwise(F.col("seller")).alias("person"),
        F.col("state").isin("OR", "ID", "CA").alias("wanted"),
        F.when(kind == PERSON, F.struct("name", "city", "state")).alias("one"),
        F.when(kind == AUCTION, F.struct("id")).alias("many"),
    )
    return _with_one(rows, "person").select("one.name", "one.city", "one.state", "many.id")


def q20(events: DataFrame) -> DataFrame:
    """Add to each bid its auction, if it is of category 10."""
    kind = F.col("event_type")
    rows = events.where(kind.isin(AUCTION, BID)).select(
        F.when(kind == BID, F.col("auction")).otherwise(F.col("id")).alias("auction"),
        (F.col("category") == 10).alias("wanted"),
        F.when(kind == AUCTION, F.struct(*AUCTIONS)).alias("one"),
        F.when(kind == BID, F.struct(*BIDS)).alias("many"),
    )
    bid = {"dateTime": "bid_dateTime", "extra": "bid_extra"}
    auction = {"dateTime": "auction_dateTime", "extra": "auction_extra"}
    return _with_one(rows, "auction").select(
        *(F.col(f"many.{name}").alias(bid.get(name, name)) for name in BIDS),
        *(F.col(f"one.{name}").alias(auction.get(name, name)) for name in AUCTIONS if name != "id"),
    )


def flat(keys: np.ndarray, lists: pa.ListArray) -> tuple[np.ndarray, pa.StructArray]:
    """Return the elements of each key's list, and their keys."""
    return np.repeat(keys, pc.fill_null(pc.list_value_length(lists), 0).to_numpy()), lists.flatten()


def joined(*parts: tuple[np.ndarray, pa.StructArray]) -> tuple[np.ndarray, pa.StructArray]:
    """Return the keys and the rows of several arrays, of the first one's type."""
    ids, rows = zip(*parts, strict=True)
    return np.concatenate(ids), pa.concat_arrays([some.cast(rows[0].type) for some in rows])


def lists(ids: np.ndarray, rows: pa.StructArray) -> tuple[np.ndarray, pa.ListArray]:
    """Return the keys and their lists; rows of a key keep their order."""
    order = np.argsort(ids, kind="stable")
    keys, counts = np.unique(ids, return_counts=True)
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    return keys, pa.ListArray.from_arrays(offsets, rows.take(order))


def _places(ids: np.ndarray) -> np.ndarray:
    """Return 0, 1, ... for the rows of each key, which stand together."""
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    return np.arange(len(ids)) - np.repeat(starts, np.diff(starts, append=len(ids)))
