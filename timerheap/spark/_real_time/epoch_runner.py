"""The key groups of one partition in an epoch: loaded at its begin, run as rows come, saved at its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyarrow import fs
from pyspark import TaskContext

from timerheap import TimerHeap
from timerheap.errors import ArgumentValueError
from timerheap.spark._exchange.observed_times import counts_of
from timerheap.spark._exchange.placement import Placement, label_of
from timerheap.spark._exchange.unpacker import by_key_group, unpack
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored_watermark import read_watermark
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._live.live_cache import Owner
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._query import Query
from timerheap.spark._real_time.broadcasts import parted
from timerheap.spark._real_time.bursts import Seen, opened
from timerheap.spark._real_time.senders import FIRST_OPERATOR, Announced, Followed, PlaceInQuery
from timerheap.spark._real_time.slices import Slices
from timerheap.spark._state.epoch_store import EpochStore, folder_of, sources_of
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.dropped_rows import DroppedRows
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.lateness import admit
from timerheap.spark._worker.ledger import LEDGER, LEDGER_LABEL, Audit, Ledger
from timerheap.spark._worker.now import processing_time, wall_clock
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch
from timerheap.spark._worker.task_metrics import TaskMetrics, declared_metrics
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

LOCATION = "spark.timerheap.realTime.location"
"""Name of the setting, in a run of a query, with the URI of the folder that has its state."""

RUN = "spark.timerheap.realTime.run"
"""Name of the setting with the number of the run."""

FIRST = "spark.timerheap.realTime.first"
"""Name of the setting with the first epoch of all runs, in which tasks of the source say that they run."""

TICK = "spark.timerheap.realTime.tick"
"""Name of the setting with the ms between two looks, while the watermark follows the clock."""

WITH_FOLLOWERS = "spark.timerheap.realTime.withFollowers"
"""Name of the setting with the names of the operators that others follow."""

SOURCE = "the task of the source"
"""The channel column of a query without one: as in Flink, each task of the source has its own watermark."""

_NEVER = MAX_WATERMARK
_LONGEST = 60.0  # seconds without a look at the clock
_POLL = 0.05  # seconds between two looks at how many tasks the source has


def location_of(task: Any) -> str:
    """Return the URI of the folder of the state, from the setting of a task."""
    location = task.getLocalProperty(LOCATION)
    if not location:
        raise ArgumentValueError(
            "a query with real_time must be started with timerheap.spark.start_real_time(), got one that "
            "was started otherwise: its state would have no place"
        )
    return str(location)


def is_first_epoch(task: Any) -> bool:
    """Return whether tasks of the source have to announce themselves in the epoch of a task."""
    return bool(task.getLocalProperty("streaming.sql.batchId") == task.getLocalProperty(FIRST))


@dataclass(slots=True)
class _Group:
    """A key group, and when it has to run without rows: after a watermark, and after a time of the clock."""

    group: KeyGroup
    stored: Stored
    late_before: int = 0  # late rows before this epoch
    due: int = _NEVER
    due_by_clock: int = _NEVER
    ran: bool = False

    def look(self) -> None:
        """Find out when the group has to run next."""
        due, waiting = self.group.next_due(event_time=True), self.group.rows.next_time()
        self.due = min(_NEVER if due is None else due, _NEVER if waiting is None else waiting)
        due = self.group.next_due(event_time=False)
        self.due_by_clock = _NEVER if due is None else due

    def is_due(self, watermark: int, now: int | None) -> bool:
        """Return whether the group has to run without rows."""
        return self.due <= watermark or (now is not None and self.due_by_clock < now)


def _timers_of(one: _Group) -> TimerHeap:
    """Return the event-time timers of a key group."""
    return one.group.event_timers.heap


class Epoch:
    """Runs the key groups of the partition of this task."""

    def __init__(self, query: Query, operator: str, mail: Mail, place: PlaceInQuery = FIRST_OPERATOR) -> None:
        task: Any = TaskContext.get()
        location = location_of(task)
        files, folder = fs.FileSystem.from_uri(location)
        partition, epoch = task.partitionId(), int(task.getLocalProperty("streaming.sql.batchId") or 0)
        self._query, self._mail = query, mail
        self._run, self._tick = int(task.getLocalProperty(RUN)), int(task.getLocalProperty(TICK)) / 1000
        self._placement = Placement.running(query.max_parallelism)
        self._clocked = query.time_mode == "ProcessingTime"
        own_folder = folder_of(folder, place.before, partition)
        self._store = EpochStore(files, own_folder, partition, epoch, self._run)
        query_id = task.getLocalProperty("sql.streaming.queryId")
        now = Ledger.of(query_id, epoch, self._placement.partitions, cast(str, query.name))
        before = self._ledger_before()
        self._audit = Audit(now, self._placement, before, begins=False)
        self._store.sweep()
        owner = Owner(query_id, operator)
        self._live = LiveGroups(query.layout, self._store, owner, self._placement.max_parallelism, mail)
        self._live.begin(str(self._run), epoch)
        work: KeyedWork = query.work
        self._runner = work.runner(query, self._placement)
        self._runner.dropped = DroppedRows(query)
        self._runner.open()
        self._output = ResultBuffer(*query.outputs)
        self._groups: dict[int, _Group] = {}
        for number in self._placement.key_groups(partition):
            self._store.select(label_of(number))
            found = _Group(*self._live.load(label_of(number)))
            saved = found.stored.manifest.batch
            self._audit.found(number, None if saved < 0 else saved)
            found.late_before = found.group.late_rows
            found.look()
            self._groups[number] = found
        self._state = self._stored_watermark()
        self._reached = self._state.watermark  # up to which timers have fired
        self._slices = Slices()
        self._rows_wait = query.order == "event_time" and not self._runner.decides_lateness
        self._announced: Announced | None = None
        self._by_source = set(query.channels) == {SOURCE}
        self._followed = None if query.follows is None else Followed(query.follows, place.senders or 0)
        if before is None and self._by_source and query.event_time is not None:
            self._announced = Announced(files, sources_of(folder, self._run), place.senders)
        self._metrics = TaskMetrics()
        self._partition = partition

    def _stored_watermark(self) -> WatermarkState:
        first = min(self._groups)
        manifest: Manifest = self._groups[first].stored.manifest
        self._store.select(label_of(first))
        query, data = self._query, read_watermark(manifest, self._store)
        if not data:
            return WatermarkState(query.watermarks, query.channels)
        state = WatermarkState.from_bytes(data, query.watermarks, query.channels, manifest.watermark_stale)
        self._mail.warn(state.notices)
        return state

    @property
    def reached(self) -> int:
        """The watermark that has passed all results so far, and which later ones are behind."""
        work: KeyedWork = self._query.work
        return max(self._reached - (work.results_behind or 0), MIN_WATERMARK)

    @property
    def is_behind(self) -> bool:
        """Whether timers are due whose turn has not come: the next step needs no rows."""
        return self._reached < self._state.watermark

    def pause(self) -> float:
        """Return the seconds until something has to be done without rows."""
        if self.is_behind:
            return 0.0
        if self._announced is not None:
            return _POLL
        if not self._clocked:
            return _LONGEST
        now, change = time.time(), self._state.next_change()
        due = min(one.due_by_clock for one in self._groups.values())
        waits = [_LONGEST, (due + 1) / 1000 - now]
        if change is not None:
            waits.append(max((change + 1) / 1000 - now, self._tick))
        return max(min(waits), 0.0)

    def step(self, packed: list[tuple[int, bytes]]) -> pa.Table:
        """Process new rows and due timers, and return the results."""
        query, before, output, began = self._query, self._reached, self._output, time.monotonic()
        now = processing_time(query)
        wall = wall_clock() if now is None else now
        batch = MicroBatch(query, self._runner, now, output)
        packed, broadcast = self._without_broadcasts(packed)
        if self._by_source or self._followed is not None:
            frames, seen = opened(packed, len(query.watermarks))
            parts, _ = unpack(query, frames)
            if self._followed is None:
                watermark = self._observe(seen, now, wall)
            else:
                watermark = self._state.follow_operators(self._followed.limit(seen[0]))
        else:
            parts, observed = unpack(query, packed)
            self._metrics.add(**counts_of(observed))
            watermark = self._state.observe(observed, now, str(self._run), wall)
        if watermark > before:
            watermark = self._slices.reach(map(_timers_of, self._groups.values()), before, watermark)
        self._reached = max(before, watermark)
        by_group = by_key_group(parts)
        for number, one in self._groups.items():
            rows, group = by_group.get(number), one.group
            if rows is not None:
                group.watermark = max(group.watermark, before)  # it may not have run since
                if self._rows_wait:  # most of them for the watermark, and need no run
                    one.due = min(one.due, int(rows.timestamps.min()))
                    group.rows.append(admit(batch, group, rows))
                    rows = None
            if rows is None and broadcast is None and not one.is_due(watermark, now):
                continue
            group.watermark = max(group.watermark, before)
            reached = max(group.watermark, watermark)
            advanced = reached if reached > group.watermark else None
            run_key_group(batch, group, rows, advanced, broadcast)
            one.ran = True
            one.look()
        self._slices.took(time.monotonic() - began)
        return output.table()

    def _without_broadcasts(
        self, packed: list[tuple[int, bytes]]
    ) -> tuple[list[tuple[int, bytes]], pa.Table | None]:
        """Return the messages with rows by key, and the rows for every key group, None for none."""
        if self._query.broadcast is None:
            return packed, None
        found = parted(self._query.broadcast, packed)
        if self._announced is not None:
            self._announced.hear_of(found.tasks)
        return found.keyed, found.rows

    def _ledger_before(self) -> Ledger | None:
        """Return what the epoch before has left; None at the begin, and after a start with state."""
        self._store.select(LEDGER_LABEL)
        data = self._store.read(LEDGER, 0)
        return None if data is None else Ledger.from_bytes(data)

    def _observe(self, seen: list[dict[str, Seen]], now: int | None, wall: int) -> int:
        """Advance the watermark by what the tasks of the source have seen, and return it."""
        if self._announced is not None:
            seen = self._announced.released(seen)
            self._announced = None if seen else self._announced
        return self._state.observe_channels(seen, now, str(self._run), wall)

    def end(self) -> None:
        """Save the key groups, and end the task."""
        if self._announced is not None:
            held, self._announced = self._announced.held, None
            self._observe(held, None, wall_clock())
        data, first = self._state.to_bytes(), min(self._groups)
        for number, one in self._groups.items():
            label = label_of(number)
            if one.ran:  # else the function has asked for none of its states
                self._mail.warn(one.group.notices())
            one.group.forget_dead_keys()
            one.group.watermark = max(one.group.watermark, self._state.watermark)
            self._store.select(label)
            self._live.save(label, one.group, one.stored, data, writes_watermark=number == first)
            self._audit.saved(number)
            self._count(one)
        self._store.select(LEDGER_LABEL)
        self._store.write(LEDGER, 0, self._audit.ledger().to_bytes())
        self._store.commit()
        self._runner.close()
        for about, message in self._runner.warnings.items():
            self._mail.warn([message], about)
        if self._runner.dropped is not None:
            self._runner.dropped.tell(self._mail, self._state.watermark)

    def _count(self, one: _Group) -> None:
        """Add a key group that has been saved to the metrics."""
        late = one.group.late_rows - one.late_before
        self._metrics.add_times(self._state.watermark, self._state.newest(), wall_clock())
        self._metrics.add(late_rows=late, dropped_rows=late * (self._query.late == "drop"))
        self._metrics.add_group(one.stored.manifest)

    def metrics(self) -> pa.Array:
        """Return the metrics of the epoch, which has ended; see `TaskMetrics.take`."""
        runner, told = self._runner, self._metrics
        told.add_totals(
            **self._live.counts(),
            fired_timers=runner.fired_timers,
            out_of_order_rows=runner.out_of_order_rows,
        )
        told.add(max_parallelism=self._placement.max_parallelism)
        if self._partition == 0:  # for all
            told.channels = self._state.channels()
        return told.take(declared_metrics(runner.metrics, self._query.has_metrics))
