"""What a run replays of the traces, and what a failure says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flink_traces
import pytest
import shares
from flink_traces import Traces
from shares import SHARES, TURNS


@pytest.fixture(autouse=True)
def new_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(flink_traces, "DIRECTORY", flink_traces.OURS)
    shares.chosen_share.cache_clear()
    yield
    shares.chosen_share.cache_clear()


def choose(monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    monkeypatch.setenv("TIMERHEAP_SHARE", share)
    shares.chosen_share.cache_clear()


@pytest.mark.parametrize("how", ["rows", "columns"])
def test_all_shares_together_replay_every_line_once(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    traces, seen = Traces("pq", range(90)), []
    for commit in range(700, 700 + SHARES):
        choose(monkeypatch, str(commit))
        before = len(seen)
        traces.replay_share(seen.append, how)
        assert 4 <= len(seen) - before <= 5
    assert sorted(seen) == list(range(90))


def test_all_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    choose(monkeypatch, "all")
    Traces("pq", range(30)).replay_share(seen.append, "rows")
    assert seen == list(range(30))


def test_a_failure_names_the_file_the_line_and_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, "27")

    def fail(trace: Any) -> None:
        raise AssertionError(trace)

    with pytest.raises(AssertionError) as caught:
        Traces("pq", range(1, 41)).replay_share(fail, "rows", "each")
    (note,) = caught.value.__notes__
    assert note == f"pq.jsonl.gz, line {caught.value.args[0]}, rows, each, TIMERHEAP_SHARE=7"


def test_the_share_follows_the_commits_and_without_them_the_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIMERHEAP_SHARE", raising=False)
    monkeypatch.setattr(shares, "commits", lambda: 2_005)
    assert shares.chosen_share() == 5
    shares.chosen_share.cache_clear()
    monkeypatch.setattr(shares, "commits", lambda: 0)
    monkeypatch.setattr(shares.time, "time_ns", lambda: 20_003 * 86_400 * 10**9)
    assert shares.chosen_share() == 3


def test_some_runs_together_have_every_case_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    for commit in range(700, 700 + TURNS):
        choose(monkeypatch, str(commit))
        seen += [number for number in range(10) if not shares.waits_for_its_turn(number)]
    assert sorted(seen) == list(range(10))
    choose(monkeypatch, "all")
    assert not any(map(shares.waits_for_its_turn, range(10)))
