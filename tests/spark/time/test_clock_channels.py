"""The watermark of a key group equals a plain model of Flink's rules, also after it is reloaded."""

from __future__ import annotations

import sys
from collections import deque
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timerheap import MIN_WATERMARK, WatermarkStrategy
from timerheap.spark._exchange.observed_times import merged
from timerheap.spark._exchange.observed_times import observed as observed_rows
from timerheap.spark._group.stored.watermark_bytes import decode_watermark, encode_watermark
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._observed import OBSERVED
from timerheap.watermarks import WatermarkGenerator
from timerheap.watermarks.generators import BoundedOutOfOrdernessWatermarks

DELAY, TIMEOUT = 5, 30
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(DELAY)
CHANNELS = st.sampled_from([None, "", "JFK", "Zoë"])
SEEN = st.lists(st.tuples(st.integers(0, 1), CHANNELS, st.none() | st.integers(0, 200), st.integers(1, 3)))
BATCHES = st.lists(st.tuples(SEEN, st.integers(0, 40), st.booleans()), max_size=20)


class Model:
    """A model with two inputs; a channel is [watermark, active, counts, active at]."""

    def __init__(self, timeout: int | None) -> None:
        self.timeout = timeout
        self.inputs: list[dict[str | None, list[Any]]] = [{}, {}]
        self.outputs = [MIN_WATERMARK, MIN_WATERMARK]
        self.watermark = MIN_WATERMARK
        self.begun: int | None = None
        self.without_rows = True  # whether an input that has had no rows counts

    def batch(self, seen: list[tuple[int, str | None, int | None, int]], now: int) -> None:
        self.begun = now if self.begun is None else self.begun
        for number, name, _, _ in seen:
            channels = self.inputs[number]
            own = channels[name][0] if name in channels else MIN_WATERMARK
            back = name not in channels or not channels[name][1]
            counts = own >= self.outputs[number] if back else channels[name][2]
            channels[name] = [own, True, counts, now]
        self.combine()
        risen = set()
        for number, name, timestamp, _ in seen:
            channel = self.inputs[number][name]
            if timestamp is not None and timestamp - DELAY - 1 > channel[0]:
                channel[0] = timestamp - DELAY - 1
                channel[2] = channel[2] or channel[0] >= self.outputs[number]
                risen.add(number)
        for number in risen:  # a returning channel without a new watermark has no effect
            self.settle(number)
        self.combine()
        if self.timeout is not None:
            self.without_rows = now - self.begun <= self.timeout
            for number, channels in enumerate(self.inputs):
                for channel in channels.values():
                    if channel[1] and now - channel[3] > self.timeout:
                        channel[1] = channel[2] = False
                        held = channel[0] == self.outputs[number]
                        if held and not any(c[1] for c in channels.values()):
                            self.outputs[number] = max(c[0] for c in channels.values())
                        elif held:
                            self.settle(number)
            self.combine()

    def settle(self, number: int) -> None:
        counting = [c[0] for c in self.inputs[number].values() if c[2]]
        if counting:
            self.outputs[number] = max(self.outputs[number], min(counting))

    def combine(self) -> None:
        active = [any(c[1] for c in i.values()) if i else self.without_rows for i in self.inputs]
        marks = [w for w, a in zip(self.outputs, active, strict=True) if a]
        self.watermark = max(self.watermark, min(marks) if marks else max(self.outputs))


@given(BATCHES, st.booleans())
@example(
    [
        ([(0, None, None, 1), (1, "", 1, 1), (1, "JFK", 0, 1)], 0, False),
        ([(1, None, None, 1)], 31, False),
        ([(1, "", None, 1)], 0, False),
    ],
    True,
)
def test_the_watermark_equals_the_model(batches: list[Any], idle: bool) -> None:
    strategy = STRATEGY.with_idleness(TIMEOUT) if idle else STRATEGY
    columns = ("airport", None)
    state, model = WatermarkState((strategy, strategy), columns), Model(TIMEOUT if idle else None)
    now = 0
    for seen, pause, reload in batches:
        now += pause
        table = merged(
            [pa.Table.from_pylist([dict(zip(OBSERVED.names, row, strict=True))], OBSERVED) for row in seen]
        )
        state.observe(table, now, "run")
        model.batch([tuple(row.values()) for row in table.to_pylist()], now)
        assert state.watermark == model.watermark
        active_at = [c[3] for i in model.inputs for c in i.values() if c[1]]
        active_at += [model.begun for i in model.inputs if not i and model.without_rows]
        assert state.next_change() == (min(active_at) + TIMEOUT if idle and active_at else None)
        if reload:
            stored = state.to_bytes()
            state = WatermarkState.from_bytes(stored, (strategy, strategy), columns)
            assert state.to_bytes() == stored


def observed(*rows: tuple[int, str | None, int | None]) -> pa.Table:
    return merged([pa.table([[i], [name], [t], [1]], schema=OBSERVED) for i, name, t in rows])


def test_a_new_channel_neither_stalls_nor_lowers_the_watermark() -> None:
    state = WatermarkState((STRATEGY,), ("airport",))
    assert state.observe(observed((0, "a", 100), (0, "b", 50)), None, None) == 44
    assert state.observe(observed((0, "late comer", 10)), None, None) == 44
    assert state.observe(observed((0, "b", 100)), None, None) == 94
    assert state.observe(observed((0, "late comer", 110), (0, "a", 300), (0, "b", 300)), None, None) == 104


def test_time_between_two_runs_does_not_count_as_idle() -> None:
    state = WatermarkState((STRATEGY.with_idleness(10),), ("airport",))
    state.observe(observed((0, "a", 100), (0, "b", 50)), 1_000, "first")
    assert state.observe(observed((0, "a", 200)), 90_000, "second") == 44
    assert state.next_change() == 1_010, "if the sources turn out to be drained"
    assert state.observe(observed((0, "a", 200)), 90_010, "second") == 44
    assert state.observe(observed((0, "a", 200)), 90_011, "second") == 194


def reloaded(state: WatermarkState, strategies: tuple[WatermarkStrategy, ...]) -> WatermarkState:
    columns = tuple(input_.column for input_ in state._inputs)
    loaded = WatermarkState.from_bytes(state.to_bytes(), strategies, columns)
    assert loaded.to_bytes() == state.to_bytes()
    return loaded


WALL_CLOCK = STRATEGY.with_wall_clock(after=1_000, lag=100)


def test_a_quiet_stream_follows_the_clock_until_its_next_row() -> None:
    state = WatermarkState((WALL_CLOCK,), (None,))
    assert state.observe(observed((0, None, 50_000)), 50_000, "run") == 49_994
    assert state.observe(observed(), 50_999, "run") == 49_994
    assert state.next_change() == 50_999
    state = reloaded(state, (WALL_CLOCK,))
    assert state.observe(observed(), 51_000, "run") == 50_900
    again = reloaded(state, (WALL_CLOCK,))
    for attempt in (state, again):
        assert attempt.next_change() == 50_999, "it changes in every micro-batch"
        assert attempt.observe(observed(), 51_500, "run") == 51_400
        assert attempt.observe(observed((0, None, 51_450)), 51_600, "run") == 51_444
        assert attempt.observe(observed((0, None, 51_000)), 52_000, "run") == 51_444
        assert attempt.observe(observed(), 52_999, "run") == 51_444, "it was quiet for less than a second"
        assert attempt.observe(observed(), 53_000, "run") == 52_900


def test_a_clock_that_is_behind_the_rows_does_not_move_the_watermark() -> None:
    state = WatermarkState((WALL_CLOCK,), (None,))
    assert state.observe(observed((0, None, 90_000)), 50_000, "run") == 89_994
    assert state.observe(observed(), 60_000, "run") == 89_994


def test_a_quiet_channel_follows_the_clock() -> None:
    state = WatermarkState((WALL_CLOCK,), ("airport",))
    assert state.observe(observed((0, "JFK", 50_000), (0, "LGA", 40_000)), 50_000, "run") == 39_994
    assert state.observe(observed((0, "JFK", 50_999)), 50_999, "run") == 39_994
    assert state.observe(observed((0, "JFK", 51_500)), 51_500, "run") == 51_400
    assert state.observe(observed((0, "JFK", 51_600), (0, "LGA", 40_500)), 51_600, "run") == 51_400
    assert state.observe(observed((0, "JFK", 53_000), (0, "LGA", 52_000)), 53_000, "run") == 51_994


@pytest.mark.parametrize("timeout", [500, 5_000])
def test_idle_channels_follow_the_clock_when_all_are_quiet(timeout: int) -> None:
    strategy = WALL_CLOCK.with_idleness(timeout)
    state = WatermarkState((strategy,), ("airport",))
    state.observe(observed((0, "JFK", 50_000), (0, "LGA", 40_000)), 50_000, "run")
    for now in (50_400, 50_600, 51_000, 51_200, 56_000, 57_000):
        state.observe(observed(), now, "run")
        state = reloaded(state, (strategy,))
        before = 49_994 if now > 50_000 + timeout else 39_994  # JFK's, once LGA is idle
        assert state.watermark == (now - 100 if now >= 51_000 else before)
    assert state.observe(observed((0, "JFK", 57_000)), 57_100, "run") == 56_994


def test_an_input_without_a_row_follows_the_clock() -> None:
    strategies = (STRATEGY, WALL_CLOCK)
    state = WatermarkState(strategies, (None, None))
    assert state.observe(observed((0, None, 50_000)), 50_000, "run") == MIN_WATERMARK
    state = reloaded(state, strategies)
    assert state.observe(observed((0, None, 50_500)), 51_000, "run") == 50_494


@pytest.mark.parametrize("column", [None, "airport"])
def test_an_input_that_never_has_rows_holds_the_watermark_until_it_is_idle(column: str | None) -> None:
    """As in Flink, where a source without splits is not idle before its timeout."""
    name = None if column is None else "JFK"
    steps = [
        ([(0, None, 50_000)], 50_000, MIN_WATERMARK, MIN_WATERMARK),
        ([(0, None, 50_500)], 51_000, MIN_WATERMARK, MIN_WATERMARK),
        ([], 51_001, MIN_WATERMARK, 50_494),
        ([(0, None, 50_600)], 51_002, MIN_WATERMARK, 50_594),
        ([(1, name, 20_000)], 51_003, 19_994, 50_594),
        ([(0, None, 50_900), (1, name, 50_700)], 51_004, 50_694, 50_694),
    ]
    for idles, strategy in enumerate((STRATEGY, STRATEGY.with_idleness(1_000))):
        state = WatermarkState((STRATEGY, strategy), (None, column))
        for rows, now, *watermarks in steps:
            assert state.observe(observed(*rows), now, "run") == watermarks[idles]
            changes = {51_000} if now <= 51_000 else {52_003, 52_004} if now > 51_002 else {None}
            assert state.next_change() in (changes if idles else {None})
            state = reloaded(state, (STRATEGY, strategy))


def test_an_input_with_channels_that_never_has_rows_follows_the_clock() -> None:
    strategies, columns = (STRATEGY, WALL_CLOCK), (None, "airport")
    state = WatermarkState(strategies, columns)
    state.observe(observed((0, None, 60_000)), 50_000, "run")
    state = WatermarkState.from_bytes(state.to_bytes(), strategies, columns)
    assert state.next_change() == 50_999
    assert state.observe(observed(), 51_000, "run") == 50_900
    assert state.observe(observed((1, "JFK", 50_950)), 51_100, "run") == 50_944


def test_time_between_two_runs_does_not_count_as_quiet() -> None:
    state = WatermarkState((WALL_CLOCK,), ("airport",))
    state.observe(observed((0, "a", 100), (0, "b", 50)), 1_000, "first")
    assert state.observe(observed((0, "a", 200)), 90_000, "second") == 44
    assert state.observe(observed((0, "a", 200)), 91_000, "second") == 194


def test_time_between_runs_counts_once_all_rows_have_been_read() -> None:
    state = WatermarkState((WALL_CLOCK,), ("airport",))
    state.observe(observed((0, "a", 100), (0, "b", 50)), 1_000, "first")
    assert state.observe(observed(), 1_500, "the clock", drained=True) == 44
    state = reloaded(state, (WALL_CLOCK,))
    assert state.observe(observed((0, "a", 1_800)), 1_800, "second") == 44, "b may have rows, too"
    for attempt in (state, reloaded(state, (WALL_CLOCK,))):
        assert attempt.observe(observed(), 2_100, "the clock", drained=True) == 1_794, "b has been quiet"
    state = reloaded(state, (WALL_CLOCK,))
    assert state.observe(observed((0, "a", 2_200)), 2_200, "third") == 2_000, "b is where the clock was"
    assert state.observe(observed(), 3_200, "the clock", drained=True) == 3_100


def test_an_input_without_a_row_is_quiet_since_the_first_run() -> None:
    idle = STRATEGY.with_idleness(1_000)
    strategies, columns = (STRATEGY, idle), (None, None)
    state = WatermarkState(strategies, columns)
    for now, run in ((1_000, "first"), (1_800, "second"), (2_100, "third")):
        assert state.observe(observed((0, None, now)), now, run) == MIN_WATERMARK
        drained = state.observe(observed(), now + 50, "the clock", drained=True)
        assert drained == (MIN_WATERMARK if now < 2_000 else 2_094)
        state = WatermarkState.from_bytes(state.to_bytes(), strategies, columns)


def test_a_clock_that_is_set_back_moves_nothing_until_it_has_caught_up() -> None:
    hour = 3_600_000
    state = WatermarkState((WALL_CLOCK.with_idleness(500),), ("airport",))
    state.observe(observed((0, "a", hour), (0, "b", hour)), hour, "run")
    assert state.observe(observed(), hour + 1_500, "run") == hour + 1_400
    for back in (1_000, 5_000):
        assert state.observe(observed(), back, "run") == hour + 1_400
    state = reloaded(state, (WALL_CLOCK.with_idleness(500),))
    assert (
        state.observe(observed((0, "a", hour + 2_000), (0, "b", hour + 1_600)), 6_000, "run") == hour + 1_594
    )
    assert state.observe(observed(), 7_000, "run") == hour + 1_594, "quiet, and the clock is behind"
    assert state.observe(observed(), hour + 3_000, "run") == hour + 2_900


def test_the_clock_keeps_when_rows_have_arrived_if_micro_batches_have_no_time() -> None:
    state = WatermarkState((STRATEGY,), ("airport",))
    state.observe(observed((0, "a", 100), (0, "b", 50)), None, "first", at=1_000)
    state = reloaded(state, (STRATEGY,))
    state.observe(observed((0, "a", 200)), None, "second", at=2_000)
    assert decode_watermark(state.to_bytes()).inputs[0].active_at.tolist() == [2_000, 1_000]


FAR = 253_402_300_799_000  # the last second of the year 9999
TODAY = 1_700_000_000_000


def batch_of(*rows: tuple[int, str | None, int], tasks: int = 1) -> pa.Table:
    """Return what so many tasks observe of rows: inputs, channels and times."""
    tables = []
    for part in (rows[task::tasks] for task in range(tasks)):
        if part:
            inputs, names, times = (list(column) for column in zip(*part, strict=True))
            channels = None if set(names) == {None} else pa.array(names, pa.string())
            numbers = np.array(inputs, np.int8) if any(inputs) else None
            tables.append(observed_rows(len(part), np.array(times), None, numbers, channels))
    return merged(tables)


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_a_row_far_ahead_of_the_clock_does_not_move_the_watermark(tasks: int) -> None:
    state = WatermarkState((STRATEGY,), (None,))
    rows = [(0, None, TODAY), (0, None, FAR), (0, None, TODAY + 50)]
    assert state.observe(batch_of(*rows, tasks=tasks), None, None, TODAY + 100) == TODAY + 50 - DELAY - 1
    assert state.ahead == (None, FAR)
    state = reloaded(state, (STRATEGY,))
    found = state.observe(batch_of((0, None, TODAY + 80)), None, None, TODAY + 100)
    assert (found, state.ahead) == (TODAY + 80 - DELAY - 1, None)
    assert state.observe(batch_of((0, None, FAR)), None, None, TODAY + 200) == TODAY + 80 - DELAY - 1
    assert state.newest() == TODAY + 80


def test_a_channel_far_ahead_of_the_clock_is_named_and_holds_the_others() -> None:
    state = WatermarkState((STRATEGY, STRATEGY), ("airport", None))
    rows = [(0, "JFK", TODAY), (0, "LGA", FAR - 1), (1, None, TODAY + 5), (1, None, TODAY - 10**10)]
    assert state.observe(batch_of(*rows), TODAY, None) == MIN_WATERMARK + 0
    assert state.ahead == ("LGA", FAR - 1)
    rows = [(0, "LGA", TODAY + 20), (0, "LGA", FAR), (0, "LGA", TODAY - 10**10), (1, None, TODAY + 500)]
    assert state.observe(batch_of(*rows), TODAY, None) == TODAY - DELAY - 1, "JFK holds it"
    assert state.ahead == ("LGA", FAR)
    assert state.explain()[0].channels[1].watermark == TODAY + 20 - DELAY - 1


@pytest.mark.parametrize(
    ("strategy", "at"),
    [(STRATEGY.with_max_ahead(None), TODAY), (STRATEGY.with_max_ahead("2 days"), TODAY), (STRATEGY, FAR)],
)
def test_times_ahead_count_with_another_limit_and_another_clock(strategy: WatermarkStrategy, at: int) -> None:
    state = WatermarkState((strategy,), (None,))
    rows = batch_of((0, None, TODAY), (0, None, FAR))
    assert (state.observe(rows, at, None), state.ahead) == (FAR - DELAY - 1, None)


@given(
    st.lists(st.tuples(st.integers(0, 1), CHANNELS, st.integers(-(2**40), 2**40)), min_size=1),
    st.integers(1, 4),
)
def test_tasks_observe_together_what_one_task_does(rows: list[Any], tasks: int) -> None:
    day = 86_400_000
    every = batch_of(*rows, tasks=tasks).to_pylist()
    assert every == batch_of(*rows).to_pylist()
    found = {(row["input"], row["channel"]): row["max_timestamp"] for row in every}
    for number, name in {row[:2] for row in rows}:
        times = [time for *of, time in rows if of == [number, name]]
        assert found.pop((number, name)) == max(times)
        before = [time for time in times if time <= max(times) - day]
        assert found.pop((number + 2, name), None) == max(before, default=None)
    assert not found


def test_rows_too_far_ahead_do_not_move_the_watermark() -> None:
    state = WatermarkState((STRATEGY,), ("airport",))
    assert state.observe(observed((0, None, None)), None, None) == MIN_WATERMARK
    assert state.observe(observed((0, None, 50)), None, None) == 44


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("airport", ["JFK", "LGA"]), (None, [None])),
        ((None, [None]), ("airport", ["JFK", "LGA"])),
        (("airport", ["JFK", "LGA"]), ("carrier", ["AA", "LGA"])),
    ],
    ids=["removed", "added", "changed"],
)
@pytest.mark.parametrize("number", [0, 1])
def test_another_channel_column_drops_the_old_channels_and_keeps_the_watermark(
    before: tuple[str | None, list[str | None]], after: tuple[str | None, list[str | None]], number: int
) -> None:
    other = 1 - number
    columns: list[str | None] = ["plane", "plane"]
    columns[number] = before[0]
    stored = WatermarkState((STRATEGY, STRATEGY), tuple(columns))
    stored.observe(observed(*((number, name, 100) for name in before[1]), (other, "B6", 500)), None, "first")
    assert stored.watermark == 94

    columns[number] = after[0]
    state = WatermarkState.from_bytes(stored.to_bytes(), (STRATEGY, STRATEGY), tuple(columns))
    assert state.observe(observed((other, "B6", 600)), None, "second") == 94
    assert not state.notices, "until the input has rows nothing is known of its new channels"
    assert state.observe(observed(*((number, name, 50) for name in after[1])), None, "second") == 94
    (notice,) = state.notices
    assert notice.startswith("right.channel: " if number else "channel: ")
    assert all(repr(column) in notice for column in (before[0], after[0]) if column is not None)
    state.notices.clear()

    reloaded = WatermarkState.from_bytes(state.to_bytes(), (STRATEGY, STRATEGY), tuple(columns))
    for each in (state, reloaded):
        *rest, last = after[1]
        each.observe(observed(*((number, name, 300) for name in rest), (number, last, 200)), None, "second")
        assert each.watermark == 194
        assert not each.notices
        assert [channel.name for channel in each.explain()[number].channels] == after[1]


def test_the_channels_of_a_stale_watermark_hold_the_watermark_until_they_advance() -> None:
    idle = STRATEGY.with_idleness(10)
    state = WatermarkState((idle,), ("airport",))
    state.observe(observed((0, "a", 100), (0, "b", 50)), 1_000, "first")
    state.observe(observed((0, "a", 150)), 1_020, "first")
    assert state.watermark == 144, "b is idle"
    stale = WatermarkState.from_bytes(state.to_bytes(), (idle,), ("airport",), stale=True)
    assert stale.follow(194) == 194, "where the group has been run up to"
    assert stale.observe(observed((0, "a", 300)), 9_000, "second") == 194, "b may be anywhere"
    assert stale.observe(observed((0, "b", 250)), 9_001, "second") == 244
    assert stale.observe(observed((0, "a", 400)), 9_012, "second") == 394, "b is idle"


def many_channels() -> WatermarkState:
    state = WatermarkState((STRATEGY.with_idleness(TIMEOUT), STRATEGY), ("airport", None))
    state.observe(observed((0, "JFK", 100), (0, "Zoë", 50), (0, "", None), (1, None, 7)), 1_000, "run")
    return state


@given(at=st.integers(0, len(many_channels().to_bytes()) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_invalid_bytes_of_a_watermark_raise(at: int, byte: int, cut: bool) -> None:
    data = bytearray(many_channels().to_bytes())
    if cut:
        del data[at:]
    else:
        data[at] = byte
    try:
        state = WatermarkState.from_bytes(bytes(data), (STRATEGY, STRATEGY), ("airport", None))
    except ValueError:
        return
    assert not cut, "what is cut off raises"
    state.to_bytes()


def test_a_stored_watermark_holds_only_what_a_load_needs() -> None:
    state = WatermarkState((STRATEGY,), ("airport",))
    state.observe(observed((0, "a", 100)), None, "run", at=1_000)
    data = state.to_bytes()
    assert len(data) < 100
    state.observe(observed((0, "a", 90)), None, "another run", at=1_000)
    assert state.to_bytes() == data, "nothing expires, and no watermark has risen"


def test_a_query_with_fewer_inputs_than_its_checkpoint_raises() -> None:
    with pytest.raises(ValueError, match="which has an input 1, got 1 inputs; start a new checkpoint"):
        WatermarkState.from_bytes(many_channels().to_bytes(), (STRATEGY,), ("airport",))


def test_rows_without_channels_show_what_those_of_one_input_do() -> None:
    times, timed, one_input = np.array([5, 9, -3]), np.array([True, False, True]), np.zeros(3, np.int8)
    assert observed_rows(3, times).to_pylist() == [
        {"input": 0, "channel": None, "max_timestamp": 9, "count": 3}
    ]
    for arguments in ((times, None), (times, timed), (times, ~timed & False), (None, None)):
        assert observed_rows(3, *arguments).equals(observed_rows(3, *arguments, one_input))
    assert observed_rows(0, times[:0]).num_rows == 0


def test_channels_without_rows_cost_no_call() -> None:
    def calls(channels: int) -> int:
        """Count the Python calls of a micro-batch in which 2 channels of many have rows."""
        state = WatermarkState((STRATEGY.with_idleness(TIMEOUT),), ("airport",))
        every = pa.table(
            [[0] * channels, [str(i) for i in range(channels)], [100] * channels, [1] * channels],
            schema=OBSERVED,
        )
        state.observe(every, 1_000, "run")
        rows = observed((0, "1", 200), (0, "2", 300))
        count = 0

        def profile(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        state.observe(rows, 1_010, "run")
        state.next_change()
        sys.setprofile(None)
        return count

    assert calls(10_000) == calls(10)


def test_a_generator_for_each_channel_has_the_watermarks_of_a_common_delay() -> None:
    own = WatermarkStrategy.for_generator(lambda: BoundedOutOfOrdernessWatermarks(DELAY))
    states = [WatermarkState((strategy,), ("airport",)) for strategy in (own, STRATEGY)]
    for at in (100, 50, 90, 300):
        rows = observed((0, "a", at), (0, "b", at + 7))
        assert len({state.observe(rows, None, None) for state in states}) == 1
        states[0] = WatermarkState.from_bytes(states[0].to_bytes(), (own,), ("airport",))


class Counting(WatermarkGenerator):
    """Emits the largest time after each `every`th row."""

    def __init__(self, every: int = 3) -> None:
        self.every, self.rows, self.largest = every, 0, MIN_WATERMARK

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        self.rows += 1
        self.largest = max(self.largest, timestamp)

    def on_periodic_emit(self, output: Any) -> None:
        if self.rows >= self.every:
            self.rows = 0
            output.emit_watermark(self.largest)


COUNTING = WatermarkStrategy.for_generator(Counting)


@pytest.mark.parametrize("load", [False, True])
def test_a_generator_keeps_its_attributes_between_micro_batches(load: bool) -> None:
    state = WatermarkState((COUNTING, STRATEGY), ("airport", None))
    found = []
    for at in (100, 400, 300, 200, 500, 450, 600):
        state.observe(observed((0, "JFK", at), (0, "LGA", at + 7), (1, None, 10_000)), None, None)
        found.append(state.watermark)
        state = reloaded(state, (COUNTING, STRATEGY)) if load else state
    assert found == [MIN_WATERMARK, MIN_WATERMARK, 400, 400, 400, 500, 500]


def test_a_generator_counts_all_rows_of_a_micro_batch() -> None:
    state = WatermarkState((COUNTING,), (None,))
    assert state.observe(pa.table([[0], [None], [70], [2]], schema=OBSERVED), None, None) == MIN_WATERMARK
    state = reloaded(state, (COUNTING,))
    assert state.observe(pa.table([[0], [None], [60], [1_000]], schema=OBSERVED), None, None) == 70


def test_the_settings_of_a_generator_are_those_of_the_code_that_runs() -> None:
    stored = WatermarkState((COUNTING,), (None,))
    stored.observe(observed((0, None, 100)), None, None)
    two = WatermarkStrategy.for_generator(lambda: Counting(every=2))
    for strategy, watermark in ((COUNTING, MIN_WATERMARK), (two, 200), (STRATEGY, 200 - DELAY - 1)):
        state = WatermarkState.from_bytes(stored.to_bytes(), (strategy,), (None,))
        assert state.observe(observed((0, None, 200)), None, None) == watermark


class Remembering(WatermarkGenerator):
    """Has attributes of all types that are kept, and one that never changes."""

    zone = object()

    def __init__(self) -> None:
        self.inner, self.delays, self.first = BoundedOutOfOrdernessWatermarks(7), deque(maxlen=2), None
        self.seen: dict[Any, Any] = {}
        self.pause = timedelta(seconds=1)

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        self.first = max_timestamp if self.first is None else self.first
        self.delays.append(max_timestamp / 3)
        self.seen[max_timestamp, "at"] = {float("-inf"), True, "ä"}, [None, ()]
        self.watermark = self.inner.on_batch(max_timestamp, count, now)
        return self.watermark


def test_attributes_of_all_plain_types_are_kept() -> None:
    strategy = WatermarkStrategy.for_generator(Remembering)
    states = [WatermarkState((strategy,), (None,)) for _ in range(2)]
    for at in (100, 400, 300):
        for state in states:
            state.observe(observed((0, None, at)), None, None)
        states[1] = reloaded(states[1], (strategy,))
    states[1].observe(observed((0, None, 20)), None, None)
    states[0].observe(observed((0, None, 20)), None, None)
    (one, other) = (vars(state._inputs[0]._generators._of_channels[0]) for state in states)
    assert vars(one.pop("inner")) == vars(other.pop("inner"))
    assert one == other
    assert one["delays"] == deque([100.0, 20 / 3])
    assert states[1].to_bytes() == states[0].to_bytes()


def test_a_generator_whose_state_cannot_be_kept_raises() -> None:
    class Holding(WatermarkGenerator):
        def __init__(self) -> None:
            self.times: Any = None

        def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
            self.times = np.array([max_timestamp])
            return max_timestamp

    state = WatermarkState((WatermarkStrategy.for_generator(Holding),), (None,))
    state.observe(observed((0, None, 100)), None, None)
    with pytest.raises(TypeError, match=r"Holding.times must be a number.* got array\(\[100\]\); keep it"):
        state.to_bytes()


def test_a_generator_that_uses_its_row_raises() -> None:
    class Punctuated(WatermarkGenerator):
        def on_event(self, event: Any, timestamp: int, output: Any) -> None:
            if event == "flush":
                output.emit_watermark(timestamp)

    state = WatermarkState((WatermarkStrategy.for_generator(Punctuated),), (None,))
    with pytest.raises(TypeError, match=r"on_event\(\) must not use its event on Spark"):
        state.observe(observed((0, None, 100)), None, None)


@pytest.mark.parametrize(
    "generators", ["", "5", "[]", '["Counting", 3]', '["Counting", [0, 5]]', '["Counting", [0, {]]']
)
def test_a_state_of_generators_that_is_none_raises(generators: str) -> None:
    stored = WatermarkState((COUNTING,), (None,))
    stored.observe(observed((0, None, 100)), None, None)
    state = decode_watermark(stored.to_bytes())
    state.inputs[0].generators = generators
    with pytest.raises(ValueError, match="the watermark's state has no state of generators"):
        WatermarkState.from_bytes(encode_watermark(state), (COUNTING,), (None,))


def test_the_channels_of_the_metrics_are_the_active_ones_of_few() -> None:
    strategy = STRATEGY.with_idleness(1_000)
    state = WatermarkState((strategy, strategy, strategy), ("airport", "gate", None))
    state.observe(observed((0, "JFK", 100), (0, None, 90), (1, "JFK", 50), (2, None, 7)), 0, "run")
    assert state.channels() == {"JFK": 94, "channel 1": 84, "right.JFK": 44}
    state.observe(observed((0, "JFK", 200), (1, "B7", None)), 1_001, "run")
    assert state.channels() == {"JFK": 194}, "the others are idle, or have no watermark yet"
    state.observe(observed(*((0, f"{n}", 300) for n in range(99)), (1, "JFK", 300)), 1_002, "run")
    assert state.channels() == {"right.JFK": 294}, "the first input has more than 100"
