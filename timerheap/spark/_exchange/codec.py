"""What tasks that pack rows send: rows in frames, and what they have observed of event times.

A frame has the rows of one partition, ordered by key group, in the fewest objects and copies.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import starmap
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import NESTED, TEXT, ArrayView, Packing, read_frame, spark_hashes
from timerheap.spark._arrow import EARLIER, FITS, is_flat, kind_of, view_of
from timerheap.spark._columns import HASH
from timerheap.spark._exchange.placement import Placement
from timerheap.watermarks.strategy import MAX_AHEAD

_SHORT = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}

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
_NONE_SEEN = pa.Table.from_batches([], OBSERVED)
_UNNAMED = pa.nulls(1, pa.string())
_UNSORTED = np.zeros(1, np.int64)


def hashes_of(key: pa.Array) -> np.ndarray:
    """Return Spark's xxhash64 of a key of text, bytes or integers, 42 for null: int64, shape (n,)."""
    return spark_hashes(view_of(key))


def frames_of(
    batches: list[pa.RecordBatch], hashes: list[np.ndarray], placement: Placement
) -> tuple[np.ndarray, pa.Array]:
    """Return the partitions that have rows, and a frame with the rows of each, in the order of key groups."""
    # Flat columns are copied once. Nested ones are taken, and written as a batch of Arrow's. There are one or
    # more batches of one schema, each with the hashes of its keys.
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
    """Return the rows of a frame, their key groups in order, and the number of rows of each."""
    # Text and bytes have 32-bit offsets, which suffice for a frame. The rows are views of the frame where it
    # has the same bytes. Raises ValueError if the frame was not written by `frames_of` of this version, or is
    # damaged.
    data = np.frombuffer(frame, np.uint8)
    if data.ctypes.data % 8:
        data = data.copy()
    n, description, key_groups, counts, columns = read_frame(data)
    try:
        schema, types = _schema(bytes(description))
        flat = sum(flat for _, flat in types)
        if len(columns) != flat + (flat < len(schema)):
            raise ValueError(f"{len(columns)} columns for the schema {schema}")
        nested = iter(_nested_columns(columns.pop(), n, schema) if flat < len(schema) else ())
        views = iter(columns)
        arrays = [_array(type_, n, next(views)) if flat else next(nested) for type_, flat in types]
        names = schema.names
    except (pa.ArrowException, OSError, ValueError) as e:
        raise ValueError(f"a frame must hold the rows that its schema says: {e}") from e
    return pa.RecordBatch.from_arrays(arrays, names=names), key_groups, counts


@lru_cache(maxsize=64)
def _schema(serialized: bytes) -> tuple[pa.Schema, list[tuple[pa.DataType, bool]]]:
    """Return the schema, and the types of the columns, with whether they are flat."""
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    return schema, [(field.type, is_flat(field.type)) for field in schema]


def _array(type_: pa.DataType, n: int, column: tuple[Any, ...]) -> pa.Array:
    kind, width, validity, offsets, data = column
    type_ = _SHORT.get(type_, type_)
    if (kind, width) != kind_of(type_):
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


def key_hashes(rows: pa.RecordBatch, key: str) -> np.ndarray:
    """Return the hash of each row's key, from `HASH` or from the key itself: int64, shape (n,)."""
    if HASH in rows.schema.names:
        return cast(np.ndarray, rows.column(HASH).to_numpy())
    return hashes_of(rows.column(key))


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
    """Return the largest time of each code of a day or more before its newest, or `_NONE`."""
    # The result is None if there is no such time, or none for any code. A single code need not be repeated.
    if not len(times) or int(times.max()) - int(times.min()) < MAX_AHEAD:
        return None
    before = times <= (np.maximum(newest, _NONE + MAX_AHEAD) - MAX_AHEAD)[codes]
    earlier: np.ndarray = np.full(len(newest), _NONE)
    if len(newest) == 1:
        earlier[0] = times[before].max(initial=_NONE)
        return earlier
    np.maximum.at(earlier, codes[before], times[before])
    return earlier


def merged(tables: list[pa.Table]) -> pa.Table:
    """Merge the tables of batches or tasks into one row per channel, always in the same order; O(rows)."""
    every = pa.concat_tables([_NONE_SEEN, *tables]) if tables else _NONE_SEEN
    if every.num_rows <= 1:
        return every.combine_chunks()
    if extra := {name: n for name, n in counts_of(every).items() if n}:
        rest = merged([every.filter(pc.less(every.column("input"), _FIRST_COUNTED))])
        return pa.concat_tables([rest, *starmap(counted, extra.items())]).combine_chunks()
    names, codes = _encoded(every.column("channel").combine_chunks())
    order = _UNSORTED if len(names) == 1 else pc.array_sort_indices(names).to_numpy()  # null is last
    numbers = np.empty(len(names), np.int64)
    numbers[order] = np.arange(len(names))
    codes = numbers[codes] + every.column("input").to_numpy() % EARLIER * np.int64(len(names))
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
