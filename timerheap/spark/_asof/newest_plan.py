"""As-of joins by time alone: the newest right row of each key at or before the time of a left row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from timerheap.errors import ArgumentValueError
from timerheap.output_tag import OutputTag
from timerheap.spark._asof.asof_inputs import AsofArguments, AsofInputs
from timerheap.spark._asof.corrected_runner import RevisedJoinWork
from timerheap.spark._asof.newest_runner import AsofJoinWork
from timerheap.spark._changes.guarantees import changelog_type
from timerheap.spark._columns import added_name
from timerheap.spark._compat import nullable
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.state_changes import changed_states

UNMATCHED = "unmatched_rows"  # a side output


class ResultColumn(NamedTuple):
    """A column of the result: the number of its input, the column that carries it, its name and its type."""

    side: int
    carrier: str
    name: str
    type: DataType


def newest_joined(inputs: AsofInputs, arguments: AsofArguments) -> DataFrame:
    """Return what `join_asof` does with two inputs."""
    one, two, carriers = inputs.one, inputs.two, inputs.carriers
    columns = result_columns(inputs, arguments.suffix)
    sides = StructType([StructField("left", one.rows), StructField("right", two.rows)])
    tags = (OutputTag(UNMATCHED, nullable(sides)),) if arguments.unmatched else ()
    known: dict[str, Any] = {
        "columns": (
            {name: carriers[0][name] for name in one.rows.names},
            {name: carriers[1][name] for name in two.rows.names},
        ),
        "results": tuple((column.side, column.carrier) for column in columns),
        "unmatched": tags[0] if tags else None,
        **inputs.of_work(arguments),
    }
    result = nullable(StructType([StructField(column.name, column.type) for column in columns]))
    work = AsofJoinWork(**known)
    if arguments.lateness is not None:
        work = _corrected(inputs, arguments, known)
        result = changelog_type(result)
    query = query_of(
        work,
        result,
        one,
        two,
        order="arrival" if arguments.early else None,
        leads=arguments.lateness is None,
        late=arguments.late,
        max_parallelism=arguments.max_parallelism,
        state_changes=changed_states(arguments.state_changes),
        name=arguments.name,
        **inputs.of_query(),
        late_row=sides,
        side_outputs=tags,
    )
    return build(query, inputs.both())


def _corrected(inputs: AsofInputs, arguments: AsofArguments, known: dict[str, Any]) -> AsofJoinWork:
    """Return a join whose answers are corrected; the state of a right row has all that decides its place."""
    assert arguments.lateness is not None
    version, key = inputs.version, inputs.key_carriers
    for carrier in (*inputs.order, inputs.deleted):
        if carrier is not None and carrier not in (*version.values(), *key):
            version[added_name("order", version)] = carrier
    return RevisedJoinWork(
        **known | {"version": version, "ties": tuple(each for each in inputs.order if each not in key)},
        left=inputs.kept_columns(0),
        lateness=arguments.lateness,
        early=arguments.early,
    )


def result_columns(inputs: AsofInputs, suffix: str) -> list[ResultColumn]:
    """Return the columns of the left input, then those of the right one; raise if two have one name."""
    one, two, carriers = inputs.one, inputs.two, inputs.carriers
    shared = {a for a, b in zip(one.key, two.key, strict=True) if a == b}
    columns = [ResultColumn(0, carriers[0][field.name], field.name, field.dataType) for field in one.rows]
    columns += [
        ResultColumn(
            1, carriers[1][field.name], _right_name(field.name, one.rows.names, suffix), field.dataType
        )
        for field in two.rows
        if field.name not in shared
    ]
    names = [column.name.lower() for column in columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ArgumentValueError(
            f"suffix must make the names of the result different, got {suffix!r}, and {twice!r} twice; pass "
            "another one"
        )
    return columns


def _right_name(name: str, taken: Sequence[str], suffix: str) -> str:
    return name + suffix if name.lower() in map(str.lower, taken) else name
