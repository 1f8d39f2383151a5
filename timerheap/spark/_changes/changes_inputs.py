"""An input of changes: its rows with weights, its key, and what of them could not be taken back."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._changes.change_rows import inserted, weighted
from timerheap.spark._changes.guarantees import only_grows
from timerheap.spark._columns import NO_KEY, WEIGHT, shown_name
from timerheap.spark._compat import to_arrow_type
from timerheap.spark._group.multiset_state import multiset_of
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.named_columns import collation_of, ungrouped
from timerheap.spark._plan.repeatable import unrepeatable

_log = logging.getLogger("timerheap")


class StateOptions(TypedDict):
    """What each function of changes may be told of the state that it keeps."""

    max_parallelism: int | None
    forget_after: int | None


@dataclass(frozen=True, kw_only=True)
class ChangesInput(Input):
    """An input of changes, which has been checked.

    df: the rows with `WEIGHT`, and with `NO_KEY` if all of them are one group
    grows: whether rows only come
    """

    grows: bool

    @classmethod
    def of(cls, argument: str, df: Any, key: Any, *, prefix: str = "") -> ChangesInput:
        """Check an input; errors call it `argument`, and its key `prefix` + ``key``."""
        rows, by = ungrouped(argument, df, prefix + "key", key)
        columns = Columns(argument, rows)
        grows = only_grows(columns.df)
        if not grows:
            expect_repeatable(argument, columns.df)
        counted = inserted(columns.df) if grows else weighted(argument, columns.df)
        if isinstance(by, list | tuple) and not by:
            counted, by = counted.withColumn(NO_KEY, F.lit(0)), NO_KEY
        found = Input.checked(
            Columns(argument, counted), by, prefix=prefix, timed=False, hidden={WEIGHT, NO_KEY}
        )
        return cls(**vars(found), grows=grows)

    @property
    def named_key(self) -> list[str]:
        """The columns of the key, none if all rows are one group."""
        return [name for name in self.key if name != NO_KEY]

    def key_fields(self) -> list[T.StructField]:
        """Return the columns of the key in a result."""
        found = [self.df.schema[name] for name in self.named_key]
        return [T.StructField(shown_name(f.name), f.dataType, f.nullable, f.metadata) for f in found]


def expect_repeatable(argument: str, df: DataFrame) -> None:
    """Raise an error unless a row that is taken back has the values with which it came."""
    found = unrepeatable(df)
    if found.changing:
        raise ArgumentValueError(
            f"{argument} must have columns that are the same each time a row is computed, got "
            f"{found.changing[0]}: a row that is taken back would equal none that has come; compute it "
            "before the rows become changes, or behind the last operator"
        )
    if found.python:
        _log.warning(
            "%s: %s is computed once more when a row is taken back; it must return what it returned before",
            argument,
            found.python[0],
        )


def expect_kept_types(argument: str, fields: Iterable[T.StructField]) -> None:
    """Raise an error unless rows of these columns can be kept with weights, and found again."""
    for field in fields:
        name, type_ = shown_name(field.name), field.dataType
        try:
            multiset_of(to_arrow_type(type_))
        except (ArgumentTypeError, pa.ArrowInvalid):
            raise ArgumentValueError(
                f"{argument} must have columns whose values can be compared, got column {name!r} of type "
                f"{type_.simpleString()}; select its fields or elements, or F.to_json({name!r}), or drop it"
            ) from None
        collation = collation_of(type_)
        if collation is not None:
            raise ArgumentValueError(
                f"{argument} must have the collation UTF8_BINARY, got column {name!r} with {collation}; "
                f"values are compared by their bytes: use F.collate({name!r}, 'UTF8_BINARY')"
            )
