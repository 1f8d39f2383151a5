"""As-of joins that are corrected: after each micro-batch their changes make the table of a batch join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from asof_cases import (
    DELAY,
    END,
    LEFT,
    OPTIONS,
    RIGHT,
    START,
    Options,
    Row,
    cases,
    joined,
    millis,
    split,
    watermarks,
)
from asof_operator import Operator
from changes_model import Table, apply_changes, table_of
from pyspark.sql import DataFrame, SparkSession

from timerheap.errors import ArgumentError, CheckpointMismatchError
from timerheap.spark import Corrections, join_asof, read_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

LATENESS = 6


def tables(
    lefts: list[list[Row]], rights: list[list[Row]], options: Options, lateness: int, early: bool
) -> Iterator[tuple[Table, int, int]]:
    """Yield after each micro-batch: the table of the rows so far, the watermark, how many were too late."""
    batches, watermark, late = [*zip(lefts, rights, strict=True)], -END, 0
    taken: tuple[list[Row], list[Row]] = [], []
    for batch, after in zip(batches, watermarks(batches), strict=True):
        for number, rows in enumerate(batch):
            timely = [row for row in rows if millis(row) > watermark - lateness]
            taken[number].extend(timely)
            late += len(rows) - len(timely)
        watermark = after
        outputs = joined(*taken, options, END if early else watermark)
        yield table_of(outputs.results), watermark, late


def plain(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "side_output"} for row in rows]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_micro_batch_makes_the_table_of_the_model(spark: SparkSession, name: str, early: bool) -> None:
    """200 cases for each of the options, through saves and loads; late rows are counted."""
    options = OPTIONS[name]
    left, right = cases(3000 + len(name), 200)
    late_rows = Corrections(LATENESS, early=early, later="emit")
    operator = Operator(spark, options, late=late_rows, unmatched=None)
    lefts, rights = split(left, 12), split(right, 12)
    table: Table = Counter()
    kinds, late = Counter[str](), 0
    for number, (wanted, watermark, count) in enumerate(tables(lefts, rights, options, LATENESS, early)):
        operator.found = []
        operator.run(lefts[number], rights[number], watermark)
        late += sum(row["side_output"] is not None for row in operator.found)
        changes = plain([row for row in operator.found if row["side_output"] is None])
        kinds.update(row["_change_type"] for row in changes)
        apply_changes(table, changes)
        assert table == wanted
        assert late == count
        if number % 3 == 1:
            operator.reload()
    assert late > 20
    assert kinds["update_postimage"] + kinds["delete"] > 10
    assert kinds["delete"] == 0 or options.how == "inner"


@pytest.mark.parametrize("early", [False, True])
def test_a_batch_has_all_answers_as_inserts(spark: SparkSession, early: bool) -> None:
    options = OPTIONS["earlier, deletes"]
    left, right = cases(7, 50)
    operator = Operator(spark, options, late=Corrections(0, early=early), unmatched=None)
    operator.run(left, right, END)
    rows = plain(operator.found)
    assert {row.pop("_change_type") for row in rows} == {"insert"}
    assert table_of(rows) == table_of(joined(left, right, options).results)
    assert not len(operator.group.event_timers.heap)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("tolerance", [None, 3_000])
def test_state_is_flat(spark: SparkSession, early: bool, tolerance: int | None) -> None:
    """Over 200 micro-batches: the rows that a key keeps, the timers, and with a tolerance the keys."""
    options = Options(tolerance=tolerance)
    operator = Operator(spark, options, late=Corrections(2_000, early=early), unmatched=None)
    one, other = {"case": 0, "n": 1}, {"case": 0, "price": 1.0, "note": "x", "gone": False}
    sizes = []
    for number in range(200):
        at = [START + timedelta(milliseconds=300 * number - back) for back in (0, 1500)]
        keys = ["a", f"only {number}"]
        operator.run(
            [{**one, "k": "a", "at": each} for each in at],
            [{**other, "k": key, "at": each} for each in at for key in keys],
            millis({"at": at[0]}) - 10,
        )
        operator.reload()
        states = operator.group.states.values()
        kept = [sum(len(rows) for rows in state.get_many(state.ids()).to_pylist()) for state in states]
        sizes.append((kept[0], kept[1] if tolerance else 0, len(operator.group.event_timers.heap)))
    for column in zip(*sizes, strict=True):
        assert max(column[150:]) <= 1.1 * max(column[50:100])  # removals come together


def asof(left: DataFrame, right: DataFrame, **more: Any) -> DataFrame:
    given = {"late": Corrections(LATENESS), "max_parallelism": 4, **more}
    return join_asof(left, right, ["case", "k"], "at", watermark=f"{DELAY} milliseconds", **given)


@pytest.mark.parametrize("early", [False, True])
def test_a_stream_makes_the_table_through_a_restart(spark: SparkSession, tmp_path: Path, early: bool) -> None:
    options = OPTIONS["inner, tolerance"]
    left, right = cases(23, 60)
    lefts, rights = split(left, 6), split(right, 6)
    table: Table = Counter()
    done, late = 0, 0
    expected = tables(lefts, rights, options, LATENESS, early)
    for some in (slice(0, 4), slice(4, 6)):
        streams.write_batches(tmp_path / "left", lefts[some], LEFT)
        streams.write_batches(tmp_path / "right", rights[some], RIGHT)
        sides = [streams.read_stream(spark, tmp_path / name) for name in ("left", "right")]
        result = asof(*sides, late=Corrections(LATENESS, early=early), **options.arguments())
        names = result.columns
        for batch in streams.batches(result, tmp_path):
            apply_changes(table, [dict(zip(names, row, strict=True)) for row in batch])
            wanted, _, late = next(expected)
            # Spark's rows have times without a zone.
            assert len(table) == len(wanted)
            assert {row[3] for row in table} == {row[3] for row in wanted}
            assert sorted((row[3], row[5] is None, row[5] or 0.0) for row in table.elements()) == sorted(
                (row[3], row[5] is None, row[5] or 0.0) for row in wanted.elements()
            )
            done += 1
    assert done == 6
    state = read_checkpoint(spark, str(tmp_path / "checkpoint"))
    assert sum(row["late_rows"] for row in state.groups().collect()) == late
    assert sorted(state.states) == [state.states[0], "right"]
    assert state.state("right").count() > 0


def test_another_lateness_needs_another_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    left, right = cases(23, 60)
    for number in range(2):
        streams.write_batches(tmp_path / "left", split(left, 3)[number : number + 1], LEFT)
        streams.write_batches(tmp_path / "right", split(right, 3)[number : number + 1], RIGHT)
        sides = [streams.read_stream(spark, tmp_path / name) for name in ("left", "right")]
        if not number:
            streams.batches(asof(*sides), tmp_path)
            continue
        with pytest.raises(Exception, match="late must be as in the checkpoint") as caught:
            streams.batches(asof(*sides, late=Corrections(7)), tmp_path)
        assert CheckpointMismatchError.__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"late": Corrections(-1)}, "late.allowed_lateness must be 0 or more"),
        ({"unmatched": "emit"}, 'unmatched must be "drop" if late corrects answers'),
        ({"late": "correct"}, 'late must be "drop" or "emit"'),
    ],
)
def test_what_makes_no_sense_is_refused(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    sides = [spark.createDataFrame(pa.Table.from_pylist([], schema)) for schema in (LEFT, RIGHT)]
    with pytest.raises(ArgumentError, match=message):
        asof(*sides, **options)
