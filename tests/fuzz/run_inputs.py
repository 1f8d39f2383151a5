"""The inputs of the fuzzer of runs: bytes that are interpreted as calls, damage, forged pages, or a head.

`run` raises for every defect: a run that differs from the model, an error of an undocumented class, or damage
that changes a result. Forged pages have the right checksums, so only the sanitizers tell what is wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1].glob("support/*"))

import numpy as np
from run_model import LEAST, LONGEST, MOST, PAGE, ModelledRun, Record

from timerheap._native._core import Run, xxh64

MOST_CALLS = 12
IDS = [LEAST, LEAST + 1, -1, 0, 1, MOST - 1, MOST, *range(10, 200)]
SIZES = [0, 1, 20, 100, 1000, LONGEST - 1, LONGEST]


class Calls:
    """Calls of one run, on the model."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.modelled = ModelledRun(self.records())

    def close(self) -> None:
        self.modelled.close()

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def record(self) -> Record:
        id_, size, times = IDS[self.byte() % len(IDS)], SIZES[self.byte() % len(SIZES)], self.byte()
        return Record(id_, bytes([id_ & 255]) * size, (times % 8,) * (times >> 6))

    def records(self) -> list[Record]:
        return [*{record.id: record for record in (self.record() for _ in range(self.byte() % 32))}.values()]

    def merge(self) -> None:
        self.modelled.merge(self.records())

    def part(self) -> None:
        low, high = sorted(IDS[self.byte() % len(IDS)] for _ in range(2))
        self.modelled.merge(self.records(), low, high)

    def die(self) -> None:
        for _ in range(self.byte() % 8):
            if self.modelled.records:
                self.modelled.dead.add(self.byte() % len(self.modelled.records))

    def find(self) -> None:
        self.modelled.check_found([IDS[self.byte() % len(IDS)] for _ in range(self.byte() % 16)])

    def due(self) -> None:
        self.modelled.check_due(self.byte() % 10, self.byte() % 10)

    def reopen(self) -> None:
        self.modelled.reopen()

    def run(self) -> None:
        calls = (self.merge, self.part, self.die, self.find, self.due, self.reopen)
        for _ in range(MOST_CALLS):
            if self.at >= len(self.data):
                break
            calls[self.byte() % len(calls)]()
            self.modelled.check()


def reads(modelled: ModelledRun) -> list[Callable[[], None]]:
    """Return all ways to read a run, each compared with the model."""
    everything = range(len(modelled.records))
    found = [record.id for record in modelled.records]
    return [
        lambda: modelled.check_found(found),
        lambda: modelled.check_gathered(everything),
        lambda: modelled.check_due(3, MOST),
        modelled.run.check,
        modelled.reopen,
        modelled.merge,
    ]


def calls(data: bytes) -> None:
    """Repeat the calls of a run on the model."""
    with closing(Calls(data)) as program:
        program.run()


def damage(data: bytes) -> None:
    """Change bytes of the file, or cut it off: what is read is right, or an error."""
    with closing(Calls(data)) as program:
        program.merge()
        modelled, size = program.modelled, program.modelled.run.nbytes
        start = modelled.run.head[0]
        for _ in range(1 + program.byte() % 3):
            at = start + (program.byte() << 8 | program.byte()) % max(size, 1)
            os.pwrite(modelled.fd, bytes([program.byte()]), at)
        if program.byte() % 4 == 0:
            os.ftruncate(modelled.fd, start + (program.byte() << 8 | program.byte()) % max(size, 1))
        for read in reads(modelled):
            with suppress(ValueError):
                read()


def forged(data: bytes) -> None:
    """Change bytes of a page, and its checksum with them: nothing ends the process."""
    with closing(Calls(data)) as program:
        program.merge()
        modelled = program.modelled
        at, *_, seed = modelled.run.head
        for _ in range((1 + program.byte() % 2) * bool(modelled.records)):
            place = at + PAGE * (program.byte() % (modelled.run.nbytes // PAGE))
            page = bytearray(os.pread(modelled.fd, PAGE, place))
            for _ in range(1 + program.byte() % 4):
                page[8 + (program.byte() << 8 | program.byte()) % (PAGE - 8)] = program.byte()
            os.pwrite(modelled.fd, xxh64(page[8:], seed).to_bytes(8, sys.byteorder) + page[8:], place)
        for read in reads(modelled):
            with suppress(ValueError, AssertionError):
                read()


def heads(data: bytes) -> None:
    """Open a head that may have other numbers."""
    with closing(Calls(data)) as program:
        head = program.modelled.run.head
        at, bit = program.byte() % len(head), program.byte() % 64
        head[at] ^= 1 << bit
        with suppress(ValueError):
            Run.open(program.modelled.fd, head).check()
            assert not len(program.modelled.run), "no number of a run that has something can be different"


MODES = (calls, damage, forged, heads)


def run(data: bytes) -> None:
    """Run an input, whose first byte determines the meaning of the rest."""
    if data:
        MODES[data[0] % len(MODES)](data[1:])


def seeds() -> Iterator[bytes]:
    """Yield the initial inputs: each meaning with some records."""
    rng = np.random.default_rng(0)
    for mode in range(len(MODES)):
        for n in (0, 3, 20):
            yield bytes([mode, n]) + rng.bytes(170)


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
