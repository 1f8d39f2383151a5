"""A query in Spark's real-time mode gives the results of a batch, also after a task has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from children import told
from streams import with_settings

import timerheap.spark
from timerheap import KeyedProcessFunction

pytestmark = [
    pytest.mark.spark,
    pytest.mark.in_turn(5, together=True),
    pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Python can ask for it from PySpark 4.3 on"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("real_time")
    return told("real_time_child.py", folder) | {"folder": folder}


def test_timers_fire_within_an_epoch_and_each_source_holds_the_watermark(seen: dict[str, Any]) -> None:
    assert seen["before the other partition"] == []
    assert seen["first"] == [["a", 2000, 1], ["b", 2500, 1], ["c", 2200, 1]]


def test_a_channel_without_rows_holds_the_watermark_unless_it_is_idle(seen: dict[str, Any]) -> None:
    assert seen["held"] == []
    assert seen["channels"] == seen["channels wanted"]
    assert seen["idle"] == [["a", 2000, 1], ["b", 2500, 1]]


def test_a_task_that_fails_while_its_twin_saves_leaves_the_state_of_the_epoch_before(
    seen: dict[str, Any],
) -> None:
    assert seen["failed"]
    assert seen["rows of the twin"] > 0
    assert seen["saved in the broken epoch"] == [seen["failed in partition"] != number for number in (0, 1)]
    assert seen["times"] > len(seen["rows wanted"])
    assert seen["rows"] == seen["rows wanted"]


def test_a_checkpoint_is_read(seen: dict[str, Any]) -> None:
    assert seen["counts"] == [["a", 6], ["b", 2], ["c", 5], ["d", 2], ["e", 2]]
    assert seen["timers"] == []
    assert seen["watermark"] == 48_999


def test_a_query_goes_on_in_micro_batches_and_back(seen: dict[str, Any]) -> None:
    assert seen["between"] == [["a", 51_000, 7], ["a", 53_000, 8], ["c", 51_000, 6]]
    assert seen["back"] == [["f", 60_500, 2]]


@pytest.mark.parametrize("part", ["columns", "sides", "letters", "lates", "clock", "tabled"])
def test_other_functions_and_outputs_give_their_results(seen: dict[str, Any], part: str) -> None:
    assert seen[part] == seen[f"{part} wanted"]


def test_rows_that_wait_for_others_outlive_ends_of_epochs_stops_and_kills(seen: dict[str, Any]) -> None:
    assert (seen["missing"], seen["wrong"]) == ([], [])
    assert seen["rows that wait"] == seen["wanted"] > 1000


def test_a_query_that_is_started_otherwise_says_how_to_start_it(seen: dict[str, Any]) -> None:
    assert "must be started with timerheap.spark.start_real_time()" in seen["not by start_real_time"]


def test_more_between_two_operators_than_columns_and_rows_is_an_error(seen: dict[str, Any]) -> None:
    assert seen["more"].startswith("df must be a source or the results of one operator in real-time mode")
    assert "got Spark's Generate between" in seen["more"]


def test_the_progress_of_an_epoch_is_told(seen: dict[str, Any]) -> None:
    progress = seen["progress"]
    assert progress["watermark"] == 7999
    assert (progress["late_rows"], progress["buffered_rows"]) == (0, 2)
    assert progress["channel_watermarks"] == {"0": 7999, "1": 7999}
    assert progress["state_bytes"] > 0
    assert seen["fired"] == 3


def test_what_the_application_lacks_is_named_in_one_error(spark: Any) -> None:
    rows, cores = spark.readStream.format("rate").load(), spark.sparkContext.defaultParallelism
    marked = timerheap.spark.in_real_time(rows)
    few, many = ({"spark.sql.shuffle.partitions": str(number)} for number in (cores - 1, cores))
    with pytest.raises(ValueError, match="real_time needs") as found, with_settings(spark, many):
        timerheap.spark.process(marked, "value", Nothing(), "value long")
    for name in ("pipelined.enabled", "shuffle.manager", "MaxWaitTimeMs", "allowlistCheck"):
        assert name in str(found.value)
    assert f"and with more than {cores} cores, got {cores}: one for each of" in str(found.value)
    with pytest.raises(ValueError, match=r"allowlistCheck=false$"), with_settings(spark, few):
        timerheap.spark.process(marked, "value", Nothing(), "value long")


def test_a_batch_runs_as_ever(spark: Any) -> None:
    rows = timerheap.spark.in_real_time(spark.range(3))
    result = timerheap.spark.process(rows, "id", Nothing(), "value long")
    assert result.collect() == []


class Nothing(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        """Yield nothing."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "writer must have the option checkpointLocation"),
        ({"path": "a", "table": "b"}, "table must be None if there is a path"),
        ({"epoch": 0}, "epoch must be more than 0 ms"),
        ({"tick": 0}, "tick must be more than 0 ms"),
        ({"linger": "-1 millisecond"}, "linger must be 0 or more"),
    ],
)
def test_a_wrong_argument_of_a_start_is_an_error(spark: Any, arguments: dict[str, str], message: str) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    with pytest.raises(ValueError, match=message):
        timerheap.spark.start_real_time(writer, **arguments)


def test_a_query_without_real_time_is_an_error(spark: Any, tmp_path: Path) -> None:
    writer = spark.readStream.format("rate").load().writeStream.option("checkpointLocation", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"must write the result of operators over rows of in_real_time\(\) alone, got 0"
    ):
        timerheap.spark.start_real_time(writer.format("noop"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"restarts": -1}, "restarts must be 0"), ({"backoff": -1}, "backoff must be 0")],
)
def test_a_wrong_argument_of_a_run_is_an_error(spark: Any, arguments: dict[str, int], message: str) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    with pytest.raises(ValueError, match=message):
        timerheap.spark.run_real_time(writer, **arguments)


def test_something_else_than_a_writer_is_an_error(spark: Any) -> None:
    with pytest.raises(TypeError, match="writer must be a DataStreamWriter"):
        timerheap.spark.start_real_time(spark.range(1))
