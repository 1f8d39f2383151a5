"""A function in a process of its own that is killed as it is about to change a file; for Linux."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

__all__ = ["CHANGES", "killed_before"]

_BY_MACHINE = {
    "x86_64": {18: "pwrite", 73: "flock", 77: "ftruncate", 82: "rename", 87: "unlink", 285: "fallocate"},
    "aarch64": {
        68: "pwrite",
        32: "flock",
        46: "ftruncate",
        38: "rename",
        276: "rename",
        35: "unlink",
        47: "fallocate",
    },
}
CHANGES = _BY_MACHINE.get(platform.machine(), {}) if sys.platform == "linux" else {}
"""System calls that change a file, its name, its size or its lock, by number; empty where none is known."""

# Of ptrace: requests, options, and what a stop is.
_TRACE_ME, _SYSCALL, _SET_OPTIONS, _SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_TELL_SYSCALLS, _END_WITH_TRACER = 0x01, 0x100000
_OF_SYSCALL, _ENTERED = signal.SIGTRAP | 0x80, 1
_INFO = struct.Struct(
    "<BxxxIQQQ"
)  # what kind of stop, the architecture, two addresses, the number of the call


def killed_before(number: int, function: Callable[[], object]) -> list[str]:
    """Run a function in a forked process, and kill that right before its call of this number, from 0.

    Returns the names of its calls that change files, the one included that it did not live to make. So there
    are at most `number` of them if it was not killed.

    Raises
    ------
    RuntimeError
        If the function fails.
    """
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.restype, ptrace.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_long, *[ctypes.c_void_p] * 2]

    def ask(request: int, address: int | None = None, data: object = None) -> None:
        if ptrace(request, child, address, data) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    child = os.fork()
    if not child:
        with suppress(BaseException):
            ptrace(_TRACE_ME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            function()
            os._exit(0)
        os._exit(1)
    found: list[str] = []
    _, status = os.waitpid(child, 0)
    try:
        ask(_SET_OPTIONS, None, _TELL_SYSCALLS | _END_WITH_TRACER)
        info, passed = ctypes.create_string_buffer(88), 0
        while True:
            ask(_SYSCALL, None, passed)
            _, status = os.waitpid(child, 0)
            if not os.WIFSTOPPED(status):
                break
            passed = 0 if os.WSTOPSIG(status) == _OF_SYSCALL else os.WSTOPSIG(status)
            if passed:
                continue
            ask(_SYSCALL_INFO, len(info), info)
            kind, _, _, _, call = _INFO.unpack_from(info)
            if kind == _ENTERED and call in CHANGES:
                found.append(CHANGES[call])
                if len(found) > number:
                    return found
    finally:
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the function has ended with status {status}, after {found}")
    return found
