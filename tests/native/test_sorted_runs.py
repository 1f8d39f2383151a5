"""Runs of records in a file, compared with a sorted list; what is damaged is an error."""

from __future__ import annotations

import errno
import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_model import LEAST, LONGEST, MOST, PAGE, ModelledRun, Record, columns

from timerheap._native._core import Run


def some_records(rng: random.Random, n: int, spread: int = 2**62) -> list[Record]:
    longest = rng.choice([0, 40, 300, LONGEST])
    return [
        Record(
            rng.choice([LEAST, MOST]) if rng.random() < 0.01 else rng.randrange(-spread, spread),
            rng.randbytes(rng.randint(0, longest)),
            tuple(rng.randrange(50) for _ in range(rng.randrange(3))),
        )
        for _ in range(n)
    ]


def distinct(records: list[Record]) -> list[Record]:
    return [*{record.id: record for record in records}.values()]


@pytest.fixture
def modelled() -> Iterator[ModelledRun]:
    rng = random.Random(5)
    run = ModelledRun(distinct(some_records(rng, 500)))
    yield run
    run.close()


@pytest.mark.parametrize("seed", range(4))
def test_merges_agree_with_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    modelled = ModelledRun(distinct(some_records(rng, rng.choice([0, 1, 600]))))
    for _ in range(12):
        modelled.check()
        n = len(modelled.records)
        modelled.dead |= {number for number in range(n) if rng.random() < 0.2}
        ids = [record.id for record in rng.choices(modelled.records, k=20)] if n else []
        modelled.check_found(ids + [rng.randrange(LEAST, MOST) for _ in range(20)])
        modelled.check_due(*(rng.randrange(60) for _ in range(3)))
        again = [Record(modelled.records[at].id, b"again", (1,)) for at in list(modelled.dead)[:5]]
        low = rng.randrange(LEAST, 0) if rng.random() < 0.2 else LEAST
        modelled.merge(some_records(rng, rng.randrange(300)) + again, low)
        if rng.random() < 0.5:
            modelled.reopen()
    modelled.close()


def test_a_key_takes_few_bytes() -> None:
    rng = np.random.default_rng(1)
    n = 65_536
    ids = np.sort(rng.integers(LEAST, MOST, n))
    times = np.sort(rng.integers(0, 2**40, n))
    modelled = ModelledRun()
    run = Run.merged(modelled.fd, 0, ids, np.arange(1, n + 1) * 25, bytes(25 * n), times, rng.permutation(n))
    assert run.nbytes <= 48 * n, "an id, 25 bytes, and a time of 12 bytes"
    assert len(run.find(ids[::7])[0]) == len(ids[::7])
    modelled.close()


def test_runs_of_nothing() -> None:
    modelled = ModelledRun()
    assert modelled.run.nbytes == 0
    modelled.reopen()
    modelled.check_found([3])
    modelled.check_due(0, MOST)
    modelled.merge()
    modelled.merge([Record(0, b"x", (7,))])
    modelled.check()
    modelled.close()


@pytest.mark.parametrize("cut", [False, True])
def test_damage_is_an_error_or_makes_no_difference(modelled: ModelledRun, cut: bool) -> None:
    rng = random.Random(1)
    pages, wholes = modelled.run.nbytes // PAGE, 0
    for page in reversed(range(pages)):
        at = page * PAGE + rng.randrange(PAGE)
        whole = os.pread(modelled.fd, 1, at)
        if cut:
            os.ftruncate(modelled.fd, at)
        else:
            os.pwrite(modelled.fd, bytes([whole[0] ^ 1 << rng.randrange(8)]), at)
        with pytest.raises(ValueError, match="a page of it is damaged or missing"):
            modelled.run.check()
        calls: list[Callable[[], None]] = [
            lambda: modelled.check_found([record.id for record in rng.choices(modelled.records, k=2)]),
            lambda: modelled.check_gathered(rng.choices(range(len(modelled.records)), k=2)),
            lambda: modelled.check_due(10),
            modelled.reopen,
        ]
        for call in calls:
            try:
                call()
                wholes += 1
            except ValueError as error:
                if not re.search("damaged|within the", str(error)):
                    raise
        if not cut:
            os.pwrite(modelled.fd, whole, at)
    assert wholes > (0 if cut else pages), "who does not read the page does not notice"
    if not cut:
        modelled.check()


def test_a_run_in_the_place_of_another_is_noticed(modelled: ModelledRun) -> None:
    old = modelled.run
    Run.merged(modelled.fd, 0, *columns(modelled.records))
    with pytest.raises(ValueError, match="damaged"):
        old.check()


def test_what_the_system_refuses_is_an_os_error(modelled: ModelledRun) -> None:
    more = columns([Record(1, b"x")])
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(OSError, match="No space") as caught:
        Run.merged(full.fileno(), 0, *more)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="Bad file descriptor"):
        Run.merged(-1, 0, *more)
    modelled.check()
    fd = os.open("/dev/null", os.O_RDONLY)
    os.dup2(fd, modelled.fd)
    with pytest.raises(ValueError, match="damaged or missing"):
        modelled.run.check()
    os.close(fd)


def test_arguments_that_are_not_records_raise(modelled: ModelledRun) -> None:
    run, fd = modelled.run, modelled.fd
    there = modelled.records[3]
    with pytest.raises(ValueError, match="ids must not be in the run before"):
        Run.merged(fd, run.nbytes, *columns([there]), run)
    wrongs: list[tuple[tuple[Any, Any, bytes, Any, Any], str]] = [
        (([2, 1], [1, 2], b"xy", [], []), "ids must ascend, got 1 after 2"),
        (([1, 1], [1, 2], b"xy", [], []), "ids must ascend, got 1 after 1"),
        (([1], [1, 2], b"xy", [], []), "ends must have 1 values, got 2"),
        (([1], [3], b"xy", [], []), "ends must be from 0 to 2, got 3"),
        (([1, 2], [2, 1], b"xy", [], []), "ends must ascend"),
        (([1], [LONGEST + 1], bytes(5000), [], []), f"records must have up to {LONGEST} bytes"),
        (([1], [0], b"", [1], [1]), "owners must be numbers of the 1 records, got 1"),
        (([1], [0], b"", [1], [-1]), "owners must be numbers of the 1 records, got -1"),
        (([1], [0], b"", [1], []), "owners must have 1 values, got 0"),
        (([1], [0], b"", [2, 1], [0, 0]), "timestamps must ascend"),
        (([1, 2], [0, 0], b"", [1, 1], [1, 0]), "owners of equal timestamps must ascend"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(ValueError, match=message):
            Run.merged(fd, run.nbytes, *wrong)
    with pytest.raises(ValueError, match="ids must be from 5 to 9, got 1"):
        Run.merged(fd, run.nbytes, *columns([Record(1, b"")]), low=5, high=9)
    with pytest.raises(ValueError, match="numbers must be from 0 to"):
        run.gather([len(run)])
    with pytest.raises(ValueError, match="ids must ascend"):
        run.find([2, 1])
    with pytest.raises(ValueError, match="start must be from 0"):
        run.due(1, run.times + 1)
    with pytest.raises(ValueError, match="dead must have"):
        run.find([1], np.zeros(3, np.uint8))
    with pytest.raises(TypeError, match="made by"):
        Run()


def test_a_head_of_something_else_raises(modelled: ModelledRun) -> None:
    head = modelled.run.head
    for at in range(6):
        for other in (head[at] + 1, head[at] ^ 1, 0, 2**64 - 1, -1, None):
            if other != head[at]:
                changed: list[Any] = [*head[:at], other, *head[at + 1 :]]
                with pytest.raises(ValueError, match=r"damaged|head must"):
                    Run.open(modelled.fd, changed).check()
    with pytest.raises(ValueError, match="head must be the head of a run"):
        Run.open(modelled.fd, head[:5])


def test_threads_read_one_run(modelled: ModelledRun) -> None:
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(20):
                modelled.check_found([record.id for record in rng.choices(modelled.records, k=50)])
                modelled.check_due(rng.randrange(60))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_merge_streams(tmp_path: Path) -> None:
    """It takes a few bytes of memory for each record, and not the records."""
    n = 40_000
    ids, ends = np.arange(n), np.arange(1, n + 1) * 1000
    with open(tmp_path / "run", "w+b") as file:
        run = Run.merged(file.fileno(), 0, ids, ends, bytes(1000 * n), [], [])
        before = peak()
        merged = Run.merged(file.fileno(), run.nbytes, [], [], b"", [], [], run)
        assert len(merged) == n
        assert peak() - before < 4_000_000, "of 40 MB"


def peak() -> int:
    """Return the most memory that the process has had since the last call, in bytes."""
    status = Path("/proc/self/status").read_text()
    most = int(status[status.index("VmHWM:") + 6 :].split()[0]) << 10
    Path("/proc/self/clear_refs").write_text("5")
    return most
