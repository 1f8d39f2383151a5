"""Measure what loading a key group of many keys takes, phase by phase, and what Flink's restore takes.

Run as ``python bench/recovery.py [--keys 1e6] --json out/recovery.json``. Without Spark: a process builds a
group with a named timer and a double for each key (skew.py), and saves it in a folder, as text, as Spark's
state store has it. Others load it: into memory, and as a group that is larger than what it may have there
(64 MB). Flink starts from a checkpoint of the job of capacity.py, on two slots, and from one of a thousand
keys, which shows what its start takes. All is CPU time, since that hardly depends on what runs beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from capacity import ROWS_A_BATCH
from chunk_store import MemoryStore
from figures import write_json
from peers.flink import find_jdk
from peers.flink_state import SOURCE, FlinkState
from skew import Group, Sessions, rows_of
from state import tell
from usage import cpu

from timerheap import Types, ValueStateDescriptor
from timerheap._native._core import from_text, to_text
from timerheap.spark._group.saving import Stored, loaded_group
from timerheap.spark._group.stored import stored_runs
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._live import large_groups
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._settling.settling_keys import SETTLING

FEW = 1_000  # keys of Flink's other checkpoint
ROWS = 100  # after which all tasks have their state
ROUNDS = 5


class Readings(Sessions):
    """Each row moves the timer of its key, and leaves a reading."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.DOUBLE()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        super().process_batch(batch, ctx)
        self.last.update_many(ctx.ids, pa.array(np.round(ctx.timestamps / 7, 2)))


class Texts(MemoryStore):
    """The state of a group as texts in files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def read(self, kind: int, id_: int) -> bytes:
        return from_text((self.folder / f"{kind}.{id_}").read_bytes().decode())

    def write(self, kind: int, id_: int, data: bytes) -> None:
        (self.folder / f"{kind}.{id_}").write_bytes(to_text(data).encode())

    def remove(self, kind: int, id_: int) -> None:
        (self.folder / f"{kind}.{id_}").unlink()

    def read_manifest(self) -> Manifest:
        return Manifest.from_bytes(self.read(0, 0))

    def write_manifest(self, manifest: Manifest) -> None:
        self.write(0, 0, manifest.to_bytes())


def build(keys: int, folder: Path) -> None:
    """Save a group of so many keys."""
    group = Group("", Readings())
    group.store = Texts(folder)
    for first in range(0, keys, ROWS_A_BATCH):
        numbers = np.arange(first, min(first + ROWS_A_BATCH, keys))
        group.batch(rows_of(numbers, numbers * 60_000 // ROWS_A_BATCH), -1)
    Stored(Manifest(16)).save(group.store, group.group, b"", whole=True)


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def load(keys: int, folder: Path, into_runs: bool) -> dict[str, Any]:
    """Return the CPU seconds of the phases of a load, and by how much the first one raised the peak."""
    took: Counter[str] = Counter()

    def timed(owner: Any, name: str, phase: str) -> None:
        call = getattr(owner, name)

        def calls(*arguments: Any) -> Any:
            begun = time.process_time()
            try:
                return call(*arguments)
            finally:
                took[phase] += time.process_time() - begun

        setattr(owner, name, calls)

    timed(Texts, "read", "read")
    timed(stored_runs, "read_chunk", "decode")
    timed(large_groups, "read_chunk", "sort")
    timed(large_groups._Sorter, "write", "sort")
    timed(large_groups, "_settle_some", "settle")
    store, layout, loads, rise = Texts(folder), Group("", Readings()).query.layout, [], 0
    for number in range(ROUNDS):
        file, before = LiveFile.create(str(folder / f"live {number}")), peak()
        took.clear()
        begun = time.process_time()
        if into_runs:
            arguments = store.read_manifest(), layout, file, replace(SETTLING)
            group, _ = large_groups.large_group(store, *arguments)
        else:
            group, _ = loaded_group(store, store.read_manifest(), layout, file)
        loads.append({**took, "all": time.process_time() - begun})
        assert len(group.keys) == keys
        rise = rise or peak() - before
        file.discard()
        tell(f"{loads[-1]}")
    phases = {phase: statistics.median(each[phase] for each in loads) for phase in loads[0]}
    return {"phases": phases, "rise": rise}


def flink(keys: int, scratch: Path) -> dict[str, Any]:
    """Return the CPU seconds of Flink's process up to its first rows, by keys of the checkpoint."""
    jdk = find_jdk()
    if jdk is None:
        return {"skipped": "there is no JDK (javac)"}
    from nexmark.flink import CACHE, fetch

    jars = str(fetch(CACHE).parent / "*")
    found: dict[str, Any] = {}
    for name, count in (("few", FEW), ("all", keys)):
        folder = scratch / name
        folder.mkdir()
        subprocess.run([jdk / "javac", "-nowarn", "-cp", jars, "-d", folder, SOURCE], check=True)
        java = FlinkState(jdk, jars, folder, 1 << 30)
        java.ask("build", count, ROWS_A_BATCH)
        java.close()
        (checkpoint,) = (folder / "checkpoints").glob("*/chk-*")
        took = []
        for seed in range(ROUNDS):
            java = FlinkState(jdk, jars, folder, 1 << 30, checkpoint.as_uri())
            java.ask("cold", count, ROWS, seed)
            took.append(cpu(java.process.pid).jvm)
            java.close()
            tell(f"Flink, {count:,} keys: {took[-1]:.2f} s of CPU")
        found[name] = statistics.median(took)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=lambda n: int(float(n)), default=1_000_000)
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    found: dict[str, Any] = {"keys": options.keys}

    def apart(work: Any, *arguments: Any) -> Any:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(work, *arguments).result()

    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as scratch:
        apart(build, options.keys, Path(scratch))
        for name, into_runs in (("memory", False), ("runs", True)):
            found[name] = apart(load, options.keys, Path(scratch), into_runs)
        found["flink"] = flink(options.keys, Path(scratch))
    print(json.dumps(found, indent=1), flush=True)
    write_json(options, found)


if __name__ == "__main__":
    main()
