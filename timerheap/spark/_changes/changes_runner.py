"""What runs changes in a task, whatever the operator: its metrics, its results, and what is forgotten."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import pyarrow as pa

from timerheap.metrics import Counter, Distribution, DistributionResult, Metrics
from timerheap.spark._arrow import KeyedRows, fitting, narrow
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner

FORGOTTEN = "forgotten"  # the name of timers


class ChangesRunner(Runner):
    """Runs an operator on changes; rows are in order of arrival.

    forget_after: ms of the clock after which a key that has not changed is forgotten, None for never
    """

    fired_timers = 0
    source = ""  # the public function, in errors

    def __init__(self, query: Query, forget_after: int | None = None) -> None:
        self._query, self._result = query, query.result_schema
        self._forget_after = forget_after
        self._metrics = Metrics()
        names = "rows_in", "changes_out", "unmatched_deletes"
        self._in, self._out, self._unmatched = (self._metrics.of(Counter, name) for name in names)
        self._sizes = self._metrics.of(Distribution, "rows_of_key")

    @property
    def metrics(self) -> Metrics:
        return self._metrics

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        self._group, self._now, self._output = group, now, output

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        self.process(rows.take(order), watermark)

    def advance(self, watermark: int) -> None:
        pass

    def advance_clock(self, now: int) -> None:
        """Forget the keys that have not changed for long."""
        ids = self._group.processing_timers.pop_due(now - 1).key_hashes
        self.fired_timers += len(ids)
        if len(ids):
            self.forget(ids)

    @abstractmethod
    def forget(self, ids: np.ndarray) -> None:
        """Remove the state of keys."""

    def keep(self, ids: np.ndarray) -> None:
        """Let the time after which keys are forgotten begin anew."""
        if self._forget_after is not None and self._now is not None and len(ids):
            name = self._group.timer_names.new(FORGOTTEN)
            self._group.processing_timers.push_many(self._now + self._forget_after, ids, name)

    def emit(self, changes: pa.RecordBatch) -> None:
        """Add changes, with columns like those of the result, to what is returned."""
        if not len(changes):
            return
        self._out.inc(len(changes))
        changes = changes.rename_columns(self._result.names)
        for start, stop in fitting(changes):
            self._output.batch(narrow(changes.slice(start, stop - start), self._result), self.source)

    def count(self, rows: int = 0, unmatched: int = 0, sizes: np.ndarray | None = None) -> None:
        """Count rows, deletes of rows that are not there, and how many rows keys have now."""
        self._in.inc(rows)
        self._unmatched.inc(unmatched)
        if sizes is not None and len(sizes):
            bounds = int(sizes.min()), int(sizes.max())
            self._sizes._add(DistributionResult(len(sizes), int(sizes.sum()), *bounds))
