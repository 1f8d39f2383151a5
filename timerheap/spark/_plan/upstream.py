"""Which operators an input has the results of, and so whose watermark it follows."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import ASIDE, HAS_WATERMARK, METRICS, OF_BATCH
from timerheap.spark._compat import analyzed, below_on_connect, children_of, on_connect
from timerheap.watermarks import WatermarkStrategy
from timerheap.watermarks.generators import NoWatermarks
from timerheap.watermarks.strategy import following

# Nodes of a plan whose rows are made in the tasks of the rows that they are made of.
_SAME_TASK = {
    "CTERelationDef", "CollectMetrics", "DeserializeToObject", "Drop", "EventTimeWatermark", "Expand",
    "Filter", "Generate", "Hint", "MapElements", "MapInArrow", "MapInPandas", "MapPartitions", "Project",
    "ResolvedHint", "Sample", "SerializeFromObject", "SubqueryAlias", "ToDF", "TypedFilter", "Union",
    "UnresolvedHint", "View", "WithCTE", "WithColumns", "WithColumnsRenamed", "WithWatermark",
}  # fmt: skip
_log = logging.getLogger("timerheap")


@dataclass(frozen=True)
class Upstream:
    """What the rows of a DataFrame are.

    results: whether some are results of operators with a watermark, on a stream made in the same tasks
    sources: whether some are anything else
    exchange: what is between them and such an operator otherwise, None if there is no such operator
    """

    results: bool = False
    sources: bool = False
    exchange: str | None = None

    def __or__(self, other: Upstream) -> Upstream:
        return Upstream(
            self.results or other.results, self.sources or other.sources, self.exchange or other.exchange
        )

    def behind(self, node: str) -> Upstream:
        """Return what the rows are behind an exchange."""
        return Upstream(False, True, node if self.results else self.exchange)


def upstream_of(df: DataFrame) -> Upstream:
    """Return what the rows of a DataFrame are."""
    return _on_connect(df) if on_connect(df.sparkSession) else _below(analyzed(df), df.isStreaming)


def is_result(df: DataFrame) -> bool:
    """Return whether all rows of a DataFrame are results of operators whose watermark they follow."""
    below = upstream_of(df)
    return below.results and not below.sources


def _below(node: Any, streaming: bool) -> Upstream:
    name = node.nodeName()
    children = children_of(node)
    if name == "CollectMetrics" and METRICS in children[0].schema().fieldNames():
        metadata = json.loads(children[0].schema().apply(METRICS).metadata().json())
        return Upstream(results=True) if metadata.get(HAS_WATERMARK) else Upstream(sources=True)
    if name == "SubqueryAlias" and node.alias() == OF_BATCH:
        return Upstream(results=True)
    if name == "CTERelationRef" or (streaming and not node.isStreaming()):
        return Upstream()  # of a CTE the definition is elsewhere in the plan
    if not children or (name == "SubqueryAlias" and node.alias() == ASIDE):
        return Upstream(sources=True)
    found = Upstream()
    for child in children:
        found |= _below(child, streaming)
    if name == "Join" and not streaming:
        return replace(found, sources=not found.results)
    if name == "Join" and sum(child.isStreaming() for child in children) == 1:
        return found  # Spark may broadcast the other side
    same = name in _SAME_TASK or (name == "Repartition" and not node.shuffle())  # coalesce()
    return found if same else found.behind(name)


def _on_connect(df: DataFrame) -> Upstream:
    name, alias, below = below_on_connect(df)
    if name == "CollectMetrics" and METRICS in below[0].columns:
        known = below[0].schema[METRICS].metadata.get(HAS_WATERMARK)
        return Upstream(results=True) if known else Upstream(sources=True)
    if alias == OF_BATCH:
        return Upstream(results=True)
    if not below or alias == ASIDE:
        return Upstream(sources=True)
    found = Upstream()
    for each in below:
        found |= _on_connect(each)
    return found if name in _SAME_TASK else found.behind(name)


def effective_strategy(df_argument: str, argument: str, df: DataFrame, watermark: Any) -> Any:
    """Return the strategy of an input: that of the operators whose results it has, if it has some.

    df_argument, argument: what errors call the DataFrame, and its watermark
    watermark: what the user has said; of a stream whose rows are all results, it may be None
    """
    if not df.isStreaming:  # where the end of the rows is the only watermark
        needs_none = watermark is None and is_result(df)
        return WatermarkStrategy.for_monotonous_timestamps() if needs_none else watermark
    return strategy_behind(upstream_of(df), df_argument, argument, watermark)


def strategy_behind(below: Upstream, df_argument: str, argument: str, watermark: Any) -> Any:
    """Return the strategy of a stream whose rows are these, given what the user has said of it."""
    strategy = watermark
    is_strategy = isinstance(strategy, WatermarkStrategy)
    if below.exchange is not None and is_strategy and _clocks(strategy):
        raise ArgumentValueError(
            f"{argument} must be a delay where {df_argument} has the results of another operator behind "
            f"Spark's {below.exchange}, got {watermark!r}, with which it could pass the watermark of that "
            f"operator, and its results would be late; leave out {' and '.join(_clocks(strategy))}, or put "
            "the operators next to each other"
        )
    if not below.results:
        if below.exchange is not None:
            _log.warning(
                "the watermark of an operator does not reach the next one, since its results come to %s "
                "through Spark's %s: %s alone advances the watermark there",
                df_argument,
                below.exchange,
                argument,
            )
        return watermark
    if below.sources:
        return strategy._with("_follows", _delay_of(strategy)) if is_strategy else watermark
    if watermark is None:
        return following(0)
    if not is_strategy:
        return watermark
    silent = isinstance(strategy.create_watermark_generator(), NoWatermarks)
    if strategy._delay is None and not silent:
        _log.warning(
            "%s: %s does not follow the operator whose results %s has: a result behind the watermark of its "
            "generator is late; leave it out, or pass a delay",
            argument,
            repr(strategy),
            df_argument,
        )
        return strategy
    if silent and not _clocks(strategy):
        return strategy
    if _clocks(strategy):
        _log.warning(
            "%s: %s has no effect, since %s has the results of another operator, whose watermark it follows, "
            "also while there are no rows; leave it out",
            argument,
            " and ".join(_clocks(strategy)),
            df_argument,
        )
    return following(_delay_of(strategy))._with("timestamp_assigner", strategy.timestamp_assigner)


def _delay_of(strategy: WatermarkStrategy) -> int:
    return max(strategy._delay or 0, 0)


def _clocks(strategy: WatermarkStrategy) -> list[str]:
    """Return what of a strategy advances its watermark without rows."""
    names = {"with_idleness": strategy.idle_timeout, "with_wall_clock": strategy.wall_clock}
    return [name for name, value in names.items() if value is not None]
