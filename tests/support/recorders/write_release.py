"""Write what a version of timerheap leaves behind into tests/spark/data/released/<version>/.

Run by hand with each release, by that version, on the newest PySpark that it supports:

$ python tests/support/recorders/write_release.py tests/spark/data/released/0.1.0

- ``checkpoint`` is a checkpoint of `write_checkpoint.py`'s query, and ``tables`` its contents as
  `read_checkpoint` returns them: with these a user of a later version that does not read it goes on.
- ``features.tar.xz`` has a folder for each query of `feature_queries.py`: its checkpoint in the middle of the
  rows, and in ``wanted.json`` its tables and the results that come after it. ``real time`` has those of the
  first query of `real_time_child.py`, without results.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feature_queries
import streams
import write_checkpoint
from children import PROGRAMS, import_path
from feature_queries import BATCHES, CUT, FEATURES, by_clock
from local_spark import start_spark
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap.errors import CheckpointError
from timerheap.spark._group.stored.formats import CHECKPOINT

STATES = ("due", "words", "last")
PLACE = write_checkpoint.PLACE
FEATURES_FILE = "features.tar.xz"
REAL_TIME = "real time"
QUERIES = FEATURES | {"process, by the clock": by_clock}
PARALLELISM = 3  # key groups of the kept queries


def write_tables(checkpoint: Path, target: Path) -> None:
    """Save the contents of a checkpoint, each table as one Parquet file."""
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_spark(scratch, cores=1)
        there = Path(scratch) / "checkpoint"
        shutil.copytree(checkpoint, there)
        write_checkpoint.move(there, PLACE, scratch)
        state = timerheap.spark.read_checkpoint(spark, str(there))
        tables = {name: state.state(name) for name in STATES}
        tables |= {
            "timers": state.timers(),
            "buffered_rows": state.buffered_rows(),
            "watermarks": state.watermarks(),
        }
        for name, table in tables.items():
            table.coalesce(1).write.parquet(f"{scratch}/{name}")
            (written,) = Path(scratch, name).glob("*.parquet")
            shutil.copy(written, target / f"{name}.parquet")
        spark.stop()


def plain(rows: list[tuple[Any, ...]]) -> Any:
    """Return rows as JSON has them."""
    return json.loads(json.dumps(rows, default=str))


def contents(spark: SparkSession, checkpoint: Path) -> dict[str, Any]:
    """Return what `read_checkpoint` finds in a checkpoint: each operator's tables."""
    operators = sorted(int(path.name) for path in (checkpoint / "state").glob("[0-9]*")) or [0]
    found = {}
    for number in operators:
        state = timerheap.spark.read_checkpoint(spark, checkpoint, operator=number)
        tables = {f"state {name}": state.state(name) for name in state.states}
        tables |= {"timers": state.timers(), "rows": state.buffered_rows(), "watermarks": state.watermarks()}
        try:
            tables["windows"] = state.windows()
        except CheckpointError:
            assert "windows" not in tables
        rows = {name: plain(streams.rows(table)) for name, table in tables.items()}
        found[str(number)] = {"name": state.name, **{name: each for name, each in rows.items() if each}}
    return found


def results(result: DataFrame, work: Path) -> dict[str, Any]:
    """Run a query over all there is; return the rows of the micro-batches that have some, by number."""
    found: dict[str, Any] = {}

    def collect(rows: DataFrame, batch: int) -> None:
        found[str(batch)] = plain(streams.rows(rows))

    writer = result.writeStream.foreachBatch(collect)
    timerheap.spark.run_available_now(writer.option("checkpointLocation", str(work / "checkpoint")))
    return {number: rows for number, rows in found.items() if rows}


def write_feature(
    spark: SparkSession, work: Path, query: Callable[[DataFrame, int], DataFrame]
) -> dict[str, Any]:
    """Leave a checkpoint of a query in a folder, as `PLACE`; return its tables and what comes after it."""
    streams.write_batches(work / "in", BATCHES[:CUT], feature_queries.SCHEMA)
    results(query(streams.read_stream(spark, work / "in"), PARALLELISM), work)
    tables, kept = contents(spark, work / "checkpoint"), work / "kept"
    shutil.copytree(work / "checkpoint", kept, ignore=shutil.ignore_patterns(".*.crc"))
    write_checkpoint.move(kept, str(work), PLACE)
    streams.write_batches(work / "in", BATCHES[CUT:], feature_queries.SCHEMA)
    after = results(query(streams.read_stream(spark, work / "in"), PARALLELISM), work)
    return {"tables": tables, "after": after}


def write_real_time(spark: SparkSession, work: Path) -> dict[str, Any]:
    """Leave a checkpoint of real-time mode in a folder; return its tables."""
    program = [sys.executable, PROGRAMS / "real_time_child.py", work]
    subprocess.run(program, env=os.environ | import_path(), check=True, stdout=subprocess.DEVNULL)
    (checkpoint,) = work.glob("*/rows/timerheap")
    shutil.copytree(checkpoint.parent, work / "kept", ignore=shutil.ignore_patterns(".*.crc"))
    return {"tables": contents(spark, work / "kept")}


def write_features(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(target, "w:xz") as archive:

        def add(name: str, work: Path, wanted: dict[str, Any]) -> None:
            archive.add(work / "kept", f"{name}/checkpoint", filter=without_times)
            text = json.dumps(wanted, indent=0).encode()
            member = tarfile.TarInfo(f"{name}/wanted.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))

        spark = start_spark(scratch, cores=1)
        spark.conf.set("spark.sql.shuffle.partitions", 1)
        for number, (name, query) in enumerate(QUERIES.items()):
            work = Path(scratch, str(number))
            add(name, work, write_feature(spark, work, query))
        work = Path(scratch, "real_time")
        work.mkdir()
        add(REAL_TIME, work, write_real_time(spark, work))
        spark.stop()


def without_times(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def kept_features(version: Path) -> list[str]:
    """Return the names of the queries whose checkpoints a version has left behind."""
    if not (version / FEATURES_FILE).exists():
        return []
    with tarfile.open(version / FEATURES_FILE) as archive:
        return [name.partition("/")[0] for name in archive.getnames() if name.endswith("/wanted.json")]


def unpack_feature(version: Path, name: str, work: Path) -> dict[str, Any]:
    """Put the checkpoint of a query into a folder, which its logs then name; return what is wanted."""
    with tarfile.open(version / FEATURES_FILE) as archive:
        members = [one for one in archive.getmembers() if one.name.startswith(f"{name}/")]
        archive.extractall(work, members, filter="data")
    (work / name / "checkpoint").rename(work / "checkpoint")
    write_checkpoint.move(work / "checkpoint", PLACE, str(work))
    wanted: dict[str, Any] = json.loads((work / name / "wanted.json").read_text())
    return wanted


def main(target: Path) -> None:
    cloudpickle.register_pickle_by_value(feature_queries)
    target.mkdir(parents=True)
    write_checkpoint.main(target / "checkpoint")
    (target / "tables").mkdir()
    write_tables(target / "checkpoint", target / "tables")
    write_features(target / FEATURES_FILE)
    (target / "release.json").write_text(json.dumps({"format": CHECKPOINT.written}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
