"""The functions, side outputs and arguments of an interval join."""

from contextlib import suppress
from datetime import timedelta

import pytest
from interval_joins import LEFT, RIGHT, ROW, Arrived, Pairs, feed, join, numbers, run

from timerheap import MIN_WATERMARK, OutputTag, Types
from timerheap.flink import StreamRecord
from timerheap.interval_join import IntervalJoin, ProcessJoinFunction


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


def test_an_inner_join_may_have_a_condition():
    with run(join(0, 5, condition=lambda left, right: left["number"] < right["number"])) as operator:
        feed(operator, Arrived(LEFT, "a", 5, 1))
        feed(operator, Arrived(LEFT, "a", 5, 3))
        assert numbers(feed(operator, Arrived(RIGHT, "a", 6, 2))) == [(1, 2)]


@pytest.mark.parametrize("condition", ["left.number < right.number", bool])
def test_an_invalid_condition_raises(condition):
    with pytest.raises(TypeError, match=r"condition must be a callable \(left, right\) -> bool, got"):
        join(0, 1, condition=condition)


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
