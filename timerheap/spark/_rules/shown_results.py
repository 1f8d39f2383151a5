"""The results of rules as users see them, made of what the rules emit: a struct of each rule."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import HIDDEN, KEPT
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._plan.outputs import results_of
from timerheap.spark._rules.rule import RulePlan
from timerheap.spark._side_outputs import outputs_of

_EMITTED = f"{HIDDEN}emitted"  # begins the columns of what rules emit; their numbers follow


def shown_results(df: DataFrame, plans: Mapping[str, RulePlan], *, has_outputs: bool) -> DataFrame:
    """Return rows that have the results of one rule each, given rows of what the rules emit.

    has_outputs: whether there are side outputs, which stay beside the results, where `outputs_of` finds them
    """
    if all(plan.shown is None for plan in plans.values()):
        return df
    return results_of(_with_queries(outputs_of(df), plans)) if has_outputs else _with_queries(df, plans)


def _with_queries(df: DataFrame, plans: Mapping[str, RulePlan]) -> DataFrame:
    hidden = {name: f"{_EMITTED}{number}" for number, name in enumerate(df.columns)}
    df = df.toDF(*hidden.values())
    others = [*hidden.values()]
    for name, plan in plans.items():
        if plan.shown is None:
            continue
        mine = hidden[name]
        rows = df.select("*", f"{mine}.*").withColumn(KEPT, quoted(mine).isNotNull())
        rows = plan.shown(rows, others)
        own = [column for column in rows.columns if column not in {*others, KEPT}]
        if len({*map(str.lower, own)}) < len(own):
            raise ArgumentValueError(
                f"query of rule {name!r} must have columns of different names, got {own}; name them with AS"
            )
        result = F.when(quoted(KEPT), F.struct(*map(quoted, own)))
        kept = rows.where(quoted(KEPT) | quoted(mine).isNull())
        df = kept.select(*(result.alias(each) if each == mine else quoted(each) for each in others))
    return df.toDF(*hidden)
