"""The text of an error of a user's function: its message, what it was called for, the user's frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import StackSummary, TracebackException

import pyspark

import timerheap
from timerheap.errors import FunctionError

_NOTE = "timerheap: "
_NOT_THE_USERS = tuple(str(Path(str(module.__file__)).parent) for module in (pyspark, timerheap))
_COMPILED = "timerheap/_native/"  # the sources of the compiled module, which are not where it is


def add_call(error: BaseException, where: str) -> None:
    """Note what a user's code was called for when it has raised an error: `where` begins with "in"."""
    error.add_note(f"{_NOTE}{where}")


def parts_of_error(error: BaseException) -> tuple[str, list[str], str]:
    """Return what an error says, what the user's code was called for, and the trace of the user's frames."""
    found = TracebackException.from_exception(error)
    others = (*_NOT_THE_USERS, _COMPILED)
    users = [frame for frame in found.stack if not frame.filename.startswith(others)]
    found.stack = StackSummary.from_list(users)
    notes = found.__notes__ or []
    where = [note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)]
    found.__notes__ = [note for note in notes if not note.startswith(_NOTE)]
    if not where and found.stack:
        where = [f"in {found.stack[0].name}"]
    message = "".join(found.format_exception_only()).rstrip()
    return message, where, "".join(found.format()).rstrip()


@contextmanager
def reported_errors() -> Iterator[None]:
    """Raise an error of a function again: its message, what it was called for, and only the user's frames."""
    # Spark surrounds the text with frames and plans of its own, so that the message comes first and last in
    # it. An error without a frame or a note of a user's function is not changed.
    try:
        yield
    except Exception as e:
        message, where, trace = parts_of_error(e)
        if not where:
            raise
        raise FunctionError("\n".join([message, *where, trace])) from None
