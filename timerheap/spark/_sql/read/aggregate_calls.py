"""Calls of aggregates: the function's name in Spark, its argument, DISTINCT and FILTER."""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from timerheap.spark._sql.nodes import Call
from timerheap.spark._sql.read.dialect import as_read, refuse, text_of
from timerheap.tvf.aggregates import BUILT_IN

_SYNONYMS = {"stddev": "stddev_samp", "variance": "var_samp"}
_COLLECTED: dict[type[exp.Expr], str] = {
    exp.GroupConcat: "listagg",
    exp.ArrayAgg: "array_agg",
    exp.ArrayUniqueAgg: "array_agg",
    exp.Quantile: "percentile",
    exp.Median: "percentile",
    exp.First: "first_value",
    exp.FirstValue: "first_value",
    exp.Last: "last_value",
    exp.LastValue: "last_value",
}
"""What keeps all values of a group."""

KNOWN = ", ".join(
    [
        *(name.upper() for name in BUILT_IN if name != "count_distinct"),
        *(f"{name}(DISTINCT)" for name in ("COUNT", "SUM", "AVG")),
        *(name.upper() for name in dict.fromkeys(_COLLECTED.values())),
    ]
)
OTHERWISE = "for your own aggregate pass functions={...} to sql()"


def with_aggregates(tree: exp.Expr, names: Collection[str]) -> exp.Expr:
    """Return a query in which calls of these functions are aggregates."""
    lower = {name.lower() for name in names}

    def there(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Anonymous) and node.name.lower() in lower:
            return exp.AnonymousAggFunc(this=node.name, expressions=node.expressions)
        return node

    return tree.transform(there) if lower else tree


def ordered_call(node: exp.Expr) -> Call | None:
    """Return MIN_BY, MAX_BY, or FIRST_VALUE or LAST_VALUE with an order; None for other aggregates."""
    shown, condition = as_read(node), None
    if isinstance(node, exp.Filter):
        node, condition = node.this, text_of(node.expression.this)
    if isinstance(node, (exp.ArgMin, exp.ArgMax)):
        function = "min_by" if isinstance(node, exp.ArgMin) else "max_by"
        return Call(function, text_of(node.this), condition, text_of(node.expression))
    order = node.this
    if not isinstance(node, (exp.FirstValue, exp.LastValue)) or not isinstance(order, exp.Order):
        return None
    if len(order.expressions) != 1:
        refuse(f"{shown} by several columns", "order by one, such as a version or a struct of them")
    (term,) = order.expressions
    last = isinstance(node, exp.LastValue) is not bool(term.args.get("desc"))
    return Call("max_by" if last else "min_by", text_of(order.this), condition, text_of(term.this))


def aggregate_call(node: exp.Expr, otherwise: str = OTHERWISE) -> Call:
    """Return an aggregate; raise for others, which can be computed `otherwise`."""
    shown, condition = as_read(node), None
    if isinstance(node, exp.Filter):
        node, condition = node.this, text_of(node.expression.this)
    if isinstance(node, exp.AnonymousAggFunc):
        given = node.expressions or [exp.Literal.number(1)]
        distinct = isinstance(given[0], exp.Distinct)
        first, *others = map(text_of, given[0].expressions if distinct else given)
        return Call(node.name.lower(), first, condition, others=tuple(others), distinct=distinct)
    if type(node) in _COLLECTED:
        return _collected_call(node, shown, condition)
    name = text_of(node).partition("(")[0].lower()
    function = _SYNONYMS.get(name, name)
    if function not in BUILT_IN:
        refuse(shown, f"aggregates are {KNOWN}; {otherwise}")
    if any(value for name, value in node.args.items() if name not in ("this", "big_int")):
        refuse(shown, "aggregates take one argument; compute it in a view")
    argument = node.this
    if isinstance(argument, exp.Distinct):
        if len(argument.expressions) != 1:
            refuse(shown, "count the distinct values of one column, or combine several columns in a view")
        (argument,) = argument.expressions
        if function in ("sum", "avg"):
            return Call(function, text_of(argument), condition, distinct=True)
        if function not in ("count", "min", "max"):
            refuse(shown, f"COUNT, SUM, AVG, MIN and MAX take DISTINCT; {otherwise}")
        function = "count_distinct" if function == "count" else function
    if isinstance(argument, (exp.Star, exp.Literal)) and function == "count":
        return Call(function, None, condition)
    if argument.find(exp.AggFunc):
        refuse(shown, "aggregates cannot be nested; aggregate the result of a nested SELECT")
    return Call(function, text_of(argument), condition)


def _collected_call(node: exp.Expr, shown: str, condition: str | None) -> Call:
    """Return a call of what keeps all values of a group."""
    argument, distinct = node.this, isinstance(node, exp.ArrayUniqueAgg)
    if isinstance(argument, exp.Distinct):
        (argument, *more), distinct = argument.expressions, True
        if more:
            refuse(shown, "write one column, such as a struct of several")
    if isinstance(argument, exp.Order):
        refuse(f"{shown} with an order", "sort the result: ARRAY_JOIN(ARRAY_SORT(ARRAY_AGG(x)), ',')")
    if argument.find(exp.AggFunc):
        refuse(shown, "aggregates cannot be nested; aggregate the result of a nested SELECT")
    given = node.args.get("separator") or node.args.get("quantile")
    if given is not None and not isinstance(given, exp.Literal):
        refuse(shown, f"write a literal in place of {as_read(given)}")
    function, parameter = _COLLECTED[type(node)], None  # type: str, str | float | None
    if function == "listagg":
        parameter = "," if given is None else given.name
    elif function == "percentile":
        parameter = 0.5 if given is None else float(given.name)
        if not 0 <= parameter <= 1:
            refuse(shown, "write a fraction from 0 to 1")
    return Call(function, text_of(argument), condition, distinct=distinct, parameter=parameter)
