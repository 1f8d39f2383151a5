"""Windows on what runs them in a Spark query, compared with Flink's.

===============  ==========================================================================================
traces           what replays them
===============  ==========================================================================================
window_operator  the function that `timerheap.spark.window_operator` gives to `process`, in `ProcessTester`
slices           `WindowRunner`, which runs `tumble`, `hop` and `cumulate` in a key group: a row
                 at each time, and the windows that it is in, one after the other as the watermark passes
sql_windows      `WindowRunner`, of rows and of what the pack stage makes of them; sessions of rows
===============  ==========================================================================================
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from slice_traces import assigner
from test_sql_windows import aggregates
from test_window_operator import assigner_of, trigger_of

from timerheap import MAX_WATERMARK, OutputTag
from timerheap.spark import WindowedBy
from timerheap.testing import ProcessTester
from timerheap.testing.window_tester import WindowTester, window_operator_tester
from timerheap.tvf.aggregates import Count
from timerheap.tvf.slices import SessionUnsliceAssigner
from timerheap.windows import AggregateFunction, ProcessWindowFunction

Trace = dict[str, Any]

# The clocks of these zones change by half an hour, or changed at midnight: Flink fires some windows early.
UNLIKE_FLINK = {"Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Shanghai"}

ROWS = "key string, id bigint, value bigint, at bigint"
RESULT = "sum bigint, ids string, watermark bigint"
LATE = OutputTag("late", "bigint")


class AllAtOnce(ProcessWindowFunction):
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Any) -> Any:
        rows = list(elements)
        return [(sum(row.value for row in rows), str([row.id for row in rows]), context.current_watermark())]


class OneByOne(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, []

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value.value, [*accumulator[1], value.id]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Shown(ProcessWindowFunction):
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Any) -> Any:
        ((total, ids),) = elements
        yield total, str(list(ids)), context.current_watermark()


def late(value: Any, ctx: Any) -> list[Any]:
    return [(LATE, value.id)]


def window_operator(trace: Trace, whole_windows: bool) -> ProcessTester:
    by = WindowedBy(
        assigner_of(trace),
        trigger=trigger_of(trace["trigger"], trace["trigger_param"]),
        allowed_lateness=trace["allowed_lateness"],
    )
    functions = (AllAtOnce(), None) if whole_windows else (OneByOne(), Shown())
    types = {
        "element_type": f"struct<{ROWS}>" if whole_windows else None,
        "accumulator_type": None if whole_windows else "struct<sum: bigint, ids: array<bigint>>",
    }
    return window_operator_tester(by, *functions, ROWS, RESULT, late, LATE, **types)


def millis(moment: datetime | None, unbounded: int) -> int:
    return unbounded if moment is None else round(moment.timestamp() * 1000)


def replay_window_operator(trace: Trace, whole_windows: bool) -> None:
    tester = window_operator(trace, whole_windows)
    events = [*trace["input"], ["w", MAX_WATERMARK]]
    told = 0  # late rows so far
    for number, (event, expected) in enumerate(zip(events, trace["output"], strict=True)):
        match event:
            case ["r", id_, timestamp, key, value]:
                out = tester.push([(key, id_, value, timestamp)])
            case ["w", watermark]:
                out = tester.advance_watermark(watermark)
        rows = [
            (
                "r",
                row.key,
                millis(row.window_start, -(2**63)),
                millis(row.window_end, MAX_WATERMARK),
                *row[3:],
            )
            for row in out
        ]
        rows += [("late", id_) for id_ in tester.side_output(LATE)[told:]]
        told = len(tester.side_output(LATE))
        # Timers with equal timestamps fire in any order. The results of Spark have no timestamps.
        shown = [tuple(row[:7]) for row in expected if row[0] != "w"]
        assert Counter(rows) == Counter(shown), f"event {number}"
    assert tester.timers() == []


@pytest.mark.parametrize("traces", ["window_operator"], indirect=True)
@pytest.mark.parametrize("whole_windows", [True, False], ids=["elements", "accumulators"])
def test_windows_fire_as_in_flink(traces: Any, whole_windows: bool) -> None:
    traces.replay_share(
        partial(replay_window_operator, whole_windows=whole_windows), f"whole windows: {whole_windows}"
    )


def replay_slices(trace: Trace, pre_aggregated: bool) -> None:
    tester = WindowTester(
        assigner(trace), [Count()], "k string, at bigint", "n bigint", {}, pre_aggregated=pre_aggregated
    )
    # Each row has a key of its own, so that its windows can be told from those of the others.
    tester.push([{"k": str(number), "at": at} for number, (at, _, _) in enumerate(trace["ts"])])
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(len(trace["ts"]))}
    known = {end: (start, last) for end, last, start, *_ in trace["slices"]}
    timers = {one[0]: one[-4] for one in trace["slices"]}
    for watermark in sorted({time - early for time in timers.values() for early in (0, 1)} | {MAX_WATERMARK}):
        for row in tester.advance_watermark(watermark):
            assert row["n"] == 1
            found[int(row["k"])].append((row["window_start"], row["window_end"]))
            if trace["tz"] not in UNLIKE_FLINK:
                assert timers.get(row["window_end"], watermark) == watermark
    size, step = trace["size"], trace["step"]
    for number, (_, local, end) in enumerate(trace["ts"]):
        windows = found[number]
        assert all(start <= local < last for start, last in windows)
        match trace["kind"]:
            case "TUMBLE":
                expected = [(end - size, end)]
            case "HOP":
                first = min(windows)[1]
                expected = [(last - size, last) for last in range(first, first + size, step)]
                assert first - step < end <= first
            case _:
                start, last = windows[0][0], windows[-1][1]
                assert (last - start) % size == 0 or last - start == size
                expected = [(start, one) for one in range(end, start + size + 1, step)]
        assert windows == expected, f"row {number}"
        if end in known:
            start, last = known[end]
            assert windows[-1][1] == last
            assert windows[0][0] == start or trace["kind"] == "HOP"
    assert tester.late_rows == 0


@pytest.mark.parametrize("traces", ["slices"], indirect=True)
@pytest.mark.parametrize("pre_aggregated", [True, False], ids=["slices", "rows"])
def test_slices_are_those_of_flink(traces: Any, pre_aggregated: bool) -> None:
    traces.replay_share(
        partial(replay_slices, pre_aggregated=pre_aggregated), f"pre-aggregated: {pre_aggregated}"
    )


SQL_ROWS = "k string, at bigint, id bigint, v bigint, x double, d bigint"
SQL_RESULTS = (
    "rows bigint, count bigint, sum bigint, min bigint, max bigint, avg bigint, sum_x double, min_x double, "
    "max_x double, avg_x double, distinct_d bigint, ids array<bigint>"
)


def replay_sql_windows(trace: Trace, pre_aggregated: bool) -> None:
    session = trace["kind"] == "SESSION"
    if session and pre_aggregated:
        return  # as in Flink, sessions have no local stage
    tester = WindowTester(
        SessionUnsliceAssigner(trace["size"], trace["tz"]) if session else assigner(trace),
        aggregates(),
        SQL_ROWS,
        SQL_RESULTS,
        {"id": pa.list_(pa.int64())},
        pre_aggregated=pre_aggregated,
    )
    rows: list[dict[str, Any]] = []
    output: list[list[Any]] = []
    for op in [*trace["input"], ["w", MAX_WATERMARK]]:
        if op[0] == "r":
            _, id_, at, key, v, x, d = op
            rows.append({"k": key if trace["keyed"] else "", "at": at, "id": id_, "v": v, "x": x, "d": d})
            continue
        tester.push(rows)
        rows = []
        tester.restart()
        for row in tester.advance_watermark(op[1]):
            key, *columns = row.values()
            output.append([key if trace["keyed"] else None, *columns])
    wanted = trace["ideal_output"] if trace["suspect"] else trace["output"]
    assert sorted(output, key=str) == sorted(wanted, key=str)
    shown = {row for *_, ids in wanted for row in ids}
    assert tester.late_rows == len({op[1] for op in trace["input"] if op[0] == "r"} - shown)
    assert tester.pending == (0, None)


@pytest.mark.parametrize("traces", ["sql_windows"], indirect=True)
@pytest.mark.parametrize("pre_aggregated", [True, False], ids=["slices", "rows"])
def test_sql_windows_equal_flinks(traces: Any, pre_aggregated: bool) -> None:
    traces.replay_share(
        partial(replay_sql_windows, pre_aggregated=pre_aggregated), f"pre-aggregated: {pre_aggregated}"
    )
