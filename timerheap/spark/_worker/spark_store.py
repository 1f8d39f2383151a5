"""The state and the timers of key groups in Spark's state store."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from timerheap._native._core import from_text, to_text
from timerheap.errors import ForeignCheckpointError
from timerheap.spark._compat import StateClient
from timerheap.spark._exchange.placement import Placement, key_group_of, label_of
from timerheap.spark._group.stored.formats import CHECKPOINT
from timerheap.spark._group.stored.kinds import MANIFEST
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._worker.ledger import LEDGER, LEDGER_LABEL, Audit, Ledger
from timerheap.timer import MIN_WATERMARK

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
        self._watched = True
        client.answer_with(self._answer)
        self._handle = handle
        self._chunks = handle.getMapState(*CHUNKS)
        _remove_path(client.socket)

    def begin(
        self, query: str, batch: int, placement: Placement, operator: str, begins: bool, watched: bool = True
    ) -> None:
        """Begin a task, which is compared with what the last one of the partition has left.

        operator: its name
        begins: whether this is the first micro-batch of the checkpoint
        watched: whether the driver looks whose state there is, as it cannot on Spark Connect
        """
        self._watched = watched
        self._task = Ledger.of(query, batch, placement.partitions, operator), placement
        self.expects_state = not begins
        if self.expects_state:
            self._ask(LEDGER_LABEL, self._chunks.getValue, (LEDGER, 0))

    def _audited(self) -> Audit | None:
        """Return the audit of the task; raise CheckpointError after another query or micro-batch."""
        if self._audit is None and self._task is not None:
            self.settle()
            answer = self._manifests.pop(LEDGER_LABEL, b"")
            before = Ledger.from_bytes(from_text(self._parse(answer)[0])) if answer else None
            self._audit = Audit(*self._task, before, not self.expects_state, self._watched)
        return self._audit

    def watermark_before(self) -> int | None:
        """Return the watermark that the last task of the partition has left; None without key groups."""
        audit = self._audited()
        assert audit is not None
        assert self._task is not None
        partition, placement = audit.partition, self._task[1]
        if partition < 0:  # no micro-batch so far has had anything for it
            return MIN_WATERMARK if placement.used == placement.partitions else None
        self.select(label_of(partition))
        manifest = self.read_manifest()
        return MIN_WATERMARK if manifest is None else manifest.watermark

    def end(self) -> None:
        """End a task: leave what the next one compares; raise CheckpointError if a key group is wrong."""
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
            raise ForeignCheckpointError(
                f"this checkpoint has chunks without a manifest, and {CHECKPOINT.what} {CHECKPOINT.written} "
                "has one for each key group: use the version that wrote it, or start a new checkpoint"
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
