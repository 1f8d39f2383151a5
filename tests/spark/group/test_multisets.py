"""Multisets in an order: what is read of them equals a plain model, however they are kept."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import GroupStore
from live_files import handed_over, live_file
from memories import Arena

from timerheap.errors import ArgumentRangeError, ArgumentTypeError, DamagedCheckpointError
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.multiset_state import multiset_of, order_of
from timerheap.spark._group.saving import Stored, loaded_group
from timerheap.spark._group.stored.chunks import pieces, read_chunk, write_chunk
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.user_states import attached_state, head_of, new_state, restored_state
from timerheap.spark._memory.value_codes import Direction

ROW = pa.struct([("x", pa.float64()), ("s", pa.string()), ("n", pa.int64())])
ORDERS = {
    "descending, then text": [Direction(descending=True, nulls_first=False), Direction()],
    "nulls last": [Direction(nulls_first=False)],
    "none": [],
}
Model = dict[tuple[int, Any], int]


def rank_of(value: Any, way: Direction) -> tuple[Any, ...]:
    """Return what orders a value of x, s or n."""
    if value is None:
        return (0 if way.nulls_first else 2,)
    if isinstance(value, str):
        number = [ord(each) for each in value] + [0] * (5 - len(value))
    else:
        number = [1e300 if math.isnan(value) else value + 0.0]
    return 1, *(-each if way.descending else each for each in number)


def lead(row: Any, order: list[Direction]) -> tuple[Any, ...]:
    return tuple(rank_of(value, way) for value, way in zip(row, order, strict=False))


def full_order(row: Any, order: list[Direction]) -> tuple[Any, ...]:
    """Return the lead of a row, in which -0.0 equals 0.0, and what decides after it."""
    positive = row[0] != 0 or math.copysign(1, row[0]) > 0
    of_x = [] if order else [rank_of(row[0], Direction())]
    rest = [rank_of(value, Direction()) for value in row[max(1, len(order)) :]]
    return lead(row, order), of_x, positive, rest


def first_of(model: Model, key: int, order: list[Direction], n: int, counts: str, last: bool) -> list[Any]:
    rows = sorted(
        ((row, weight) for (of, row), weight in model.items() if of == key and weight > 0),
        key=lambda each: full_order(_with_nan(each[0]), order),
        reverse=last,
    )
    found, before, leads, rank, seen = [], 0, 0, 0, None
    for row, weight in rows:
        if seen is None or lead(_with_nan(row), order) != seen:
            seen, leads, rank = lead(_with_nan(row), order), leads + 1, before + 1
        kept = {
            "rows": max(0, min(weight, n - before)),
            "ties": weight if rank <= n else 0,
            "leads": weight if leads <= n else 0,
        }[counts]
        before += weight
        if kept:
            found.append((row, kept))
    return found


def _with_nan(row: Any) -> Any:
    return (float(row[0]) if row[0] is not None else None, *row[1:])


def plain(value: Any) -> Any:
    """Return a row as a key of the model: the text of its x, in which NaN equals NaN and -0.0 is not 0.0."""
    return None if value["x"] is None else repr(value["x"]), value["s"], value["n"]


def entries(lists: pa.Array) -> list[list[Any]]:
    return [[(plain(each["value"]), each["weight"]) for each in one] for one in lists.to_pylist()]


def touched(found: Any) -> list[Any]:
    columns = (
        found.ids.tolist(),
        map(plain, found.values.to_pylist()),
        found.before.tolist(),
        found.after.tolist(),
    )
    return list(zip(*columns, strict=True))


def random_rows(rng: np.random.Generator, n: int) -> pa.Array:
    x = [[None, math.nan, 0.0, -0.0, 1.5, -1.5, 2.0][int(i)] for i in rng.integers(0, 7, n)]
    s = [[None, "", "a", "ab", "b\0"][int(i)] for i in rng.integers(0, 5, n)]
    return pa.StructArray.from_arrays(
        [
            pa.array(x, pa.float64(), from_pandas=False),
            pa.array(s, pa.string()),
            pa.array(rng.integers(0, 3, n)),
        ],
        fields=list(ROW),
    )


def layout() -> GroupLayout:
    rows = pa.schema([("k", pa.int64())])
    return GroupLayout(key_fields=list(rows), rows=rows, order="event_time", drop_state=(), rename_state={})


def written(state: Any, batch: pa.RecordBatch) -> list[bytes]:
    return [write_chunk(64, piece) for piece in pieces(batch, state.schema)]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", ORDERS)
def test_multisets_equal_a_plain_model(name: str) -> None:
    order = ORDERS[name]
    rng, model = np.random.default_rng(sum(map(ord, name))), Model()
    group, store = KeyGroup(layout(), live_file()), GroupStore()
    stored = Stored(Manifest(1))
    for step in range(80):
        bag: Any = group.state("bag", "multiset", multiset_of(ROW, order))
        n = int(rng.integers(0, 60))
        rows, weights = random_rows(rng, n), rng.choice([-1, 1, 1, 2], n)
        keys = rng.integers(0, 5, n)
        ids = group.keys.resolve(keys, [pa.array(keys)]) if n else np.array([], np.int64)
        expected: Model = {}
        for key, row, weight in zip(ids.tolist(), rows.to_pylist(), weights.tolist(), strict=True):
            expected[key, plain(row)] = expected.get((key, plain(row)), 0) + weight
        expected = {at: weight for at, weight in expected.items() if weight}
        before = {at: model.get(at, 0) for at in expected}
        found = touched(bag.add_many(ids, rows, weights))
        assert [at for at, *_ in found] == sorted(at for at, *_ in found)
        assert {(key, row): (was, now) for key, row, was, now in found} == {
            at: (before[at], before[at] + weight) for at, weight in expected.items()
        }
        model = {**model, **{at: before[at] + weight for at, weight in expected.items()}}
        model = {at: weight for at, weight in model.items() if weight}
        every = np.arange(1, 7)
        if step % 7 == 3:
            bag.clear_many(np.array([1, 1, 6]))
            model = {at: weight for at, weight in model.items() if at[0] != 1}
        if step % 5 == 2:
            found = touched(bag.keep_first_many(np.array([2]), 9))
            kept = dict(first_of(model, 2, order, 9, "rows", last=False))
            positive = {row: weight for (key, row), weight in model.items() if key == 2 and weight > 0}
            changed = [(row, w, kept.get(row, 0)) for row, w in positive.items() if w != kept.get(row, 0)]
            assert sorted(map(repr, found)) == sorted(repr((2, *each)) for each in changed)
            model = {at: w for at, w in model.items() if at[0] != 2 or w < 0 or at[1] in kept}
            model |= {(2, row): weight for row, weight in kept.items()}
        for counts in ("rows", "ties", "leads"):
            for top in (0, 1, 4):
                first = [first_of(model, key, order, top, counts, last=False) for key in every.tolist()]
                assert entries(bag.first_many(every, top, counts)) == first
                last = [first_of(model, key, order, top, counts, last=True) for key in every.tolist()]
                assert entries(bag.last_many(every, top, counts)) == last
        counted = [[w for (of, _), w in model.items() if of == key and w > 0] for key in every.tolist()]
        assert [column.tolist() for column in bag.totals(every)] == [
            [*map(sum, counted)],
            [*map(len, counted)],
        ]
        stored.save(store, group, b"", whole=step % 20 == 19)
        if step % 3 == 1:
            group, stored = handed_over(group, store)
        elif step % 3 == 2:  # under a different order, too
            group, stored = loaded_group(store, store.read_manifest(), layout(), live_file())
            order = ORDERS[[*ORDERS][step % len(ORDERS)]]


def test_what_is_saved_depends_on_the_contents_alone() -> None:
    rng = np.random.default_rng(5)
    rows, ids = random_rows(rng, 500), rng.integers(0, 20, 500)
    snapshots, changes = [], []
    for order in ORDERS.values():
        state = new_state(64, "bag", "multiset", multiset_of(ROW, order))
        for part in np.array_split(rng.permutation(500), 9):
            state.add_many(ids[part], rows.take(pa.array(part)), np.ones(len(part), np.int64))
        changes.append(written(state, state.changes()))
        snapshots.append(written(state, state.snapshot()))
    assert snapshots[0] == snapshots[1] == snapshots[2]
    assert changes[0] == changes[1] == changes[2]


def test_the_order_is_in_the_schema_and_in_the_head() -> None:
    order = [Direction(descending=True)]
    memory = Arena()
    state = new_state(64, "bag", "multiset", multiset_of(pa.int64(), order), memory)
    state.add_many(np.array([1, 1]), pa.array([3, 5]), np.array([1, 1]))
    state.changes()
    schema = pa.ipc.read_schema(state.schema.serialize())
    for other in (
        restored_state(64, "bag", schema),
        attached_state(memory, json.loads(json.dumps(head_of(state)))),
    ):
        assert order_of(other.type) == order
    assert other.first_many(np.array([1]), 1).to_pylist() == [[{"value": 5, "weight": 1}]]


def test_a_write_that_fails_changes_nothing() -> None:
    memory = Arena()
    state = new_state(64, "bag", "multiset", multiset_of(pa.string()), memory)
    state.add_many(np.array([1]), pa.array(["a"]), np.array([2]))
    before = written(state, state.snapshot())
    state.changes()
    memory.allowed = 0
    many = pa.array([f"a long text with the number {n}" for n in range(5000)])
    with pytest.raises(MemoryError):
        state.add_many(np.zeros(5000, np.int64), many, np.ones(5000, np.int64))
    with pytest.raises(ArgumentRangeError, match="must add up to an integer"):
        state.add_many(np.array([2, 1]), pa.array(["a", "a"]), np.array([1, 2**63 - 1]))
    assert state.changes() is None
    assert written(state, state.snapshot()) == before


def test_no_reserve_or_announcement_is_needed() -> None:
    state = new_state(64, "bag", "multiset", multiset_of(pa.int64()))
    state.reserve(2.0)
    state.announce(np.array([1]))
    assert state.get_many(np.array([1])).to_pylist() == [[]]
    assert state.changes() is None


def test_an_order_must_fit_the_values() -> None:
    with pytest.raises(ArgumentTypeError, match="order must be of at most 1 fields for int64, got 2"):
        multiset_of(pa.int64(), [Direction(), Direction()])


ENTRY = multiset_of(pa.int64()).value_type


@pytest.mark.parametrize(
    "type_",
    [
        pa.int64(),
        pa.list_(pa.int64()),
        pa.list_(pa.struct([("value", pa.int64())])),
        pa.list_(pa.struct([("value", pa.list_(pa.int64())), ("weight", pa.int64())])),
        pa.list_(pa.struct([("value", pa.int64()), ("weight", pa.int32())])),
        *(
            pa.list_(pa.field("entry", ENTRY, metadata={"order": each}))
            for each in ("x", "[3]", "[[1,1],[1,1]]", "{}5")
        ),
    ],
    ids=repr,
)
def test_a_hostile_schema_is_damage(type_: pa.DataType) -> None:
    schema = pa.schema([("key_hash", pa.int64()), ("replaces", pa.bool_()), ("multiset", type_)])
    with pytest.raises(DamagedCheckpointError, match="a chunk of state 'bag' has the columns"):
        restored_state(64, "bag", schema)


def chunk(state: Any, ids: list[int], replaces: list[bool], rows: list[Any]) -> pa.RecordBatch:
    columns = [pa.array(ids), pa.array(replaces), pa.array(rows, state.type)]
    batch = pa.RecordBatch.from_arrays(columns, schema=state.schema)
    return read_chunk(64, write_chunk(64, batch), state.schema)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[None]], "entries without a weight"),
        ([[{"value": 1, "weight": None}]], "entries without a weight"),
        ([None], "has the columns"),
        ([[{"value": 1, "weight": 2**63 - 1}] * 2], "weights that are too large"),
        ([[{"value": 1, "weight": -(2**63)}]], "weights that are too large"),
    ],
)
def test_a_hostile_chunk_is_damage(rows: list[Any], text: str) -> None:
    state = new_state(64, "bag", "multiset", multiset_of(pa.int64()))
    with pytest.raises(DamagedCheckpointError, match=text):
        state.replay(chunk(state, [1], [False], rows))
    assert not len(state)


def test_rows_of_one_key_in_a_chunk_apply_in_order() -> None:
    state = new_state(64, "bag", "multiset", multiset_of(pa.int64()))
    one, two = [{"value": 1, "weight": 1}], [{"value": 2, "weight": 1}]
    state.replay(chunk(state, [7, 8, 7, 7], [False, False, True, False], [one, one, two, two]))
    assert state.get_many(np.array([7, 8])).to_pylist() == [[{"value": 2, "weight": 2}], one]
    state.replay(chunk(state, [7], [True], [one]))
    assert state.get_many(np.array([7])).to_pylist() == [one]
