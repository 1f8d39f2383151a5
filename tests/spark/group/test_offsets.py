"""Columns may exceed 2 GiB: offsets have 64 bits in memory, and chunks and users see the declared types."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from timerheap.spark import _arrow as offsets
from timerheap.spark._arrow import FITS, concatenated, fitting, narrow, size_of, wide, wide_rows, widen
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.row_buffer import RowBuffer
from timerheap.spark._group.value_state import StateTable

TEXT = pa.field("element", pa.string())
TYPES = {
    pa.string(): (pa.large_string(), ["a", None, "Zoë"]),
    pa.binary(): (pa.large_binary(), [b"a", None, b""]),
    pa.list_(TEXT): (pa.large_list(pa.field("element", pa.large_string())), [["a", None], None, []]),
    pa.map_(pa.string(), pa.list_(TEXT)): (
        pa.map_(pa.large_string(), pa.large_list(pa.field("element", pa.large_string()))),
        [[("a", ["b"])], None, [("c", None)]],
    ),
    pa.struct([("n", pa.int64()), ("text", pa.string())]): (
        pa.struct([("n", pa.int64()), ("text", pa.large_string())]),
        [{"n": 1, "text": "a"}, None, {"n": None, "text": None}],
    ),
    pa.timestamp("us", "UTC"): (pa.timestamp("us", "UTC"), [1, None, 2]),
}


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_wide_column_has_the_same_values(type_: pa.DataType) -> None:
    wanted, values = TYPES[type_]
    assert wide(type_) == wide(wanted) == wanted
    rows = pa.record_batch([pa.array(values, type_)], names=["c"])
    widened = widen(rows)
    assert widened.schema.field(0).type == wanted
    assert narrow(widened, rows.schema).equals(rows)
    assert narrow(widened.slice(1), rows.schema).equals(rows.slice(1))


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_size_depends_on_the_values_alone(type_: pa.DataType) -> None:
    _, values = TYPES[type_]
    rows = pa.record_batch([pa.array(values, type_)], names=["c"])
    rest = pa.record_batch([pa.array(values[2:], type_)], names=["c"])
    assert 0 < size_of(rest) == size_of(rows.slice(2)) < size_of(rows) == size_of(widen(rows))


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_the_parts_of_a_group_have_64_bit_offsets(type_: pa.DataType) -> None:
    wanted, values = TYPES[type_]
    column, ids = pa.array(values[:1], type_), np.array([5])
    family = StateTable(64, "s", type_)
    family.put_many(ids, column)
    assert family.get_many(ids).type == family.snapshot().schema.field(1).type == wanted
    keys = KeyTable([pa.field("k", type_)])
    keys.table.put(ids, pa.array([{"k0": values[0]}], keys.type))
    assert keys.table.type.field(0).type == wanted
    assert keys.keys(ids).schema.field(0).type == type_, "what the user sees"
    rows = RowBuffer(pa.schema([("c", type_)]), "event_time")
    assert rows.release(0)[0].rows.schema == rows.snapshot().schema.remove(2).remove(1)
    assert rows.release(0)[0].rows.schema.field(0).type == wanted


def test_a_slice_that_starts_beyond_2_gib_is_narrowed() -> None:
    size, n = 1 << 20, 2_100  # 2.05 GiB that nobody has touched, and that take no memory
    places = pa.py_buffer(np.arange(0, size * n + 1, size))
    text = pa.py_buffer(np.zeros(size * n, np.uint8))
    column = pa.LargeStringArray.from_buffers(n, places, text)
    rows = pa.record_batch([column], names=["text"])
    schema = pa.schema([("text", pa.string())])
    last = narrow(rows.slice(n - 1), schema)
    assert last.schema == schema
    assert last.column(0)[0].as_py() == "\0" * size
    spans = list(fitting(rows))
    assert spans[0][0] == 0
    assert spans[-1][1] == n
    assert all((stop - start) * size < FITS for start, stop in spans)
    assert list(fitting(rows.slice(0, 0))) == []
    assert wide_rows(schema) == rows.schema


def test_concatenated_rows_have_64_bit_offsets_where_they_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    short = pa.record_batch({"text": ["a", "bc"]})
    assert concatenated([short, short]).schema == short.schema
    for parts in ([short, widen(short)], [widen(short), short]):
        assert concatenated(parts).equals(widen(pa.record_batch({"text": ["a", "bc", "a", "bc"]})))
    monkeypatch.setattr(offsets, "FITS", 2 * short.nbytes - 1)
    assert concatenated([short, short]).schema == widen(short).schema
