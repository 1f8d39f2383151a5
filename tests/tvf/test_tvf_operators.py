"""Window operators compared with windows in plain Python, for any rows and watermarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvf_model import Model, Row, value_counts

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf import (
    CumulativeSliceAssigner,
    GlobalWindowAggregate,
    HoppingSliceAssigner,
    TumblingSliceAssigner,
    WindowResults,
)
from timerheap.tvf.accumulators import Aggregate
from timerheap.tvf.aggregates import (
    Aggregation,
    Avg,
    Count,
    Max,
    Min,
    Partials,
    PythonAggregate,
    Sum,
    Variance,
)
from timerheap.tvf.distinct import CountDistinct
from timerheap.tvf.slices import SliceAssigner

HOUR = 3_600_000
SPRING, AUTUMN = 1615705200000, 1636264800000  # the changes to and from summer time in New York in 2021


class Collect:
    """Collect the values with their counts."""

    def create_accumulator(self) -> dict[Any, int]:
        return {}

    def add(self, value: Any, accumulator: dict[Any, int], by: int = 1) -> dict[Any, int]:
        accumulator[value] = accumulator.get(value, 0) + by
        return accumulator

    def merge(self, acc_a: dict[Any, int], acc_b: dict[Any, int]) -> dict[Any, int]:
        for value, count in acc_b.items():
            self.add(value, acc_a, count)
        acc_b.clear()  # a function may modify its accumulators
        return acc_a

    def get_result(self, accumulator: dict[Any, int]) -> dict[Any, int]:
        return {value: count for value, count in accumulator.items() if count and value is not None}


def aggregates() -> list[Aggregate]:
    return [
        Sum("v", np.int64),
        Count("v"),
        Min("v", np.int64),
        Max("v", np.int64),
        CountDistinct("v", np.int64),
        Count(),
        Avg("v", np.float64),
        Variance("var_pop", "v"),
        PythonAggregate(Collect(), "v"),
    ]


def expected(rows: list[Row]) -> list[Any]:
    counts = value_counts(rows)
    n, total = sum(counts.values()), sum(value * count for value, count in counts.items())
    mean = total / n if n else None
    square = sum(count * (value - mean) ** 2 for value, count in counts.items()) / n if n else None
    return [
        total if n else None,
        n,
        min(counts, default=None),
        max(counts, default=None),
        len(counts),
        len(rows),
        mean,
        None if square is None else pytest.approx(square, abs=1e-6),
        counts,
    ]


Windows = dict[tuple[int, int, int], list[Any]]


def shown(fired: WindowResults) -> Windows:
    columns = zip(*(column.tolist() for column in fired.results), strict=True)
    keys = zip(fired.key_ids.tolist(), fired.window_starts.tolist(), fired.window_ends.tolist(), strict=True)
    found = dict(zip(keys, map(list, columns), strict=True))
    assert len(found) == len(fired), "a window fired twice"
    assert fired.window_ends.tolist() == sorted(fired.window_ends.tolist())
    return found


def check(fired: WindowResults, wanted: dict[tuple[int, int, int], list[Row]]) -> None:
    assert shown(fired) == {window: expected(rows) for window, rows in wanted.items()}


@st.composite
def windows(draw: st.DrawFn) -> tuple[Model, SliceAssigner]:
    zone = draw(st.sampled_from(["UTC", "America/New_York"]))
    step = draw(st.sampled_from([1_000, 60_000, HOUR // 2, HOUR]))
    size = step * draw(st.integers(1, 9))
    where: Any = {"offset": draw(st.integers(-step + 1, step - 1)), "time_zone": zone}
    match kind := draw(st.sampled_from(["TUMBLE", "HOP", "CUMULATE"])):
        case "TUMBLE":
            assigner: SliceAssigner = TumblingSliceAssigner(step, **where)
            size = step
        case "HOP":
            size += step // draw(st.sampled_from([1, 2, 3, 4, 5])) if size > step else 0
            assigner = HoppingSliceAssigner(size, step, **where)
        case _:
            assigner = CumulativeSliceAssigner(size, step, **where)
    return Model(kind, size, step, where["offset"], zone), assigner


def times(step: int) -> st.SearchStrategy[int]:
    """Return times in few windows, some of them around a clock change."""
    return st.builds(
        lambda start, slices, rest: start + slices * step + rest,
        st.sampled_from([SPRING, AUTUMN, 0]),
        st.integers(-12, 12),
        st.sampled_from([-1, 0, 1, 7]),
    )


def steps(step: int) -> st.SearchStrategy[list[tuple[list[Row], int | None]]]:
    values = st.one_of(st.none(), st.integers(-9, 9))
    row = st.tuples(st.integers(0, 3), times(step), values)
    return st.lists(st.tuples(st.lists(row, max_size=6), st.one_of(st.none(), times(step))), max_size=8)


def columns(rows: list[Row]) -> tuple[Any, ...]:
    keys, timestamps, values = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
    return keys, timestamps, {"v": values}


@settings(max_examples=150)
@given(data=st.data())
def test_one_stage_equals_the_model(data: st.DataObject) -> None:
    model, assigner = data.draw(windows())
    operator = GlobalWindowAggregate(assigner, aggregates())
    for rows, watermark in data.draw(steps(model.step)):
        late_by = [model.add(row) for row in rows]
        late = operator.add(*columns(rows))
        assert dict(zip(late.rows.tolist(), late.late_by.tolist(), strict=True)) == {
            row: by for row, by in enumerate(late_by) if by
        }
        assert operator.late_rows == model.late
        check(operator.open_windows(), model.open_windows())
        if watermark is not None:
            check(operator.advance_watermark(watermark), model.advance(watermark))
    check(operator.advance_watermark(MAX_WATERMARK), model.advance(MAX_WATERMARK))
    assert len(operator) == 0
    assert operator.next_timer() is None


@settings(max_examples=100)
@given(data=st.data())
def test_two_stages_equal_the_model(data: st.DataObject) -> None:
    model, assigner = data.draw(windows())
    after = GlobalWindowAggregate(assigner, aggregates())
    local = Aggregation(aggregates())
    for rows, watermark in [*data.draw(steps(model.step)), ([], MAX_WATERMARK)]:
        for row in rows:
            model.add(row)
        keys, timestamps, inputs = columns(rows)
        after.merge(local.accumulate(keys, assigner.assign_slice_ends(timestamps), inputs))
        if watermark is not None:
            check(after.advance_watermark(watermark), model.advance(watermark))
    assert len(after) == 0


@settings(max_examples=100)
@given(data=st.data(), by_changes=st.booleans())
def test_a_restored_operator_continues_like_the_original(data: st.DataObject, by_changes: bool) -> None:
    model, assigner = data.draw(windows())
    operator = GlobalWindowAggregate(assigner, aggregates())
    stored: dict[int, Partials] = {}
    for rows, watermark in [*data.draw(steps(model.step)), ([], MAX_WATERMARK)]:
        for row in rows:
            model.add(row)
        operator.add(*columns(rows))
        if watermark is not None:
            check(operator.advance_watermark(watermark), model.advance(watermark))
        changed, gone = operator.changes()
        stored |= {end: changed[changed.slice_ends == end] for end in set(changed.slice_ends.tolist())}
        for end in gone.tolist():
            stored.pop(end, None)
        kept = operator.aggregation.concatenate(stored.values()) if by_changes else operator.snapshot()
        assert set(stored) == set(operator.snapshot().slice_ends.tolist())
        if data.draw(st.booleans()):
            late, timer = operator.late_rows, operator.next_timer()
            watermark = operator.watermark
            operator = GlobalWindowAggregate(assigner, aggregates())
            operator.restore(kept, watermark)
            operator.late_rows = late
            assert (operator.late_rows, operator.next_timer()) == (model.late, timer)
    assert not stored


@settings(max_examples=50)
@given(data=st.data())
def test_a_failing_function_leaves_the_state_unchanged(data: st.DataObject) -> None:
    model, assigner = data.draw(windows())

    class Fails(Collect):
        failing = False

        def merge(self, acc_a: dict[Any, int], acc_b: dict[Any, int]) -> dict[Any, int]:
            merged = super().merge(acc_a, acc_b)
            if self.failing:
                raise ZeroDivisionError
            return merged

        def get_result(self, accumulator: dict[Any, int]) -> dict[Any, int]:
            if self.failing:
                raise ZeroDivisionError
            return super().get_result(accumulator)

    function = Fails()
    operator = GlobalWindowAggregate(
        assigner, [*aggregates()[:-1], PythonAggregate(function, "v").named("fails")]
    )

    def twice(call: Callable[[], Any]) -> Any:
        """Call with the function failing, and again without if that raises."""
        before = operator.late_rows, operator.watermark
        function.failing = True
        try:
            return call()
        except ZeroDivisionError:
            assert (operator.late_rows, operator.watermark) == before
            function.failing = False
            return call()
        finally:
            function.failing = False

    for rows, watermark in [*data.draw(steps(model.step)), ([], MAX_WATERMARK)]:
        for row in rows:
            model.add(row)
        twice(lambda rows=rows: operator.add(*columns(rows)))
        if watermark is not None:
            check(
                twice(lambda watermark=watermark: operator.advance_watermark(watermark)),
                model.advance(watermark),
            )


def test_a_watermark_over_many_keys_slices_and_a_gap_fires_every_window() -> None:
    """Use more lines than one block of the grid, windows of many slices, and a gap of decades."""
    random = np.random.default_rng(4)
    keys, timestamps = random.integers(0, 60, 1_000), random.integers(0, 40_000, 1_000)
    timestamps[800:] += 10**12  # a gap of three decades
    values = random.integers(-100, 100, 1_000)
    for assigner, kind in (
        (HoppingSliceAssigner(1_000, 10), "HOP"),
        (CumulativeSliceAssigner(1_000, 10), "CUMULATE"),
    ):
        model = Model(kind, 1_000, 10)
        operator = GlobalWindowAggregate(assigner, [Sum("v", np.int64), CountDistinct("v", np.int64)])
        operator.add(keys, timestamps, {"v": values})
        for row in zip(keys.tolist(), timestamps.tolist(), values.tolist(), strict=True):
            model.add(row)
        for watermark in (20_000, MAX_WATERMARK):
            wanted = {
                window: [sum(value for *_, value in rows), len({value for *_, value in rows})]
                for window, rows in model.advance(watermark).items()
            }
            assert shown(operator.advance_watermark(watermark)) == wanted


def test_processing_time_has_no_late_rows() -> None:
    minutes = GlobalWindowAggregate(TumblingSliceAssigner(60_000, event_time=False), [Count()])
    minutes.add([1, 2], 59_999)
    assert minutes.next_timer() == 59_999
    assert len(minutes.advance_watermark(59_998)) == 0
    assert minutes.advance_watermark(59_999).key_ids.tolist() == [1, 2]
    assert len(minutes.add([3], 30_000).rows) == 0  # the clock was set back
    fired = minutes.advance_watermark(119_999)
    assert (fired.key_ids.tolist(), fired.window_starts.tolist()) == ([3], [60_000])
    assert minutes.late_rows == 0


def test_a_lower_watermark_is_ignored() -> None:
    operator = GlobalWindowAggregate(TumblingSliceAssigner(10), [Count()])
    assert operator.watermark == MIN_WATERMARK
    operator.advance_watermark(9)
    assert len(operator.advance_watermark(-5)) == 0
    assert operator.watermark == 9
    with pytest.raises(TypeError, match="watermark must be an int"):
        operator.advance_watermark(1.5)  # type: ignore[arg-type]


def test_invalid_input_raises_and_changes_nothing() -> None:
    operator = GlobalWindowAggregate(TumblingSliceAssigner(10), [Min("v", np.int64)])
    with pytest.raises(KeyError, match="v"):
        operator.add([1], [1], {"w": [1]})
    with pytest.raises(TypeError, match="v must be integers \\(int64\\), got 'x'"):
        operator.add([1], [1], {"v": ["x"]})
    with pytest.raises(TypeError, match="v must be integers \\(int64\\), got float64"):
        operator.add([1], [1], {"v": [1.5]})
    with pytest.raises(ValueError, match="v must be a column of 1 rows, got shape \\(2,\\)"):
        operator.add([1], [1], {"v": [1, 2]})
    with pytest.raises(ValueError, match="timestamps must have 1 rows, like the other columns, got 2"):
        operator.add([1], [1, 2], {"v": [1]})
    with pytest.raises(ValueError, match="timestamps must not be null, got 1 nulls"):
        operator.add([1, 2], np.ma.masked_array([1, 2], [True, False]), {"v": [1, 2]})
    with pytest.raises(OverflowError, match="a slice's end must fit into int64, got"):
        operator.add([1], [2**63 - 5], {"v": [1]})
    assert len(operator) == 0
    assert operator.next_timer() is None
