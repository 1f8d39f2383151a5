"""`join_asof`: for each row of a DataFrame, the newest row of another one at or before its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, ByteType, StructField, StructType

from timerheap._arguments import instance, not_negative
from timerheap.output_tag import OutputTag
from timerheap.spark._asof.asof_runner import AsofJoinWork
from timerheap.spark._columns import INPUT, TIME, added_name, computed_name, shown_name
from timerheap.spark._compat import nullable
from timerheap.spark._plan.arguments import (
    ColumnOrName,
    Columns,
    EventTime,
    Input,
    RightInput,
    changed_states,
    named_column,
    query_of,
    quoted,
    two_inputs,
)
from timerheap.spark._plan.build import build, marked
from timerheap.spark._plan.outputs import side_output
from timerheap.watermarks import WatermarkStrategy

UNMATCHED = "unmatched_rows"  # a side output


def join_asof(
    left: DataFrame | GroupedData,
    right: DataFrame | GroupedData | RightInput,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    event_time: ColumnOrName | EventTime | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    how: str = "left",
    tolerance: int | str | timedelta | None = None,
    allow_exact_matches: bool = True,
    deleted: ColumnOrName | None = None,
    suffix: str = "_right",
    late: str | None = None,
    unmatched: str | None = None,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | None = None,
) -> DataFrame:
    """Join each left row with the newest right row of its key at or before its time.

    An as-of join, also called a point-in-time join, of two streaming, or two batch, DataFrames. The result
    depends on the data alone, as long as no row is late: it is the same for a batch, and for a stream in any
    micro-batches.

    Parameters
    ----------
    left : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        ``left.groupBy("a")`` names the key columns, too.
    right : pyspark.sql.DataFrame, pyspark.sql.GroupedData or RightInput
        The versions of what is joined: prices, addresses, measurements. A `RightInput` names its key columns,
        its event time and its watermark, if they are other than those of `left`.
    key : str, Column, or list of them
        Key columns of `left`, and by default of `right`. Null is a key of its own, as in `process`; to have
        null match nothing, as in SQL, leave such rows of `right` out.
    event_time, watermark : optional
        As in `process_two`. Times are compared as they are, down to microseconds. Right rows of one key and
        time are ordered by ``EventTime.tie_break`` of `right`, then by all of their columns, from the first
        to the last, null last; the last one is joined. A tie break of `left` changes nothing.
    how : {"left", "inner"}, default "left"
        Whether a left row without a match is in the result, with null in the columns of `right`.
    tolerance : int, str or timedelta, optional
        The greatest distance between the two times: milliseconds, or "10 minutes". By default any. With it a
        right row leaves the state when it has become too old; after a restart with another tolerance, those
        already in state leave it when they would have before.
    allow_exact_matches : bool, default True
        Whether a right row of the same time is a match. If not, only those before it are.
    deleted : str or Column, optional
        A boolean column or expression of `right`. A right row where it is true ends the row before it: left
        rows from its time on have no match until the next right row. It is no match itself.
    suffix : str, default "_right"
        Ends the name of a column of `right` whose name `left` has, too. A key column that has the same name
        in both is one column of the result.
    late : {"drop", "emit"}, optional
        As in `process_two`: what becomes of rows of both inputs behind the watermark.
    unmatched : {"drop", "emit"}, optional
        Whether `timerheap.spark.unmatched_rows` returns the rows of both inputs that had no match.
    max_parallelism, state_changes : optional
        As in `process`. The newest right rows are the value state "right".

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of `left`, then those of `right`, in append mode.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the two inputs do not match.

    Notes
    -----
    A left row is answered once the watermark, the lower one of both inputs, has passed its time: until then a
    right row may come. It waits in state, as right rows do that are ahead of the watermark. Of those behind
    it the state has the newest of each key. Rows are sorted and searched in columns, without a call in Python
    for each.

    The name is that of Polars' ``join_asof``; pandas has ``merge_asof``, where Spark says join. Unlike there
    the inputs need no order, a result has the time of the right row, too, and tolerance is in milliseconds.
    The next right row, or the nearest one, is a query of `sql`: see the guide.

    Examples
    --------
    ::

        priced = timerheap.spark.join_asof(
            orders,
            RightInput(prices, event_time="valid_from", watermark="1 hour"),
            key="product",
            event_time="ordered_at",
            watermark="10 minutes",
            tolerance="30 days",
        )
    """
    if how not in ("left", "inner"):
        raise ValueError(f'how must be "left" or "inner", got {how!r}')
    instance("allow_exact_matches", allow_exact_matches, bool)
    if unmatched not in (None, "drop", "emit"):
        raise ValueError(f'unmatched must be "drop" or "emit", got {unmatched!r}')
    longest = None if tolerance is None else not_negative("tolerance", tolerance)
    one, two = two_inputs(left, right, key, event_time, watermark, late=late)
    for each in (one, two):
        if each.event_time is None:
            raise ValueError(f"{each.prefix}event_time must name the event-time column, got None")
    ties, one, two = two.ties, replace(one, ties=()), replace(two, ties=())
    one.expect_to_match(two)
    two, mark = _with_mark(two, deleted)
    extra = [name for name in (*ties, mark) if name is not None and name not in two.rows.names]
    carriers, rows = _carriers(one, two, extra)
    shared = {a for a, b in zip(one.key, two.key, strict=True) if a == b}
    columns = [(0, field, field.name) for field in one.rows]
    columns += [
        (1, field, _right_name(field.name, one.rows.names, suffix))
        for field in two.rows
        if field.name not in shared
    ]
    names = [name.lower() for *_, name in columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"suffix must make the names of the result different, got {suffix!r}, and {twice!r} twice; pass "
            "another one"
        )
    of_user = {name: carriers[1][name] for name in two.rows.names}
    version = {name: carrier for name, carrier in of_user.items() if name not in two.key}
    if TIME not in version.values():
        version[added_name("event_time", version)] = TIME
    sides = StructType([StructField("left", one.rows), StructField("right", two.rows)])
    tags = (OutputTag(UNMATCHED, nullable(sides)),) if unmatched == "emit" else ()
    work = AsofJoinWork(
        columns=({name: carriers[0][name] for name in one.rows.names}, of_user),
        results=tuple((side, carriers[side][field.name]) for side, field, _ in columns),
        version=version,
        ties=tuple(carriers[1][name] for name in (*ties, *two.rows.names)),
        deleted=None if mark is None else carriers[1][mark],
        tolerance=longest,
        exact=allow_exact_matches,
        inner=how == "inner",
        unmatched=tags[0] if tags else None,
    )
    query = query_of(
        work,
        nullable(StructType([StructField(name, field.dataType) for _, field, name in columns])),
        one,
        two,
        late=late,
        max_parallelism=max_parallelism,
        **changed_states(state_changes),
        key=[carriers[0][name] for name in one.key],
        rows=rows,
        event_time=TIME,
        times=(one.time_column(), two.time_column()),
        late_row=sides,
        side_outputs=tags,
    )
    both = _carried(0, one, two, carriers[0], rows).unionAll(_carried(1, two, one, carriers[1], rows))
    return build(query, both)


def unmatched_rows(df: DataFrame) -> DataFrame:
    """Return the rows of both inputs of a `join_asof` with ``unmatched="emit"`` that had no match.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `join_asof`, or of `with_side_outputs`; it may be changed as for `side_output`.

    Returns
    -------
    pyspark.sql.DataFrame
        The structs ``left`` and ``right``, one of which is null. A left row comes when it is answered. A
        right row comes when no further left row can match it: when the next right row of its key has come,
        it has become too old for `tolerance`, or a batch DataFrame ends. Rows that `deleted` marks are not
        among them.

    Examples
    --------
    ::

        priced = timerheap.spark.join_asof(orders, prices, "product", unmatched="emit", ...)
        without_price = timerheap.spark.unmatched_rows(priced).where("left is not null")
    """
    try:
        return side_output(df, OutputTag(UNMATCHED, "boolean"))
    except ValueError as e:
        raise ValueError(f'df must be the result of a join_asof with unmatched="emit": {e}') from None


def _with_mark(right: Input, deleted: ColumnOrName | None) -> tuple[Input, str | None]:
    """Return the right input with the column that marks deletes, and its name."""
    if deleted is None:
        return right, None
    columns = Columns("right", right.df)
    name = columns.one("deleted", deleted)
    type_ = named_column(columns.df, "deleted", name)
    if not isinstance(type_, BooleanType):
        raise ValueError(
            f"deleted must be boolean, got column {shown_name(name)!r} of type {type_.simpleString()}; pass "
            'an expression such as F.col("op") == "D"'
        )
    return replace(right, df=columns.df), name


def _right_name(name: str, taken: Sequence[str], suffix: str) -> str:
    return name + suffix if name.lower() in map(str.lower, taken) else name


def _carriers(one: Input, two: Input, extra: Sequence[str]) -> tuple[tuple[dict[str, str], ...], StructType]:
    """Return what carries the columns of each input, by their names, and the type of the rows of both.

    Both have the key and the time in the same columns, and null in those of the other.
    """
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


def _carried(
    number: int, side: Input, other: Input, carriers: Mapping[str, str], rows: StructType
) -> DataFrame:
    marks, keys = marked(side, other), [field.name for field in rows][2 : 2 + len(side.key)]
    names = {carrier: name for name, carrier in carriers.items()}
    names |= {TIME: str(side.event_time), **dict(zip(keys, side.key, strict=True))}
    columns = [
        quoted(names[field.name]) if field.name in names else F.lit(None).cast(field.dataType)
        for field in rows
    ]
    columns[1] = F.lit(number).cast("tinyint")
    columns = [column.alias(name) for column, name in zip(columns, rows.names, strict=True)]
    return marks.select(*columns, *(quoted(name) for name in marks.columns[len(side.df.columns) :]))
