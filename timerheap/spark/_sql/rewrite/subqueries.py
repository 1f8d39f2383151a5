"""[NOT] IN and [NOT] EXISTS: semi-joins and anti-joins, of windows or of rows."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from timerheap.spark._sql.nodes import LEFT, RIGHT, Grouped, IntervalJoined, Joined, JoinedRows, Node
from timerheap.spark._sql.read.dialect import as_read, refuse, rename, text_of
from timerheap.spark._sql.read.select import conjuncts, own_nodes, with_tables
from timerheap.spark._sql.rewrite.column_names import columns_of
from timerheap.spark._sql.rewrite.conjuncts import without_side
from timerheap.spark._sql.rewrite.from_clause import NamedQueries, join_of, relation
from timerheap.spark._sql.rewrite.ranks import limited
from timerheap.spark._sql.rewrite.row_joins import needed_of, row_join
from timerheap.spark._sql.rewrite.select_list import name_of, projected

_PLAIN = {"expressions", "from_", "where"}
_INSTEAD = "use x [NOT] IN (SELECT ...), [NOT] EXISTS (SELECT ...), and comparisons with one row: x "
"> (SELECT MAX(y) FROM u)"
_ONE_COLUMN = "select the one column to compare with"


def subquery_join(source: Node, name: str, condition: exp.Expr, queries: NamedQueries) -> Node:
    """Return the semi-join or anti-join of a condition with IN or EXISTS; `name` is that of the source."""
    negated = isinstance(condition, exp.Not)
    test = condition.this.unnest() if negated else condition
    tree = (test.args.get("query") if isinstance(test, exp.In) else test.this) or test
    tree = tree.unnest() if isinstance(tree, exp.Subquery) else tree
    if not isinstance(test, (exp.In, exp.Exists)) or not isinstance(tree, exp.Query):
        found_row = _compared(source, condition, queries)
        if found_row is not None:
            return found_row
        refuse(f"WHERE {as_read(condition)}", _INSTEAD)
    values: list[exp.Expr] = []
    if isinstance(test, exp.In):
        compared = test.this.unnest()
        parts = compared.expressions if isinstance(compared, exp.Tuple) else [compared]
        values = [with_tables(one, {"": LEFT}) for one in parts]
    if _is_plain(tree):
        right, on, found = _of_rows(tree, source, name, bool(values), queries)
    else:
        right, on, found = _of_query(tree, name, bool(values), queries)
    if len(found) != len(values):
        refuse(f"IN with {len(found)} columns", _ONE_COLUMN)
    equal = [exp.EQ(this=one, expression=other) for one, other in zip(values, found, strict=True)]
    how = "anti" if negated else "semi"
    if not (negated and equal):
        return join_of(source, right, how, [*equal, *on])
    joined = join_of(source, right, how, on)  # with null, NOT IN is neither true nor false
    if isinstance(joined, IntervalJoined):
        joined = joined.otherwise
    if isinstance(joined, JoinedRows):
        pairs = [(without_side(one.left), without_side(one.right)) for one in equal]
        return replace(
            joined,
            compared=tuple((text_of(one), text_of(other)) for one, other in pairs),
            not_in=f"COALESCE({text_of(exp.and_(*equal))}, TRUE)",
            needs=(None, needed_of(RIGHT, [*on, *equal])),
        )
    assert isinstance(joined, Joined)
    parts = [] if joined.condition is None else [f"COALESCE({joined.condition}, FALSE)"]
    (same,) = equal
    return replace(joined, condition=" AND ".join([*parts, f"({text_of(same)})"]), null_aware=True)


def _compared(source: Node, condition: exp.Expr, queries: NamedQueries) -> JoinedRows | None:
    """Return the rows for which a condition on the one row of an inner query is true, None for others."""
    condition = condition.copy()
    inner = [one for one in condition.find_all(exp.Subquery) if isinstance(one.this, exp.Select)]
    if len(inner) != 1 or condition.find(exp.In, exp.Exists) or condition is inner[0]:
        return None
    right = queries.meaning(inner[0].this, queries)
    if not isinstance(right, Grouped) or right.keys or right.having or len(right.columns) != 1:
        return None
    condition = with_tables(condition, {"": LEFT})
    (there,) = condition.find_all(exp.Subquery)
    there.replace(exp.column(right.columns[0][1], RIGHT, quoted=True))
    return row_join(source, right, 2, "semi", [condition])


def _is_plain(tree: exp.Query) -> bool:
    """Return whether an inner query projects and filters, so that it may refer to the outer one."""
    if not isinstance(tree, exp.Select) or not {key for key, value in tree.args.items() if value} <= _PLAIN:
        return False
    return not any(one.find(exp.AggFunc, exp.Window) for one in tree.expressions)


def _of_rows(
    tree: exp.Query, source: Node, name: str, selects: bool, queries: NamedQueries
) -> tuple[Node, list[exp.Expr], list[exp.Expr]]:
    """Return the rows of an inner query, the conditions on both sides, and what it selects if it does."""
    right, other = relation(tree.args["from_"].this, queries)
    sides = {name: LEFT} if name else {}
    if other:
        sides[other] = RIGHT
    tree = with_tables(tree, sides)
    of_table = queries.of_table
    known = {one.lower() for one in columns_of(right, of_table)} if of_table else set()
    outer = {one.lower() for one in columns_of(source, of_table)} - known if of_table else set()
    for column in own_nodes(tree):
        if isinstance(column, exp.Column) and not column.table:
            rename(column, LEFT if column.name.lower() in outer else RIGHT)
    inside = conjuncts(tree.args.get("where"))
    if any(one.find(exp.Query) for one in inside):
        refuse("IN or EXISTS in IN or EXISTS", "nest it: IN (SELECT k FROM (SELECT ... WHERE x IN (...)))")
    on = [one for one in inside if any(column.table == LEFT for column in one.find_all(exp.Column))]
    if rest := [without_side(one) for one in inside if one not in on]:
        right = projected(right, rest, [exp.Star()])
    if not selects:
        return right, on, []
    found: list[exp.Expr] = []
    for one in tree.expressions:
        if one.is_star:
            found += [exp.column(each, RIGHT) for each in columns_of(right, of_table)] if of_table else [one]
        else:
            found.append(one.unalias().copy())
    return right, on, found


def _of_query(
    tree: exp.Query, name: str, selects: bool, queries: NamedQueries
) -> tuple[Node, list[exp.Expr], list[exp.Expr]]:
    """Return the results of an inner query with clauses of its own, which the outer one does not enter."""
    for column in tree.find_all(exp.Column):
        if name and column.table == name:
            refuse(
                f"{as_read(column)} in IN or EXISTS with GROUP BY, DISTINCT, JOIN or UNION",
                "nest it: FROM (SELECT ... GROUP BY ...) AS R WHERE ...",
            )
    right = limited(queries.meaning(tree, queries))
    if not selects:
        return right, [], []
    names = [name_of(one) for one in tree.selects]
    if any(one.is_star for one in tree.selects):
        names = columns_of(right, queries.of_table) if queries.of_table else names
    return right, [], [exp.column(one, RIGHT, quoted=True) for one in names]
