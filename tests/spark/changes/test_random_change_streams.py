"""Random plans over random changes on Spark: streams over files, restarted on one checkpoint, and batches.

``make soak-changes`` runs many more of them than ``make test``.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from change_plans import Groups, Kept, Tables, plan_of
from plan_cases import Case, Planned
from pyspark.sql import DataFrame, SparkSession
from random_changes import CHANGE_TYPE, Applied, differences
from streams import read_stream, write_batches

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

CASES = int(os.environ.get("TIMERHEAP_CHANGE_STREAMS", "24"))
FIRST = int(os.environ.get("TIMERHEAP_CHANGE_SEED", "0"))


class Streamed:
    """A case whose micro-batches are files, of which each start of the query gets some."""

    def __init__(self, spark: SparkSession, case: Case, work: Path) -> None:
        self.spark, self.case, self.work = spark, case, work
        self.applied = Applied()
        self.wrong: list[str] = []
        self.batches = 0

    def write(self, numbers: Iterator[int] | range) -> None:
        for number in numbers:
            for stream, batch in self.case.inputs(number).items():
                write_batches(self.work / stream, [pa.Table.from_batches([batch])], batch.schema)

    def run(self) -> None:
        """Start the query, and end it when it has read all files."""
        frames = {stream: read_stream(self.spark, self.work / stream) for stream in self.case.batches}
        result = self.case.planned.plan.frame(frames)
        query = (
            result.writeStream.foreachBatch(self.check)
            .option("checkpointLocation", str(self.work / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def check(self, df: DataFrame, number: int) -> None:
        plan = self.case.planned.plan
        changes = df.select(*plan.schema.names, CHANGE_TYPE).toArrow()
        wrong = self.applied.apply(changes, paired=not isinstance(plan, Kept))
        tables = self.case.tables(number + 1)
        if self.case.can_be_compared(tables):
            wrong += differences(self.applied.rows, plan.rows(tables))
        self.wrong += [f"micro-batch {number}: {one}" for one in wrong]
        self.batches += 1

    def check_batch(self) -> None:
        """Compare the plan's result of batches, which is the table at the end."""
        frames = {
            stream: self.spark.read.schema(read_stream(self.spark, self.work / stream).schema).parquet(
                str(self.work / stream)
            )
            for stream in self.case.batches
        }
        plan, applied = self.case.planned.plan, Applied()
        wrong = applied.apply(
            plan.frame(frames).select(*plan.schema.names, CHANGE_TYPE).toArrow(), paired=False
        )
        tables = self.case.tables(self.case.count)
        of_all = [one for one in plan.every() if isinstance(one, Groups) and not one.key]
        wrong += differences(applied.rows, plan.rows(Tables(tables, of_all)))
        self.wrong += [f"as a batch: {one}" for one in wrong]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_the_table_is_that_of_the_model_on_spark(
    spark: SparkSession, one_partition: None, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(f"stream {seed}")
    planned = Planned(plan_of(seed + 5_000, depth=rng.choice([1, 2, 3])), inserts_only=seed % 5 == 4)
    case = Case(planned, seed, batches=rng.choice([4, 6]))
    streamed = Streamed(spark, case, tmp_path)
    cut = rng.randrange(1, case.count)
    for numbers in (range(cut), range(cut, case.count)):
        streamed.write(numbers)
        streamed.run()
    streamed.check_batch()
    assert streamed.batches == case.count
    assert not streamed.wrong, f"seed {seed} of {planned.plan}\n{case}\n" + "\n".join(streamed.wrong[:9])
    shutil.rmtree(tmp_path)
