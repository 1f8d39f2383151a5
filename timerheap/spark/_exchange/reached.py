"""What an operator hands to the stage behind it in the same task: the watermark that it has reached.

An operator and the stage that packs its results for the next operator are two Python workers of one Spark
task. That stage sees the end of its rows only after the operator has ended. So the operator leaves its
watermark in a file of the executor, under the id of the attempt, and the stage takes it: both are of the same
attempt, also where Spark repeats or doubles a task.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

from timerheap._private import is_private, make_private

_HOME, _FOLDER = "timerheap", "reached"
_LAYOUT = struct.Struct("<16s?q?")
_KEPT = 600.0  # seconds after which a file that nobody has taken is removed
_left: deque[tuple[float, str]] = deque()  # the files of this worker, and when they were written


class Reached(NamedTuple):
    """What an operator has reached in one task.

    operator: 16 bytes that tell it from others
    watermark: results that follow in later micro-batches are above it; None in a task without key groups
    unbounded: whether results may be behind it all the same, by no limit that is known
    """

    operator: bytes
    watermark: int | None
    unbounded: bool = False


def leave(task: Any, reached: Reached) -> None:
    """Leave what the operator of a task has reached for the stage behind it, if there is one."""
    # Nobody takes it behind the last operator of a query. Without a file the stage says what is missing.
    watermark = reached.watermark
    data = _LAYOUT.pack(reached.operator, watermark is not None, watermark or 0, reached.unbounded)
    path = os.path.join(_folder(), f"{_attempt_mark(task)}.{reached.operator.hex()}.{os.urandom(4).hex()}")
    with suppress(OSError):
        make_private(os.path.dirname(_folder()))
        make_private(_folder())
        with open(path, "xb") as file:
            file.write(data)
        _left.append((time.monotonic(), path))
    while _left and _left[0][0] < time.monotonic() - _KEPT:
        with suppress(OSError):
            os.unlink(_left.popleft()[1])


def take(task: Any) -> list[Reached]:
    """Return what operators have left in a task so far, and remove it."""
    folder, mark = _folder(), _attempt_mark(task) + "."
    found: list[Reached] = []
    if not (is_private(os.path.dirname(folder)) and is_private(folder)):
        return found
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            if name.startswith(mark):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    data = file.read(_LAYOUT.size + 1)
                os.unlink(path)
                if len(data) != _LAYOUT.size:
                    raise ValueError(f"{path} must have {_LAYOUT.size} bytes, got {len(data)}")
                operator, known, watermark, unbounded = _LAYOUT.unpack(data)
                found.append(Reached(operator, watermark if known else None, unbounded))
    return found


def _folder() -> str:
    """Return the folder that all workers of this executor know."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if local:
        return os.path.join(local, _HOME, _FOLDER)
    return os.path.join(tempfile.gettempdir(), f"{_HOME}-{os.geteuid()}", _FOLDER)


def _attempt_mark(task: Any) -> str:
    """Return what names an attempt among those of all applications."""
    return f"{task.getLocalProperty('spark.jobGroup.id')}-{task.taskAttemptId()}"
