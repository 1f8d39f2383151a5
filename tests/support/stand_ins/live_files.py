"""Key groups whose live state is in files."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import cast

from chunk_store import MemoryStore

from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._live.live_file import LiveFile


def live_file() -> LiveFile:
    """Return a file that goes with its object."""
    with tempfile.TemporaryDirectory() as directory:
        return LiveFile.create(os.path.join(directory, "file"))


def handed_over(group: KeyGroup, store: MemoryStore) -> tuple[KeyGroup, Stored]:
    """Return the saved group as another process continues it; what it does not attach is overwritten."""
    file = cast(LiveFile, group.memory)
    assert file.write_head(json.dumps(group.head()).encode())
    file = file.anew()
    head = json.loads(file.read_head())
    assert KeyGroup.fits(group.layout, head)
    group = KeyGroup(group.layout, file, head)
    for start, stop in file._free:
        file._map[start:stop] = 0xDD
    return group, Stored(store.read_manifest())


def files(folder: Path) -> list[str]:
    """Return the names of the live files in a folder, at any depth."""
    return sorted(path.name for path in folder.rglob("*.*") if not path.is_dir())


def reads_single_pages(folder: Path) -> bool:
    """Return whether the kernel has been told not to read around what is touched of a file that is mapped."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = [number for number, line in enumerate(lines) if str(folder) in line]
    assert at, "no file is mapped"
    flags = [next(line for line in lines[number:] if line.startswith("VmFlags:")).split() for number in at]
    return any("rr" in each for each in flags)
