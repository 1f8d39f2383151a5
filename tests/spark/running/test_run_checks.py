"""What the driver does when a task tells it of a run; the checks themselves are tested with the queries."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from timerheap.spark import _run_checks
from timerheap.spark._worker.driver_mail import Letter, Opener, QueryRun


class Session:
    """A session whose query cannot be looked at."""

    def __init__(self, active: list[str]) -> None:
        self.streams = SimpleNamespace(
            get=lambda id_: None, active=[SimpleNamespace(id=id_) for id_ in active]
        )


@pytest.mark.parametrize("active", [["q"], []], ids=["it runs", "it has ended"])
def test_a_run_that_cannot_be_checked_goes_on_and_is_logged(
    active: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session: Any = Session(active)
    monkeypatch.setitem(_run_checks._sessions, "session", session)
    letter = Letter("session", "owner", "about", ("at the state", QueryRun("q", "run")))
    with caplog.at_level(logging.WARNING, "timerheap"):
        assert Opener(_run_checks._look).addInPlace((), (letter,)) == ()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "cannot look at the state of query q" for _ in active
    ]
