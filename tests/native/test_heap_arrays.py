"""Views of Arrow arrays check their buffers, and compare values with stored ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from timerheap._native._core import BITS, FIXED, FLOAT, TEXT, ArrayView

THREE = np.arange(3, dtype=np.int64)


def fixed(values: list[int], valid: bytes | None = None) -> ArrayView:
    return ArrayView(FIXED, 8, 0, len(values), valid, None, np.array(values, np.int64))


def text(values: list[bytes], width: int = 4) -> ArrayView:
    offsets = np.cumsum([0, *map(len, values)]).astype(f"i{width}")
    return ArrayView(TEXT, width, 0, len(values), None, offsets, b"".join(values))


def compared(value: ArrayView, stored: ArrayView, places: list[int]) -> list[bool]:
    same = np.ones(len(value), bool)
    value.compare(stored, np.array(places, np.int64), same)
    return same.tolist()


def test_a_value_is_compared_with_the_one_at_its_place() -> None:
    assert compared(fixed([5, 6, 7]), fixed([7, 6]), [0, 1, 0]) == [False, True, True]
    assert compared(text([b"a", b""], 8), text([b"", b"a"]), [1, 1]) == [True, False]
    bits = ArrayView(BITS, 0, 1, 2, None, None, b"\x02")
    assert compared(bits, bits, [0, 0]) == [True, False]
    numbers = ArrayView(FLOAT, 8, 0, 2, None, None, np.array([0.0, np.nan]))
    others = ArrayView(FLOAT, 8, 0, 2, None, None, np.array([-np.nan, -0.0]))
    assert compared(numbers, others, [1, 0]) == [True, True]


def test_null_equals_null_alone() -> None:
    assert compared(fixed([0, 0], b"\x01"), fixed([0, 0], b"\x02"), [0, 0]) == [False, True]


def test_rows_that_are_not_asked_for_need_no_place() -> None:
    same = np.array([False, True])
    fixed([1, 1]).compare(fixed([1]), np.array([-1, 0]), same)
    assert same.tolist() == [False, True]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((9, 8, 0, 1, None, None, bytes(8)), "kind must be"),
        ((FIXED, 8, 0, 2, None, None, bytes(15)), "data must have 16 bytes or more, got 15"),
        ((FIXED, 8, 1, 1, None, None, bytes(15)), "data must have 16 bytes or more, got 15"),
        ((FIXED, 8, 0, 9, bytes(1), None, bytes(72)), "validity must have 2 bytes or more, got 1"),
        ((BITS, 0, 0, 9, None, None, bytes(1)), "data must have 2 bytes or more, got 1"),
        ((TEXT, 4, 0, 1, None, bytes(4), b""), "offsets must have 8 bytes or more, got 4"),
        ((TEXT, 2, 0, 1, None, bytes(4), b""), "width must be 4 or 8"),
        ((FIXED, -1, 0, 1, None, None, b""), "width must be"),
        ((FIXED, 8, -1, 1, None, None, bytes(8)), "start and n must be"),
        ((FIXED, 8, 2**62, 2**62, None, None, bytes(8)), "start and n must be"),
    ],
)
def test_buffers_that_are_too_short_are_refused(arguments: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ArrayView(*arguments)


def test_places_and_offsets_outside_of_an_array_are_refused() -> None:
    for places in ([0, 1, 2], [0, -1, 0]):
        with pytest.raises(ValueError, match="outside of its array"):
            compared(fixed([1, 2, 3]), fixed([1, 2]), places)
    for offsets in ([0, 9], [2, 1], [-1, 1]):
        hostile = ArrayView(TEXT, 4, 0, 1, None, np.array(offsets, np.int32), b"12345678")
        for value, stored in ((hostile, text([b"1"])), (text([b"1"]), hostile)):
            with pytest.raises(ValueError, match="outside of its array"):
                compared(value, stored, [0])


def test_arrays_of_another_kind_or_length_are_refused() -> None:
    with pytest.raises(ValueError, match="stored must have the kind"):
        fixed([1]).compare(text([b"1"]), THREE[:1], np.ones(1, bool))
    with pytest.raises(ValueError, match="places must have 1 values, got 3"):
        fixed([1]).compare(fixed([1]), THREE, np.ones(1, bool))
    with pytest.raises(ValueError, match="same must be a contiguous array"):
        fixed([1]).compare(fixed([1]), THREE[:1], np.ones(1, np.int64))
    with pytest.raises(TypeError):
        fixed([1]).compare(None, THREE[:1], np.ones(1, bool))
    read_only = np.ones(1, bool)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="same must be writeable"):
        fixed([1]).compare(fixed([1]), THREE[:1], read_only)
