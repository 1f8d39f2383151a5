"""Key groups of keys of many types compared with Flink's KeyGroupRangeAssignment."""

from typing import Any

from timerheap.flink import assign_to_key_group, java_hash_code
from timerheap.flink.key_groups import compute_key_group_for_key_hash


def from_json(key: Any) -> Any:
    return tuple(map(from_json, key)) if isinstance(key, list) else key


def test_hash_codes_and_key_groups_equal_flinks(traces: list[Any]) -> None:
    max_parallelisms = traces[0]["max_parallelisms"]
    assert len(traces) > 1
    for java_type, written, hash_code, key_groups in traces[1:]:
        key = from_json(written)
        assert java_hash_code(key, java_type) == hash_code, (java_type, key)
        if java_type in {
            "long",
            "string",
            "boolean",
            "double",
            "tuple2<long,string>",
        }:  # the defaults for Python's types
            assert java_hash_code(key) == hash_code, (java_type, key)
        assert [assign_to_key_group(key, n, java_type) for n in max_parallelisms] == key_groups, (
            java_type,
            key,
        )
        assert [compute_key_group_for_key_hash(hash_code, n) for n in max_parallelisms] == key_groups
