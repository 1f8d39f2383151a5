"""As-of joins of many random cases at a time: the rows of a case have it in their key; and a plain model."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(microseconds=250)
DELAY = 5  # ms
TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("case", pa.int64()), ("k", pa.string()), ("at", TIME), ("n", pa.int64())])
RIGHT = pa.schema(
    [
        ("case", pa.int64()),
        ("k", pa.string()),
        ("at", TIME),
        ("price", pa.float64()),
        ("note", pa.string()),
        ("gone", pa.bool_()),
    ]
)
END = (1 << 63) - 1


@dataclass(frozen=True)
class Options:
    """Arguments of `join_asof`."""

    how: str = "left"
    tolerance: int | None = None
    exact: bool = True
    deleted: bool = False

    def arguments(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "tolerance": self.tolerance,
            "allow_exact_matches": self.exact,
            "deleted": "gone" if self.deleted else None,
        }


OPTIONS = {
    "left": Options(),
    "inner, tolerance": Options(how="inner", tolerance=8),
    "earlier, deletes": Options(exact=False, deleted=True),
    "tolerance 0, deletes": Options(tolerance=0, deleted=True),
}


@dataclass
class Outputs:
    """What a join has to emit: results, rows without a match, and late rows."""

    results: list[Row] = field(default_factory=list)
    left: list[Row] = field(default_factory=list)
    right: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)


def cases(seed: int, count: int) -> tuple[list[Row], list[Row]]:
    """The left and right rows of some cases, in an order that is nearly that of their times."""
    rng, numbers = random.Random(seed), iter(range(1 << 30))
    left, right = list[Row](), list[Row]()
    for case in range(count):
        keys = rng.choice([["a"], ["a", None], ["a", "b", None]])
        span = rng.choice([4, 40, 400])
        first = rng.randrange(400 - span + 1)
        sizes = [rng.choice([0, 1, 3, 12]) for _ in "lr"]
        for rows, size in zip((left, right), sizes, strict=True):
            for _ in range(size):
                at = START + STEP * (first + rng.randrange(span))
                row = {"case": case, "k": rng.choice(keys), "at": at}
                if rows is left:
                    rows.append(row | {"n": next(numbers)})
                else:
                    note = rng.choice([None, "x", "y"])
                    price = rng.choice([None, 1.0, 2.0, 3.5])
                    rows.append(row | {"price": price, "note": note, "gone": rng.random() < 0.2})
    noise = timedelta(milliseconds=4 * DELAY)  # so that some rows are late
    for rows in (left, right):
        rows.sort(key=lambda row: row["at"] + noise * rng.random())
    return left, right


def millis(row: Row) -> int:
    return (row["at"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def place(row: Row) -> tuple[Any, ...]:
    """The order of the right rows of a key."""
    others = [row[name] for name in RIGHT.names]
    return row["at"], *((value is None, value) for value in others)


def joined(left: Sequence[Row], right: Sequence[Row], options: Options, watermark: int = END) -> Outputs:
    """Join rows one by one; none is late."""
    outputs, versions, used = Outputs(), defaultdict[Any, list[Row]](list), set[int]()
    for row in sorted(right, key=place):
        if millis(row) <= watermark:
            versions[row["case"], row["k"]].append(row)
    for row in left:
        if millis(row) > watermark:
            continue
        before = [
            version
            for version in versions.get((row["case"], row["k"]), [])
            if version["at"] < row["at"] or (options.exact and version["at"] == row["at"])
        ]
        found = before[-1] if before else None
        if found is not None and options.deleted and found["gone"]:
            found = None
        if found is not None and options.tolerance is not None:
            found = found if row["at"] - found["at"] <= timedelta(milliseconds=options.tolerance) else None
        if found is None:
            outputs.left.append(row)
        else:
            used.add(id(found))
        if found is not None or options.how == "left":
            found = found or {}
            names = {name: f"{name}_right" if name == "at" else name for name in RIGHT.names[2:]}
            outputs.results.append(row | {new: found.get(old) for old, new in names.items()})
    for rows in versions.values():
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            old = options.tolerance is not None and millis(row) + options.tolerance <= watermark
            if id(row) not in used and not (options.deleted and row["gone"]):
                outputs.right += [row] if after or old or watermark == END else []
    return outputs


def watermarks(batches: Iterable[tuple[list[Row], list[Row]]]) -> Iterator[int]:
    """The watermark after each micro-batch: the lower one of both inputs."""
    newest, watermark = [-END, -END], -END
    for batch in batches:
        for number, rows in enumerate(batch):
            newest[number] = max([newest[number], *(millis(row) - DELAY - 1 for row in rows)])
        watermark = max(watermark, min(newest))
        yield watermark


def replayed(lefts: Iterable[list[Row]], rights: Iterable[list[Row]], options: Options) -> Outputs:
    """Join rows that come in micro-batches."""
    batches, watermark = [*zip(lefts, rights, strict=True)], -END
    taken: tuple[list[Row], list[Row]] = [], []
    late = list[Row]()
    for batch, after in zip(batches, watermarks(batches), strict=True):
        for number, rows in enumerate(batch):
            taken[number].extend(row for row in rows if millis(row) > watermark)
            late += [row for row in rows if millis(row) <= watermark]
        watermark = after
    outputs = joined(*taken, options, watermark)
    outputs.late = late
    return outputs


def split(rows: list[Row], batches: int) -> list[list[Row]]:
    """The rows in so many micro-batches."""
    size = -(-len(rows) // batches)
    return [rows[start * size : (start + 1) * size] for start in range(batches)]


def values(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


def expect(outputs: Outputs, found: list[Row]) -> None:
    """Compare rows of `with_side_outputs`."""
    results, late, unmatched = list[Row](), list[Row](), list[Row]()
    for row in found:
        side = row.pop("side_output")
        if side is None:
            results.append(row)
        elif side["late_rows"] is not None:
            assert side["late_rows"].pop("late_by") > 0
            late.append(side["late_rows"])
        else:
            unmatched.append(side["unmatched_rows"])
    assert values(results) == values(outputs.results)
    both = [(name, row[name]) for row in unmatched for name in ("left", "right") if row[name]]
    assert len(both) == len(unmatched)
    assert values(row for name, row in both if name == "left") == values(outputs.left)
    assert values(row for name, row in both if name == "right") == values(outputs.right)
    assert values(row["left"] or row["right"] for row in late) == values(outputs.late)
