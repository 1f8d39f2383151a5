"""The state and the timers of key groups in Spark's state store, and what tells whose state it is.

Spark finds the files of a partition by their names alone, and each micro-batch changes only what it has to.
So files that are lost, of another time or of another partition would go unnoticed: a key group that is not
there looks like a new one. Each task therefore leaves a ledger, under a label that no key group has, and the
next task of the partition compares it with what it finds. Only the first micro-batch finds none, and the
first one after Spark has repartitioned the checkpoint, which knows no more than that.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from timerheap._native._core import from_text, seal, to_text, unseal, xxh64
from timerheap.spark._compat import StateClient
from timerheap.spark._exchange.placement import Placement, key_group_of, label_of
from timerheap.spark._group.checkpoint import FORMAT, MANIFEST, Manifest

# Frozen: every checkpoint has these schemas. As types, since Spark parses text anew in each task, and without
# smallint, which Spark cannot read back where it encodes states as Avro.
_KEY = StructType([StructField("kind", IntegerType()), StructField("id", IntegerType())])
_TEXT = StructType([StructField("text", StringType())])

CHUNKS = ("chunks", _KEY, _TEXT)
"""The one state variable: its name, and the types of its keys and values."""

# Spark stops reading when the answers that wait fill a socket, which about 550 do to a Unix domain socket on
# Linux. If the calls that follow fill the other direction, both sides wait for ever.
_MOST_UNANSWERED = 64
_ABSENT = 2  # Spark's status of an answer that says no

LEDGER = 33
"""The kind of a ledger among the chunks of a partition."""

LEDGER_LABEL = label_of(-1)
"""The label that ledgers are under, that of no key group."""

_LEDGER = struct.Struct("<8sqii?Q")


class SparkStore:
    """The `ChunkStore` of the selected key group, and its timers.

    Spark calls the operator once for all key groups of a partition, but the state of each group is under its
    own label, so that Spark can move the groups when it repartitions a checkpoint. All of it is in one state
    variable, since Spark prepares each anew in each task, which takes longer than a micro-batch of few rows.
    Chunks are stored as text, with 7 bits a character: Spark passes bytes to Python character by character,
    which took most of a load.

    A call to Spark takes a round trip, which in a small micro-batch is most of its time. Of most calls the
    answer says only that they have succeeded: these are sent without waiting, and their answers are read
    before the next call that has another one. Spark answers in order.
    """

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        client = StateClient(handle)
        self._set_key, self._receive, self._parse = client.set_key, client.receive, client.parse
        self._waits = True
        self._unanswered: deque[int | None] = deque()  # for each call the label whose manifest it asks for
        self._manifests: dict[int, bytes] = {}  # that have been answered, by label; empty where there is none
        self._label: int | None = None  # of the selected group
        self._asking: int | None = None  # the label in the call that is made now
        self.expects_state = False  # whether labels have state, as after the first micro-batch of a query
        self._task: tuple[Ledger, Placement] | None = None
        self._audit: Audit | None = None
        client.answer_with(self._answer)
        self._handle = handle
        self._chunks = handle.getMapState(*CHUNKS)
        _remove_path(client.socket)

    def begin(self, query: str, batch: int, placement: Placement) -> None:
        """Begin a task, which is compared with what the last one of the partition has left."""
        self._task = Ledger.of(query, batch, placement.partitions), placement
        self.expects_state = batch > 0
        if self.expects_state:
            self._ask(LEDGER_LABEL, self._chunks.getValue, (LEDGER, 0))

    def _audited(self) -> Audit | None:
        """Return the audit of the task; raise ValueError if another query or micro-batch has been before."""
        if self._audit is None and self._task is not None:
            self.settle()
            answer = self._manifests.pop(LEDGER_LABEL, b"")
            before = Ledger.from_bytes(from_text(self._parse(answer)[0])) if answer else None
            self._audit = Audit(*self._task, before)
        return self._audit

    def end(self) -> None:
        """End a task: leave what the next one compares; raise ValueError if a key group is a wrong one."""
        audit = self._audited()
        assert audit is not None
        data = audit.ledger().to_bytes()
        self.select(LEDGER_LABEL)
        self.write(LEDGER, 0, data)
        self.settle()

    def _answer(self) -> tuple[int, str, bytes]:
        """Return the answer to a call that has been sent, or for one that does not wait, that it succeeds."""
        if self._waits:
            self.settle()
            return self._receive()
        self._unanswered.append(self._asking)
        return 0, "", b""

    def settle(self) -> None:
        """Wait for all answers, before Spark's own code goes on; raise an error if a call has failed."""
        while self._unanswered:
            label = self._unanswered.popleft()
            status, message, answer = self._receive()
            if status and (label is None or status != _ABSENT):
                raise RuntimeError(f"Spark's state store has failed: {message}")
            if label is not None and (status or answer):
                self._manifests[label] = answer

    def _send(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Make a call without waiting for its answer."""
        if len(self._unanswered) == _MOST_UNANSWERED:
            self.settle()
        self._waits = False
        try:
            call(*arguments)
        except OSError:  # Spark has closed the connection, most likely after an error that it has told
            self.settle()
            raise
        finally:
            self._waits = True

    def select(self, label: int) -> None:
        """Make the state and the timers of a key group the current ones."""
        self._send(self._set_key, (label,))
        self._label = label

    def ask_for_manifests(self, labels: Iterable[int]) -> None:
        """Ask for the manifests of key groups together, and select another one."""
        # `read_manifest` then waits for the first of them only, rather than for each behind all that has been
        # written before. Until a manifest is written, reading it again costs no call. Spark logs a warning
        # where a key is not there, so it is asked first which labels have state, unless all are expected to.
        labels = list(labels)
        if not self.expects_state:
            for label in labels:
                self._ask(label, self._chunks.exists)
            self.settle()
        for label in labels:
            if label not in self._manifests:
                self._ask(label, self._chunks.getValue, (MANIFEST, 0))

    def _ask(self, label: int, call: Callable[..., Any], *arguments: Any) -> None:
        self.select(label)
        self._asking = label
        try:
            self._send(call, *arguments)
        finally:
            self._asking = None

    def register_timer(self, timestamp: int) -> None:
        """Have Spark call the selected group at `timestamp`."""
        self._send(self._handle.registerTimer, timestamp)

    def delete_timer(self, timestamp: int) -> None:
        self._send(self._handle.deleteTimer, timestamp)

    def keep_timer(self, current: int | None, wanted: int | None, over: int) -> int | None:
        """Keep one timer of the selected group, at `wanted` or before it; return what the group has now."""
        # A timer that is too early stays: the wanted time often moves on in each micro-batch, and a call too
        # many changes nothing. Timers up to `over` have fired or fire in this micro-batch; Spark deletes
        # those.
        if current is not None and current <= over:
            current = None
        if current is not None and wanted is not None and wanted >= current:
            return current
        if current is not None:
            self.delete_timer(current)
        if wanted is not None:
            self.register_timer(wanted)
        return wanted

    def read(self, kind: int, id_: int) -> bytes | None:
        row = self._chunks.getValue((kind, id_))
        return None if row is None else from_text(row[0])

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self._send(self._chunks.updateValue, (kind, id_), (to_text(data),))

    def remove(self, kind: int, id_: int) -> None:
        self._send(self._chunks.removeKey, (kind, id_))

    def read_manifest(self) -> Manifest | None:
        assert self._label is not None
        self.settle()
        if self._label not in self._manifests:
            self.ask_for_manifests([self._label])
            self.settle()
        answer = self._manifests.get(self._label)
        if answer is None and self._chunks.exists():
            raise ValueError(
                "this checkpoint has chunks without a manifest, as in timerheap's state format 2, and this "
                f"version reads {FORMAT}: use the version that wrote it, or start a new checkpoint"
            )
        manifest = Manifest.from_bytes(from_text(self._parse(answer)[0])) if answer else None
        audit = self._audited()
        if audit is not None:
            audit.found(key_group_of(self._label), None if manifest is None else manifest.batch)
        return manifest

    def write_manifest(self, manifest: Manifest) -> None:
        if self._label is not None:
            self._manifests.pop(self._label, None)  # the answer that is kept is old from now on
            if self._audit is not None:
                manifest.batch = self._audit.batch
                self._audit.saved(key_group_of(self._label))
        self.write(MANIFEST, 0, manifest.to_bytes())


def _remove_path(connection: object) -> None:
    """Remove the path of a Unix socket that Spark has made for this connection alone."""
    # Then nobody else finds it, and it is not left behind by an executor that is killed.
    if isinstance(connection, socket.socket):
        with suppress(OSError):
            path = connection.getpeername()
            if path and isinstance(path, str):
                os.unlink(path)


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
    partition: int = -1  # -1 before it has key groups
    groups: int | None = 0

    @classmethod
    def of(cls, query: str, batch: int, partitions: int) -> Ledger:
        """Return the ledger of a query's partition that has no key groups."""
        return cls(xxh64(query.encode()).to_bytes(8, "little"), batch, partitions)

    def to_bytes(self) -> bytes:
        """Return the value that the state store holds."""
        fields = self.query, self.batch, self.partitions, self.partition
        return seal(LEDGER, _LEDGER.pack(*fields, self.groups is not None, self.groups or 0))

    @classmethod
    def from_bytes(cls, data: bytes) -> Ledger:
        """Return the ledger of `to_bytes`; raise ValueError for any other bytes."""
        try:
            query, batch, partitions, partition, known, groups = _LEDGER.unpack(unseal(LEDGER, data))
        except struct.error as e:
            raise ValueError(f"the ledger of a partition is damaged: {e}") from None
        return cls(query, batch, partitions, partition, groups if known else None)

    def expect(self, before: Ledger) -> None:
        """Raise ValueError if this is not the ledger that is wanted, whose partition may be unknown."""
        if self.query != before.query:
            raise foreign("the state of a different query")
        if self.batch != before.batch:
            raise foreign(f"state after micro-batch {self.batch} where that after {before.batch} must be")
        if before.partition >= 0 and self.partition not in (-1, before.partition):
            raise foreign(f"the state of partition {self.partition} where that of {before.partition} must be")


def foreign(what: str) -> ValueError:
    """Return the error for a checkpoint that has `what`."""
    return ValueError(
        f"the checkpoint must be as its query has left it, got {what}: files of its state are lost, old or "
        "in the wrong place; put back a whole copy of the checkpoint, or start a new one"
    )


def mark(key_group: int, batch: int) -> int:
    """Return the part of a key group in `Ledger.groups`."""
    return xxh64(struct.pack("<iq", key_group, batch))


def joint(marks: Iterable[int]) -> int:
    """Return the digest of key groups that have these marks; a mark of 0 is none."""
    return reduce(xor, marks, 0)


class Audit:
    """Compares what a task finds in its partition with the ledger, and keeps the ledger.

    now: the ledger of a partition without key groups after this micro-batch
    before: what the last task has left, None if there is none
    """

    def __init__(self, now: Ledger, placement: Placement, before: Ledger | None) -> None:
        self._now, self._placement = now, placement
        if now.batch == 0:
            before = Ledger(now.query, -1, now.partitions)
        elif before is not None and before.partitions != now.partitions:  # Spark has repartitioned
            before = None
        self._before = before
        self._partition = -1
        self._found: dict[int, int] = {}  # the marks of key groups, as the task has found them
        self._saved: dict[int, int] = {}
        self._expect(-1)

    def _expect(self, partition: int) -> None:
        if self._before is not None:
            now = self._now
            self._before.expect(Ledger(now.query, now.batch - 1, now.partitions, partition))

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
        """Return the ledger to leave; raise ValueError if a key group is not what was saved."""
        before, partition = self._before, self._partition
        groups = None if before is None else before.groups
        if partition < 0:
            partition = -1 if before is None else before.partition
        elif len(self._found) == len(self._placement.key_groups(partition)):
            all_found = joint(self._found.values())
            if groups not in (None, all_found):
                raise foreign(f"other key groups in partition {partition} than were saved there")
            groups = all_found
        if groups is not None:
            groups ^= joint(mark ^ self._found[key_group] for key_group, mark in self._saved.items())
        return Ledger(self._now.query, self.batch, self._now.partitions, partition, groups)


def expect_whole(
    ledgers: Collection[Ledger], query: str, batch: int, partitions: int, groups: Mapping[int, int]
) -> None:
    """Raise ValueError if a checkpoint lacks state after a micro-batch, or has that of another one.

    ledgers: those of all partitions
    groups: the micro-batches in which the key groups were saved
    """
    wanted = Ledger.of(query, batch, partitions)
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
        if known.get(partition, 0) not in (None, joint(marks.get(partition, []))):
            raise foreign(f"other key groups in partition {partition} than were saved there")
