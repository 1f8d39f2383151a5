"""What a user says of calls that raise an exception: whether they end the query, and how many of them do."""

from __future__ import annotations

from dataclasses import dataclass

from timerheap._arguments import positive_int
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._worker.errors import add_call, parts_of_error

_LONGEST = 10_000  # characters of an error, and of a trace
_ENOUGH = 1_000  # rows and timers of a task, of which a share says something

RULE = "rule"
"""The field that has the name of a rule, where there are some."""


@dataclass(frozen=True)
class DeadLetters:
    """Which errors of a function go to a side output, and how many of them end the query.

    A row or timer for which the function raises an exception is a dead letter: `dead_letters` returns it with
    its error. Too many of them end the query with the last error, as does any without this.

    Parameters
    ----------
    in_a_row : int, optional, default 1000
        How many rows and timers in a row, of one task in one micro-batch, end the query. None: any number.
    share : float, optional, default 0.5
        Which share of the rows and timers of one task in one micro-batch ends the query when it is exceeded,
        from the 1,000th on. None: any share.

    Examples
    --------
    ::

        timerheap.spark.process(..., errors=DeadLetters(in_a_row=100, share=0.01))
    """

    in_a_row: int | None = 1000
    share: float | None = 0.5

    def __post_init__(self) -> None:
        if self.in_a_row is not None:
            positive_int("in_a_row", self.in_a_row)
        share = self.share
        if share is None:
            return
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ArgumentTypeError(f"share must be a number from 0 to 1 or None, got {share!r}")
        if not 0 <= share <= 1:
            raise ArgumentValueError(f"share must be a number from 0 to 1 or None, got {share!r}")


@dataclass(frozen=True)
class Guard:
    """What becomes of a function's calls that raise: the bound, and the rule that the function is of."""

    bound: DeadLetters
    rule: str | None = None


def guard_of(errors: object) -> Guard | None:
    """Return what the argument `errors` says, None for "raise"."""
    if errors is None or errors == "raise":
        return None
    if errors == "emit":
        return Guard(DeadLetters())
    if isinstance(errors, DeadLetters):
        return Guard(errors)
    wanted = 'errors must be "raise", "emit" or a timerheap.spark.DeadLetters'
    if isinstance(errors, str):
        raise ArgumentValueError(f"{wanted}, got {errors!r}")
    raise ArgumentTypeError(f"{wanted}, got {errors!r}")


class Failures:
    """Counts the rows and timers of a task for which a function has raised an exception."""

    def __init__(self, bound: DeadLetters) -> None:
        self._bound = bound
        self._failed = self._in_a_row = self._returned = 0

    def add(self, error: Exception, call: str, returned: int, n: int = 1) -> None:
        """Count n more; raise the error if there are too many.

        returned: for how many rows and timers the function has returned so far
        """
        if returned != self._returned:
            self._returned, self._in_a_row = returned, 0
        self._in_a_row += n
        self._failed += n
        bound, total = self._bound, self._failed + returned
        if bound.in_a_row is not None and self._in_a_row >= bound.in_a_row:
            add_call(
                error,
                f"in {call}, which has raised an error for {self._in_a_row:,} rows and timers in a row; "
                f"DeadLetters(in_a_row={bound.in_a_row}) ends the query",
            )
            raise error
        if bound.share is not None and total >= _ENOUGH and self._failed > bound.share * total:
            add_call(
                error,
                f"in {call}; the function has raised an error for {self._failed:,} of {total:,} rows and "
                f"timers; DeadLetters(share={bound.share}) ends the query",
            )
            raise error


def letter_texts(error: Exception) -> tuple[str, str]:
    """Return what a dead letter says of its error: the message, and the trace of the user's frames."""
    message, _, trace = parts_of_error(error)
    return _cut(message), _cut(trace)


def _cut(text: str) -> str:
    """Return a text that Arrow takes, and that is not too long."""
    return text[:_LONGEST].encode("utf-8", "backslashreplace").decode()
