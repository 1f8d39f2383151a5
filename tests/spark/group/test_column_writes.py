"""Lists, maps and multisets written in columns, through saves, loads, hand-overs and erasures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import GroupStore
from live_files import handed_over, live_file

from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.multiset_state import multiset_of
from timerheap.spark._group.saving import Stored, loaded_group
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.user_states import UserState

LIST, MAP, BAG = pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()), multiset_of(pa.string())
KEYS = 12
Model = dict[int, Any]


def layout(**changes: Any) -> GroupLayout:
    rows = pa.schema([("k", pa.int64())])
    fields = {"drop_state": (), "rename_state": {}} | changes
    return GroupLayout(key_fields=list(rows), rows=rows, order="event_time", **fields)


def states(group: KeyGroup, bag: pa.DataType = BAG) -> tuple[Any, ...]:
    shapes = ("log", "list", LIST), ("book", "map", MAP), ("bag", "multiset", bag)
    return tuple(group.state(*each) for each in shapes)


def contents(state: UserState) -> Model:
    ids = np.sort(state.ids())
    return dict(zip(ids.tolist(), state.get_many(ids).to_pylist(), strict=True))


def check(group: KeyGroup, logs: Model, books: Model, bags: dict[int, Counter[str]]) -> None:
    log, book, bag = states(group)
    assert contents(log) == {key: elements for key, elements in logs.items() if elements}
    assert contents(book) == {key: [*entries.items()] for key, entries in books.items() if entries}
    counted = {key: sorted((v, n) for v, n in values.items() if n) for key, values in bags.items()}
    found = {
        key: [(each["value"], each["weight"]) for each in values] for key, values in contents(bag).items()
    }
    assert found == {key: values for key, values in counted.items() if values}


@pytest.mark.parametrize("seed", range(3))
def test_states_written_in_columns_equal_a_plain_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group, store = KeyGroup(layout(), live_file()), GroupStore()
    stored = Stored(Manifest(1))
    logs: Model = {}
    books: Model = {}
    bags: dict[int, Counter[str]] = {}
    for step in range(60):
        log, book, bag = states(group)
        n = int(rng.integers(0, 30))
        ids = group.keys.resolve(rng.integers(0, KEYS, n), [pa.array(rng.integers(0, 1, n))]) if n else None
        ids = np.array([], np.int64) if ids is None else ids
        lists = [[int(i) for i in rng.integers(0, 99, rng.integers(0, 4))] for _ in range(n)]
        maps = [{str(i): int(i) for i in rng.integers(0, 9, rng.integers(0, 4))} for _ in range(n)]
        log.append_many(ids, pa.array(lists, LIST))
        book.put_many(ids, pa.array([[*entries.items()] for entries in maps], MAP))
        names, weights = [str(i) for i in rng.integers(0, 9, n)], rng.choice([-1, 1, 1, 2], n)
        bag.add_many(ids, pa.array(names, pa.string()), weights)
        for at, key in enumerate(ids.tolist()):
            logs[key] = logs.get(key, []) + lists[at]
            books[key] = {**books.get(key, {}), **maps[at]}
            bags.setdefault(key, Counter())[names[at]] += int(weights[at])
        gone = np.unique(ids)[: int(rng.integers(0, 3))]
        if step % 4 == 1:  # some keys are erased
            for state in (log, book, bag):
                state.clear_many(gone)
            for model in (logs, books, bags):
                for key in gone.tolist():
                    model.pop(key, None)
        elif step % 4 == 2:
            log.replace_many(gone, pa.array([[step]] * len(gone), LIST))
            book.remove_many(gone, pa.array(["3"] * len(gone), pa.string()))
            logs |= {key: [step] for key in gone.tolist()}
            for key in gone.tolist():
                books[key].pop("3", None)
        group.forget_dead_keys(always=step % 10 == 9)
        stored.save(store, group, b"", whole=step % 10 == 9)
        if step % 3 == 1:
            group, stored = handed_over(group, store)
        elif step % 3 == 2:
            group, stored = loaded_group(store, store.read_manifest(), layout(), live_file())
        check(group, logs, books, bags)
        assert len(group.keys) >= len({*contents(states(group)[0])})


def test_the_checkpoint_of_a_multiset_stays_flat_over_inserts_and_deletes() -> None:
    group, store, stored = KeyGroup(layout()), GroupStore(), Stored(Manifest(1, b"12345678"))
    sizes = []
    for cycle in range(120):
        _, _, bag = states(group)
        ids = group.keys.resolve(np.repeat(np.arange(20), 10), [pa.array(np.repeat(np.arange(20), 10))])
        values = pa.array([f"value {cycle} {n}" for n in range(200)])
        bag.add_many(ids, values, np.ones(200, np.int64))
        stored.save(store, group, b"")
        bag.add_many(ids, values, np.full(200, -1))
        stored.save(store, group, b"")
        sizes.append(sum(map(len, store.chunks.values())))
    assert max(sizes[60:]) <= 1.5 * max(sizes[:60])
    group, _ = loaded_group(store, store.read_manifest(), layout())
    assert not len(states(group)[2])


def test_a_multiset_takes_a_wider_type_and_a_new_name() -> None:
    group, store, stored = KeyGroup(layout()), GroupStore(), Stored(Manifest(1))
    numbers: Any = group.state("bag", "multiset", multiset_of(pa.int32()))
    ids = group.keys.resolve(np.arange(3), [pa.array(np.arange(3))])
    numbers.add_many(ids, pa.array([5, -1, 5], pa.int32()), np.array([1, 2, 3]))
    stored.save(store, group, b"")
    changed = layout(rename_state={"bag": "numbers"})
    group, _ = loaded_group(store, store.read_manifest(), changed)
    found: Any = group.state("numbers", "multiset", multiset_of(pa.int64()))
    found.add_many(ids[:1], pa.array([5]), np.array([-1]))
    assert contents(found) == {1: [{"value": -1, "weight": 2}], 2: [{"value": 5, "weight": 3}]}
