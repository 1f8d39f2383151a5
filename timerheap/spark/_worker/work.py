"""The work that a feature hands to the engine: on the driver, for a task of a stream, and for a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa

from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.spark_store import SparkStore
from timerheap.state_ttl import StateTtlConfig


@dataclass(frozen=True)
class Task:
    """One task of a micro-batch.

    `run` is the run of the query, and `timer_values` are the times of the micro-batch. The sources are
    `drained` if the run before it has read all rows that there were.
    """

    query: Query
    placement: Placement
    store: SparkStore
    groups: LiveGroups
    mail: Mail
    run: str | None
    timer_values: Any
    drained: bool


@dataclass(frozen=True)
class Rehearsal:
    """What the driver has learned of a function.

    has_metrics: whether the function has metrics of its own
    times_to_live: those of its states that have one, by name
    keeps_expiries: whether such a value is kept with the time when it expires, else with its last access
    states: the types of its states by name, None if it does not tell
    """

    has_metrics: bool = False
    times_to_live: Mapping[str, StateTtlConfig] = field(default_factory=dict)
    keeps_expiries: bool = False
    states: Mapping[str, pa.DataType] | None = None


class Work(ABC):
    """What a query runs; a feature has a class of its own, in the module of what runs it in a worker.

    It is pickled with the query, so it is data.
    """

    @property
    def results_behind(self) -> int | None:
        """By how many ms results may be behind the watermark; None if there is no limit."""
        return 0

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        """Run on the driver what only a worker would otherwise find wrong.

        group: one with the keys and states that the query starts from, None without any
        """
        return Rehearsal()

    @abstractmethod
    def partition(self, task: Task) -> TaskPartition:
        """Return what runs the key groups of a partition in a micro-batch of a stream."""

    @abstractmethod
    def batch(self, query: Query, packed: pa.Table, initial: pa.Table | None, mail: Mail) -> ResultBuffer:
        """Return the results of one partition of a batch DataFrame.

        packed, initial: rows as the pack stage has sent them, those of the input and those to start with
        """


class TaskPartition(ABC):
    """The key groups of one partition in one micro-batch of a stream."""

    @abstractmethod
    def run(self, partition: int, packed: list[tuple[int, bytes]]) -> Iterator[pd.DataFrame]:
        """Process what the pack stage has sent to a partition; yield the results."""

    @abstractmethod
    def restore(self, initial: Mapping[str, Iterable[Any]]) -> None:
        """Load what Spark passes of the state to start from."""

    @abstractmethod
    def wake_up(self, key_group: int, fired: int) -> Iterator[pd.DataFrame]:
        """Process a key group whose Spark timer for the time `fired` has fired; yield the results."""

    @abstractmethod
    def reached(self) -> int | None:
        """Return the watermark after the micro-batch; None if no key group has been run."""

    @abstractmethod
    def close(self) -> None:
        """End the task."""
