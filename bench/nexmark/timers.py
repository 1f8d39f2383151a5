"""The queries whose point is a timer: q9, the winning bids, and q4 and q6, which average their prices.

Event-time order is what makes the function short: a bid is seen between the auction's row and its timer if,
and only if, its time lies between the auction's begin and its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import timerheap.spark
from nexmark.generator import PERSON
from nexmark.streams import AUCTIONS, WATERMARK
from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.watermarks import WatermarkGenerator


class WinningBids(KeyedProcessFunction):
    """Emits an auction and its highest bid, of equal ones the first, when the auction ends.

    A row is the begin of an auction, which has `expires`, or a bid, which has `price`; `item` and `bid` are
    the types of what is emitted. A row reads a column when asked for it, so most bids cost a comparison.
    """

    def __init__(self, item: StructType, bid: StructType) -> None:
        self.item_type, self.bid_type = item, bid

    def open(self, runtime_context: Any) -> None:
        self.item = runtime_context.get_state(ValueStateDescriptor("item", self.item_type))
        self.bid = runtime_context.get_state(ValueStateDescriptor("bid", self.bid_type))
        self.price = runtime_context.get_state(ValueStateDescriptor("price", Types.LONG()))  # of `bid`, or 0

    def process_element(self, value: Any, ctx: Any) -> None:
        if value.expires is not None:
            self.item.update(tuple(value[name] for name in self.item_type.names))
            self.price.update(0)
            ctx.timer_service().register_event_time_timer(value.expires, name="expires")
            return
        highest = self.price.value()
        if highest is not None and value.price > highest:
            self.bid.update(tuple(value[name] for name in self.bid_type.names))
            self.price.update(value.price)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if self.price.value():
            yield self.item.value(), self.bid.value(), timestamp
        for state in (self.item, self.bid, self.price):
            state.clear()


def winning_bids(events: DataFrame, item: Sequence[str], bid: Sequence[str]) -> DataFrame:
    """Return `item` and `bid`, structs of these columns, of each auction that has ended, and when it has.

    Times are epoch milliseconds. Persons have the key null: they only advance the watermark, as in Flink.
    """
    times = {name: F.unix_millis(name) for name in ("dateTime", "expires")}
    auction = F.when(F.col("event_type") != PERSON, F.coalesce("auction", "id"))
    rows = events.withColumns(times | {"auction": auction})
    # Of rows with the same key and time, that with the lowest first column comes first: the auction's.
    rows = rows.select(*dict.fromkeys(["event_type", "auction", "dateTime", "expires", "price", *item, *bid]))
    types = [rows.select(*columns).schema for columns in (item, bid)]
    result = [StructField("item", types[0]), StructField("bid", types[1]), StructField("ms", LongType())]
    return timerheap.spark.process(
        rows,
        key="auction",
        function=WinningBids(*types),
        output_schema=StructType(result),
        event_time="dateTime",
        watermark=WATERMARK,
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
