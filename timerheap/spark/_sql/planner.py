"""Plans the queries of `sql` on DataFrames."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from types import MappingProxyType
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.functions import BatchProcessFunction
from timerheap.spark._asof.join_asof import join_asof
from timerheap.spark._columns import (
    AHEAD,
    ARRIVAL,
    BATCH_WINDOW,
    CHANNEL,
    COUNT,
    ENDS,
    GROUPING_SET,
    HIDDEN,
    INPUT,
    KEPT,
    KEY,
    LATE_ROWS,
    LATE_SIDE,
    NO_PARTITION,
    ORDER,
    RANK,
    SEEN,
    SIDE_OUTPUT,
    SIDES,
    TIMED_OUT,
    WINDOW,
    WINDOW_COLUMNS,
    computed_name,
    distinct,
    shown_name,
)
from timerheap.spark._compat import to_arrow_schema, with_columns
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._plan.arguments import EventTime, RightInput, is_atomic, key_columns, quoted, time_mode
from timerheap.spark._plan.build import build, kept_only, naive_millis
from timerheap.spark._plan.outputs import outputs_of, results_of
from timerheap.spark._process.key_runs import OneOfRun
from timerheap.spark._query import Late, Query
from timerheap.spark._sql.match_columns import expect_bounded, matching, shown_columns
from timerheap.spark._sql.nodes import (
    Aggregated,
    AsOf,
    Call,
    Items,
    Joined,
    Matched,
    Node,
    Over,
    Ranked,
    Selected,
    Table,
    Windowing,
)
from timerheap.spark._sql.over_columns import Frame
from timerheap.spark._sql.over_runner import OverWork
from timerheap.spark._sql.ranking import FirstRows, LocalFirstRows, Order, Ranking
from timerheap.spark._sql.row_functions import GROUPED, GroupedSides, SessionRows
from timerheap.spark._sql.timed_tables import Tables, TimedTable, time_of_table, time_of_versions
from timerheap.spark._sql.window_columns import (
    end_of,
    expanded,
    fields_of,
    is_time,
    name_of_column,
    pairs_of,
    unique_names,
    windows_of,
)
from timerheap.spark._windows.spark_aggregates import resolve_aggregate
from timerheap.spark._windows.window_runner import WINDOW_BOUND
from timerheap.spark._windows.windows import Source, WindowPlan
from timerheap.spark._worker.batch_runner import BatchWork
from timerheap.tvf.slices import SessionUnsliceAssigner, SliceAssigner, TumblingSliceAssigner
from timerheap.watermarks import WatermarkStrategy

_MARKS = (SEEN, KEPT, CHANNEL, AHEAD)
_EVERYTHING: Items = (("*", "*"),)


@dataclass(frozen=True)
class _Relation:
    """The rows of a query: its columns, those of `WINDOW`, and marks as long as windows have not ended."""

    df: DataFrame
    tables: tuple[TimedTable, ...]  # those whose watermarks end the windows
    ended: bool  # whether each micro-batch has all rows of the windows that end in it, and no others

    @property
    def timed(self) -> DataFrame:
        """The rows, with an error for one that is kept and has no time, and so no window."""
        if self.ended:
            return self.df
        time = self.tables[0].source.event_time
        null = f"time must not be null, got a row with null in column {time!r}; filter such rows out (WHERE "
        null += f"{time} IS NOT NULL), or fill in a value"
        has_time = quoted(WINDOW[0]).isNotNull() | F.raise_error(F.lit(null)).cast("boolean")
        kept = F.when(quoted(KEPT), has_time).otherwise(False)
        return self.df.withColumn(KEPT, kept) if self.df.isStreaming else self.df.where(kept)

    @property
    def ends(self) -> Column:
        """When the window of a row ends, in epoch ms."""
        if ENDS in self.df.columns:
            return quoted(ENDS)
        return end_of(naive_millis(quoted(WINDOW[1])) - 1, self.tables[0].source.assigner.zone)


def _visible(df: DataFrame) -> list[str]:
    return [name for name in df.columns if not name.startswith(HIDDEN)]


def _hidden(df: DataFrame) -> list[str]:
    return [name for name in df.columns if name in (*WINDOW, ENDS, *_MARKS, RANK, LATE_SIDE, TIMED_OUT)]


class Planner:
    """Plans the nodes of one query."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def result(self, node: Node) -> DataFrame:
        found = self.relation(node)
        df = found.df
        if LATE_SIDE in df.columns:
            df = df.where(quoted(KEPT) | quoted(LATE_SIDE).isNotNull())
        if TIMED_OUT in df.columns:
            df = _timed_out_aside(df)
        if LATE_SIDE in df.columns:
            df = _select(df, _EVERYTHING, [LATE_SIDE])
            return results_of(df.toDF(*df.columns[:-1], SIDE_OUTPUT))
        df = found.timed.where(quoted(KEPT)) if KEPT in found.df.columns else found.df
        return _select(df, _EVERYTHING)

    def relation(self, node: Node) -> _Relation:
        if isinstance(node, Ranked) and isinstance(node.source, Table):
            return self._first_of_keys(node, node.source)
        plans: dict[type, Callable[[Any], _Relation]] = {
            Windowing: self._rows_of_windows,
            Selected: self._selected,
            Aggregated: self._aggregated,
            Ranked: self._first_of_windows,
            Joined: self._joined,
            Over: self._over,
            AsOf: self._as_of,
            Matched: self._matched,
        }  # the parser refuses a table whose rows have no windows and no order
        return plans[type(node)](node)

    def _rows_of_windows(self, node: Windowing) -> _Relation:
        """Copy each row into all of its windows."""
        table = self._tables.cut(node)
        source, assigner = table.source, table.source.assigner
        if source.event_time is None:
            raise ValueError(
                "query: rows of windows of processing time are not supported; aggregate them with GROUP BY"
            )
        if isinstance(assigner, SliceAssigner):
            windows = F.inline_outer(windows_of(source.df, source.event_time, assigner)).alias(*WINDOW, ENDS)
            rows = table.rows.withColumn(KEPT, F.lit(True)).select("*", windows)
            found = _Relation(rows, (table,), ended=False)
        else:
            found = self._session_rows(node, table, assigner, source.event_time)
        bounds = {name: quoted(there) for name, there in zip(WINDOW_COLUMNS, WINDOW, strict=True)}
        return replace(found, df=found.df.withColumns(bounds))

    def _session_rows(
        self, node: Windowing, table: TimedTable, assigner: SessionUnsliceAssigner, time: str
    ) -> _Relation:
        """Return the rows of a table, and their sessions, once these have ended."""
        df, names = table.rows.drop(SEEN), _visible(table.source.df)
        naive, type_ = T.TimestampNTZType(), df.schema[time].dataType
        types = (naive, naive, type_ if type_ == naive else T.TimestampType())
        bounds = [T.StructField(name, type_) for name, type_ in zip(WINDOW, types, strict=True)]
        rows = [T.StructField(name, df.schema[name].dataType) for name in names]
        types_, bounds_ = (to_arrow_schema(T.StructType(fields)) for fields in (rows, bounds))
        work = SessionRows(types_, bounds_, assigner)
        result, keys = [*rows, *bounds], node.partition
        return self._processed(
            work, df, keys, names, result, (table,), time=time, order="arrival", late="process"
        )

    def _selected(self, node: Selected) -> _Relation:
        found = self.relation(node.source)
        df = _where(found, node.where).df
        return replace(found, df=_select(df, node.columns, _hidden(df)))

    def _aggregated(self, node: Aggregated) -> _Relation:
        if isinstance(node.source, Windowing):
            table = self._tables.cut(node.source)
            source = table.source if node.where is None else _filtered(table.source, F.expr(node.where))
            found = _Relation(source.df, (table,), ended=True)
        else:
            found = _where(self.relation(node.source), node.where)
            source = _of_each_batch(found)
        df, by = source.df, {name: name for name in node.keys}
        numbers = [GROUPING_SET] if len(node.sets) > 1 else []
        if numbers:
            by = {name: computed_name(1, name) for name in node.keys}  # aggregates see the row's own
            sets = {
                there: (name, [at for at, names in enumerate(node.sets) if name in names])
                for name, there in by.items()
            }
            df = expanded(df, F.array(*map(F.lit, range(len(node.sets)))), sets)
        windows, bounds = (WINDOW, BATCH_WINDOW) if source.each_batch else ([], WINDOW)
        calls = [_aggregate(call).alias(name) for name, call in node.calls.items()]
        plan = _window_plan(replace(source, df=df), [*windows, *by.values(), *numbers], calls)
        named = [*windows, *node.keys, *numbers, *bounds, *(node.calls or [COUNT])]
        if source.late != "emit":
            return replace(found, df=_select_list(plan.result().toDF(*named), node))
        result = _with_late(outputs_of(plan.result()).toDF(*named, SIDE_OUTPUT))
        return replace(found, df=_select_list(result, node, [KEPT, LATE_SIDE], quoted(KEPT)))

    def _first_of_keys(self, node: Ranked, source: Table) -> _Relation:
        df, table = self._tables.rows(source)
        names = _visible(table.source.df)
        result = [*(df.schema[name] for name in names), T.StructField(RANK, T.LongType(), False)]
        ranked = self._processed(
            OneOfRun(to_arrow_schema(T.StructType(result[:-1])), number=RANK),
            df,
            node.keys,
            names,
            result,
            (table,),
            time=table.source.event_time,
            late=table.source.late,
        )
        return replace(ranked, df=ranked.df.toDF(*names, node.name, *ranked.df.columns[len(result) :]))

    def _first_of_windows(self, node: Ranked) -> _Relation:
        found = self.relation(node.source)
        orders = [replace(one, by=f"{ORDER}{at}") for at, one in enumerate(node.order)]
        added = {
            there.by: kept_only(found.df, F.expr(one.by))
            for there, one in zip(orders, node.order, strict=True)
        }
        arrival: list[Order] = []
        if not found.ended and node.function == "row_number":
            by, *others = node.order
            # As Flink's deduplication: of rows of one time, the last row by time is the last to arrive.
            keeps_last = node.limit == 1 and not others and by.descending and is_time(by.by, node.source)
            arrival = [Order(name, keeps_last, nulls_first=False) for name in ARRIVAL]
        ranking = Ranking(node.function, RANK, tuple(orders), tuple(arrival), node.limit)
        df = unique_names(found.timed.withColumns(added))
        names = [*_visible(df), *WINDOW]
        result = [*(df.schema[name] for name in names), T.StructField(RANK, T.LongType(), False)]
        ranked = self._processed(
            FirstRows(ranking, names),
            df if found.ended else df.withColumn(ENDS, found.ends),
            node.keys,
            [*names, *added],
            result,
            found.tables,
            ended=found.ended,
            local=None if found.ended else partial(LocalFirstRows, ranking, [*node.keys]),
        )
        return replace(ranked, df=ranked.df.toDF(*map(name_of_column, names), node.name))

    def _joined(self, node: Joined) -> _Relation:
        found = self._aggregated_sides(node) or self._rows_of_sides(node)
        both, keys = found.df, [f"{KEY}{at}" for at in range(len(node.keys))]
        fields = [both.schema[name] for name in WINDOW]
        for name, one in zip(GROUPED, SIDES, strict=True):
            fields.append(T.StructField(name, T.ArrayType(both.schema[one].dataType)))
        differing = [name for name, (*_, null_safe) in zip(keys, node.keys, strict=True) if not null_safe]
        work = GroupedSides(differing, node.how)
        names = [*WINDOW, *SIDES]
        grouped = self._processed(work, both, keys, names, fields, found.tables, ended=found.ended)
        return replace(grouped, df=pairs_of(grouped.df, node))

    def _rows_of_sides(self, node: Joined) -> _Relation:
        """Return the rows of both sides of a join, each computed by itself."""
        sides = [self.relation(node.left), self.relation(node.right)]
        tables = {(table.name, table.source.event_time): table for side in sides for table in side.tables}
        ended = len(tables) == 1 and all(side.ended for side in sides)
        streaming = sides[0].df.isStreaming
        if streaming != sides[1].df.isStreaming:
            raise ValueError(
                "query: a JOIN must be of two streams or of two batches, got one of each; read both tables "
                "as streams, or join the result with the batch in Spark"
            )
        if streaming and not ended and (len(tables) > 2 or any(time is None for _, time in tables)):
            raise ValueError(
                "query: a window join of more than two streams, or of processing time, is not supported; "
                "write the result of the first join to a table, and join that"
            )
        keys = [f"{KEY}{at}" for at in range(len(node.keys))]
        rows = []
        for number, side in enumerate(sides):
            df, texts = side.timed, [texts[number] for *texts, _ in node.keys]
            by = {name: kept_only(df, F.expr(one)) for name, one in zip(keys, texts, strict=True)}
            df = unique_names(df.withColumns({**by, ENDS: side.ends}))
            content = F.struct(*map(quoted, _visible(df))).alias(SIDES[number])
            marks = [quoted(mark) for mark in (*keys, *_hidden(df))]
            if len(tables) == 2:
                marks.append(_input(list(tables).index(_name_and_time(side))))
            rows.append(df.select(content, *marks))
        if streaming and not ended:  # also event times without results advance the watermark
            seen = [_name_and_time(side) for side in sides if not side.ended]
            for number, (name_and_time, table) in enumerate(tables.items()):
                if name_and_time not in seen:
                    df = table.rows
                    marks = [quoted(name) for name in df.columns if name in _MARKS]
                    marks += [_input(number)] if len(tables) == 2 else []
                    rows.append(df.select(*marks, F.lit(False).alias(KEPT)))
        both = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), rows)
        marks_of_others = {KEPT: True, AHEAD: False}  # in rows of a side that has no such mark
        filled = {
            mark: F.coalesce(quoted(mark), F.lit(value))
            for mark, value in marks_of_others.items()
            if mark in both.columns
        }
        return _Relation(with_columns(both, filled), tuple(tables.values()), ended)

    def _aggregated_sides(self, node: Joined) -> _Relation | None:
        """Return the rows of both sides of a join if they are aggregates of the same windows, else None.

        One operator computes both, as it does with two grouping sets, so Spark reads the table once. A row is
        in the sets of the sides whose WHERE it meets.
        """
        sides = [one for one in (node.left, node.right) if isinstance(one, Aggregated) and not one.sets[1:]]
        windows = sides[0].source if sides else None
        if len(sides) < 2 or not isinstance(windows, Windowing) or sides[1].source != windows:
            return None
        table = self._tables.cut(windows)
        source = table.source
        if source.event_time is None:
            return None
        left, right = (F.expr(side.where or "true") for side in sides)
        both, neither = F.array(F.lit(0), F.lit(1)), F.array(F.lit(None).cast("int"))
        numbers = F.when(left & right, both).when(left, F.array(F.lit(0))).when(right, F.array(F.lit(1)))
        names = [
            {name: computed_name(number, name) for name in side.keys}
            | {name: computed_name(2 + number, shown_name(name)) for name in side.calls}
            for number, side in enumerate(sides)
        ]
        by: dict[str, tuple[str, list[int]]] = {}
        calls = []
        for number, (side, there) in enumerate(zip(sides, names, strict=True)):
            by |= {there[name]: (name, [number]) for name in side.keys}
            for name, call in side.calls.items():
                calls.append(_aggregate(call, quoted(GROUPING_SET) == number).alias(there[name]))
        df = expanded(source.df, numbers.otherwise(neither), by)
        source = _filtered(replace(source, df=df), quoted(GROUPING_SET).isNotNull())
        result = _window_plan(source, [*by, GROUPING_SET], calls).result()
        of_calls = [there[name] for side, there in zip(sides, names, strict=True) for name in side.calls]
        result = result.toDF(*by, GROUPING_SET, *WINDOW, *(of_calls or [COUNT]))
        keys = {f"{KEY}{at}": texts for at, (*texts, _) in enumerate(node.keys)}
        for number, (side, there) in enumerate(zip(sides, names, strict=True)):
            others = [name for name in result.columns if name not in (*there.values(), *WINDOW)]
            result = result.withColumnsRenamed({name: shown for shown, name in there.items()})
            of_side = quoted(GROUPING_SET) == number
            result = _select_list(result, side, others, of_side)
            keyed = {key: F.when(of_side, F.expr(texts[number])) for key, texts in keys.items()}
            if number:
                keyed = {key: F.coalesce(quoted(key), one) for key, one in keyed.items()}
            result = unique_names(with_columns(result, keyed))
            content = F.struct(*map(quoted, result.columns[: len(side.columns)]))
            content = F.when(of_side, content).alias(SIDES[number])
            result = result.select(content, *map(quoted, dict.fromkeys([*others, *keys, *WINDOW])))
        found = _Relation(result, (table,), ended=True)
        return replace(found, df=result.withColumn(ENDS, found.ends))

    def _over(self, node: Over) -> _Relation:
        df, table = self._tables.rows(node)
        source = table.source
        if source.event_time is None:
            raise ValueError(
                f"query: OVER (ORDER BY {node.time}) of processing time is not supported; order by an "
                "event-time column, or use timerheap.spark.process() with processing_time=True"
            )
        names = _visible(source.df)
        added: dict[str, str] = {}

        def column(text: str, type_: T.DataType | None = None) -> str:
            """Return the column that has an expression, perhaps cast."""
            nonlocal df
            if type_ is None and re.fullmatch(r"\w+|`[^`]*`", text) and text.strip("`") in names:
                return text.strip("`")
            text = text if type_ is None else f"CAST({text} AS {type_.simpleString()})"
            if text not in added:
                added[text] = computed_name(1, text)
                df = with_columns(df, {added[text]: kept_only(df, F.expr(text))})
            return added[text]

        calls, frames, results = {}, dict[Frame, list[int]](), dict[str, T.StructField]()
        aggregates = [(name, *call) for name, call in node.calls.items() if isinstance(call, tuple)]
        plan = _window_plan(source, [], [_aggregate(call).alias(name) for name, call, _ in aggregates])
        df = plan.with_inputs(df)
        for at, (name, _, frame) in enumerate(aggregates):
            frames.setdefault(frame, []).append(at)
            results[name] = plan.computed[at].field
        for name, call in node.calls.items():
            if isinstance(call, tuple):
                continue
            type_: T.DataType = T.LongType()
            if call.argument:
                argument = column(call.argument)
                type_, default = df.schema[argument].dataType, call.default
                default = None if default is None else column(default, type_)
                call = replace(call, argument=argument, default=default)
            calls[name], results[name] = call, T.StructField(name, type_)
        order = tuple(replace(one, by=column(one.by)) for one in node.order)
        for one, given in zip(order, node.order, strict=True):
            if not is_atomic(type_ := df.schema[one.by].dataType):
                raise ValueError(
                    f"query: ORDER BY {given.by} must be of an atomic type, got {type_.simpleString()}; name "
                    "a field of it"
                )
        works = {}
        for frame, some in frames.items():
            part = replace(plan, computed=[plan.computed[at] for at in some])
            works[frame] = part.work(), tuple(aggregates[at][0] for at in some)
        return self._processed(
            OverWork(tuple(names), calls, works, order, self._tables.lead_within),
            df,
            node.keys,
            [*names, *(name for work, _ in works.values() for name in work.inputs), *added.values()],
            [*(df.schema[name] for name in names), *(results[name] for name in node.calls)],
            (table,),
            time=source.event_time,
            late=source.late,
        )

    def _as_of(self, node: AsOf) -> _Relation:
        """Return the rows of both tables of an as-of join as structs of the names `SIDES`."""
        tables, given = self._tables, []
        watermark, of_left, of_right = tables.watermark, tables.frame(node.left), tables.frame(node.right)
        time = node.right_time or time_of_versions(of_right, node.right, watermark) or node.time
        for df, table, name in ((of_left, node.left, node.time), (of_right, node.right, time)):
            found, strategy = time_of_table(df, Table(table, time=name), watermark, tables.processing_time)
            if found is None:
                raise ValueError(
                    f"query: AS OF {name} of processing time is not supported; name an event-time column, "
                    "and pass a watermark for each table"
                )
            given.append((df, found, strategy))
        (left, time, strategy), (right, right_time, right_strategy) = given
        ending = None if tables.deleted is None else tables.deleted.get(".".join(node.right))
        names, n = {name: f"right.{name}" for name in right.columns}, len(left.columns)
        extra = [F.expr(text).alias(f"right key {at}") for at, (_, text, _) in enumerate(node.keys)]
        if ending is not None:
            extra.append(F.expr(ending).alias("right deleted"))
        for _, text, null_safe in node.keys:
            right = right if null_safe else right.where(F.expr(text).isNotNull())
        joined = join_asof(
            left,
            RightInput(
                right.select(*(quoted(name).alias(there) for name, there in names.items()), *extra),
                key=[f"right key {at}" for at in range(len(node.keys))],
                event_time=quoted(names[right_time]),
                watermark=right_strategy,
            ),
            [F.expr(text) for text, *_ in node.keys],
            EventTime(time, channel=tables.channel),
            watermark=strategy,
            how=node.how,
            allow_exact_matches=node.exact,
            deleted=None if ending is None else "right deleted",
            max_parallelism=tables.max_parallelism,
        )
        sides = (left.columns, list(names))
        at = zip((*sides[0], *sides[1]), joined.columns, strict=False)
        columns = [quoted(there).alias(name) for name, there in at]
        df = joined.select(F.struct(*columns[:n]).alias(SIDES[0]), F.struct(*columns[n:]).alias(SIDES[1]))
        if node.condition is not None:
            met, row = F.expr(node.condition), quoted(SIDES[1])
            df = df.where(met) if node.how == "inner" else df.withColumn(SIDES[1], F.when(met, row))
        lower = [name.lower() for side in sides for name in side]
        alone = [  # names that only one table has need none of a table before them
            quoted(side).getField(name).alias(name)
            for side, own in zip(SIDES, sides, strict=True)
            for name in own
            if lower.count(name.lower()) == 1
        ]
        df = df.select(*map(quoted, SIDES), *alone)
        return _Relation(df, (), ended=True)

    def _matched(self, node: Matched) -> _Relation:
        df, table = self._tables.rows(node)
        source = table.source
        expect_bounded(node, df, source.event_time, self._tables.unbounded_matches)
        visible = _visible(source.df)
        names = shown_columns(node, visible)
        df = df.withColumns({name: kept_only(df, F.expr(text)) for name, text in node.columns.items()})
        work, result = matching(node, df, names, self._tables.lead_within, self._tables.timed_out)
        found = self._processed(
            work,
            df,
            node.keys,
            [*names, *node.ties, *node.columns, *(visible if source.late == "emit" else [])],
            result,
            (table,),
            time=source.event_time,
            late=source.late,
            ties=node.ties,
        )
        first = list(dict.fromkeys([*node.keys, node.time, *node.ties])) if node.all_rows else names
        before, after = (
            [(f"`{name}`", name) for name in names if (name in first) == here] for here in (True, False)
        )
        return replace(found, df=_select(found.df, (*before, *node.items, *after), _hidden(found.df)))

    def _processed(
        self,
        work: BatchProcessFunction | OverWork,
        df: DataFrame,
        keys: Sequence[str],
        names: list[str],
        result: list[T.StructField],
        tables: tuple[TimedTable, ...],
        *,
        time: str | None = ENDS,
        ended: bool = False,
        local: Callable[[], LocalFirstRows] | None = None,
        order: RowOrder = "event_time",
        late: Late = "drop",
        ties: tuple[str, ...] = (),
    ) -> _Relation:
        """Return what a function makes of rows, once the watermark has passed their `time`."""
        if time == ENDS and (ended or not df.isStreaming):  # windows are whole: all rows are due at once
            df = df.drop(*_MARKS).withColumn(ENDS, F.lit(0).cast("bigint"))
        by = list(keys) or [NO_PARTITION]
        df = df if keys else df.withColumn(NO_PARTITION, F.lit(0))
        used = list(dict.fromkeys([*by, *names, *([] if time is None else [time])]))
        df = df.select(*map(quoted, [*used, *(name for name in df.columns if name in (*_MARKS, INPUT))]))
        rows = [df.schema[name] for name in used]
        sources = [table.source for table in tables]
        emits = late == "emit"
        late_columns = _visible(sources[0].df) if emits else []
        strategies = tuple(source.strategy for source in sources)
        query = Query(
            work=work if isinstance(work, OverWork) else BatchWork(work),
            key=by if KEY in by[0] else key_columns(df, "PARTITION BY", by),  # of joins: no user's columns
            rows=T.StructType(rows + [T.StructField(name, T.LongType(), False) for name in ARRIVAL if local]),
            result=T.StructType(result),
            event_time=time,
            watermarks=strategies,
            channels=tuple(source.channel for source in sources),
            order="arrival" if time is None else order,
            ties=ties,
            time_mode="None" if ended else time_mode(df, False, *strategies),
            max_parallelism=sources[0].max_parallelism,
            key_names=distinct(shown_name(name) for name in keys if not name.startswith(HIDDEN)),
            reduce=local,
            late=late,
            late_row=T.StructType([df.schema[name] for name in late_columns]) if emits else None,
            late_columns=tuple(late_columns),
        )
        result_df = build(query, df, each_batch=ended)
        return _Relation(_with_late(result_df) if emits else result_df, tables, ended=True)


def _of_each_batch(found: _Relation) -> Source:
    """Return how the rows of windows that have ended are aggregated again: their windows are keys."""
    return replace(
        found.tables[0].source,
        df=found.df.withColumn(ENDS, F.lit(0).cast("bigint")),
        event_time=ENDS,
        assigner=TumblingSliceAssigner(1),
        strategy=WatermarkStrategy.for_monotonous_timestamps(),
        channel=None,
        where=None,
        each_batch=True,
    )


def _filtered(source: Source, condition: Column) -> Source:
    """Return the rows of a source that meet a condition; the others only advance the watermark, if any."""
    if source.df.isStreaming and source.event_time is not None:
        return replace(source, where=condition)
    return replace(source, df=source.df.where(condition))


def _window_plan(source: Source, keys: list[str], calls: list[Column]) -> WindowPlan:
    """Return the plan of aggregates, or of a count where there are none: windows need one."""
    df, calls = source.df, calls or [F.count("*")]
    keys = key_columns(df, "GROUP BY", keys) if keys else []
    return WindowPlan(source, keys, [resolve_aggregate(df, one, at) for at, one in enumerate(calls)])


def _name_and_time(side: _Relation) -> tuple[str, str | None]:
    return side.tables[0].name, side.tables[0].source.event_time


def _input(number: int) -> Column:
    return F.lit(number).cast("tinyint").alias(INPUT)


def _select_list(
    result: DataFrame, node: Aggregated, others: Sequence[str] = (), of_side: Column | None = None
) -> DataFrame:
    """Return the columns of an aggregation's SELECT, and `others`, where HAVING is true.

    In rows that are not `of_side` the columns are null, and HAVING does not matter.
    """
    places = dict(zip(WINDOW_COLUMNS, WINDOW, strict=True))
    result = result.withColumns({name: quoted(places[which]) for name, which in node.source.bounds.items()})
    if node.having is not None:
        having = F.expr(node.having)
        result = result.where(having if of_side is None else F.when(of_side, having).otherwise(True))
    return _select(result, node.columns, [*others, *WINDOW], of_side, node.bounds)


def _with_late(result: DataFrame) -> DataFrame:
    """Return results with the late rows beside them, which are not kept."""
    outputs = outputs_of(result).withColumnRenamed(SIDE_OUTPUT, LATE_SIDE)
    return outputs.withColumn(KEPT, quoted(LATE_SIDE).isNull())


def _timed_out_aside(df: DataFrame) -> DataFrame:
    """Return results with the rows of timed-out matches beside them, as late rows are."""
    names = _visible(df)
    out, late = F.coalesce(quoted(TIMED_OUT), F.lit(False)), LATE_SIDE in df.columns
    fields = [F.when(out, F.struct(*map(quoted, names))).alias("timed_out")]
    if late:
        fields.append(quoted(LATE_SIDE).getField(LATE_ROWS).alias(LATE_ROWS))
    beside = F.when(out | quoted(LATE_SIDE).isNotNull() if late else out, F.struct(*fields))
    return df.select(*(F.when(~out, quoted(name)).alias(name) for name in names), beside.alias(LATE_SIDE))


def _where(found: _Relation, condition: str | None) -> _Relation:
    """Return the rows that meet a condition; the others advance the watermark until windows have ended."""
    if condition is None:
        return found
    if KEPT not in found.df.columns or not (found.ended or found.df.isStreaming):
        return replace(found, df=found.df.where(F.expr(condition)))
    kept = F.coalesce(kept_only(found.df, F.expr(condition)), F.lit(False))
    return replace(found, df=found.df.withColumn(KEPT, kept))


def _select(
    df: DataFrame,
    items: Items,
    others: Sequence[str] = (),
    wanted: Column | None = None,
    bounds: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Return the columns of a SELECT, whose names may occur twice, and `others`.

    What it computes is null in rows that are not kept, or not `wanted`. Its `bounds` of windows are marked.
    """
    columns: list[Column] = []
    names: list[str | None] = []
    for text, name in items:
        if name == "*":
            sides = [side for side in SIDES if side in df.columns and text in ("*", f"{side}.*")]
            columns += [F.col(f"{side}.*") for side in sides] or [F.col("*")]
            visible = _visible(df)
            names += [field for side in sides for field in fields_of(df, side)] or [
                name if name in visible else None for name in df.columns
            ]
            continue
        column = F.expr(text)
        if not re.fullmatch(r"\w+|`[^`]*`", text):  # a column as it is keeps its metadata
            column = kept_only(df, column) if wanted is None else F.when(wanted, column)
        mark = {"metadata": {WINDOW_BOUND: bounds[name]}} if name in bounds else {}
        columns.append(column.alias(name, **mark))
        names.append(name)
    result = df.select(*columns, *map(quoted, others))
    names += others
    if None in names:
        result = result.toDF(*map(str, range(len(names))))
        kept = {str(at): name for at, name in enumerate(names) if name is not None}
        result = result.select(*map(quoted, kept)).toDF(*kept.values())
    return result


def _aggregate(call: Call, wanted: Column | None = None) -> Column:
    """Return an aggregate, which computes nothing for rows that are not `wanted`."""
    function: Callable[[Column | str], Column] = getattr(F, call.function)
    value = None if call.argument is None else F.expr(call.argument)
    for condition in (None if call.condition is None else F.expr(call.condition), wanted):
        if condition is not None:
            value = F.when(condition, F.lit(1) if value is None else value)
    return function("*" if value is None else value)
