"""The key of a sink beside the keys that a result guarantees.

On a result its plan says which keys are unique, before the query starts. In ``foreachBatch`` the plan is
lost, and rows are counted: those of one micro-batch by `upserts_of`, those in the table by its writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._changes.guarantees import unique_keys
from timerheap.spark._plan.named_columns import data_frame, key_columns
from timerheap.spark._sinks.upserts_of import checked_changes


class SinkKey(NamedTuple):
    """The key columns of a table, and whether no two rows of the result ever have the same key."""

    names: list[str]
    is_sure: bool


def sink_key(key: str | Sequence[str] | None, of: DataFrame | None, trust_key: bool) -> SinkKey:
    """Return the key of a sink, found in or compared with those of the result `of`.

    Raises
    ------
    ArgumentError
        If there is no key, or the result does not guarantee it.
    """
    if not isinstance(trust_key, bool):
        raise ArgumentTypeError(f"trust_key must be a bool, got {trust_key!r}")
    if of is None:
        if key is None:
            raise ArgumentTypeError(
                "key must name the key columns, got None; pass it, or the result as `of`, which may know it"
            )
        return SinkKey(_names_of_key(key), trust_key)
    checked_changes("of", data_frame("of", of))
    known = unique_keys(of)
    if key is None:
        if not known:
            raise ArgumentTypeError(
                "key must name the key columns, got None, and the result has no key that is known; pass it"
            )
        return SinkKey(list(known[0]), True)
    names = key_columns(of, "key", key)
    if trust_key or not known:
        return SinkKey(names, trust_key)
    if not any(set(one) <= set(names) for one in known):
        raise ArgumentValueError(
            f"key must contain a key of the result, got {names}, by which it may have several rows; its keys "
            f"are {[list(one) for one in known]}"
        )
    return SinkKey(names, True)


def _names_of_key(key: str | Sequence[str]) -> list[str]:
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"key must be a column name or a list of column names, got {key!r}")
    return names
