"""Labels reach the partitions that they are made for, and a task knows how many partitions there are."""

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timerheap.spark._exchange.placement import Placement, key_group_of, labels_of

pytestmark = pytest.mark.spark


def test_a_key_group_is_on_the_partition_of_its_number_however_many_there_are(spark: SparkSession) -> None:
    labels = labels_of(np.arange(1 << 15)).tolist()
    assert len(set(labels)) == len(labels)
    assert [key_group_of(label) for label in labels[:50]] == list(range(50))
    df = spark.createDataFrame([(group, labels[group]) for group in (*range(200), 32767)], "g int, label int")
    for partitions in (1, 7, 64, 201_600):
        hashed = df.select("g", F.expr(f"pmod(hash(label), {partitions})")).collect()
        assert all(partition == group % partitions for group, partition in hashed)
    placed = df.repartition(7, "label").select("g", F.spark_partition_id()).collect()
    assert all(partition == group % 7 for group, partition in placed)


@pytest.mark.parametrize(
    ("partitions", "groups"), [(1, 4), (2, 4), (3, 6), (4, 4), (17, 17), (200, 200), (50_000, 1 << 15)]
)
def test_each_partition_has_as_many_key_groups_as_make_four(partitions: int, groups: int) -> None:
    placement = Placement.of(None, partitions)
    assert placement.max_parallelism == groups
    every = [group for partition in range(placement.used) for group in placement.key_groups(partition)]
    assert sorted(every) == list(range(groups))
