"""`python -m timerheap inspect` prints the data of a checkpoint as it is."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from html import escape
from typing import Any

import pytest
from rich.console import Console

from timerheap._inspect import printable
from timerheap._inspect.one_key import KeyReport, Moment, page
from timerheap._inspect.report import report

NOW = datetime(2024, 5, 1, tzinfo=UTC)
HOSTILE = [
    "[a]",
    "[/]",
    "[bold red]x",
    "\x1b[31mred\x1b[0m",
    "\x07bell",
    "line\nbreak",
    "[link=x]y",
    ":smile:",
]


class Frame:
    """Stands for a DataFrame."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.columns = rows, list(rows[0])

    def toArrow(self) -> Frame:
        return self

    def to_pylist(self) -> list[dict[str, Any]]:
        return self.rows

    def orderBy(self, *_: Any) -> Frame:
        return self

    limit = orderBy

    def toDF(self, *names: str) -> Frame:
        return Frame([dict(zip(names, row.values(), strict=True)) for row in self.rows])


class State:
    """Stands for a CheckpointState, whose keys, channels and states have a name."""

    batch_id, operator_id = 3, 0

    def __init__(self, name: str) -> None:
        self.name, self.key = name, [f"key {name}"]

    def groups(self) -> Frame:
        counts = dict.fromkeys(
            (
                "keys",
                "event_time_timers",
                "processing_time_timers",
                "buffered_rows",
                "windows",
                "late_rows",
                "bytes",
            ),
            1,
        )
        times = dict.fromkeys(("next_event_time_timer", "next_processing_time_timer"), NOW)
        return Frame([{"key_group": 0, **counts, **times, "states": [(f"state {self.name}", 1)]}])

    def watermarks(self) -> Frame:
        channel = {"input": "df", "channel_column": self.name, "channel": self.name, "status": "active"}
        times = {"watermark": NOW, "newest": NOW, "last_row": NOW, "query_watermark": NOW, "behind_ms": 0}
        return Frame([{**channel, **times, "aligned": True, "holds": True}])

    def timers(self) -> Frame:
        return Frame([{self.key[0]: self.name, "timestamp": NOW, "epoch_ms": 1, "domain": "event_time",
                       "namespace": 0, "key_group": 0}])  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_data_is_neither_markup_nor_a_command_to_the_terminal(name: str) -> None:
    out = io.StringIO()
    report(State(name), Console(file=out, width=300, force_terminal=False))  # type: ignore[arg-type]
    text = out.getvalue()
    shown = name.encode("unicode_escape").decode()
    for each in (f"key {shown}", f"state {shown}", f"{shown} {shown}"):
        assert each in text
    assert not {each for each in text if not each.isprintable()} - {"\n"}


@pytest.mark.parametrize("name", [*HOSTILE, "\x7f", "\x9b2J", "\u202ereversed", "\U000e0041"], ids=repr)
def test_a_page_and_json_are_not_a_command_to_the_terminal_either(name: str) -> None:
    timers = [{"due": 5, "of": "event_time", "name": name}]
    states, rows = {name: [name]}, [{"event_time": name, name: name}]
    now = Moment(1, 0, 1, timers, states, rows)
    before = Moment(0, 0, 1, [], {name: []}, [])
    channel = {"input": "df", "channel_column": name, "channel": name, "holds": True, "last_row": None}
    found = KeyReport(name, 0, name, {name: name}, {name: name}, 9, 0, [channel], now, [before, now], [name])
    data = json.loads(found.to_json())
    assert data["key"] == {name: name}
    assert data["now"]["buffered_rows"] == rows
    for text in (found.to_json(), page(found)):
        assert not {each for each in text if not each.isprintable()} - {"\n"}
    assert escape(printable(name)) in page(found)
