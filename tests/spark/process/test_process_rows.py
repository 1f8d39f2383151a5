"""Compares whole outputs of a KeyedProcessFunction on Spark with a plain-Python reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import streams
from anything import changed, cut, delayed, expected, make_rows, process, write
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_rows_in_arrival_order_give_the_expected_output(spark: SparkSession, tmp_path: Path) -> None:
    batches = cut(delayed(1, make_rows(1, 600)), 5)
    yielded = streams.stream(
        spark, lambda df: process(df, order="arrival"), write(tmp_path / "input", batches), tmp_path
    )
    assert yielded == expected(batches, order="arrival")


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_a_batch_dataframe_ends_with_the_last_watermark(
    order: str, spark: SparkSession, tmp_path: Path
) -> None:
    batches = [delayed(2, make_rows(2, 600))]
    df = spark.read.parquet(str(write(tmp_path / "input", batches)))
    assert streams.rows(process(df, order)) == expected(batches, order, ends=True)


def test_in_event_time_order_results_depend_only_on_the_data(spark: SparkSession, tmp_path: Path) -> None:
    data = make_rows(3, 400, ties="ties")
    variants = {}
    for files, files_a_batch, partitions, max_parallelism in [(1, 1, 4, 4), (9, 3, 2, 5), (4, 1, 1, 2)]:
        work = tmp_path / str(files)
        folder = write(work / "input", cut(delayed(files, data), files))
        with streams.configured(spark, shuffle_partitions=partitions):
            df = streams.read_stream(spark, folder, files_a_batch)
            if files_a_batch > 1:
                df = df.repartition(3)
            progress = streams.run(process(df, "event_time", max_parallelism=max_parallelism), work)
        assert len([batch for batch in progress if batch.numInputRows]) == files // files_a_batch
        variants[files] = streams.sink(spark, work)

    assert variants[1] == variants[9] == variants[4]
    without_ties = [row for row in variants[1] if "ties" not in row[1]]
    assert without_ties == [row for row in expected([data], order="event_time") if "ties" not in row[1]]
    assert len(without_ties) < len(variants[1])


def test_rows_behind_the_watermark_are_processed_or_dropped_by_the_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Arrival order processes them and fires their timers at once; event-time order drops them."""
    batches = cut(delayed(4, make_rows(4, 200)), 4)
    batches[2] += [changed(row, op=0) for row in batches[0][::10]]
    folder = write(tmp_path / "input", batches)
    for order in ("arrival", "event_time"):
        yielded = streams.stream(spark, lambda df, order=order: process(df, order), folder, tmp_path / order)
        assert yielded == expected(batches, order)
        seen = [row[2] for row in yielded if row[0] == "row"]
        assert (len(seen) == len(set(seen))) is (order == "event_time")


def test_two_results_over_one_stream_may_be_united(spark: SparkSession, tmp_path: Path) -> None:
    """Behind a union a task's partition id counts the partitions of both inputs."""
    batches = cut(delayed(5, make_rows(5, 60)), 2)
    folder = write(tmp_path / "input", batches)
    yielded = streams.stream(
        spark,
        lambda df: process(df, order="arrival").union(process(df, order="arrival")),
        folder,
        tmp_path,
    )
    assert yielded == sorted(2 * expected(batches, order="arrival"), key=repr)
