"""What each released version has left behind goes on, or is refused with a way out that works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from feature_queries import BATCHES
from feature_queries import SCHEMA as OF_FEATURES
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from streams import read_stream, rows, run, write_batches
from write_checkpoint import AFTER, BEFORE, PLACE, SCHEMA, batch, move, query
from write_release import (
    PARALLELISM,
    QUERIES,
    REAL_TIME,
    STATES,
    contents,
    kept_features,
    results,
    unpack_feature,
)

import timerheap.spark
from timerheap.spark import InitialState, continue_from
from timerheap.spark._group.stored.formats import CHECKPOINT

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]

RELEASED = sorted(path for path in (Path(__file__).parents[1] / "data/released").iterdir() if path.is_dir())
KEPT = [(version, name) for version in RELEASED for name in kept_features(version)]
OF_QUERIES = [(version, name) for version, name in KEPT if name != REAL_TIME]


def name_of(value: object) -> str:
    return value.name if isinstance(value, Path) else str(value)


def format_of(version: Path) -> int:
    return int(json.loads((version / "release.json").read_text())["format"])


def wanted(version: Path) -> list[tuple[object, ...]]:
    """Return what the version itself has emitted after its checkpoint."""
    return sorted((tuple(json.loads(line)) for line in (version / "checkpoint/after.jsonl").open()), key=repr)


def reference() -> list[tuple[object, ...]]:
    """Compute the same from the rows alone."""
    every = sorted((row for n in range(BEFORE + AFTER) for row in batch(n)), key=lambda row: row["at"])
    watermark = [max(row["at"] for n in range(b) for row in batch(n)) - 501 for b in (BEFORE, BEFORE + AFTER)]
    found = []
    for key in sorted({row["k"] for row in every}):
        mine = [row for row in every if row["k"] == key and row["at"] <= watermark[1]]
        words: list[str] = []
        last: dict[str, int] = {}
        for row, after in zip(mine, [*mine[1:], None], strict=True):
            words.append(row["word"])
            last[row["word"]] = row["at"]
            due = row["at"] + 250
            if due < (after["at"] if after else watermark[1] + 1):
                if due > watermark[0]:
                    found.append((key, due, len(words), " ".join(words), max(last.values())))
                last.pop(words[0], None)
                words = []
    return sorted(found, key=repr)


def restored(version: Path, work: Path) -> None:
    """Put the checkpoint of a version, and the input of all micro-batches, into a folder."""
    shutil.copytree(version / "checkpoint", work / "checkpoint")
    write_batches(work / "in", [batch(n) for n in range(BEFORE + AFTER)], SCHEMA)
    move(work / "checkpoint", PLACE, str(work))


def test_every_format_that_is_read_has_been_kept() -> None:
    with_features = {format_of(version) for version, _ in KEPT}
    assert set(CHECKPOINT.read) == with_features
    assert {name for _, name in KEPT} == {*QUERIES, REAL_TIME}


@pytest.mark.parametrize("version", RELEASED, ids=name_of)
def test_its_checkpoint_goes_on_or_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, version: Path
) -> None:
    restored(version, tmp_path)
    if format_of(version) in CHECKPOINT.read:
        assert wanted(version) == reference(), "what was recorded is right"
        run(query(read_stream(spark, tmp_path / "in")), tmp_path)
        files = map(str, (tmp_path / "sink").glob("*.parquet"))  # the sink's own log begins in the middle
        assert rows(spark.read.parquet(*files)) == wanted(version)
        return
    refusal = f"state format {format_of(version)}, and this version reads {CHECKPOINT.written}.*initial_state"
    with pytest.raises(StreamingQueryException, match=refusal):
        run(query(read_stream(spark, tmp_path / "in")), tmp_path)
    with pytest.raises(ValueError, match=refusal):
        timerheap.spark.read_checkpoint(spark, str(tmp_path / "checkpoint")).timers()
    assert not list((tmp_path / "checkpoint/commits").glob(str(BEFORE))), "nothing of it was written"


@pytest.mark.parametrize("version", RELEASED, ids=name_of)
def test_a_query_starts_from_its_tables(spark: SparkSession, tmp_path: Path, version: Path) -> None:
    write_batches(tmp_path / "in", [batch(n) for n in range(BEFORE, BEFORE + AFTER)], SCHEMA)
    table = {path.stem: spark.read.parquet(str(path)) for path in (version / "tables").glob("*.parquet")}
    start = InitialState(
        states={name: table[name] for name in STATES},
        timers=table["timers"],
        buffered_rows=table["buffered_rows"],
        watermarks=table["watermarks"],
    )
    run(query(read_stream(spark, tmp_path / "in"), initial_state=start), tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "sink"))) == wanted(version)


def expect_shown(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Expect the tables of a version, in which a later one may show more columns."""
    assert found.keys() == wanted.keys()
    for operator, tables in wanted.items():
        assert found[operator].keys() == tables.keys()
        assert found[operator].pop("name") == tables.pop("name")
        for table, rows_then in tables.items():
            rest = list(found[operator][table])
            for row in rows_then:
                rest.remove(next(each for each in rest if has_all(each, row)))
            assert not rest


def has_all(row: list[Any], values: list[Any]) -> bool:
    """Return whether values are in a row, in this order."""
    left = iter(row)
    return all(value in left for value in values)


class Restored:
    """A query of a version that has stopped in the middle of its rows, all of which are there."""

    def __init__(self, spark: SparkSession, work: Path, version: Path, name: str) -> None:
        self._spark, self._folder, self._feature = spark, work / "in", QUERIES[name]
        self.wanted: dict[str, Any] = unpack_feature(version, name, work)
        write_batches(self._folder, BATCHES, OF_FEATURES)

    def query(self, key_groups: int = PARALLELISM) -> DataFrame:
        return self._feature(read_stream(self._spark, self._folder), key_groups)


@pytest.mark.in_turn(20)
@pytest.mark.parametrize(("version", "name"), OF_QUERIES, ids=name_of)
def test_a_feature_goes_on_after_an_upgrade(
    spark: SparkSession, tmp_path: Path, version: Path, name: str
) -> None:
    """From its checkpoint, which is read before, by the same query in this version."""
    restored = Restored(spark, tmp_path, version, name)
    expect_shown(contents(spark, tmp_path / "checkpoint"), restored.wanted["tables"])
    assert results(restored.query(), tmp_path) == restored.wanted["after"]


@pytest.mark.in_turn(20)
@pytest.mark.parametrize(("version", "name"), OF_QUERIES, ids=name_of)
def test_a_changed_query_goes_on_after_an_upgrade(
    spark: SparkSession, tmp_path: Path, version: Path, name: str
) -> None:
    """From its checkpoint into a new one, with other key groups."""
    restored, new = Restored(spark, tmp_path, version, name), tmp_path / "new"
    places = tmp_path / "checkpoint", new / "checkpoint"
    result = continue_from(spark, *places, lambda: restored.query(PARALLELISM + 2))
    assert results(result, new) == restored.wanted["after"]


@pytest.mark.parametrize("version", [version for version, name in KEPT if name == REAL_TIME], ids=name_of)
def test_a_checkpoint_of_real_time_mode_is_read(spark: SparkSession, tmp_path: Path, version: Path) -> None:
    tables = unpack_feature(version, REAL_TIME, tmp_path)["tables"]
    assert tables["0"]["state count"]
    expect_shown(contents(spark, tmp_path / "checkpoint"), tables)
