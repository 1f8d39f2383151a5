"""Where keys live: key groups, the labels that name them, and the shuffle partitions that they fall on."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from pyspark import TaskContext

from timerheap.hashing import spark_hashes, spark_preimages

DEFAULT_PARTITIONS = 200
"""Spark's own default of ``spark.sql.shuffle.partitions``, which the properties of a task leave out."""

MAX_KEY_GROUPS = 1 << 15
"""The largest max_parallelism, as in Flink."""

_FEWEST = 4  # key groups by default, unless there are more partitions
_PARTITIONS = (  # of stateful operators; the first is set if it differs from the second
    "spark.sql.streaming.internal.stateStore.partitions",
    "spark.sql.shuffle.partitions",
)


def labels_of(key_groups: np.ndarray) -> np.ndarray:
    """Return the label of each key group, int32: the int whose hash in Spark is the number of the group."""
    # Spark puts a label on the shuffle partition pmod(hash(label), partitions). So key group g is on
    # partition g % partitions however many partitions there are, before and after Spark repartitions a
    # checkpoint. Spark does not spread plain numbers evenly: 0 to 127 leave 13 of 64 partitions empty. Costs
    # some 20 ns a group, since murmur3 of an int can be inverted.
    return spark_preimages(key_groups)


@cache
def label_of(key_group: int) -> int:
    return int(labels_of(np.array([key_group]))[0])


@cache
def key_group_of(label: int) -> int:
    return int(spark_hashes(np.array([label]))[0])


class Placement(NamedTuple):
    """The shuffle partitions and the number of key groups that a query runs with."""

    partitions: int
    max_parallelism: int

    @classmethod
    def of(cls, max_parallelism: int | None, partitions: int) -> Placement:
        """Return the placement on so many partitions; None is as many groups on each as make 4 or more."""
        default = min(partitions * -(-_FEWEST // partitions), MAX_KEY_GROUPS)
        return cls(partitions, max_parallelism or default)

    @classmethod
    def running(cls, max_parallelism: int | None) -> Placement:
        """Return the placement in the task that is running."""
        # Only the properties of a task tell: a checkpoint keeps the number of partitions, whatever the
        # session says, and behind a union the id of a task's partition counts the partitions of all inputs.
        task = TaskContext.get()
        found = (task.getLocalProperty(name) for name in _PARTITIONS) if task is not None else ()
        return cls.of(max_parallelism, int(next(filter(None, found), DEFAULT_PARTITIONS)))

    def key_groups(self, partition: int) -> range:
        return range(partition, self.max_parallelism, self.partitions)

    @property
    def used(self) -> int:
        """The number of partitions that have key groups: the first ones."""
        return min(self.partitions, self.max_parallelism)
