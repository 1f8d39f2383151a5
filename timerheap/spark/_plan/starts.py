"""What the operators of a query start from, which the caller of a feature may say by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from pyspark.sql import GroupedData

from timerheap.errors import ArgumentValueError
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.work import Rehearsal


class Start(Protocol):
    """State that a query starts from, which has been checked."""

    def group(self, query: Query) -> KeyGroup | None:
        """Return a key group with its states, but no contents, for a rehearsal; None if it has none."""

    def partitions(
        self, query: Query, letters: Mail, rehearsal: Rehearsal, group: KeyGroup | None
    ) -> GroupedData:
        """Return what each partition starts with, grouped as the packed rows of the query are.

        group: what the method of that name has returned, with the states of the query after a rehearsal
        """


StartOf = Callable[[str], Start | None]
_start_of: ContextVar[StartOf | None] = ContextVar("timerheap_start_of", default=None)


@contextmanager
def starting_from(start_of: StartOf) -> Iterator[None]:
    """Have operators of streams, made meanwhile, start from what `start_of` returns for their names."""
    outer = _start_of.get()

    def of_both(name: str) -> Start | None:
        start = start_of(name)
        return start if outer is None else _one_of(name, outer(name), start)

    token = _start_of.set(of_both)
    try:
        yield
    finally:
        _start_of.reset(token)


def start_of_operator(name: str, start: Start | None) -> Start | None:
    """Return what the operator of a name starts from, None for nothing.

    start: what the user has passed; raises ArgumentValueError if there is something else
    """
    start_of = _start_of.get()
    return _one_of(name, None if start_of is None else start_of(name), start)


def _one_of(name: str, named: Start | None, start: Start | None) -> Start | None:
    if named is not None and start is not None:
        raise ArgumentValueError(
            f"initial_state must be None for operator {name!r}, which has state already, by start_from(), or "
            f"in the checkpoint by continue_from(); leave it out, or pass forget=[{name!r}] to the latter"
        )
    return start if named is None else named
