"""Key group ranges, operators and default parallelism compared with Flink's KeyGroupRangeAssignment."""

from typing import Any

from timerheap.flink import KeyGroupRange, compute_key_group_range_for_operator_index
from timerheap.flink.key_groups import compute_default_max_parallelism, compute_operator_index_for_key_group


def replay(trace: dict[str, Any]) -> None:
    if trace["kind"] == "default_max_parallelism":
        for parallelism, max_parallelism in trace["pairs"]:
            assert compute_default_max_parallelism(parallelism) == max_parallelism, parallelism
        return
    assert trace["kind"] == "ranges"
    max_parallelism, parallelism = trace["max_parallelism"], trace["parallelism"]
    for operator, (first, last) in enumerate(trace["ranges"]):
        owned = compute_key_group_range_for_operator_index(max_parallelism, parallelism, operator)
        assert owned == KeyGroupRange(first, last), operator
        assert [compute_operator_index_for_key_group(max_parallelism, parallelism, kg) for kg in owned] == [
            operator
        ] * len(owned)
    for key_group, operator in trace["key_group_to_operator"]:
        assert compute_operator_index_for_key_group(max_parallelism, parallelism, key_group) == operator


def test_ranges_and_operators_equal_flinks(traces: Any) -> None:
    traces.replay(replay)
