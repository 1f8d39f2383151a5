"""Which aggregates there are, what of their rows is kept for them, and the query that computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._aggregates.spark_aggregates import (
    UserAggregate,
    call_text,
    called_aggregate,
    expect_arguments,
)
from timerheap.spark._changes.aggregates.aggregate_changes_runner import AggregateChangesWork
from timerheap.spark._changes.aggregates.aggregate_results import ComputedAggregate
from timerheap.spark._changes.aggregates.bags import Bag, BagReading
from timerheap.spark._changes.aggregates.kept_sums import (
    Kept,
    KeptCount,
    KeptDoubles,
    KeptExtreme,
    KeptIntegers,
)
from timerheap.spark._changes.aggregates.reduced_changes import ChangesReducer, SentColumns
from timerheap.spark._changes.aggregates.user_aggregates import UserCall
from timerheap.spark._changes.changes_inputs import ChangesInput, expect_kept_types
from timerheap.spark._changes.guarantees import changelog_type
from timerheap.spark._columns import AGGREGATED, WEIGHT, added_name
from timerheap.spark._compat import nullable, to_arrow_schema
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.named_columns import is_atomic, quoted
from timerheap.spark._query import Reduction, StateChanges
from timerheap.spark._state.initial_contents import start_of

_DISTINCT = {"count_distinct": "count", "sum_distinct": "sum", "avg_distinct": "avg"}
_FUNCTIONS = (
    "count", "sum", "avg", "min", "max", "min_by", "max_by", "bool_and", "bool_or", "var_samp", "var_pop",
    "stddev_samp", "stddev_pop", *_DISTINCT,
)  # fmt: skip
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


@dataclass(frozen=True)
class FilteredAggregate:
    """An aggregate of the rows that meet a condition, FILTER in SQL, or of different values: DISTINCT."""

    aggregate: Column
    where: Column | None = None
    distinct: bool = False


@dataclass
class AggregatePlan:
    """The aggregates of an input of changes.

    inputs: the columns that they read, by the names under which they are sent, and what they are
    distinct, readings: what is kept of the different values of a bag, and what is read of bags
    users: calls of functions in Python
    fields: of the results
    """

    df: DataFrame
    grows: bool
    ansi: bool
    inputs: dict[str, tuple[Column, str]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=lambda: [KeptCount(None, "rows")])
    bags: list[Bag] = field(default_factory=list)
    distinct: list[tuple[int, Kept]] = field(default_factory=list)
    readings: list[BagReading] = field(default_factory=list)
    users: list[UserCall] = field(default_factory=list)
    computed: list[ComputedAggregate] = field(default_factory=list)
    fields: list[T.StructField] = field(default_factory=list)

    @classmethod
    def of(cls, source: ChangesInput, wanted: Sequence[Any]) -> AggregatePlan:
        """Plan aggregates, each a Column, a `FilteredAggregate`, or one of `udaf`."""
        session = source.df.sparkSession
        plan = cls(source.df, source.grows, session.conf.get("spark.sql.ansi.enabled") != "false")
        for one in wanted:
            if isinstance(one, UserAggregate):
                plan._add_user(one)
            else:
                plan._add(one if isinstance(one, FilteredAggregate) else FilteredAggregate(one))
        return plan

    def _add_user(self, wanted: UserAggregate) -> None:
        expect_arguments(wanted)
        function = wanted.function
        if not self.grows and not callable(getattr(function, "retract", None)):
            raise ArgumentValueError(
                f"aggregates: {type(function).__name__} must have retract(value, accumulator), since rows "
                "may be taken back; write it, so that it returns the accumulator without the value"
            )
        self.fields.append(T.StructField(wanted.name, wanted.returns))
        columns = [one if isinstance(one, Column) else self.df[one] for one in wanted.columns]
        name, _ = self._input(F.struct(*(one.alias(f"_{at}") for at, one in enumerate(columns))), None)
        (rows,) = to_arrow_schema(nullable(self.df.select(self.inputs[name][0]).schema))
        (result,) = to_arrow_schema(T.StructType([self.fields[-1]]))
        state = added_name(f"accumulator of {wanted.name}", [one.name for one in self.users])
        bag = Bag(name, state, rows.type)
        self.users.append(UserCall(bag, function, result, wanted.accumulator, state))
        self._compute("value", state)

    def _add(self, wanted: FilteredAggregate) -> None:
        column = wanted.aggregate
        if not isinstance(column, Column):
            raise ArgumentTypeError(
                f"aggregates must be Columns such as F.count('*'), got {column!r}; pass other arguments by "
                "name, or write a function of pyspark.sql.functions"
            )
        function, arguments, call = called_aggregate(column, self.df, _FUNCTIONS, "aggregates")
        if wanted.distinct and f"{function}_distinct" in _DISTINCT:
            function = f"{function}_distinct"
        self.fields.append(self.df.groupBy().agg(column).schema[0])
        if function == "count" and call.of_rows:
            of_rows = wanted.where is None
            self._compute("count", "rows" if of_rows else self._count(F.lit(1), wanted.where))
        elif function in ("min_by", "max_by"):
            self._add_extreme(function, *arguments, where=wanted.where)
        elif function == "count_distinct" and len(arguments) > 1:
            every = F.struct(*(one.alias(f"_{at}") for at, one in enumerate(arguments)))
            self._add_distinct(function, self._where_known(every, arguments), wanted)
        elif len(arguments) != 1:
            raise ArgumentValueError(
                f"aggregates must be of one column, got {call_text(column)}; aggregate one column"
            )
        else:
            self._add_one(function, arguments[0], wanted)

    def _add_one(self, function: str, argument: Column, wanted: FilteredAggregate) -> None:
        if function == "count":
            self._compute("count", self._count(argument, wanted.where))
        elif function in ("bool_and", "bool_or"):
            counts = (self._count(F.when(one, 1), wanted.where) for one in (argument, ~argument))
            self._compute(function, *counts)
        elif function in ("min", "max"):
            self._add_extreme(function, argument, where=wanted.where)
        elif function in _DISTINCT:
            self._add_distinct(function, argument, wanted)
        else:
            self._add_sums(function, argument, wanted)

    def _add_extreme(
        self, function: str, argument: Column, by: Column | None = None, *, where: Column | None
    ) -> None:
        greatest = function.startswith("max")
        compared = _normal(self.df, argument if by is None else by)
        type_ = self.df.select(compared).schema[0]
        if not is_atomic(type_.dataType):
            raise ArgumentValueError(
                f"aggregates: {function} must compare values of an atomic type, got column {type_.name!r} of "
                f"type {type_.dataType.simpleString()}; use a field of it"
            )
        if by is not None:
            pair = F.struct(compared.alias("by"), argument.alias("value"))
            compared = self._where_known(pair, [by])
        name, shown, arrow = self._kept_input(compared, where)
        what: Literal["least", "greatest"] = "greatest" if greatest else "least"
        computed = "value" if by is None else "second"
        if self.grows:
            self._compute(computed, self._keep(KeptExtreme(name, f"{what} {shown}", arrow, greatest)))
        else:
            self._compute(computed, self._read(self._bag(name, shown, arrow), what))

    def _add_distinct(self, function: str, argument: Column, wanted: FilteredAggregate) -> None:
        name, shown, arrow = self._kept_input(_normal(self.df, argument), wanted.where)
        bag = self._bag(name, shown, arrow)
        count = self._read(bag, "distinct")
        if function == "count_distinct":
            self._compute("count", count)
            return
        type_ = self._numeric(argument, wanted)
        one, kind, scale = _sum_of(type_, "value", f"distinct {shown}")
        if (bag, one) not in self.distinct:
            self.distinct.append((bag, one))
        self._compute(f"{_DISTINCT[function]} of {kind}", one.name, count, scale=scale)

    def _add_sums(self, function: str, argument: Column, wanted: FilteredAggregate) -> None:
        type_ = self._numeric(argument, wanted)
        count = self._count(argument, wanted.where)
        if function not in ("sum", "avg"):
            name, shown = self._input(argument.cast("double"), wanted.where)
            digits = self._keep(KeptDoubles(name, f"sum of {shown}"))
            squares = self._keep(KeptDoubles(name, f"sum of squares of {shown}", power=2))
            self._compute(function, digits, squares, count)
            return
        one, kind, scale = _sum_of(type_, *self._input(argument, wanted.where))
        self._compute(f"{function} of {kind}", self._keep(one), count, scale=scale)

    def _numeric(self, argument: Column, wanted: FilteredAggregate) -> T.DataType:
        type_ = self.df.select(argument).schema[0].dataType
        if not isinstance(type_, (*_WHOLE, T.FloatType, T.DoubleType, T.DecimalType)):
            raise ArgumentValueError(
                f"aggregates: {call_text(wanted.aggregate)} must be of a numeric type, got "
                f"{type_.simpleString()}; cast it"
            )
        return type_

    @staticmethod
    def _where_known(column: Column, parts: Sequence[Column]) -> Column:
        """Return a column that is null where one of its parts is null."""
        known = parts[0].isNotNull()
        for part in parts[1:]:
            known &= part.isNotNull()
        return F.when(known, column)

    def _compute(self, function: str, *of: str, scale: int = 0) -> None:
        (arrow,) = to_arrow_schema(T.StructType([self.fields[-1]]))
        self.computed.append(ComputedAggregate(function, arrow, of, scale, self.ansi))

    def _count(self, argument: Column, where: Column | None) -> str:
        name, shown = self._input(argument, where)
        return self._keep(KeptCount(name, f"count of {shown}"))

    def _input(self, argument: Column, where: Column | None) -> tuple[str, str]:
        """Return the name under which a column is sent, and what it is."""
        column = argument if where is None else F.when(where, argument)
        rows = self.df.select(column)
        for name, (known, shown) in self.inputs.items():
            if self.df.select(known).sameSemantics(rows):
                return name, shown
        shown = added_name(rows.columns[0], [shown for _, shown in self.inputs.values()])
        name = f"{AGGREGATED}{len(self.inputs)}"
        self.inputs[name] = column, shown
        return name, shown

    def _kept_input(self, argument: Column, where: Column | None) -> tuple[str, str, pa.DataType]:
        """Return what `_input` does, and the type of the values, which are kept as they are."""
        name, shown = self._input(argument, where)
        field_ = self.df.select(argument).schema[0]
        expect_kept_types("aggregates", [T.StructField(shown, field_.dataType)])
        return name, shown, to_arrow_schema(nullable(T.StructType([field_])))[0].type

    def _keep(self, wanted: Kept) -> str:
        if wanted not in self.kept:
            self.kept.append(wanted)
        return wanted.name

    def _bag(self, name: str, shown: str, arrow: pa.DataType) -> int:
        bag = Bag(name, f"values of {shown}", arrow)
        if bag not in self.bags:
            self.bags.append(bag)
        return self.bags.index(bag)

    def _read(self, bag: int, what: Literal["least", "greatest", "distinct"]) -> str:
        reading = BagReading(bag, f"{what} {self.bags[bag].name}", what)
        if reading not in self.readings:
            self.readings.append(reading)
        return reading.name


def _sum_of(type_: T.DataType, name: str, shown: str) -> tuple[Kept, str, int]:
    """Return what is kept for the sum of a column, the kind of its numbers, and their scale."""
    if isinstance(type_, T.FloatType | T.DoubleType):
        return KeptDoubles(name, f"sum of {shown}"), "doubles", 0
    if not isinstance(type_, T.DecimalType):
        return KeptIntegers(name, f"sum of {shown}", 2), "integers", 0
    parts = 2 if type_.precision <= 18 else 4
    return KeptIntegers(name, f"sum of {shown}", parts), "decimals", type_.scale


def _normal(df: DataFrame, column: Column) -> Column:
    """Return a column in which numbers that are equal are one number, as Spark takes -0.0 for 0.0."""
    type_ = df.select(column).schema[0].dataType
    if not isinstance(type_, T.FloatType | T.DoubleType):
        return column
    return F.when(column == 0, F.lit(0).cast(type_)).otherwise(column)


def aggregated_changes(
    source: ChangesInput,
    wanted: Sequence[Any],
    forget_after: int | None,
    initial_state: object,
    max_parallelism: int | None,
    state_changes: StateChanges,
    name: object = None,
) -> DataFrame:
    """Return the changes of the aggregates of each key."""
    plan = AggregatePlan.of(source, wanted)
    keys = source.key_fields()
    names = [one.name for one in (*keys, *plan.fields)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ArgumentValueError(
            f"aggregates must have names of their own, got {twice[0]!r} twice among the columns of the "
            "result; use alias()"
        )
    of_batch = not keys and not source.df.isStreaming  # which has a result without rows, too
    weight = [] if source.grows and not of_batch else [WEIGHT]
    rows = source.df.select(
        *map(quoted, source.key),
        *(column.alias(name) for name, (column, _) in plan.inputs.items()),
        *weight,
    )
    if of_batch:
        nothing = [F.lit(None).cast(rows.schema[name].dataType) for name in plan.inputs]
        rows = rows.unionAll(rows.sparkSession.range(1).select(F.lit(0), *nothing, F.lit(0).cast("tinyint")))
    sent = SentColumns(tuple(plan.kept), tuple(plan.bags), tuple(one.rows for one in plan.users))
    reducer = ChangesReducer(source.key, [*plan.inputs, *weight], sent)
    work = AggregateChangesWork(
        keys=len(keys),
        sent=sent,
        distinct=tuple(plan.distinct),
        readings=tuple(plan.readings),
        users=tuple(plan.users),
        computed=tuple(plan.computed),
        forget_after=forget_after,
    )
    query = query_of(
        work,
        changelog_type(
            [*keys, *plan.fields],
            *([[key.name for key in keys]] if keys else []),
            grows=source.grows and not wanted,
        ),
        source,
        processing_time=forget_after is not None and source.df.isStreaming,
        max_parallelism=max_parallelism,
        state_changes=state_changes,
        name=name,
        rows=rows.schema,
        key_names=source.named_key,
        reduction=Reduction(reducer, reducer.schema()),
    )
    return build(query, rows, start=start_of(initial_state, rows))
