"""The table that a changelog makes, applied micro-batch by micro-batch, with what must hold of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WEIGHTS = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}

Table = Counter[tuple[Any, ...]]


def apply_changes(
    table: Table, batch: Iterable[Mapping[str, Any]], key: Sequence[str] | None = None, *, nets: bool = True
) -> None:
    """Apply the changes of a micro-batch to a table of rows.

    key: columns of which the table must not have the same values twice, None if it may
    nets: whether no row may both come and go
    """
    change: Table = Counter()
    came, went = set[tuple[Any, ...]](), set[tuple[Any, ...]]()
    columns: list[str] = []
    for row in batch:
        columns = [name for name in row if name != "_change_type"]
        values, weight = tuple(_plain(row[name]) for name in columns), WEIGHTS[row["_change_type"]]
        change[values] += weight
        (came if weight > 0 else went).add(values)
    if nets:
        assert not came & went, f"rows both come and go: {came & went}"
    for values, weight in change.items():
        table[values] += weight
        assert table[values] >= 0, f"a row is taken back that is not there: {values}"
    for values in [values for values, count in table.items() if not count]:
        del table[values]
    if key is not None and columns:
        places = [columns.index(name) for name in key]
        keys = Counter(tuple(values[at] for at in places) for values in table.elements())
        assert all(count == 1 for count in keys.values()), f"keys are there twice: {keys.most_common(3)}"


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The table of rows, without changes."""
    return Counter(tuple(_plain(value) for value in row.values()) for row in rows)


def _plain(value: Any) -> Any:
    """A value that equals itself and can be hashed."""
    if isinstance(value, float):
        return repr(value)  # NaN equals itself, and -0.0 is not 0.0
    if isinstance(value, Mapping):
        return tuple((name, _plain(each)) for name, each in value.items())
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
