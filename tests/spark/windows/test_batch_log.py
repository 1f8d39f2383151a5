"""Windows of another process are rebuilt from the log of their changes."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from memories import Arena

from timerheap.spark._memory.blocks import PROCESS
from timerheap.spark._tvf.sliced_rows import WindowSpec
from timerheap.spark._tvf.windows_part import BatchLog, WindowsPart
from timerheap.tvf import HoppingSliceAssigner
from timerheap.tvf.aggregates import Sum
from timerheap.tvf.distinct import CountDistinct
from timerheap.tvf.slices import SessionUnsliceAssigner

SCHEMA = pa.schema([("n", pa.int64())])


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values)], schema=SCHEMA)


@pytest.mark.parametrize(
    "assigner", [HoppingSliceAssigner(60, 20), SessionUnsliceAssigner(15)], ids=["slices", "sessions"]
)
def test_windows_that_are_handed_over_equal_windows_that_stay(assigner: Any) -> None:
    random_ = random.Random(3)
    aggregates = [Sum("v", np.int64), CountDistinct("v", np.int64)]
    spec, arena = WindowSpec(assigner, aggregates, {}, "windows"), Arena()
    stays, moves = WindowsPart(spec), WindowsPart(spec, arena)
    fired = 0
    for watermark in range(0, 1000, 10):
        rows = [random_.randrange(watermark, watermark + 40) for _ in range(random_.randrange(5))]
        keys, values = [at % 3 for at in rows], {"v": [at % 5 for at in rows]}
        results = []
        for each in (stays, moves):
            each.windows.add(keys, rows, values)
            results.append(each.windows.advance_watermark(watermark))
            each.changes()
        assert np.array_equal(results[0].key_ids, results[1].key_ids)
        assert np.array_equal(results[0].window_ends, results[1].window_ends)
        assert repr(results[0]) == repr(results[1])
        fired += len(results[0].key_ids)
        head = json.loads(json.dumps(moves.head()))
        moves = WindowsPart(spec, arena, head)
        assert moves.snapshot().equals(stays.snapshot())
        assert moves.count_losses() == stays.count_losses()
        assert moves.windows.timers._head() == head[-1], "the timers stay where they are"
    assert fired > 30
    assert sum(len(block.bytes) for block in arena.blocks.values()) < 100_000


def test_a_log_is_at_most_about_twice_as_large_as_the_part() -> None:
    arena = Arena()
    log = BatchLog(SCHEMA, arena)
    for number in range(3000):
        log.append(numbers(number), 1000, lambda number=number: numbers(-1, number))
        assert sum(len(block.bytes) for block in arena.blocks.values()) < 80_000
    found = [batch.column(0).to_pylist() for batch in log]
    assert found[0][0] == -1
    assert sorted(n for batch in found for n in batch if n >= 0) == list(range(found[0][1], 3000))
    log.clear()
    assert not arena.blocks


def test_a_log_in_the_memory_of_the_process_stays_empty() -> None:
    log = BatchLog(SCHEMA, PROCESS)
    log.append(numbers(1), 8, lambda: numbers(1))
    assert log.head() == []


def test_a_damaged_log_raises_a_value_error() -> None:
    arena = Arena()
    log = BatchLog(SCHEMA, arena)
    log.append(numbers(1, 2, 3), 24, lambda: numbers(1))
    (block,) = arena.blocks.values()
    block.bytes[:16] = 7
    with pytest.raises(ValueError, match="must hold a record batch"):
        list(BatchLog(SCHEMA, arena, log.head()))
