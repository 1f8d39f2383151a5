"""Merged batches replay like the batches, for parts that are checkpointed row by row or group by group."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from timerheap.spark._memory.id_table import last_rows
from timerheap.spark._tvf.sliced_rows import WindowSpec
from timerheap.spark._tvf.windows_part import WindowsPart
from timerheap.tvf import TumblingSliceAssigner
from timerheap.tvf.aggregates import Count

IDS = st.integers(0, 4)
ROWS = pa.schema([("id", pa.int64()), ("value", pa.large_string())])
WINDOWS = WindowsPart(WindowSpec(TumblingSliceAssigner(1), [Count()], {}, "windows"))
VERSIONS = pa.schema(
    [(WINDOWS._version, pa.int64()), (WINDOWS._group, pa.int64()), ("value", pa.large_string())]
)


def batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[]] * len(schema)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@given(st.lists(st.lists(st.tuples(IDS, st.none() | st.text(max_size=2))), min_size=1, max_size=4))
def test_the_last_row_of_an_id_stays(saves: list[list[tuple[Any, ...]]]) -> None:
    merged = last_rows([batch(rows, ROWS) for rows in saves]).to_pylist()
    wanted = {id_: value for rows in saves for id_, value in rows}
    assert {row["id"]: row["value"] for row in merged} == wanted
    assert len(merged) == len(wanted)


def replayed(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Replay as the parts do: a row without a version deletes the rows of its group that came before."""
    rows: list[tuple[Any, ...]] = []
    for one in batches:
        found = [tuple(row.values()) for row in one.to_pylist()]
        deleted = {group for version, group, _ in found if version is None}
        rows = [row for row in rows if row[1] not in deleted]
        rows += [row for row in found if row[0] is not None]
    return rows


@given(st.data())
def test_later_versions_replace_earlier_ones(data: st.DataObject) -> None:
    saves = []
    for number in range(data.draw(st.integers(1, 6))):
        deleted = data.draw(st.sets(IDS))
        groups = data.draw(st.lists(IDS))
        deletions = [(None, group, None) for group in sorted(deleted)]
        saves.append(batch(deletions + [(number, group, str(number)) for group in groups], VERSIONS))
    start = data.draw(st.integers(0, len(saves) - 1))
    stop = data.draw(st.integers(start + 1, len(saves)))
    merged = WINDOWS.merge(saves[start:stop])
    assert replayed([*saves[:start], merged, *saves[stop:]]) == replayed(saves)
