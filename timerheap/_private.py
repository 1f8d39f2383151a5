"""Directories that only their user can use."""

from __future__ import annotations

import errno
import os
import stat


def make_private(directory: str) -> None:
    """Make a directory that nobody else can use; raise OSError if others can use an existing one."""
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        if not is_private(directory):
            raise PermissionError(
                errno.EACCES, "must be a directory that only this user can read and write", directory
            ) from None


def is_private(directory: str) -> bool:
    """Return whether a path is a directory, no link to one, that nobody else can use."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
