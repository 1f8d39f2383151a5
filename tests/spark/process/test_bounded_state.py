"""The size of a checkpoint is bounded by the live state, and keys with equal hashes stay separate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from streams import read_stream, run, sink, write_batches

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap._native._core import from_text
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.stored.chunks import read_chunk
from timerheap.spark._group.stored.kinds import KEYS

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])


class Once(BatchProcessFunction):
    """Registers a timer for each row, which fires in the next micro-batch."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 100)

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = ctx.keys(due.ids).column("k")
        yield pa.record_batch([keys, pa.array(due.timestamps)], names=["k", "at"])


def chunks(spark: SparkSession, checkpoint: Path) -> dict[int, list[tuple[int, int, bytes]]]:
    """Return the chunks in a checkpoint by label, as (kind, id, data)."""
    state = spark.read.format("statestore").option("stateVarName", "chunks").load(str(checkpoint))
    found: dict[int, list[tuple[int, int, bytes]]] = {}
    entries = state.select("key.label", "user_map_key.kind", "user_map_key.id", "user_map_value.text")
    for label, kind, id_, text in entries.collect():
        found.setdefault(label, []).append((kind, id_, from_text(text)))
    return found


def test_new_keys_in_every_batch_do_not_grow_the_state(spark: SparkSession, tmp_path: Path) -> None:
    batches, each = 8, 400
    write_batches(
        tmp_path / "in",
        [[{"k": f"{b}-{i}", "at": b * 1000 + i} for i in range(each)] for b in range(batches)],
        SCHEMA,
    )
    result = timerheap.spark.process(
        read_stream(spark, tmp_path / "in"),
        "k",
        Once(),
        "k string, at bigint",
        "at",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        max_parallelism=2,
    )
    run(result, tmp_path)
    watermark = (batches - 1) * 1000 + each - 2
    wanted = [(f"{b}-{i}", b * 1000 + i + 100) for b in range(batches) for i in range(each)]
    assert sink(spark, tmp_path) == sorted(((k, at) for k, at in wanted if at <= watermark), key=repr)
    live = sum(at > watermark for _, at in wanted)
    keys = stored = 0
    for group in chunks(spark, tmp_path / "checkpoint").values():
        table = KeyTable([SCHEMA.field("k")])
        for kind, id_, data in sorted(group):
            stored += len(data)
            if kind == KEYS and id_:
                table.replay(read_chunk(kind, data, table.schema))
        keys += len(table)
    assert live <= keys <= 2 * live + each, "of 3,200 keys that came"
    assert stored < 20_000


# ---- Spark's xxhash64 of a bigint is a bijection for every seed, so a composite key can be made to collide.

P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
MASK = 2**64 - 1


def rotl(x: int, n: int) -> int:
    return (x << n | x >> (64 - n)) & MASK


def hash_long(value: int, seed: int) -> int:
    h = (seed + P5 + 8) & MASK
    h ^= rotl((value & MASK) * P2 & MASK, 31) * P1 & MASK
    h = (rotl(h, 27) * P1 + P4) & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


def unhash_long(h: int, seed: int) -> int:
    """The bigint whose hash under `seed` is `h`."""
    h ^= h >> 32
    h = h * pow(P3, -1, 2**64) & MASK
    h ^= h >> 29 ^ h >> 58
    h = h * pow(P2, -1, 2**64) & MASK
    h ^= h >> 33
    h = rotl((h - P4) * pow(P1, -1, 2**64) & MASK, 37)
    h ^= (seed + P5 + 8) & MASK
    value = rotl(h * pow(P1, -1, 2**64) & MASK, 33) * pow(P2, -1, 2**64) & MASK
    return value - 2**64 if value >> 63 else value


def colliding(first: tuple[int, int], others: list[int]) -> list[tuple[int, int]]:
    target = hash_long(first[1], hash_long(first[0], 42))
    return [first, *((a, unhash_long(target, hash_long(a, 42))) for a in others)]


class Count(KeyedProcessFunction):
    """Emits the number of rows of a key, one time unit after the last."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        if self.due.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.due.value())
        self.due.update(ctx.timestamp() + 1000)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield (*ctx.get_current_key(), self.count.value(), timestamp)
        self.count.clear()
        self.due.clear()


def count(df: DataFrame) -> DataFrame:
    return timerheap.spark.process(
        df,
        ["a", "b"],
        Count(),
        "a bigint, b bigint, n bigint, at bigint",
        "at",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        max_parallelism=4,
    )


def test_keys_with_the_same_hash_stay_separate(spark: SparkSession, tmp_path: Path) -> None:
    keys = colliding((7, 11), [8, 9, -(2**63)])
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("at", pa.int64())])
    frame = spark.createDataFrame([*keys], "a bigint, b bigint")
    assert frame.select(F.xxhash64("a", "b").alias("h")).distinct().count() == 1, "they do collide"

    def batch(at: int, *who: int) -> list[dict[str, int]]:
        return [{"a": keys[i][0], "b": keys[i][1], "at": at} for i in who]

    folder = tmp_path / "in"
    write_batches(folder, [batch(100, 0, 1, 2), batch(500, 1, 1)], schema)
    run(count(read_stream(spark, folder)), tmp_path)  # all wait for their timers; then a restart
    write_batches(folder, [batch(1200, 3, 2), batch(2000, 2, 1), batch(2600, 0), batch(9000, 3)], schema)
    run(count(read_stream(spark, folder)), tmp_path)
    wanted = [
        (0, 1, 1100),  # its hash is free from here on, while 1, 2 and 3 live under ids next to it
        (2, 1, 1100),
        (1, 3, 1500),
        (3, 1, 2200),
        (2, 2, 3000),
        (1, 1, 3000),
        (0, 1, 3600),
    ]
    assert sink(spark, tmp_path) == sorted(((*keys[i], n, at) for i, n, at in wanted), key=repr)
