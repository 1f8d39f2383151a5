"""Whose state a task has found: what each task of a partition leaves, and the next one compares.

Spark finds the files of a partition by their names alone, and each micro-batch changes only what it has to.
So files that are lost, of another time or of another partition would go unnoticed: a key group that is not
there looks like a new one. Each task therefore leaves a ledger, under a label that no key group has, and the
next task of the partition compares it with what it finds. Only the first micro-batch finds none, and the
first one after Spark has repartitioned the checkpoint, which knows no more than that. A ledger also has the
name of the operator, by which its state is found in a checkpoint.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import xor

from timerheap._native._core import seal, unseal, xxh64
from timerheap.errors import CheckpointMismatchError, DamagedCheckpointError
from timerheap.spark._exchange.placement import Placement, label_of
from timerheap.spark._group.stored.formats import LEDGER as FORMAT
from timerheap.spark._query import is_default_name

LEDGER = 33
"""The kind of a ledger among the chunks of a partition."""
LEDGER_LABEL = label_of(-1)
"""The label that ledgers are under, that of no key group."""
_LEDGER = struct.Struct("<H8sqii?Q")


@dataclass(frozen=True)
class Ledger:
    """What a task has left in its partition.

    groups: a digest of which key groups there are, each with the micro-batch that it was saved in; it does
        not depend on which attempt of a task has saved it. None if no task has seen all since Spark has
        repartitioned the checkpoint.
    """

    query: bytes  # 8 bytes that tell it from others
    batch: int
    partitions: int  # of the query
    operator: str  # its name
    partition: int = -1  # -1 before it has key groups
    groups: int | None = 0

    @classmethod
    def of(cls, query: str, batch: int, partitions: int, operator: str) -> Ledger:
        """Return the ledger of an operator's partition that has no key groups."""
        return cls(xxh64(query.encode()).to_bytes(8, "little"), batch, partitions, operator)

    def to_bytes(self) -> bytes:
        """Return the value that the state store holds."""
        fields = self.query, self.batch, self.partitions, self.partition
        head = _LEDGER.pack(FORMAT.written, *fields, self.groups is not None, self.groups or 0)
        return seal(LEDGER, head, self.operator.encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> Ledger:
        """Return the ledger of `to_bytes`; raise a `CheckpointError` for any other bytes."""
        payload = unseal(LEDGER, data)
        FORMAT.expect(payload[:2])
        try:
            _, query, batch, partitions, partition, known, groups = _LEDGER.unpack_from(payload)
            operator = bytes(payload[_LEDGER.size :]).decode()
        except (struct.error, UnicodeDecodeError) as e:
            raise DamagedCheckpointError(f"the ledger of a partition is damaged: {e}") from None
        return cls(query, batch, partitions, operator, partition, groups if known else None)

    def expect(self, before: Ledger) -> None:
        """Raise CheckpointError if this is not the ledger that is wanted, whose partition may be unknown."""
        if self.query != before.query:
            raise foreign("the state of a different query")
        if self.batch != before.batch:
            raise foreign(f"state after micro-batch {self.batch} where that after {before.batch} must be")
        if before.partition >= 0 and self.partition not in (-1, before.partition):
            raise foreign(f"the state of partition {self.partition} where that of {before.partition} must be")


def foreign(what: str) -> DamagedCheckpointError:
    """Return the error for a checkpoint that has `what`."""
    return DamagedCheckpointError(
        f"the checkpoint must be as its query has left it, got {what}: files of its state are lost, old or "
        "in the wrong place; put back a whole copy of the checkpoint, or start a new one"
    )


def mark(key_group: int, batch: int) -> int:
    """Return the part of a key group in `Ledger.groups`."""
    return xxh64(struct.pack("<iq", key_group, batch))


def joint_mark(marks: Iterable[int]) -> int:
    """Return the digest of key groups that have these marks; a mark of 0 is none."""
    return reduce(xor, marks, 0)


class Audit:
    """Compares what a task finds in its partition with the ledger, and keeps the ledger.

    now: the ledger of a partition without key groups after this micro-batch
    before: what the last task has left, None if there is none
    begins: whether this is the first micro-batch of a checkpoint
    watched: whether the driver looks whose state there is; otherwise a task must have something to find
    """

    def __init__(
        self, now: Ledger, placement: Placement, before: Ledger | None, begins: bool, watched: bool = True
    ) -> None:
        self._now, self._placement = now, placement
        if begins:
            before = replace(now, batch=now.batch - 1)
        elif before is not None and before.operator != now.operator and not is_default_name(before.operator):
            raise CheckpointMismatchError(
                f"name must be {before.operator!r}, as that of this operator in the checkpoint, got "
                f"{now.operator!r}; if operators were added, removed or renamed, start with "
                "timerheap.spark.continue_from(), which finds the state of each by its name"
            )
        self._never_saved = before is None and not watched
        if before is not None and before.partitions != now.partitions:  # Spark has repartitioned
            before = None
        self._before = before
        self._partition = -1
        self._found: dict[int, int] = {}  # the marks of key groups, as the task has found them
        self._saved: dict[int, int] = {}
        self._expect(-1)

    def _expect(self, partition: int) -> None:
        if self._before is not None:
            now = self._now
            self._before.expect(replace(now, batch=now.batch - 1, partition=partition))

    @property
    def partition(self) -> int:
        """The number of the partition, -1 if it is not known, as before it has key groups."""
        before = -1 if self._before is None else self._before.partition
        return before if self._partition < 0 else self._partition

    @property
    def batch(self) -> int:
        """The micro-batch."""
        return self._now.batch

    def found(self, key_group: int, batch: int | None) -> None:
        """Record in which micro-batch a key group has been saved, None for a new one."""
        if self._partition < 0:
            self._partition = key_group % self._now.partitions
            self._expect(self._partition)
        self._found.setdefault(key_group, 0 if batch is None else mark(key_group, batch))

    def saved(self, key_group: int) -> None:
        """Record that a key group is saved now; it has been found before."""
        self._saved[key_group] = mark(key_group, self.batch)

    def ledger(self) -> Ledger:
        """Return the ledger to leave; raise DamagedCheckpointError if a key group is not what was saved."""
        before, partition = self._before, self._partition
        if self._never_saved and partition >= 0 and not any(self._found.values()):
            raise foreign(
                f"no state of this operator in partition {partition} before micro-batch {self.batch}, as "
                "where the query had one of Spark's own operators"
            )
        groups = None if before is None else before.groups
        if partition < 0:
            partition = self.partition
        elif len(self._found) == len(self._placement.key_groups(partition)):
            all_found = joint_mark(self._found.values())
            if groups not in (None, all_found):
                raise foreign(f"other key groups in partition {partition} than were saved there")
            groups = all_found
        if groups is not None:
            groups ^= joint_mark(mark ^ self._found[key_group] for key_group, mark in self._saved.items())
        return replace(self._now, partition=partition, groups=groups)


def expect_whole(
    ledgers: Collection[Ledger], query: str, batch: int, partitions: int, groups: Mapping[int, int]
) -> None:
    """Raise CheckpointError if a checkpoint lacks state after a micro-batch, or has that of another one.

    ledgers: those of all partitions
    groups: the micro-batches in which the key groups were saved
    """
    wanted = Ledger.of(query, batch, partitions, "")
    ledgers = [ledger for ledger in ledgers if ledger.partitions == partitions]
    if not ledgers:  # Spark has repartitioned it
        return
    if len(ledgers) != partitions:
        raise foreign(f"the state of {len(ledgers)} partitions where that of {partitions} must be")
    for ledger in ledgers:
        ledger.expect(wanted)
    twice = [p for p, n in Counter(ledger.partition for ledger in ledgers).items() if n > 1 and p >= 0]
    if twice:
        raise foreign(f"the state of partition {twice[0]} more than once")
    marks: dict[int, list[int]] = {}
    for key_group, saved in groups.items():
        marks.setdefault(key_group % partitions, []).append(mark(key_group, saved))
    known = {ledger.partition: ledger.groups for ledger in ledgers if ledger.partition >= 0}
    for partition in {*known, *marks}:
        if known.get(partition, 0) not in (None, joint_mark(marks.get(partition, []))):
            raise foreign(f"other key groups in partition {partition} than were saved there")
