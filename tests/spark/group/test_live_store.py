"""Workers hand the files of key groups over to each other, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from live_files import files

from timerheap.spark._live import dead_files
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._live.live_store import LiveStore

FORK = get_context("fork")
GROUP, OTHER = b"group-01", b"group-02"
T1, T2, T3 = b"token-01", b"token-02", b"token-03"


def store(folder: Path, query: str = "q") -> LiveStore:
    """Return the store as a new task of a worker sees it."""
    found = LiveStore([str(folder)], query)
    found.sweep()
    return found


def release(live: LiveStore, file: LiveFile, text: str, token: bytes, group: bytes = GROUP) -> None:
    """Write what `contents` reads, and release the file."""
    block = file.allocate(100_000)
    block.bytes[:] = np.frombuffer(text.encode().ljust(len(block.bytes)), np.uint8)
    live.release(file, str(block.at).encode(), group, token)


def contents(file: LiveFile | None) -> str | None:
    if file is None:
        return None
    block = file.attach(int(file.read_head()), 100_000)
    return bytes(block.bytes).decode().strip()


def put(folder: Path, token: bytes, text: str, group: bytes = GROUP) -> None:
    """Create and release a file."""
    files = store(folder)
    release(files, files.create(group), text, token, group)


def worker(work: Callable[[], Any]) -> int:
    """Run `work` in another process that ends without any cleaning, and return its exit code."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def batch(folder: Path, before: bytes, after: bytes, text: str) -> None:
    """One micro-batch: take the file, or make a new one as after a load from the state store."""
    files = store(folder)
    file = files.take(GROUP, before)
    if file is None:
        file = files.create(GROUP)
    else:
        file.read_head()
    release(files, file, text, after)


def test_the_next_worker_gets_what_the_last_one_released(tmp_path: Path) -> None:
    for number in range(4):
        tokens = b"token-%02d" % number, b"token-%02d" % (number + 1)
        assert worker(lambda number=number, tokens=tokens: batch(tmp_path, *tokens, f"text {number}")) == 0
        assert len(files(tmp_path)) == 1
    assert contents(store(tmp_path).take(GROUP, b"token-04")) == "text 3"


def test_a_worker_keeps_its_mapping_while_others_have_the_file(tmp_path: Path) -> None:
    mine = store(tmp_path)
    file = mine.create(GROUP)
    release(mine, file, "mine", T1)
    assert mine.take(GROUP, T1, file) is file, "nobody else had it"
    mine.release(file, file.read_head(), GROUP, T2)
    assert worker(lambda: batch(tmp_path, T2, T3, "of another worker")) == 0
    again = store(tmp_path).take(GROUP, T3, file)
    assert again is file
    again = file.anew()
    assert contents(again) == "of another worker"
    assert np.shares_memory(again._map, file._map)
    del file
    assert len(files(tmp_path)) == 1


def test_a_file_is_found_under_its_token_only(tmp_path: Path) -> None:
    put(tmp_path, T1, "text")
    assert store(tmp_path).take(OTHER, T1) is None
    assert store(tmp_path, "other query").take(GROUP, T1) is None
    assert files(tmp_path) == [f"{GROUP.hex()}.{T1.hex()}"]
    assert store(tmp_path).take(GROUP, T2) is None
    assert files(tmp_path) == [], "its contents will not be asked for again"


def test_two_groups_of_one_query_are_separate(tmp_path: Path) -> None:
    put(tmp_path, T1, "one")
    put(tmp_path, T1, "two", OTHER)
    live = store(tmp_path)
    one = live.take(GROUP, T1)
    assert contents(live.take(OTHER, T1)) == "two"
    assert contents(one) == "one"


def test_a_retry_does_not_get_the_file_that_the_failed_attempt_has_released(tmp_path: Path) -> None:
    put(tmp_path, T1, "committed")
    assert worker(lambda: batch(tmp_path, T1, T2, "fails after its release")) == 0
    retry = store(tmp_path)
    assert retry.take(GROUP, T1) is None
    assert files(tmp_path) == [], "the file of the failed attempt is removed"


def test_a_zombie_keeps_its_file_and_the_next_batch_removes_it(tmp_path: Path) -> None:
    put(tmp_path, T1, "committed")
    zombie = store(tmp_path)
    file = zombie.take(GROUP, T1)
    assert file is not None
    retry = store(tmp_path)
    assert retry.take(GROUP, T1) is None
    release(retry, retry.create(GROUP), "retried", T2)
    file.read_head()
    release(zombie, file, "zombie's", T3)
    taken = store(tmp_path).take(GROUP, T2)
    assert contents(taken) == "retried"
    assert len(files(tmp_path)) == 1


def test_of_speculative_twins_only_the_committed_one_is_continued(tmp_path: Path) -> None:
    put(tmp_path, T1, "committed")
    one, two = store(tmp_path), store(tmp_path)
    first, second = one.take(GROUP, T1), two.take(GROUP, T1)
    assert second is None
    second = two.create(GROUP)
    assert first is not None
    first.read_head()
    release(one, first, "one", T2)
    release(two, second, "two", T3)
    taken = store(tmp_path).take(GROUP, T3)
    assert contents(taken) == "two"
    assert len(files(tmp_path)) == 1


def test_of_many_workers_one_gets_the_file(tmp_path: Path) -> None:
    for _ in range(5):
        put(tmp_path, T1, "text")
        go, winners = FORK.Event(), FORK.Queue()

        def race(go: Any = go, winners: Any = winners) -> None:
            go.wait()
            live = store(tmp_path)
            file = live.take(GROUP, T1)
            winners.put(contents(file))

        processes = [FORK.Process(target=race) for _ in range(4)]
        for process in processes:
            process.start()
        go.set()
        found = [winners.get() for _ in processes]
        for process in processes:
            process.join()
        assert sorted(found, key=str) in ([None, None, None, "text"], [None] * 4)
        store(tmp_path)
        assert files(tmp_path) == []


TRACED = tuple(
    f"_live/{name}.py" for name in ("dead_files", "free_space", "live_file", "live_groups", "live_store")
)


def interrupted_at(line: int, work: Callable[[], object], interrupt: Callable[[], None]) -> bool:
    """Run `work`, and `interrupt` before the given line of the modules; return whether it was run."""
    left = line
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(
            (
                "live_file.py",
                "free_space.py",
                "blocks.py",
                "live_groups.py",
                "live_cache.py",
                "live_store.py",
                "dead_files.py",
            )
        ):
            return None
        left -= event == "line"
        if not left:
            sys.settrace(None)
            interrupt()
        return trace if left > 0 else None

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return left <= 0


def killed_at(line: int, work: Callable[[], None]) -> int:
    """Run `work` in a process that is killed before the given line of the modules, as it runs them."""
    return worker(lambda: interrupted_at(line, work, lambda: os.kill(os.getpid(), signal.SIGKILL)))


def test_a_group_handed_over_during_a_sweep_costs_no_other_group_its_file(tmp_path: Path) -> None:
    line, found = 0, True
    while found:
        line += 1
        put(tmp_path, T1, "one")
        put(tmp_path, T1, "other", OTHER)
        sweeping = LiveStore([str(tmp_path)], "q")
        found = interrupted_at(line, sweeping.sweep, lambda: batch(tmp_path, T1, T2, "two"))
        assert contents(sweeping.take(OTHER, T1)) == "other"
        assert contents(sweeping.take(GROUP, T2 if found else T1)) == ("two" if found else "one")
    assert line > 20


def test_a_worker_killed_at_any_point_leaves_a_whole_file_or_none(tmp_path: Path) -> None:
    line = 0
    ends = set()
    code = -1
    while code:
        line += 3
        put(tmp_path, T1, "before")
        code = killed_at(line, lambda: batch(tmp_path, T1, T2, "after"))
        assert len(files(tmp_path)) == 1
        before = contents(store(tmp_path).take(GROUP, T1))  # as the retry does
        assert before in ("before", None)
        after = None
        if before is None:  # the last batch was committed, although its worker died
            put(tmp_path, T1, "before")
            code = killed_at(line, lambda: batch(tmp_path, T1, T2, "after"))
            after = contents(store(tmp_path).take(GROUP, T2))
            assert after in ("after", None)
        ends.add((before, after))
        store(tmp_path)
        assert files(tmp_path) == []
    assert ends == {("before", None), (None, None), (None, "after")}
    assert line > 100


def test_a_worker_killed_at_any_point_of_a_first_batch_leaves_nothing_after_the_next(tmp_path: Path) -> None:
    line = 0
    code = -1
    while code:
        line += 3
        code = killed_at(line, lambda: batch(tmp_path, T1, T2, "first"))
        batch(tmp_path, T1, T2, "retried")
        assert contents(store(tmp_path).take(GROUP, T2)) == "retried"
        assert files(tmp_path) == []
    assert line > 100


@pytest.mark.parametrize("swept_by", ["q", "other"])  # the query itself may have had its last micro-batch
def test_the_files_of_dead_workers_are_removed_whatever_group_they_had(tmp_path: Path, swept_by: str) -> None:
    put(tmp_path, T1, "text")

    def dies() -> None:
        live = store(tmp_path)
        mine, other = live.take(GROUP, T1), live.create(OTHER)
        assert len(files(tmp_path)) == 2
        assert other is not mine is not None
        os.kill(os.getpid(), signal.SIGKILL)

    assert worker(dies) == -signal.SIGKILL
    assert len(files(tmp_path)) == 2
    mine = store(tmp_path, swept_by).create(b"group-03")
    store(tmp_path, swept_by)
    assert files(tmp_path) == [os.path.basename(mine.path)]


def age(path: Path, seconds: float) -> Callable[[os.DirEntry[str]], float]:
    """Return a clock by which `path` changed that long ago."""
    return lambda entry: entry.stat().st_ctime - (seconds if Path(entry.path) == path else 0)


def test_the_directory_of_an_idle_query_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, T1, "text")
    directory = tmp_path / "timerheap" / "query-q"
    module = sys.modules[LiveStore.__module__]
    monkeypatch.setattr(module, "changed_at", age(directory, 3000))
    store(tmp_path, "other")
    assert len(files(tmp_path)) == 1
    monkeypatch.setattr(module, "changed_at", age(directory, 4000))
    store(tmp_path, "q")
    assert len(files(tmp_path)) == 1, "a query never removes its own"
    busy = store(tmp_path).create(OTHER)
    store(tmp_path, "other")
    assert files(tmp_path) == [os.path.basename(busy.path)], "a worker has been at it for an hour"
    del busy
    store(tmp_path, "other")
    assert not directory.exists()


def test_a_group_that_has_left_the_executor_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, T1, "gone")
    put(tmp_path, T1, "here", OTHER)
    gone = tmp_path / "timerheap" / "query-q" / f"{GROUP.hex()}.{T1.hex()}"
    monkeypatch.setattr(sys.modules[LiveStore.__module__], "changed_at", age(gone, 90_000))
    assert contents(store(tmp_path).take(OTHER, T1)) == "here"
    assert not gone.exists()


def test_directories_are_private_and_foreign_ones_are_refused(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        put(tmp_path, T1, "text")
    finally:
        os.umask(before)
    for directory in (tmp_path / "timerheap", tmp_path / "timerheap" / "query-q"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "timerheap").mkdir()
    os.chmod(tmp_path / "open" / "timerheap", 0o777)
    with pytest.raises(PermissionError, match="only this user"):
        store(tmp_path / "open").create(GROUP)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        store(tmp_path / "file").create(GROUP)


def test_a_query_id_is_never_a_path(tmp_path: Path) -> None:
    live = store(tmp_path, "../../a/b")
    release(live, live.create(GROUP), "text", T1)
    assert {path.name for path in (tmp_path / "timerheap").iterdir()} == {"owner", "query-..%2F..%2Fa%2Fb"}


def test_groups_are_spread_over_all_directories(tmp_path: Path) -> None:
    live = LiveStore([str(tmp_path / "a"), str(tmp_path / "b")], "q")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    for number in range(2):
        group = bytes([number]) * 8
        release(live, live.create(group), f"{number}", T1, group)
    live.sweep()
    assert [len(files(tmp_path / folder)) for folder in ("a", "b")] == [1, 1]
    assert contents(live.take(bytes([1]) * 8, T1)) == "1"


def test_a_file_that_was_removed_is_no_loss(tmp_path: Path) -> None:
    live = store(tmp_path)
    file = live.create(GROUP)
    os.unlink(file.path)
    release(live, file, "text", T1)
    assert isinstance(file.failure, FileNotFoundError)
    assert live.take(GROUP, T1, file) is None
    assert live.create(GROUP).failure is None


def test_a_sweep_follows_no_link(tmp_path: Path) -> None:
    """Whoever may write to the local directory plants a link where a query's files would be."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    kept = elsewhere / f"{bytes(8).hex()}.{bytes(8).hex()}.taken"
    kept.write_bytes(b"not ours")
    home = tmp_path / "timerheap"
    home.mkdir(mode=0o700)
    (home / "query-q").symlink_to(elsewhere)
    (home / "query-other").symlink_to(elsewhere)
    os.utime(elsewhere, (0, 0))
    LiveStore([str(tmp_path)], "q").sweep()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "timerheap").symlink_to(home)
    LiveStore([str(tmp_path / "b")], "q").sweep()
    assert kept.exists()


def test_a_file_under_a_name_that_is_not_its_own_is_refused(tmp_path: Path) -> None:
    mine = store(tmp_path)
    file = mine.create(GROUP)
    release(mine, file, "mine", T1)
    put(tmp_path, T1, "other", OTHER)
    home = tmp_path / "timerheap" / "query-q"
    one, other = (home / f"{group.hex()}.{T1.hex()}" for group in (GROUP, OTHER))
    one.rename(home / "exchanged")
    other.rename(one)
    (home / "exchanged").rename(other)
    for group in (GROUP, OTHER):
        taken = mine.take(group, T1, file)
        assert taken is not file
        with pytest.raises(ValueError, match="holds a different save, key group or query"):
            contents(taken)
    put(tmp_path, T1, "of the query q")
    (tmp_path / "timerheap" / "query-other").mkdir(0o700)
    one.rename(tmp_path / "timerheap" / "query-other" / one.name)
    with pytest.raises(ValueError, match="holds a different save, key group or query"):
        contents(store(tmp_path, "other").take(GROUP, T1))


def executor(local: Path, work: Callable[[], Any]) -> int:
    """Run `work` in a worker of an executor that then ends, and leaves its local directory; return its id."""
    local.mkdir(exist_ok=True)
    child = os.fork()
    if not child:
        os._exit(worker(work))
    assert os.waitpid(child, 0)[1] == 0
    return child


def test_the_files_of_dead_executors_are_removed_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_files, "_LOOK", 0.0)
    dead, alive, mine = (tmp_path / f"blockmgr-{name}" for name in ("dead", "alive", "mine"))
    executor(dead, lambda: put(dead, T1, "text"))
    assert len(files(dead)) == 1
    alive.mkdir()
    put(alive, T1, "text")  # by the process that has started this one
    executor(mine, lambda: put(mine, T1, "text"))
    assert not (dead / "timerheap").exists()
    live = LiveStore([str(mine)], "q")
    live.sweep()
    assert contents(live.take(GROUP, T1)) == "text", "of an executor with a new daemon"
    assert contents(store(alive).take(GROUP, T1)) == "text"


def test_the_executors_of_other_standalone_workers_are_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_files, "_LOOK", 0.0)
    folders = [tmp_path / f"spark-{n}" / f"executor-{n}" / f"blockmgr-{n}" for n in range(2)]
    for folder in folders:
        folder.mkdir(parents=True)
    executor(folders[0], lambda: put(folders[0], T1, "text"))
    store(folders[1])
    assert list(folders[0].iterdir()) == []


@pytest.mark.parametrize("owner", ["elsewhere-1-1", "", "-", "a-b-c-d"])
def test_an_executor_that_may_be_alive_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    monkeypatch.setattr(dead_files, "_LOOK", 0.0)
    other = tmp_path / "blockmgr-other"
    executor(other, lambda: put(other, T1, "text"))
    link = other / "timerheap" / "owner"
    link.unlink()
    if owner:
        link.symlink_to(owner)
    (tmp_path / "blockmgr-mine").mkdir()
    store(tmp_path / "blockmgr-mine")
    assert len(files(other)) == 1


def test_a_worker_that_survives_its_executor_keeps_the_file_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_files, "_LOOK", 0.0)
    other = tmp_path / "blockmgr-other"
    executor(other, lambda: put(other, T1, "text"))
    survivor = LiveStore([str(other)], "q")
    taken = survivor.take(GROUP, T1)
    (tmp_path / "blockmgr-mine").mkdir()
    store(tmp_path / "blockmgr-mine")
    assert contents(taken) == "text"
    del taken
    store(tmp_path / "blockmgr-mine")
    assert list(other.iterdir()) == []
