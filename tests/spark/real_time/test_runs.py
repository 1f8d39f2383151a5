"""Runs of a query in real-time mode: their numbers, their restarts, and what ends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from children import told
from pyarrow import fs
from pyspark.errors import StreamingQueryException

import timerheap.spark
from timerheap.spark._state import epoch_store
from timerheap.spark._state.epoch_store import next_run, sources_of

FILES = fs.LocalFileSystem()
START = "timerheap.spark._real_time.start_real_time"
LOOKUP = "timerheap.spark._real_time.spark_lookup"


# ---- the number of a run ----


def test_drivers_that_start_at_once_get_different_numbers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: next_run(FILES, str(tmp_path)), range(40)))
    assert len(set(runs)) == len(runs)
    assert next_run(FILES, str(tmp_path)) > max(runs)


def test_a_driver_that_claims_the_same_number_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one looks before, and writes after this one has looked for the first time."""
    look, looks = epoch_store._runs_in, []

    def slow_look(*where: Any) -> dict[str, int]:
        found = look(*where)
        looks.append(found)
        if len(looks) == 1:
            (tmp_path / "runs" / "1-0123").touch()
        return found

    monkeypatch.setattr(epoch_store, "_runs_in", slow_look)
    assert next_run(FILES, str(tmp_path)) == 2
    left = {path.name.partition("-")[0] for path in (tmp_path / "runs").iterdir() if path.name != "1-0123"}
    assert left == {"2"}


def test_a_look_that_misses_what_comes_and_goes_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs begin while a third one looks at its claim, and it does not see the later of them."""
    look = epoch_store._runs_in

    def first_look(*where: Any) -> dict[str, int]:
        monkeypatch.setattr(epoch_store, "_runs_in", torn_look)
        return look(*where)

    def torn_look(*where: Any) -> dict[str, int]:
        monkeypatch.setattr(epoch_store, "_runs_in", look)
        assert [next_run(FILES, str(tmp_path)) for _ in range(2)] == [2, 3]
        return {name: run for name, run in look(*where).items() if run != 3}

    monkeypatch.setattr(epoch_store, "_runs_in", first_look)
    assert next_run(FILES, str(tmp_path)) == 4


def test_the_folder_of_runs_does_not_grow(tmp_path: Path) -> None:
    for run in range(1, 300):
        assert next_run(FILES, str(tmp_path)) == run
        Path(sources_of(str(tmp_path), run)).write_text("2")
    assert len(list((tmp_path / "runs").iterdir())) == 300


def test_a_run_of_an_older_version_counts(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("7", "7.sources", "12", "x", "3.tmp"):
        (tmp_path / "runs" / name).touch()
    assert next_run(FILES, str(tmp_path)) == 13


# ---- the tasks of the source ----


class Slept(list[float]):
    """The pauses of a wait in which no time passes."""

    def sleep(self, seconds: float) -> None:
        self.append(seconds)
        if sum(self) > 1000:
            raise TimeoutError("it waits without end")


class Application:
    """A session, and a query of it whose run has these jobs."""

    sparkContext = isActive = property(lambda self: self)
    sparkSession, id, runId, stopped = None, "q", "r", False

    def __init__(self, jobs: list[Any]) -> None:
        self.sparkSession, self.jobs, self.operators = self, jobs, ["only"]

    def statusTracker(self) -> Application:
        return self

    def getJobIdsForGroup(self, group: str) -> range:
        return range(len(self.jobs))

    def getJobInfo(self, job: int) -> Any:
        if isinstance(self.jobs[job], BaseException):
            raise self.jobs[job]
        return SimpleNamespace(stageIds=self.jobs[job])

    def getStageInfo(self, stage: int) -> Any:
        return SimpleNamespace(numTasks=10 + stage)

    def option(self, *_: str) -> None: ...

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def start_real_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Application, int], Slept]:
    """Start a query whose last epoch has this number; return how it has waited."""

    def started(application: Application, last_epoch: int) -> Slept:
        slept = Slept()
        replaced: dict[str, Any] = {
            "writing": lambda *_: (application, "checkpoint", None),
            "operators_in": lambda _: application.operators,
            "place_of_state": lambda *_: f"file://{tmp_path}",
            "last_epoch": lambda *_: last_epoch,
            "real_time_trigger": lambda *_: None,
            "start_with": lambda *_: application,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(f"{START}.{name}", value)
        monkeypatch.setattr(f"{LOOKUP}.time", slept)
        timerheap.spark.start_real_time(application)  # type: ignore[arg-type]
        return slept

    return started


Started = Callable[[Application, int], Slept]


def test_the_number_of_tasks_is_left_for_the_first_epoch(start_real_time: Started, tmp_path: Path) -> None:
    assert not start_real_time(Application([[1], [2, 3, 4]]), -1)
    assert Path(sources_of(str(tmp_path), 1)).read_text() == "13"


def test_the_source_sends_to_the_first_of_several_operators(start_real_time: Started, tmp_path: Path) -> None:
    application = Application([[1, 2, 3], [5, 6, 7, 8]])
    application.operators = ["last", "middle", "first"]
    assert not start_real_time(application, -1)
    assert Path(sources_of(str(tmp_path), 1)).read_text() == "15"


def test_a_source_without_tasks_is_not_waited_for_without_end(
    start_real_time: Started, caplog: pytest.LogCaptureFixture
) -> None:
    slept = start_real_time(Application([[1]]), -1)
    assert 30 < sum(slept) <= 120
    assert "query q has not started the tasks of its first epoch within 60 s" in caplog.text


def test_later_epochs_do_not_wait_for_the_tasks(start_real_time: Started, tmp_path: Path) -> None:
    assert not start_real_time(Application([RuntimeError("not to be asked for")]), 0)
    assert not Path(sources_of(str(tmp_path), 1)).exists()


def test_what_interrupts_the_wait_stops_the_query(start_real_time: Started) -> None:
    application = Application([KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        start_real_time(application, -1)
    assert application.stopped


# ---- restarts ----


class Run:
    """A run that fails, that goes on until it is stopped, or in which something else is raised."""

    def __init__(self, outcome: BaseException | None, has_progress: bool = False) -> None:
        self.outcome, self.ended = outcome, threading.Event()
        self.lastProgress = {"batchId": 0} if has_progress else None

    def awaitTermination(self, timeout: float | None = None) -> bool:
        if self.outcome is not None:
            raise self.outcome
        return self.ended.wait(timeout)

    def stop(self) -> None:
        self.ended.set()


class Starts:
    """Stands for `start_real_time`: starts runs, or raises errors, one after the other."""

    def __init__(self, outcomes: list[Run | BaseException]) -> None:
        self.outcomes, self.times = outcomes, [time.monotonic()]

    def __call__(self, *_: Any, **__: Any) -> Run:
        self.times.append(time.monotonic())
        outcome = self.outcomes[len(self.times) - 2]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Starts]]:
    def make(*outcomes: Run | BaseException) -> Starts:
        made = Starts(list(outcomes))
        monkeypatch.setattr(f"{START}.start_real_time", made)
        return made

    monkeypatch.setattr(f"{START}.writing", lambda *_: (SimpleNamespace(sparkSession=None), "c", None))
    monkeypatch.setattr(f"{START}.has_stopped", lambda _: stopped_application.is_set())
    stopped_application.clear()
    yield make
    stopped_application.clear()


stopped_application = threading.Event()


def failed(has_progress: bool = False) -> Run:
    return Run(StreamingQueryException("a task has failed"), has_progress)


WRITER: Any = None


def test_a_run_that_is_stopped_ends_the_call(starts: Callable[..., Starts]) -> None:
    run = Run(None)
    made = starts(failed(), run)
    threading.Timer(0.3, run.stop).start()
    timerheap.spark.run_real_time(WRITER, backoff=1)
    assert len(made.times) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_what_interrupts_the_call_stops_the_query(
    starts: Callable[..., Starts], error: BaseException
) -> None:
    run = Run(error)
    starts(run)
    with pytest.raises(type(error)):
        timerheap.spark.run_real_time(WRITER)
    assert run.ended.is_set()


def test_a_stop_ends_the_query(starts: Callable[..., Starts]) -> None:
    run, stop = Run(None), threading.Event()
    starts(run)
    threading.Timer(0.3, stop.set).start()
    timerheap.spark.run_real_time(WRITER, stop=stop)
    assert run.ended.is_set()


@pytest.mark.parametrize("what", ["stop", "application"])
def test_a_stop_while_it_waits_to_start_again_ends_the_call(starts: Callable[..., Starts], what: str) -> None:
    made, stop = starts(failed(), failed()), threading.Event()
    event = stop if what == "stop" else stopped_application
    threading.Timer(0.3, event.set).start()
    began = time.monotonic()
    timerheap.spark.run_real_time(WRITER, backoff="1 minute", stop=stop)
    assert time.monotonic() - began < 30
    assert len(made.times) == 2, "it has not been started again"


def test_a_stop_before_the_call_starts_nothing(starts: Callable[..., Starts]) -> None:
    made, stop = starts(Run(None)), threading.Event()
    stop.set()
    timerheap.spark.run_real_time(WRITER, stop=stop)
    assert len(made.times) == 1


def test_a_start_that_fails_in_a_restart_is_repeated(
    starts: Callable[..., Starts], caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(None)
    made = starts(failed(), OSError("the store is away"), OSError("the store is away"), run)
    threading.Timer(0.5, run.stop).start()
    with caplog.at_level(logging.WARNING, "timerheap"):
        timerheap.spark.run_real_time(WRITER, backoff="10 milliseconds")
    assert len(made.times) == 5
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "a task has failed",
        "the store is away",
        "the store is away",
    ]


def test_starts_that_fail_count_as_failures_in_a_row(starts: Callable[..., Starts]) -> None:
    away = OSError("the store is away")
    made = starts(failed(), away, away, failed(has_progress=True), away, away, away)
    with pytest.raises(OSError, match="the store is away"):
        timerheap.spark.run_real_time(WRITER, backoff=1, restarts=3)
    assert len(made.times) == 8, "a run with an epoch that has succeeded begins anew"


def test_the_first_start_is_not_repeated(starts: Callable[..., Starts]) -> None:
    made = starts(ValueError("writer must write ..."))
    with pytest.raises(ValueError, match="writer must write"):
        timerheap.spark.run_real_time(WRITER)
    assert len(made.times) == 2


def test_something_else_than_an_event_is_an_error(starts: Callable[..., Starts]) -> None:
    with pytest.raises(TypeError, match="stop must be an Event, got True"):
        timerheap.spark.run_real_time(WRITER, stop=True)  # type: ignore[arg-type]


# ---- with Spark ----


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Python can ask for it from PySpark 4.3 on")
def test_ctrl_c_and_initial_states_leave_nothing_behind(tmp_path: Path) -> None:
    seen = told("real_time_stops_child.py", tmp_path)
    assert seen["initial states of three results"] == 3
    assert seen["of two"] == 2
    assert seen["results"] == [["a", 2000, 1], ["b", 2500, 1]]
    assert seen["settings of another query"] == []
    assert seen["interrupted"]
    assert seen["active afterwards"] == []
