"""Functions on tables in FROM: which tables they are called on, and which columns they return."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import CHANGE_TYPE
from timerheap.spark._sql.nodes import CalledOnTables, TableArgument
from timerheap.spark._sql.read.dialect import as_read, refuse
from timerheap.spark._sql.read.table_calls import EXAMPLE_CALL, read_table_call
from timerheap.spark._sql.rewrite.column_names import ColumnsOf
from timerheap.spark._sql.table_function import ROWTIME, TableFunction


def called_on_tables(
    call: exp.Anonymous,
    function: TableFunction,
    table_of: Callable[[exp.Expr], tuple[str, ...]],
    of_table: ColumnsOf | None,
) -> CalledOnTables:
    """Return what the call of a function on tables means.

    table_of: returns the table that an argument is
    of_table: the columns of a table, if they are known
    """
    given, name = read_table_call(call), call.name
    if not given.tables:
        raise ArgumentValueError(f"query: {name} must be called on a table, got none; write {EXAMPLE_CALL}")
    tables = []
    for argument, keys in given.tables:
        if keys is None and function.partition_by == "required":
            refuse(
                f"{name} of {as_read(argument)} without PARTITION BY",
                "say whose timers and state they are: TABLE t PARTITION BY k; or pass "
                'table_function(..., partition_by="optional"), and all rows are one partition, or '
                'partition_by="none" for a function of single rows',
            )
        if keys is not None and function.partition_by == "none":
            refuse(
                f"PARTITION BY {', '.join(keys)} of {name}, a function of single rows,",
                'leave it out, or pass table_function(..., partition_by="optional")',
            )
        tables.append(TableArgument(table_of(argument), keys or ()))
    if len(tables) > 1 and function.partition_by == "none":
        refuse(
            f"{name}, a function of single rows, of {len(tables)} tables",
            'pass table_function(..., partition_by="optional")',
        )
    if len(tables) > 2:
        refuse(f"{name} of {len(tables)} tables", "unite some of them: (SELECT ... UNION ALL SELECT ...)")
    if len({len(one.keys) for one in tables}) > 1:
        refuse(
            f"PARTITION BY of {len(tables)} tables by different numbers of columns", "write as many for each"
        )
    before = _columns_before(function, tables, of_table)
    columns = (*before, *function.results.names, *((ROWTIME,) if given.times else ()))
    _expect_distinct(name, columns)
    columns = tuple(column for column in columns if column != CHANGE_TYPE)
    return CalledOnTables(
        name.lower(),
        tuple(tables),
        given.times,
        tuple(given.positional),
        tuple(given.named.items()),
        given.uid,
        columns,
    )


def _columns_before(
    function: TableFunction, tables: list[TableArgument], of_table: ColumnsOf | None
) -> tuple[str, ...]:
    """Return the columns before those of the function; a key of the second table has a number if it must."""
    first, *others = tables
    if function.passes_columns:
        if others:
            refuse("pass_columns_through of two tables", "yield the columns that are wanted")
        return () if of_table is None else tuple(of_table(first.table))
    names = [*first.keys]
    for one in others:
        for key in one.keys:
            taken = {name.lower() for name in names}
            numbered = (f"{key}{number}" for number in range(len(names)))
            names.append(
                key if key.lower() not in taken else next(n for n in numbered if n.lower() not in taken)
            )
    return tuple(names)


def _expect_distinct(name: str, columns: tuple[str, ...]) -> None:
    lower = [column.lower() for column in columns]
    twice = [column for column in columns if lower.count(column.lower()) > 1]
    if twice:
        raise ArgumentValueError(
            f"functions[{name!r}] must have an output_schema without the columns that the query adds, got "
            f"{twice[-1]!r} twice in {list(columns)}; leave it out, or rename it"
        )
