"""The interval join compared with all pairs of rows, and Flink's behaviour in edge cases."""

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from timerheap import MAX_WATERMARK, MIN_WATERMARK, OutputTag, Types
from timerheap.flink import StreamRecord, Watermark
from timerheap.flink.operators import KeyedCoProcessOperator
from timerheap.interval_join import IntervalJoin, ProcessJoinFunction
from timerheap.watermarks.output import WatermarkStatus

LEFT, RIGHT = 1, 2
ROW = Types.ROW_NAMED(["key", "number"], [Types.STRING(), Types.LONG()])


class Arrived(NamedTuple):
    side: int
    key: str
    timestamp: int
    number: int

    @property
    def row(self):
        return {"key": self.key, "number": self.number}


class Pairs(ProcessJoinFunction):
    """Yields the numbers of the two rows and the three timestamps."""

    def __init__(self):
        self.life = []

    def open(self, runtime_context):
        self.life.append("open")

    def close(self):
        self.life.append("close")

    def process_element(self, left, right, ctx):
        times = ctx.get_left_timestamp(), ctx.get_right_timestamp(), ctx.get_timestamp()
        yield left["number"], right["number"], *times


def join(lower, upper, function=None, **options):
    return IntervalJoin(lower, upper, function or Pairs(), left_type=ROW, right_type=ROW, **options)


def run(function):
    def key(row):
        return row["key"]

    return KeyedCoProcessOperator(function, key, key)


def feed(operator, arrived):
    process = operator.process_element1 if arrived.side == LEFT else operator.process_element2
    return process(arrived.row, arrived.timestamp)


def numbers(elements):
    return [element.value[:2] for element in elements if isinstance(element, StreamRecord)]


# ---- comparison with all pairs ----


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


# ---- outer joins compared with all pairs ----


class Misses(ProcessJoinFunction):
    """Yields the numbers of the two rows, None for a row that is missing, and the timestamps."""

    def process_element(self, left, right, ctx):
        assert ctx.get_timestamp() == max(filter(None, (ctx.get_left_timestamp(), ctx.get_right_timestamp())))
        yield left and left["number"], right and right["number"]


@settings(max_examples=300)
@given(
    BOUNDS,
    st.sampled_from(["left", "right", "full"]),
    st.lists(
        st.one_of(
            st.tuples(SIDES, KEYS, st.integers(-3, 12)),  # before or after the watermark
            st.tuples(st.just("watermark"), st.just(""), st.integers(1, 8)),
        ),
        max_size=60,
    ),
)
def test_an_outer_join_emits_each_row_without_a_match_once_the_watermark_has_passed_its_matches(
    bounds, how, ops
):
    lower, upper = bounds
    outer = {"left": {LEFT}, "right": {RIGHT}, "full": {LEFT, RIGHT}}[how]
    last = {LEFT: upper, RIGHT: -lower}  # of the times of matches, from the time of a row
    outlives = {side: last[side] if side in outer else max(last[side], 0) for side in (LEFT, RIGHT)}
    watermark, buffered, matched, wanted, found = 100, [], set(), Counter(), Counter()

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

    with run(join(lower, upper, Misses(), how=how)) as operator:
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
                        if other.side != side and other.key == key and lower <= distance <= upper:
                            matched |= {other, arrived}
                            pair = (arrived, other) if side == LEFT else (other, arrived)
                            wanted[pair[0].number, pair[1].number] += 1
                    buffered.append(arrived)
                    remove(passed([arrived]) if side in outer else [])
            found.update(numbers(elements))
            assert found == wanted
        assert operator.num_keyed_state_entries() == operator.num_event_time_timers() == 0


# ---- edge cases, as in Flink ----


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


# ---- functions and errors ----


def test_matches_are_ordered_by_time_and_then_by_arrival():
    with run(join(-9, 9)) as operator:
        for number, timestamp in enumerate([7, 3, 7, 5]):
            feed(operator, Arrived(RIGHT, "a", timestamp, number))
        assert numbers(feed(operator, Arrived(LEFT, "a", 5, 9))) == [(9, 1), (9, 3), (9, 0), (9, 2)]


def test_a_callable_returns_one_row_per_pair():
    function = join(0, 0, lambda left, right: (left["number"], right["number"]))
    with run(function) as operator:
        feed(operator, Arrived(LEFT, "a", 5, 1))
        assert feed(operator, Arrived(RIGHT, "a", 5, 2)) == [StreamRecord((1, 2), 5)]


class Spoils(ProcessJoinFunction):
    """Yields a row if the left number is even, and modifies its arguments."""

    def process_element(self, left, right, ctx):
        result = left["number"], right["number"]
        for row in (left, right):
            with suppress(TypeError):  # a row from state may be a tuple
                row["number"] = None
        return [result] if result[0] % 2 == 0 else None


def test_a_function_may_yield_nothing_and_cannot_modify_buffered_rows():
    with run(join(0, 0, Spoils())) as operator:
        feed(operator, Arrived(LEFT, "a", 5, 2))
        feed(operator, Arrived(LEFT, "b", 5, 1))
        for number in (3, 4):
            assert numbers(feed(operator, Arrived(RIGHT, "a", 5, number))) == [(2, number)]
            assert feed(operator, Arrived(RIGHT, "b", 5, number)) == []


def test_late_rows_are_passed_to_their_functions():
    function = join(
        0,
        0,
        late_left=lambda row, ctx: [("late", row["number"], ctx.timestamp())],
        late_right=lambda row, ctx: None,
    )
    with run(function) as operator:
        operator.process_watermark1(10)
        operator.process_watermark2(10)
        assert feed(operator, Arrived(LEFT, "a", 9, 1)) == [StreamRecord(("late", 1, 9), 9)]
        assert feed(operator, Arrived(RIGHT, "a", 9, 2)) == []
        assert operator.num_keyed_state_entries() == 0
    assert function.num_late_records_dropped == 0
    with pytest.raises(TypeError, match="late_right must be a callable"):
        join(0, 0, late_right="late")


UNMATCHED = OutputTag("unmatched", Types.LONG())
TOO_LATE = OutputTag("too late", Types.LONG())


class Aside(ProcessJoinFunction):
    """Sends rows without a match to a side output, and each left row of a pair, too."""

    def process_element(self, left, right, ctx):
        if right is None:
            ctx.output(UNMATCHED, left["number"])
        else:
            yield UNMATCHED, -left["number"]
            yield left["number"], right["number"]


@pytest.mark.promises("PyFlink", "supported", "ProcessJoinFunction.Context.output")
def test_a_join_has_side_outputs():
    with run(join(0, 0, Aside(), how="left", late_right=TooLate(TOO_LATE))) as operator:
        feed(operator, Arrived(LEFT, "a", 5, 1))
        feed(operator, Arrived(LEFT, "b", 5, 2))
        assert feed(operator, Arrived(RIGHT, "a", 5, 3)) == [StreamRecord((1, 3), 5)]
        operator.process_watermark1(6)
        operator.process_watermark2(6)
        feed(operator, Arrived(RIGHT, "a", 4, 7))
        assert operator.get_side_output(UNMATCHED) == [StreamRecord(-1, 5), StreamRecord(2, 5)]
        assert operator.get_side_output(TOO_LATE) == [StreamRecord(7, 4)]


class TooLate:
    """A callable for late rows, which holds its tag."""

    def __init__(self, tag):
        self.tag = tag

    def __call__(self, row, ctx):
        ctx.output(self.tag, row["number"])


def test_the_function_is_opened_and_closed_with_the_join():
    function = Pairs()
    with run(join(0, 0, function)):
        assert function.life == ["open"]
    assert function.life == ["open", "close"]


def test_bounds_may_be_timedeltas():
    with run(join(timedelta(seconds=-1), timedelta(minutes=1))) as operator:
        for timestamp in (-1_001, -1_000, 60_000, 60_001):
            feed(operator, Arrived(RIGHT, "a", timestamp, timestamp))
        assert numbers(feed(operator, Arrived(LEFT, "a", 0, 0))) == [(0, -1_000), (0, 60_000)]


@pytest.mark.parametrize("timestamp", [None, MIN_WATERMARK])
def test_a_row_without_event_time_raises(timestamp):
    with run(join(0, 0)) as operator:
        with pytest.raises(ValueError, match=f"must have event time, got timestamp {timestamp}"):
            operator.process_element1({"key": "a", "number": 1}, timestamp)
        assert operator.num_keyed_state_entries() == 0


@pytest.mark.parametrize(
    ("lower", "upper", "error", "message"),
    [
        (1, 0, ValueError, "lower_bound must not be above upper_bound, got 1 and 0"),
        ("1", 2, ValueError, "lower_bound must be a duration such as '10 minutes' or .*, got '1'"),
        ("1 hour", "59 minutes", ValueError, "lower_bound must not be above upper_bound, got '1 hour' and"),
        (1, 2.0, TypeError, "upper_bound must be an int of milliseconds or a timedelta, got 2.0"),
        (0, 2**63, OverflowError, "upper_bound"),
        (timedelta(microseconds=-1), 0, ValueError, "lower_bound must be a whole number of milliseconds"),
    ],
)
def test_an_invalid_bound_raises(lower, upper, error, message):
    with pytest.raises(error, match=message):
        join(lower, upper)


def test_a_join_of_an_unknown_kind_raises():
    with pytest.raises(ValueError, match=r'how must be "inner", "left", "right" or "full", got .outer'):
        join(0, 1, how="outer")


@pytest.mark.parametrize(("how", "side"), [("left", "left"), ("full", "left"), ("full", "right")])
def test_a_function_for_late_rows_that_an_outer_join_keeps_raises(how, side):
    with pytest.raises(ValueError, match=f"late_{side} must be left out with how='{how}'"):
        join(0, 1, how=how, **{f"late_{side}": lambda row, ctx: None})


def test_an_outer_join_emits_a_row_that_can_have_no_match_at_once():
    with run(join(-5, 0, Misses(), how="left")) as operator:
        operator.process_watermark1(10)
        operator.process_watermark2(10)
        assert numbers(feed(operator, Arrived(LEFT, "a", 10, 1))) == [(1, None)]
        assert numbers(feed(operator, Arrived(LEFT, "a", 11, 2))) == []
        assert numbers(feed(operator, Arrived(RIGHT, "a", 9, 3))) == []  # late: a pair has no such row
        assert numbers(operator.process_watermark1(20) + operator.process_watermark2(11)) == [(2, None)]
        assert operator.num_keyed_state_entries() == 0


def test_an_invalid_function_raises():
    for wrong in ("left.number", ProcessJoinFunction):  # not even the class itself
        with pytest.raises(TypeError, match="function must be a ProcessJoinFunction"):
            join(0, 1, wrong)


@pytest.mark.parametrize("spell", ["ddl", "types", "arrow", "spark"])
def test_every_kind_of_type_is_accepted(spell):
    pa = pytest.importorskip("pyarrow")
    arrow_type = pytest.importorskip("timerheap.types").arrow_type
    sql = pytest.importorskip("pyspark.sql.types")
    type_ = {
        "ddl": "struct<key:string, number:bigint>",
        "types": ROW,
        "arrow": pa.struct([("key", pa.string()), ("number", pa.int64())]),
        "spark": sql.StructType(
            [sql.StructField("key", sql.StringType()), sql.StructField("number", sql.LongType())]
        ),
    }[spell]
    descriptors = []

    class Context:
        def get_map_state(self, state_descriptor):
            descriptors.append(state_descriptor)

    IntervalJoin(0, 0, Pairs(), left_type=type_, right_type=type_).open(Context())
    expected = pa.list_(pa.field("element", arrow_type(ROW)))
    for descriptor in descriptors:
        key, value = (arrow_type(part) for part in descriptor.key_and_value)
        assert (key, value) == (pa.int64(), expected)
    assert [descriptor.name for descriptor in descriptors] == ["left_buffer", "right_buffer"]


def test_an_invalid_type_raises():
    pytest.importorskip("pyarrow")
    with pytest.raises(TypeError, match="right_type: the type must be one of"):
        IntervalJoin(0, 0, Pairs(), left_type=ROW, right_type=5)
