"""Packing and frames on the native level: wrong arguments, other bytes, and the inputs of the fuzzer."""

from __future__ import annotations

from typing import Any

import frame_inputs
import numpy as np
import pytest

from timerheap._native._core import FIXED, FLOAT, NESTED, TEXT, ArrayView, Packing, read_frame, spark_hashes

THREE = np.array([-1, 5, 9], np.int64)


def numbers(n: int = 3) -> ArrayView:
    return ArrayView(FIXED, 8, 0, n, None, None, np.arange(n))


def frame(columns: list[list[Any]] | None = None) -> bytes:
    packing = Packing([THREE], 4, 1)
    return bytes(packing.frames(b"about", [[numbers()]] if columns is None else columns)[0])


def test_a_frame_has_what_was_packed() -> None:
    packing = Packing([THREE, THREE[:1]], 4, 3)
    assert packing.partitions.tolist() == [0, 1]  # the groups are 3, 1, 1 and 3
    assert packing.rows.tolist() == [2, 2]
    assert packing.order().tolist() == [0, 3, 1, 2]
    column = [numbers(), ArrayView(FIXED, 8, 0, 1, None, None, np.array([-7]))]
    data, ends = packing.frames(b"about", [column, [b"zero", b"one"]])
    assert ends[-1] == len(data)
    rows, description, groups, counts, columns = read_frame(data[ends[0] :])
    assert (rows, bytes(description), groups.tolist(), counts.tolist()) == (2, b"about", [1], [2])
    (kind, width, validity, offsets, values), nested = columns
    assert (kind, width, validity, offsets, values.tolist()) == (FIXED, 8, None, None, [1, 2])
    assert (nested[0], bytes(nested[4])) == (NESTED, b"one")


def test_bytes_that_are_not_a_frame_are_refused() -> None:
    good = frame()
    for position, why in [
        (0, "begins otherwise"),
        (4, "has the version"),
        (8, "its header says"),
        (36, "checksum"),
    ]:
        wrong = bytearray(good)
        wrong[position] ^= 1
        with pytest.raises(ValueError, match=f"data must be a frame of this version.*{why}"):
            read_frame(bytes(wrong))
    with pytest.raises(ValueError, match="a header alone has 40"):
        read_frame(b"")
    with pytest.raises(TypeError):
        read_frame(3)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([THREE], 0, 1), "max_parallelism must be from 1 to 32768, got 0"),
        (([THREE], 1 << 16, 1), "max_parallelism must be"),
        (([THREE], 1, 0), "partitions must be 1 or more, got 0"),
        (([THREE.astype(np.int32)], 1, 1), r"hashes\[0\] must be a contiguous array"),
    ],
)
def test_wrong_placements_are_refused(arguments: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Packing(*arguments)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ([[numbers(2)]], "parts as long as the hashes, got 2 for 3"),
        ([[numbers(), numbers()]], "must have 1 parts, got 2"),
        ([[]], "must have bytes for 1 partitions, got 0"),
        ([[b"", b""]], "must have bytes for 1 partitions, got 2"),
        ([[ArrayView(TEXT, 4, 0, 3, None, np.array([0, 2, 1, 1], np.int32), b"ab")]], "outside of its data"),
    ],
)
def test_columns_that_do_not_fit_the_rows_are_refused(columns: list[list[Any]], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        frame(columns)


def test_parts_of_two_kinds_are_refused() -> None:
    packing = Packing([THREE, THREE], 1, 1)
    with pytest.raises(ValueError, match="one kind and width"):
        packing.frames(b"", [[numbers(), ArrayView(FLOAT, 8, 0, 3, None, None, bytes(24))]])
    with pytest.raises(TypeError, match="must be of ArrayView alone"):
        packing.frames(b"", [[numbers(), b""]])


def test_only_text_and_integers_are_hashed() -> None:
    for view in (
        ArrayView(FLOAT, 8, 0, 1, None, None, bytes(8)),
        ArrayView(FIXED, 16, 0, 1, None, None, bytes(16)),
    ):
        with pytest.raises(ValueError, match="values must be TEXT, or FIXED"):
            spark_hashes(view)
    with pytest.raises(ValueError, match="outside of its array"):
        spark_hashes(ArrayView(TEXT, 8, 0, 1, None, np.array([0, 9]), b"12"))


def test_the_inputs_of_the_fuzzer_find_nothing() -> None:
    seeds = list(frame_inputs.seeds())
    rng = np.random.default_rng(0)
    for seed in seeds:
        frame_inputs.run(seed)
    for _ in range(3000):
        changed = bytearray(seeds[rng.integers(len(seeds))])
        changed[rng.integers(len(changed))] = rng.integers(256)
        frame_inputs.run(bytes(changed))
