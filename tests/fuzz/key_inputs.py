"""The inputs of the fuzzer of key tables: bytes that are interpreted as calls, as chunks, or as a head.

`run` raises for every defect: a table that differs from the model, an error of an undocumented class for
chunks that nobody wrote, or a table that is broken after it has refused some. The tables are on memory whose
released blocks are overwritten, so that the sanitizers and the model detect their use.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1].glob("support/*"))

import numpy as np
import pyarrow as pa
from memories import Arena

from timerheap._native._core import seal, unseal
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.stored.chunks import pieces, read_chunk, write_chunk
from timerheap.spark._group.stored.kinds import KEYS

TYPES = ([pa.int64()], [pa.string()], [pa.float64()], [pa.int16(), pa.binary()], [pa.bool_(), pa.string()])
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 1, -1, 2**63 - 1, -(2**63)],
    pa.int16(): [0, 1, -(2**15)],
    pa.string(): ["", "a", "aa", "\0", "ü" * 40],
    pa.binary(): [b"", b"a", b"\xff" * 40],
    pa.float64(): [0.0, float("nan"), 1.5, float("inf")],
    pa.bool_(): [False, True],
}
HASHES = (0, 1, 2, 2**63 - 1, -(2**63), -1)  # few, and some next to each other: keys are displaced
MOST_CALLS = 24


class Program:
    """Calls of one table, and a model of it: a dict from keys to ids."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        types = TYPES[self.byte() % len(TYPES)]
        self.fields = [pa.field(f"column {i}", type_) for i, type_ in enumerate(types)]
        self.spread = 1 + self.byte() % len(HASHES)
        self.memory = Arena()
        self.table = KeyTable(self.fields, self.memory)
        self.ids: dict[tuple[Any, ...], int] = {}
        self.chunks: list[bytes] = []

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def key(self) -> tuple[Any, ...]:
        drawn = [(self.byte(), VALUES[field.type]) for field in self.fields]
        return tuple(None if n % 8 == 7 else values[n % len(values)] for n, values in drawn)

    def hash(self, key: tuple[Any, ...]) -> int:
        return HASHES[sum(map(ord, repr(key))) % self.spread]

    def resolve(self) -> None:
        keys = [self.key() for _ in range(self.byte() % 16)]
        columns = [pa.array([key[i] for key in keys], f.type) for i, f in enumerate(self.fields)]
        hashes = np.array([self.hash(key) for key in keys], np.int64)
        ids = self.table.resolve(hashes, columns)
        for key, id_ in zip(map(repr, keys), ids.tolist(), strict=True):
            assert self.ids.setdefault(key, id_) == id_, "a live key has another id"
        assert len({*self.ids.values()}) == len(self.ids), "two keys have one id"
        assert [repr(row) for row in self.rows(ids)] == [*map(repr, keys)]
        assert self.table.hashes(ids).tolist() == hashes.tolist()

    def rows(self, ids: np.ndarray) -> list[tuple[Any, ...]]:
        columns = [column.to_pylist() for column in self.table.keys(ids).columns]
        return [*zip(*columns, strict=True)]

    def retain(self) -> None:
        kept = {key for key in self.ids if self.byte() % 2}
        ids = np.array([self.ids[key] for key in kept] + [12345], np.int64)
        self.table.retain([ids[:2], ids[1:]])
        self.ids = {key: id_ for key, id_ in self.ids.items() if key in kept}

    def save(self) -> None:
        changes = self.table.changes()
        if changes is not None:
            self.chunks += [write_chunk(KEYS, piece) for piece in pieces(changes, self.table.schema)]

    def merge(self) -> None:
        self.save()
        start = self.byte() % (len(self.chunks) + 1)
        batches = [read_chunk(KEYS, chunk, self.table.schema) for chunk in self.chunks[start:]]
        if batches:
            self.chunks[start:] = [write_chunk(KEYS, self.table.merge(batches))]

    def restore(self) -> None:
        """Continue in a table that was loaded from chunks."""
        self.save()
        self.memory = Arena()
        table = KeyTable(self.fields, self.memory)
        for number, chunk in enumerate(self.chunks):
            table.replay(read_chunk(KEYS, chunk, table.schema))
            if not number:
                table.reserve(1 + self.byte() / 16)
        found, wanted = (repr(one.snapshot().to_pylist()) for one in (table, self.table))  # NaN equals NaN
        assert found == wanted
        self.table = table

    def attach(self) -> None:
        """Continue on the same bytes, as another worker does."""
        self.save()
        head = json.loads(json.dumps(self.table.head()))
        self.table = KeyTable(self.fields, self.memory, head)

    def unknown(self) -> None:
        ids = np.array([self.byte() - 128], np.int64)
        for call in (self.table.expect, self.table.keys):
            try:
                call(ids)
            except KeyError:
                assert ids[0] not in self.ids.values()
            else:
                assert ids[0] in self.ids.values()

    def check(self) -> None:
        assert len(self.table) == len(self.ids)
        ids = np.array([*self.ids.values()], np.int64)
        assert [*map(repr, self.rows(ids))] == [*self.ids]

    def run(self) -> None:
        calls = (self.resolve, self.resolve, self.retain, self.save, self.merge, self.restore, self.attach)
        for _ in range(MOST_CALLS):
            if self.at >= len(self.data):
                break
            (*calls, self.unknown)[self.byte() % (len(calls) + 1)]()
            self.check()


def used(table: KeyTable, fields: list[pa.Field]) -> None:
    """Use a table whose contents nobody knows; an error must be one that is documented."""
    values = [VALUES[field.type] for field in fields]
    columns = [pa.array([value[0], None], field.type) for value, field in zip(values, fields, strict=True)]
    try:
        ids = table.resolve(np.array([0, 1], np.int64), columns)
        table.keys(ids)
        table.retain([ids])
        table.changes()
        KeyTable(fields).replay(table.snapshot())
    except (ValueError, IndexError):
        return


def chunks(data: bytes) -> None:
    """Load chunks of which one has other bytes, and with or without the right checksum, and use the table."""
    program = Program(data)
    program.resolve()
    program.save()
    program.retain()
    program.resolve()
    program.save()
    if not program.chunks:
        return
    sealed, at = program.byte() % 2, program.byte() % len(program.chunks)
    chunk = bytearray(unseal(KEYS, program.chunks[at]) if sealed else program.chunks[at])
    for _ in range(1 + program.byte() % 4):
        chunk[(program.byte() << 8 | program.byte()) % len(chunk)] = program.byte()
    program.chunks[at] = seal(KEYS, bytes(chunk)) if sealed else bytes(chunk)
    table = KeyTable(program.fields, Arena())
    with suppress(ValueError):
        for each in program.chunks:
            table.replay(read_chunk(KEYS, each, table.schema))
    used(table, program.fields)


def batches(data: bytes) -> None:
    """Load a batch that is valid Arrow, and that no table wrote: ids twice, nulls and hashes anywhere."""
    program = Program(data)
    rows = []
    for _ in range(program.byte() % 12):
        n, id_ = program.byte(), HASHES[program.byte() % len(HASHES)]
        values = {f"k{i}": value for i, value in enumerate(program.key())}
        key = {"hash": HASHES[n % len(HASHES)] if n & 64 else None, **values}
        rows.append({"id": None if n == 255 else id_, "key": None if n & 128 else key})
    table = KeyTable(program.fields, Arena())
    with suppress(ValueError):
        table.replay(pa.RecordBatch.from_pylist(rows, schema=table.schema))
    used(table, program.fields)


def heads(data: bytes) -> None:
    """Attach to a head that may have other numbers."""
    program = Program(data)
    program.resolve()
    program.save()
    numbers = json.dumps(program.table.head())
    at, digit = program.byte() % len(numbers), str(program.byte() % 10)
    if numbers[at].isdigit():
        numbers = numbers[:at] + digit + numbers[at + 1 :]
    try:
        table = KeyTable(program.fields, program.memory, json.loads(numbers))
    except (ValueError, KeyError):
        return
    used(table, program.fields)


def calls(data: bytes) -> None:
    """Repeat the calls of a table on the model."""
    Program(data).run()


MODES = (calls, calls, chunks, batches, heads)


def run(data: bytes) -> None:
    """Run an input, whose first byte determines the meaning of the rest."""
    if data:
        MODES[data[0] % len(MODES)](data[1:])


def seeds() -> Iterator[bytes]:
    """Yield the initial inputs: each meaning with a few keys of each type."""
    rng = np.random.default_rng(0)
    for mode in range(len(MODES)):
        for type_ in range(len(TYPES)):
            yield bytes([mode, type_, 2, 12]) + rng.bytes(120)


if __name__ == "__main__":  # without a fuzzer: run the seeds and a number of random inputs
    for seed in seeds():
        run(seed)
    rng = np.random.default_rng()
    for number in range(int(sys.argv[1])):
        inputs = rng.bytes(int(rng.integers(1, 200)))
        try:
            run(inputs)
        except BaseException:
            print(f"input {number}: {inputs!r}")
            raise
    print(f"{sys.argv[1]} random inputs")
