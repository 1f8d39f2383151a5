"""The stateful operator as Spark receives it, on a stream or a batch, and the work that it is given.

Spark starts a Python process on the driver for each start of a query, which calls only ``init()`` to hear of
the state. To import this package there would take most of its time, and it cannot import modules that were
sent with ``addPyFile()``.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

import timerheap
from timerheap.spark._compat import in_types_of_spark
from timerheap.spark._exchange.placement import Placement, key_group_of
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import DRAINED, Mail
from timerheap.spark._worker.live_groups import LiveGroups, Owner
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.spark_store import CHUNKS, SparkStore
from timerheap.state_ttl import StateTtlConfig

_NOTE = "timerheap: "
_NOT_THE_USERS = tuple(str(Path(str(module.__file__)).parent) for module in (pyspark, timerheap))
_COMPILED = "timerheap/_native/"  # the sources of the compiled module, which are not where it is


def deferred(operator: StatefulProcessor) -> StatefulProcessor:
    """Return an operator that declares the state on the driver, and elsewhere does what `operator` does."""
    pickled = dumps(operator)  # type: ignore[no-untyped-call]
    state = CHUNKS

    class Deferred(StatefulProcessor):  # in a function, so that it is pickled by value
        _operator: Any = None
        _reported: Any = None

        def init(self, handle: StatefulProcessorHandle) -> None:
            if TaskContext.get() is None:
                handle.getMapState(*state)
            else:
                from timerheap.spark._exchange.packer import freeze_modules

                freeze_modules(lambda: loads(pickled))
                self._operator = loads(pickled)
                self._operator.init(handle)
                from timerheap.spark._worker.operator import reported

                self._reported = reported

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            with self._reported():
                self._operator.handleInitialState(key, initialState, timerValues)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            with self._reported():
                yield from self._operator.handleInputRows(key, rows, timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            with self._reported():
                yield from self._operator.handleExpiredTimer(key, timerValues, expiredTimerInfo)

        def close(self) -> None:
            if self._operator is not None:
                with self._reported():
                    self._operator.close()

    return Deferred()


class StreamingOperator(StatefulProcessor):
    """Runs the key groups of a stream, whose state Spark keeps (``transformWithStateInPandas``)."""

    def __init__(self, query: Query, mail: Mail) -> None:
        self._query = query
        self._mail = mail
        self._id = uuid.uuid4().hex
        self._partition: TaskPartition | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = SparkStore(handle)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Start with the state of another query, or with rows for a processor."""
        self._begun(timerValues).restore(initialState)

    def handleInputRows(  # type: ignore[override]  # which allows Rows, too
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Process what the pack stage has sent to a partition, under the label of its first key group."""
        packed = [pair for df in rows for pair in zip(df["sequence"], df["blob"], strict=True)]
        return self._begun(timerValues).run(key_group_of(key[0]), packed)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Process a key group whose wake-up, a Spark timer, has fired."""
        fired = expiredTimerInfo.getExpiryTimeInMs()
        return self._begun(timerValues).wake_up(key_group_of(key[0]), fired)

    def close(self) -> None:
        if self._partition is not None:
            self._partition.close()
        else:
            self._begin_store()
        self._store.end()

    def _begun(self, timer_values: Any) -> TaskPartition:
        """Return the partition of this task; Spark has a new operator in each."""
        if self._partition is None:
            query = self._query
            task = cast(TaskContext, TaskContext.get())
            placement = self._begin_store()
            owner = Owner(task.getLocalProperty("sql.streaming.queryId"), self._id)
            run = task.getLocalProperty("spark.jobGroup.id")
            if query.time_mode == "ProcessingTime":
                self._mail.tell("for an end")
            groups = LiveGroups(query.layout, self._store, owner, placement.max_parallelism, self._mail)
            batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
            groups.begin(run, batch)
            drained = task.getLocalProperty(DRAINED) == str(batch)
            work: Work = query.work
            self._partition = work.partition(
                Task(query, placement, self._store, groups, self._mail, run, timer_values, drained)
            )
        return self._partition

    def _begin_store(self) -> Placement:
        task = cast(TaskContext, TaskContext.get())
        placement = Placement.running(self._query.max_parallelism)
        batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
        self._store.begin(task.getLocalProperty("sql.streaming.queryId") or "", batch, placement)
        return placement


class BatchOperator:
    """Runs the keys of one partition of a batch DataFrame as one key group (``applyInArrow``).

    result_type: type of the result, with the columns of late rows if the query has them
    """

    def __init__(self, query: Query, result_type: StructType, mail: Mail) -> None:
        self._query = query
        self._mail = mail
        self._result_type = result_type

    def __call__(self, packed: pa.Table, initial: pa.Table | None = None) -> pa.Table:
        """Process one partition; `initial` are rows to start with, packed, too."""
        with reported():
            work: Work = self._query.work
            results = work.batch(self._query, packed, initial, self._mail)
            return in_types_of_spark(results.table(), self._result_type, packed)


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
    """

    has_metrics: bool = False
    times_to_live: Mapping[str, StateTtlConfig] = field(default_factory=dict)
    keeps_expiries: bool = False


class Work(ABC):
    """What a query runs; a feature has a class of its own, in the module of what runs it in a worker.

    It is pickled with the query, so it is data.
    """

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
    def close(self) -> None:
        """End the task."""


@contextmanager
def reported() -> Iterator[None]:
    """Raise an error of a function again: its message, what it was called for, and only the user's frames."""
    # Spark surrounds the text with frames and plans of its own, so that the message comes first and last in
    # it. An error without a frame or a note of a user's function is not changed.
    try:
        yield
    except Exception as e:
        found = TracebackException.from_exception(e)
        others = (*_NOT_THE_USERS, _COMPILED)
        users = [frame for frame in found.stack if not frame.filename.startswith(others)]
        found.stack = StackSummary.from_list(users)
        notes = found.__notes__ or []
        where = [note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)]
        found.__notes__ = [note for note in notes if not note.startswith(_NOTE)]
        if not where and not found.stack:
            raise
        where = where or [f"in {found.stack[0].name}"]
        message = "".join(found.format_exception_only()).rstrip()
        raise RuntimeError("\n".join([message, *where, "".join(found.format()).rstrip()])) from None
