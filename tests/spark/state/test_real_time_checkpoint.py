"""A checkpoint of real-time mode that lacks a part of its state is an error, wherever it is read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from planes import inspected
from pyarrow import fs
from pyspark.sql import SparkSession
from queries import QUERY

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.spark._exchange.placement import label_of
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._state.epoch_store import EpochStore, folder_of, place_of_state

pytestmark = pytest.mark.spark

PARTITIONS, KEY_GROUPS = 3, 6
KEYS = [f"k{number}" for number in range(20)]


class Nothing(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        """Yield nothing."""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint after its epoch 4, whose path has letters of other scripts."""
    folder = tmp_path / "prüfung 检查点 %41"
    for name in ("commits", "offsets"):
        (folder / name).mkdir(parents=True)
        (folder / name / "4").write_text("v1\n{}")
    (folder / "metadata").write_text(json.dumps({"id": "a-query"}))
    for partition in range(PARTITIONS):
        of_partition = folder_of(str(folder / "timerheap"), 0, partition)
        store = EpochStore(fs.LocalFileSystem(), of_partition, partition, 0, 1)
        store._name = store._name._replace(epoch=4)
        for number in range(partition, KEY_GROUPS, PARTITIONS):
            group = KeyGroup(QUERY.layout)
            hashes = np.arange(number, len(KEYS), KEY_GROUPS)
            ids = group.keys.resolve(hashes, [pa.array([KEYS[each] for each in hashes])])
            group.event_timers.push_many(np.full(len(ids), 7_000), ids, np.zeros(len(ids), np.int64))
            store.select(label_of(number))
            stored = Stored(Manifest(KEY_GROUPS, os.urandom(8)))
            state = WatermarkState((WatermarkStrategy.no_watermarks(),), (None,)).to_bytes()
            stored.save(store, group.loaded(), state, whole=True, writes_watermark=True)
        store.commit()
    return folder


def test_a_whole_one_is_read_wherever_it_lies(spark: SparkSession, checkpoint: Path) -> None:
    state = timerheap.spark.read_checkpoint(spark, checkpoint)
    assert (state.operator_id, state.name) == (0, None)
    assert sorted(row.k for row in state.timers().collect()) == sorted(KEYS)
    assert fs.FileSystem.from_uri(place_of_state(spark, str(checkpoint)))[1] == f"{checkpoint}/timerheap"


LOST = {
    "the last partition": ["00002"],
    "the last two": ["00001", "00002"],
    "the first partition": ["00000"],
    "one between": ["00001"],
    "the file of the last one": ["00002/4-1"],
    "the file of the first one": ["00000/4-1"],
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_one_without_a_part_of_its_state_is_an_error(
    spark: SparkSession, checkpoint: Path, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in lost:
        path = checkpoint / "timerheap" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=r"checkpoint must be .*: .*put back a whole copy"):
        timerheap.spark.read_checkpoint(spark, checkpoint)
    result = inspected(monkeypatch, spark, checkpoint)
    assert result.exit_code == 1
    assert "put back a whole copy" in result.output


def test_the_missing_key_groups_are_named(spark: SparkSession, checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "timerheap" / "00002")
    with pytest.raises(ValueError, match=r"got no state of 2 of 6 key groups \(2, 5\): files of its state"):
        timerheap.spark.read_checkpoint(spark, checkpoint)
    shutil.rmtree(checkpoint / "timerheap" / "00000")
    with pytest.raises(ValueError, match="got no state of partition 0 of 2 or more: files of its state"):
        timerheap.spark.read_checkpoint(spark, checkpoint)
