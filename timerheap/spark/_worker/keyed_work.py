"""Work that runs each key group by itself, on a stream and on a batch."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from timerheap.spark._exchange.broadcaster import broadcast_rows
from timerheap.spark._exchange.placement import DEFAULT_PARTITIONS, Placement
from timerheap.spark._exchange.unpacker import packed_pairs, unpacked_rows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.partition import GroupwisePartition
from timerheap.spark._worker.runner import MicroBatch, Runner
from timerheap.spark._worker.work import Rehearsal, Task, TaskPartition, Work
from timerheap.timer import MAX_WATERMARK


class KeyedWork(Work):
    """Work that runs each key group by itself, as `run_key_group` does."""

    @abstractmethod
    def runner(self, query: Query, placement: Placement) -> Runner:
        """Return what runs it in one task."""

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        """Have a key group that the query starts from hold the states of this work."""
        if group is not None:
            runner = self.runner(query, Placement.of(max_parallelism, DEFAULT_PARTITIONS))
            runner.open()
            runner.begin(group, None, ResultBuffer(*query.outputs))
            runner.close()
        return Rehearsal()

    def partition(self, task: Task) -> TaskPartition:
        runner = self.runner(task.query, task.placement)
        runner.open()
        return GroupwisePartition(task, runner)

    def batch(self, query: Query, packed: pa.Table, initial: pa.Table | None, mail: Mail) -> ResultBuffer:
        """Run the keys of a partition as one key group, up to the end of time."""
        rows, broadcast = unpacked_rows(query, packed), None
        if query.broadcast is not None:
            broadcast = broadcast_rows(query.broadcast, packed_pairs(packed))
        runner = self.runner(query, Placement.running(query.max_parallelism))
        batch = MicroBatch(query, runner, None, ResultBuffer(*query.outputs))
        runner.open()
        run_key_group(batch, KeyGroup(query.layout), rows, MAX_WATERMARK, broadcast)
        runner.close()
        for about, message in runner.warnings.items():
            mail.warn([message], about)
        return batch.output
