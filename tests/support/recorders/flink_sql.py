"""Asks Flink's SQL, for the modules that record what it answers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["FlinkSql"]

SOURCE = Path(__file__).with_name("FlinkSql.java")


class FlinkSql:
    """A Flink whose tables are files of JSON.

    libraries: where pip has put apache-flink-libraries; beside them, a JDK is needed
    """

    def __init__(self, libraries: Path) -> None:
        self._folder = Path(tempfile.mkdtemp())
        jars = os.pathsep.join(map(str, (libraries / "pyflink" / "lib").glob("*.jar")))
        subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", self._folder, SOURCE], check=True)
        self._class_path = f"{jars}{os.pathsep}{self._folder}"
        self._tables: list[str] = []

    def add_table(self, name: str, columns: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add a table with the `columns` and the time ``ts``, which is ``millis`` in ms."""
        folder = self._folder / name
        folder.mkdir()
        (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))
        self._tables.append(
            f"CREATE TABLE {name} ({columns}, millis BIGINT, "
            "ts AS TO_TIMESTAMP_LTZ(millis, 3), WATERMARK FOR ts AS ts - INTERVAL '1' HOUR) WITH "
            f"('connector' = 'filesystem', 'format' = 'json', 'path' = '{folder}')"
        )

    def answers(self, mode: str, queries: Mapping[str, str]) -> tuple[dict[str, list[Any]], set[str]]:
        """Return the rows of each query, in "streaming" or "batch" mode, and the names of those refused."""
        script = self._folder / mode
        script.write_text("\n;\n".join([*self._tables, *(f"-- {n}\n{text}" for n, text in queries.items())]))
        java = ["java", "--add-opens=java.base/java.util=ALL-UNNAMED", "-cp", self._class_path]
        run = subprocess.run([*java, "FlinkSql", mode, script], check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, list[Any]] = {}
        refused = set()
        for line in run.stdout.splitlines():
            if line.startswith("== "):
                found[line[3:]] = rows = []
            elif line.startswith("!!"):
                print(list(found)[-1], line)
                refused.add(list(found)[-1])
            elif line.startswith("["):
                rows.append(json.loads(line))
        return found, refused
