"""`read_checkpoint` shows what a query holds: compared with a computation from its rows alone."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from planes import BATCHES, DELAY, END, LATER, SCHEMA, inspected, instant, records, rows_until
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap._inspect.report import histogram
from timerheap._native._core import from_text, to_text
from timerheap.spark import CheckpointState, read_checkpoint
from timerheap.spark._exchange.placement import label_of
from timerheap.spark._group.stored.kinds import MANIFEST
from timerheap.spark._state.state_tables import GroupReader, timers

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

Key = tuple[str | None, int]


class Keeper(KeyedProcessFunction):
    """Registers a timer for each row, and keeps its times in states of all shapes."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(
            ValueStateDescriptor("last", Types.ROW_NAMED(["at"], [Types.INSTANT()]))
        )
        self.times = runtime_context.get_list_state(ListStateDescriptor("times", Types.LONG()))
        self.tens = runtime_context.get_map_state(MapStateDescriptor("tens", Types.LONG(), Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.last.update((datetime.datetime.fromtimestamp(value.at / 1000, datetime.UTC),))
        self.times.add(value.at)
        self.tens.put(value.at % 10, str(value.at))
        if value.at % 5 == 0:
            self.tens.remove(value.at % 10)
        ctx.timer_service().register_event_time_timer(value.at + LATER)
        ctx.timer_service().register_event_time_timer(END)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield (timestamp,)


def kept(df: DataFrame, **options: Any) -> DataFrame:
    return timerheap.spark.process(
        df,
        ["plane", "value"],
        Keeper(),
        "timestamp bigint",
        "at",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=3,
        **options,
    )


@pytest.fixture(scope="module")
def work(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query that has ended after six micro-batches, of which Spark keeps the state of the last ones."""
    work = tmp_path_factory.mktemp("kept")
    streams.write_batches(work / "in", BATCHES, SCHEMA)
    with streams.configured(spark, streaming_minBatchesToRetain=2):
        streams.run(kept(streams.read_stream(spark, work / "in")), work)
    return work


@pytest.fixture(scope="module")
def state(spark: SparkSession, work: Path) -> CheckpointState:
    return read_checkpoint(spark, work / "checkpoint")


def key_of(row: dict[str, Any]) -> Key:
    return row["plane"], row["value"]


def pending(batch: int) -> set[tuple[str | None, int, int]]:
    rows, watermark = rows_until(batch)
    done = [row for row in rows if row["at"] <= watermark]
    found = {(*key_of(row), row["at"] + LATER) for row in done if row["at"] + LATER > watermark}
    return found | {(*key_of(row), END) for row in done}


def test_timers_have_the_query_s_key_columns_and_readable_times(state: CheckpointState) -> None:
    timers = state.timers()
    assert timers.dtypes[:3] == [("plane", "string"), ("value", "int"), ("timestamp", "timestamp")]
    found = records(timers)
    assert {(row["plane"], row["value"], row["epoch_ms"]) for row in found} == pending(5)
    assert {(row["time_domain"], row["name"]) for row in found} == {("event_time", None)}
    assert all(
        row["timestamp"] == (None if row["epoch_ms"] == END else instant(row["epoch_ms"])) for row in found
    )


def test_a_state_has_a_row_for_each_key(state: CheckpointState) -> None:
    assert state.key == ["plane", "value"]
    assert state.states == ["last", "tens", "times"]
    rows, watermark = rows_until(5)
    times: dict[Key, list[int]] = {}
    tens: dict[Key, dict[int, str]] = {}
    for row in rows:
        if row["at"] <= watermark:
            times.setdefault(key_of(row), []).append(row["at"])
            tens.setdefault(key_of(row), {})[row["at"] % 10] = str(row["at"])
            if row["at"] % 5 == 0:
                del tens[key_of(row)][row["at"] % 10]

    def found(name: str) -> dict[Key, Any]:
        # The key column `value` keeps its name, so the state's column has another.
        return {key_of(row): row["timerheap_value"] for row in records(state.state(name))}

    assert found("times") == times
    assert {key: dict(pairs) for key, pairs in found("tens").items()} == {k: v for k, v in tens.items() if v}
    assert found("last") == {key: {"at": instant(values[-1])} for key, values in times.items()}


def test_waiting_rows_are_those_that_the_watermark_has_not_passed(state: CheckpointState) -> None:
    rows, watermark = rows_until(5)
    found = records(state.buffered_rows())
    wanted = [{**row, "event_time": instant(row["at"])} for row in rows if row["at"] > watermark]
    groups = [row.pop("key_group") for row in found]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert set(groups) <= {0, 1, 2}


def test_groups_sum_up_to_the_tables(state: CheckpointState) -> None:
    groups = records(state.groups())
    assert [row["key_group"] for row in sorted(groups, key=lambda row: row["key_group"])] == [0, 1, 2]
    timers, rows = records(state.timers()), records(state.buffered_rows())
    assert sum(row["event_time_timers"] for row in groups) == len(timers)
    assert sum(row["buffered_rows"] for row in groups) == len(rows)
    assert sum(dict(row["states"])["times"] for row in groups) == state.state("times").count()
    firsts = [row["next_event_time_timer"] for row in groups if row["next_event_time_timer"]]
    assert min(firsts) == min(row["timestamp"] for row in timers if row["timestamp"])
    assert {row["watermark"] for row in groups} == {instant(rows_until(5)[1])}
    assert all(row["bytes"] > 0 and row["keys"] > 0 and row["late_rows"] == 0 for row in groups)


def test_a_past_micro_batch_is_read_by_its_id(spark: SparkSession, work: Path) -> None:
    before = read_checkpoint(spark, work / "checkpoint", batch_id=4)
    assert before.batch_id == 4
    timers = records(before.timers())
    assert {(row["plane"], row["value"], row["epoch_ms"]) for row in timers} == pending(4)


def test_a_micro_batch_that_is_gone_raises_and_says_which_are_there(spark: SparkSession, work: Path) -> None:
    for batch in (0, 6):
        with pytest.raises(ValueError, match=rf"batch_id must be from [1-4] to 5, .*, got {batch}$"):
            read_checkpoint(spark, work / "checkpoint", batch_id=batch)
    with pytest.raises(TypeError, match="batch_id must be an int, got '5'"):
        read_checkpoint(spark, work / "checkpoint", batch_id="5")  # type: ignore[arg-type]


def test_an_unknown_state_raises_and_lists_the_names(state: CheckpointState) -> None:
    with pytest.raises(ValueError, match=r"name must be one of \['last', 'tens', 'times'\], got 'time'"):
        state.state("time")
    with pytest.raises(TypeError, match="name must be a str, got None"):
        state.state(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"checkpoint must be that of a query with windows, got '.*', whose"):
        state.windows()


def test_damaged_chunks_raise_and_name_the_key_group(state: CheckpointState) -> None:
    table = state._chunks.toArrow()
    rows = [row for row in table.to_pylist() if row["label"] == label_of(1)]
    reader = GroupReader(timers, [16, 18], pa.schema([]))

    def read(rows: list[dict[str, Any]]) -> None:
        list(reader(iter(pa.Table.from_pylist(rows, table.schema).to_batches())))

    at = next(i for i, row in enumerate(rows) if row["kind"] == 16 and row["id"] == 1)
    data = bytearray(from_text(rows[at]["text"]))
    data[len(data) // 2] ^= 1
    damaged = r"checkpoint must be whole, got one whose key group 1 is damaged: .*; pass the batch_id"
    with pytest.raises(ValueError, match=damaged):
        read([*rows[:at], rows[at] | {"text": to_text(bytes(data))}, *rows[at + 1 :]])
    with pytest.raises(ValueError, match=r"key group 1 is damaged: .*lacks chunk 1 of kind 16"):
        read([row for row in rows if row is not rows[at]])
    with pytest.raises(ValueError, match=r"key group 1 is damaged: .*lacks the manifest"):
        read([row for row in rows if row["kind"] != MANIFEST])


def test_inspect_prints_tables_and_draws_the_timers(
    spark: SparkSession, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tmp_path / "timers.png"
    result = inspected(monkeypatch, spark, work / "checkpoint", "--plot", picture, "--operator", "timerheap")
    assert result.exit_code == 0, result.output
    mark = f"{instant(rows_until(5)[1]):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    assert "Checkpoint after micro-batch 5, operator 0 'timerheap', key: plane, value" in result.output
    assert f"Watermark {mark} UTC, held back by the rows" in result.output
    printed = [line.split() for line in result.output.splitlines()]
    total = next(line for line in printed if line[:1] == ["all"])
    assert str(len(pending(5))) in total
    first = min((at, plane or "", value) for plane, value, at in pending(5))[0]
    assert any(f"{instant(first):%H:%M:%S.%f}"[:-3] in line for line in printed)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_of_format_2_says_which_setting_reads_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.write_batches(tmp_path / "in", BATCHES[:2], SCHEMA)
    version = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    with streams.configured(spark, streaming_stateStore_checkpointFormatVersion=2):
        streams.run(kept(streams.read_stream(spark, tmp_path / "in")), tmp_path)
        timers = read_checkpoint(spark, tmp_path / "checkpoint").timers().count()
    with pytest.raises(ValueError, match=rf"{version} must be 2, as in the query .*, got 1; set it before"):
        read_checkpoint(spark, tmp_path / "checkpoint").timers()
    with streams.configured(spark, streaming_stateStore_checkpointFormatVersion=1):
        result = inspected(monkeypatch, spark, tmp_path / "checkpoint")
    assert result.exit_code == 0, result.output
    total = next(line for line in result.output.splitlines() if line.split()[:1] == ["all"])
    assert str(timers) in total.split()


def test_inspect_draws_each_timer_once(state: CheckpointState) -> None:
    counts = histogram(state)
    assert counts["timers"].sum() == len(pending(5))
    assert counts["start"].isna().sum() == 3  # the timers at the end of time, in each group
    assert counts["start"].nunique() > 30


def test_inspect_says_what_is_wrong(
    spark: SparkSession, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = inspected(monkeypatch, spark, tmp_path / "nothing")
    assert result.exit_code == 1
    assert "Error: checkpoint must be the checkpoint location" in result.output
    result = inspected(monkeypatch, spark, work / "checkpoint", "--batch", 99)
    assert "Error: batch_id must be from" in result.output
    for operator in ("carts", 7):
        result = inspected(monkeypatch, spark, work / "checkpoint", "--operator", operator)
        assert "Error: operator must be the name or the number of one operator" in result.output
        assert f"got {operator!r}; it has operator 0 'timerheap': key (plane, value)" in result.output
    result = inspected(monkeypatch, spark, work / "checkpoint", "--plot", "timers.svg")
    assert "must end in .png, got timers.svg" in result.output
    result = inspected(monkeypatch, spark, work / "checkpoint", "--format", "json")
    assert "must be text without --key, got json" in result.output
    result = inspected(monkeypatch, spark, work / "checkpoint", "--plot", tmp_path / "none" / "timers.png")
    assert f"must be in a folder that exists, got {tmp_path}" in result.output.replace("\n", "")


def test_inspect_escapes_what_an_error_quotes(
    spark: SparkSession, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = inspected(monkeypatch, spark, tmp_path / "\x1b[2J")
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert "x1b[2J" in result.output

    def hostile(*_: object) -> list[object]:
        raise ValueError("operator must be one of 0: \x1b[2J\x9b2J")

    monkeypatch.setattr("timerheap._inspect.command.find_operators", hostile)
    result = inspected(monkeypatch, spark, work / "checkpoint", "--operator", 7)
    assert "Error: operator must be one of 0: \\x1b[2J\\x9b2J" in result.output


class WithTimers(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(10**12)


def test_inspect_shows_keys_of_any_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.write_batches(tmp_path / "in", BATCHES[:1], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "in").where("plane is not null")
    df = df.select(df.plane.alias("a.b"), df.value.alias("KEY_GROUP"), df.plane.alias("`"), "at")
    keys = ["`a.b`", "KEY_GROUP", "````"]
    found = timerheap.spark.process(df, [df[key] for key in keys], WithTimers(), "n int", order="arrival")
    streams.run(found, tmp_path)
    result = inspected(monkeypatch, spark, tmp_path / "checkpoint", "--plot", tmp_path / "timers.png")
    assert result.exit_code == 0, result.output
    assert "key: a.b, KEY_GROUP, `" in result.output
    assert "2001-09-09 01:46:40 UTC" in result.output


def test_a_running_query_is_read_between_its_micro_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoint"
    streams.write_batches(tmp_path / "in", BATCHES[:1], SCHEMA)
    with streams.started(kept(streams.read_stream(spark, tmp_path / "in")), tmp_path) as query:
        query.processAllAvailable()
        first = read_checkpoint(spark, checkpoint)
        assert (first.batch_id, timers_of(first)) == (0, pending(0))
        streams.write_batches(tmp_path / "in", BATCHES[1:3], SCHEMA)
        query.processAllAvailable()
        later = read_checkpoint(spark, checkpoint)
        assert (later.batch_id, timers_of(later)) == (2, pending(2))
        assert timers_of(read_checkpoint(spark, checkpoint, batch_id=0)) == timers_of(first) == pending(0)
        result = inspected(monkeypatch, spark, checkpoint)
        assert "Checkpoint after micro-batch 2" in result.output, result.output
        assert query.isActive


def timers_of(state: CheckpointState) -> set[tuple[str | None, int, int]]:
    return {(row["plane"], row["value"], row["epoch_ms"]) for row in records(state.timers())}
