"""Errors of functions, as users see them in Spark's own: what they were called for, and their frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import StackSummary, TracebackException

import pyspark

import timerheap

_NOTE = "timerheap: "
_NOT_THE_USERS = tuple(str(Path(str(module.__file__)).parent) for module in (pyspark, timerheap))
_COMPILED = "timerheap/_native/"  # the sources of the compiled module, which are not where it is


@contextmanager
def reported() -> Iterator[None]:
    """Raise an error of a function again: its message, what it was called for, and the user's frames alone.

    Spark surrounds the text with frames and plans of its own, so that the message comes first and last in it.

    An error without a frame or a note of a user's function is not changed.
    """
    try:
        yield
    except Exception as e:
        found = TracebackException.from_exception(e)
        found.stack = StackSummary.from_list([frame for frame in found.stack if _is_users(frame.filename)])
        notes = found.__notes__ or []
        where = [note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)]
        found.__notes__ = [note for note in notes if not note.startswith(_NOTE)]
        if not where and not found.stack:
            raise
        where = where or [f"in {found.stack[0].name}"]
        message = "".join(found.format_exception_only()).rstrip()
        raise RuntimeError("\n".join([message, *where, "".join(found.format()).rstrip()])) from None


def _is_users(filename: str) -> bool:
    return not filename.startswith((*_NOT_THE_USERS, _COMPILED))
