"""The versions of all that checkpoints have, and which of them are read.

Each thing that is stored begins with its version, so that a later timerheap tells apart what an older one has
written, also where both are in one checkpoint: a save writes what has changed, and leaves the rest.

What 0.1.0 has written is read by every later version until 1.0. So a layout never changes under its number:
the new one takes the next, `written` says it, and the reader of the old one stays, with its number in `read`
and what 0.1.0 has written in the tests (``tests/spark/data/released``). The contents of a part, which its
schema tells, take a new kind (`kinds.py`) instead.

The envelope around all of them, and with it a heap's bytes, has a version of its own
(``timerheap/_native/_seal.pxi``). A live file is a copy, and of one build of timerheap alone.
"""

from __future__ import annotations

from typing import NamedTuple

from timerheap.errors import DamagedCheckpointError, ForeignCheckpointError


class Format(NamedTuple):
    """The versions of one thing that is stored."""

    what: str  # with the word for its version, after "this checkpoint has"
    written: int
    read: tuple[int, ...]

    def expect(self, version: bytes | memoryview) -> None:
        """Raise ForeignCheckpointError for a version, little-endian, that this timerheap does not read."""
        if not version:
            raise DamagedCheckpointError(f"this checkpoint has {self.what} ..., which is cut off")
        if (found := int.from_bytes(version, "little")) not in self.read:
            known = " and ".join(map(str, self.read))
            raise ForeignCheckpointError(
                f"this checkpoint has {self.what} {found}, and this version reads {known}: use the version "
                "that wrote it, or save the tables with it, and pass them as initial_state"
            )


CHECKPOINT = Format("timerheap's state format", 13, (13,))
"""That of manifests, and so of a checkpoint as a whole."""
LEDGER = Format("a ledger of version", 1, (1,))
CHUNK = Format("a chunk of version", 1, (1,))
SCHEMA = Format("a schema of version", 1, (1,))
"""That of the name and the schema of a part, its chunk 0."""
WATERMARK = Format("a watermark's state of version", 2, (2,))
EPOCH = Format("the file of an epoch of version", 1, (1,))
"""That of the state in real-time mode."""
