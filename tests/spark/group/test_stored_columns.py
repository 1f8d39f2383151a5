"""Rows that wait in a checkpoint need the columns that they were stored with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import MemoryStore, load, save
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from queries import query_of

from timerheap import KeyedProcessFunction
from timerheap.spark._arrow import KeyedRows, widen
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.kinds import ROWS as ROWS_KIND
from timerheap.spark._group.stored.manifest import Manifest

FIELDS = [
    pa.field("k", pa.string()),
    pa.field("n", pa.int64()),
    pa.field("at", pa.struct([("x", pa.int32())])),
]

K, N, AT = FIELDS
KEY = StructType().add("k", "string")


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass


def saved_rows(watermark: int) -> MemoryStore:
    """Save a group with a watermark whose chunks hold rows of the times 5 and 6."""
    query = query_of(Silent(), from_arrow_schema(pa.schema(FIELDS)), KEY)
    group, stored, store = KeyGroup(query.layout), Stored(Manifest(1)), MemoryStore()
    for time in (5, 6):
        ids = group.keys.resolve(np.array([time]), [pa.array(["a"])])
        row = pa.record_batch([["a"], [time], [{"x": 7}]], schema=group.layout.rows)
        group.rows.append(KeyedRows(widen(row), ids, np.array([time])))
        save(group, stored, store)
    group.watermark = watermark
    group.rows.release(watermark)
    save(group, stored, store)
    assert any(kind == ROWS_KIND for kind, _ in store.chunks), "the released rows are still stored"
    return store


def reloaded(store: MemoryStore, *fields: pa.Field, order: RowOrder = "event_time") -> KeyGroup:
    group = KeyGroup(query_of(Silent(), from_arrow_schema(pa.schema(fields)), KEY, order=order).layout)
    load(store, group)
    return group


CHANGED: dict[str, tuple[list[pa.Field], dict[str, Any] | str]] = {
    "without a column": ([K, AT], {"k": "a", "at": {"x": 7}}),
    "with a new one": (
        [*FIELDS, pa.field("m", pa.string())],
        {"k": "a", "n": 6, "at": {"x": 7}, "m": None},
    ),
    "with another name": ([K, N.with_name("m"), AT], {"k": "a", "m": None, "at": {"x": 7}}),
    "with another field": (
        [K, N, AT.with_type(pa.struct([("y", pa.int32()), ("x", pa.int64())]))],
        {"k": "a", "n": 6, "at": {"y": None, "x": 7}},
    ),
    "of another type": ([K, N.with_type(pa.string()), AT], "n: int64 does not widen to string; go back"),
    "of a narrower one": ([K, N.with_type(pa.int32()), AT], "n: int64 does not widen to int32; go back"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_columns_may_change_while_rows_wait_or_once_none_does(case: str) -> None:
    fields, expected = CHANGED[case]
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=f"can take, got others: {expected}"):
            reloaded(saved_rows(5), *fields)
    else:
        group = reloaded(saved_rows(5), *fields)
        assert group.evolved
        assert group.rows.release(6)[0].rows.to_pylist() == [expected]
    store = saved_rows(6)
    group = reloaded(store, *fields)
    assert len(group.rows.ids()) == 0
    columns = [pa.nulls(1, field.type) for field in fields]  # the run then holds rows of both schemas
    row = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    group.rows.append(KeyedRows(widen(row), np.array([5]), np.array([8])))
    save(group, Stored(store.read_manifest()), store)
    assert reloaded(store, *fields).rows.release(8)[0].rows.equals(widen(row))


def test_the_order_may_change_once_no_row_waits() -> None:
    message = (
        "order must be 'event_time' while rows wait .* got 'arrival'; go back to order='event_time' until"
    )
    with pytest.raises(ValueError, match=message):
        reloaded(saved_rows(5), *FIELDS, order="arrival")
    assert len(reloaded(saved_rows(6), *FIELDS, order="arrival").rows) == 0


def test_waiting_rows_are_restored_if_the_columns_are_reordered() -> None:
    group = reloaded(saved_rows(5), *FIELDS[::-1])
    assert group.rows.release(6)[0].rows.to_pylist() == [{"at": {"x": 7}, "n": 6, "k": "a"}]
