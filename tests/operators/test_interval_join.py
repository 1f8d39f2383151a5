"""The interval join compared with all pairs of rows, and Flink's behaviour in edge cases."""

from collections import Counter

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from interval_joins import LEFT, RIGHT, Arrived, feed, join, numbers, run

from timerheap import MAX_WATERMARK
from timerheap.flink import StreamRecord, Watermark
from timerheap.interval_join import ProcessJoinFunction
from timerheap.watermarks.output import WatermarkStatus

KEYS = st.sampled_from("ab")
SIDES = st.sampled_from([LEFT, RIGHT])
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("row"), SIDES, KEYS, st.integers(-3, 12)),  # before or after the watermark
        st.tuples(st.just("watermark"), SIDES, st.integers(0, 8)),  # after the input's last watermark
        st.tuples(st.just("status"), SIDES, st.sampled_from(WatermarkStatus)),
    ),
    max_size=60,
)
BOUNDS = st.tuples(st.integers(-10, 10), st.integers(-10, 10)).map(sorted)


@settings(max_examples=500)
@given(BOUNDS, st.booleans(), st.booleans(), OPS)
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "ProcessJoinFunction.process_element",
    "ProcessJoinFunction.Context.get_left_timestamp",
    "ProcessJoinFunction.Context.get_right_timestamp",
    "ProcessJoinFunction.Context.get_timestamp",
)
def test_every_pair_within_the_bounds_is_emitted_once_and_all_rows_are_removed(
    bounds, lower_inclusive, upper_inclusive, ops
):
    lower, upper = bounds
    function = join(lower, upper, lower_inclusive=lower_inclusive, upper_inclusive=upper_inclusive)

    def within(left, right):
        distance = right - left
        above = distance >= lower if lower_inclusive else distance > lower
        return above and (distance <= upper if upper_inclusive else distance < upper)

    assume(
        any(within(0, distance) for distance in range(lower, upper + 1))
    )  # a test below covers empty intervals

    def wanted(kept, watermark):
        """Return whether a row above the watermark could still be joined with this one."""
        later = range(watermark + 1, 200)
        if kept.side == LEFT:
            return any(within(kept.timestamp, timestamp) for timestamp in later)
        return any(within(timestamp, kept.timestamp) for timestamp in later)

    taken, records, late, watermark, last = [], [], 0, -20, {LEFT: -20, RIGHT: -20}
    with run(function) as operator:
        operator.process_watermark1(watermark)
        operator.process_watermark2(watermark)
        for number, (op, side, *arguments) in enumerate(ops):
            if op == "row":
                key, ahead = arguments
                if ahead == 0:
                    continue  # rows on the watermark have a test below
                arrived = Arrived(side, key, watermark + ahead, number)
                elements = feed(operator, arrived)
                if ahead < 0:
                    late += 1
                    assert elements == []
                else:
                    taken.append(arrived)
            elif op == "watermark":
                last[side] += arguments[0]
                process = operator.process_watermark1 if side == LEFT else operator.process_watermark2
                elements = process(last[side])
            else:
                process = (
                    operator.process_watermark_status1 if side == LEFT else operator.process_watermark_status2
                )
                elements = process(arguments[0])
            for element in elements:
                if isinstance(element, Watermark):
                    watermark = element.timestamp
            records += [element for element in elements if isinstance(element, StreamRecord)]

            # A row is kept while it can be joined, and until the watermark reaches its timestamp.
            kept = {
                (row.side, row.key) for row in taken if row.timestamp > watermark or wanted(row, watermark)
            }
            assert operator.num_keyed_state_entries() == len(kept)
        operator.process_watermark1(MAX_WATERMARK)
        operator.process_watermark2(MAX_WATERMARK)
        assert operator.num_keyed_state_entries() == 0
        assert operator.num_event_time_timers() == 0

    expected = [
        (left, right)
        for left in taken
        for right in taken
        if (left.side, right.side) == (LEFT, RIGHT)
        and left.key == right.key
        and within(left.timestamp, right.timestamp)
    ]
    assert Counter(records) == Counter(
        StreamRecord(
            (
                left.number,
                right.number,
                left.timestamp,
                right.timestamp,
                max(left.timestamp, right.timestamp),
            ),
            max(left.timestamp, right.timestamp),
        )
        for left, right in expected
    )
    assert function.num_late_records_dropped == late
    event(f"pairs: {min(len(expected), 5)}")


class Misses(ProcessJoinFunction):
    """Yields the numbers of the two rows, None for a row that is missing, and the timestamps."""

    def process_element(self, left, right, ctx):
        assert ctx.get_timestamp() == max(filter(None, (ctx.get_left_timestamp(), ctx.get_right_timestamp())))
        yield left and left["number"], right and right["number"]


@settings(max_examples=300)
@given(
    BOUNDS,
    st.sampled_from(["left", "right", "full"]),
    st.booleans(),
    st.lists(
        st.one_of(
            st.tuples(SIDES, KEYS, st.integers(-3, 12)),  # before or after the watermark
            st.tuples(st.just("watermark"), st.just(""), st.integers(1, 8)),
        ),
        max_size=60,
    ),
)
def test_an_outer_join_emits_each_row_without_a_match_once_the_watermark_has_passed_its_matches(
    bounds, how, has_condition, ops
):
    lower, upper = bounds
    outer = {"left": {LEFT}, "right": {RIGHT}, "full": {LEFT, RIGHT}}[how]
    last = {LEFT: upper, RIGHT: -lower}  # of the times of matches, from the time of a row
    outlives = {side: last[side] if side in outer else max(last[side], 0) for side in (LEFT, RIGHT)}
    watermark, buffered, matched, wanted, found = 100, [], set(), Counter(), Counter()

    def accepts(left, right):
        return not has_condition or (left["number"] + right["number"]) % 3 < 2

    def miss(row):
        return (row.number, None) if row.side == LEFT else (None, row.number)

    def remove(rows):
        """Remove rows of the model, and expect the misses among them."""
        for row in rows:
            buffered.remove(row)
            if row.side in outer and row not in matched:
                wanted[miss(row)] += 1

    def passed(rows):
        return [row for row in rows if row.timestamp + outlives[row.side] <= watermark]

    condition = accepts if has_condition else None
    with run(join(lower, upper, Misses(), how=how, condition=condition)) as operator:
        operator.process_watermark1(watermark)
        operator.process_watermark2(watermark)
        for number, (side, key, ahead) in enumerate([*ops, ("watermark", "", MAX_WATERMARK - 1_000)]):
            if side == "watermark":
                watermark += ahead
                elements = operator.process_watermark1(watermark) + operator.process_watermark2(watermark)
                remove(passed(buffered))
            else:
                arrived = Arrived(side, key, watermark + ahead, number)
                elements = feed(operator, arrived)
                if ahead >= 0 or side in outer:
                    for other in buffered:
                        distance = (other.timestamp - arrived.timestamp) * (1 if side == LEFT else -1)
                        pair = (arrived, other) if side == LEFT else (other, arrived)
                        near = other.side != side and other.key == key and lower <= distance <= upper
                        if near and accepts(pair[0].row, pair[1].row):
                            matched |= {other, arrived}
                            wanted[pair[0].number, pair[1].number] += 1
                    buffered.append(arrived)
                    remove(passed([arrived]) if side in outer else [])
            found.update(numbers(elements))
            assert found == wanted
        assert operator.num_keyed_state_entries() == operator.num_event_time_timers() == 0


def test_a_row_on_the_watermark_is_joined_with_the_rows_still_buffered():
    with run(join(0, 5)) as operator:
        feed(operator, Arrived(LEFT, "a", 5, 1))
        feed(operator, Arrived(LEFT, "a", 6, 2))
        operator.process_watermark1(10)
        operator.process_watermark2(10)
        assert numbers(feed(operator, Arrived(RIGHT, "a", 10, 3))) == [(2, 3)]
        assert numbers(feed(operator, Arrived(LEFT, "a", 10, 4))) == [(4, 3)]
        assert numbers(feed(operator, Arrived(LEFT, "a", 9, 5))) == []
        operator.process_watermark1(15)
        operator.process_watermark2(15)
        assert operator.num_keyed_state_entries() == 0


def test_timestamps_near_the_last_watermark_are_joined():
    late = MAX_WATERMARK - 1
    with run(join(-(2**62), 2**62)) as operator:
        for timestamp in (late - 2**62 - 1, late - 2**62, late):
            feed(operator, Arrived(LEFT, "a", timestamp, timestamp))
        assert numbers(feed(operator, Arrived(RIGHT, "a", late, 0))) == [(late - 2**62, 0), (late, 0)]
        assert numbers(feed(operator, Arrived(RIGHT, "a", MAX_WATERMARK, 1))) == [(late, 1)]
        operator.process_watermark1(late)
        operator.process_watermark2(late)
        assert operator.num_keyed_state_entries() == 2
        operator.process_watermark1(MAX_WATERMARK)
        operator.process_watermark2(MAX_WATERMARK)
        assert operator.num_keyed_state_entries() == operator.num_event_time_timers() == 0


@pytest.mark.parametrize(
    ("lower_inclusive", "upper_inclusive", "joined"),
    [(True, True, [3, 4, 5]), (False, True, [4, 5]), (True, False, [3, 4]), (False, False, [4])],
)
def test_bounds_may_be_exclusive(lower_inclusive, upper_inclusive, joined):
    function = join(-2, 0, lower_inclusive=lower_inclusive, upper_inclusive=upper_inclusive)
    with run(function) as operator:
        for timestamp in range(2, 7):
            feed(operator, Arrived(RIGHT, "a", timestamp, timestamp))
        assert numbers(feed(operator, Arrived(LEFT, "a", 5, 0))) == [(0, number) for number in joined]


def test_exclusive_bounds_at_one_point_join_nothing():
    with run(join(0, 0, lower_inclusive=False, upper_inclusive=False)) as operator:
        feed(operator, Arrived(LEFT, "a", 5, 1))
        assert feed(operator, Arrived(RIGHT, "a", 5, 2)) == []
        assert operator.num_keyed_state_entries() == 2
        operator.process_watermark1(5)
        operator.process_watermark2(5)
        assert operator.num_keyed_state_entries() == 0


def test_an_outer_join_emits_a_row_that_can_have_no_match_at_once():
    with run(join(-5, 0, Misses(), how="left")) as operator:
        operator.process_watermark1(10)
        operator.process_watermark2(10)
        assert numbers(feed(operator, Arrived(LEFT, "a", 10, 1))) == [(1, None)]
        assert numbers(feed(operator, Arrived(LEFT, "a", 11, 2))) == []
        assert numbers(feed(operator, Arrived(RIGHT, "a", 9, 3))) == []  # late: a pair has no such row
        assert numbers(operator.process_watermark1(20) + operator.process_watermark2(11)) == [(2, None)]
        assert operator.num_keyed_state_entries() == 0
