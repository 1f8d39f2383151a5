"""What Flink answered, line by line, for the test module that is named after the trace file.

A test that takes ``trace`` runs once for each line of ``traces/<stem>.jsonl.gz``, where the module is
``test_<stem>.py``; one that takes ``traces`` gets all lines at once. TIMERHEAP_TRACES names another
directory: a file that is missing there is a skip, and a run that replays nothing at all fails.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DIRECTORY = Path(os.environ.get("TIMERHEAP_TRACES") or Path(__file__).parent / "traces")
REPLAYED = pytest.StashKey[int]()


def read(module: ModuleType) -> list[Any] | None:
    stem = module.__name__.rpartition(".")[2].removeprefix("test_")
    path = DIRECTORY / f"{stem}.jsonl.gz"
    if not path.exists():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def replays(item: pytest.Item) -> bool:
    return not {"trace", "traces"}.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trace" in metafunc.fixturenames:
        traces = read(metafunc.module)
        missing = pytest.param(None, marks=pytest.mark.skip(reason=f"no such file in {DIRECTORY}"))
        lines = [missing] if traces is None else traces
        metafunc.parametrize("trace", lines, ids=[f"line{number}" for number, _ in enumerate(lines, 1)])


@pytest.fixture
def traces(request: pytest.FixtureRequest) -> list[Any]:
    traces = read(request.module)
    if traces is None:
        pytest.skip(f"no such file in {DIRECTORY}")
    return traces


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if replays(item):
        item.config.stash[REPLAYED] = item.config.stash.get(REPLAYED, 0) + 1
    return (yield)


def replayed_nothing(session: pytest.Session) -> bool:
    asked_for = any(map(replays, getattr(session, "items", ()))) and not session.config.option.collectonly
    return asked_for and REPLAYED not in session.config.stash


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and replayed_nothing(session):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line(f"\nno trace was replayed: there is none in {DIRECTORY}", red=True)
