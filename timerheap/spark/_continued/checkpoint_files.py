"""The files of a checkpoint, on any of Hadoop's file systems: read, written, renamed and copied."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from timerheap.errors import CheckpointError
from timerheap.spark._compat import checkpoint_manager, copy_folder, hadoop_files, hadoop_path, jvm

_FIRST_VERSION = re.compile(r"1((?:_[^.]+)?\.(?:zip|changelog|delta|snapshot)(?:\.crc)?)")
"""The files of a state store after the first micro-batch, and what their names end with."""


@dataclass(frozen=True)
class Planned:
    """A micro-batch in the log of offsets.

    version: "v1", or "v2" if the sources have names
    metadata: Spark's watermark, the time of the micro-batch, and settings
    offsets: where it ends, by the names of the sources, or their numbers from 0
    """

    version: str
    metadata: dict[str, Any]
    offsets: dict[str, str]

    @classmethod
    def of(cls, text: str) -> Planned:
        version, metadata, *lines = text.split("\n")
        if version == "v1":
            offsets = {str(number): line for number, line in enumerate(lines)}
        elif version == "v2":
            offsets = dict(line.split(":", 1) for line in lines)
        else:
            raise CheckpointError(f"a log of offsets must have version 1 or 2, got {version!r}")
        return cls(version, json.loads(metadata), offsets)

    @property
    def text(self) -> str:
        named = self.version == "v2"
        lines = (f"{name}:{offset}" if named else offset for name, offset in self.offsets.items())
        return "\n".join([self.version, json.dumps(self.metadata, separators=(",", ":")), *lines])


class CheckpointFiles:
    """The files of one checkpoint."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path
        self._root = hadoop_path(spark, path)
        self._files = hadoop_files(spark, self._root)
        self._manager = checkpoint_manager(spark, self._root)

    def _at(self, name: str) -> Any:
        return hadoop_path(self._spark, self._root, name) if name else self._root

    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self._at(name)))

    def names(self, folder: str = "") -> list[str]:
        """Return the names of what a folder has; none if it does not exist."""
        if not self.exists(folder):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._at(folder))]

    def contents(self, folder: str) -> tuple[tuple[str, str], ...]:
        """Return the names and texts of the files in a folder."""
        names = sorted(name for name in self.names(folder) if not name.startswith("."))
        return tuple((name, self.read(f"{folder}/{name}")) for name in names)

    def read(self, name: str) -> str:
        stream = self._files.open(self._at(name))
        try:
            found = jvm(self._spark).org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return bytes(found).decode()

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all; it may be there already."""
        self._make_folder(name.rpartition("/")[0])
        stream = self._manager.createAtomic(self._at(name), True)
        stream.write(text.encode())
        stream.close()

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that it has, if it exists."""
        self._files.delete(self._at(name), True)

    def copy_from(self, other: CheckpointFiles, source: str, target: str) -> None:
        """Copy a folder of another checkpoint."""
        self._make_folder(target.rpartition("/")[0])
        copy_folder(self._spark, other._at(source), self._at(target))

    def _make_folder(self, name: str) -> None:
        self._files.mkdirs(self._at(name))

    def last(self, log: str) -> int:
        """Return the number of the last micro-batch in a log, "offsets" or "commits"; -1 without any."""
        return max((int(name) for name in self.names(log) if name.isdigit()), default=-1)

    def planned(self, batch: int) -> Planned:
        """Return a micro-batch of the log of offsets."""
        return Planned.of(self.read(f"offsets/{batch}"))

    def number_state(self, version: int) -> None:
        """Rename the files of the state after the first micro-batch to those of a later version."""
        if version > 1:
            self._number(self._at("state"), version)

    def _number(self, folder: Any, version: int) -> None:
        for status in self._files.listStatus(folder):
            path = status.getPath()
            if status.isDirectory():
                if path.getName() not in ("_metadata", "_stateSchema", "SSTs", "logs"):
                    self._number(path, version)
            elif found := _FIRST_VERSION.fullmatch(path.getName()):
                target = hadoop_path(self._spark, folder, f"{version}{found[1]}")
                if not self._files.rename(path, target):
                    raise OSError(f"cannot rename {path} to {target.getName()}")
