"""Key groups and ranges beyond the traces: errors, set operations and invariants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap.flink import (
    KeyGroupRange,
    assign_key_to_parallel_operator,
    assign_to_key_group,
    compute_key_group_range_for_operator_index,
)
from timerheap.flink.key_groups import (
    compute_default_max_parallelism,
    compute_key_group_for_key_hash,
    compute_operator_index_for_key_group,
)

parallelisms = st.integers(1, 32768).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most)))
keys = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.tuples(st.text())
)


@given(parallelisms, st.randoms(use_true_random=False))
def test_every_key_group_is_in_the_range_of_its_operator(sizes, random):
    max_parallelism, parallelism = sizes
    for key_group in {0, max_parallelism - 1, random.randrange(max_parallelism)}:
        operator = compute_operator_index_for_key_group(max_parallelism, parallelism, key_group)
        assert key_group in compute_key_group_range_for_operator_index(max_parallelism, parallelism, operator)
    operator = random.randrange(parallelism)
    owned = compute_key_group_range_for_operator_index(max_parallelism, parallelism, operator)
    assert len(owned) in {max_parallelism // parallelism, -(-max_parallelism // parallelism)}
    if operator:
        before = compute_key_group_range_for_operator_index(max_parallelism, parallelism, operator - 1)
        assert before.end_key_group + 1 == owned.start_key_group


@given(keys, parallelisms)
def test_a_key_is_assigned_to_the_operator_of_its_key_group(key, sizes):
    max_parallelism, parallelism = sizes
    key_group = assign_to_key_group(key, max_parallelism)
    assert 0 <= key_group < max_parallelism
    operator = assign_key_to_parallel_operator(key, max_parallelism, parallelism)
    assert operator == compute_operator_index_for_key_group(max_parallelism, parallelism, key_group)


def test_only_the_low_32_bits_of_a_hash_matter():
    assert compute_key_group_for_key_hash(-1, 128) == compute_key_group_for_key_hash(2**32 - 1, 128) == 80
    assert compute_key_group_for_key_hash(np.int64(-1), 128) == 80


def test_a_range_behaves_like_a_set():
    owned = KeyGroupRange(3, 5)
    assert list(owned) == [3, 4, 5]
    assert [key_group in owned for key_group in (2, 3, 5, 6)] == [False, True, True, False]
    assert np.int64(4) in owned
    assert 4.0 not in owned
    assert None not in owned
    assert len(owned) == 3
    assert owned == KeyGroupRange(3, 5) != KeyGroupRange(3, 4)
    assert {owned: "a key"}[KeyGroupRange(3, 5)] == "a key"


def test_intersection_returns_the_common_key_groups():
    owned = KeyGroupRange(3, 5)
    empty = KeyGroupRange(0, -1)
    assert owned.intersection(KeyGroupRange(5, 9)) == KeyGroupRange(5, 5)
    assert owned.intersection(KeyGroupRange(6, 9)) == empty
    assert owned.intersection(empty) == empty
    assert (len(empty), list(empty), 0 in empty) == (0, [], False)


@pytest.mark.parametrize("ends", [(1, 0), (5, 3), (-1, 3), (0, 32768), (1, -1)])
def test_an_invalid_range_raises(ends):
    with pytest.raises(ValueError, match="key_group must"):
        KeyGroupRange(*ends)


def test_an_invalid_argument_raises_an_error_that_names_it():
    for wrong in (0, -1, 32769):
        with pytest.raises(ValueError, match=f"max_parallelism must be from 1 to 32768, got {wrong}"):
            assign_to_key_group("key", wrong)
        with pytest.raises(ValueError, match=f"parallelism must be from 1 to 32768, got {wrong}"):
            compute_default_max_parallelism(wrong)
    with pytest.raises(TypeError, match="key_hash must be an int, got 'key'"):
        compute_key_group_for_key_hash("key", 128)
    with pytest.raises(TypeError, match="max_parallelism must be an int, got '128'"):
        assign_to_key_group("key", "128")
    with pytest.raises(ValueError, match="parallelism must be from 1 to 4, got 5"):
        compute_key_group_range_for_operator_index(4, 5, 0)
    with pytest.raises(ValueError, match="operator_index must be from 0 to 1, got 2"):
        compute_key_group_range_for_operator_index(4, 2, 2)
    with pytest.raises(ValueError, match="key_group must be from 0 to 3, got 4"):
        compute_operator_index_for_key_group(4, 2, 4)
