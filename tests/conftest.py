"""What holds for all tests: no example is too slow, a run leaves no files, and has the cases of its share."""

import os
import tempfile
from collections import Counter
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from shares import waits_for_its_turn

# How long an example takes says more about the machine than about the code.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Of this process and those that it starts, Java's too: some are killed, and leave files behind.
SCRATCH = tempfile.TemporaryDirectory(prefix="timerheap-tests-", ignore_cleanup_errors=True)
os.environ["TMPDIR"] = tempfile.tempdir = SCRATCH.name


class Replays:
    """Counts what the tests of flink/ report of themselves, whichever process has run them."""

    def __init__(self) -> None:
        self.seen: set[object] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seen.update(value for name, value in report.user_properties if name == "traces")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.seen == {"asked for"} and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            reporter = session.config.pluginmanager.get_plugin("terminalreporter")
            reporter.write_line("\nno trace was replayed: there is none in the folder", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of several processes, the one that hears all
        config.pluginmanager.register(Replays())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases whose turn it is not, unless the command has named them."""
    numbers: Counter[str] = Counter()
    waiting = set()
    for item in items:
        marker = item.get_closest_marker("in_turn")
        if marker is not None:
            # Cases of one test take turns with each other, other tests with those of their file.
            together = marker.kwargs.get("together", False)
            alone = hasattr(item, "callspec") and not together
            of = f"{item.path.name}::{item.originalname if alone else ''}"
            number = 0 if together else numbers[of]
            numbers[of] += 1
            # Not all of them begin in the same run.
            if waits_for_its_turn(number + crc32(of.encode()), *marker.args):
                waiting.add(item)
    named = config.option.keyword or any("::" in each for each in config.args)
    if waiting and not named:
        config.hook.pytest_deselected(items=[item for item in items if item in waiting])
        items[:] = [item for item in items if item not in waiting]


def pytest_unconfigure() -> None:
    SCRATCH.cleanup()
