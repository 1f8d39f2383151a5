"""As-of joins in the text of a query: which condition orders the times, and which decide on the match."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from timerheap.spark._sql.nodes import LEFT, RIGHT, AsOf, Node
from timerheap.spark._sql.read.dialect import as_read, refuse, rename, text_of
from timerheap.spark._sql.read.select import SelectParts, all_comparisons, own_nodes
from timerheap.spark._sql.rewrite.conjuncts import conjunction, equal_pair, null_safe, sides_of, without_side
from timerheap.spark._sql.rewrite.interval_joins import length_ms

_ORDERS = (exp.GTE, exp.GT, exp.LTE, exp.LT)
_WRITE = "FOR SYSTEM_TIME AS OF L.ts, or MATCH_CONDITION (L.ts >= R.ts), or L.ts > R.ts"
_LENGTHS = {"MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}


def is_as_of(join: exp.Join, version: exp.Expr | None) -> bool:
    """Return whether a JOIN is an as-of join; `version` is what FOR SYSTEM_TIME AS OF says."""
    return bool(version or join.args.get("match_condition") or join.args.get("method") == "ASOF")


def is_plain(select: SelectParts) -> bool:
    """Return whether a SELECT only projects and filters the rows of its joins."""
    computes = any(isinstance(one, (exp.AggFunc, exp.Window)) for one in own_nodes(select.tree))
    return not (computes or select.group or select.having)


def shared_columns(join: exp.Join) -> list[exp.Expr]:
    """Return the conditions that USING stands for."""
    same = [one.name for one in join.args.get("using") or []]
    return [exp.EQ(this=exp.column(one, LEFT), expression=exp.column(one, RIGHT)) for one in same]


def with_left_columns(select: SelectParts, join: exp.Join) -> SelectParts:
    """Return a SELECT whose columns of USING are those of the left side where no table is named."""
    same, tree = [one.name for one in join.args.get("using") or []], select.tree.copy()
    for column in own_nodes(tree):
        if isinstance(column, exp.Column) and not column.table and column.name in same:
            rename(column, LEFT)
    return replace(select, tree=tree)


def as_of(
    left: Node,
    right: Node,
    names: tuple[str, str],
    how: str,
    conditions: list[exp.Expr],
    version: exp.Expr | None,
    match: exp.Expr | None,
) -> AsOf:
    """Return an as-of join.

    version, match: what FOR SYSTEM_TIME and MATCH_CONDITION say; without them one of the `conditions` is the
        order of the two times
    """
    if how not in ("inner", "left"):
        refuse(f"an as-of {how.upper()} JOIN", "write JOIN or LEFT JOIN")
    pairs = [(one, equal_pair(one)) for one in map(null_safe, all_comparisons(conditions))]
    keys = []
    for one, pair in pairs:
        if pair is not None:
            x, y = (text_of(without_side(node)) for node in pair)
            keys.append((x, y, isinstance(one, exp.NullSafeEQ)))
    rest = [one for one, pair in pairs if pair is None]
    order = match
    if version is not None:
        if version.args.get("expression") is None:
            refuse("FOR SYSTEM_TIME AS OF without a time", f"write {_WRITE}")
        order = exp.GTE(this=version.expression, expression=exp.column("", RIGHT))
    elif match is None:
        order = _order(rest)
        rest = [one for one in rest if one is not order]
    times = [order.this, order.expression] if isinstance(order, _ORDERS) else []
    if isinstance(order, (exp.LTE, exp.LT)):
        times.reverse()
    if [isinstance(one, exp.Column) and one.table for one in times] != [LEFT, RIGHT]:
        shown = "an as-of join without the order of two times" if order is None else as_read(order)
        if version is not None:
            shown = f"FOR SYSTEM_TIME AS OF {as_read(version.expression)}"
        refuse(shown, f"write {_WRITE}")
    if not keys and (version is None or not any(map(_fixes_key, rest))):
        _refuse_without_key(rest)
    exact, (time, right_time) = isinstance(order, (exp.GTE, exp.LTE)), (one.name for one in times)
    limits = [(one, _age(one, time)) for one in rest]
    ages = tuple(age for _, age in limits if age is not None and right_time in ("", age[0]))
    candidates: list[exp.Expr] = []
    decide: list[exp.Expr] = []
    if version is None:  # else the version of the time is the match, if it meets the conditions
        for one, age in limits:
            sides = sides_of(one)
            if "" in sides:
                refuse(
                    f"the condition {as_read(one)} of an as-of join",
                    "write the name of a table before each column",
                )
            if sides == {RIGHT}:
                candidates.append(one)
            elif RIGHT in sides and age not in ages:
                decide.append(one)
    rest = [one for one in rest if one not in candidates + decide]
    return AsOf(
        left,
        right,
        names,
        how,
        tuple(keys),
        time,
        right_time,
        exact,
        conjunction([without_side(one) for one in candidates]),
        conjunction(decide),
        conjunction(rest),
        ages,
    )


def _order(conditions: list[exp.Expr]) -> exp.Expr | None:
    """Return the order of two times, the one comparison of a column with one of the other side."""
    compared = [one for one in conditions if isinstance(one, _ORDERS)]
    of_columns = [
        one
        for one in compared
        if isinstance(one.this, exp.Column)
        and isinstance(one.expression, exp.Column)
        and {one.this.table, one.expression.table} == {LEFT, RIGHT}
    ]
    if len(of_columns) > 1:
        refuse(
            f"an as-of join by {' and '.join(map(as_read, of_columns))}, one of which orders the times,",
            "say which: MATCH_CONDITION (L.ts >= R.ts) ON L.k = R.k AND ...",
        )
    return next(iter([*of_columns, *(one for one in compared if len(sides_of(one)) > 1)]), None)


def _fixes_key(condition: exp.Expr) -> bool:
    """Return whether a condition is ``R.k = 1``, which is the key of a lookup join."""
    return isinstance(condition, exp.EQ) and sides_of(condition) == {RIGHT}


def _refuse_without_key(conditions: list[exp.Expr]) -> None:
    for one in conditions:
        parts = [part.unnest() for part in one.flatten()] if isinstance(one, exp.Or) else []
        if any(equal_pair(part) for part in parts):
            refuse(
                f"{as_read(one)} as the key of an as-of join",
                "join by one key after the other, and take the newer match: make a view of L LEFT ASOF JOIN "
                "R ON L.a = R.a, join that with R by the other key, and compare the times of both matches",
            )
    refuse("an as-of join without a key", "write ON L.k = R.k")


def _age(condition: exp.Expr, time: str) -> tuple[str, int] | None:
    """Return a column of the right side, and how many ms at most it is behind the left time.

    None for any condition that does not say so in one of the usual forms: ``L.ts - R.ts <= x``, ``L.ts <=
    R.ts + x``, ``R.ts >= L.ts - x`` and ``TIMESTAMPDIFF(unit, R.ts, L.ts) <= n``.
    """
    if not isinstance(condition, _ORDERS):
        return None
    small, large = condition.this.unnest(), condition.expression.unnest()
    if isinstance(condition, (exp.GTE, exp.GT)):
        small, large = large, small
    if isinstance(small, exp.TimestampDiff):
        unit = small.args.get("unit")
        length = _LENGTHS.get("" if unit is None else unit.name.upper())
        if length is None or not isinstance(large, exp.Literal) or not large.is_int:
            return None
        age, left, right = (int(large.name) + 1) * length, small.this, small.expression
    else:
        if isinstance(large, exp.Add):  # L.ts <= R.ts + x, or x + R.ts
            parts = [large.left.unnest(), large.right.unnest()]
            parts.sort(key=lambda one: not isinstance(one, exp.Column))
            left, (right, distance) = small, parts
        elif isinstance(small, exp.Sub) and isinstance(large, exp.Column):  # L.ts - x <= R.ts
            left, distance, right = small.left.unnest(), small.right.unnest(), large
        elif isinstance(small, exp.Sub):  # L.ts - R.ts <= x
            left, right, distance = small.left.unnest(), small.right.unnest(), large
        else:
            return None
        found = length_ms(distance)
        if found is None:
            return None
        age = found
    of_left = isinstance(left, exp.Column) and (left.table, left.name) == (LEFT, time)
    if not of_left or not isinstance(right, exp.Column) or right.table != RIGHT:
        return None
    return right.name, max(age, 0)
