"""What becomes of calls of a function that raise an exception: the option, and the side output of them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import LongType, StringType, StructField, StructType

from timerheap._arguments import positive_int
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import LETTERS, distinct, shown_name
from timerheap.spark._compat import nullable
from timerheap.spark._plan.inputs import Input

RULE = "rule"
"""The field that has the name of a rule, where there are some."""


@dataclass(frozen=True)
class DeadLetters:
    """Which errors of a function go to a side output, and how many of them end the query.

    A row or timer for which the function raises an exception is a dead letter: `dead_letters` returns it with
    its error. Too many of them end the query with the last error, as does any without this.

    Parameters
    ----------
    in_a_row : int, optional, default 1000
        How many rows and timers in a row, of one task in one micro-batch, end the query. None: any number.
    share : float, optional, default 0.5
        Which share of the rows and timers of one task in one micro-batch ends the query when it is exceeded,
        from the 1,000th on. None: any share.

    Examples
    --------
    ::

        timerheap.spark.process(..., errors=DeadLetters(in_a_row=100, share=0.01))
    """

    in_a_row: int | None = 1000
    share: float | None = 0.5

    def __post_init__(self) -> None:
        if self.in_a_row is not None:
            positive_int("in_a_row", self.in_a_row)
        share = self.share
        if share is None:
            return
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ArgumentTypeError(f"share must be a number from 0 to 1 or None, got {share!r}")
        if not 0 <= share <= 1:
            raise ArgumentValueError(f"share must be a number from 0 to 1 or None, got {share!r}")


@dataclass(frozen=True)
class Guard:
    """What becomes of a function's calls that raise: the bound, and the rule that the function is of."""

    bound: DeadLetters
    rule: str | None = None


def guard_of(errors: object) -> Guard | None:
    """Return what the argument `errors` says, None for "raise"."""
    if errors is None or errors == "raise":
        return None
    if errors == "emit":
        return Guard(DeadLetters())
    if isinstance(errors, DeadLetters):
        return Guard(errors)
    wanted = 'errors must be "raise", "emit" or a timerheap.spark.DeadLetters'
    if isinstance(errors, str):
        raise ArgumentValueError(f"{wanted}, got {errors!r}")
    raise ArgumentTypeError(f"{wanted}, got {errors!r}")


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
