"""Random plans over tables that change: as timerheap's functions, as a plain model, and as DuckDB's SQL."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from itertools import count
from typing import Any

import changing_tables as model
import pyarrow as pa
from changing_tables import Row, Rows
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from random_changes import TABLES

import timerheap.spark


class Tables(dict[str, Rows]):
    """What is in the tables; `started` are the plans of one group of all rows that have had rows before."""

    def __init__(self, tables: Mapping[str, Rows], started: Collection[Plan]) -> None:
        super().__init__(tables)
        self.started = started


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda x, y: x < y,
    ">": lambda x, y: x > y,
    "<>": lambda x, y: x != y,
}


def compares(operator: str, x: Any, y: Any) -> bool:
    """Return whether a comparison is true: not one with null; NaN is larger than all others."""
    return None not in (x, y) and COMPARED[operator](model.rank_of(x), model.rank_of(y))


class Plan(ABC):
    """A table that is computed of others; `schema` has its columns."""

    schema: pa.Schema

    @property
    def inputs(self) -> tuple[Plan, ...]:
        """The tables that it is computed of."""
        return ()

    @abstractmethod
    def rows(self, tables: Tables) -> Rows:
        """Return its rows, computed anew."""

    def passing(self, tables: Tables, changes: Mapping[str, Rows]) -> Rows:
        """Return rows of its changes in a micro-batch, given those of the sources, or of its table."""
        return self.rows(tables)

    @abstractmethod
    def sql(self) -> str:
        """Return a query of DuckDB's."""

    @abstractmethod
    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return its changes, made by timerheap."""

    def at(self, names: tuple[str, ...]) -> list[int]:
        return [self.schema.get_field_index(name) for name in names]

    def sources(self) -> Iterator[Source]:
        for one in self.inputs:
            yield from one.sources()

    def every(self) -> Iterator[Plan]:
        for one in self.inputs:
            yield from one.every()
        yield self


@dataclass(frozen=True)
class Source(Plan):
    """A table with changes; one of `upserts` is the newest rows by ``id`` of a stream of rows."""

    name: str
    upserts: bool = False

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        return TABLES[self.name]

    @property
    def stream(self) -> str:
        return f"upserts of {self.name}" if self.upserts else self.name

    def rows(self, tables: Tables) -> Rows:
        return tables[self.stream]

    def passing(self, tables: Tables, changes: Mapping[str, Rows]) -> Rows:
        return self.rows(tables) if self.upserts else changes[self.stream]

    def sql(self) -> str:
        return f'SELECT * FROM "{self.stream}"'

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        df = frames[self.stream]
        return timerheap.spark.changes_of(df, "id", "u", deleted="yes") if self.upserts else df

    def sources(self) -> Iterator[Source]:
        yield self


@dataclass(frozen=True)
class Kept(Plan):
    """The rows that a WHERE keeps."""

    of: Plan
    column: str
    operator: str
    constant: Any

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        return self.of.schema

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.of,)

    def keeps(self, row: Row) -> bool:
        return compares(self.operator, row[self.schema.get_field_index(self.column)], self.constant)

    def rows(self, tables: Tables) -> Rows:
        return Rows({row: n for row, n in self.of.rows(tables).items() if self.keeps(row)})

    def passing(self, tables: Tables, changes: Mapping[str, Rows]) -> Rows:
        return Rows({row: n for row, n in self.of.passing(tables, changes).items() if self.keeps(row)})

    def sql(self) -> str:
        return f"SELECT * FROM ({self.of.sql()}) WHERE {self.column} {self.operator} {self.constant!r}"

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        return self.of.frame(frames).where(f"{self.column} {self.operator} {self.constant!r}")


@dataclass(frozen=True)
class Both(Plan):
    """UNION ALL."""

    one: Plan
    other: Plan

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        return self.one.schema

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return self.one, self.other

    def rows(self, tables: Tables) -> Rows:
        found = Rows(self.one.rows(tables))
        found.update(self.other.rows(tables))
        return found

    def passing(self, tables: Tables, changes: Mapping[str, Rows]) -> Rows:
        return self.one.passing(tables, changes) + self.other.passing(tables, changes)

    def sql(self) -> str:
        return f"SELECT * FROM ({self.one.sql()}) UNION ALL SELECT * FROM ({self.other.sql()})"

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        return self.one.frame(frames).unionByName(self.other.frame(frames))


@dataclass(frozen=True)
class Call:
    """An aggregate; `by` is the column that orders, of ``min_by`` and ``max_by``."""

    function: str
    column: str | None
    name: str
    type_: pa.DataType
    by: str | None = None
    kept: str | None = None  # a column of FILTER

    def sql(self) -> str:
        """Return it in DuckDB's SQL, whose ``max_by`` leaves out null."""
        where = f" FILTER (WHERE {self.kept})" if self.kept else ""
        if self.by is not None:
            return f"arg_{self.function[:3]}_null({self.column}, {self.by}){where}"
        if self.function == "count_distinct":
            return f"count(DISTINCT {self.column}){where}"
        return f"{self.function}({self.column or '*'}){where}"

    def expression(self) -> Column:
        if self.column is None and self.kept is None:
            return F.count("*").alias(self.name)
        column = F.lit(1) if self.column is None else F.col(self.column)
        column = column if self.kept is None else F.when(F.col(self.kept), column)
        more = [] if self.by is None else [F.col(self.by)]
        if self.by is not None and self.kept is not None:
            more = [F.when(F.col(self.kept), F.col(self.by))]
        return getattr(F, self.function)(column, *more).alias(self.name)


@dataclass(frozen=True)
class Groups(Plan):
    """GROUP BY."""

    of: Plan
    key: tuple[str, ...]
    calls: tuple[Call, ...]

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        return pa.schema(
            [*map(self.of.schema.field, self.key), *((call.name, call.type_) for call in self.calls)]
        )

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.of,)

    def rows(self, tables: Tables) -> Rows:
        def at(name: str | None) -> int | None:
            return None if name is None else self.of.schema.get_field_index(name)

        calls = [(one.function, at(one.column), at(one.by), at(one.kept)) for one in self.calls]
        always = self in tables.started
        found = model.aggregated(self.of.rows(tables), self.of.at(self.key), calls, always)
        return Rows({tuple(map(rounded, row, self.schema.types)): n for row, n in found.items()})

    def sql(self) -> str:
        items = [*self.key, *(f"{call.sql()} AS {call.name}" for call in self.calls)]
        group = f"GROUP BY {', '.join(self.key)}" if self.key else ""
        return f"SELECT {', '.join(items)} FROM ({self.of.sql()}) {group}"

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        calls = [call.expression() for call in self.calls]
        return timerheap.spark.aggregate_changes(self.of.frame(frames), list(self.key), *calls)


@dataclass(frozen=True)
class First(Plan):
    """Top-N."""

    of: Plan
    key: tuple[str, ...]
    n: int
    orders: tuple[tuple[str, bool, bool], ...]  # column, descending, nulls first
    rank: str
    number: str | None

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        number = [] if self.number is None else [pa.field(self.number, pa.int32())]
        return pa.schema([*self.of.schema, *number])

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.of,)

    def rows(self, tables: Tables) -> Rows:
        orders = [(*self.of.at((name,)), *rest) for name, *rest in self.orders]
        numbered = self.number is not None
        rows = self.of.rows(tables)
        return model.first_rows(rows, self.of.at(self.key), self.n, orders, self.rank, numbered)  # type: ignore[arg-type]

    def sql(self) -> str:
        by = ", ".join(
            f"{name} {'DESC' if descending else 'ASC'} NULLS {'FIRST' if nulls_first else 'LAST'}"
            for name, descending, nulls_first in self.orders
        )
        number = self.number or "number"
        shown = "" if self.number else " EXCLUDE (number)"
        return (
            f"SELECT *{shown} FROM (SELECT *, {self.rank}() OVER (PARTITION BY {', '.join(self.key)} "
            f"ORDER BY {by}) AS {number} FROM ({self.of.sql()})) WHERE {number} <= {self.n}"
        )

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        orders = [ordered(*order) for order in self.orders]
        df = self.of.frame(frames)
        return timerheap.spark.top_changes(
            df, list(self.key), self.n, orders, number=self.number, rank=self.rank
        )


def rounded(value: Any, type_: pa.DataType) -> Any:
    """Return a decimal with as many digits as its type has."""
    if not isinstance(value, Decimal):
        return value
    return value.quantize(Decimal(1).scaleb(-type_.scale), ROUND_HALF_UP, model.WIDE)


def ordered(name: str, descending: bool, nulls_first: bool) -> Column:
    column = F.col(name)
    if descending:
        return column.desc_nulls_first() if nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if nulls_first else column.asc_nulls_last()


@dataclass(frozen=True)
class Pairs(Plan):
    """A join by key; `condition` compares a column of each side."""

    left: Plan
    right: Plan
    key: tuple[str, ...]
    how: str
    condition: tuple[str, str, str] | None = None

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        left = self.left.schema
        if self.how in ("semi", "anti"):
            return left
        others = [field for field in self.right.schema if field.name not in self.key]
        return pa.schema([*left, *(field.with_name(self.renamed(field.name)) for field in others)])

    def renamed(self, name: str) -> str:
        """Return the name that a column of the right side has in the result."""
        return f"{name}_right" if name in self.left.schema.names and name not in self.key else name

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return self.left, self.right

    def meets(self, left: Row, right: Row) -> bool:
        assert self.condition is not None
        one, operator, other = self.condition
        x, y = left[self.left.schema.get_field_index(one)], right[self.right.schema.get_field_index(other)]
        return compares(operator, x, y)

    def rows(self, tables: Tables) -> Rows:
        widths = len(self.left.schema), len(self.right.schema)
        keys = self.left.at(self.key), self.right.at(self.key)
        sides = self.left.rows(tables), self.right.rows(tables)
        found = model.joined(*sides, *keys, self.how, widths, self.meets if self.condition else None)
        if self.how in ("semi", "anti"):
            return found
        others = [widths[0] + at for at, name in enumerate(self.right.schema.names) if name not in self.key]
        key = dict(zip(keys[0], (widths[0] + at for at in keys[1]), strict=True))
        shown = Rows()
        for row, n in found.items():
            left = (
                row[at] if row[at] is not None or at not in key else row[key[at]] for at in range(widths[0])
            )
            shown[(*left, *(row[at] for at in others))] += n
        return shown

    def sql(self) -> str:
        on = " AND ".join(f"l.{name} = r.{name}" for name in self.key)
        if self.condition is not None:
            one, operator, other = self.condition
            on += f" AND l.{one} {operator} r.{other}"
        sides = f"FROM ({self.left.sql()}) l {{}} JOIN ({self.right.sql()}) r ON {on}"
        if self.how in ("semi", "anti"):
            return f"SELECT * {sides.format(self.how)}"
        items = [
            f"coalesce(l.{name}, r.{name}) AS {name}" if name in self.key else f"l.{name}"
            for name in self.left.schema.names
        ]
        items += [
            f"r.{name} AS {self.renamed(name)}" for name in self.right.schema.names if name not in self.key
        ]
        return f"SELECT {', '.join(items)} {sides.format(self.how)}"

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        on = None
        if self.condition is not None:
            one, operator, other = self.condition
            on = F.expr(f"{one} {operator} {self.renamed(other)}")
        sides = self.left.frame(frames), self.right.frame(frames)
        return timerheap.spark.join_changes(*sides, list(self.key), how=self.how, on=on)


class Made:
    """Makes random plans."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._numbers = count()

    def name(self, stem: str) -> str:
        return f"{stem}{next(self._numbers)}"

    def plan(self, depth: int) -> Plan:
        """Return a chain of so many operators, of which a join may have two chains."""
        if depth == 0:
            return self.between(Source(*self.rng.choice([("orders",), ("orders", True), ("people",)])))
        return self.rng.choice([self.groups, self.groups, self.first, self.pairs])(depth)

    def between(self, of: Plan) -> Plan:
        """Return a plan with what Spark may do between operators."""
        chance = self.rng.random()
        if chance < 0.15:
            names = [field.name for field in of.schema if is_number(field.type)]
            if names:
                operator = self.rng.choice([*COMPARED])
                return Kept(of, self.rng.choice(names), operator, self.rng.choice([0, 1, 2]))
        if chance < 0.2 and isinstance(of, Source):
            return Both(of, of)
        return of

    def key_of(self, of: Plan, least: int = 0) -> tuple[str, ...]:
        names = [field.name for field in of.schema if not pa.types.is_floating(field.type)]
        few = [name for name in names if name not in ("u", "r", "id")] or names
        return tuple(self.rng.sample(few, min(len(few), self.rng.choice([least, 1, 1, 1, 2]))))

    def groups(self, depth: int) -> Plan:
        of = self.between(self.plan(depth - 1))
        key = self.key_of(of)
        rest = [field for field in of.schema if field.name not in key]
        calls = [self.call(of, rest) for _ in range(self.rng.randint(1, 4))]
        return Groups(of, key, tuple(calls))

    def call(self, of: Plan, fields: list[pa.Field]) -> Call:
        rng = self.rng
        kept = [field.name for field in of.schema if pa.types.is_boolean(field.type)]
        shared = {"kept": rng.choice(kept) if kept and rng.random() < 0.25 else None}
        if not fields or rng.random() < 0.2:
            return Call("count", None, self.name("rows"), pa.int64(), **shared)
        field = rng.choice(fields)
        name, type_, by = field.name, field.type, self.total(of)
        functions = ["count", "min", "max", "count_distinct"]
        if pa.types.is_boolean(type_):
            functions = ["count", "count_distinct"]
        if is_number(type_):
            functions += ["sum", "sum", "avg", "var_pop", "var_samp", "stddev_samp", "stddev_pop"]
        if by is not None and by != name:
            functions += ["min_by", "max_by"]
        function = rng.choice(functions)
        of_type = type_
        if function in ("count", "count_distinct"):
            of_type = pa.int64()
        elif function in ("sum", "avg") and pa.types.is_decimal(type_):
            digits, more = (10, 0) if function == "sum" else (4, 4)
            of_type = pa.decimal128(min(type_.precision + digits, 38), min(type_.scale + more, 38))
        elif function == "sum" and pa.types.is_integer(type_):
            of_type = pa.int64()
        elif function in ("avg", "sum") or function[:3] in ("var", "std"):
            of_type = pa.float64()
        by = by if function in ("min_by", "max_by") else None
        return Call(function, name, self.name("a"), of_type, by=by, **shared)

    def total(self, of: Plan) -> str | None:
        """Return the column whose values rows do not share, if there is one."""
        source = of
        while isinstance(source, (Kept, First)):
            source = source.of
        return source.schema.names[-1] if isinstance(source, Source) else None

    def first(self, depth: int) -> Plan:
        rng = self.rng
        of = self.between(self.plan(depth - 1))
        key = self.key_of(of, least=1)
        if not key:
            return self.groups(depth)
        rank = rng.choice(["row_number", "row_number", "rank", "dense_rank"])
        names = [name for name in of.schema.names if name not in key]
        chosen = rng.sample(names, min(len(names), rng.choice([1, 1, 2])))
        if rank == "row_number":  # by all columns, so that only copies of a row are equal
            chosen += rng.sample(rest := [name for name in names if name not in chosen], len(rest))
        if not chosen:
            chosen = [key[0]]
        orders = tuple((name, rng.random() < 0.5, rng.random() < 0.5) for name in chosen)
        number = self.name("number") if rng.random() < 0.5 else None
        return First(of, key, rng.choice([1, 1, 2, 3, 5]), orders, rank, number)

    def pairs(self, depth: int) -> Plan:
        rng = self.rng
        left = self.between(self.plan(depth - 1))
        right: Plan = self.between(self.plan(rng.choice([0, 0, depth - 1])))
        if rng.random() < 0.3:
            left, right = right, left
        shared = [
            field.name
            for field in left.schema
            if field.name in right.schema.names
            and right.schema.field(field.name).type == field.type
            and not pa.types.is_floating(field.type)
        ]
        few = [name for name in shared if name not in ("u", "r")] or shared
        key = tuple(rng.sample(few, min(len(few), rng.choice([1, 1, 2]))))
        others = [f"{name}_right" for name in right.schema.names if name not in key]
        if not key or any(name in left.schema.names + right.schema.names for name in others):
            return self.groups(depth)
        how = rng.choice(["inner", "inner", "left", "right", "full", "semi", "anti"])
        condition = None
        if rng.random() < 0.3:
            sides = [
                [field.name for field in side.schema if field.type in (pa.int64(), pa.float64())]
                for side in (left, right)
            ]
            if all(sides):
                condition = (rng.choice(sides[0]), rng.choice([*COMPARED]), rng.choice(sides[1]))
        return Pairs(left, right, key, how, condition)


def plan_of(seed: int, depth: int | None = None) -> Plan:
    """Return a random plan, by default of one to three operators."""
    rng = random.Random(f"plan {seed}")
    return Made(rng).plan(depth or rng.choice([1, 1, 1, 2, 2, 3]))


def is_number(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
