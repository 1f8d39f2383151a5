"""Whose the rows are that wait in a checkpoint, where the query has one input more or less."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from timerheap.errors import ArgumentValueError, CheckpointMismatchError
from timerheap.spark._columns import HIDDEN, SIDES
from timerheap.spark._group.row_buffer import RowBuffer
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._query import Query
from timerheap.spark._state.checkpoint_survey import row_columns
from timerheap.spark._state.input_rows import InputRows, has_two_inputs
from timerheap.spark._state.read_checkpoint import CheckpointState

INPUTS = tuple(side.removeprefix(HIDDEN) for side in SIDES)
"""What two inputs are called: "left" and "right"."""


def input_names(state: CheckpointState) -> dict[str, str]:
    """Return the names by which users give up an input of an operator, such as "carts.left", and `INPUTS`."""
    rows = state._survey.rows
    if state.name is None or (rows is not None and not has_two_inputs(rows)):
        return {}
    return {f"{state.name}.{each}": each for each in INPUTS}


def input_rows(state: CheckpointState, query: Query, gone: Collection[str]) -> InputRows:
    """Find out whose the rows are that wait; raise an error if some would be lost.

    gone: which of `INPUTS` of the checkpoint the user has given up
    """
    if has_two_inputs(query.schema):
        if gone:
            raise ArgumentValueError(
                f"forget must have inputs that are gone, got {f'{state.name}.{min(gone)}'!r}, and the query "
                "has two inputs; leave it out"
            )
        return InputRows(query, _input_with(state, query))
    kept = min((number for number, name in enumerate(INPUTS) if name not in gone), default=None)
    _expect_taken(state, query, kept, gone)
    return InputRows(query, kept)


def _waits(state: CheckpointState) -> bool:
    return any(one.standing.buffered_rows for one in state._survey.manifests)


def _input_with(state: CheckpointState, query: Query) -> int | None:
    """Return which of two inputs has the columns of the rows that wait, which were those of one input."""
    rows = state._survey.rows
    if rows is None or has_two_inputs(rows) or not _waits(state):
        return None
    names = _user_columns(RowBuffer.rows_of(rows))
    for number, side in enumerate(SIDES):
        if not names - _user_columns(query.schema.field(side).type):
            return number
    missing = sorted(names - _user_columns(query.schema.field(SIDES[0]).type))
    raise CheckpointMismatchError(
        "left or right must have the columns of the input that the operator had, of which rows wait in the "
        f"checkpoint for the watermark, got left without {missing[0]!r}; go on with the old columns until "
        "these rows have come"
    )


def _expect_taken(state: CheckpointState, query: Query, kept: int | None, gone: Collection[str]) -> None:
    """Raise an error if rows of two inputs wait which a query with one would lose."""
    rows = state._survey.rows
    if rows is None or not has_two_inputs(rows) or not _waits(state):
        return
    left = quoted(row_columns(rows.names[:-2], state.key)[SIDES[0]]).isNotNull().alias("left")
    counts = {not row.left: row["count"] for row in state.buffered_rows().groupBy(left).count().collect()}
    for number, name in enumerate(INPUTS):
        waiting = counts.get(bool(number), 0)
        give_up, give_up_other = (
            f"forget=[{f'{state.name}.{each}'!r}]" for each in (name, INPUTS[1 - number])
        )
        missing = _user_columns(rows.field(SIDES[number]).type) - _user_columns(query.schema)
        if waiting and number != kept and name not in gone:
            raise CheckpointMismatchError(
                f"df must be the input of all rows that wait for the watermark, got one, and {waiting} of "
                f"input {name!r} of operator {state.name!r} wait in the checkpoint, too; pass {give_up} to "
                f"continue_from() to give them up, or {give_up_other} if {name!r} is the input that stays"
            )
        if waiting and number == kept and missing:
            raise CheckpointMismatchError(
                f"df must have the columns of input {name!r} of operator {state.name!r}, of which {waiting} "
                f"rows wait in the checkpoint for the watermark, got one without {min(missing)!r}; go on "
                f"with the old columns until these rows have come, or, if {name!r} is the input that is "
                f"gone, pass {give_up} to continue_from()"
            )


def _user_columns(rows: Iterable[pa.Field]) -> set[str]:
    return {field.name for field in rows if not field.name.startswith(HIDDEN)}
