"""What Flink answered, line by line, for the test module that is named after the trace file.

A test that takes ``trace`` runs once for each line of ``traces/<stem>.jsonl.gz``, where the module is
``test_<stem>.py``; one that takes ``traces`` gets all lines at once, of another file if it passes the stem
with ``parametrize("traces", [stem], indirect=True)``. TIMERHEAP_TRACES names another directory: a file that
is missing there is a skip, and a run that replays nothing at all fails (see the conftest above).
"""

from __future__ import annotations

import gzip
import json
import os
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DIRECTORY = Path(os.environ.get("TIMERHEAP_TRACES") or Path(__file__).parent / "traces")


def stem_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2].removeprefix("test_")


@lru_cache(maxsize=1)
def read(stem: str) -> list[Any] | None:
    path = DIRECTORY / f"{stem}.jsonl.gz"
    if not path.exists():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def replays(item: pytest.Item) -> bool:
    return not {"trace", "traces"}.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trace" in metafunc.fixturenames:
        traces = read(stem_of(metafunc.module))
        missing = pytest.param(None, marks=pytest.mark.skip(reason=f"no such file in {DIRECTORY}"))
        lines = [missing] if traces is None else traces
        metafunc.parametrize("trace", lines, ids=[f"line{number}" for number, _ in enumerate(lines, 1)])


@pytest.fixture
def traces(request: pytest.FixtureRequest) -> list[Any]:
    traces = read(getattr(request, "param", stem_of(request.module)))
    if traces is None:
        pytest.skip(f"no such file in {DIRECTORY}")
    return traces


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if replays(item):
        item.user_properties.append(("traces", "asked for"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    if replays(item):
        item.user_properties.append(("traces", "replayed"))
