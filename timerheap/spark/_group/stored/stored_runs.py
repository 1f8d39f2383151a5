"""The parts of a key group as they are in the store: runs of chunks.

A part is stored as a run: a stack of segments, each a few chunks, whose batches rebuild the part when they
are replayed in order. A save pushes the changes of a part as a new segment; nothing is written for a part
that has not changed. `Tiers` decides when segments are merged into one, and when a part is written anew from
memory. A merge reads only the segments that it merges, and none of the small ones that this process has
written itself.

What a save writes is a function of the stored state and the input: it does not depend on buffers, orders and
thresholds of the process that happens to have the group. So all attempts of a task write the same chunks, and
what Spark puts together from several attempts (speculation, checkpoint format 1) is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from timerheap._native._core import xxh64
from timerheap.errors import DamagedCheckpointError
from timerheap.spark._arrow import size_of, widen
from timerheap.spark._group.stored.chunk_store import ChunkReader, ChunkStore
from timerheap.spark._group.stored.chunks import pieces, read_chunk, read_schema, write_chunk, write_schema
from timerheap.spark._group.stored.kinds import USER_STATE
from timerheap.spark._group.stored.manifest import Run, Segment
from timerheap.spark._group.stored.parts import CheckpointedPart, LoadedPart
from timerheap.spark._group.stored.tiers import Tiers
from timerheap.spark._memory.streamed import Streamed

_SMALL = 4096  # bytes of a chunk that is kept for the merge that will want it


def joint_digest(chunk: bytes, before: int = 0) -> int:
    """Return 32 bits that tell whether a sealed chunk, or one of those `before` it, is another one."""
    return xxh64(chunk[:24], before) & 0xFFFFFFFF  # the envelope begins with a checksum of the rest


def described(store: ChunkReader, runs: Iterable[Run]) -> Iterator[tuple[Run, str, pa.Schema]]:
    """Yield the runs that have contents or are of user states, with their names and schemas."""
    for run in runs:
        if run.segments or run.kind >= USER_STATE:
            yield run, *read_schema(run.kind, stored_chunk(store, run.kind, 0, ""))


def load_runs(
    store: ChunkReader,
    runs: Iterable[Run],
    make_part: Callable[[int, str, pa.Schema], LoadedPart],
    drops: Callable[[str], bool],
) -> list[Run]:
    """Replay the chunks of each run into the part of its kind, name and schema.

    Returns the runs of the user states whose names it `drops`, which are not read.
    """
    dropped = []
    for run, name, schema in described(store, runs):
        if run.kind >= USER_STATE and drops(name):
            dropped.append(run)
        else:
            _replay(store, run, name, schema, make_part(run.kind, name, schema))
    return dropped


def _replay(store: ChunkReader, run: Run, name: str, schema: pa.Schema, part: LoadedPart) -> None:
    for segment, ids in run.numbered():
        joint = 0
        for id_ in ids:
            data = stored_chunk(store, run.kind, id_, name)
            joint = joint_digest(data, joint)
            batch = read_chunk(run.kind, data, schema)
            part.replay(batch)
            if id_ == 1:
                rows = sum(each.rows for each in run.segments)
                # If its rows are longer than most, the number of rows would say too much.
                times = min(rows / max(1, batch.num_rows), 17 / 16 * run.nbytes / len(data))
                if times > 1:
                    part.reserve(times)
        if joint != segment.digest:
            raise DamagedCheckpointError(
                f"the checkpoint mixes chunks of kind {run.kind} {name!r} from two attempts of a "
                "task, as may come of spark.speculation; start from an older version of the "
                "checkpoint, or a new one, and set "
                "spark.sql.streaming.stateStore.checkpointFormatVersion to 2"
            )


class StoredRuns:
    """The runs of one group as they are in the store, and those that the next save removes.

    id: that of the group
    """

    def __init__(self, runs: Iterable[Run], id: bytes, dropped: Iterable[Run] = ()) -> None:
        self._runs = {run.kind: run for run in runs}
        self._tiers = Tiers(id)
        self._dropped = list(dropped)
        self._checked: dict[int, pa.Schema] = {}  # the schemas that are known to be those of chunks 0

    @property
    def drops(self) -> bool:
        """Whether the next save removes a state."""
        return bool(self._dropped)

    def in_order(self) -> list[Run]:
        """Return the runs by kind."""
        return sorted(self._runs.values(), key=lambda run: run.kind)

    def remove_dropped(self, store: ChunkStore) -> None:
        """Remove what a load has left out; before parts are saved, since a new state may reuse a kind."""
        for run in self._dropped:
            for id_ in range(run.count + 1):
                store.remove(run.kind, id_)
        self._dropped = []

    def save_part(self, store: ChunkStore, part: CheckpointedPart, whole: bool) -> None:
        """Write the changes of a part, or it as a `whole`; nothing if nothing has changed."""
        changes = part.changes()  # even before a rewrite: the next save must not write them again
        run = self._runs.get(part.kind)
        if run is None:
            run = Run(part.kind)
            if run.kind >= USER_STATE:  # even an empty one, so that its name keeps its kind
                self._runs[run.kind] = run
                self._check_schema(store, part, run)
        changed = 0 if changes is None else size_of(changes)
        live = run.size * len(part) // max(1, run.entries)  # to measure the part would cost O(part)
        rewrite = whole or self._tiers.overgrown(run.nbytes, changed, live)
        if not rewrite and changes is None:
            return
        self._runs[part.kind] = run
        rewrite |= self._check_schema(store, part, run)
        if changes is None or rewrite:
            self._rewrite(store, part, run)
            return
        sizes = [segment.nbytes for segment in run.segments]
        start = self._tiers.merge_from([*sizes, changed])
        if start == 0:
            self._rewrite(store, part, run)
            return
        if start < len(sizes):
            chunks = [
                segment.data or stored_chunk(store, run.kind, id_, part.name)
                for segment, ids in run.numbered(start)
                for id_ in ids
            ]
            batches = [widen(read_chunk(run.kind, data, part.schema)) for data in chunks]
            changes = part.merge([*batches, changes])
        self._push(store, part, run, start, changes)

    def _rewrite(self, store: ChunkStore, part: CheckpointedPart, run: Run) -> None:
        snapshot = part.snapshot()
        run.size = snapshot.size if isinstance(snapshot, Streamed) else size_of(snapshot)
        run.entries = len(part)
        self._push(store, part, run, 0, snapshot)

    def _check_schema(self, store: ChunkStore, part: CheckpointedPart, run: Run) -> bool:
        """Write chunk 0 if the part's schema is not that of the run, and return whether it was not."""
        if self._checked.get(part.kind) is part.schema:
            return False
        self._checked[part.kind] = part.schema
        data = write_schema(part.kind, part.name, part.schema)
        fingerprint = xxh64(data) & 0xFFFFFFFF
        if run.schema == fingerprint:
            return False
        store.write(part.kind, 0, data)
        run.schema = fingerprint
        return True

    def _push(
        self,
        store: ChunkStore,
        part: CheckpointedPart,
        run: Run,
        start: int,
        batch: pa.RecordBatch | Streamed,
    ) -> None:
        """Replace the segments from `start` on by one that holds `batch`."""
        kind, before = run.kind, run.count
        del run.segments[start:]
        below, segment = run.count, Segment(0, 0, batch.num_rows, 0)
        for piece in pieces(batch, part.schema):
            data = write_chunk(kind, piece)
            segment.count += 1
            store.write(kind, below + segment.count, data)
            segment.nbytes += len(data)
            segment.digest = joint_digest(data, segment.digest)
            segment.data = data if segment.count == 1 and len(data) < _SMALL else b""
        # Only now: chunks that are written anew need no removal, which would be another call.
        for left in range(below + segment.count + 1, before + 1):
            store.remove(kind, left)
        if segment.count:
            run.segments.append(segment)


def stored_chunk(store: ChunkReader, kind: int, id_: int, name: str) -> bytes:
    """Return a chunk of a part; raise DamagedCheckpointError if it is not there."""
    data = store.read(kind, id_)
    if data is None:
        raise DamagedCheckpointError(f"the checkpoint lacks chunk {id_} of kind {kind} {name!r}")
    return data
