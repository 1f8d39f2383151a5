"""Saving a key group, and loading it: its parts as runs of chunks, then the manifest.

A save goes one way, down: the group tells what it holds, `stored_watermark` keeps the watermark's state,
`stored_runs` the parts, each chunk is made in `chunks`, and the store writes it. The manifest is last:
without it, none of the chunks is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import pyarrow as pa

from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.stored.chunk_store import ChunkReader, ChunkStore
from timerheap.spark._group.stored.manifest import Manifest, Run
from timerheap.spark._group.stored.parts import LoadedPart
from timerheap.spark._group.stored.stored_runs import StoredRuns, load_runs
from timerheap.spark._group.stored_watermark import save_watermark
from timerheap.spark._memory.blocks import PROCESS, Memory


class Stored:
    """One group as it is in the store.

    All that it has to know is in the manifest, so ``Stored(manifest)`` continues what another process saved.

    dropped: runs that are in the store, and that the next save removes
    """

    def __init__(self, manifest: Manifest, dropped: Iterable[Run] = ()) -> None:
        self.manifest = manifest
        self._runs = StoredRuns(manifest.runs, manifest.id, dropped)

    @classmethod
    def load(
        cls,
        store: ChunkReader,
        manifest: Manifest,
        make_part: Callable[[int, str, pa.Schema], LoadedPart],
        drops: Callable[[str], bool] = lambda name: False,
    ) -> Stored:
        """Load a group: replay the chunks of each run into the part of this kind, name and schema.

        User states whose names it `drops` are not read, and the next save removes them.
        """
        dropped = load_runs(store, manifest.runs, make_part, drops)
        manifest.runs = [run for run in manifest.runs if run not in dropped]
        return cls(manifest, dropped)

    @property
    def drops(self) -> bool:
        """Whether the next save removes a state."""
        return self._runs.drops

    def save(
        self,
        store: ChunkStore,
        group: KeyGroup,
        watermark_state: bytes,
        *,
        whole: bool = False,
        writes_watermark: bool = True,
        writer: bytes = b"",
    ) -> None:
        """Write the changes of a group, or it as a `whole`, then the manifest with a new token.

        The token begins with the `writer`, at most 8 bytes that tell who has saved the group. A large state
        of the watermark is left as it was stored, unless the group `writes_watermark`.
        """
        manifest, runs = self.manifest, self._runs
        save_watermark(manifest, store, watermark_state, writes_watermark)
        manifest.watermark, manifest.late_rows = group.watermark, group.late_rows
        manifest.wake_up, manifest.standing = group.wake_up, group.standing()
        runs.remove_dropped(store)
        for part in group.parts():
            runs.save_part(store, part, whole or group.evolved)
        group.evolved = False
        manifest.losses = group.losses()  # after the parts: some count them when they are written
        manifest.runs = runs.in_order()
        # Not of the contents: a retry must not match the first one's file.
        manifest.token = writer + os.urandom(16 - len(writer))
        store.write_manifest(manifest)


def loaded_group(
    store: ChunkReader, manifest: Manifest, layout: GroupLayout, memory: Memory = PROCESS
) -> tuple[KeyGroup, Stored]:
    """Return the group that a manifest describes; raise a `CheckpointError` if it does not fit the layout."""
    group = KeyGroup(layout, memory)
    stored = Stored.load(store, manifest, group.part, layout.drops)
    group.watermark, group.late_rows = manifest.watermark, manifest.late_rows
    group.wake_up = manifest.wake_up
    return group.loaded(None if stored.drops else manifest.losses), stored
