"""What an operator of a query is called: in metrics, in the checkpoint, and where its state is continued."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from pyspark.sql import DataFrame

from timerheap._arguments import instance
from timerheap.errors import ArgumentValueError
from timerheap.spark._compat import analyzed_plan
from timerheap.spark._query import DEFAULT_NAME, is_default_name

_LONGEST = 200  # characters


@dataclass
class _Call:
    """A call that makes several operators: the name that it has for them, and how many it has made."""

    name: str
    made: int = 0

    def next_name(self) -> str:
        self.made += 1
        return self.name if self.made == 1 else f"{self.name}_{self.made}"


_call: ContextVar[_Call | None] = ContextVar("timerheap_operator_names", default=None)


def checked_name(name: object) -> str | None:
    """Return the argument `name` of an operator, checked."""
    if name is None:
        return None
    text: str = instance("name", name, str)
    if not text or len(text) > _LONGEST or not text.isprintable() or is_default_name(text):
        raise ArgumentValueError(
            f"name must be printable, of 1 to {_LONGEST} characters; it must not be one that operators "
            f"without a name have, such as {DEFAULT_NAME!r}, got {name!r}"
        )
    return text


@contextmanager
def named_after(name: str | None) -> Iterator[None]:
    """Call the operators that are made meanwhile `name`, `name_2` and so on, unless that is None."""
    # They are counted, since some stand side by side, so that none can see the other in its input.
    token = _call.set(_call.get() if name is None else _Call(name))
    try:
        yield
    finally:
        _call.reset(token)


def operator_name(df: DataFrame, name: str | None) -> str:
    """Return the name of a stateful operator whose input is `df`, given that of the user.

    Raises ArgumentValueError if an operator before it has that name.
    """
    taken = set(re.findall(r"CollectMetrics ([^\n]+?), \[", analyzed_plan(df)))
    call = _call.get()
    if name is None and call is not None:
        name = call.next_name()
    if name is not None:
        if name in taken:
            raise ArgumentValueError(
                f"name must differ from the names of the operators before this one, got {name!r}; they have "
                f"{sorted(taken)}"
            )
        return name
    numbers = [int(each.rpartition("_")[2]) if "_" in each else 1 for each in taken if is_default_name(each)]
    return f"{DEFAULT_NAME}_{max(numbers) + 1}" if numbers else DEFAULT_NAME
