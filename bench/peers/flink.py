"""Flink's HeapPriorityQueueSet in a Java process that executes commands and returns nanoseconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

VERSION = "2.3.0"
SOURCE = Path(__file__).with_name("FlinkQueue.java")

# Flink's containers use G1. All memory is allocated at the start, so that no round includes growing the heap.
JAVA = ["-XX:+UseG1GC", "-Xms6g", "-Xmx6g"]


def find_jdk() -> Path | None:
    """Return the folder of `java` and `javac`, or None."""
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin" if home else None)
    return Path(javac).parent if javac else None


def fetch(folder: Path) -> Path:
    """Return Flink's jar from the package that PyFlink uses; download it (330 MB) if it is missing."""
    jar = f"pyflink/lib/flink-dist-{VERSION}.jar"
    if not (folder / jar).exists():
        package = f"apache-flink-libraries=={VERSION}"
        print(f"fetching {package} into {folder} ...", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--upgrade", "--target", folder, package], check=True)
    return folder / jar


class Flink:
    """The Java process; `folder` holds the jar, the compiled program and the timers."""

    def __init__(self, folder: Path, jdk: Path) -> None:
        self.folder = folder
        jar = fetch(folder)
        subprocess.run([jdk / "javac", "-nowarn", "-cp", jar, "-d", folder, SOURCE], check=True)
        command = [jdk / "java", *JAVA, "-cp", f"{jar}{os.pathsep}{folder}", "FlinkQueue"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.loaded: object = None
        self.clock_ns = self.ask("clock") / 10_000

    def ask(self, *words: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"Java has ended with {self.process.wait()} at {words}")
        return int(answer)

    def load(self, columns: tuple[np.ndarray, ...]) -> None:
        """Pass timers: timestamps and keys, then timestamps, new timestamps and keys in order of changes."""
        if self.loaded is not columns[0]:
            file = self.folder / "timers"
            file.write_bytes(b"".join(column.astype("<i8").tobytes() for column in columns))
            self.ask("load", file, len(columns[0]))
            self.loaded = columns[0]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # the process ends at the end of its input
        self.process.wait()
