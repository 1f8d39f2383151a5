"""OVER: ranks and functions of rows, their frames, PARTITION BY and ORDER BY."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from timerheap.spark._order_by import Order
from timerheap.spark._sql.nodes import Call
from timerheap.spark._sql.over_calls import ALL_ROWS, Frame, RowCall
from timerheap.spark._sql.read.aggregate_calls import aggregate_call
from timerheap.spark._sql.read.clauses import column_name, interval_months, interval_ms, time_of
from timerheap.spark._sql.read.dialect import as_read, expect_only, refuse, text_of

RANKS = {exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"}
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
_LONGEST_MONTH = 32 * 86_400_000
"""In ms, with room for clocks that are set back."""

_RUNNING = ("count", "sum", "avg", "min", "max")


def partition_and_order(overs: list[exp.Window]) -> tuple[tuple[str, ...], str, tuple[Order, ...]]:
    """Return PARTITION BY, the time and the rest of ORDER BY, which must be the same in all."""
    first = overs[0]
    clauses = [[over.args.get(name) for name in ("partition_by", "order")] for over in overs]
    for over, clause in zip(overs, clauses, strict=True):
        if clause != clauses[0]:
            refuse(
                f"{as_read(over)} beside a different PARTITION BY or ORDER BY",
                "write the same in each, or make a view of the result and query that",
            )
    partition, order = clauses[0]
    terms = [] if order is None else order.expressions
    if terms and terms[0].args.get("desc") and any(type(over.this) in RANKS for over in overs):
        refuse(
            f"{as_read(first)} (a Top-N or the last of all rows: its result changes)",
            "order by ascending time: ORDER BY ts; rank rows of windows; or for the last row of a key use "
            'timerheap.spark.drop_duplicates(keep="last", within=...)',
        )
    if not terms or terms[0].args.get("desc"):
        refuse(f"{as_read(first)} without an ascending time as the first of ORDER BY", _FRAMES)
    keys = tuple(column_name(node, "PARTITION BY") for node in partition or [])
    return keys, time_of(terms[0].this, "ORDER BY"), orders_of(terms[1:])


def orders_of(terms: list[exp.Expr]) -> tuple[Order, ...]:
    return tuple(
        Order(text_of(one.this), bool(one.args.get("desc")), bool(one.args.get("nulls_first")))
        for one in terms
    )


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
        return _pick(function, _PICKS[kind], _frame_of(over), ignore_nulls)
    if not isinstance(over.this, (exp.AggFunc, exp.Filter)) or kind in RANKS:
        refuse(
            f"{as_read(over)} (OVER)",
            "functions OVER rows are aggregates, ranks, LAG, LEAD, FIRST_VALUE, LAST_VALUE and NTH_VALUE; "
            f"{_PROCESS}",
        )
    frame, call = _frame_of(over), aggregate_call(function, _PROCESS)
    return call, replace(frame, rows=ALL_ROWS) if frame.whole and call.function not in _RUNNING else frame


def _pick(function: exp.Expr, name: str, frame: Frame, ignore_nulls: bool) -> RowCall:
    expect_only(function, {"this", "offset", "default"})
    argument, offset, default = function.this, function.args.get("offset"), function.args.get("default")
    if offset is not None and not (isinstance(offset, exp.Literal) and offset.is_int and int(offset.name)):
        refuse(f"{as_read(offset)} in {as_read(function)}", "write a whole number, 1 or more")
    for part in filter(None, (argument, default)):
        if part.find(exp.AggFunc):
            refuse(as_read(function), "functions OVER rows cannot be nested; query a view of the result")
    return RowCall(
        name,
        frame,
        text_of(argument),
        1 if offset is None else int(offset.name),
        None if default is None else text_of(default),
        ignore_nulls,
    )


def _frame_of(over: exp.Window) -> Frame:
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
            f"{as_read(over)} of other rows than the last ones by number or time", f"{_FRAMES}; {_PROCESS}"
        )
    if whole or of_rows:
        return Frame(rows=None if whole else int(start.name), peers=not of_rows)
    months = interval_months(start)
    preceding = interval_ms(start, "RANGE") if months is None else months * _LONGEST_MONTH
    if preceding < 0:
        refuse(f"RANGE {as_read(start)} PRECEDING", "write an interval of 0 or more")
    if len(order.expressions) > 1:
        refuse(
            f"RANGE {as_read(start)} PRECEDING with several columns in ORDER BY",
            "write ROWS, or the time alone",
        )
    return Frame(preceding, since="" if months is None else f"INTERVAL '{months}' MONTH")
