"""Prints digests of what the pack stage sends for the same rows; test_same_bytes.py runs it twice."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import xxh64
from timerheap.spark._columns import AHEAD, CHANNEL, INPUT, KEPT
from timerheap.spark._exchange.broadcaster import Broadcaster
from timerheap.spark._exchange.packer import Packer
from timerheap.spark._tvf.sliced_rows import SlicedRows, WindowSpec
from timerheap.tvf import TumblingSliceAssigner
from timerheap.tvf.aggregates import Max, Sum
from timerheap.tvf.distinct import CountDistinct

ROWS = 500


def batch(draw: random.Random) -> pa.RecordBatch:
    """Return rows with columns of many types, most of them with nulls, and all marks."""

    def some(*values: Any) -> list[Any]:
        return draw.choices([None, *values], k=ROWS)

    pair = pa.struct([("a", pa.int32()), ("b", pa.string())])
    columns = {
        "k": pa.array([f"k{draw.randrange(40)}" for _ in range(ROWS)]),
        "at": pa.array([draw.randrange(1 << 40) for _ in range(ROWS)], pa.timestamp("us")),
        "n": pa.array(some(1, 2, 3), pa.int64()),
        "word": pa.array(some("", "a", "longer"), pa.string()),
        "yes": pa.array(some(True, False), pa.bool_()),
        "list": pa.array(some([], ["a", None]), pa.list_(pa.string())),
        "pair": pa.array(some({"a": None, "b": "x"}, {"a": 1, "b": None}), pair),
        "map": pa.array(some([("a", 1), ("b", None)]), pa.map_(pa.string(), pa.int32())),
        CHANNEL: pa.array(some("a", "b", "c"), pa.string()),
        INPUT: pa.array(draw.choices([0, 1], k=ROWS), pa.int8()),
        KEPT: pa.array(draw.choices([True, False], k=ROWS)),
        AHEAD: pa.array(draw.choices([True, False], k=ROWS)),
    }
    return pa.RecordBatch.from_pydict(columns)


def digest(sent: Iterable[pa.RecordBatch]) -> int:
    return xxh64(repr([batch.to_pydict() for batch in sent]).encode())


def main() -> None:
    draw = random.Random(1)
    batches = [batch(draw) for _ in range(3)]
    flat = [one.select(["k", "at", "n", "word"]) for one in batches]
    number, text = np.dtype(np.int64), np.dtype(object)
    aggregates = [Sum("n", number), Max("n", number), CountDistinct("n", number), CountDistinct("word", text)]
    spec = WindowSpec(TumblingSliceAssigner(60_000), aggregates, {"word": pa.string()}, "windows")
    local = partial(SlicedRows, spec, ["k"], "at", {"n": number, "word": text})
    for packer, rows in (
        (Packer("k", "at", 8, inputs=2), batches),
        (Packer("k", "at", 8, reduce=local), flat),
        (Broadcaster(8), batches),
    ):
        print(digest(packer(iter(rows))))


if __name__ == "__main__":
    main()
