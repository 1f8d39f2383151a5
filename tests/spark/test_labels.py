"""Labels reach the partitions for which they were chosen."""

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timerheap.spark._exchange.labels import balanced_labels, partition_of

pytestmark = pytest.mark.spark


def test_labels_reach_the_partitions_that_they_were_chosen_for(spark: SparkSession) -> None:
    labels = [*range(200), 2**20, 2**31 - 1]
    df = spark.createDataFrame([(label,) for label in labels], "label int")
    for partitions in (1, 7, 200):
        hashed = df.select(F.expr(f"pmod(hash(label), {partitions})")).collect()
        assert partition_of(np.array(labels), partitions).tolist() == [row[0] for row in hashed]
    placed = df.repartition(7, "label").select("label", F.spark_partition_id()).collect()
    assert dict(map(tuple, placed)) == dict(
        zip(labels, partition_of(np.array(labels), 7).tolist(), strict=True)
    )


@pytest.mark.parametrize("partitions", [1, 3, 64, 200])
@pytest.mark.parametrize("groups", [1, 64, 128, 1000])
def test_key_groups_are_spread_evenly_over_the_partitions(partitions: int, groups: int) -> None:
    labels = balanced_labels(groups, partitions)
    assert len(set(labels.tolist())) == groups
    assert labels.min() >= 0
    assert partition_of(labels, partitions).tolist() == [group % partitions for group in range(groups)]
    assert balanced_labels(groups + 5, partitions)[:groups].tolist() == labels.tolist()
