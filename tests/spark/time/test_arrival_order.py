"""Rows in order of arrival: those ahead of due timers are counted, and late ones go where `late` says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from queries import opened, query_of

import timerheap.spark
from timerheap import MAX_WATERMARK, BatchProcessFunction, KeyedProcessFunction
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._worker import driver_mail
from timerheap.spark._worker.driver_mail import Letter, Opener, Tally
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

ROWS = StructType().add("k", "long").add("at", "long").add("add", "long").add("drop", "long")
RESULT = StructType().add("k", "long").add("at", "long")


@dataclass(frozen=True)
class Step:
    """A row: deletes a timer at `drop`, then registers one at `add`."""

    k: int
    at: int
    add: int
    drop: int


class Rows(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().delete_event_time_timer(value.drop)
        ctx.timer_service().register_event_time_timer(value.add)
        yield value.k, value.at


class Columns(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timers(ctx.ids, batch.column("add").to_numpy(), name="t")
        yield batch.select(["k", "at"])


class Group:
    """One key group of a query in order of arrival."""

    def __init__(self, function: Any, late: Any = "process") -> None:
        late_row = ROWS if late == "emit" else None
        options = {"late": late, "late_row": late_row, "late_columns": tuple(ROWS.names)}
        self.query = query_of(function, ROWS, RESULT, order="arrival", **options)
        self.runner = opened(self.query)
        self.group = KeyGroup(self.query.layout)

    def batch(self, steps: Sequence[Step], watermark: int) -> list[dict[str, Any]]:
        columns = {name: np.array([getattr(step, name) for step in steps], np.int64) for name in ROWS.names}
        rows = KeyedRows(pa.record_batch(columns), columns["k"] * 11 + 5, columns["at"])
        output = ResultBuffer(*self.query.outputs)
        run_key_group(MicroBatch(self.query, self.runner, None, output), self.group, rows, watermark)
        return output.table().to_pylist()


STEPS = st.lists(
    st.builds(Step, st.integers(0, 2), st.integers(0, 20), st.integers(0, 25), st.integers(0, 25)),
    max_size=15,
)


@settings(max_examples=60)
@given(batches=st.lists(STEPS, max_size=4))
def test_rows_ahead_of_due_timers_are_counted(batches: list[list[Step]]) -> None:
    group, timers, expected = Group(Rows()), set(), 0
    watermark = -1
    for steps in batches:
        watermark = max([watermark, *(step.at - 1 for step in steps)])
        for step in steps:
            due = [at for k, at in timers if k == step.k and at <= watermark and at < step.at]
            expected += bool(due)
            timers.discard((step.k, step.drop))
            timers.add((step.k, step.add))
        group.batch(steps, watermark)
        timers = {(k, at) for k, at in timers if at > watermark}
        assert group.runner.rows_ahead.count == expected


def test_rows_ahead_of_timers_of_the_same_call_are_counted() -> None:
    group = Group(Columns())
    group.batch([Step(1, 10, 15, 0), Step(2, 10, 99, 0)], 12)
    assert group.runner.rows_ahead.warnings == {}
    group.batch([Step(1, 14, 30, 0), Step(2, 16, 99, 0), Step(1, 16, 30, 0), Step(1, 20, 30, 0)], 19)
    assert group.runner.rows_ahead.count == 0, "the first row of key 1 may have moved its timer at 15"
    group.batch([Step(1, 32, 60, 0), Step(1, 40, 60, 0), Step(2, 41, 99, 0)], 45)
    assert group.runner.rows_ahead.count == 1, "the first row of key 1 was ahead of its timer at 30"
    group.batch([Step(3, 71, 75, 0), Step(3, 76, 76, 0)], 90)
    assert group.runner.rows_ahead.count == 1, "the second row has moved the timer of the first"


def test_the_first_row_ahead_is_described() -> None:
    group = Group(Rows())
    group.batch([Step(7, 10, 15, 0), Step(7, 20, 99, 0), Step(7, 30, 99, 0)], 29)
    assert group.runner.rows_ahead.count == 2
    message = group.runner.rows_ahead.warnings["rows ahead"]
    assert message is not None
    assert message.startswith(
        "in order of arrival, a row with timestamp 20 was processed before a timer of its key at 15, "
        "which was due"
    )


def test_a_timer_that_is_not_due_is_not_counted() -> None:
    group = Group(Rows())
    group.batch([Step(7, 10, 15, 0), Step(7, 20, 99, 0)], 14)
    assert group.runner.rows_ahead.count == 0


def test_a_function_whose_results_need_no_order_counts_nothing() -> None:
    class AnyOrder(Rows):
        _any_order = True

    group = Group(AnyOrder())
    group.batch([Step(7, 10, 15, 0), Step(7, 20, 99, 0)], MAX_WATERMARK)
    assert group.runner.rows_ahead.count == 0


@pytest.mark.parametrize("function", [Rows, Columns])
@pytest.mark.parametrize("late", ["process", "drop", "emit"])
def test_late_rows_are_processed_dropped_or_emitted(function: type[Any], late: str) -> None:
    group = Group(function(), late)
    group.batch([Step(1, 100, 200, 0)], 99)
    found = group.batch([Step(1, 99, 300, 0), Step(1, 101, 300, 0), Step(2, 50, 300, 0)], 100)
    processed = [row["at"] for row in found if row["at"] is not None]
    assert processed == ([99, 101, 50] if late == "process" else [101])
    sent = [row["side_output"]["late_rows"] for row in found if row.get("side_output") is not None]
    emitted = [(row["late_by"], row["at"]) for row in sent]
    assert emitted == ([(1, 99), (50, 50)] if late == "emit" else [])
    assert group.group.late_rows == 2  # processed ones, too


def test_the_driver_logs_one_message_about_a_matter(caplog: pytest.LogCaptureFixture) -> None:
    opener, box = Opener(), ("session", "owner")
    with caplog.at_level(logging.WARNING, "timerheap"):
        for found in (
            [("rows ahead", "key 1"), ("rows ahead", "key 2")],
            [("a", "a"), ("b", "b")],
            [("b", "b")],
        ):
            letters = tuple(Letter(*box, about, text) for about, text in found)
            assert opener.addInPlace((), letters) == (), "a query that runs for long does not collect them"
            assert opener.addInPlace((), (Letter("session", "another", "rows ahead", "another query"),)) == ()
    assert [record.message for record in caplog.records] == ["key 1", "another query", "a", "b"]


def test_the_driver_logs_what_happens_again_and_again_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener, clock = Opener(), [0.0]
    monkeypatch.setattr(driver_mail.time, "monotonic", lambda: clock[0])
    with caplog.at_level(logging.WARNING, "timerheap"):
        for at, owner, times in (
            (0, "q", 3),
            (1, "q", 10),
            (2, "another query", 7),
            (59, "q", 5),
            (60, "q", 4),
            (61, "q", 1),
            (120, "q", 1),
        ):
            clock[0] = at
            letter = Letter("session", owner, "late", Tally(f"{owner}: dropped {{}} rows {{}}, {at}", times))
            assert opener.addInPlace((), (letter,)) == ()
    assert caplog.messages == [
        "q: dropped 3 rows {}, 0",
        "another query: dropped 7 rows {}, 2",
        "q: dropped 22 rows {}, 60",
        "q: dropped 24 rows {}, 120",
    ]


@pytest.mark.spark
def test_queries_leave_no_accumulators_behind(spark: SparkSession) -> None:
    """One stays registered for the session, whatever the number of its queries."""
    from pyspark.accumulators import _accumulatorRegistry

    def run() -> int:
        df = spark.createDataFrame([(1, 2, 0, 0)], "k long, at long, add long, drop long")
        timerheap.spark.process(df, "k", Counted(), "k long", order="arrival").collect()
        return len(_accumulatorRegistry)

    assert run() == run() == run()


class Counted(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (value.k,)
