"""A query as its workers have it, without Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._query import Query
from timerheap.spark._worker.runner import Runner


def query_of(function: Any, rows: StructType, result: StructType, **options: Any) -> Query:
    """Return the query of a function over rows with a key "k" and the event time "at", in one key group.

    `options` are other arguments of `Query`.
    """
    defaults: dict[str, Any] = {
        "key": ["k"],
        "event_time": "at",
        "watermarks": (WatermarkStrategy.for_monotonous_timestamps(),),
        "channels": (None,),
        "order": "event_time",
        "time_mode": "None",
        "max_parallelism": 1,
    }
    return Query(work=work_of(function), rows=rows, result=result, **{**defaults, **options})


def opened(query: Query) -> Runner:
    """Return what runs a query, with its function open."""
    runner: Runner = query.work.runner(query, Placement.of(query.max_parallelism, 1))
    runner.open()
    return runner


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass


KEY_AND_N = StructType().add("k", "string").add("n", "long")
QUERY = query_of(Silent(), KEY_AND_N, KEY_AND_N, max_parallelism=4)
"""The query of a function that does nothing."""
