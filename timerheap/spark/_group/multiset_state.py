"""Multiset states: for each key id, values with their weights, which add up, in an order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from timerheap._native._core import (
    PICK_ALL,
    PICK_LEADS,
    PICK_REST,
    PICK_ROWS,
    PICK_TIES,
    Codes,
    CodeTree,
    add_up,
)
from timerheap.errors import (
    ArgumentRangeError,
    ArgumentTypeError,
    ArgumentValueError,
    DamagedCheckpointError,
)
from timerheap.spark._arrow import wide, wide_rows, widen_column
from timerheap.spark._group.growing_state import batch_of, edits_of, lists_of
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.id_table import distinct_ids
from timerheap.spark._memory.segment_chains import Edits, without_empty
from timerheap.spark._memory.value_codes import Direction, ValueCodes, has_codes
from timerheap.spark._settling.settled_parts import SettledPart

_ORDER, _NOTE = b"order", b"note"  # in the metadata of a type's entries
_PICKS = {"rows": PICK_ROWS, "ties": PICK_TIES, "leads": PICK_LEADS}


@dataclass(frozen=True, slots=True, eq=False)
class Touched:
    """The entries of multisets whose weights have changed, by id and then in the order of the values."""

    ids: np.ndarray  # int64, shape (n,)
    values: pa.Array  # with 64-bit offsets
    before: np.ndarray  # weights, int64; 0: it was not there
    after: np.ndarray  # 0: it is gone

    def unmatched(self) -> int:
        """Return how many removals of values that are not there it has."""
        missing = np.minimum(self.before, 0) - np.minimum(self.after, 0)
        return int(np.maximum(missing, 0).sum())


def multiset_of(values: pa.DataType, order: Sequence[Direction] = (), note: str = "") -> pa.ListType:
    """Return the type of multisets of values, which may be null: of a flat type, or structs of such.

    order: the `Direction` of a flat value, or of each of the first fields of a struct, by which values are
    ordered. The other fields, ascending, tell apart values that are equal in these.
    note: what the checkpoint tells of them, see `note_of`
    """
    if not has_codes(values):
        raise ArgumentTypeError(f"values must be of a flat type, or structs of such, got {values}")
    ValueCodes(values, order)
    metadata = {_ORDER: json.dumps([[*map(bool, way)] for way in order])} if order else {}
    if note:
        metadata[_NOTE] = note
    return pa.list_(
        pa.field("entry", pa.struct([("value", values), ("weight", pa.int64())]), metadata=metadata or None)
    )


def order_of(type_: pa.DataType) -> list[Direction]:
    """Return the order that a type of `multiset_of` has been given."""
    return [Direction(*way) for way in json.loads((type_.value_field.metadata or {}).get(_ORDER, b"[]"))]


def note_of(type_: pa.DataType) -> str:
    """Return the note that a type of `multiset_of` has been given."""
    note: bytes = (type_.value_field.metadata or {}).get(_NOTE, b"")
    return note.decode(errors="replace")


class MultisetTable:
    """The multisets of one state, of a type that `multiset_of` returns.

    Weights are added up, and a value whose weights come to zero is gone; a negative weight stays until others
    make up for it, so that a removal may come before what it removes. Null equals null, each NaN equals NaN,
    and -0.0 is not 0.0. All entries lie in one tree, by key id and by value in the order of the type, so a
    read or a write costs O(log n) and what it reads or writes. What is saved depends on the contents alone,
    not on the order.
    """

    shape = "multiset"
    id_column = 0

    def __init__(
        self, kind: int, name: str, type_: pa.DataType, memory: Memory = PROCESS, head: Sequence[Any] = ()
    ) -> None:
        self.kind = kind
        self.name = name
        self.type = type_
        self.schema = pa.schema([("key_hash", pa.int64()), ("replaces", pa.bool_()), (self.shape, type_)])
        self._wide = wide(type_)
        value = type_.value_type.field("value").type
        self._natural = ValueCodes(value)
        order = order_of(type_)
        self._codes = ValueCodes(value, order) if order else self._natural
        format_ = self._codes.format
        self._taken: int
        self._taken, tree = head or (0, None)  # losses of the tree that are none: those that have settled
        self._tree = CodeTree(format_, memory) if tree is None else CodeTree._attach(format_, memory, tree)
        self.record_type = self._wide
        self.settled: SettledPart | None = None  # the contents that are not in the tree
        self._journal: list[Edits] = []

    @classmethod
    def restored(cls, kind: int, name: str, schema: pa.Schema, memory: Memory = PROCESS) -> Self:
        type_ = schema.field(cls.shape).type
        try:
            known = type_ == multiset_of(type_.value_type.field("value").type, order_of(type_))
        except (ArgumentTypeError, AttributeError, KeyError, TypeError, ValueError):  # of hostile bytes
            known = False
        if not known:
            raise DamagedCheckpointError(f"a chunk of state {name!r} has the columns {schema}")
        return cls(kind, name, type_, memory)

    def head(self) -> list[Any]:
        return [self._taken, self._tree._head()]

    def __len__(self) -> int:
        return len(self._tree) + (0 if self.settled is None else self.settled.entries())

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that have entries, ascending: int64; O(entries)."""
        return self._tree.ids()

    def announce(self, ids: np.ndarray) -> None:
        """Do nothing: no contents are loaded one by one."""

    def count_losses(self) -> int:
        return self._tree.losses - self._taken

    # The methods of `timerheap.spark._settling.settling_parts.SettlingContents`:

    def entries(self, ids: np.ndarray) -> np.ndarray:
        count: np.ndarray = self._tree.totals(ids)[1]
        return count

    def in_table(self, ids: np.ndarray) -> pa.Array:
        return without_empty(self.get_many(ids))

    def take_out(self, ids: np.ndarray) -> None:
        before = self._tree.losses
        self._tree.add(*self._picked(ids, PICK_ALL))
        self._taken += self._tree.losses - before

    def put_back(self, ids: np.ndarray, contents: pa.Array) -> None:
        self._put(ids, contents)

    def hot_bytes(self) -> float:
        return self._tree.used_nbytes

    # Reads.

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Return the entries of many keys, in the order of values: lists with 64-bit offsets, shape (n,)."""
        return self._lists(*self._tree.pick(ids, PICK_ALL))

    def first_many(self, ids: np.ndarray, n: int | np.ndarray, counts: str = "rows") -> pa.Array:
        """Return the first entries of many keys, of positive weights: lists with 64-bit offsets.

        n: one number, or one for each key
        counts: what `n` says. "rows": until the weights add up to it, the last one cut to that. "ties":
            these, whole, and all that equal the last one in the fields that the order names. "leads": all
            that have one of the first `n` values of these fields.
        """
        return self._lists(*self._tree.pick(ids, _PICKS[counts], n))

    def last_many(self, ids: np.ndarray, n: int | np.ndarray, counts: str = "rows") -> pa.Array:
        """Return the last entries of many keys, the last one first; otherwise as `first_many`."""
        return self._lists(*self._tree.pick(ids, _PICKS[counts], n, backwards=True))

    def totals(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the positive weights of each key add up to, and how many these are: int64."""
        return self._tree.totals(ids)

    def _lists(self, lengths: np.ndarray, codes: Codes, weights: np.ndarray) -> pa.Array:
        return lists_of(
            _weighted_entries(self._codes.decoded(codes), weights, self._wide), lengths, self.type
        )

    # Writes.

    def add_many(self, ids: np.ndarray, values: pa.Array, weights: np.ndarray) -> Touched:
        """Add values with weights to the multisets of `ids`: each of shape (n,); any may be repeated."""
        if wide(values.type) != self._codes.type:
            type_ = self.type.value_type.field("value").type
            raise ArgumentTypeError(f"state {self.name!r}: values must be of {type_}, got {values.type}")
        if not len(ids) == len(values) == len(weights):
            raise ArgumentValueError(
                f"state {self.name!r}: there must be a value and a weight for each id, got {len(ids)} ids, "
                f"{len(values)} values and {len(weights)} weights"
            )
        values = widen_column(values)
        return self._add(ids, self._codes.encoded(values), weights)

    def give_up_missing(self, touched: Touched) -> None:
        """Let removals of values that are not there wait for them no longer."""
        missing = touched.after < 0
        if missing.any():
            values = touched.values.filter(pa.array(missing))
            self.add_many(touched.ids[missing], values, -touched.after[missing])

    def keep_first_many(self, ids: np.ndarray, n: int | np.ndarray) -> Touched:
        """Remove what follows the first entries of distinct keys, whose weights add up to `n`."""
        return self._add(*self._picked(ids, PICK_REST, n))

    def clear_many(self, ids: np.ndarray) -> None:
        """Remove the contents of many keys, whose ids may be repeated: int64, shape (n,)."""
        owners, codes, weights = self._picked(distinct_ids(ids), PICK_ALL)
        self._tree.add(owners, codes, weights)
        gone = distinct_ids(owners)
        nothing = lists_of(pa.array([], self._wide.value_type), np.zeros(len(gone), np.int64), self.type)
        self._journal.append(Edits(gone, np.ones(len(gone), bool), nothing))

    def _picked(
        self, ids: np.ndarray, kind: int, n: int | np.ndarray = 0
    ) -> tuple[np.ndarray, Codes, np.ndarray]:
        """Return entries of distinct keys, each with its id, and the weights that remove them."""
        lengths, codes, weights = self._tree.pick(ids, kind, n)
        return np.repeat(ids, lengths), codes, -weights

    def _add(self, ids: np.ndarray, codes: Codes, weights: np.ndarray) -> Touched:
        rows, before, after = self._tree.add(ids, codes, weights)
        found = Touched(np.asarray(ids)[rows], self._codes.decoded(codes.take(rows)), before, after)
        self._journal.append(
            _edits(found.ids, _weighted_entries(found.values, after - before, self._wide), self.type)
        )
        return found

    # The methods of `timerheap.spark._group.stored.parts.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        journal, self._journal = [each for each in self._journal if len(each.ids)], []
        if not journal:
            return None
        if len(journal) == 1 and self._codes is self._natural and not journal[0].replaces.any():
            return batch_of(journal[0], self.schema)  # of one call, sorted and added up
        edits = _with_effect(Edits.concatenated(journal).composed(self._compact))
        return batch_of(self._sorted(edits), self.schema) if len(edits.ids) else None

    def snapshot(self) -> pa.RecordBatch:
        ids = self.ids()
        more = None if self.settled is None else self.settled.items()
        edits = Edits.whole(ids, self.get_many(ids), more)
        return batch_of(edits if self._codes is self._natural else self._sorted(edits), self.schema)

    def replay(self, batch: pa.RecordBatch) -> None:
        if wide_rows(batch.schema) != wide_rows(self.schema) or any(c.null_count for c in batch.columns):
            raise DamagedCheckpointError(
                f"a chunk of state {self.name!r} has the columns {batch.schema}, not {self.schema}"
            )
        edits = edits_of(batch)
        entries = edits.rows.flatten()
        if entries.null_count or entries.field("weight").null_count:
            raise DamagedCheckpointError(f"a chunk of state {self.name!r} has entries without a weight")
        try:
            edits = edits.composed(self._compact)
            if len(self._tree):
                self._tree.add(*self._picked(edits.ids[edits.replaces], PICK_ALL))
            self._put(edits.ids, edits.rows)
        except ArgumentRangeError as e:
            raise DamagedCheckpointError(
                f"a chunk of state {self.name!r} has weights that are too large"
            ) from e

    def _put(self, ids: np.ndarray, rows: pa.Array) -> None:
        entries, owners = rows.flatten(), np.repeat(ids, np.asarray(rows.value_lengths()))
        codes = self._codes.encoded(entries.field("value"))
        self._tree.add(owners, codes, entries.field("weight").to_numpy())

    def reserve(self, times: float) -> None:
        """Do nothing: the tree grows by itself."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        edits = Edits.concatenated([edits_of(batch) for batch in batches]).composed(self._compact)
        return batch_of(self._sorted(_with_effect(edits)), self.schema)

    def _compact(self, rows: pa.Array, whole: np.ndarray) -> pa.Array:
        return _added_up(rows, self._natural)

    def _sorted(self, edits: Edits) -> Edits:
        """Return edits by id, with the entries of each in the natural order, as chunks have them."""
        if (np.diff(edits.ids) < 0).any():
            edits = edits.take(np.argsort(edits.ids))
        return Edits(edits.ids, edits.replaces, _added_up(edits.rows, self._natural))


def _with_effect(edits: Edits) -> Edits:
    """Return the edits that change something: those of weights that have come to zero do not."""
    return edits.take(edits.replaces | (np.asarray(edits.rows.value_lengths()) > 0))


def _edits(ids: np.ndarray, entries: pa.Array, type_: pa.DataType) -> Edits:
    """Return entries, by ids, as edits with one row for each id."""
    starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 1))
    lengths = np.diff(starts, append=len(ids))
    return Edits(ids[starts], np.zeros(len(starts), bool), lists_of(entries, lengths, type_))


def _weighted_entries(values: pa.Array, weights: np.ndarray, type_: pa.DataType) -> pa.Array:
    return pa.StructArray.from_arrays([values, pa.array(weights)], fields=list(type_.value_type))


def _added_up(rows: pa.Array, codes: ValueCodes) -> pa.Array:
    """Return multisets with each value once, in the order of `codes`, without weights of 0: shape (n,)."""
    entries = rows.flatten()
    if not len(entries):
        return rows
    owners = np.repeat(np.arange(len(rows)), np.asarray(rows.value_lengths()))
    at, sums = add_up(owners, codes.encoded(entries.field("value")), entries.field("weight").to_numpy())
    at, sums = at[sums != 0], sums[sums != 0]
    values = entries.field("value").take(pa.array(at))
    return lists_of(
        _weighted_entries(values, sums, rows.type), np.bincount(owners[at], minlength=len(rows)), rows.type
    )
