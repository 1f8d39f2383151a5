"""A KeyTable equals a dict from key to id for any keys and hashes, including colliding ones."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from made_keys import colliding_pairs, colliding_texts
from memories import Arena

from timerheap.spark._arrow import narrow, widen
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.stored.chunks import read_chunk, write_chunk
from timerheap.spark._group.stored.kinds import KEYS
from timerheap.spark._memory.id_table import IdTable

NAN = math.nan
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
FIELDS = [pa.field("plane", pa.string()), pa.field("n", pa.int64())]
KEYS_OF_TWO = st.tuples(st.sampled_from([None, "", "a", "b", "Zoë"]), st.none() | st.integers(0, 9))


def few_hashes(key: tuple[str | None, int | None]) -> int:
    """Return one of four hashes, two of them adjacent and two at the ends of int64."""
    return [5, 6, INT64_MAX, INT64_MIN][(len(key[0] or "") + (key[1] or 0)) % 4]


def columns(keys: list[tuple[Any, ...]], fields: list[pa.Field]) -> list[pa.Array]:
    return [pa.array([key[i] for key in keys], field.type) for i, field in enumerate(fields)]


def resolve(
    table: KeyTable, keys: list[tuple[Any, ...]], hashes: list[int], fields: list[pa.Field]
) -> list[int]:
    ids, places = table.locate(np.array(hashes, np.int64), columns(keys, fields))
    assert places.tolist() == table.table.places(ids).tolist()
    return ids.tolist()


class Machine(RuleBasedStateMachine):
    """Compares the table, and a copy that is restored from its checkpoint, with a dict."""

    new_table = KeyTable

    def __init__(self) -> None:
        super().__init__()
        self.memory = Arena()
        self.table = self.new_table(FIELDS, self.memory)
        self.model: dict[tuple[str | None, int | None], int] = {}
        self.chunks: list[bytes] = []

    @rule(keys=st.lists(KEYS_OF_TWO, max_size=30))
    def rows_come(self, keys: list[tuple[str | None, int | None]]) -> None:
        ids = resolve(self.table, keys, [few_hashes(key) for key in keys], FIELDS)
        for key, id_ in zip(keys, ids, strict=True):
            assert self.model.setdefault(key, id_) == id_, "a live key keeps its id"
        assert len(set(self.model.values())) == len(self.model), "no two live keys share an id"

    @rule(dead=st.sets(KEYS_OF_TWO, max_size=30), anew=st.booleans())
    def batch_ends(self, dead: set[tuple[str | None, int | None]], anew: bool) -> None:
        self.model = {key: id_ for key, id_ in self.model.items() if key not in dead}
        live = [*self.model.values()]
        self.table.retain([np.array(live[::2], np.int64), np.array(live[1:], np.int64)])
        self.save(anew)

    @rule(anew=st.booleans())
    def save(self, anew: bool) -> None:
        changes = self.table.changes()
        if anew:
            snapshot = self.table.snapshot()
            self.chunks = [self.written(snapshot)] if snapshot.num_rows else []
        elif changes is not None:
            self.chunks.append(self.written(changes))

    def written(self, batch: pa.RecordBatch) -> bytes:
        return write_chunk(KEYS, narrow(batch, self.table.schema))

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.chunks)))
        stop = data.draw(st.integers(start, len(self.chunks)))
        if start < stop:
            batches = [read_chunk(KEYS, chunk, self.table.schema) for chunk in self.chunks[start:stop]]
            self.chunks[start:stop] = [self.written(self.table.merge([*map(widen, batches)]))]

    @rule()
    def go_on_in_another_process(self) -> None:
        self.save(anew=False)
        self.table = self.new_table(FIELDS, self.memory, json.loads(json.dumps(self.table.head())))

    @rule()
    def reload(self) -> None:
        self.save(anew=False)
        self.memory = Arena()
        self.table = self.new_table(FIELDS, self.memory)
        for chunk in self.chunks:
            self.table.replay(read_chunk(KEYS, chunk, self.table.schema))
        assert self.table.changes() is None

    @invariant()
    def ids_give_the_keys_back(self) -> None:
        assert len(self.table) == len(self.model)
        ids = np.array([*self.model.values()], np.int64)
        assert [tuple(row.values()) for row in self.table.keys(ids).to_pylist()] == [*self.model]


class CrowdedTable(KeyTable):
    """Has second hashes that collide in the first rounds."""

    def _second_hashes(self, columns: list[pa.Array], n: int, round_: int) -> np.ndarray:
        hashes = super()._second_hashes(columns, n, round_)
        return hashes % 3 if round_ < 2 else hashes


class CrowdedMachine(Machine):
    new_table = CrowdedTable


TestKeyTable = Machine.TestCase
TestKeyTable.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
TestCrowdedTable = CrowdedMachine.TestCase
TestCrowdedTable.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


def test_an_id_equals_the_hash_if_the_hash_is_free() -> None:
    table = KeyTable(FIELDS)
    keys = [("a", 1), ("b", 2), ("a", 1), ("c", 3)]
    assert resolve(table, keys, [40, 30, 40, 20], FIELDS) == [40, 30, 40, 20]
    assert resolve(table, [("c", 3), ("d", 4), ("e", 5)], [20, 20, 21], FIELDS) == [20, 22, 21]


def test_the_id_of_a_displaced_key_may_equal_another_hash() -> None:
    table = KeyTable(FIELDS)
    assert resolve(table, [("a", 1), ("b", 2)], [7, 7], FIELDS) == [7, 8]
    assert resolve(table, [("c", 3), ("b", 2)], [8, 7], FIELDS) == [9, 8]
    table.retain([np.array([8, 9])])
    assert resolve(table, [("c", 3), ("b", 2), ("d", 4)], [8, 7, 7], FIELDS) == [9, 8, 7]


def test_ids_wrap_around_at_the_end_of_int64() -> None:
    table = KeyTable(FIELDS)
    keys = [("a", 1), ("b", 2), ("c", 3)]
    assert resolve(table, keys, [INT64_MAX] * 3, FIELDS) == [INT64_MAX, INT64_MIN, INT64_MIN + 1]


def test_displaced_keys_get_the_next_ids_that_are_free() -> None:
    table = KeyTable(FIELDS)
    run = list(range(200))
    assert resolve(table, [("a", n) for n in run], run, FIELDS) == run
    assert resolve(table, [("b", n) for n in range(3)], [7, 150, 8], FIELDS) == [200, 201, 202]
    table.retain([np.array([*run, 200, 201])])
    restored = KeyTable(FIELDS)
    restored.replay(table.snapshot())
    for one in (table, restored):
        assert resolve(one, [("c", 1), ("b", 1)], [0, 150], FIELDS) == [202, 201]


@pytest.mark.parametrize("kind", ["pairs", "texts"])
def test_the_cost_of_keys_with_one_hash_is_linear(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in rows that a column was compared, looked up or read for, over a micro-batch and 20 more."""
    n = 8_000
    arrays = colliding_pairs(n, 7) if kind == "pairs" else [pa.array(colliding_texts(n, 7))]
    columns = [pa.array(column) for column in arrays]
    rows = 0

    def counted(method: Any) -> Any:
        def call(table: Any, ids: np.ndarray, *rest: Any) -> Any:
            nonlocal rows
            rows += len(ids)
            return method(table, ids, *rest)

        return call

    for method in ("match", "find", "get", "places", "put"):
        monkeypatch.setattr(IdTable, method, counted(getattr(IdTable, method)))
    fields = [pa.field(f"k{k}", column.type) for k, column in enumerate(columns)]
    memory, hashes = Arena(), np.full(n, 7)
    table = KeyTable(fields, memory)
    ids = np.empty(n, np.int64)
    for start, stop in [(0, n // 2), *((k * n // 40, (k + 1) * n // 40) for k in range(20, 40))]:
        part = slice(start, stop)
        ids[part] = table.resolve(hashes[part], [column[start:stop] for column in columns])
        table.changes()
        table = KeyTable(fields, memory, json.loads(json.dumps(table.head())))
    assert len(set(ids.tolist())) == n
    assert rows < 20 * n
    assert table.resolve(hashes, columns).tolist() == ids.tolist()
    table.retain([ids[::2]])
    assert len(table) == n // 2
    assert table.resolve(hashes[1:], [column[1:] for column in columns])[1::2].tolist() == ids[2::2].tolist()
    assert rows < 40 * n


ODD = {
    "double": (pa.float64(), [NAN, 1.5, math.inf], lambda: float("nan"), NAN),
    "zeros": (pa.float64(), [0.0, 1.5], lambda: -0.0, 0.0),
    "float": (pa.float32(), [NAN, 1.5], lambda: float("nan"), NAN),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("hashes", [[1, 2, 3], [1, 1, 1]], ids=["apart", "colliding"])
def test_all_nans_are_one_key_and_both_zeros_are_one_key(odd: str, hashes: list[int]) -> None:
    type_, values, again, same = ODD[odd]
    fields = [pa.field("x", type_)]
    table = KeyTable(fields)
    keys = [(value,) for value in values]
    ids = resolve(table, keys, hashes[: len(keys)], fields)
    assert len(set(ids)) == len(keys)
    position = values.index(same)
    for _ in range(3):
        assert resolve(table, [(again(),)], [hashes[position]], fields) == [ids[position]]
        assert (
            resolve(table, [(again(),), *keys], [hashes[position], *hashes[: len(keys)]], fields)[1:] == ids
        )
    assert len(table) == len(keys)
    restored = KeyTable(fields)
    restored.replay(table.snapshot())
    assert resolve(restored, [(again(),), *keys], [hashes[position], *hashes[: len(keys)]], fields)[1:] == ids
    assert len(restored) == len(keys)


@pytest.mark.parametrize("hashes", [[1, 2, 3], [1, 1, 1]], ids=["apart", "colliding"])
@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.int8(), [-128, 0, 127]),
        (pa.int64(), [INT64_MIN, 0, INT64_MAX]),
        (pa.string(), ["", "\0", "ß"]),
        (pa.binary(), [b"", b"\0", b"\xff"]),
        (pa.date32(), [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]),
        (pa.decimal128(10, 2), [decimal.Decimal("-1.10"), decimal.Decimal("0.00"), decimal.Decimal("1.10")]),
        (
            pa.timestamp("us", "UTC"),
            [datetime.datetime(y, 1, 1, tzinfo=datetime.UTC) for y in (1, 1970, 9999)],
        ),
        (pa.timestamp("us"), [datetime.datetime(y, 1, 1) for y in (1, 1970, 9999)]),
        (pa.duration("us"), [datetime.timedelta(days) for days in (-1, 0, 1)]),
    ],
    ids=str,
)
def test_keys_of_any_type_are_resolved_and_restored(
    type_: pa.DataType, values: list[Any], hashes: list[int]
) -> None:
    fields = [pa.field("k", type_)]
    table = KeyTable(fields)
    values = [*values, None]
    hashes = [*hashes[: len(values) - 1], 1]  # null has the same hash as a value
    keys = [(value,) for value in values]
    ids = resolve(table, keys, hashes, fields)
    assert len(set(ids)) == len(keys)
    restored = KeyTable(fields)
    stored = narrow(table.snapshot(), table.schema)
    restored.replay(read_chunk(KEYS, write_chunk(KEYS, stored), table.schema))
    for one in (table, restored):
        assert resolve(one, keys[::-1], hashes[::-1], fields) == ids[::-1]
        assert one.keys(np.array(ids)).column(0).to_pylist() == values
        assert len(one) == len(keys)


@pytest.mark.parametrize("hashes", [[5, 6, 7, 8], [5, 5, 5, 5]], ids=["apart", "colliding"])
def test_keys_with_nulls_in_different_columns_differ(hashes: list[int]) -> None:
    keys = [(None, 0), ("", None), (None, None), ("", 0)]
    table = KeyTable(FIELDS)
    ids = resolve(table, keys, hashes, FIELDS)
    assert len(set(ids)) == 4
    restored = KeyTable(FIELDS)
    restored.replay(table.snapshot())
    assert resolve(restored, keys[::-1], hashes[::-1], FIELDS) == ids[::-1]
    assert restored.keys(np.array(ids)).to_pylist() == [{"plane": k, "n": n} for k, n in keys]


def test_a_key_of_nulls_is_added_if_its_hash_was_displaced() -> None:
    """The free hash looks like a row of nulls, but it is not this key."""
    table = KeyTable(FIELDS)
    (_, displaced) = resolve(table, [("a", 1), ("b", 2)], [7, 7], FIELDS)
    table.retain([np.array([displaced])])
    assert resolve(table, [(None, None)], [7], FIELDS) == [7]
    assert len(table) == 2


def test_an_unknown_id_raises_and_is_named() -> None:
    table = KeyTable(FIELDS)
    resolve(table, [("a", 1)], [5], FIELDS)
    with pytest.raises(KeyError, match=r"ids must be ids of live keys, got 77 \(1 unknown of 2\)"):
        table.keys(np.array([5, 77]))


def test_a_checkpoint_with_other_key_types_raises() -> None:
    table = KeyTable(FIELDS)
    resolve(table, [("a", 1)], [5], FIELDS)
    with pytest.raises(ValueError, match=r"^key must have the types of .*int64.*, got .*string"):
        KeyTable([FIELDS[0]]).replay(table.snapshot())


def test_a_key_that_is_dropped_twice_between_saves_is_dropped_in_the_checkpoint() -> None:
    fields = [pa.field("k", pa.string())]
    table, restored = KeyTable(fields), KeyTable(fields)
    for n in range(3):
        table.resolve(np.array([7, 8]), [pa.array(["a", f"b{n}"])])
        if not n:
            restored.replay(table.changes())
        table.retain([np.array([], np.int64)])
    restored.replay(table.changes())
    assert len(restored) == len(table) == 0


def test_a_chunk_of_a_key_that_is_displaced_and_dropped_raises() -> None:
    table = KeyTable([pa.field("k", pa.string())])
    rows = [{"id": 5, "key": {"hash": 4, "k0": "a"}}, {"id": 5, "key": None}]
    with pytest.raises(ValueError, match="a displaced id must be that of a key"):
        table.replay(pa.RecordBatch.from_pylist(rows, schema=table.schema))


def test_dropped_keys_leave_no_memory_behind() -> None:
    table = KeyTable(FIELDS)
    for batch in range(50):
        keys = [(f"plane {batch}", n) for n in range(20)]
        ids = resolve(table, keys, [n // 2 for n in range(20)], FIELDS)
        assert len(set(ids)) == 20
        table.retain([])
        assert table.changes() is None, "keys both added and dropped within a batch are not saved"
        assert len(table) == 0
    assert len(table._displaced) == 0


@pytest.mark.parametrize("hashes", [[1, 2, 3, 4], [1, 1, 1, 1]], ids=["apart", "colliding"])
def test_a_failed_allocation_leaves_a_table_that_goes_on(hashes: list[int]) -> None:
    known, keys = [("a", 1), ("b", 2)], [("a", 1), ("b", 2), ("c" * 99, 3), ("d" * 99, 4)]
    for allowed in range(100):
        memory = Arena()
        table = KeyTable(FIELDS, memory)
        ids = resolve(table, known, hashes[:2], FIELDS)
        memory.allowed = allowed
        try:
            resolve(table, keys, hashes, FIELDS)
        except MemoryError:
            memory.allowed = None
            assert resolve(table, known, hashes[:2], FIELDS) == ids
            every = resolve(table, keys, hashes, FIELDS)
            assert every[:2] == ids
            assert len(set(every)) == 4
            assert [tuple(row.values()) for row in table.keys(np.array(every)).to_pylist()] == keys
        else:
            break
    assert allowed


def test_places_are_right_when_new_keys_have_the_old_ones_moved() -> None:
    table = KeyTable([pa.field("name", pa.string())])
    hashes = np.arange(20_000)
    names = pa.array([f"name {hash_}" for hash_ in hashes])
    table.resolve(hashes[:1_000], [names[:1_000]])
    table.retain([hashes[10:1_000]])
    before = table.table.places(hashes[10:1_000])
    ids, places = table.locate(hashes, [names])
    assert ids.tolist() == hashes.tolist()
    assert places.tolist() == table.table.places(hashes).tolist()
    assert places[10:1_000].tolist() != before.tolist()
