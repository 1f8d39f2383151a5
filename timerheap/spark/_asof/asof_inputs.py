"""The two inputs of an as-of join: their arguments, and the columns that carry the rows of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, StructField, StructType

from timerheap._arguments import instance, not_negative
from timerheap.errors import ArgumentValueError
from timerheap.spark._changes.corrections import lateness_of
from timerheap.spark._columns import INPUT, KEPT, TIME, added_name, computed_name, shown_name
from timerheap.spark._plan.build import marked
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.inputs import Input, two_inputs
from timerheap.spark._plan.named_columns import ColumnOrName, quoted
from timerheap.spark._plan.state_changes import IfStored


@dataclass(frozen=True)
class AsofArguments:
    """What an as-of join does, whatever its inputs are.

    inner: whether a left row without a match is left out
    tolerance: the greatest distance of a match in ms, None for any
    exact: whether a right row of the same time is a match
    unmatched: whether rows without a match are a side output
    lateness: how long answers are corrected, in ms; None if they are final
    early: whether left rows are answered when they come
    suffix, late, max_parallelism, state_changes, name: as in `timerheap.spark.join_asof`
    """

    inner: bool
    tolerance: int | None
    exact: bool
    unmatched: bool = False
    lateness: int | None = None
    early: bool = False
    suffix: str = "_right"
    late: str | None = None
    max_parallelism: int | None = None
    state_changes: Mapping[str, str | None] | IfStored | None = None
    name: str | None = None

    @classmethod
    def checked(
        cls,
        how: object,
        tolerance: Any,
        exact: object,
        unmatched: object,
        late: Any = None,
    ) -> AsofArguments:
        if how not in ("left", "inner"):
            raise ArgumentValueError(f'how must be "left" or "inner", got {how!r}')
        instance("allow_exact_matches", exact, bool)
        if unmatched not in (None, "drop", "emit"):
            raise ArgumentValueError(f'unmatched must be "drop" or "emit", got {unmatched!r}')
        longest = None if tolerance is None else not_negative("tolerance", tolerance)
        lateness, early, later = lateness_of(late)
        if lateness is not None and unmatched == "emit":
            raise ArgumentValueError(
                'unmatched must be "drop" if late corrects answers, got "emit": a match may come later; with '
                'how="left" the result has the rows without a match'
            )
        answers = {"lateness": lateness, "early": early, "late": later}
        return cls(how == "inner", longest, bool(exact), unmatched == "emit", **answers)


@dataclass(frozen=True)
class AsofInputs:
    """Two inputs, which have been checked.

    ties: the columns that order right rows of one key and time
    mark: the column that says whether a right row only ends the one before it
    kept: for each input the column that is false in rows which only advance the watermark
    carriers: for each input, the columns that carry those of the user, by the names of these; both have the
        key and the time in the same columns, and null in those of the other
    rows: the type of the rows of both
    """

    one: Input
    two: Input
    ties: tuple[str, ...]
    mark: str | None
    kept: tuple[str | None, str | None]
    carriers: tuple[dict[str, str], ...]
    rows: StructType

    @classmethod
    def checked(
        cls,
        left: Any,
        right: Any,
        key: Any,
        event_time: Any,
        watermark: Any,
        deleted: ColumnOrName | None,
        late: str | None = None,
        kept: tuple[str | None, str | None] = (None, None),
        table: bool = False,
    ) -> AsofInputs:
        """Check two inputs; of a `table` the left one is a stream, and the right one is not."""
        one, two = two_inputs(left, right, key, event_time, watermark, late=late)
        for each in (one, two):
            if each.event_time is None:
                raise ArgumentValueError(f"{each.prefix}event_time must name the event-time column, got None")
        ties, one, two = two.ties, replace(one, ties=()), replace(two, ties=())
        one.expect_to_match(two, mixed=table)
        two, mark = _with_mark(two, deleted)
        one, two = (
            replace(each, rows=StructType([field for field in each.rows if field.name != name]))
            for each, name in zip((one, two), kept, strict=True)
        )
        extra = [name for name in (*ties, mark) if name is not None and name not in two.rows.names]
        return cls(one, two, ties, mark, kept, *_carriers(one, two, extra))

    @property
    def version(self) -> dict[str, str]:
        """The columns that carry a right row in the state of its key, by the names of the fields there."""
        return self.kept_columns(1)

    def kept_columns(self, number: int) -> dict[str, str]:
        """Return the columns that carry a row of an input in the state of its key, by the fields there."""
        side = (self.one, self.two)[number]
        found = {name: self.carriers[number][name] for name in side.rows.names if name not in side.key}
        if TIME not in found.values():
            found[added_name("event_time", found)] = TIME
        return found

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that carry what orders right rows of one key and time."""
        return tuple(self.carriers[1][name] for name in (*self.ties, *self.two.rows.names))

    @property
    def key_carriers(self) -> list[str]:
        """The columns that carry the key."""
        return [self.carriers[0][name] for name in self.one.key]

    @property
    def deleted(self) -> str | None:
        """The column that carries whether a right row only ends the one before it."""
        return None if self.mark is None else self.carriers[1][self.mark]

    def of_work(self, arguments: AsofArguments) -> dict[str, Any]:
        """Return what the `Work` of any as-of join has."""
        return {
            "version": self.version,
            "ties": self.order,
            "deleted": self.deleted,
            "tolerance": arguments.tolerance,
            "exact": arguments.exact,
            "inner": arguments.inner,
        }

    def of_query(self) -> dict[str, Any]:
        """Return what a `Query` of both inputs has: its key, its rows and their times."""
        return {
            "key": self.key_carriers,
            "rows": self.rows,
            "event_time": TIME,
            "times": (self.one.time_column(), self.two.time_column()),
        }

    def both(self) -> DataFrame:
        """Return the rows of both inputs."""
        return self.carried(0).unionAll(self.carried(1))

    def carried(self, number: int) -> DataFrame:
        """Return the rows of an input, as the rows of both are carried."""
        sides = (self.one, self.two)
        side, other, carriers, rows = sides[number], sides[1 - number], self.carriers[number], self.rows
        marks, keys = marked(side, other), rows.names[2 : 2 + len(side.key)]
        names = {carrier: name for name, carrier in carriers.items()}
        names |= {TIME: str(side.event_time), **dict(zip(keys, side.key, strict=True))}
        columns = [
            quoted(names[field.name]) if field.name in names else F.lit(None).cast(field.dataType)
            for field in rows
        ]
        columns[1] = F.lit(number).cast("tinyint")
        columns = [column.alias(name) for column, name in zip(columns, rows.names, strict=True)]
        others: list[Column] = [quoted(name) for name in marks.columns[len(side.df.columns) :]]
        if any(self.kept):
            kept = self.kept[number]
            others.append((F.lit(True) if kept is None else quoted(kept)).alias(KEPT))
        return marks.select(*columns, *others)


def _with_mark(right: Input, deleted: ColumnOrName | None) -> tuple[Input, str | None]:
    """Return the right input with the column that marks deletes, and its name."""
    if deleted is None:
        return right, None
    columns = Columns("right", right.df)
    name = columns.boolean("deleted", deleted)
    return replace(right, df=columns.df), name


def _carriers(one: Input, two: Input, extra: Sequence[str]) -> tuple[tuple[dict[str, str], ...], StructType]:
    """Return what carries the columns of each input, by their names, and the type of the rows of both."""
    rows = StructType([StructField(TIME, one.df.schema[str(one.event_time)].dataType)])
    rows.add(INPUT, ByteType())
    key = [computed_name(number, shown_name(name)) for number, name in enumerate(one.key)]
    for carrier, name in zip(key, one.key, strict=True):
        rows.add(carrier, one.df.schema[name].dataType)
    carriers = []
    for side, names in ((one, one.rows.names), (two, [*two.rows.names, *extra])):
        found = {str(side.event_time): TIME, **dict(zip(side.key, key, strict=True))}
        for name in names:
            if name not in found:
                found[name] = computed_name(len(rows), f"{side.name}.{shown_name(name)}")
                rows.add(found[name], side.df.schema[name].dataType)
        carriers.append(found)
    return tuple(carriers), rows
