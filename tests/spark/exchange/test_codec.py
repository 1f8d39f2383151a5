"""Frames return the rows that were packed, by partition and key group; other bytes are refused."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from timerheap._native._core import FIXED, ArrayView, Packing
from timerheap.spark._arrow import wide, widen
from timerheap.spark._exchange.codec import frame_rows, frames_of, hashes_of
from timerheap.spark._exchange.placement import Placement

STRUCT = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
    (pa.int16(), [-(2**15), 5]),
    (pa.int32(), [1, -(2**31)]),
    (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    (pa.int64(), [10**18, 10**18 + 200]),
    (pa.int64(), [-70_000, 70_000, 12]),
    (pa.float32(), [0.0, -0.0, 1.5]),
    (pa.float64(), [0.0, -0.0, math.inf]),
    (pa.string(), ["", "a", "user-00000001", "sn\N{SNOWMAN}w", "x" * 40]),
    (pa.string(), ["", "y" * 300]),
    (pa.binary(), [b"", b"\0", b"\xff" * 70_000]),
    (pa.large_string(), ["", "z"]),
    (pa.large_binary(), [b"", b"z"]),
    (pa.date32(), [datetime.date(2020, 1, 1), datetime.date(1, 1, 1)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)]),
    (pa.timestamp("us"), [datetime.datetime(2020, 1, 1), datetime.datetime(1, 1, 1)]),
    (pa.duration("us"), [datetime.timedelta(1), datetime.timedelta(-1)]),
    (pa.decimal128(38, 2), [decimal.Decimal("1.23"), decimal.Decimal("-9.99")]),
    (pa.binary(3), [b"abc", b"abd"]),
    (pa.null(), [None]),
    (pa.list_(pa.int64()), [[], [1, None]]),
    (STRUCT, [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}]),
    (pa.map_(pa.string(), pa.int32()), [[], [("k", 1), ("l", None)]]),
]
SCHEMA = pa.schema([(f"c{i}", type_) for i, (type_, _) in enumerate(TYPES)])


def batch_of(rng: np.random.Generator, n: int, nulls: bool) -> pa.RecordBatch:
    """Return n rows of all types, as slices of longer columns."""
    start = int(rng.integers(20))
    columns = []
    for type_, values in TYPES:
        some = [*values, None] if nulls else values
        columns.append(pa.array([some[i] for i in rng.integers(0, len(some), start + n + 3)], type_))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).slice(start, n)


def packed(
    batches: list[pa.RecordBatch], hashes: list[np.ndarray], placement: Placement
) -> dict[int, tuple[pa.RecordBatch, np.ndarray, np.ndarray]]:
    partitions, blobs = frames_of(batches, hashes, placement)
    return dict(zip(partitions.tolist(), map(frame_rows, blobs.to_pylist()), strict=True))


def random_hashes(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(-(2**63), 2**63 - 1, n)


def expected(
    batches: list[pa.RecordBatch], hashes: list[np.ndarray], placement: Placement
) -> dict[int, dict[int, list[int]]]:
    """Return the positions of the rows of each partition and key group."""
    found: dict[int, dict[int, list[int]]] = {}
    for row, hash_ in enumerate(np.concatenate(hashes).tolist()):
        key_group = hash_ % placement.max_parallelism
        found.setdefault(key_group % placement.partitions, {}).setdefault(key_group, []).append(row)
    return {partition: dict(sorted(groups.items())) for partition, groups in found.items()}


@pytest.mark.parametrize(("partitions", "max_parallelism"), [(1, 1), (2, 16), (3, 7), (20, 5), (1, 1 << 15)])
@pytest.mark.parametrize("nulls", [False, True])
def test_rows_of_all_types_arrive_in_the_order_of_key_groups(
    partitions: int, max_parallelism: int, nulls: bool
) -> None:
    rng = np.random.default_rng(partitions)
    placement = Placement(partitions, max_parallelism)
    batches = [batch_of(rng, n, nulls and n != 100) for n in (100, 0, 1, 57)]
    hashes = [random_hashes(rng, batch.num_rows) for batch in batches]
    whole = widen(pa.concat_batches(batches))
    found = packed(batches, hashes, placement)
    wanted = expected(batches, hashes, placement)
    assert found.keys() == wanted.keys()
    for partition, (rows, key_groups, counts) in found.items():
        groups = wanted[partition]
        assert key_groups.tolist() == list(groups)
        assert counts.tolist() == [len(positions) for positions in groups.values()]
        rows.validate(full=True)
        taken = whole.take(pa.array([row for positions in groups.values() for row in positions]))
        for name in SCHEMA.names:
            assert widen(rows).column(name).equals(taken.column(name)), name


def test_text_and_bytes_have_short_offsets_and_other_types_stay() -> None:
    rng = np.random.default_rng(0)
    batch = batch_of(rng, 9, True)
    ((rows, _, _),) = packed([batch], [random_hashes(rng, 9)], Placement(1, 16)).values()
    assert rows.schema.names == SCHEMA.names
    for field in rows.schema:
        declared = SCHEMA.field(field.name).type
        assert field.type not in (pa.large_string(), pa.large_binary())
        assert field.type == declared or wide(field.type) == declared


def test_rows_without_columns_keep_their_number() -> None:
    batch = pa.RecordBatch.from_pylist([{}] * 7, pa.schema([]))
    ((rows, key_groups, counts),) = packed([batch], [np.arange(7)], Placement(1, 2)).values()
    assert (rows.num_columns, key_groups.tolist(), counts.tolist()) == (0, [0, 1], [4, 3])


def test_no_rows_make_no_frames() -> None:
    rng = np.random.default_rng(0)
    assert packed([batch_of(rng, 0, True)], [np.empty(0, np.int64)], Placement(2, 16)) == {}


def test_close_timestamps_and_short_texts_take_few_bytes() -> None:
    n = 10_000
    batch = pa.record_batch(
        {"key": [f"user-{i:08}" for i in range(n)], "at": 1_700_000_000_000 + np.arange(n)}
    )
    _, blobs = frames_of([batch], [np.zeros(n, np.int64)], Placement(1, 16))
    assert len(blobs[0].as_py()) < n * (13 + 1 + 2) + 600


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.string(), ["", "a", "sn\N{SNOWMAN}w", "x" * 31, "x" * 32, "y" * 1000, None]),
        (pa.large_binary(), [b"", b"\0" * 7, b"\xff" * 8, None]),
        (pa.int8(), [0, -1, 127, -128, None]),
        (pa.int16(), [0, -1, 2**15 - 1, None]),
        (pa.int32(), [0, -1, 2**31 - 1, None]),
        (pa.int64(), [0, -1, 2**63 - 1, -(2**63), None]),
    ],
)
def test_hashes_are_those_of_xxhash(type_: pa.DataType, values: list[Any]) -> None:
    def bytes_of(value: Any) -> bytes:
        if isinstance(value, int):
            return value.to_bytes(8 if type_ == pa.int64() else 4, "little", signed=True)
        return value.encode() if isinstance(value, str) else value

    wanted = [42 if v is None else xxhash.xxh64_intdigest(bytes_of(v), seed=42) for v in values]
    array = pa.array([*values, *values], type_).slice(len(values))
    assert hashes_of(array).view(np.uint64).tolist() == wanted


def a_frame() -> bytes:
    rng = np.random.default_rng(0)
    _, blobs = frames_of([batch_of(rng, 20, True)], [random_hashes(rng, 20)], Placement(1, 4))
    return bytes(blobs[0].as_py())


def test_a_frame_at_any_address_is_read() -> None:
    frame = a_frame()
    shifted = memoryview(b"\0" + frame)[1:]
    assert frame_rows(shifted)[0].equals(frame_rows(frame)[0])


def test_every_other_frame_is_refused_or_holds_sound_rows() -> None:
    frame = a_frame()
    for size in range(0, len(frame), 7):
        with pytest.raises(ValueError, match="a frame"):
            frame_rows(frame[:size])
    with pytest.raises(ValueError, match="its header says"):
        frame_rows(frame + b"\0")
    rng = np.random.default_rng(0)
    for _ in range(2000):
        damaged = bytearray(frame)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(frame))] = rng.integers(256)
        try:
            rows, _, counts = frame_rows(bytes(damaged))
        except ValueError:
            continue
        assert rows.num_rows == counts.sum() == 20
        for column in rows.columns:
            text = pa.types.is_string(column.type)  # its bytes may be no UTF-8
            (column.view(pa.binary()) if text else column).validate(full=True)


def test_a_schema_of_other_columns_is_refused() -> None:
    packing = Packing([np.arange(3)], 1, 1)
    column = ArrayView(FIXED, 4, 0, 3, None, None, bytes(12))
    for schema in (
        [("a", pa.int64())],
        [("a", pa.int32()), ("b", pa.int32())],
        [("a", pa.list_(pa.int8()))],
        [],
    ):
        data, _ = packing.frames(pa.schema(schema).serialize(), [[column]])
        with pytest.raises(ValueError, match="a frame must hold the rows that its schema says"):
            frame_rows(data)
    data, _ = packing.frames(b"no schema", [[column]])
    with pytest.raises(ValueError, match="a frame must hold the rows that its schema says"):
        frame_rows(data)
