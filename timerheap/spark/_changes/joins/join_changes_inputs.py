"""The two inputs of a join of changes: the columns that carry the rows of both, and those of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._changes.changes_inputs import ChangesInput, expect_kept_types
from timerheap.spark._changes.guarantees import unique_keys
from timerheap.spark._columns import INPUT, KEY, WEIGHT, computed_name
from timerheap.spark._compat import nullable
from timerheap.spark._plan.inputs import RightInput
from timerheap.spark._plan.named_columns import quoted, ungrouped

UniqueKeys = list[tuple[str, ...]]


@dataclass(frozen=True)
class JoinInputs:
    """Two inputs of changes, which have been checked.

    carriers: for each side, the columns that carry those of the user, by their names; both have the key in
        the same columns
    names: for each side, the columns of the result by those of the user
    unique: for each side, the keys that its rows are known to have, by names of the result
    """

    one: ChangesInput
    two: ChangesInput
    carriers: tuple[dict[str, str], dict[str, str]]
    names: tuple[dict[str, str], dict[str, str]]
    unique: tuple[UniqueKeys, UniqueKeys]

    @classmethod
    def checked(cls, left: Any, right: Any, key: Any, suffix: object) -> JoinInputs:
        other = right if isinstance(right, RightInput) else RightInput(right)
        for name in ("event_time", "watermark"):
            if getattr(other, name) is not None:
                raise ArgumentTypeError(
                    f"right.{name} must be left out, since changes have no event time, got "
                    f"{getattr(other, name)!r}"
                )
        left_rows, left_by = ungrouped("left", left, "key", key)
        right_rows, right_by = ungrouped("right", other.rows, "right.key", other.key)
        one = ChangesInput.of("left", left_rows, left_by)
        two = ChangesInput.of("right", right_rows, left_by if right_by is None else right_by, prefix="right.")
        one.expect_to_match(two)
        for side in (one, two):
            expect_kept_types(side.name, (field for field in side.rows if field.name not in side.key))
        carriers = []
        for number, side in enumerate((one, two)):
            found = {name: f"{KEY}{at}" for at, name in enumerate(side.key)}
            for at, name in enumerate(side.rows.names):
                found.setdefault(name, computed_name(at, f"{('left', 'right')[number]}.{name}"))
            carriers.append(found)
        names = _result_names(one, two, suffix)
        unique = [
            [tuple(of_side[name] for name in each) for each in unique_keys(rows)]
            for rows, of_side in zip((left_rows, right_rows), names, strict=True)
        ]
        return cls(one, two, (carriers[0], carriers[1]), names, (unique[0], unique[1]))

    @property
    def sides(self) -> tuple[ChangesInput, ChangesInput]:
        return self.one, self.two

    @property
    def shared(self) -> set[str]:
        """The key columns that have one name on both sides, and so are one column of the result."""
        return shared_key(self.one, self.two)

    @property
    def rows(self) -> T.StructType:
        """The type of the rows of both sides."""
        found = T.StructType(
            [T.StructField(f"{KEY}{at}", type_) for at, type_ in enumerate(self._key_types())]
        )
        found.add(INPUT, T.ByteType())
        for side, carriers in zip(self.sides, self.carriers, strict=True):
            for name in self._kept(side):
                found.add(carriers[name], side.df.schema[name].dataType)
        return found.add(WEIGHT, T.ByteType())

    def fields(self, side: int) -> dict[str, str]:
        """Return the columns that carry the rows of a side without their key, by their names."""
        return {name: self.carriers[side][name] for name in self._kept(self.sides[side])}

    def columns(self, side: int) -> dict[str, T.DataType]:
        """Return the columns of the result that are of a side, with their types."""
        rows, names = self.sides[side].rows, self.names[side]
        return {names[field.name]: field.dataType for field in rows}

    def places(self, both: bool) -> list[tuple[int | None, str, str]]:
        """Return for each column of the result its side, its field or key column there, and its name.

        both: whether the result has the columns of the right side
        """
        found: list[tuple[int | None, str, str]] = []
        for number, side in enumerate(self.sides[: 1 + both]):
            for name in side.rows.names:
                is_shared = name in self.shared
                if not (number and is_shared):
                    place = self.carriers[number][name] if name in side.key else name
                    found.append((None if is_shared else number, place, self.names[number][name]))
        return found

    def result(self, both: bool) -> T.StructType:
        """Return the type of the result, without the change type."""
        types = self.columns(1) | self.columns(0)
        return nullable(T.StructType([T.StructField(name, types[name]) for *_, name in self.places(both)]))

    def united(self) -> DataFrame:
        """Return the rows of both sides."""
        return self._carried(0).unionAll(self._carried(1))

    def _carried(self, number: int) -> DataFrame:
        side, carriers = self.sides[number], self.carriers[number]
        names = {carrier: name for name, carrier in carriers.items()} | {WEIGHT: WEIGHT}
        columns = []
        for field in self.rows:
            if field.name == INPUT:
                column = F.lit(number).cast(field.dataType)
            elif field.name in names:
                column = quoted(names[field.name]).cast(field.dataType)
            else:
                column = F.lit(None).cast(field.dataType)
            columns.append(column.alias(field.name))
        return side.df.select(*columns)

    def _key_types(self) -> list[T.DataType]:
        return [self.one.df.schema[name].dataType for name in self.one.key]

    @staticmethod
    def _kept(side: ChangesInput) -> list[str]:
        return [name for name in side.rows.names if name not in side.key]


def shared_key(one: ChangesInput, two: ChangesInput) -> set[str]:
    """Return the key columns that have one name on both sides."""
    return {a for a, b in zip(one.key, two.key, strict=True) if a == b}


def _result_names(
    one: ChangesInput, two: ChangesInput, suffix: object
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names that the columns of both sides have in the result; raise if two have one name."""
    if not isinstance(suffix, str):
        raise ArgumentTypeError(f"suffix must be a str, got {suffix!r}")
    shared = shared_key(one, two)
    taken = set(map(str.lower, one.rows.names))
    of_right = {
        name: name + suffix if name.lower() in taken and name not in shared else name
        for name in two.rows.names
    }
    names = [*one.rows.names, *(name for old, name in of_right.items() if old not in shared)]
    twice = _first_repeated(names)
    if twice is not None:
        raise ArgumentValueError(
            f"suffix must make the names of the result different, got {suffix!r}, and {twice!r} twice; pass "
            "a different one"
        )
    return {name: name for name in one.rows.names}, of_right


def _first_repeated(names: Sequence[str]) -> str | None:
    lower = [name.lower() for name in names]
    return next((name for at, name in enumerate(names) if lower[at] in lower[:at]), None)
