"""What Flink writes in another way than Spark: constructors and functions of the same meaning."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from timerheap.spark._sql.read.dialect import as_read, refuse, show_as

_OF_EPOCH = {"0": "TIMESTAMP_SECONDS", "3": "TIMESTAMP_MILLIS"}
_INSTEAD = {
    "CURRENT_WATERMARK": "the metrics of the query have its watermark; late rows are those of late='emit'",
    "JSON_VALUE": "write GET_JSON_OBJECT(x, '$.a'), which returns objects and arrays as text, too",
}


def with_spark_calls(tree: exp.Expr) -> None:
    """Replace what is written in another way; raise for functions that Spark does not have."""
    maps: list[tuple[exp.Expr, exp.Expr | None]] = [
        (node, _map_of(node)) for node in tree.find_all(exp.Bracket)
    ]
    calls = [(node, _spark_call(node)) for node in tree.find_all(exp.Anonymous)]
    for node, found in maps + calls:
        if found is not None:
            show_as(found, as_read(node))
            node.replace(found)


def _map_of(node: exp.Bracket) -> exp.Expr | None:
    """Return ``MAP[k, v]`` as a call; an element of a column `map` has one index."""
    if isinstance(node.this, exp.Column) and node.this.sql().upper() == "MAP" and len(node.expressions) > 1:
        return exp.Anonymous(this="MAP", expressions=node.expressions)
    return None


def _spark_call(node: exp.Anonymous) -> exp.Expr | None:
    name = node.name.upper()
    if name in _INSTEAD:
        refuse(as_read(node), _INSTEAD[name])
    return _CALLS[name](node) if name in _CALLS else None


def _of_epoch(node: exp.Anonymous) -> exp.Expr | None:
    """Return ``TO_TIMESTAMP_LTZ(x, 3)``, whose second argument is the precision of a number."""
    if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Literal):
        return None
    value, precision = node.expressions
    if precision.is_string:
        return None
    if precision.name not in _OF_EPOCH:
        refuse(as_read(node), "write the precision 0, of seconds, or 3, of milliseconds")
    return exp.Anonymous(this=_OF_EPOCH[precision.name], expressions=[value])


_CALLS: dict[str, Callable[[exp.Anonymous], exp.Expr | None]] = {"TO_TIMESTAMP_LTZ": _of_epoch}
