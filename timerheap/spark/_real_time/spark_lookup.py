"""Finds in Spark what it has no handle of: the operator in a plan, and the tasks that send rows to it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from timerheap.errors import ArgumentValueError
from timerheap.spark._compat import analyzed_plan
from timerheap.spark._real_time.stages import OPERATOR

_log = logging.getLogger("timerheap")
_PAUSES = (0.02,) * 250 + (0.5,) * 110  # a minute in which Spark should start the tasks of the first epoch

# A node of the plan has the Python function as bytes, and its name as text: a text is all that can be
# compared. The name is one of its own for each operator, so no other function can be meant.
_OPERATOR_IN_PLAN = re.compile(rf"MapInArrow {OPERATOR}([0-9a-f]{{32}})\(")
_IN_MICRO_BATCHES = "TransformWithState"


def operators_before(df: DataFrame) -> list[str]:
    """Return the names of the operators in real-time mode that the rows of `df` come from, the last first."""
    return _named_in(analyzed_plan(df))


def operators_in(df: DataFrame) -> list[str]:
    """Return the names of the operators that a query in real-time mode has, the last first."""
    plan = analyzed_plan(df)
    names = _named_in(plan)
    others = " and an operator in micro-batches" if _IN_MICRO_BATCHES in plan else ""
    if not names or others:
        raise ArgumentValueError(
            "writer must write the result of operators over rows of in_real_time() alone, got "
            f"{len(names)} of them{others}; stateful processors run in micro-batches, in a query of their own"
        )
    return names


def _named_in(plan: str) -> list[str]:
    return list(dict.fromkeys(_OPERATOR_IN_PLAN.findall(plan)))


def sending_tasks(spark: SparkSession, query: StreamingQuery, operators: int) -> int | None:
    """Return the number of tasks that send rows to the first operator, once they run; None if they do not.

    operators: how many of them the query has, one behind the other
    """
    tracker = spark.sparkContext.statusTracker()
    for pause in _PAUSES:
        if not query.isActive:
            return None
        for job in tracker.getJobIdsForGroup(str(query.runId)):
            found = tracker.getJobInfo(job)
            if found is not None and len(found.stageIds) > operators:
                stage = tracker.getStageInfo(_before_the_last(found.stageIds, operators))
                if stage is not None:
                    return stage.numTasks
        time.sleep(pause)
    _log.warning(
        "query %s has not started the tasks of its first epoch within %.0f s, so event times count only from "
        "the end of that epoch on; see that enough cores are free",
        query.id,
        sum(_PAUSES),
    )
    return None


def _before_the_last(stages: Iterable[int], operators: int) -> int:
    """Return the stage that sends its rows to the first of the last stages of a job.

    Spark numbers stages as it makes them: all that a stage reads from before the stage itself, the last one
    at the end. Each operator is in a stage of its own, whose rows come from one shuffle, the number before.
    Spark tells the numbers, but not which stage reads from which.
    """
    return sorted(stages)[-1 - operators]
