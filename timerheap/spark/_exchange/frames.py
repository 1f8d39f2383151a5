"""Rows packed into one blob per shuffle partition, and taken apart again by key group.

A stateful operator in Python has a cost per group and per row of its input, so it is fast with few, large
rows: Spark sees one group per partition. The stage has no state between micro-batches. Beside the rows it
sends what it has observed of their event times.

What a task sends depends on its rows alone. After a lost executor tasks are run again, and Spark ends a query
whose tasks then send anything else, since other tasks may have used what the first attempt sent.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import starmap
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import StructType

from timerheap._native._core import NESTED, TEXT, ArrayView, Packing, read_frame, spark_hashes
from timerheap.spark._arrow import EARLIER, FITS, KeyedRows, is_flat, narrow_column, view_of
from timerheap.spark._columns import AHEAD, CHANNEL, HASH, INPUT, KEPT, SEEN, shown_name
from timerheap.spark._exchange.placement import Placement, labels_of
from timerheap.spark._query import NullTime, Query, TimeColumn, nullable_arrow_schema
from timerheap.watermarks.strategy import MAX_AHEAD

_done = 0  # 1: by a task that packs rows; 2: by an operator, which imports more


def freeze_modules(load: Callable[[], object] | None = None) -> None:
    """Exempt the modules of the worker from garbage collection; call it before a task makes its objects.

    Spark collects garbage after each task. With pandas and PyArrow imported, a collection visits 90,000
    objects, and takes several times as long as a task of few rows. The objects of modules live as long as the
    worker anyway. Only the first task of a worker does this, and the first with an operator, since later ones
    find live state as well.

    `load` imports the modules of an operator. What it returns is dropped before: a user's function that is
    exempt and refers to itself would live as long as the worker, with all that it has made.
    """
    global _done
    level = 1 if load is None else 2
    if _done < level and TaskContext.get() is not None:
        if load is not None:
            gc.disable()  # so that all it makes is in the youngest generation, which is quickly searched
            try:
                load()
            finally:
                gc.enable()
            gc.collect(0)
        gc.freeze()
        _done = level


_SHORT = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def hashes_of(key: pa.Array) -> np.ndarray:
    """Return Spark's xxhash64 of a key of text, bytes or integers, 42 for null: int64, shape (n,)."""
    return spark_hashes(view_of(key))


def frames_of(
    batches: list[pa.RecordBatch], hashes: list[np.ndarray], placement: Placement
) -> tuple[np.ndarray, pa.Array]:
    """Return the partitions that have rows, and a frame with the rows of each, in the order of key groups.

    Flat columns are copied once. Nested ones are taken, and written as a batch of Arrow's. There are one or
    more batches of one schema, each with the hashes of its keys.
    """
    schema = batches[0].schema
    packing = Packing(hashes, placement.max_parallelism, placement.partitions)
    nested = [field.name for field in schema if not is_flat(field.type)]
    columns: list[list[Any]] = [
        [view_of(batch.column(i)) for batch in batches]
        for i, field in enumerate(schema)
        if is_flat(field.type)
    ]
    if nested:
        columns.append(_nested_parts([batch.select(nested) for batch in batches], packing))
    data, ends = packing.frames(schema.serialize(), columns)
    return packing.partitions, blobs_of(data, ends)


def _nested_parts(batches: list[pa.RecordBatch], packing: Packing) -> list[pa.Buffer]:
    """Return the nested columns of each partition."""
    ordered = pa.concat_batches(batches).take(pa.array(packing.order()))
    starts = np.cumsum(packing.rows) - packing.rows
    return [
        ordered.slice(start, rows).serialize()
        for start, rows in zip(starts.tolist(), packing.rows.tolist(), strict=True)
    ]


def blobs_of(data: Any, ends: np.ndarray) -> pa.Array:
    """Return blobs that stand one after the other in a buffer as a column."""
    if len(ends) and ends[-1] > FITS:
        raise OverflowError(
            f"the rows that are packed together must take at most {FITS} bytes, got {ends[-1]}; lower "
            "spark.sql.execution.arrow.maxRecordsPerBatch"
        )
    offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, offsets, pa.py_buffer(data)])


def rows_of(frame: Any) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
    """Return the rows of a frame, their key groups in order, and the number of rows of each.

    Text and bytes have 32-bit offsets, which suffice for a frame. The rows are views of the frame where it
    has the same bytes. Raises ValueError if the frame was not written by `frames_of` of this version, or is
    damaged.
    """
    data = np.frombuffer(frame, np.uint8)
    if data.ctypes.data % 8:
        data = data.copy()
    n, description, key_groups, counts, columns = read_frame(data)
    try:
        schema = _schema(bytes(description))
        flat = sum(is_flat(field.type) for field in schema)
        if len(columns) != flat + (flat < len(schema)):
            raise ValueError(f"{len(columns)} columns for the schema {schema}")
        nested = iter(())
        if flat < len(schema):
            nested = iter(_nested_columns(columns.pop(), n, schema))
        views = iter(columns)
        arrays = [
            _array(field.type, n, next(views)) if is_flat(field.type) else next(nested) for field in schema
        ]
        names = schema.names
    except (pa.ArrowException, OSError, ValueError) as e:
        raise ValueError(f"a frame must hold the rows that its schema says: {e}") from e
    return pa.RecordBatch.from_arrays(arrays, names=names), key_groups, counts


@lru_cache(maxsize=64)
def _schema(serialized: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(serialized))


def _array(type_: pa.DataType, n: int, column: tuple[Any, ...]) -> pa.Array:
    kind, width, validity, offsets, data = column
    type_ = _SHORT.get(type_, type_)
    wanted = view_of(pa.array([], type_))
    if (kind, width) != (wanted.kind, wanted.width):
        raise ValueError(f"a column of kind {kind} and width {width} cannot be of {type_}")
    ArrayView(kind, width, 0, n, validity, offsets, data)
    buffers = [validity, offsets, data] if kind == TEXT else [validity, data]
    held = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(type_, n, held, 0 if validity is None else -1)


def _nested_columns(column: tuple[Any, ...], n: int, schema: pa.Schema) -> list[pa.Array]:
    kind, _, _, _, data = column
    if kind != NESTED:
        raise ValueError(f"its nested columns are of kind {kind}")
    fields = [field for field in schema if not is_flat(field.type)]
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), pa.schema(fields))
    batch.validate(full=True)
    if batch.num_rows != n:
        raise ValueError(f"its nested columns have {batch.num_rows} of {n} rows")
    return cast(list[pa.Array], batch.columns)


BROADCAST = -(1 << 62)
"""The first position of rows that go to all partitions, all of which are below `OBSERVATION`."""

OBSERVATION = -1
"""The position of event times, a table of `OBSERVED`."""

_SCHEMA = pa.schema([("label", pa.int32()), ("sequence", pa.int64()), ("blob", pa.binary())])
_ROWS = 1 << 19
_BYTES = 64 << 20


def event_millis(column: pa.Array) -> np.ndarray:
    """Return a column of timestamp[us], or int64 in ms, as epoch ms, rounded down: int64, shape (n,)."""
    if pa.types.is_int64(column.type):
        return cast(np.ndarray, column.to_numpy(zero_copy_only=False))
    return cast(np.ndarray, column.view(pa.int64()).to_numpy(zero_copy_only=False)) // 1000


class Reducer(Protocol):
    """Aggregates rows into fewer."""

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add rows, with the hashes of their keys."""

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, and return those they have become, with `HASH`."""


@dataclass(frozen=True)
class Packer:
    """The function of the stage (``mapInArrow``)."""

    key: str  # the key column, if the rows come without `HASH`
    event_time: str | None
    max_parallelism: int | None  # None: the default for the number of partitions
    times: tuple[TimeColumn, ...] = ()  # what `event_time` is called, for each input; without, it may be null
    null_time: NullTime = "error"
    announces: bool = False  # whether the first micro-batch calls every partition even without rows
    reduce: Callable[[], Reducer] | None = None  # its rows are sent instead

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of a task."""
        freeze_modules()
        task = TaskContext.get()
        sequence = (task.partitionId() if task is not None else 0) << 32
        placement = Placement.running(self.max_parallelism)
        seen: list[pa.Table] = []
        reducer = None if self.reduce is None else self.reduce()
        held: list[pa.RecordBatch] = []
        rows = nbytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if self.times and batch.column(self.event_time).null_count:
                seen.append(counted("null_time_rows", self._untimed(batch)))
                batch = batch.filter(batch.column(self.event_time).is_valid())
            seen.append(self._observe(batch))
            names = batch.schema.names
            if AHEAD in names and (ahead := batch.column(AHEAD).true_count):
                seen.append(counted("ahead_rows", ahead))
            if KEPT in names:
                batch = batch.filter(batch.column(KEPT))
            if batch.num_rows:
                batch = batch.drop_columns([name for name in (CHANNEL, AHEAD, KEPT, SEEN) if name in names])
                rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
                if reducer is None:
                    held.append(batch)
                else:
                    reducer.add(batch, key_hashes(batch, self.key))
            if rows >= _ROWS or nbytes >= _BYTES:
                yield self._split(held if reducer is None else [reducer.drain()], sequence, placement)
                held, sequence, rows, nbytes = [], sequence + 1, 0, 0
        if rows:
            yield self._split(held if reducer is None else [reducer.drain()], sequence, placement)
        if seen or (self.announces and task is not None and _is_first(task)):
            everywhere = np.arange(placement.used)
            yield packed_copies(everywhere, OBSERVATION, merged(seen))

    def _untimed(self, batch: pa.RecordBatch) -> int:
        """Return the number of rows without an event time, of which there are some, unless it is an error."""
        none = batch.column(self.event_time).is_null()
        if self.null_time == "drop":
            return int(none.true_count)
        first = none.index(True).as_py()
        time = self.times[batch.column(INPUT)[first].as_py() if INPUT in batch.schema.names else 0]
        name = shown_name(time.column)
        where = f"column {name!r}" + ("" if time.df == "df" else f" of {time.df}")
        column = f"{time.df}[{name!r}]" if name == time.column else f"F.expr({name!r})"
        raise ValueError(
            f"{time.argument} must not be null, got {none.true_count} of {batch.num_rows} rows with null in "
            f"{where}; filter them out ({time.df}.where({column}.isNotNull()), or WHERE in sql()), fill in a "
            'value, or pass null_time="drop", which sql() does not take'
        )

    def _observe(self, batch: pa.RecordBatch) -> pa.Table:
        names, time = batch.schema.names, self.event_time
        if SEEN in names:
            time, batch = SEEN, batch.filter(batch.column(SEEN).is_valid())
        return observed(
            batch.num_rows,
            None if time is None else event_millis(batch.column(time)),
            ~batch.column(AHEAD).to_numpy(zero_copy_only=False) if AHEAD in names else None,
            batch.column(INPUT).to_numpy() if INPUT in names else None,
            batch.column(CHANNEL) if CHANNEL in names else None,
        )

    def _split(self, batches: list[pa.RecordBatch], sequence: int, placement: Placement) -> pa.RecordBatch:
        hashes = [key_hashes(batch, self.key) for batch in batches]
        present, blobs = frames_of(batches, hashes, placement)
        return _packed(present, sequence, blobs)


def _is_first(task: TaskContext) -> bool:
    """Return whether a task is of the first micro-batch of a query."""
    return task.getLocalProperty("streaming.sql.batchId") == "0"


def key_hashes(rows: pa.RecordBatch, key: str) -> np.ndarray:
    """Return the hash of each row's key, from `HASH` or from the key itself: int64, shape (n,)."""
    if HASH in rows.schema.names:
        return cast(np.ndarray, rows.column(HASH).to_numpy())
    return hashes_of(rows.column(key))


def _packed(partitions: np.ndarray, sequence: int, blobs: pa.Array) -> pa.RecordBatch:
    """Return a row of `PACKED` for each partition; its first key group has its number."""
    columns = [pa.array(labels_of(partitions)), pa.array(np.full(len(partitions), sequence)), blobs]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def packed_copies(partitions: np.ndarray, sequence: int, table: pa.Table) -> pa.RecordBatch:
    """Return a row of `PACKED` for each partition, with a table as an Arrow stream."""
    times = len(partitions)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = np.frombuffer(sink.getvalue(), np.uint8)
    blobs = blobs_of(np.tile(stream, times), np.arange(1, times + 1) * len(stream))
    return _packed(partitions, sequence, blobs)


@dataclass(frozen=True)
class Broadcaster:
    """The function of the stage that copies rows (``mapInArrow``); its output is `PACKED`."""

    max_parallelism: int | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, once for each partition that has key groups."""
        freeze_modules()
        task = TaskContext.get()
        sequence = BROADCAST + ((task.partitionId() if task is not None else 0) << 32)
        everywhere = np.arange(Placement.running(self.max_parallelism).used)
        for batch in batches:
            if batch.num_rows:
                yield packed_copies(everywhere, sequence, pa.Table.from_batches([batch]))
                sequence += 1


def broadcast_rows(type_: StructType, packed: Iterable[tuple[int, bytes]]) -> pa.Table | None:
    """Return the rows of a type that were packed for a partition, in input order; None if there are none."""
    schema = nullable_arrow_schema(type_)
    blobs = sorted((int(sequence), blob) for sequence, blob in packed if sequence < OBSERVATION)
    if not blobs:
        return None
    return pa.concat_tables([pa.ipc.open_stream(blob).read_all().cast(schema) for _, blob in blobs])


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of one frame."""

    rows: KeyedRows
    key_groups: list[int]  # in the order of their rows
    counts: list[int]  # the number of rows of each


def unpack(query: Query, packed: Iterable[tuple[int, bytes]]) -> tuple[list[Part], pa.Table]:
    """Return a partition's rows in input order, in parts, and the event times that all tasks have observed.

    `packed` are the sequences and blobs of the pack stage, in any order.
    """
    parts, seen = [], []
    for sequence, blob in sorted(packed, key=lambda pair: int(pair[0])):
        if sequence == OBSERVATION:
            seen.append(pa.ipc.open_stream(blob).read_all())
        elif sequence > OBSERVATION:
            batch, key_groups, counts = rows_of(blob)
            parts.append(Part(_fitted(query, batch), key_groups.tolist(), counts.tolist()))
    return parts, merged(seen)


def _fitted(query: Query, batch: pa.RecordBatch) -> KeyedRows:
    columns = [narrow_column(batch.column(field.name), field.type) for field in query.schema]
    rows = pa.RecordBatch.from_arrays(columns, schema=query.schema)
    timestamps = np.zeros(batch.num_rows, np.int64)
    if query.event_time in rows.schema.names:
        timestamps = event_millis(rows.column(query.event_time))
    return KeyedRows(rows, key_hashes(batch, query.key[0]), timestamps)


def pairs_of(packed: pa.Table) -> Iterator[tuple[int, bytes]]:
    """Return the sequences and blobs of a partition of a batch DataFrame."""
    return zip(*(packed.column(name).to_pylist() for name in ("sequence", "blob")), strict=True)


def unpacked_rows(query: Query, packed: pa.Table) -> KeyedRows | None:
    """Return the rows of a partition of a batch DataFrame, None if it has none."""
    parts, _ = unpack(query, pairs_of(packed))
    return KeyedRows.concatenated([part.rows for part in parts]) if parts else None


def by_key_group(parts: list[Part]) -> dict[int, KeyedRows]:
    """Return the rows of each key group that has some."""
    found: dict[int, list[KeyedRows]] = {}
    for part in parts:
        start = 0
        for key_group, count in zip(part.key_groups, part.counts, strict=True):
            found.setdefault(key_group, []).append(part.rows.slice(start, start + count))
            start += count
    return {key_group: KeyedRows.concatenated(slices) for key_group, slices in found.items()}


OBSERVED = pa.schema(
    [("input", pa.int8()), ("channel", pa.string()), ("max_timestamp", pa.int64()), ("count", pa.int64())]
)
"""One row for each channel of each input. The channel is null if the input has no channels; max_timestamp is
null if every row was too far ahead of the clock.

If a channel has times of a day or more before max_timestamp, there is another row with the largest of them,
whose input is increased by `EARLIER`. It counts where max_timestamp is too far ahead: a task knows no clock.
A last row for each metric in `COUNTED`, with its number as the input, has the number of such rows, if any.
"""

COUNTED = {"null_time_rows": 4, "ahead_rows": 6}  # even, as numbers of a first input
_FIRST_COUNTED = min(COUNTED.values())

_NONE = np.iinfo(np.int64).min
_NO_TIMES = np.empty(0, np.int64)
_UNNAMED = pa.nulls(1, pa.string())
_UNSORTED = np.zeros(1, np.int64)


def observed(
    n: int,
    times: np.ndarray | None,
    timed: np.ndarray | None = None,
    inputs: np.ndarray | None = None,
    channels: pa.Array | None = None,
) -> pa.Table:
    """Return what `n` rows show of their channels, a table of `OBSERVED`; O(n).

    The columns have the shape (n,): event times (int64), None if the rows have none; whether each counts
    (bool), by default yes; the number of each row's input (int8), by default 0; and its channel, by default
    none.
    """
    if channels is None and inputs is None:
        counted = _NO_TIMES if times is None else times if timed is None else times[timed]
        newest = counted.max(initial=_NONE, keepdims=True)
        earlier = _earlier(newest, np.zeros(1, np.int64), counted)
        return _table(_UNNAMED, np.zeros(1, np.int64), newest, np.array([n]), earlier)
    names, codes = _encoded(pa.nulls(n, pa.string()) if channels is None else channels)
    codes *= 2
    if inputs is not None:
        codes += inputs
    newest, earlier = np.full(2 * len(names), _NONE), None
    if times is not None:
        chosen = slice(None) if timed is None else timed
        np.maximum.at(newest, codes[chosen], times[chosen])
        earlier = _earlier(newest, codes[chosen], times[chosen])
    return _table(names, np.arange(len(newest)), newest, np.bincount(codes, minlength=len(newest)), earlier)


def _earlier(newest: np.ndarray, codes: np.ndarray, times: np.ndarray) -> np.ndarray | None:
    """Return the largest time of each code of a day or more before its newest, or `_NONE`.

    The result is None if there is no such time, or none for any code. A single code need not be repeated.
    """
    if not len(times) or int(times.max()) - int(times.min()) < MAX_AHEAD:
        return None
    before = times <= (np.maximum(newest, _NONE + MAX_AHEAD) - MAX_AHEAD)[codes]
    earlier: np.ndarray = np.full(len(newest), _NONE)
    if len(newest) == 1:
        earlier[0] = times[before].max(initial=_NONE)
        return earlier
    np.maximum.at(earlier, codes[before], times[before])
    return earlier


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """Merge the tables of batches or tasks into one row per channel, always in the same order; O(rows)."""
    every = pa.concat_tables([OBSERVED.empty_table(), *tables])
    if every.num_rows <= 1:
        return every.combine_chunks()
    if extra := {name: n for name, n in counts_of(every).items() if n}:
        rest = merged([every.filter(pc.less(every.column("input"), _FIRST_COUNTED))])
        return pa.concat_tables([rest, *starmap(counted, extra.items())]).combine_chunks()
    names, codes = _encoded(every.column("channel").combine_chunks())
    order = _UNSORTED if len(names) == 1 else pc.array_sort_indices(names).to_numpy()  # null is last
    ranks = np.empty(len(names), np.int64)
    ranks[order] = np.arange(len(names))
    codes = ranks[codes] + every.column("input").to_numpy() % EARLIER * np.int64(len(names))
    newest = np.full(2 * len(names), _NONE)
    times, rows = every.column("max_timestamp").fill_null(_NONE).to_numpy(), every.column("count").to_numpy()
    np.maximum.at(newest, codes, times)
    counts = np.zeros(len(newest), np.int64)
    np.add.at(counts, codes, rows)
    by_name = np.concatenate([2 * order, 2 * order + 1])
    known = times > _NONE
    return _table(names, by_name, newest, counts, _earlier(newest, codes[known], times[known]))


def counted(name: str, n: int) -> pa.Table:
    """Return a table of `OBSERVED` for a metric in `COUNTED`."""
    return pa.table([[COUNTED[name]], [None], [None], [n]], schema=OBSERVED)


def counts_of(observed: pa.Table) -> dict[str, int]:
    """Return the numbers in a table for the metrics in `COUNTED`."""
    inputs, counts = (observed.column(name).to_numpy() for name in ("input", "count"))
    if inputs.max(initial=0) < _FIRST_COUNTED:
        return dict.fromkeys(COUNTED, 0)
    return {name: int(counts[inputs == number].sum()) for name, number in COUNTED.items()}


def _encoded(channels: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct names of channels, and the number of each row's."""
    if channels.null_count == len(channels):  # as without channels
        return _UNNAMED, np.zeros(len(channels), np.int64)
    encoded = channels.dictionary_encode(null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _table(
    names: pa.Array, codes: np.ndarray, newest: np.ndarray, counts: np.ndarray, earlier: np.ndarray | None
) -> pa.Table:
    """Return a table of `OBSERVED`, of what has rows.

    The arrays are int64, of shape (n,). A code is twice the number of a name, plus the number of the input;
    beside it are the largest timestamp, or `_NONE`, the number of rows, and what `_earlier` returns.
    """
    present = np.flatnonzero(counts)
    codes, newest, counts = codes[present], newest[present], counts[present]
    inputs = codes % 2
    if earlier is not None:
        earlier = earlier[present]
        found = np.flatnonzero(earlier > _NONE)
        codes, newest = np.append(codes, codes[found]), np.append(newest, earlier[found])
        inputs = np.append(inputs, inputs[found] + EARLIER)
        counts = np.append(counts, np.zeros(len(found), np.int64))
    columns = [
        pa.array(inputs.astype(np.int8)),
        names.take(pa.array(codes // 2)),
        pa.array(newest, mask=newest == _NONE),
        pa.array(counts),
    ]
    return pa.Table.from_arrays(columns, schema=OBSERVED)
