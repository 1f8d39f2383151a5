"""A feature that the engine does not know, as docs/developing.md shows it, runs like one that it has."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import streams
from calls_of_process import calls_of_process
from chunk_store import MemoryStore
from first_rows import FIRST_TIMES, FirstRowsWork, FirstTimes, first_rows
from live_files import handed_over, live_file
from planes import BATCHES, DELAY, SCHEMA, instant, records
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction
from timerheap.errors import CheckpointMismatchError
from timerheap.spark import read_checkpoint
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.saving import Stored, loaded_group
from timerheap.spark._group.stored.kinds import OWN
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._tvf.windows_part import WindowsPart

Row = dict[str, Any]
ENGINE = ("_query.py", "_plan", "_exchange", "_worker", "_group", "_live", "_memory")
SPARK = Path(timerheap.spark.__file__).parent


def in_order(row: Row) -> tuple[Any, ...]:
    return row["at"], row["plane"] is None, row["plane"] or "", row["value"]


def firsts(batches: Iterable[list[Row]], end: int | None = None) -> tuple[list[Row], int]:
    """The first row of each plane, and the watermark, by way of a dict; `end` is the last watermark."""
    watermark, waiting, found = -(1 << 63), list[Row](), dict[str | None, Row]()
    for batch in [*batches, []]:
        waiting += [row for row in batch if row["at"] > watermark]
        watermark = max([watermark, *(row["at"] - DELAY - 1 for row in batch)])
        if not batch and end is not None:
            watermark = end
        for row in sorted(waiting, key=in_order):
            if row["at"] <= watermark:
                found.setdefault(row["plane"], row)
        waiting = [row for row in waiting if row["at"] > watermark]
    return list(found.values()), watermark


def first_planes(df: DataFrame) -> DataFrame:
    return first_rows(df, "plane", "at", watermark=f"{DELAY} milliseconds", max_parallelism=4)


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass


def values(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


@pytest.mark.spark
def test_it_runs_on_a_batch(spark: SparkSession) -> None:
    rows = [row for batch in BATCHES for row in batch]
    random.Random(7).shuffle(rows)
    found = streams.rows(first_planes(spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))))
    assert found == values(firsts([rows], (1 << 63) - 1)[0])


@pytest.mark.spark
def test_it_runs_on_a_stream_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    progress = []
    for restart in range(3):
        streams.write_batches(tmp_path / "in", BATCHES[2 * restart : 2 * restart + 2], SCHEMA)
        progress += streams.run(first_planes(streams.read_stream(spark, tmp_path / "in")), tmp_path)
        wanted, watermark = firsts(BATCHES[: 2 * restart + 2])
        assert streams.sink(spark, tmp_path) == values(wanted)
    measured = [batch.observedMetrics["timerheap"].metrics for batch in progress]
    assert [each["watermark"] for each in measured] == [firsts(BATCHES[: n + 1])[1] for n in range(6)]
    assert {each["groups"] for each in measured} == {4}

    state = read_checkpoint(spark, tmp_path / "checkpoint")
    groups = records(state.groups())
    assert {group["watermark"] for group in groups} == {instant(watermark)}
    assert measured[-1]["state_bytes"] == sum(group["bytes"] for group in groups)
    assert measured[-1]["buffered_rows"] == state.buffered_rows().count() > 0
    waiting = {row["plane"] for row in records(state.buffered_rows())}
    assert sum(group["keys"] for group in groups) == len({row["plane"] for row in wanted} | waiting)
    assert sum(group["windows"] for group in groups) == 0
    rows = streams.read_stream(spark, tmp_path / "in")
    with pytest.raises(ValueError, match=r"initial_state must be .* which has first rows"):
        timerheap.spark.process(
            rows, "plane", Silent(), "at long", "at", watermark=DELAY, initial_state=state
        )


@pytest.mark.spark
def test_process_gets_all_rows_of_a_key_group_in_one_call(spark: SparkSession, tmp_path: Path) -> None:
    """Of a micro-batch, whichever tasks they come from: own parts rest on it when they compact."""
    tasks, groups = 3, 4
    counts = pa.schema([("k", pa.int64()), ("at", pa.int64())])
    batches = [
        [[{"k": key, "at": task} for key in range(start, start + 40)] for task in range(tasks)]
        for start in (0, 20)
    ]
    streams.write_batches(tmp_path / "in", [task for batch in batches for task in batch], counts)
    rows = streams.read_stream(spark, tmp_path / "in", files=tasks)
    found = streams.batches(calls_of_process(rows, "k", "at", max_parallelism=groups), tmp_path)
    assert len(found) == len(batches)
    for calls in found:
        assert len(calls) <= groups
        assert [sum(column) for column in zip(*calls, strict=True)] == [40 * tasks, 40]


ROWS = pa.schema([("k", pa.int64())])


class SecondTimes(FirstTimes):
    """Another table of the same feature."""

    kind = FIRST_TIMES + 1


class SecondTable(FirstRowsWork):
    name = "second table"

    def part(self, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> SecondTimes:
        return SecondTimes(self.name, memory, head)


def layout() -> GroupLayout:
    return GroupLayout(
        key_fields=list(ROWS),
        rows=ROWS,
        order="event_time",
        drop_state=(),
        rename_state={},
        own=(FirstRowsWork(), SecondTable()),
    )


def added(group: KeyGroup, keys: list[int], times: list[int]) -> list[bool]:
    first, second = group.own
    assert isinstance(first, FirstTimes)
    assert isinstance(second, SecondTimes)
    ids = group.keys.resolve(np.array(keys), [pa.array(keys)])
    found: list[bool] = first.add(ids, np.array(times)).tolist()
    second.add(ids[::2], np.array(times[::2]))
    return found


def test_a_group_goes_on_in_another_process_and_from_its_checkpoint() -> None:
    group, store = KeyGroup(layout(), live_file()), MemoryStore()
    stored = Stored(Manifest(1))
    wanted: dict[int, int] = {}
    second: dict[int, int] = {}
    for step in range(40):
        keys = [step, step // 2, 100 + step // 3, step]
        times = [1000 * step + n for n in range(4)]
        new = [key not in wanted and key not in keys[:n] for n, key in enumerate(keys)]
        assert added(group, keys, times) == new
        wanted |= {key: time for key, time, is_new in zip(keys, times, new, strict=True) if is_new}
        second = {**dict(zip(keys[::2], times[::2], strict=True)), **second}
        stored.save(store, group, b"")
        group.forget_dead_keys()
        if step % 3 == 0:
            group, stored = handed_over(group, store)
        elif step % 3 == 1:
            group, stored = loaded_group(store, store.read_manifest(), layout(), live_file())
        for own, known in zip(group.own, (wanted, second), strict=True):
            assert dict(zip(*(c.to_pylist() for c in own.snapshot().columns), strict=True)) == known
        assert len(group.keys) == len(wanted)


def test_a_query_that_has_another_of_its_parts_says_so() -> None:
    group, store = KeyGroup(layout(), live_file()), MemoryStore()
    added(group, [1, 2, 3, 4], [1, 2, 3, 4])
    Stored(Manifest(1)).save(store, group, b"")
    renamed = type("Renamed", (SecondTable,), {"name": "another table"})
    changed = replace(layout(), own=(FirstRowsWork(), renamed()))
    assert not KeyGroup.fits(changed, group.head())
    with pytest.raises(CheckpointMismatchError, match="the checkpoint has second table, and the query has"):
        loaded_group(store, store.read_manifest(), changed)


def test_each_feature_has_a_kind_of_its_own() -> None:
    assert {WindowsPart.kind, FIRST_TIMES} <= OWN
    assert WindowsPart.kind != FIRST_TIMES


def test_the_engine_does_not_know_it() -> None:
    for room in ENGINE:
        for path in [SPARK / room] if room.endswith(".py") else (SPARK / room).rglob("*.py"):
            text = path.read_text().lower().replace("_", " ")
            assert "first rows" not in text, path
            assert "first times" not in text, path
