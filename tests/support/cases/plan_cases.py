"""Plans over tables that change, run without Spark beside the model, one micro-batch after the other."""

from __future__ import annotations

import copy
import random
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pkgutil import walk_packages
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from change_plans import Both, First, Groups, Kept, Pairs, Plan, Source, Tables, compares
from change_replay import Groups as KeyGroups
from changing_tables import Rows, newest, one_nan
from pyspark.sql import DataFrame, SparkSession
from random_changes import (
    CHANGE_TYPE,
    TABLES,
    WEIGHTS,
    Applied,
    Changing,
    cut,
    differences,
    disordered,
    of_changes,
    of_rows,
    rows_of,
    upserts,
)
from spark_expressions import value_of

import timerheap.spark._changes
from timerheap.spark._columns import INPUT, KEY, NO_KEY, ORIGIN, WEIGHT, computed_name
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._query import Query


@contextmanager
def caught() -> Iterator[list[tuple[Query, DataFrame]]]:
    """Collect the queries that functions on changes build meanwhile, and of what, in their order."""
    queries: list[tuple[Query, DataFrame]] = []
    with ExitStack() as stack:
        for one in walk_packages(timerheap.spark._changes.__path__, f"{timerheap.spark._changes.__name__}."):
            module = import_module(one.name)
            build = getattr(module, "build", None)
            if build is not None:

                def kept(query: Query, df: DataFrame, *, build: Any = build, **more: Any) -> DataFrame:
                    queries.append((query, df))
                    made: DataFrame = build(query, df, **more)
                    return made

                stack.enter_context(patch.object(module, "build", kept))
        yield queries


def expressions_of(df: DataFrame) -> dict[str, str]:
    """Return what the columns of a DataFrame are computed of, in SQL, of the last step of its plan."""
    found: dict[str, str] = {}
    node = df._jdf.queryExecution().analyzed()  # type: ignore[attr-defined]
    if node.nodeName() == "Union":  # with a row of no weight, for a batch without rows
        node = node.children().head()
    if node.nodeName() != "Project":
        return found
    listed = node.projectList()
    for at in range(listed.size()):
        one = listed.apply(at)
        if one.nodeName() == "Alias":
            found[one.name()] = one.child().sql().replace("`", "")
    return found


class Planned:
    """A plan, over tables that change or only grow."""

    def __init__(self, plan: Plan, inserts_only: bool) -> None:
        self.plan = plan
        self.inserts_only = inserts_only


class Compiled(Planned):
    """A plan and the queries of its operators, which any number of cases run."""

    def __init__(self, spark: SparkSession, plan: Plan, inserts_only: bool) -> None:
        super().__init__(plan, inserts_only)
        frames = {}
        for source in plan.sources():
            plain = inserts_only or source.upserts
            rows = of_rows([], TABLES[source.name]) if plain else of_changes([], TABLES[source.name])
            frames[source.stream] = spark.createDataFrame(pa.Table.from_batches([rows]))
        with caught() as found:
            plan.frame(frames)
        self.queries = [query for query, _ in found]
        self.expressions = [{} if INPUT in query.rows.names else expressions_of(df) for query, df in found]


class Running:
    """The operators of a plan, each with its key groups; `options` are those of all of them."""

    def __init__(self, compiled: Compiled, rng: random.Random, **options: Any) -> None:
        self._rng = rng
        some = {"parallelism": rng.choice([1, 1, 2, 4]), "in_files": rng.random() < 0.3}
        some |= {"hashes": rng.choice([None, None, 1, 3]), **options}
        self.operators = [KeyGroups(query, **some) for query in compiled.queries]
        self._expressions = dict(zip(map(id, self.operators), compiled.expressions, strict=True))

    def run(self, plan: Plan, inputs: Mapping[str, pa.RecordBatch]) -> pa.Table:
        """Run a micro-batch of all operators; return the changes of the plan."""
        operators = iter(self.operators)
        return self._run(plan, inputs, operators)

    def _run(self, plan: Plan, inputs: Mapping[str, pa.RecordBatch], operators: Iterator[KeyGroups]) -> Any:
        below = [self._run(one, inputs, operators) for one in plan.inputs]
        if isinstance(plan, Source):
            rows = inputs[plan.stream]
            return self._operator(next(operators), rows) if plan.upserts else rows
        if isinstance(plan, Kept):
            (rows,) = below
            kept = [plan.keeps(row) for row in rows_of(rows.select(plan.schema.names))]
            return rows.filter(pa.array(kept, pa.bool_()))
        if isinstance(plan, Both):
            return pa.concat_batches(below)
        if isinstance(plan, Pairs):
            return self._joined(plan, operators, below)
        assert isinstance(plan, (Groups, First))
        return self._operator(next(operators), *below)

    def _joined(self, plan: Pairs, operators: Iterator[KeyGroups], sides: list[pa.RecordBatch]) -> Any:
        """Run the operators of a join: with a condition, others follow that count the matches of rows."""
        found = self._operator(
            next(operators), *(carried(plan, number, rows) for number, rows in enumerate(sides))
        )
        if plan.condition is None:
            return found
        one, operator, other = plan.condition
        columns = found.select([one, plan.renamed(other)]).to_pydict().values()
        of_pair = (
            [True] * len(found) if plan.how == "inner" else pc.equal(found.column(ORIGIN), 0).to_pylist()
        )
        kept = [
            not is_pair or compares(operator, *map(one_nan, values))
            for is_pair, *values in zip(of_pair, *columns, strict=True)
        ]
        found = found.filter(pa.array(kept, pa.bool_()))
        for _ in range({"inner": 0, "full": 2}.get(plan.how, 1)):
            found = self._operator(next(operators), found)
        return found

    def _operator(self, operator: KeyGroups, *inputs: pa.RecordBatch) -> pa.RecordBatch:
        computed = self._expressions[id(operator)]
        parts = [fitted(operator.query, number, rows, computed) for number, rows in enumerate(inputs)]
        rows = pa.concat_batches(parts)
        order = np.random.default_rng(self._rng.randrange(1 << 30)).permutation(len(rows))
        found = operator.run(rows.take(pa.array(order)), self._rng.choice([1, 1, 2, 3]))
        return batch_of(found)

    def save(self) -> None:
        for operator in self.operators:
            operator.save()

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of all state: as it is stored, and live in files."""
        stored, live = zip(*(operator.sizes() for operator in self.operators), strict=True)
        return sum(stored), sum(live)

    def shake(self) -> None:
        for operator in self.operators:
            operator.shake(self._rng)


def batch_of(table: pa.Table) -> pa.RecordBatch:
    columns = [column.combine_chunks() for column in table.columns]
    columns = [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns]
    return pa.RecordBatch.from_arrays(columns, names=table.column_names)


def carried(plan: Pairs, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a side of a join under the names under which they are sent."""
    names = {name: f"{KEY}{at}" for at, name in enumerate(plan.key)}
    side = (plan.left, plan.right)[number].schema.names
    places = {name: computed_name(at, f"{('left', 'right')[number]}.{name}") for at, name in enumerate(side)}
    return rows.rename_columns([{**places, **names}.get(name, name) for name in rows.schema.names])


def fitted(query: Query, number: int, rows: pa.RecordBatch, computed: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows of an input with the columns in which a query gets them, as Spark computes them."""
    schema = to_arrow_schema(query.rows)
    n = len(rows)
    known = dict(zip(rows.schema.names, rows.columns, strict=True))
    weights = [1] * n
    if CHANGE_TYPE in known:
        weights = [WEIGHTS[type_] for type_ in rows.column(CHANGE_TYPE).to_pylist()]
    known |= {WEIGHT: pa.array(weights, pa.int8()), INPUT: pa.array([number] * n, pa.int8())}
    for name, text in computed.items():
        if name not in known:
            known[name] = value_of(text, known, n)
    known.setdefault(NO_KEY, pa.array([0] * n, pa.int32()))
    columns = [
        pa.nulls(n, field.type)
        if INPUT in schema.names and field.name not in known  # of the other side of a join
        else in_type(known[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def in_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_struct(type_):  # whose fields may have other names
        parts = [in_type(part, field.type) for part, field in zip(column.flatten(), type_, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=column.is_null())
    return column.cast(type_)


class Case:
    """Random changes of the tables of a plan, cut into micro-batches."""

    def __init__(self, planned: Planned, seed: int, batches: int | None = None) -> None:
        rng = random.Random(seed)
        self.seed, self.planned = seed, planned
        self.batches: dict[str, list[list[Any]]] = {}
        # What rows that have gone before they come are worth meanwhile is no matter, but a group of all rows
        # has begun with them.
        of_all = any(isinstance(one, Groups) and not one.key for one in planned.plan.every())
        self.is_disordered = not planned.inserts_only and not of_all and rng.random() < 0.2
        hard, few, count = rng.random() < 0.4, rng.random() < 0.3, batches or rng.choice([2, 3, 6, 10])
        for source in planned.plan.sources():
            if source.stream in self.batches:
                continue
            if source.upserts:
                items: list[Any] = upserts(rng, rng.choice([3, 10, 30]), hard)
            else:
                table = Changing(rng, source.name, hard, few)
                items = table.changes(rng.choice([3, 10, 30]), planned.inserts_only)
            parts = cut(rng, items, count)
            self.batches[source.stream] = disordered(rng, parts) if self.is_disordered else [*parts, []]

    def tables(self, taken: int) -> Tables:
        """Return what is in the tables after so many micro-batches; weights may be negative."""
        known = [Tables(self._contents(number + 1), ()) for number in range(taken)]
        started: list[Plan] = []
        for plan in self.planned.plan.every():
            if isinstance(plan, Groups) and not plan.key:
                for number, tables in enumerate(known):
                    changes = {
                        name: Rows(row for _, row in parts[number])
                        for name, parts in self.batches.items()
                        if not name.startswith("upserts")
                    }
                    if plan.of.passing(Tables(tables, started), changes):
                        started.append(plan)
                        break
        return Tables(known[-1], started)

    def _contents(self, taken: int) -> dict[str, Rows]:
        found = {}
        for source in self.planned.plan.sources():
            parts = self.batches[source.stream][:taken]
            if source.upserts:
                at = source.schema.get_field_index
                rows = (row for part in parts for row in part)
                found[source.stream] = newest(rows, [at("id")], at("u"), at("yes"))
                continue
            table = Rows()
            for type_, row in (change for part in parts for change in part):
                table[row] += WEIGHTS[type_]
            found[source.stream] = Rows({row: n for row, n in table.items() if n})
        return found

    @staticmethod
    def can_be_compared(tables: Mapping[str, Rows]) -> bool:
        """Return whether no row has gone that has not come yet."""
        return all(n > 0 for table in tables.values() for n in table.values())

    def inputs(self, number: int) -> dict[str, pa.RecordBatch]:
        found = {}
        for source in self.planned.plan.sources():
            items, schema = self.batches[source.stream][number], TABLES[source.name]
            if source.upserts:
                found[source.stream] = of_rows(items, schema)
            elif self.planned.inserts_only:
                found[source.stream] = of_rows([row for _, row in items], schema)
            else:
                found[source.stream] = of_changes(items, schema)
        return found

    @property
    def count(self) -> int:
        return len(next(iter(self.batches.values())))

    def wrong(self) -> list[str]:
        """Return what is wrong after the first micro-batch in which something is."""
        number = 0
        try:
            assert isinstance(self.planned, Compiled)
            running, applied = Running(self.planned, random.Random(self.seed)), Applied()
            plan = self.planned.plan
            for number in range(self.count):
                changes = running.run(plan, self.inputs(number))
                wrong = applied.apply(
                    changes.select([*plan.schema.names, CHANGE_TYPE]), not isinstance(plan, Kept)
                )
                tables = self.tables(number + 1)
                if self.can_be_compared(tables):
                    wrong += differences(applied.rows, plan.rows(tables))
                if wrong:
                    return [f"micro-batch {number} of {self.count}: {one}" for one in wrong]
                running.shake()
        except Exception as e:
            where = traceback.extract_tb(e.__traceback__)[-1]
            return [f"micro-batch {number} of {self.count}: {e!r} in {where.filename}:{where.lineno}"]
        return []

    def smaller(self) -> Case:
        """Return a case with as few micro-batches and changes as are wrong, too."""
        case = self
        while True:
            found = next((one for one in case._candidates() if one.wrong()), None)
            if found is None:
                return case
            case = found

    def _candidates(self) -> Iterator[Case]:
        for number in range(self.count - 1, -1, -1):
            if self.count > 1:
                rest = {name: [*parts[:number], *parts[number + 1 :]] for name, parts in self.batches.items()}
                yield self._with(rest)
        for name, parts in self.batches.items():
            for number, part in enumerate(parts):
                for size in (len(part) // 2, 1):
                    for at in range(0, len(part) if size else 0, size or 1):
                        fewer = [*part[:at], *part[at + size :]]
                        changed = [*parts[:number], fewer, *parts[number + 1 :]]
                        yield self._with({**self.batches, name: changed})

    def _with(self, batches: dict[str, list[list[Any]]]) -> Case:
        case = copy.copy(self)
        case.batches = batches
        return case

    def __str__(self) -> str:
        lines = [f"seed {self.seed} of {self.planned.plan}", "as " + self.planned.plan.sql()]
        for name, parts in self.batches.items():
            lines += [f"{name}, micro-batch {number}: {part}" for number, part in enumerate(parts)]
        return "\n".join([*lines, *self.wrong()[:6]])
