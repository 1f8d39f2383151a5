"""`python -m timerheap inspect --key` names why a timer has not fired."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from planes import inspected
from pyspark.sql import SparkSession
from rich.console import Console

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor, WatermarkStrategy
from timerheap._inspect.one_key import KeyReport, Moment, changes_of_key, waits_for
from timerheap._inspect.report import _watermarks
from timerheap.spark import EventTime

NOW = 1_800_000_000_000  # epoch ms
MINUTE, HOUR = 60_000, 3_600_000
TIMES = ("watermark", "newest", "last_row", "query_watermark")


def timer(due: int, of: str = "event_time", name: str | None = None) -> dict[str, Any]:
    return {"due": due, "of": of, "name": name}


def channel(name: str | None, newest: int | None, last_row: int | None, **others: Any) -> dict[str, Any]:
    """A channel that holds the watermark."""
    times = {"watermark": newest, "newest": newest, "last_row": last_row, "behind_ms": 0, "holds": True}
    return {"input": "df", "channel_column": "room", "channel": name, "status": "active", **times, **others}


# A query that runs: the watermark is a second behind the clock, the timer of the key a minute ahead of it.
SOUND = KeyReport(
    checkpoint="/checkpoints/silent",
    operator=0,
    operator_name="silent",
    key={"sensor": "a"},
    key_types={"sensor": "string"},
    read_at=NOW,
    late_rows=0,
    channels=[channel(None, NOW - 1000, NOW - 500)],
    now=Moment(7, NOW - 600, NOW - 1000, [timer(NOW + MINUTE)], {"count": 3}),
)


def now(**changed: Any) -> KeyReport:
    return replace(SOUND, now=replace(SOUND.now, **changed))


FAULTS = {
    "a quiet channel": (
        replace(SOUND, channels=[channel("attic", NOW - HOUR, NOW - HOUR, behind_ms=HOUR)]),
        ["held by the channel room attic", "last row arrived 1:00:00 ago", "with_idleness"],
    ),
    "a channel whose clock is ahead": (
        replace(
            SOUND,
            channels=[
                channel("attic", NOW - 2000, NOW - 500, behind_ms=2 * HOUR),
                channel("hall", NOW - 1000, NOW - 500, behind_ms=2 * HOUR, holds=False),
                channel("cellar", NOW + 2 * HOUR, NOW - 500, holds=False),
            ],
        ),
        [
            "is that of the channel room attic, the lowest. Nothing is wrong there",
            "Event times of the channel room cellar are 2:00:00 ahead of the clock",
        ],
    ),
    "a channel behind, beside one whose clock is ahead": (
        replace(
            SOUND,
            channels=[
                channel("attic", NOW - HOUR, NOW - HOUR, behind_ms=3 * HOUR),
                channel("hall", NOW, NOW, behind_ms=2 * HOUR, holds=False),
                channel("cellar", NOW + 2 * HOUR, NOW, holds=False),
            ],
        ),
        ["held by the channel room attic", "It is 1:00:00 behind the furthest channel", "cellar are 2:00:00"],
    ),
    "a quiet second input": (
        replace(SOUND, channels=[channel(None, NOW - HOUR, NOW - HOUR, behind_ms=HOUR, input="right")]),
        [
            "held by the rows of input right",
            "It is 1:00:00 behind the other input",
            "gets one on a new checkpoint, by timerheap.spark.continue_from",
        ],
    ),
    "a channel without rows": (
        replace(SOUND, channels=[channel("cellar", None, None)]),
        ["held by the channel room cellar, from which no row has arrived yet"],
    ),
    "microseconds": (now(timers=[timer((NOW + MINUTE) * 1000)]), ["looks like microseconds"]),
    "seconds": (now(timers=[timer(NOW // 1000)]), ["fires in the next micro-batch", "looks like seconds"]),
    "a zone off by two hours": (
        replace(now(watermark=NOW - 2 * HOUR), channels=[channel(None, NOW - 2 * HOUR, NOW - 500)]),
        ["1:59:59 behind the clock", "a time zone may be wrong"],
    ),
    "a row far in the future": (
        replace(SOUND, channels=[channel(None, NOW + 50 * MINUTE, NOW - 500)]),
        ["0:50:00 ahead of the clock", "rows of the present are then late", "with_max_ahead"],
    ),
    "late rows": (
        replace(now(timers=[], states={}), late_rows=2),
        ["no timer, state or waiting row of the key sensor=a", "2 rows of all keys were late"],
    ),
    "a name typed wrongly": (
        replace(now(timers=[], states={}), similar=["A1"]),
        ["Keys that resemble it: 'A1'"],
    ),
    "a key of a different type": (
        replace(
            now(timers=[], states={}), key={"sensor": "7"}, key_types={"sensor": "double"}, similar=["7.0"]
        ),
        ["sensor is double", "'7.0'"],
    ),
    "a query that has stopped": (
        replace(SOUND, read_at=NOW + 3 * HOUR),
        ["The last micro-batch began 3:00:00 ago", "has stopped"],
    ),
    "a clock that no micro-batch reads": (
        now(timers=[timer(NOW - 5 * MINUTE, "processing_time")], began=NOW - HOUR),
        ["overdue by 0:05:00", "fires in the next micro-batch", "began 1:00:00 ago"],
    ),
    "rows that wait": (
        now(timers=[], states={}, buffered_rows=[{"event_time": "2027-01-15T08:00:05.000Z"}]),
        ["1 rows wait for the watermark", "only then does the function see them"],
    ),
    "no timer": (now(timers=[]), ["No timer is pending: the function has set none"]),
}


@pytest.mark.parametrize(("found", "named"), FAULTS.values(), ids=FAULTS)
def test_the_cause_is_named(found: KeyReport, named: list[str]) -> None:
    text = " ".join(waits_for(found))
    assert [each for each in named if each not in text] == []


def test_nothing_is_wrong_with_a_sound_query() -> None:
    (waits, holds) = waits_for(SOUND)
    assert "fires when the watermark reaches 2027-01-15 08:01:00 UTC" in waits
    assert "0:01:01 ahead" in waits
    assert "held by the rows of the query" in holds


def test_changes_tell_fired_from_deleted_and_moved_timers() -> None:
    before = Moment(1, NOW, NOW, [timer(NOW + 1), timer(NOW + 9), timer(NOW + 3, name="silent")], {"n": 1})
    after = Moment(2, NOW + 5, NOW + 5, [timer(NOW + 7), timer(NOW + 8, name="silent")], {"n": 2})
    ((moment, texts),) = changes_of_key(replace(SOUND, history=[before, after]))
    assert moment.batch_id == 2
    assert [text.split(" timer")[0] + text[-7:-4] for text in texts[:4]] == [
        "set event-time007",
        "moved event-time008",
        "fired event-time001",
        "deleted event-time009",
    ]
    assert texts[4] == "state n: 1 to 2"


class Tags(HTMLParser):
    """Counts tags, and keeps what would be fetched or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.foreign: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.foreign += [tag] * (tag in {"script", "link", "img", "iframe"})
        self.foreign += [name for name, _ in attrs if name in {"src", "href"} or name.startswith("on")]


HOSTILE = "<script>alert(1)</script>"
# The key has the name of a column that the tables of a checkpoint have.
SCHEMA = pa.schema([("room", pa.string()), ("name", pa.string()), ("at", pa.int64())])


class Silent(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000, name="silent")

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.count.clear()
        yield ctx.get_current_key(), timestamp


@pytest.mark.in_turn
@pytest.mark.spark
def test_a_key_of_a_checkpoint_is_shown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [
        [("hall", "a", 1_000), ("attic", "b", 2_000)],
        [("hall", "a", 50_000), ("hall", HOSTILE, 55_000), ("attic", "b", 56_000)],
        [("hall", "a", 140_000), ("attic", "c", 115_000)],
    ]
    tables = [[dict(zip(SCHEMA.names, row, strict=True)) for row in batch] for batch in batches]
    streams.write_batches(tmp_path / "in", tables, SCHEMA)
    silent = timerheap.spark.process(
        streams.read_stream(spark, tmp_path / "in"),
        "name",
        Silent(),
        "sensor string, at long",
        EventTime("at", channel="room"),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        max_parallelism=2,
    )
    streams.run(silent, tmp_path)

    def shown(*arguments: object) -> Any:
        return inspected(monkeypatch, spark, tmp_path / "checkpoint", *arguments)

    text = shown("--key", "name=a").output
    assert "Key name=a, operator 0 'timerheap', after micro-batch 2" in text
    for line in (
        "1 rows wait for the watermark to pass their event time, the first 1970-01-01T00:02:20.000Z",
        "held by the channel room attic: its newest event time is 1970-01-01 00:01:55 UTC",
        "set event-time timer 'silent' to 1970-01-01 00:01:50 UTC",
        "state count: null to 2",
        "fired event-time timer 'silent', due 1970-01-01 00:01:50 UTC; state count: 2 to null",
    ):
        assert line in text, text
    found = json.loads(shown("--key", "name=b", "--history", 1, "--format", "json").stdout)
    assert [each["batch_id"] for each in found["history"]] == [1, 2]
    assert found["history"][0]["states"] == {"count": 1}
    assert "'a'" not in found["waits_for"][0]
    tags = Tags(shown("--key", f"name={HOSTILE}", "--format", "html").stdout)
    assert tags.foreign == []
    assert {"svg", "polyline", "line"} <= set(tags.seen)
    for arguments, message in (
        (["--key", "room=hall"], "--key must be given once for each key column, here --key name=VALUE"),
        (["--key", "name"], "must be COLUMN=VALUE, got name"),
    ):
        result = shown(*arguments)
        assert result.exit_code
        assert message in result.output
    similar = shown("--key", "name=A ", "--history", 0).output
    assert "no timer, state or waiting row of the key name=A " in similar


def test_the_report_names_the_channel_whose_clock_is_ahead_and_not_those_behind_it() -> None:
    times = {"attic": NOW - 2000, "hall": NOW - 1000, "cellar": NOW + 2 * HOUR}
    channels = []
    for name, newest in times.items():
        behind = times["cellar"] - newest
        made = channel(name, newest, NOW, behind_ms=behind, holds=name == "attic")
        made |= {"aligned": True, "query_watermark": NOW - 2000}
        moments = {field: datetime.fromtimestamp(made[field] / 1000, UTC) for field in TIMES}
        channels.append(made | moments)
    console = Console(record=True, width=200, file=StringIO())
    _watermarks(channels, console)
    title, heads, first, *others = (
        line.strip() for line in console.export_text().splitlines() if line.strip()
    )
    assert "held back" not in title
    assert title.endswith("ahead of the clock: room cellar by 2:00:00")
    assert first.split()[1] == "cellar"
    assert "holds" not in " ".join(others)
    assert "2:00:0" not in " ".join([heads, *others]), "they are not behind it"
