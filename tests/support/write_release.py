"""Write what a version of timerheap leaves behind into tests/spark/data/released/<version>/.

Run by hand with each release, by that version, after `write_checkpoint.py`'s query:

$ python tests/support/write_release.py tests/spark/data/released/0.1.0

``checkpoint`` is a checkpoint of that query, and ``tables`` its contents as `read_checkpoint` returns them:
with these a user of a later version with a different format goes on.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import write_checkpoint
from local_spark import start_spark

import timerheap.spark
from timerheap.spark._group.checkpoint import FORMAT

STATES = ("due", "words", "last")


def write_tables(checkpoint: Path, target: Path) -> None:
    """Save the contents of a checkpoint, each table as one Parquet file."""
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_spark(scratch, cores=1)
        there = Path(scratch) / "checkpoint"
        shutil.copytree(checkpoint, there)
        write_checkpoint.move(there, write_checkpoint.PLACE, scratch)
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


def main(target: Path) -> None:
    target.mkdir(parents=True)
    write_checkpoint.main(target / "checkpoint")
    (target / "tables").mkdir()
    write_tables(target / "checkpoint", target / "tables")
    (target / "release.json").write_text(json.dumps({"format": FORMAT}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
