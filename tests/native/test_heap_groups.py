"""Rows are grouped by key and slice as a plain dict groups them, whatever the hashes and the parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from timerheap._native._core import BITS, FIXED, FLOAT, TEXT, ArrayView, SliceGroups

ONE = np.zeros(1, np.int64)


def text(values: list[bytes | None], width: int = 4) -> ArrayView:
    offsets = np.cumsum([0, *(len(value or b"") for value in values)]).astype(f"i{width}")
    valid = np.packbits(np.array([value is not None for value in values], bool), bitorder="little")
    return ArrayView(TEXT, width, 0, len(values), valid, offsets, b"".join(value or b"" for value in values))


def numbers(values: list[int]) -> ArrayView:
    return ArrayView(FIXED, 8, 0, len(values), None, None, np.array(values, np.int64))


def bits(values: list[int]) -> ArrayView:
    return ArrayView(
        BITS, 0, 0, len(values), None, None, np.packbits(np.array(values, bool), bitorder="little")
    )


def contents(groups: SliceGroups) -> list[Any]:
    return [len(groups), *(column.tolist() for column in groups.groups()), groups.order().tolist()]


@pytest.mark.parametrize("hashes", [1, 3, 1 << 40], ids=["one hash", "few hashes", "many hashes"])
@pytest.mark.parametrize("keys", [3, 2000])
def test_rows_are_grouped_as_a_dict_groups_them(hashes: int, keys: int) -> None:
    draw = np.random.default_rng(keys)
    keys = min(keys, 100 * hashes)  # keys of one hash are compared one by one
    groups = SliceGroups(3)
    known: dict[tuple[Any, ...], int] = {}
    found: dict[tuple[Any, ...], list[int]] = {}
    row = 0
    for size in (0, 1, 500, 33, 3000):
        chosen = draw.integers(0, keys, size)
        values = [None if one == 2 else b"key %d" % one for one in chosen.tolist()]
        slices = draw.integers(-3, 3, size) * (1 << 61)
        columns = [text(values, 4 if size % 2 else 8), numbers((chosen // 3).tolist()), bits(chosen % 2)]
        own = [*zip(values, chosen.tolist(), strict=True)]
        hash_ = np.array([one * 7 % hashes for one in chosen.tolist()], np.int64)
        new = groups.add(hash_, slices, columns).tolist()
        firsts = []
        for at, key in enumerate(own):
            if key not in known:
                known[key] = len(known)
                firsts.append(at)
            found.setdefault((known[key], int(slices[at])), []).append(row + at)
        assert new == firsts
        row += size
    assert contents(groups) == [
        len(found),
        [key for key, _ in found],
        [slice_ for _, slice_ in found],
        [len(rows) for rows in found.values()],
        [at for rows in found.values() for at in rows],
    ]


def test_without_key_columns_a_key_is_its_hash() -> None:
    groups = SliceGroups(0)
    assert groups.add(np.array([5, -1, 5]), np.array([0, 0, 9]), []).tolist() == [0, 1]
    assert contents(groups) == [3, [0, 1, 0], [0, 0, 9], [1, 1, 1], [0, 1, 2]]


def test_floats_are_compared_as_numbers() -> None:
    values = ArrayView(FLOAT, 8, 0, 4, None, None, np.array([0.0, -0.0, np.nan, -np.nan]))
    groups = SliceGroups(1)
    assert groups.add(np.zeros(4, np.int64), np.zeros(4, np.int64), [values]).tolist() == [0, 2]


def test_a_group_without_rows_is_none() -> None:
    assert contents(SliceGroups(2)) == [0, [], [], [], []]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((ONE, np.zeros(2, np.int64), [text([b"a"])]), "slices must have 1 values, got 2"),
        ((ONE.astype(np.int32), ONE, [text([b"a"])]), "hashes must be a contiguous array"),
        ((ONE, ONE, []), "keys must have 1 columns, got 0"),
        ((ONE, ONE, [text([b"a", b"b"])]), "keys must have 1 values, like hashes, got 2"),
        ((ONE, ONE, [numbers([1])]), "keys must have the kind and the width of the parts before"),
        ((ONE, ONE, [b"a"]), "keys must be of ArrayView alone"),
    ],
)
def test_wrong_arguments_leave_the_groups_as_they_were(arguments: Any, error: str) -> None:
    groups = SliceGroups(1)
    groups.add(ONE, ONE, [text([b"a"])])
    before = contents(groups)
    with pytest.raises((TypeError, ValueError), match=error):
        groups.add(*arguments)
    assert contents(groups) == before


@pytest.mark.parametrize("columns", [-1, 1 << 17])
def test_an_impossible_number_of_columns_is_refused(columns: int) -> None:
    with pytest.raises(ValueError, match="columns must be from 0 to 65536"):
        SliceGroups(columns)


@pytest.mark.parametrize("wrong", [-1, 6, 1 << 30])
def test_an_offset_outside_of_the_data_leaves_the_groups_as_they_were(wrong: int) -> None:
    groups = SliceGroups(1)
    groups.add(np.array([1, 2]), np.array([0, 0]), [text([b"a", b"b"])])
    before = contents(groups)
    n = 200
    offsets = np.minimum(np.arange(n + 1), 5).astype(np.int32)
    offsets[n - 1] = wrong
    with pytest.raises(ValueError, match="an offset lies outside of its array"):
        groups.add(np.arange(n) % 3, np.arange(n), [ArrayView(TEXT, 4, 0, n, None, offsets, b"abcde")])
    assert contents(groups) == before
    assert groups.add(np.array([2, 3]), np.array([0, 0]), [text([b"b", b"c"])]).tolist() == [1]
    assert contents(groups) == [3, [0, 1, 2], [0, 0, 0], [1, 2, 1], [0, 1, 2, 3]]
