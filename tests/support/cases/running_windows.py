"""Window operators of pairs of a key and a number, and the functions that they run."""

from __future__ import annotations

from typing import Any

from window_model import Host

from timerheap import Types
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.windows import (
    AggregateFunction,
    DeltaFunction,
    GlobalWindows,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
    WindowOperator,
)

LONG = Types.LONG()
GLOBAL = GlobalWindows.create()


class PairHost(Host):
    """Passes the second of a pair to the operator."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.windows.process_element(value[1], ctx)


class Sum(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        yield key, sum(inputs)


class All(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield context.window(), list(elements)


class Add(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class Total(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class Difference(DeltaFunction):
    def get_delta(self, old_data_point: Any, new_data_point: Any) -> Any:
        return new_data_point - old_data_point


def running(assigner: Any, function: Any, *args: Any, **options: Any) -> KeyedProcessOperator:
    options.setdefault("element_type", LONG)
    host = PairHost(WindowOperator(assigner, function, *args, **options))
    return KeyedProcessOperator(host, key_selector=lambda value: value[0])


def fed(operator: KeyedProcessOperator, elements: list[Any]) -> list[Any]:
    """Process elements (key, value, timestamp) and return the output."""
    found = [operator.process_element((key, value), timestamp) for key, value, timestamp in elements]
    return [tuple(record) for emitted in found for record in emitted]
