"""The columns of dead letters, and their side output among those of a query."""

from __future__ import annotations

from pyspark.sql.types import LongType, StringType, StructField, StructType

from timerheap.errors import ArgumentValueError
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import LETTERS, SIDE_OUTPUT, distinct, shown_name
from timerheap.spark._compat import nullable
from timerheap.spark._functions.guarded.dead_letters import RULE
from timerheap.spark._plan.inputs import Input


def letters_tag(
    source: Input, row: StructType | None = None, *, broadcast: StructType | None = None, rules: bool = False
) -> OutputTag:
    """Return the tag of the side output of dead letters.

    source, row: the input, and the type of its rows if these are not those of the user
    broadcast: that of the rows which go to all keys
    rules: whether there are several functions, each with the name of its rule
    """
    fields = [StructField(RULE, StringType())] if rules else []
    names = distinct(map(shown_name, source.key))
    types = (source.df.schema[name].dataType for name in source.key)
    key = StructType([*map(StructField, names, types)])
    fields.append(StructField("key", nullable(key)))
    fields.append(StructField("call", StringType()))
    fields.append(StructField("timestamp", LongType()))
    fields.append(StructField("timer", StringType()))
    fields.append(StructField("input", nullable(row or source.rows)))
    if broadcast is not None:
        fields.append(StructField("broadcast", nullable(broadcast)))
    fields += [StructField(name, StringType()) for name in ("error", "trace")]
    return OutputTag(LETTERS, StructType(fields))


def with_letters(side_outputs: tuple[OutputTag, ...], tag: OutputTag | None) -> tuple[OutputTag, ...]:
    """Return the side outputs of a query with that of dead letters, if it has one."""
    if tag is None:
        return side_outputs
    if tag in side_outputs:
        raise ArgumentValueError(
            f'side_outputs must not have the id {LETTERS!r} with errors="emit"; rename it'
        )
    return (*side_outputs, tag)


def row_letters(row: StructType) -> StructType:
    """Return the type of dead letters of a function on rows without keys."""
    texts = [StructField(name, StringType()) for name in ("error", "trace")]
    return StructType([StructField("input", nullable(row)), *texts])


def with_letter_column(result: StructType, letters: StructType) -> StructType:
    """Return the type of results with dead letters beside them."""
    if SIDE_OUTPUT in result.names:
        raise ArgumentValueError(
            f'output_schema must not have a column {SIDE_OUTPUT!r} with errors="emit"; rename it'
        )
    side = StructType([StructField(LETTERS, letters)])
    return StructType([*nullable(result).fields, StructField(SIDE_OUTPUT, side)])
