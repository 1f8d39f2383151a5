"""PyFlink's ``Row``: what a function may yield, and what it may keep in state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from timerheap.errors import ArgumentTypeError, ArgumentValueError


class Row:
    """A row with or without field names (``pyflink.common.Row``).

    Without names, the values stand for columns by position. With names, they stand for the columns of these
    names; names given as keywords are sorted, as in PyFlink. The rows that a function receives are
    ``pyspark.sql.Row`` objects, which are read in the same way.

    Examples
    --------
    >>> row = Row("N14228", 5)
    >>> row[0], len(row), list(row)
    ('N14228', 2, ['N14228', 5])
    >>> flight = Row(plane="N14228", delay=5)
    >>> flight, flight.delay, flight["plane"]
    (Row(delay=5, plane='N14228'), 5, 'N14228')
    >>> Flight = Row("plane", "delay")
    >>> Flight("N14228", 5)
    Row(plane='N14228', delay=5)
    """

    __slots__ = ("_fields", "_values")
    _fields: list[str] | None
    _values: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ArgumentValueError("Row must have either values or keywords, got both")
        names = sorted(kwargs)
        object.__setattr__(self, "_fields", names if kwargs else None)
        object.__setattr__(self, "_values", [kwargs[name] for name in names] if kwargs else list(args))

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the fields as a dict; `recursive` converts rows inside it, too."""
        if self._fields is None:
            raise ArgumentTypeError(f"the row must have field names to become a dict, got {self!r}")
        values = map(_as_dict, self._values) if recursive else iter(self._values)
        return dict(zip(self._fields, values, strict=True))

    def has_field_names(self) -> bool:
        """Return whether the row has field names."""
        return self._fields is not None

    def set_field_names(self, field_names: Sequence[str]) -> None:
        """Set the names of the fields."""
        if len(field_names) != len(self._values):
            raise ArgumentValueError(
                f"field_names must have {len(self._values)} names, got {list(field_names)!r}"
            )
        object.__setattr__(self, "_fields", list(field_names))

    def get_fields_by_names(self, names: Sequence[str]) -> list[Any]:
        """Return the values in the order of `names`; without field names, as they are.

        Raises
        ------
        ArgumentValueError
            If the row has other fields.
        """
        fields = self._fields
        if fields is None or fields == list(names):
            return self._values
        if sorted(fields) != sorted(names):
            raise ArgumentValueError(f"the row must have the fields {list(names)}, got {fields}")
        return [self._values[fields.index(name)] for name in names]

    def __call__(self, *values: Any) -> Row:
        """Return a row of `values`, whose field names are the values of this one."""
        if len(values) != len(self._values):
            raise ArgumentValueError(
                f"a row of {self!r} must have {len(self._values)} values, got {values!r}"
            )
        row = Row(*values)
        row.set_field_names(self._values)
        return row

    def __getitem__(self, item: Any) -> Any:
        return self._values[item if isinstance(item, int | slice) else self._index(item, KeyError)]

    def __setitem__(self, item: Any, value: Any) -> None:
        self._values[item if isinstance(item, int | slice) else self._index(item, KeyError)] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._values[self._index(name, AttributeError)]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a field must be set as row[{name!r}] = value, got row.{name} = {value!r}")

    def _index(self, name: object, error: type[Exception]) -> int:
        if self._fields is None or name not in self._fields:
            raise error(f"field must be one of {self._fields}, got {name!r}")
        return self._fields.index(name)

    def __contains__(self, item: object) -> bool:
        return item in self._values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and (self._fields, self._values) == (other._fields, other._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{k}={v!r}' for k, v in zip(self._fields, self._values, strict=True))})"

    def __reduce__(self) -> Any:
        return _row_of, (self._fields, self._values)


def _row_of(fields: list[str] | None, values: list[Any]) -> Row:
    row = Row(*values)
    if fields is not None:
        row.set_field_names(fields)
    return row


def _as_dict(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(True)
    if isinstance(value, list):
        return [_as_dict(each) for each in value]
    if isinstance(value, dict):
        return {key: _as_dict(each) for key, each in value.items()}
    return value
