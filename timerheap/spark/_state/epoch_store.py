"""The state of one partition in real-time mode: a file for each epoch, under the query's checkpoint.

Spark keeps no state in this mode. A task writes one file at the end of its epoch, `<epoch>-<run>`, with what
the epoch has changed, and an index of all that there is: where each chunk is in this file or in older ones.
The driver numbers its runs. An epoch starts from the file of the epoch before it, of the highest run that is
not above its own:

- A task may have saved an epoch that has failed elsewhere. The epoch is repeated in a later run, whose file
  has a higher number and so replaces it.
- A task of an older run that goes on somewhere writes a lower number, which is never taken again.

Epoch -1 is the state that a query starts from.

A file is there whole or not at all: on a local disk it is renamed, and an object store shows it when it is
closed. Its last bytes are the length of the index, which is sealed.
"""

from __future__ import annotations

import random
import re
import struct
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession

from timerheap._native._core import seal, to_text, unseal
from timerheap.errors import DamagedCheckpointError
from timerheap.spark._compat import hadoop_files, hadoop_path
from timerheap.spark._group.stored.chunk_store import ChunkStore
from timerheap.spark._group.stored.formats import EPOCH
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._worker.ledger import foreign

INDEX = 34
"""The kind of the index of an epoch's file."""

_HEAD = struct.Struct("<HqqiII")  # format, epoch, run, partition, files, chunks
_NAME = struct.Struct("<qq")  # epoch, run
_TAIL = struct.Struct("<q8s")
_MAGIC = b"thepoch1"
_COLUMNS = ("label", "kind", "id", "file", "offset", "length")
_FILE = re.compile(r"(-1|\d+)-(\d+)")
_RUN_FILE = re.compile(r"(\d+)(?:-[0-9a-f]+|\.sources)?")
_SMALL = 4 << 20
_SPARSE = 4  # a file whose live bytes are less than this part of it is copied
_KEPT_RUNS = 100


class Name(NamedTuple):
    """What a file is of."""

    epoch: int
    run: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.run}"


class Place(NamedTuple):
    """Where a chunk is."""

    file: Name
    offset: int
    length: int


Key = tuple[int, int, int]  # label, kind, id


class EpochStore(ChunkStore):
    """The `ChunkStore` of the selected key group of a partition, during one epoch.

    files, folder: the file system, and the folder of the partition on it
    partition, epoch, run: those of the task
    begins: whether no epoch was before

    Raises FileNotFoundError if there is no state of the epoch before, CheckpointError if a file is damaged.
    """

    def __init__(
        self,
        files: fs.FileSystem,
        folder: str,
        partition: int,
        epoch: int,
        run: int,
        *,
        begins: bool = False,
    ) -> None:
        self._files, self._folder = files, folder
        self._partition, self._name = partition, Name(epoch, run)
        self._places: dict[Key, Place] = {}
        self._written: dict[Key, bytes] = {}
        self._label = 0
        self._sizes: dict[Name, int] = {}
        self._held: tuple[Name, bytes] | None = None  # the file of the epoch before, if it is small
        self._found = self._listed()
        self._kept: set[Name] = set()
        if not begins and (epoch > 0 or (epoch == 0 and any(name.epoch < 0 for name in self._found))):
            self._begin_after(epoch - 1)

    def _begin_after(self, epoch: int) -> None:
        found = self._found
        ours = [name for name in found if name.epoch == epoch and name.run <= self._name.run]
        before = max(ours, default=None)
        if before is None:
            runs = sorted(name.run for name in found if name.epoch == epoch)
            raise FileNotFoundError(
                f"state of epoch {epoch} of partition {self._partition} must be in {self._folder}, got "
                + (f"only that of later runs {runs}" if runs else "no file of it")
                + "; put back a whole copy of the checkpoint, or start a new one"
            )
        if found[before] <= _SMALL:  # one request for all manifests, which every file has
            self._held = before, self._bytes(before, 0, found[before])
        self._places = self._index(before, found[before])
        self._sizes = {name: found[name] for name in {place.file for place in self._places.values()}}
        self._kept = {before, *self._sizes}

    def sweep(self) -> None:
        """Remove the files that no later epoch will read."""
        for name in self._found:
            if name not in self._kept and name.epoch < self._name.epoch and name.run <= self._name.run:
                with suppress(OSError):  # a different attempt may have removed it
                    self._files.delete_file(self._path(name))

    def _listed(self) -> dict[Name, int]:
        """Return the files of the partition, and their sizes."""
        infos = self._files.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        named = ((_FILE.fullmatch(info.base_name), info.size) for info in infos if info.is_file)
        return {Name(int(name[1]), int(name[2])): size for name, size in named if name}

    def _path(self, name: Name) -> str:
        return f"{self._folder}/{name}"

    def _bytes(self, name: Name, offset: int, length: int) -> bytes:
        if self._held is not None and self._held[0] == name:
            return self._held[1][offset : offset + length]
        with self._files.open_input_file(self._path(name)) as file:
            return bytes(file.read_at(length, offset))

    def _index(self, name: Name, size: int) -> dict[Key, Place]:
        """Return the index of a file; raise DamagedCheckpointError if it is damaged or another one's."""
        try:
            length, magic = _TAIL.unpack(self._bytes(name, size - _TAIL.size, _TAIL.size))
            if magic != _MAGIC or not 0 <= length <= size - _TAIL.size:
                raise ValueError("it has no index")
            data = unseal(INDEX, self._bytes(name, size - _TAIL.size - length, length))
        except (ValueError, struct.error) as e:
            raise self._damaged(name, e) from e
        EPOCH.expect(data[:2])
        try:
            _, *whose, files, chunks = _HEAD.unpack_from(data)
            if whose != [*name, self._partition]:
                raise ValueError(f"it is of epoch, run and partition {whose}")
            at = _HEAD.size + files * _NAME.size
            if len(data) != at + 8 * len(_COLUMNS) * chunks:
                raise ValueError("its index is cut off")
            names = [Name(*pair) for pair in _NAME.iter_unpack(data[_HEAD.size : at])]
            label, kind, id_, file, offset, length_ = (
                np.frombuffer(data, "<i8", offset=at).reshape(len(_COLUMNS), chunks).tolist()
            )
            places = (Place(names[one], *rest) for one, *rest in zip(file, offset, length_, strict=True))
            return dict(zip(zip(label, kind, id_, strict=True), places, strict=True))
        except (ValueError, IndexError, struct.error) as e:
            raise self._damaged(name, e) from e

    def _damaged(self, name: Name, why: Exception) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            f"{self._path(name)} must be the state of an epoch, got other bytes: {why}"
        )

    def commit(self) -> None:
        """Write the file of this epoch."""
        live: Counter[Name] = Counter()
        for place in self._places.values():
            live[place.file] += place.length
        for key, place in list(self._places.items()):
            if live[place.file] * _SPARSE < self._sizes[place.file]:
                self._written[key] = self._bytes(*place)
        places, at = dict(self._places), 0
        for key, data in self._written.items():
            places[key] = Place(self._name, at, len(data))
            at += len(data)
        index = seal(INDEX, self._encoded(places))
        path = self._path(self._name)
        self._files.create_dir(self._folder, recursive=True)
        draft = path if not isinstance(self._files, fs.LocalFileSystem) else f"{path}.draft"
        with self._files.open_output_stream(draft) as out:
            for data in self._written.values():
                out.write(data)
            out.write(index)
            out.write(_TAIL.pack(len(index), _MAGIC))
        if draft != path:
            self._files.move(draft, path)

    def _encoded(self, places: dict[Key, Place]) -> bytes:
        files = sorted({place.file for place in places.values()})
        numbers = {name: number for number, name in enumerate(files)}
        rows = [(*key, numbers[place.file], place.offset, place.length) for key, place in places.items()]
        head = _HEAD.pack(EPOCH.written, *self._name, self._partition, len(files), len(rows))
        table = np.array(rows, "<i8").reshape(len(rows), len(_COLUMNS)).T
        return head + b"".join(_NAME.pack(*name) for name in files) + table.tobytes()

    # The `ChunkStore` of the selected key group.

    def select(self, label: int) -> None:
        """Make the state of a key group the current one."""
        self._label = label

    def read(self, kind: int, id_: int) -> bytes | None:
        key = self._label, kind, id_
        if (data := self._written.get(key)) is not None:
            return data
        place = self._places.get(key)
        return None if place is None else self._bytes(*place)

    def write(self, kind: int, id_: int, data: bytes) -> None:
        key = self._label, kind, id_
        self._places.pop(key, None)
        self._written[key] = data

    def remove(self, kind: int, id_: int) -> None:
        key = self._label, kind, id_
        self._places.pop(key, None)
        self._written.pop(key, None)

    def write_manifest(self, manifest: Manifest) -> None:
        manifest.batch = self._name.epoch
        super().write_manifest(manifest)

    def chunks(self) -> Iterator[tuple[Key, bytes]]:
        """Yield all chunks that were there at the begin of the epoch."""
        for key, place in self._places.items():
            yield key, self._bytes(*place)


FOLDER = "timerheap"
"""Name of the folder in a checkpoint, which has one of each partition.

That of an operator behind others has a folder of its own in it, which has these.
"""

_CHUNKS = pa.schema([("label", pa.int32()), ("kind", pa.int32()), ("id", pa.int32()), ("text", pa.string())])
_OPERATOR = "operator-"
_BEGIN = "begin"
_LATEST = 1 << 62  # above all runs
_ASCII = "".join(map(chr, range(128)))
_AT_ONCE = 256  # chunks in a batch


def place_of_state(spark: SparkSession, checkpoint: str) -> str:
    """Return the URI, as PyArrow understands it, of the folder in a checkpoint that has the state."""
    path = hadoop_path(spark, checkpoint)
    uri = str(hadoop_files(spark, path).makeQualified(path).toUri())
    uri = quote(uri, safe=_ASCII)  # Java leaves letters of other scripts as they are
    scheme, _, rest = uri.partition(":")
    if scheme == "file":
        rest = f"///{rest.lstrip('/')}"
    return f"{'s3' if scheme == 's3a' else scheme}:{rest.rstrip('/')}/{FOLDER}"


def folder_of(folder: str, operator: int, partition: int) -> str:
    """Return the folder of a partition of an operator, given how many operators are before it."""
    return f"{folder}/{_of_operator(operator)}{partition:05}"


def _of_operator(operator: int) -> str:
    """Return what is before the names of partitions: nothing for those of the first operator."""
    return f"{_OPERATOR}{operator}/" if operator else ""


def sources_of(folder: str, run: int) -> str:
    """Return the path of the file in which a run has the number of the source's tasks, once they run."""
    return f"{folder}/runs/{run}.sources"


def begin_at(files: fs.FileSystem, folder: str, epoch: int) -> None:
    """Leave in the folder of the state that it begins with the state after an epoch; see `begun_at`."""
    with files.open_output_stream(f"{folder}/{_BEGIN}") as out:
        out.write(str(epoch).encode())


def begun_at(files: fs.FileSystem, folder: str) -> int:
    """Return the epoch whose state no epoch has written: -1, unless the query continues another."""
    try:
        with files.open_input_stream(f"{folder}/{_BEGIN}") as stream:
            return int(stream.read())
    except FileNotFoundError:
        return -1


def next_run(files: fs.FileSystem, folder: str) -> int:
    """Return the number of a new run, above all before it, which it leaves in the folder of the state.

    No other driver gets the same number, on any file system that lists what has been written: of two that
    claim one number, the later look sees both claims, so at most one driver sees its own alone. The files of
    the last runs stay, since a look may miss what comes or goes meanwhile: it sees one that is higher unless
    as many runs as are kept begin in it.
    """
    runs = f"{folder}/runs"
    files.create_dir(runs, recursive=True)
    while True:
        run = 1 + max(_runs_in(files, runs).values(), default=0)
        claim = f"{run}-{uuid.uuid4().hex}"
        _touch(files, f"{runs}/{claim}")
        known = _runs_in(files, runs)
        if all(number < run or name == claim for name, number in known.items()):
            break
        _remove_file(files, f"{runs}/{claim}")
        time.sleep(random.random() / 10)
    _touch(files, f"{runs}/{run}")
    for name, number in known.items():
        if number <= run - _KEPT_RUNS:
            _remove_file(files, f"{runs}/{name}")
    return run


def _runs_in(files: fs.FileSystem, folder: str) -> dict[str, int]:
    """Return the names of files of runs, with the numbers of the runs."""
    names = (info.base_name for info in files.get_file_info(fs.FileSelector(folder)))
    return {name: int(found[1]) for name in names if (found := _RUN_FILE.fullmatch(name))}


def _remove_file(files: fs.FileSystem, path: str) -> None:
    with suppress(OSError):  # a driver with a later run may have removed it
        files.delete_file(path)


def _touch(files: fs.FileSystem, path: str) -> None:
    with files.open_output_stream(path):
        pass


def partitions_of(spark: SparkSession, checkpoint: str, operator: int = 0) -> int:
    """Return the number of partitions of an operator that have state in files of epochs, 0 without any.

    Raises CheckpointError if one of them is missing. Whether there were more, only the key groups tell: see
    `expect_every_key_group`.
    """
    path = hadoop_path(spark, hadoop_path(spark, checkpoint), f"{FOLDER}/{_of_operator(operator)}")
    files = hadoop_files(spark, path)
    if not files.exists(path):
        return 0
    names = (status.getPath().getName() for status in files.listStatus(path))
    found = {int(name) for name in names if name.isdecimal()}
    partitions = max(found, default=-1) + 1
    if missing := sorted(set(range(partitions)) - found):
        raise foreign(f"no state of partition {', '.join(map(str, missing))} of {partitions} or more")
    return partitions


def expect_every_key_group(found: Mapping[int, Manifest]) -> None:
    """Raise CheckpointError if a key group is missing, all of which each epoch saves, also without rows."""
    wanted = max((manifest.max_parallelism for manifest in found.values()), default=0)
    if missing := sorted(set(range(wanted)) - found.keys()):
        shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise foreign(f"no state of {len(missing)} of {wanted} key groups ({shown})")


def last_epoch(spark: SparkSession, checkpoint: str) -> int:
    """Return the last epoch that has succeeded, -1 before the first."""
    path = hadoop_path(spark, hadoop_path(spark, checkpoint), "commits")
    files = hadoop_files(spark, path)
    names = [status.getPath().getName() for status in files.listStatus(path)] if files.exists(path) else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def chunks_of_epoch(
    spark: SparkSession, checkpoint: str, operator: int, partitions: int, epoch: int
) -> DataFrame:
    """Return the chunks of an operator after an epoch, with the columns label, kind, id and text."""
    location = place_of_state(spark, checkpoint)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files, folder = fs.FileSystem.from_uri(location)
        for batch in batches:
            for partition in batch.column("id").to_pylist():
                store = EpochStore(
                    files, folder_of(folder, operator, partition), partition, epoch + 1, _LATEST
                )
                chunks = store.chunks()
                while rows := [(*key, to_text(data)) for key, data in islice(chunks, _AT_ONCE)]:
                    columns = map(list, zip(*rows, strict=True))
                    arrays = [pa.array(*pair) for pair in zip(columns, _CHUNKS.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=_CHUNKS)

    numbers = spark.range(0, partitions, 1, partitions)
    return numbers.mapInArrow(read, "label int, kind int, id int, text string")
