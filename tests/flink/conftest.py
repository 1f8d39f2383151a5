"""What Flink answered, line by line, for the test module that is named after the trace file.

A test takes ``traces``, the lines of ``traces/<stem>.jsonl.gz``, where the module is ``test_<stem>.py``, or
of another file if it passes the stem with ``parametrize("traces", [stem], indirect=True)``. One item replays
many lines, and a failure names the file and the line. TIMERHEAP_TRACES names another directory: a file that
is missing there is a skip, and a run that replays nothing at all fails (see the conftest above).

What takes long replays a share of the lines, one of `shares.SHARES`, which is another one after each commit,
so that as many successive commits replay all; TIMERHEAP_SHARE=all does, and so does a run with another
directory. A failure says which share it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from flink_traces import DIRECTORY, Traces, read_traces
from timer_recorder import Recorder

from timerheap.flink import InternalTimerService, ManualProcessingTimeService, SystemProcessingTimeService


def stem_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2].removeprefix("test_")


def replays(item: pytest.Item) -> bool:
    return "traces" in getattr(item, "fixturenames", ())


@pytest.fixture
def traces(request: pytest.FixtureRequest) -> Traces:
    traces = read_traces(getattr(request, "param", stem_of(request.module)))
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


@pytest.fixture
def clock() -> ManualProcessingTimeService:
    return ManualProcessingTimeService()


@pytest.fixture
def system() -> Iterator[SystemProcessingTimeService]:
    with SystemProcessingTimeService() as clock:
        yield clock


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def service(recorder: Recorder, clock: ManualProcessingTimeService) -> InternalTimerService:
    """A timer service with a current key, whose timers the recorder receives."""
    service = InternalTimerService(recorder, clock)
    service.key_context.current_key = "key"
    return service
