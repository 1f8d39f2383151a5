"""A function written for PyFlink runs with changed imports and yields the same rows as in PyFlink."""

import json
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyflink_body import CourierWatch

import timerheap.spark
from timerheap import WatermarkStrategy

pytestmark = pytest.mark.spark

DATA = Path(__file__).resolve().parents[1] / "data"
INPUT = DATA / "pyflink_input.jsonl"
OUTPUT = DATA / "pyflink_output.jsonl"
INPUT_SCHEMA = "k string, at bigint, event string, stop string, via string, parcels bigint, weight double"
OUTPUT_SCHEMA = """
    kind string, k string, at bigint,
    number int, parcels bigint, weight double, detail string, in_time boolean
"""
BOUND = 5 * 60_000  # the recording's: no row of the input is late
BATCHES = 4


@pytest.fixture(scope="module")
def recorded():
    lines = OUTPUT.read_text(encoding="utf-8").splitlines()
    assert lines
    return Counter(tuple(json.loads(line).values()) for line in lines)


def watch(df, order):
    return timerheap.spark.process(
        df,
        key="k",
        function=CourierWatch(),
        output_schema=OUTPUT_SCHEMA,
        event_time="at",
        order=order,
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(BOUND),
        max_parallelism=8,
    )


def assert_same_rows(df, recorded):
    yielded = Counter(tuple(row) for row in df.collect())
    assert {"missing": recorded - yielded, "unexpected": yielded - recorded} == {
        "missing": Counter(),
        "unexpected": Counter(),
    }


@pytest.mark.parametrize("order", ["arrival", "event_time"])
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "KeyedProcessFunction.process_element",
    "KeyedProcessFunction.on_timer",
    "KeyedProcessFunction.Context.get_current_key",
    "KeyedProcessFunction.Context.timestamp",
    "KeyedProcessFunction.Context.timer_service",
    "KeyedProcessFunction.OnTimerContext.time_domain",
    "TimerService.current_watermark",
    "TimerService.register_event_time_timer",
    "TimerService.delete_event_time_timer",
    "TimeDomain.EVENT_TIME",
    "RuntimeContext.get_state",
    "RuntimeContext.get_list_state",
    "RuntimeContext.get_map_state",
    "ValueStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
)
def test_a_pyflink_function_yields_the_recorded_rows_on_a_batch(spark, recorded, order):
    rows = spark.read.schema(INPUT_SCHEMA).json(str(INPUT)).coalesce(1)  # rows of a key arrive in order

    assert_same_rows(watch(rows, order), recorded)


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_a_pyflink_function_yields_the_recorded_rows_on_a_stream(spark, recorded, tmp_path, order):
    write_micro_batches(tmp_path / "input")
    rows = (
        spark.readStream.schema(INPUT_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "input"))
    )

    query = (
        watch(rows, order)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "output"))
    )
    query.awaitTermination()

    with_rows = [progress for progress in query.recentProgress if progress.numInputRows]
    assert len(with_rows) == BATCHES
    yielded = spark.read.schema(OUTPUT_SCHEMA).parquet(str(tmp_path / "output"))
    assert_same_rows(yielded.where("k <> 'closing'"), recorded)


def write_micro_batches(folder):
    """Write the input as one Parquet file per micro-batch, in order of arrival.

    A stream has no end that would fire the last timers, so one more row comes long after them.
    """
    rows = [json.loads(line) for line in INPUT.read_text(encoding="utf-8").splitlines()]
    ten_days = 10 * 24 * 3_600_000
    rows.append({**rows[-1], "k": "closing", "at": max(row["at"] for row in rows) + ten_days})
    table = pa.Table.from_pylist(rows)
    size = -(-len(rows) // BATCHES)
    folder.mkdir()
    for batch in range(BATCHES):
        path = folder / f"{batch}.parquet"
        pq.write_table(table.slice(batch * size, size), path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark takes the oldest file first
