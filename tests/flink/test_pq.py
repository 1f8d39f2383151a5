"""HeapPriorityQueueSet of TimerHeapInternalTimer, operation by operation."""

from functools import partial
from typing import Any

import pytest

from timerheap.flink import InternalTimer, KeyGroupRange, RocksDBTimerQueue, TimerQueue, java_hash_code


def timer(timestamp: int, key: Any, namespace: Any) -> InternalTimer[Any, Any]:
    """A timer as the traces write it; a window is a list there."""
    return InternalTimer(timestamp, key, tuple(namespace) if isinstance(namespace, list) else namespace)


def in_any_order(timers: Any) -> list[Any]:
    return sorted(timers, key=repr)


def poll_timestamp(queue: TimerQueue[Any, Any]) -> tuple[int, list[InternalTimer[Any, Any]]]:
    polled = [queue.peek()]
    while (head := queue.peek()) is not None and head.timestamp == polled[0].timestamp:
        assert queue.poll() == head
        polled.append(head)
    return polled[0].timestamp, polled[1:]


def do(queue: TimerQueue[Any, Any], op: list[Any]) -> None:
    match op:
        case ["add", timestamp, key, namespace, head_changed, size]:
            assert queue.add(timer(timestamp, key, namespace)) is head_changed
        case ["remove", timestamp, key, namespace, was_head, size]:
            removed_head = queue.remove(timer(timestamp, key, namespace))
            assert removed_head is was_head or was_head is None
            assert timer(timestamp, key, namespace) not in queue
        case ["pollts", timestamp, timers, size]:
            polled_timestamp, polled = poll_timestamp(queue)
            assert polled_timestamp == timestamp
            assert in_any_order(polled) == in_any_order(timer(*t) for t in timers)
        case ["poll", None, 0 as size]:
            assert queue.poll() is None
        case ["peek", timestamp, size]:
            head = queue.peek()
            assert (None if head is None else head.timestamp) == timestamp
        case ["subset", key_group, timers]:
            size = len(queue)
            subset = queue.get_subset_for_key_group(key_group)
            assert in_any_order(subset) == in_any_order(timer(*t) for t in timers)
        case ["all", timers]:
            size = len(timers)
            assert in_any_order(queue) == in_any_order(timer(*t) for t in timers)
        case ["addall", timers, size]:
            queue.add_many(timer(*t) for t in timers)
        case ["clear", size]:
            queue.clear()
        case ["adderr", timestamp, key, namespace, "IllegalArgumentException", size]:
            with pytest.raises(ValueError, match="key group"):
                queue.add(timer(timestamp, key, namespace))
        case _:
            pytest.fail(f"unknown operation {op}")
    assert len(queue) == size
    assert queue.is_empty() is (size == 0)


def replay(trace: dict[str, Any], queue_class: Any) -> None:
    queue = queue_class(
        max_parallelism=trace["max_parallelism"],
        key_group_range=KeyGroupRange(*trace["key_groups"]),
        hash_code=partial(java_hash_code, java_type=trace["key"]),
    )
    for op in trace["ops"]:
        do(queue, op)


@pytest.mark.parametrize("queue_class", [TimerQueue, RocksDBTimerQueue], ids=["heap", "rocksdb"])
def test_answers_equal_flinks(traces: Any, queue_class: Any) -> None:
    traces.replay_share(partial(replay, queue_class=queue_class), queue_class.__name__)
