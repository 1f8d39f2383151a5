"""Interval joins of rows with a key and a number, and the operator that runs them."""

from typing import NamedTuple

from timerheap import Types
from timerheap.flink import StreamRecord
from timerheap.flink.operators import KeyedCoProcessOperator
from timerheap.interval_join import IntervalJoin, ProcessJoinFunction

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
