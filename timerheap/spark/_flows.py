"""Functions in flows of Spark's Declarative Pipelines, whose query functions may not have a plan analyzed.

Spark refuses it for the sake of tables that a run has not made yet. But its server analyzes the input of a
stateful Python operator itself when a flow is defined (``SparkConnectPlanner``), so that a table must exist
by then. The functions of timerheap ask for schemas without saying that they are in a flow. Spark then takes
their tables for tables of the catalog, and does not know that the flow comes after those that write them. So
when a flow is defined, its plan gets a condition, always true, that names the tables once more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from timerheap.errors import ArgumentValueError, UnsupportedError
from timerheap.spark._compat import plan_on_connect

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_CONTEXT = "PipelineAnalysisContext"  # what Spark sends along with each request of a pipeline's definition
_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_PART = re.compile(r"`(?:[^`]|``)*`|[^.`]+")


def in_flows(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Have a function run in the query functions of pipelines, too."""

    @wraps(function)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        client = client_in_pipeline()
        if client is None:
            return function(*args, **kwargs)
        with outside_of_flow(client):
            try:
                result = function(*args, **kwargs)
                if isinstance(result, DataFrame):
                    _expect_flow(result)
                    _define_in_order(client)
                return result
            except AnalysisException as e:
                if e.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                    raise
                name = (e.getMessageParameters() or {}).get("relationName", "").replace("`", "")
                raise missing_table(name) from None

    return called


def missing_table(name: str) -> ArgumentValueError:
    """Return the error for a table that a run of the pipeline has not made yet."""
    database, _, table = name.rpartition(".")
    return ArgumentValueError(
        f"a flow must read tables and views that exist when it is defined, got {name!r}: Spark's server "
        "analyzes the input of a stateful Python operator before a run makes the pipeline's tables; for a "
        "table use timerheap.spark.pipeline_table(spark, "
        f'"{database or "DATABASE"}.{table}", "COLUMN TYPE, ...") in place of spark.readStream.table(), and '
        "for a temporary view of the pipeline call a Python function that returns its DataFrame"
    )


def client_in_pipeline() -> Any:
    """Return the client of the session that defines a pipeline in this thread, None if none does."""
    module: Any = sys.modules.get("pyspark.sql.connect.session")
    session = None if module is None else module.SparkSession.getActiveSession()
    client: Any = None if session is None else session.client
    found = getattr(getattr(client, "thread_local", None), "user_context_extensions", ())
    return client if any(_CONTEXT in each.type_url for _, each in found) else None


@contextmanager
def outside_of_flow(client: Any) -> Iterator[None]:
    """Send requests of this thread without saying that they define a pipeline, if a client does."""
    if client is None:
        yield
        return
    own = client.thread_local
    kept = own.user_context_extensions
    own.user_context_extensions = [each for each in kept if _CONTEXT not in each[1].type_url]
    try:
        yield
    finally:
        own.user_context_extensions = kept


def _expect_flow(result: DataFrame) -> None:
    """Raise an error for a result that a flow cannot have, or of which Spark would not see the order."""
    for message in _messages(plan_on_connect(result)):
        kind = message.DESCRIPTOR.name
        if kind == "NamedTable" and len(_PART.findall(message.unparsed_identifier)) < 2:
            name = message.unparsed_identifier
            raise ArgumentValueError(
                f"df must name the tables of a flow with their database, got {name!r}: that of the session "
                f'may be a different one than that of the pipeline; write "DATABASE.{name}"'
            )
        if kind == "SQL" and re.search(r"\bSTREAM\b", message.query, re.IGNORECASE):
            raise ArgumentValueError(
                f"df must read its tables with spark.readStream.table(), got spark.sql({message.query!r}), "
                "which does not say to Spark that this flow comes after those that write them; use "
                "spark.readStream.table(), and selectExpr() on what it returns"
            )
        if kind == "TransformWithStateInfo" and message.time_mode.lower() == "processingtime":
            _expect_an_end(result)


def _define_in_order(client: Any) -> None:
    """Have the flows that a client defines from now on name their tables where Spark sees them."""
    execute = client.execute_command
    if getattr(execute, "in_order", False):
        return

    @wraps(execute)
    def executed(command: Any, *args: Any, **kwargs: Any) -> Any:
        flow = command.pipeline_command.define_flow
        if flow.relation_flow_details.HasField("relation"):
            flow.relation_flow_details.relation.CopyFrom(
                _after_its_tables(flow.relation_flow_details.relation)
            )
        return execute(command, *args, **kwargs)

    executed.in_order = True  # type: ignore[attr-defined]
    client.execute_command = executed


def _after_its_tables(relation: Any) -> Any:
    """Return a plan from which Spark sees which tables come before, if it has a Python operator."""
    kinds, names = set(), dict[str, None]()
    for message in _messages(relation):
        kinds.add(message.DESCRIPTOR.name)
        if message.DESCRIPTOR.name == "NamedTable":
            names[message.unparsed_identifier] = None
    if not kinds & {"GroupMap", "CoGroupMap"}:
        return relation
    for name in names:  # not as tables of the plan, since each would be one more source of the checkpoint
        above = type(relation)()
        above.filter.input.CopyFrom(relation)
        text = f"(SELECT COUNT(*) FROM {name} WHERE false) = 0"
        above.filter.condition.expression_string.expression = text
        relation = above
    return relation


def _expect_an_end(result: DataFrame) -> None:
    """Raise an error if Spark would run micro-batches without rows for ever."""
    if str(result.sparkSession.conf.get(_EMPTY_BATCHES, "true")).lower() != "false":
        raise UnsupportedError(
            "processing time, with_idleness and with_wall_clock are not supported in a pipeline, whose runs "
            "would not end: Spark runs micro-batches without rows until no processing-time timer is left; "
            f'have {_EMPTY_BATCHES}: "false" in its configuration, with which they take effect when rows '
            "come, or start the query outside with timerheap.spark.run_available_now()"
        )


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and all within it."""
    yield message
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name["value"]
            parts = list(value.values()) if entry.type == entry.TYPE_MESSAGE else []
        else:
            parts = list(value) if hasattr(value, "append") or hasattr(value, "add") else [value]
        for each in parts:
            yield from _messages(each)
