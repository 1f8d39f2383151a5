"""The queries whose point is a timer: q9, the winning bids, and q4 and q6, which average their prices.

The winning bids are found in the vectorized API, in arrival order: a micro-batch's rows come in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import timerheap.spark
from nexmark.columns import flat, joined, lists, state_type
from nexmark.generator import PERSON
from nexmark.streams import AUCTIONS, WATERMARK
from timerheap import (
    MIN_WATERMARK,
    BatchProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.watermarks import WatermarkGenerator


class WinningBids(BatchProcessFunction):
    """Emits an auction and its highest bid, of equal ones the earliest, when the auction ends.

    A row is the begin of an auction, which has `expires`, or a bid, which has `price`; `item` and `bid` have
    the types of what is emitted. Rows come in any order: a bid counts if its time is within the auction, and
    waits for the auction until the watermark has passed the bid.
    """

    def __init__(self, item: StructType, bid: StructType) -> None:
        self.item_type, self.bid_type = item, bid

    def open(self, runtime_context: Any) -> None:
        kept = StructType([StructField("at", LongType()), StructField("price", LongType())])
        kept = kept.add("bid", self.bid_type)
        self.begin = runtime_context.get_state(ValueStateDescriptor("begin", Types.LONG()))
        self.end = runtime_context.get_state(ValueStateDescriptor("end", Types.LONG()))
        self.item = runtime_context.get_state(ValueStateDescriptor("item", state_type(self.item_type)))
        self.best = runtime_context.get_state(ValueStateDescriptor("best", state_type(kept)))
        self.early = runtime_context.get_state(ValueStateDescriptor("early", f"array<{state_type(kept)}>"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        begins = batch.column("expires").is_valid()
        auctions, keys = batch.filter(begins), ctx.ids[begins.to_numpy(zero_copy_only=False)]
        self.begin.update_many(keys, auctions.column("dateTime"))
        self.end.update_many(keys, auctions.column("expires"))
        self.item.update_many(keys, structs(auctions, self.item_type))
        ctx.timer_service().register_event_time_timers(keys, auctions.column("expires").to_numpy())
        bids, ids = batch.filter(pc.invert(begins)), ctx.ids[~begins.to_numpy(zero_copy_only=False)]
        columns = [bids.column("dateTime"), bids.column("price"), structs(bids, self.bid_type)]
        ids, bids = joined(
            flat(keys, self.early.values(keys)),
            (ids, pa.StructArray.from_arrays(columns, ["at", "price", "bid"])),
        )
        self.early.update_many(keys, pa.nulls(len(keys)))
        at, end = bids.field("at"), self.end.values(ids)
        counts = pc.and_(pc.greater_equal(at, self.begin.values(ids)), pc.less_equal(at, end))
        self._keep_best(*chosen(ids, bids, pc.fill_null(counts, False)))
        waits = pc.and_(end.is_null(), pc.greater(at, int(ctx.watermarks.max(initial=MIN_WATERMARK))))
        ids, bids = chosen(ids, bids, waits)
        ctx.timer_service().register_event_time_timers(ids, bids.field("at").to_numpy())
        keys = np.unique(ids)
        self.early.update_many(*lists(*joined(flat(keys, self.early.values(keys)), (ids, bids))))

    def _keep_best(self, ids: np.ndarray, bids: pa.StructArray) -> None:
        keys = np.unique(ids)
        ids, bids = joined(chosen(keys, best := self.best.values(keys), best.is_valid()), (ids, bids))
        order = np.lexsort((bids.field("at").to_numpy(), -bids.field("price").to_numpy(), ids))
        first = order[np.flatnonzero(np.diff(ids[order], prepend=-1))]
        self.best.update_many(ids[first], bids.take(first))

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        end = self.end.values(due.ids)
        ids = due.ids[pc.fill_null(pc.equal(end, due.timestamps), False).to_numpy(zero_copy_only=False)]
        best = self.best.values(ids)
        won = best.is_valid()
        columns = [self.item.values(ids), pc.struct_field(best, "bid"), self.end.values(ids)]
        yield pa.record_batch([column.filter(won) for column in columns], names=["item", "bid", "ms"])
        for state in (self.begin, self.end, self.item, self.best):
            state.update_many(ids, pa.nulls(len(ids)))
        ids = due.ids[end.is_null().to_numpy(zero_copy_only=False)]
        self.early.update_many(ids, pa.nulls(len(ids)))


def structs(batch: pa.RecordBatch, type_: StructType) -> pa.StructArray:
    """Return the columns of a struct type as one."""
    return pa.StructArray.from_arrays([batch.column(name) for name in type_.names], type_.names)


def chosen(ids: np.ndarray, rows: pa.Array, which: pa.BooleanArray) -> tuple[np.ndarray, pa.Array]:
    """Return some rows and their keys."""
    return ids[which.to_numpy(zero_copy_only=False)], rows.filter(which)


def winning_bids(events: DataFrame, item: Sequence[str], bid: Sequence[str]) -> DataFrame:
    """Return `item` and `bid`, structs of these columns, of each auction that has ended, and when it has.

    Times are epoch milliseconds. Persons have the key null: they only advance the watermark, as in Flink.
    """
    times = {name: F.unix_millis(name) for name in ("dateTime", "expires")}
    auction = F.when(F.col("event_type") != PERSON, F.coalesce("auction", "id"))
    rows = events.withColumns(times | {"auction": auction})
    rows = rows.select(*dict.fromkeys(["auction", "dateTime", "expires", "price", *item, *bid]))
    types = [rows.select(*columns).schema for columns in (item, bid)]
    result = [StructField("item", types[0]), StructField("bid", types[1]), StructField("ms", LongType())]
    return timerheap.spark.process(
        rows,
        key="auction",
        function=WinningBids(*types),
        output_schema=StructType(result),
        event_time="dateTime",
        watermark=WATERMARK,
        order="arrival",
    )


def q9(events: DataFrame) -> DataFrame:
    """Emit each auction with its winning bid."""
    won = winning_bids(events, AUCTIONS, ["auction", "bidder", "price", "dateTime", "extra"])
    renamed = {"dateTime": "bid_dateTime", "extra": "bid_extra"}
    bid = [F.col(f"bid.{name}").alias(renamed.get(name, name)) for name in won.schema["bid"].dataType.names]
    times = {name: F.timestamp_millis(name) for name in ("dateTime", "expires", "bid_dateTime")}
    return won.select("item.*", *bid).withColumns(times)


class AveragePrice(KeyedProcessFunction):
    """Emits the average of all prices of a key so far, cut to a whole number, and how many they are."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.count.update((self.count.value() or 0) + 1)
        self.total.update((self.total.value() or 0) + value.price)
        yield ctx.get_current_key(), self.total.value() // self.count.value(), self.count.value()


def q4(events: DataFrame) -> DataFrame:
    """Average the winning prices of each category; Flink also counts auctions that have not ended yet."""
    won = winning_bids(events, ["category"], ["price"]).select("item.category", "bid.price")
    return timerheap.spark.process(
        won,
        key="category",
        function=AveragePrice(),
        output_schema="id bigint, final bigint, auctions bigint",
    )


class LastPrices(KeyedProcessFunction):
    """Emits the average of the last 10 prices of a key."""

    def open(self, runtime_context: Any) -> None:
        self.prices = runtime_context.get_list_state(ListStateDescriptor("prices", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        prices = [*self.prices.get(), value.price][-10:]
        self.prices.update(prices)
        yield ctx.get_current_key(), sum(prices) // len(prices), value.ms, value.id


class Ended(WatermarkGenerator):
    """Is the largest time: all auctions that end at one time come in one micro-batch."""

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        return max_timestamp


def q6(events: DataFrame) -> DataFrame:
    """Average the prices of each seller's last 10 auctions, in the order in which they end."""
    won = winning_bids(events, ["id", "seller"], ["price"]).select("item.*", "bid.price", "ms")
    return timerheap.spark.process(
        won,
        key="seller",
        function=LastPrices(),
        output_schema="seller bigint, avg_price bigint, ms bigint, id bigint",
        event_time="ms",
        watermark=WatermarkStrategy.for_generator(Ended),
    )
