"""Operators over changes on a key group without Spark, saved and loaded between micro-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from changes_model import Table, apply_changes
from chunk_store import GroupStore
from live_files import handed_over, live_file

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import HASH
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored, loaded_group
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._query import Query, nullable_arrow_schema
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch


def planned_query(monkeypatch: pytest.MonkeyPatch, plan: str, call: Callable[[], Any]) -> Query:
    """Return the query that a call plans in a module of this name."""
    found = list[Query]()

    def build(query: Query, df: Any, **_: Any) -> Any:
        found.append(query)
        return df

    with monkeypatch.context() as patched:
        patched.setattr(f"timerheap.spark._changes.{plan}.build", build)
        call()
    (query,) = found
    return query


class ChangeRun:
    """One key group of a query, and the table that its changes make.

    key: columns of which the table never has the same values twice
    hashes: how many different hashes keys have, so that some collide
    """

    def __init__(self, query: Query, key: Sequence[str] | None = None, hashes: int = 3) -> None:
        self.query, self._key, self._hashes = query, key, hashes
        self.group, self.store = KeyGroup(query.layout, live_file()), GroupStore()
        self._stored = Stored(Manifest(1))
        self.table: Table = Counter()

    def run(self, rows: Sequence[dict[str, Any]], now: int | None = None) -> list[dict[str, Any]]:
        """Process a micro-batch, apply its changes to the table, and return them.

        now: what the clock shows, in a query that follows it
        """
        query, output = self.query, ResultBuffer(*self.query.outputs)
        batch = pa.RecordBatch.from_pylist(list(rows), nullable_arrow_schema(query.rows))
        keys = [repr([row[name] for name in query.key]) for row in rows]
        hashes = np.array([sum(key.encode()) % self._hashes for key in keys], np.int64)
        if query.reduction is not None and len(rows):
            reducer = query.reduction.reducer()
            reducer.add(batch, hashes)
            batch = reducer.drain()
            hashes = batch.column(HASH).to_numpy()
            batch = batch.drop_columns([HASH])
        runner = query.work.runner(query, None)
        runner.open()
        keyed = KeyedRows(batch, hashes, np.zeros(len(hashes), np.int64))
        run_key_group(MicroBatch(query, runner, now, output), self.group, keyed if len(rows) else None, None)
        runner.close()
        self.counted = runner.metrics.take_counters()
        changes: list[dict[str, Any]] = output.table().to_pylist()
        apply_changes(self.table, changes, self._key)
        return changes

    def restart(self, step: int) -> None:
        """Save, and continue in the same process, in a different one, or from the checkpoint."""
        self._stored.save(self.store, self.group, b"", whole=step % 7 == 6)
        if step % 3 == 1:
            self.group, self._stored = handed_over(self.group, self.store)
        elif step % 3 == 2:
            manifest = self.store.read_manifest()
            self.group, self._stored = loaded_group(self.store, manifest, self.query.layout, live_file())
        self.group.forget_dead_keys(always=step % 5 == 4)


def rows_read(run: ChangeRun) -> list[int]:
    """Return a list that gets the number of rows of each read of a multiset, until the group is restarted."""
    read: list[int] = []
    for table in run.group.states.values():
        for name in ("get_many", "first_many"):
            plain = getattr(table, name)

            def counted(*arguments: Any, plain: Any = plain) -> Any:
                found = plain(*arguments)
                read.append(len(found.flatten()))
                return found

            setattr(table, name, counted)
    return read
