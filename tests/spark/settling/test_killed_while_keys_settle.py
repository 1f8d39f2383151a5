"""A worker that is killed at any place of a save in which keys settle changes no result."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from chunk_store import GroupStore
from killed_calls import CHANGES, killed_before
from settled_files import Repeated

pytestmark = [
    pytest.mark.skipif(not CHANGES, reason="the numbers of the system calls of this machine are not known"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


class Committing(GroupStore):
    """A store that leaves what it has in a file when it is complete."""

    def __init__(self, before: GroupStore, path: Path) -> None:
        super().__init__()
        self.chunks, self.manifest, self.path = before.chunks, before.manifest, path

    def write_manifest(self, manifest: Any) -> None:
        super().write_manifest(manifest)
        self.path.write_bytes(pickle.dumps((self.chunks, self.manifest)))


class Killed:
    """The first of two micro-batches in a worker that is killed, and what others do then."""

    def __init__(self, repeated: Repeated, path: Path) -> None:
        self.repeated, self.path = repeated, path

    def batches(self, number: int, commits: bool) -> tuple[Any, list[str]]:
        """Return what both result in with the chunks, and the calls of the worker; it did not make the last.

        commits: whether the store keeps what the worker had saved, else the micro-batch is repeated
        """
        live = self.repeated.live
        self.repeated.put_back()
        self.path.unlink(missing_ok=True)
        live.store = Committing(live.store, self.path)
        calls = killed_before(number, lambda: self.repeated.batch(2, " that is killed"))
        live.store = self.repeated.store.copy()
        results = self.repeated.expected[0][:1]
        if commits:
            live.store.chunks, live.store.manifest = pickle.loads(self.path.read_bytes())
        else:
            results = [self.repeated.batch(2, f" {commits} {number}")]
        results.append(self.repeated.batch(30, f" {commits} {number}"))
        assert live.file.suffix != ".taken", "the file of the dead is removed"
        return (results, live.store.chunks), calls


@pytest.mark.in_turn(5)
def test_a_worker_that_is_killed_before_any_change_of_a_file_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = Repeated(tmp_path / "local", monkeypatch, 200)
    killed, number, committed = Killed(repeated, tmp_path / "saved"), 0, []
    died: list[str] = []
    while True:
        found, calls = killed.batches(number, False)
        if len(calls) <= number:
            break
        assert found == repeated.expected, calls
        died.append(calls[-1])
        if killed.path.exists():
            committed.append(number)
        number += 1
    assert died.count("pwrite") > 10, "in merges"
    assert died[-2:] == ["rename", "flock"], "the last two give the file its name and unlock it"

    taken = []
    for number in committed:
        found, calls = killed.batches(number, True)
        assert found == repeated.expected, calls
        taken.append(repeated.live.counts["handed over"] > 0)
    assert taken == [False] * (len(committed) - 1) + [True], "under its name a file is whole"
