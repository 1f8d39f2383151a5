"""The timers of rules: those of several functions over one exchange of rows, each with heaps of its own.

The states of a rule are in the key group, under names that begin with that of the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.errors import CheckpointMismatchError, DamagedCheckpointError
from timerheap.spark._arrow import wide_rows, widen
from timerheap.spark._group.stored.kinds import EVENT_TIMERS, PROCESSING_TIMERS
from timerheap.spark._group.timers import SCHEMA, JournalledTimers, TimerJournal, TimerNames, net_effect
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.streamed import whole
from timerheap.spark._settling.settling_parts import OwnSettling, SettlingKind

RULE_TIMERS = 49
"""The kind of chunks with timers of rules; see `timerheap.spark._group.stored.kinds.OWN`."""

_STORED = pa.schema(
    [("rule", pa.string()), ("event_time", pa.bool_()), *list(SCHEMA)[:-1], ("name", pa.string())]
)
_FEW_NAMES = 64  # that are kept, whether timers have them or not


def of_rule(rule: str, name: str = "") -> str:
    """Return the name that a state or timer of a rule has in a checkpoint, or how these begin."""
    return f"{rule}/{name}"


@dataclass(frozen=True)
class RuleTimersLayout:
    """The timers of rules; an `OwnLayout`."""

    name: str = "timers of rules"

    def part(self, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> RuleTimers:
        return RuleTimers(memory, head)


class RuleTimers:
    """The timers of the rules of a key group, as an `OwnPart`.

    names: those of their timers
    """

    kind = RULE_TIMERS
    name = RuleTimersLayout.name
    schema = _STORED
    id_column = _STORED.names.index("key_hash")

    def __init__(self, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        self._memory = memory
        heads, names, kept = head or ({}, None, 0)
        self._names_kept: int = kept  # the last time that those without timers were dropped
        self.names = TimerNames(memory, names)
        self._timers: dict[tuple[str, bool], JournalledTimers] = {}
        for rule, pair in heads.items():
            for event_time, of in zip((False, True), pair, strict=True):
                self._timers[rule, event_time] = self._heap(event_time, of)

    def _heap(self, event_time: bool, head: Sequence[Any] = ()) -> JournalledTimers:
        return JournalledTimers(EVENT_TIMERS if event_time else PROCESSING_TIMERS, self._memory, head)

    def of(self, rule: str, event_time: bool) -> JournalledTimers:
        """Return the timers of a rule in a time domain."""
        if (rule, event_time) not in self._timers:
            for each in (False, True):
                self._timers[rule, each] = self._heap(each)
        return self._timers[rule, event_time]

    def each(self) -> Iterator[tuple[str, bool, JournalledTimers]]:
        """Yield the rules that have had timers, by name, each time domain, and the timers."""
        for rule, event_time in sorted(self._timers):
            yield rule, event_time, self._timers[rule, event_time]

    def rules(self) -> set[str]:
        """Return the rules that have timers now."""
        return {rule for rule, _, timers in self.each() if len(timers)}

    def forget(self, rule: str) -> None:
        """Remove the timers of a rule."""
        for event_time in (False, True):
            timers = self.of(rule, event_time)
            heap = timers.heap
            timers.remove_many(heap.timestamps.copy(), heap.key_hashes.copy(), heap.namespaces.copy())

    # The methods of `timerheap.spark._group.layout.OwnPart`:

    @property
    def settling(self) -> OwnSettling:
        kinds = {
            f"{'event' if event_time else 'processing'} {rule}": SettlingKind(event_time, timers)
            for rule, event_time, timers in self.each()
        }
        return OwnSettling({}, kinds)

    def head(self) -> list[Any]:
        heads: dict[str, list[Any]] = {}
        for rule, _, timers in self.each():
            heads.setdefault(rule, []).append(timers.head())
        names = None if self.names.table is None else self.names.table.head()
        return [heads, names, self._names_kept]

    def loaded(self, watermark: int) -> None:
        for *_, timers in self.each():
            timers.heap.reserve(0)

    def ids(self) -> np.ndarray:
        none = np.empty(0, np.int64)
        return np.concatenate([none, *(timers.heap.key_hashes for *_, timers in self.each())])

    def count_losses(self) -> int:
        return sum(timers.count_losses() for *_, timers in self.each())

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        found = [timers.pending() for _, domain, timers in self.each() if domain == event_time]
        dues = [due for _, due in found if due is not None]
        return sum(count for count, _ in found), min(dues, default=None)

    def misfit(self, stored: str) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"query must have {stored}, as the checkpoint, got {self.name}; start a new checkpoint"
        )

    # The methods of `timerheap.spark._group.stored.parts.CheckpointedPart`:

    def changes(self) -> pa.RecordBatch | None:
        found = [(rule, domain, timers.changes()) for rule, domain, timers in self.each()]
        parts = [self._named(rule, domain, batch) for rule, domain, batch in found if batch is not None]
        self._retain_names()
        return pa.concat_batches(parts) if parts else None

    def snapshot(self) -> pa.RecordBatch:
        parts = [self._named(rule, domain, whole(timers.snapshot())) for rule, domain, timers in self.each()]
        return pa.concat_batches([pa.RecordBatch.from_pylist([], _STORED), *parts])

    def replay(self, batch: pa.RecordBatch) -> None:
        for rule, event_time, rows in _by_rule(batch):
            names = self.names.new_many(rows.column("name").cast(pa.string()))
            journal = [*map(rows.column, SCHEMA.names[:-1]), pa.array(names)]
            self.of(rule, event_time).replay(pa.RecordBatch.from_arrays(journal, schema=SCHEMA))

    def reserve(self, times: float) -> None:
        for *_, timers in self.each():
            timers.reserve(times)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        together = pa.concat_batches(batches)
        merged = [together.slice(0, 0)]
        for rule, event_time, rows in _by_rule(together):
            names = rows.column("name").dictionary_encode()
            numbers = pc.add(names.indices, 1).fill_null(0).to_numpy().astype(np.int64)
            columns = [*map(rows.column, SCHEMA.names[:-1]), pa.array(numbers)]
            journal = TimerJournal.of(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
            journal = net_effect(journal, numbers != 0)
            at = pa.array(journal.namespaces - 1, mask=journal.namespaces == 0)
            of_rows = names.dictionary.take(at)
            merged.append(_labelled(rule, event_time, journal.to_arrow(), of_rows, together.schema))
        return pa.concat_batches(merged)

    def __len__(self) -> int:
        return sum(len(timers) for *_, timers in self.each())

    def _named(self, rule: str, event_time: bool, batch: pa.RecordBatch) -> pa.RecordBatch:
        distinct, number = np.unique(batch.column(3).to_numpy(), return_inverse=True)
        names = pa.array([*map(self.names.name, distinct.tolist())], pa.string())
        return _labelled(rule, event_time, batch, names.take(pa.array(number)), _STORED)

    def _retain_names(self) -> None:
        """Drop the names that no timer has any more, if they may be most of them."""
        # O(timers), so only once the names are twice as many as they were after the last time.
        table = self.names.table
        if table is None:
            return
        if len(table) > 2 * self._names_kept + _FEW_NAMES:
            held = [timers.heap.namespaces for *_, timers in self.each()]
            held += [timers.settled.namespaces() for *_, timers in self.each() if timers.settled is not None]
            self.names.retain(held)
            self._names_kept = len(table)
        table.changes()  # names are stored with their timers


def _labelled(
    rule: str, event_time: bool, batch: pa.RecordBatch, names: pa.Array, schema: pa.Schema
) -> pa.RecordBatch:
    n = batch.num_rows
    of = [pa.repeat(pa.scalar(rule, schema.field("rule").type), n), pa.repeat(pa.scalar(event_time), n)]
    return pa.RecordBatch.from_arrays([*of, *batch.columns[:-1], names], schema=schema)


def _by_rule(batch: pa.RecordBatch) -> Iterator[tuple[str, bool, pa.RecordBatch]]:
    """Yield each rule and time domain in stored rows, with these rows in their order."""
    others = [column for column in batch.columns if column is not batch.columns[-1]]
    if wide_rows(batch.schema) != wide_rows(_STORED) or any(column.null_count for column in others[:-1]):
        raise DamagedCheckpointError(
            f"a chunk of kind {RULE_TIMERS} must have the columns {_STORED}, got {batch.schema}"
        )
    rows = widen(batch)
    rules = rows.column("rule").dictionary_encode()
    domains = rows.column("event_time").to_numpy(zero_copy_only=False)
    numbers = 2 * rules.indices.to_numpy().astype(np.int64) + domains
    for number in np.unique(numbers).tolist():
        (mine,) = (numbers == number).nonzero()
        yield rules.dictionary[number // 2].as_py(), bool(number % 2), rows.take(pa.array(mine))
