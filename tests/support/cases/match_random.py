"""Random queries with MATCH_RECOGNIZE, and what the standard says that they find."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from match_model import Condition, Model, Taken, random_term, text_of
from match_stream import MatchStream

from timerheap.spark._patterns import MatchPlan, Measure, compiled

NAMES = "ABC"
TIMED_OUT = "__timerheap_timed_out"  # in the rows of the function
INT = pa.int64()


def value_of(rows: list[int], values: list[Any], kind: str) -> Any:
    """Return an aggregate."""
    some = [values[row] for row in rows if values[row] is not None]
    if kind == "count":
        return len(some)
    if not some:
        return None
    return {"sum": sum, "min": min, "max": max, "avg": lambda all_: sum(all_) / len(all_)}[kind](some)


def navigated(rows: list[int], values: list[Any], kind: str, offset: int) -> Any:
    """Return the value of FIRST or LAST."""
    at = offset if kind == "first" else len(rows) - 1 - offset
    return values[rows[at]] if 0 <= at < len(rows) else None


def greater(x: Any, y: Any) -> bool | None:
    return None if x is None or y is None else x >= y


class Case:
    """One random pattern with conditions and measures, and rows of three keys."""

    def __init__(self, rng: random.Random, stream: bool = False) -> None:
        self.term = random_term(rng, NAMES)
        self.pattern = compiled(text_of(self.term))
        variables = [name.upper() for name in self.pattern.variables]
        n = rng.randint(1, 24)
        self.rows = sorted((rng.randrange(16), rng.randrange(3)) for _ in range(n))
        self.values = [rng.choice([None, 1, 2, 3, 4]) for _ in self.rows]
        self.can = {name: [rng.random() < 0.75 for _ in self.rows] for name in NAMES}
        self.within = rng.choice([None, 4, 8] if not stream else [4, 8])
        self.mode = rng.choice(["past last row", "past last row", "to next row", "to last", "to first"])
        self.target = rng.choice(variables)
        self.all_rows, self.shows_empty = rng.random() < 0.5, rng.random() < 0.5
        if stream:  # ONE ROW PER MATCH has no OMIT EMPTY MATCHES
            self.shows_empty |= not self.all_rows
        self.kinds = {
            name: rng.choice(["can", "can", "prev", "next", "nav", "class", "agg", "none"])
            for name in variables
        }
        self.other = {name: rng.choice(variables) for name in variables}
        self.numbers = {name: at for at, name in enumerate(variables)}
        self.columns = [("v", rng.choice([0, 0, 1, 2, -1])) for _ in range(2)]
        backs = [back for _, back in self.columns]
        self.ahead = max(0, *(-back for back in backs), *(kind == "next" for kind in self.kinds.values()))
        self.lead_within = rng.choice([None, 0, 2, 5] if not stream else [0, 2, 5])
        self.timed_out = self.within is not None and rng.random() < 0.5
        self.final = [rng.random() < 0.3 for _ in range(8)]
        before = max(*backs, *(kind == "prev" for kind in self.kinds.values()))
        self.lag_within = rng.choice([None, None, 0, 2, 5]) if before > 0 else None

    def clause(self) -> str:
        """Return the clauses in SQL, of rows that have a number in n."""
        first, conditions = self.pattern.variables[0], {
            "can": "", "prev": "AND v >= PREV(v)", "next": "AND v >= NEXT(v)",
            "nav": "AND v >= LAST({0}.v, 1)", "agg": "AND v >= AVG({0}.v)",
            "class": "AND LAST(CLASSIFIER(), 1) <> CLASSIFIER()",
        }  # fmt: skip
        defined = [
            f"{name} AS can_{name} {conditions[kind].format(self.other[name])}"
            for name, kind in self.kinds.items()
            if kind != "none"
        ]
        final = ["FINAL " if one else "" for one in self.final]
        near = [
            f"{'NEXT' if back < 0 else 'PREV'}({{}}, {abs(back)})" if back else "{}"
            for _, back in self.columns
        ]
        measures = [
            "MATCH_NUMBER() AS number",
            "CLASSIFIER() AS label",
            f"{final[0]}COUNT(*) AS count",
            *(
                f"{final[at]}{kind}({first}.v) AS {kind}"
                for at, kind in enumerate(("sum", "min", "max", "avg"), 1)
            ),
            f"{near[0].format(f'{final[5]}FIRST({first}.v, 1)')} AS first",
            f"{near[1].format(f'{final[6]}LAST(v, 1)')} AS last",
            f"{final[7]}FIRST(CLASSIFIER({first})) AS `of 0`",
        ]
        rows = "ALL ROWS PER MATCH" if self.all_rows else "ONE ROW PER MATCH"
        empty = f" {'SHOW' if self.shows_empty else 'OMIT'} EMPTY MATCHES" if self.all_rows else ""
        skip = self.mode + (f" {self.target}" if self.mode in ("to first", "to last") else "")
        define = f"DEFINE {', '.join(defined)}" if defined else ""
        return f"""PARTITION BY k ORDER BY ts, n MEASURES {", ".join(measures)} {rows}{empty}
            AFTER MATCH SKIP {skip.upper()} PATTERN ({text_of(self.term)})
            WITHIN INTERVAL '{self.within}' SECOND {define}"""

    def group(self, name: str) -> frozenset[int]:
        return frozenset([self.numbers[self.other[name]]])

    def plan(self) -> MatchPlan:
        terms: list[Any] = []
        named = tuple(enumerate(self.pattern.variables))
        for name, kind in self.kinds.items():
            can, v = ("row", f"can {name}", 0), ("row", "v", 0)
            terms.append({
                "none": None,
                "can": can,
                "prev": ("and", can, ("ge", v, ("row", "v", 1))),
                "next": ("and", can, ("ge", v, ("row", "v", -1))),
                "nav": ("and", can, ("ge", v, ("nav", self.group(name), "last", 1, "v", 0))),
                "class": ("and", can, ("ne", ("class", named, "last", 1), ("class", named, "last", 0))),
                "agg": ("and", can, ("ge", v, ("agg", self.group(name), "avg", "v"))),
            }[kind])  # fmt: skip
        measures = [
            Measure("number", INT, "number"),
            Measure("label", pa.string(), "classifier last"),
            *(
                Measure(kind, INT if kind != "avg" else pa.float64(), kind, group, 0, column, final)
                for kind, group, column, final in zip(
                    ("count", "sum", "min", "max", "avg"),
                    (None, *([frozenset([0])] * 4)),
                    [None, *([("v", 0)] * 4)],
                    self.final,
                    strict=False,
                )
            ),
            Measure("first", INT, "first", frozenset([0]), 1, self.columns[0], self.final[5]),
            Measure("last", INT, "last", None, 1, self.columns[1], self.final[6]),
            Measure("of 0", pa.string(), "classifier first", frozenset([0]), 0, None, self.final[7]),
        ]
        return MatchPlan(
            self.pattern, tuple(terms), self.within, self.mode, frozenset([self.numbers[self.target]]),
            tuple(measures), ["k"], ["t", "v"] if self.all_rows else [],
            pa.schema([("v", INT), ("t", INT), *((f"can {name}", pa.bool_()) for name in NAMES)]),
            self.all_rows, self.shows_empty, 7, self.ahead, self.lead_within, self.timed_out,
            lag_within=self.lag_within,
        )  # fmt: skip

    def before(self, rows: list[int], at: int, back: int) -> Any:
        """Return the value of PREV."""
        if at < back:
            return None
        distance = self.rows[rows[at]][0] - self.rows[rows[at - back]][0]
        near = self.lag_within is None or not back or distance <= self.lag_within
        return self.values[rows[at - back]] if near else None

    def ahead_of(self, rows: list[int], at: int) -> Any:
        """Return the value of NEXT."""
        if at + 1 >= len(rows):
            return None
        distance = self.rows[rows[at + 1]][0] - self.rows[rows[at]][0]
        near = self.lead_within is None or distance <= self.lead_within
        return self.values[rows[at + 1]] if near else None

    def at(self, rows: list[int], found: list[int], kind: str, column: tuple[str, int]) -> Any:
        """Return a measure of the second of the first or the last rows."""
        row = navigated(found, [*range(len(rows))], kind, 1)
        if row is None:
            return None
        return self.before(rows, row, column[1]) if column[1] >= 0 else self.ahead_of(rows, row)

    def condition(self, name: str, rows: list[int]) -> Condition:
        kind, other = self.kinds[name], self.other[name]
        values = [self.values[row] for row in rows]

        def met(taken: Taken) -> bool | None:
            at = taken[-1][0]
            of = [row for row, variable, _ in taken if variable == other]
            if kind != "none" and not self.can[name][rows[at]]:
                return False
            if kind == "prev":
                return greater(values[at], self.before(rows, at, 1))
            if kind == "next":
                return greater(values[at], self.ahead_of(rows, at))
            if kind == "class":
                return None if len(taken) < 2 else taken[-2][1] != taken[-1][1]
            if kind == "nav":
                return greater(values[at], navigated(of, values, "last", 1))
            return greater(values[at], value_of(of, values, "avg")) if kind == "agg" else True

        return met

    def wanted(self) -> list[dict[str, Any]]:
        found = []
        for key in range(3):
            rows = [at for at, (_, one) in enumerate(self.rows) if one == key]
            times = [self.rows[row][0] for row in rows]
            conditions = {name: self.condition(name, rows) for name in self.numbers}
            skip = (self.mode, self.target) if self.mode in ("to first", "to last") else (self.mode,)
            model = Model(conditions, times, self.within, skip)
            for number, (start, taken) in enumerate(model.matches(self.term), 1):
                found += self._shown(key, number, start, taken, rows)
            for start, taken in model.timed_out if self.timed_out else []:
                found += self._shown(key, None, start, taken, rows)
        return found

    def _shown(self, key: int, number: int | None, start: int, taken: Taken, rows: list[int]) -> Any:
        values, first = [self.values[row] for row in rows], next(iter(self.numbers))
        shown = [at for at, one in enumerate(taken) if not one[2]] if self.all_rows else [len(taken) - 1]
        if not taken:
            shown = [-1] if self.shows_empty else []
        for at in shown:
            row: dict[str, Any] = {"k": key}
            if self.all_rows:
                place = taken[at][0] if taken else start
                row |= {"t": self.rows[rows[place]][0], "v": values[place]}
            parts = [taken if final else taken[: at + 1] for final in self.final]
            of = [[one for one, name, _ in part if name == first] for part in parts]
            row |= {"number": number, "label": taken[at][1] if taken else None, "count": len(parts[0])}
            for kind, some in zip(("sum", "min", "max", "avg"), of[1:5], strict=True):
                row[kind] = value_of(some, values, kind)
            row["first"] = self.at(rows, of[5], "first", self.columns[0])
            row["last"] = self.at(rows, [one[0] for one in parts[6]], "last", self.columns[1])
            row["of 0"] = first if of[7] else None
            row |= {TIMED_OUT: number is None} if self.timed_out else {}
            yield row

    def found(self, watermarks: list[int]) -> list[dict[str, Any]]:
        stream, found, last = MatchStream(self.plan()), [], -1
        for watermark in watermarks:
            places = [at for at, (time, _) in enumerate(self.rows) if last < time <= watermark]
            columns = {
                "v": pa.array([self.values[at] for at in places], INT),
                "t": pa.array([self.rows[at][0] for at in places], INT),
                **{
                    f"can {name}": pa.array([can[at] for at in places], pa.bool_())
                    for name, can in self.can.items()
                },
            }
            ids, times = [self.rows[at][1] for at in places], [self.rows[at][0] for at in places]
            found += stream.micro_batch(pa.record_batch(columns), ids, times, watermark)
            last = watermark
        assert not any(state["threads"] for state in stream.kept.values())
        if self.lag_within is not None:
            assert not any(state["rows"] for state in stream.kept.values())
        return sorted(found, key=lambda row: (row["k"], row.get(TIMED_OUT)))
