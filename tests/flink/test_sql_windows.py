"""TUMBLE, HOP, CUMULATE and SESSION queries compared with Flink SQL's results, in one stage and in two."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from slice_traces import assigner

from timerheap import MAX_WATERMARK
from timerheap.tvf import GlobalWindowAggregate, SessionWindowAggregate, WindowResults
from timerheap.tvf.accumulators import Aggregate
from timerheap.tvf.aggregates import Aggregation, Avg, Count, Max, Min, PythonAggregate, Sum
from timerheap.tvf.distinct import CountDistinct
from timerheap.tvf.window_aggregate import LateRows

Trace = dict[str, Any]
Add = Callable[..., LateRows | None]


class SortedIds:
    """LISTAGG(id): the ids of the rows in a window."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return sorted(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        acc_a.extend(acc_b)
        return acc_a


def aggregates() -> list[Aggregate]:
    """Return the aggregates of the traces' queries, in order."""
    return [
        Count(),
        *(Count("v"), Sum("v", np.int64), Min("v", np.int64), Max("v", np.int64), Avg("v", np.int64)),
        *(Sum("x", np.float64), Min("x", np.float64), Max("x", np.float64), Avg("x", np.float64)),
        CountDistinct("d", np.int64),
        PythonAggregate(SortedIds(), "id"),
    ]


class Replay:
    """A replay of one trace: collects the output and the ids of late rows."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names = sorted({op[3] for op in trace["input"] if op[0] == "r"})
        self.output: list[list[Any]] = []
        self.late: list[int] = []

    def steps(self, together: bool) -> Iterable[tuple[list[list[Any]], int | None]]:
        """Yield rows, up to a watermark or one by one, and the watermark that follows them."""
        rows: list[list[Any]] = []
        for kind, *op in [*self.trace["input"], ["w", MAX_WATERMARK]]:
            if kind == "w":
                yield rows, op[0]
                rows = []
            elif together:
                rows.append(op)
            else:
                yield [op], None

    def add(self, add: Add, rows: list[list[Any]]) -> None:
        if not rows:
            return
        ids, timestamps, keys, v, x, d = map(list, zip(*rows, strict=True))
        key_ids = [self.names.index(key) if self.trace["keyed"] else 0 for key in keys]
        late = add(key_ids, timestamps, {"id": ids, "v": v, "x": x, "d": d})
        self.late += [ids[row] for row in late.rows] if late is not None else []

    def emit(self, fired: WindowResults) -> None:
        names = [self.names[key] if self.trace["keyed"] else None for key in fired.key_ids]
        times = (fired.window_starts, fired.window_ends, fired.window_times)
        columns = [names, *(c.tolist() for c in times), *(c.tolist() for c in fired.results)]
        self.output += map(list, zip(*columns, strict=True))

    def check(self, dropped: int) -> None:
        wanted = self.trace["ideal_output"] if self.trace["suspect"] else self.trace["output"]
        assert in_any_order(self.output) == in_any_order(wanted)
        ends = [end for _, _, end, *_ in self.output]
        assert ends == sorted(ends)
        # Flink's defects lose rows as well, so count the rows that are missing from the expected windows.
        shown = {row for *_, rows in wanted for row in rows}
        assert dropped == len({op[1] for op in self.trace["input"] if op[0] == "r"} - shown)


def in_any_order(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(rows, key=lambda row: (row[2], row[1], str(row[0])))


def one_stage(trace: Trace, together: bool) -> None:
    replay = Replay(trace)
    if trace["kind"] == "SESSION":
        operator: Any = SessionWindowAggregate(trace["size"], aggregates(), trace["tz"])
    else:
        operator = GlobalWindowAggregate(assigner(trace), aggregates())
    for rows, watermark in replay.steps(together):
        replay.add(operator.add, rows)
        if watermark is not None:
            assert operator.next_timer() is None or operator.next_timer() > operator.watermark
            replay.emit(operator.advance_watermark(watermark))
    replay.check(operator.late_rows)
    assert replay.late == trace["in_no_window"] or trace["suspect"]
    assert len(operator) == 0
    assert operator.next_timer() is None


def two_stages(trace: Trace) -> None:
    if trace["kind"] == "SESSION":
        return  # Flink has no local stage for sessions
    replay = Replay(trace)
    slices, local = assigner(trace), Aggregation(aggregates())
    after = GlobalWindowAggregate(slices, aggregates())

    def add(keys: Any, timestamps: Any, inputs: Any) -> None:
        after.merge(local.accumulate(keys, slices.assign_slice_ends(timestamps), inputs))

    for rows, watermark in replay.steps(together=True):
        replay.add(add, rows)
        if watermark is not None:
            replay.emit(after.advance_watermark(watermark))
    replay.check(after.late_rows)
    assert len(after) == 0


MODES: dict[str, Callable[[Trace], None]] = {
    "one_stage_by_row": lambda trace: one_stage(trace, together=False),
    "one_stage_by_batch": lambda trace: one_stage(trace, together=True),
    "two_stages": two_stages,
}
SLOW = {"one_stage_by_row"}


CASES = [pytest.param(mode, marks=[pytest.mark.slow] if mode in SLOW else []) for mode in MODES]


@pytest.mark.parametrize("mode", CASES)
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "TUMBLE",
    "HOP",
    "CUMULATE",
    "SESSION",
    "COUNT",
    "SUM",
    "MIN",
    "MAX",
    "COUNT(DISTINCT)",
)
def test_sql_windows_equal_flinks(mode: str, traces: Any) -> None:
    traces.replay(MODES[mode], mode)
