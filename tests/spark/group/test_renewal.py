"""What a key group no longer has leaves its chunks and its live file within some micro-batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import GroupStore
from letters import Mailbox
from queries import QUERY

from timerheap._native._core import unseal
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.stored.kinds import KEYS, USER_STATE
from timerheap.spark._group.stored.manifest import RENEWAL, Manifest
from timerheap.spark._live import live_groups
from timerheap.spark._live.live_cache import Cache, Owner
from timerheap.spark._live.live_groups import LiveGroups

OWNER = Owner("query", "operator")
ERASED = "key-q9x7k2v5w8j4h1", "value-m3t6z0c8r5y2"


class NumberedStore(GroupStore):
    """Keeps in each manifest the micro-batch, as Spark's store does."""

    batch = 0

    def write_manifest(self, manifest: Manifest) -> None:
        manifest.batch = self.batch
        super().write_manifest(manifest)


def in_chunks(store: GroupStore, kind: int, text: str) -> bool:
    """Return whether the chunks of a kind contain a text."""
    codec, found = pa.Codec("lz4_raw"), []
    for (of, id_), data in store.chunks.items():
        if of == kind and id_:
            payload = bytes(unseal(kind, data))
            size = int.from_bytes(payload[4:8], "little")
            found.append(codec.decompress(payload[8:], size, asbytes=True) if payload[1] & 1 else payload[8:])
    return any(text.encode() in part for part in found)


def hash_of(keys: list[str]) -> np.ndarray:
    return np.array([hash(key) for key in keys])


def put(group: KeyGroup, keys: list[str], values: list[str | None]) -> None:
    ids = group.keys.resolve(hash_of(keys), [pa.array(keys)])
    group.state("s", "value", pa.string()).put_many(ids, pa.array(values, pa.large_string()))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("first", "above"), [(0, None), (RENEWAL + 1, None), (0, 0)])
def test_a_forgotten_key_is_gone_after_some_micro_batches(
    first: int, above: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been stored among many others, of which few change, and which may have settled."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    if above is not None:
        live: Any = live_groups
        settling = replace(live.settling_of(1), above=above, records=1 << 10, least=1, share=0)
        monkeypatch.setattr(live_groups, "settling_of", lambda groups, waits=False: settling)
    monkeypatch.setattr(live_groups, "_cache", Cache())
    store, left, kept = NumberedStore(), [], []
    others = [f"other-{n:05}" for n in range(3_000)]
    for number in range(RENEWAL):
        store.batch = first + number
        groups = LiveGroups(QUERY.layout, store, OWNER, 4, Mailbox())
        groups.begin(OWNER.operator, store.batch)
        group, stored = groups.load(7)
        if number == 0:
            put(group, [*others, ERASED[0]], [*others, ERASED[1]])
        elif number == 1:
            assert all(in_chunks(store, *each) for each in zip((KEYS, USER_STATE), ERASED, strict=True))
            put(group, [ERASED[0]], [None])
        else:
            put(group, others[number % 10 : number % 10 + 1], [f"{number}"])
        before = len(group.keys)
        groups.save(7, group, stored, b"")
        kept.append(len(group.keys) == before)
        if number == 0 and above is not None:
            assert not group.keys.table.find(hash_of([ERASED[0], others[0]])).any(), "both have settled"
        del group, stored
        left.append([in_chunks(store, *each) for each in zip((KEYS, USER_STATE), ERASED, strict=True)])
        mapped = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        left[-1].append(ERASED[1].encode() in mapped)
    nothing_else = left[10] if above is None else left[1]  # what settles again is written anew
    assert nothing_else == [True, True, True], "nothing else removes it: the test would show nothing"
    assert left[-1] == [False, False, False]
    renewed = kept.index(False)
    assert left[renewed - 1][:2] == [True, True]
    assert left[renewed] == [False, False, False]


def test_key_groups_are_renewed_at_different_times() -> None:
    found = []
    for n in range(256):
        id_ = bytes([0, 0, n, n, *bytes(4)])
        at = [b for b in range(3 * RENEWAL) if Manifest(4, id_, batch=b - 1).renews(b)]
        assert RENEWAL // 2 < at[0] <= RENEWAL
        assert np.diff(at).tolist() == [RENEWAL] * (len(at) - 1)
        found.append(at[0])
    assert len(set(found)) > 200
