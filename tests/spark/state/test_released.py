"""What each released version has left behind is continued, or refused with a way out that works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from streams import configured, read_stream, rows, run, write_batches
from write_checkpoint import AFTER, BEFORE, PLACE, SCHEMA, batch, move, query
from write_release import STATES

import timerheap.spark
from timerheap.spark import InitialState
from timerheap.spark._group.checkpoint import FORMAT

pytestmark = pytest.mark.spark

RELEASED = sorted(path for path in (Path(__file__).parents[1] / "data/released").iterdir() if path.is_dir())


def format_of(version: Path) -> int:
    return int(json.loads((version / "release.json").read_text())["format"])


def wanted(version: Path) -> list[tuple[object, ...]]:
    """Return what the version itself has emitted after its checkpoint."""
    return sorted((tuple(json.loads(line)) for line in (version / "checkpoint/after.jsonl").open()), key=repr)


def restored(version: Path, work: Path) -> None:
    """Put the checkpoint of a version, and the input of all micro-batches, into a folder."""
    shutil.copytree(version / "checkpoint", work / "checkpoint")
    write_batches(work / "in", [batch(n) for n in range(BEFORE + AFTER)], SCHEMA)
    move(work / "checkpoint", PLACE, str(work))


@pytest.mark.parametrize("version", RELEASED, ids=lambda path: path.name)
def test_its_checkpoint_is_continued_or_refused_by_name(
    spark: SparkSession, tmp_path: Path, version: Path
) -> None:
    restored(version, tmp_path)
    with configured(spark, shuffle_partitions=1):
        if format_of(version) == FORMAT:
            run(query(read_stream(spark, tmp_path / "in")), tmp_path)
            files = map(str, (tmp_path / "sink").glob("*.parquet"))
            assert rows(spark.read.parquet(*files)) == wanted(version)
            return
        refusal = f"state format {format_of(version)}, and this version reads {FORMAT}.*initial_state"
        with pytest.raises(StreamingQueryException, match=refusal):
            run(query(read_stream(spark, tmp_path / "in")), tmp_path)
        with pytest.raises(ValueError, match=refusal):
            timerheap.spark.read_checkpoint(spark, str(tmp_path / "checkpoint")).timers()
    assert not list((tmp_path / "checkpoint/commits").glob(str(BEFORE))), "nothing of it was written"


@pytest.mark.parametrize("version", RELEASED, ids=lambda path: path.name)
def test_a_query_starts_from_its_tables(spark: SparkSession, tmp_path: Path, version: Path) -> None:
    write_batches(tmp_path / "in", [batch(n) for n in range(BEFORE, BEFORE + AFTER)], SCHEMA)
    table = {path.stem: spark.read.parquet(str(path)) for path in (version / "tables").glob("*.parquet")}
    start = InitialState(
        states={name: table[name] for name in STATES},
        timers=table["timers"],
        buffered_rows=table["buffered_rows"],
        watermarks=table["watermarks"],
    )
    with configured(spark, shuffle_partitions=1):
        run(query(read_stream(spark, tmp_path / "in"), initial_state=start), tmp_path)
        assert rows(spark.read.parquet(str(tmp_path / "sink"))) == wanted(version)
