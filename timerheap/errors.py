"""The errors of timerheap, to be caught by name.

Each is a kind of the built-in error that fits it, so ``except ValueError`` still catches a wrong value::

    TimerheapError
    ├── ArgumentError
    │   ├── ArgumentTypeError           (TypeError)
    │   └── ArgumentValueError          (ValueError)
    │       └── ArgumentRangeError      (OverflowError)
    ├── UnsupportedError                (NotImplementedError)
    ├── CheckpointError                 (ValueError)
    │   ├── CheckpointMismatchError
    │   ├── DamagedCheckpointError
    │   └── ForeignCheckpointError
    └── FunctionError                   (RuntimeError)
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ArgumentRangeError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "CheckpointError",
    "CheckpointMismatchError",
    "DamagedCheckpointError",
    "ForeignCheckpointError",
    "FunctionError",
    "TimerheapError",
    "UnsupportedError",
]


class TimerheapError(Exception):
    """The base of all errors that timerheap raises by a name of its own."""


class ArgumentError(TimerheapError):
    """An argument is wrong. The message names it, its value and what would be right; nothing has changed."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has the wrong type."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has the right type and a value that cannot be."""


class ArgumentRangeError(ArgumentValueError, OverflowError):
    """A number or a time does not fit the 32 or 64 bits that hold it."""


class UnsupportedError(TimerheapError, NotImplementedError):
    """What is asked for is clear, and cannot be done here. The message says what can."""


class CheckpointError(TimerheapError, ValueError):
    """What is stored cannot be used by this query. Nothing stored has changed."""


class CheckpointMismatchError(CheckpointError):
    """The stored state is another query's, or that of this query with other states, types or settings."""


class DamagedCheckpointError(CheckpointError):
    """Stored bytes are not those that were written: a checksum, a length or a link is wrong."""


class ForeignCheckpointError(CheckpointError):
    """What is stored was not written by timerheap, or by a version whose format this one does not read."""


class FunctionError(TimerheapError, RuntimeError):
    """A user's function has raised an error, or has returned what does not fit.

    The message begins with the error as it was raised, then says for which key, row or timer the function had
    been called, and ends with the frames of the user's code.
    """
