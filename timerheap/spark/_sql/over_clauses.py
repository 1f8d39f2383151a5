"""OVER clauses: the frame, and what a function computes of the rows in it."""

from __future__ import annotations

from sqlglot import exp

from timerheap.spark._sql.clauses import RANKS, call_of, milliseconds, name_of, time_of
from timerheap.spark._sql.dialect import expect_only, refuse, text_of, written
from timerheap.spark._sql.nodes import Call
from timerheap.spark._sql.over_columns import Frame, RowCall
from timerheap.spark._sql.ranking import Order

_PROCESS = "for other functions use timerheap.spark.process() with a state"
_FRAMES = (
    "write SUM(x) OVER (PARTITION BY k ORDER BY ts), or in it RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND "
    "CURRENT ROW, or ROWS BETWEEN 10 PRECEDING AND CURRENT ROW"
)
_PICKS = {
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
    exp.LastValue: "last_value",
    exp.NthValue: "nth_value",
}
_RUNNING = ("count", "sum", "avg", "min", "max")


def partition_and_order(overs: list[exp.Window]) -> tuple[tuple[str, ...], str, tuple[Order, ...]]:
    """Return PARTITION BY, the time and the rest of ORDER BY, which must be the same in all."""
    first = overs[0]
    clauses = [[over.args.get(name) for name in ("partition_by", "order")] for over in overs]
    for over, clause in zip(overs, clauses, strict=True):
        if clause != clauses[0]:
            refuse(
                f"{written(over)} beside a different PARTITION BY or ORDER BY",
                "write the same in each, or make a view of the result and query that",
            )
    partition, order = clauses[0]
    terms = [] if order is None else order.expressions
    if terms and terms[0].args.get("desc") and any(type(over.this) in RANKS for over in overs):
        refuse(
            f"{written(first)} (a Top-N or the last of all rows: its result changes)",
            "order by ascending time: ORDER BY ts; rank rows of windows; or for the last row of a key use "
            'timerheap.spark.drop_duplicates(keep="last", within=...)',
        )
    if not terms or terms[0].args.get("desc"):
        refuse(f"{written(first)} without an ascending time as the first of ORDER BY", _FRAMES)
    orders = tuple(
        Order(text_of(one.this), bool(one.args.get("desc")), bool(one.args.get("nulls_first")))
        for one in terms[1:]
    )
    keys = tuple(name_of(node, "PARTITION BY") for node in partition or [])
    return keys, time_of(terms[0].this, "ORDER BY"), orders


def over_call(over: exp.Window) -> RowCall | tuple[Call, Frame]:
    """Return a rank or a function that returns a value of a row, or an aggregate and its frame."""
    function, ignore_nulls = over.this, isinstance(over.this, exp.IgnoreNulls)
    if isinstance(function, (exp.IgnoreNulls, exp.RespectNulls)):
        function = function.this
    kind = type(function)
    if kind in RANKS or kind in (exp.Lag, exp.Lead):
        expect_only(over, {"this", "partition_by", "order", "over"})
    if kind in RANKS and function is over.this:
        return RowCall(RANKS[kind], Frame())
    if kind in _PICKS:
        return _pick(function, _PICKS[kind], _frame(over), ignore_nulls)
    if not isinstance(over.this, (exp.AggFunc, exp.Filter)) or kind in RANKS:
        refuse(
            f"{written(over)} (OVER)",
            f"aggregates are, ranks, LAG, LEAD, FIRST_VALUE, LAST_VALUE and NTH_VALUE; {_PROCESS}",
        )
    frame, call = _frame(over), call_of(function, _PROCESS)
    if frame.whole and call.function not in _RUNNING:
        refuse(
            f"{written(function)} of all rows so far",
            f"use {', '.join(_RUNNING).upper()}, or a frame of time or rows: {_FRAMES}",
        )
    return call, frame


def _pick(function: exp.Expr, name: str, frame: Frame, ignore_nulls: bool) -> RowCall:
    expect_only(function, {"this", "offset", "default"})
    argument, offset, default = function.this, function.args.get("offset"), function.args.get("default")
    if offset is not None and not (isinstance(offset, exp.Literal) and offset.is_int and int(offset.name)):
        refuse(f"{written(offset)} in {written(function)}", "write a whole number, 1 or more")
    for part in filter(None, (argument, default)):
        if part.find(exp.AggFunc):
            refuse(written(function), "functions OVER rows cannot be nested; query a view of the result")
    return RowCall(
        name,
        frame,
        text_of(argument),
        1 if offset is None else int(offset.name),
        None if default is None else text_of(default),
        ignore_nulls,
    )


def _frame(over: exp.Window) -> Frame:
    spec, order = over.args.get("spec"), over.args["order"]
    if spec is None:
        return Frame()
    given = spec.args
    start, kind = given.get("start"), str(given.get("kind")).upper()
    ends = [str(given.get(name)).upper() for name in ("start_side", "end")]
    whole, of_rows = str(start).upper() == "UNBOUNDED", kind == "ROWS"
    if (
        kind not in ("ROWS", "RANGE")
        or given.get("exclude")
        or ends not in (["PRECEDING", "NONE"], ["PRECEDING", "CURRENT ROW"])
        or not (whole or isinstance(start, exp.Expr))
        or (of_rows and not (whole or (isinstance(start, exp.Literal) and start.is_int)))
    ):
        refuse(
            f"{written(over)} of other rows than the last ones by number or time", f"{_FRAMES}; {_PROCESS}"
        )
    if whole or of_rows:
        return Frame(rows=None if whole else int(start.name), peers=not of_rows)
    preceding = milliseconds(start, "RANGE")
    if preceding < 0:
        refuse(f"RANGE {written(start)} PRECEDING", "write an interval of 0 or more")
    if len(order.expressions) > 1:
        refuse(
            f"RANGE {written(start)} PRECEDING with several columns in ORDER BY",
            "write ROWS, or the time alone",
        )
    return Frame(preceding)
