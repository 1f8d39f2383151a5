"""What an operator has reached goes to the stage behind it in the same attempt of a task alone."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from timerheap import MIN_WATERMARK
from timerheap.spark._exchange.followed_watermarks import FollowedWatermarks
from timerheap.spark._exchange.observed_times import counted, merged, observed, reached, reached_in
from timerheap.spark._exchange.reached import Reached, leave, take

ONE, OTHER = b"1" * 16, b"2" * 16
AHEAD = count(10_000.0, 10_000.0)  # so that each test is later than those before


class Attempt:
    """An attempt of a task, as PySpark shows it."""

    def __init__(self, number: int, run: str = "run") -> None:
        self.number, self.run = number, run

    def taskAttemptId(self) -> int:
        return self.number

    def getLocalProperty(self, name: str) -> str | None:
        return {"spark.jobGroup.id": self.run}.get(name)


@pytest.fixture(autouse=True, params=["executor", "none"])
def local(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files, with and without a local directory of the executor."""
    if request.param == "executor":
        monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},{tmp_path}/other")
        return tmp_path / "timerheap" / "reached"
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"timerheap-{os.geteuid()}" / "reached"


def test_each_attempt_takes_what_it_has_left(local: Path) -> None:
    """A retry, and a speculative copy beside it, are attempts of their own; ids repeat in other runs."""
    leave(Attempt(7), Reached(ONE, 10))
    leave(Attempt(71), Reached(ONE, 20))
    leave(Attempt(7, "other run"), Reached(ONE, 30))
    assert take(Attempt(8)) == []
    assert take(Attempt(7)) == [Reached(ONE, 10)]
    assert take(Attempt(7)) == []
    assert take(Attempt(71)) == [Reached(ONE, 20)]
    assert take(Attempt(7, "other run")) == [Reached(ONE, 30)]
    assert not list(local.iterdir())
    assert stat.S_IMODE(local.stat().st_mode) == 0o700


def test_partitions_of_one_task_are_told_apart(local: Path) -> None:
    for mark in (None, MIN_WATERMARK, -1, 5):
        leave(Attempt(1), Reached(ONE, mark))
    leave(Attempt(1), Reached(OTHER, 3, unbounded=True))
    found = take(Attempt(1))
    assert sorted(found, key=repr) == sorted(
        [*(Reached(ONE, mark) for mark in (None, MIN_WATERMARK, -1, 5)), Reached(OTHER, 3, True)], key=repr
    )


def test_a_damaged_file_is_an_error(local: Path) -> None:
    leave(Attempt(1), Reached(ONE, 10))
    (file,) = local.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="must have 26 bytes, got 25"):
        take(Attempt(1))


def test_a_folder_that_others_can_use_is_not_read(local: Path) -> None:
    leave(Attempt(1), Reached(ONE, 10))
    local.chmod(0o777)
    assert take(Attempt(1)) == []
    local.chmod(0o700)
    assert take(Attempt(1)) == [Reached(ONE, 10)]


def test_what_nobody_takes_is_removed(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic() + next(AHEAD)]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    leave(Attempt(1), Reached(ONE, 10))
    leave(Attempt(2), Reached(ONE, 10))
    take(Attempt(2))
    now[0] += 700
    leave(Attempt(3), Reached(ONE, 10))
    assert [each.name.split(".")[0] for each in local.iterdir()] == ["run-3"]


def test_a_full_disk_is_said_by_who_misses_the_file(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    leave(Attempt(1), Reached(ONE, 10))
    with pytest.raises(RuntimeError, match="got rows of a task without such an operator"):
        FollowedWatermarks(False, print).seen([], take(Attempt(1)))


def test_the_lowest_watermark_of_each_operator_counts() -> None:
    """A task without key groups tells nothing; an operator of which all tasks tell nothing has not begun."""
    one = reached({"1": 10, "2": None})
    two = reached({"1": None, "2": 5})
    rows = observed(3, None)
    seen = merged([one, rows, counted("null_time_rows", 2), two, reached({"2": 7})])
    assert reached_in(seen) == 5
    assert reached_in(merged([seen, seen])) == 5
    assert reached_in(merged([rows])) is None
    assert reached_in(one) == MIN_WATERMARK
    assert merged([two, rows, one]) == merged([rows, one, two])


def test_rows_of_results_do_not_advance_the_watermark() -> None:
    rows, nulls = observed(3, None), counted("null_time_rows", 2)
    mixed = FollowedWatermarks(True, print)
    assert mixed.seen([rows], []) == [rows]
    found = merged(mixed.seen([rows, nulls], [Reached(ONE, 10), Reached(ONE, None), Reached(ONE, 8)]))
    assert found.column("count").to_pylist() == [2, 0]
    assert reached_in(found) == 8


def test_results_without_a_limit_are_warned_of() -> None:
    said: list[Any] = []
    FollowedWatermarks(False, lambda *message: said.append(message)).seen([], [Reached(ONE, 1, True)])
    assert "limit how long they wait" in said[0][0][0]
