"""A run of records in a file, beside a sorted list of what it must have."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from timerheap._native._core import Run

LEAST, MOST = -(2**63), 2**63 - 1
PAGE, LONGEST = 4096, 4070  # bytes of a page, and of the longest record


class Record(NamedTuple):
    id: int
    data: bytes
    times: tuple[int, ...] = ()


Columns = tuple[np.ndarray, np.ndarray, bytes, np.ndarray, np.ndarray]


def columns(records: Sequence[Record]) -> Columns:
    """Return records of ascending ids as the arguments of `Run.merged`."""
    ends = np.cumsum([len(record.data) for record in records], dtype=np.int64)
    times = sorted((ts, number) for number, record in enumerate(records) for ts in record.times)
    pairs = np.array(times, np.int64).reshape(len(times), 2)
    ids = np.array([record.id for record in records], np.int64)
    return ids, ends, b"".join(record.data for record in records), pairs[:, 0], pairs[:, 1]


def pieces(ends: np.ndarray, data: np.ndarray) -> list[bytes]:
    """Return the bytes of each record that was read."""
    bounds = [0, *ends.tolist()]
    return [data[one:other].tobytes() for one, other in pairwise(bounds)]


class ModelledRun:
    """A run, and what it must have: `records` by number, and which of them are `dead`."""

    def __init__(self, records: Sequence[Record] = (), fd: int | None = None) -> None:
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        self.fd = fd
        self.records = sorted(records)
        self.dead: set[int] = set()
        self.run = Run.merged(fd, 0, *columns(self.records))

    def close(self) -> None:
        os.close(self.fd)

    @property
    def bits(self) -> np.ndarray:
        mask = np.zeros(-(-len(self.records) // 8) * 8, bool)
        mask[list(self.dead)] = True
        return np.packbits(mask, bitorder="little")

    def alive(self, low: int = LEAST, high: int = MOST) -> list[Record]:
        records = (record for number, record in enumerate(self.records) if number not in self.dead)
        return [record for record in records if low <= record.id <= high]

    def merge(self, more: Sequence[Record] = (), low: int = LEAST, high: int = MOST) -> None:
        """Continue with what is alive between bounds, and with those of more that lie there."""
        there = {record.id for record in self.alive()}
        distinct = {record.id: record for record in more if low <= record.id <= high}
        added = sorted(record for record in distinct.values() if record.id not in there)
        at = self.run.head[0] + self.run.nbytes
        arguments = columns(added)
        most = Run.most_bytes(len(added), len(arguments[2]), len(arguments[3]), self.run)
        self.run = Run.merged(self.fd, at, *arguments, self.run, self.bits, low, high)
        assert self.run.nbytes <= most
        self.records, self.dead = sorted(self.alive(low, high) + added), set()

    def reopen(self) -> None:
        self.run = Run.open(self.fd, self.run.head)

    def number(self, id_: int) -> int:
        at = bisect_left(self.records, Record(id_, b""))
        there = at < len(self.records) and self.records[at].id == id_ and at not in self.dead
        return at if there else -1

    def check_found(self, ids: Sequence[int]) -> None:
        ids = sorted(ids)
        numbers, ends, data = self.run.find(ids, self.bits)
        wanted = [self.number(id_) for id_ in ids]
        assert numbers.tolist() == wanted
        assert pieces(ends, data) == [b"" if at < 0 else self.records[at].data for at in wanted]

    def check_gathered(self, numbers: Sequence[int]) -> None:
        ids, ends, data = self.run.gather(sorted(numbers))
        wanted = [self.records[number] for number in sorted(numbers)]
        assert ids.tolist() == [record.id for record in wanted]
        assert pieces(ends, data) == [record.data for record in wanted]

    def check_due(self, *bounds: int) -> None:
        """Take what is due at one time after the other."""
        times = sorted((ts, number) for number, record in enumerate(self.records) for ts in record.times)
        start = 0
        for bound in sorted(bounds):
            stamps, numbers, end = self.run.due(bound, start, self.bits)
            due = [(ts, number) for ts, number in times[start:] if ts <= bound]
            assert end == start + len(due)
            found = zip(stamps.tolist(), numbers.tolist(), strict=True)
            assert [*found] == [pair for pair in due if pair[1] not in self.dead]
            some = self.run.due(bound, 0, self.bits, most=3)
            wanted = [(ts, number) for ts, number in times if ts <= bound and number not in self.dead][:3]
            assert [*zip(some[0].tolist(), some[1].tolist(), strict=True)] == wanted
            assert len(wanted) < 3 or times[some[2] - 1] == wanted[-1]
            start = end

    def check(self) -> None:
        """Compare all that the run has."""
        self.run.check()
        assert len(self.run) == len(self.records)
        self.check_found([record.id for record in self.records] + [0, LEAST, MOST])
        self.check_gathered(range(len(self.records)))
        self.check_due(5, MOST)
