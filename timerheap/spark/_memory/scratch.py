"""A file for what a load or a snapshot cannot have in memory."""

from __future__ import annotations

import tempfile
from typing import NamedTuple, Self

from timerheap._native._core import xxh64


class Piece(NamedTuple):
    """Where bytes are in a scratch file."""

    at: int
    nbytes: int
    digest: int


class Scratch:
    """A file without a name in a folder, so that a process that dies leaves nothing.

    Each method raises an OSError if the file cannot be written, or has not what was written.
    """

    def __init__(self, folder: str) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._end = 0

    def write(self, data: bytes) -> Piece:
        """Append bytes, and return where they are."""
        self._file.seek(self._end)
        piece = Piece(self._end, self._file.write(data), xxh64(data))
        self._end += piece.nbytes
        return piece

    def read(self, piece: Piece) -> bytes:
        """Return the bytes of a piece."""
        self._file.seek(piece.at)
        data = self._file.read(piece.nbytes)
        if xxh64(data) != piece.digest:
            raise OSError("a scratch file has lost what was written to it")
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
