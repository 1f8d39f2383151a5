"""Tables whose rows are upserts, which `changes` names: their key, and what makes an upsert newer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._changes.change_rows import is_changelog
from timerheap.spark._changes.changes_inputs import StateOptions
from timerheap.spark._changes.changes_of import changes_of

_EXAMPLE = '{"orders": ("id", "version"), "stock": (["shop", "product"], "version")}'


@dataclass(frozen=True)
class Upserts:
    """What `changes` says of a table.

    sequence: the column that makes an upsert newer, None for the time of its watermark
    """

    key: tuple[str, ...]
    sequence: str | None

    @classmethod
    def of(cls, given: object) -> dict[str, Upserts]:
        """Return what is said of each table."""
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(f"changes must be a dict such as {_EXAMPLE}, got {given!r}")
        return {str(table): cls._of_table(table, one) for table, one in given.items()}

    @classmethod
    def _of_table(cls, table: object, given: Any) -> Upserts:
        pair = isinstance(given, tuple) and len(given) == 2  # a tuple of more names might mean either
        key, sequence = given if pair else (() if isinstance(given, tuple) else given, None)
        key = [key] if isinstance(key, str) else key
        names = [*key, sequence or ""] if isinstance(key, Sequence) else [None]
        if not all(isinstance(name, str) for name in names) or not key:
            raise ArgumentTypeError(
                f"changes must have a key of each table, a name or a list of names, or a tuple of that and a "
                f"sequence, such as {_EXAMPLE}, got {given!r} for {table!r}"
            )
        return cls(tuple(key), sequence)

    def changes(
        self,
        df: DataFrame,
        table: str,
        time: str | None,
        deleted: str | None,
        options: StateOptions,
    ) -> DataFrame:
        """Return the changes that the rows of a table make."""
        sequence = self.sequence or time
        if is_changelog(df):
            raise ArgumentValueError(
                f"changes must name tables of upserts, got {table!r}, which is a changelog; leave it out"
            )
        if sequence is None:
            raise ArgumentValueError(
                f"changes must say what makes an upsert of {table!r} newer, got a key alone, and no "
                f"watermark of the table; write {_EXAMPLE}"
            )
        condition = None if deleted is None else F.expr(deleted)
        return changes_of(df, list(self.key), sequence, deleted=condition, **options)
