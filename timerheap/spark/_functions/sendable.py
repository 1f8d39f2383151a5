"""Whether a user's function can be sent to the workers."""

from __future__ import annotations

from typing import Any

from pyspark.cloudpickle import dumps

from timerheap._arguments import instance
from timerheap.errors import ArgumentTypeError


def sendable(function: object, *classes: type, argument: str = "function", opener: str = "open") -> Any:
    """Return `function`, checked to be an instance of one of `classes` that can be sent to the workers.

    Errors call it by the name of its `argument`, and its first method `opener`.
    """
    instance(argument, function, *classes)
    try:
        dumps(function)  # type: ignore[no-untyped-call]
    except Exception as e:
        bad = [name for name, value in vars(function).items() if not _serialises(value)]
        where = f" (its attribute {bad[0]!r})" if bad else ""
        raise ArgumentTypeError(
            f"{argument} must be serialisable, to be sent to the workers, got a {type(function).__name__} "
            f"that is not{where}: {e}; create connections, locks and clients in {opener}()"
        ) from e
    return function


def _serialises(value: object) -> bool:
    try:
        dumps(value)  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True
