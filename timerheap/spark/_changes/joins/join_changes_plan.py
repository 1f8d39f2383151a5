"""Plans joins of changes: by key alone in one operator, with a condition in one, two or three."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._changes.change_rows import weighted
from timerheap.spark._changes.changes_inputs import expect_repeatable
from timerheap.spark._changes.guarantees import changelog_type
from timerheap.spark._changes.joins.join_changes_inputs import JoinInputs, UniqueKeys
from timerheap.spark._changes.joins.join_runner import PAIR, JoinWork
from timerheap.spark._changes.joins.matches_runner import MatchesWork
from timerheap.spark._columns import ORIGIN, WEIGHT
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.named_columns import expect_comparable, quoted
from timerheap.spark._plan.state_changes import changed_states

HOW: dict[str, dict[str, Any]] = {
    "inner": {"pairs": True},
    "left": {"pairs": True, "alone": (True, False)},
    "right": {"pairs": True, "alone": (False, True)},
    "full": {"pairs": True, "alone": (True, True)},
    "semi": {"matched": True},
    "anti": {"alone": (True, False)},
}
"""What is in the result of each kind of join; see `JoinWork`."""

_KEPT = {"left": (0,), "right": (1,), "full": (0, 1), "semi": (0,), "anti": (0,)}
"""The sides whose rows are in the result, or not, by whether they have a match."""


def joined_by_key(
    inputs: JoinInputs,
    how: str,
    *,
    max_parallelism: object = None,
    state_changes: object = None,
    null_safe: bool = False,
    forget_after: int | None = None,
) -> DataFrame:
    """Return a join by key alone."""
    both = bool(HOW[how].get("pairs"))
    fields = inputs.fields(0), inputs.fields(1) if both else {}
    grows = how in ("inner", "semi") and all(side.grows for side in inputs.sides)
    result = changelog_type(inputs.result(both), *unique_of_join(inputs, how), grows=grows)
    places = _places(inputs, both)
    work = JoinWork(fields, places, how, null_safe=null_safe, forget_after=forget_after, **HOW[how])
    return _planned(inputs, work, result, max_parallelism, state_changes)


def joined_on(
    inputs: JoinInputs,
    how: str,
    on: Column,
    *,
    max_parallelism: object = None,
    state_changes: object = None,
    forget_after: int | None = None,
) -> DataFrame:
    """Return a join by key with a condition on both rows."""
    if how == "inner":
        pairs = joined_by_key(
            inputs,
            how,
            max_parallelism=max_parallelism,
            state_changes=state_changes,
            forget_after=forget_after,
        )
        return _that_fulfil(pairs, on)
    if forget_after is not None:
        raise ArgumentValueError(
            f"forget_after must be None with `on` and how={how!r}, got {forget_after} ms: the matches of a "
            "row could be forgotten before the row; leave out `on`, or forget_after"
        )
    kept = _KEPT[how]
    for side in kept:
        for name in inputs.sides[side].rows.names:
            type_ = inputs.sides[side].df.schema[name].dataType
            expect_comparable(f"{inputs.sides[side].name}, in a {how} join with a condition,", name, type_)
    result = T.StructType([*inputs.result(both=True), T.StructField(ORIGIN, T.ByteType(), nullable=False)])
    work = JoinWork(
        (inputs.fields(0), inputs.fields(1)),
        _places(inputs, both=True),
        how,
        pairs=True,
        origins=(0 in kept, 1 in kept),
    )
    df = _planned(inputs, work, changelog_type(result), max_parallelism, state_changes)
    df = _that_fulfil(df, F.when(quoted(ORIGIN) == PAIR, on).otherwise(F.lit(True)))
    for side in kept:
        is_last = side == kept[-1]
        work_of_side = MatchesWork(
            side, pairs=how in ("left", "right", "full"), matched=how == "semi", last=is_last
        )
        columns = inputs.result(both=work_of_side.pairs) if is_last else result
        unique = unique_of_join(inputs, how) if is_last else []
        rows = weighted("df", df)
        source = Input.checked(
            Columns("df", rows), list(inputs.columns(side)), timed=False, hidden={WEIGHT, ORIGIN}
        )
        query = query_of(
            work_of_side, changelog_type(columns, *unique), source, max_parallelism=max_parallelism
        )
        df = build(query, source.df)
    return df


def _that_fulfil(df: DataFrame, condition: Column) -> DataFrame:
    columns = Columns("the join", df)
    columns.boolean("on", condition)
    found = df.where(condition)
    expect_repeatable("on", found)
    return found


def _places(inputs: JoinInputs, both: bool) -> tuple[tuple[int | None, str], ...]:
    return tuple((side, place) for side, place, _ in inputs.places(both))


def _planned(
    inputs: JoinInputs, work: JoinWork, result: T.StructType, max_parallelism: object, state_changes: object
) -> DataFrame:
    rows = inputs.rows
    query = query_of(
        work,
        result,
        inputs.one,
        inputs.two,
        processing_time=work.forget_after is not None and inputs.one.df.isStreaming,
        max_parallelism=max_parallelism,
        state_changes=changed_states(state_changes),
        key=rows.names[: len(inputs.one.key)],
        rows=rows,
    )
    return build(query, inputs.united())


def unique_of_join(inputs: JoinInputs, how: str) -> UniqueKeys:
    """Return the keys that the result has: those of a side if each of its rows has one match at most."""
    left, right = inputs.unique
    if how in ("semi", "anti"):
        return left
    if how == "full":  # rows without matches may have null in any column
        return []
    joins = [
        {of_side[name] for name in side.named_key if name in of_side}
        for side, of_side in zip(inputs.sides, inputs.names, strict=True)
    ]
    one_left, one_right = (
        any(set(unique) <= key for unique in keys) for keys, key in zip(inputs.unique, joins, strict=True)
    )
    found: UniqueKeys = []
    if one_right and how in ("inner", "left"):
        found += left
    if one_left and how in ("inner", "right"):
        found += [each for each in right if each not in found]
    return found or [tuple(dict.fromkeys(a + b)) for a in left for b in right]
