"""The job of capacity.py in Flink, with RocksDB (FlinkState.java), in a process whose memory has a limit."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from capacity import ROWS_A_BATCH, SOME, on_disk
from cgroups import forget, limited, pages_read
from peers.flink import find_jdk
from state import tell
from tight import HOT, medians
from usage import cpu

SOURCE = Path(__file__).with_name("FlinkState.java")
HEAP = "1g"  # touched before the limit holds
OTHERS = 256 << 20  # bytes beside the limit, for classes, compiled code, threads and the network
WARM_UP = 3  # batches that do not count


class FlinkState:
    """A Java process with Flink, which reads and writes in `folder`."""

    def __init__(self, jdk: Path, jars: str, folder: Path, managed: int, *checkpoint: str) -> None:
        shutil.rmtree(folder / "db", ignore_errors=True)
        opens = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util")]
        memory = [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+AlwaysPreTouch", "-XX:+UseG1GC"]
        java = [str(jdk / "java"), *opens, *memory, "-cp", f"{jars}{os.pathsep}{folder}", "FlinkState"]
        command = [*java, str(folder / "checkpoints"), str(folder / "db"), str(managed), *checkpoint]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self) -> list[float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("="):
                return [float(word) for word in line.split()[1:]]
        raise RuntimeError(f"Java has ended with {self.process.wait()}")

    def ask(self, *words: object) -> list[float]:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self.process.stdin.close()
        self.process.wait()


def measure(keys: int, limits: list[int], batches: int, scratch: Path) -> dict[str, Any]:
    """Return what rows take with Flink under each limit, or why there is no Flink."""
    jdk = find_jdk()
    if jdk is None:
        return {"skipped": "there is no JDK (javac)"}
    from nexmark.flink import CACHE, fetch

    folder = scratch / "flink"
    folder.mkdir()
    jars = str(fetch(CACHE).parent / "*")
    subprocess.run([jdk / "javac", "-nowarn", "-cp", jars, "-d", folder, SOURCE], check=True)
    java = FlinkState(jdk, jars, folder, 1 << 30)
    took = java.ask("build", keys, ROWS_A_BATCH)[0]
    size = on_disk([folder / "db"])
    java.close()
    (checkpoint,) = (folder / "checkpoints").glob("*/chk-*")
    tell(f"Flink: {keys:,} keys built in {took:.0f} s: {size / 1e9:.2f} GB of RocksDB's files")
    found: dict[str, Any] = {"files": size, "limits": []}
    for limit in limits:
        forget(path for path in folder.rglob("*") if path.is_file())
        java = FlinkState(jdk, jars, folder, limit // 2, checkpoint.as_uri())
        with limited([java.process.pid], limit + OTHERS) as group:
            try:
                java.ask("continue", 1 + keys // ROWS_A_BATCH)
                found["limits"].append(steps(java, keys, batches, group))
            except (RuntimeError, BrokenPipeError) as e:  # the limit was too low
                found["limits"].append({"failed": str(e)})
                tell(f"Flink, {limit / 1e6:,.0f} MB: {e}")
            java.close()
    return found


def steps(java: FlinkState, keys: int, batches: int, group: Path) -> dict[str, Any]:
    """Return what rows of cold and of hot keys take."""
    found = {}
    for seed in range(WARM_UP):
        java.ask("cold", keys, SOME, 1000 + seed)
    for name, more in (("cold", ()), ("hot", (HOT,))):
        took = []
        for seed in range(batches):
            before, faults = cpu(java.process.pid), pages_read(group)
            rows, checkpoint = java.ask(name, keys, SOME, seed, *more)
            used = cpu(java.process.pid).since(before)
            took.append((rows + checkpoint, rows, used.jvm, pages_read(group) - faults))
            tell(f"  Flink, {name}: {took[-1]}")
        found[name] = medians(("seconds", "rows", "jvm", "faults"), took)
    return found
