"""What the key groups of an operator in a checkpoint have: their keys, rows, states and windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timerheap._native._core import from_text, xxh64
from timerheap.spark._columns import (
    ACCUMULATOR,
    HIDDEN,
    INPUT,
    KEY,
    KEY_HASH,
    SESSION_START,
    SIDES,
    SLICE_END,
    TIME,
    distinct,
    shown_name,
)
from timerheap.spark._exchange.placement import key_group_of, label_of
from timerheap.spark._group.key_table import shown_keys
from timerheap.spark._group.stored.chunks import read_schema
from timerheap.spark._group.stored.kinds import KEYS, MANIFEST, ROWS, USER_STATE, WATERMARK
from timerheap.spark._group.stored.manifest import Manifest, Standing
from timerheap.spark._group.stored_watermark import read_watermark
from timerheap.spark._state import state_tables as tables
from timerheap.spark._stored_windows import UNSHOWN, WINDOWS
from timerheap.spark._worker.ledger import LEDGER, Ledger, foreign


class StoredPart(NamedTuple):
    """A part that key groups have, with the schema of its chunks."""

    kind: int
    name: str
    schema: pa.Schema


class Survey:
    """The manifests of all key groups, and the parts that they list, each once.

    One Spark job reads the manifests and the schemas from the columns label, kind, id and text. The parts are
    by kind; that of most groups comes first among those of one kind.
    """

    def __init__(self, chunks: DataFrame) -> None:
        self._chunks = chunks
        heads = chunks.where((F.col("id") == 0) & (F.col("kind") != WATERMARK))
        own = F.when(F.col("kind").isin(MANIFEST, LEDGER), F.col("label")).alias("label")
        heads = heads.groupBy(own, "kind", "text").count()
        found: list[tuple[int, bytes]] = []
        self.ledgers: list[Ledger] = []
        by_label: dict[int, Manifest] = {}
        for label, kind, text, count in heads.collect():
            data = from_text(text)
            if kind == LEDGER:
                self.ledgers += [Ledger.from_bytes(data)] * count
            elif kind != MANIFEST:
                found.append((kind, data))
            elif count > 1 or label in by_label:
                raise foreign(f"key group {key_group_of(label)} more than once")
            else:
                by_label[label] = Manifest.from_bytes(data)
        self.groups = {key_group_of(label): manifest for label, manifest in by_label.items()}
        self.manifests = list(by_label.values())
        listed = Counter(
            (run.kind, run.schema)
            for manifest in self.manifests
            for run in manifest.runs
            if run.segments or run.kind >= USER_STATE  # others are left from before a restart
        )
        often = {part: listed[part[0], xxh64(part[1]) & 0xFFFFFFFF] for part in found}
        parts = sorted((part for part in found if often[part]), key=lambda part: (part[0], -often[part]))
        self.parts = [StoredPart(kind, *read_schema(kind, data)) for kind, data in parts]

    @property
    def operator(self) -> str | None:
        """The name of the operator, None before the first epoch of real-time mode has ended."""
        return self.ledgers[0].operator if self.ledgers else None

    @property
    def standings(self) -> dict[int, tuple[Standing, int, int]]:
        """What each key group holds, its watermark, and the number of its late rows."""
        return {n: (one.standing, one.watermark, one.late_rows) for n, one in self.groups.items()}

    @property
    def keys(self) -> list[pa.Field]:
        """The key columns, under their names in the rows."""
        part = self._part(KEYS)
        return [] if part is None else list(shown_keys(part.schema).values())

    @property
    def rows(self) -> pa.Schema | None:
        """The schema of the chunks of waiting rows, None if no row has ever waited."""
        part = self._part(ROWS)
        return None if part is None else part.schema

    @property
    def windows(self) -> StoredPart | None:
        return self._part(WINDOWS) or self._part(UNSHOWN)

    @property
    def has_unshown(self) -> bool:
        """Whether there are accumulators of rows that windows do not show yet."""
        return self._part(UNSHOWN) is not None

    @property
    def states(self) -> dict[str, list[StoredPart]]:
        """The user states by name; their kinds may differ from group to group."""
        found: dict[str, list[StoredPart]] = {}
        for part in self.parts:
            if part.kind >= USER_STATE:
                found.setdefault(part.name, []).append(part)
        return found

    def _part(self, kind: int) -> StoredPart | None:
        return next((part for part in self.parts if part.kind == kind), None)

    def watermark_state(self) -> bytes:
        """Return the highest watermark's state of all groups; one more job if it is large."""
        highest = max(self.manifests, key=lambda manifest: manifest.watermark)
        if not highest.watermark_apart:
            return highest.watermark_state
        first = self._chunks.where((F.col("label") == label_of(0)) & F.col("kind").isin(MANIFEST, WATERMARK))
        texts = {(row.kind, row.id): row.text for row in first.collect()}  # of what writes it
        chunks, manifest = tables.chunks_of_group(texts)
        return read_watermark(manifest, chunks)


def row_columns(stored: Sequence[str], key: Sequence[str]) -> dict[str, str]:
    """Return the names of the columns of waiting rows in tables, by their names in the checkpoint."""
    # Expressions that arguments of the query have named are columns, too. Rows of two inputs have the `key`
    # columns, and a struct for each input, which says of which of them a row is. Their time is in a column
    # that all tables of rows have.
    told = {TIME, INPUT} if SIDES[0] in stored else {TIME}
    keys = {f"{KEY}{number}": name for number, name in enumerate(key)}
    names = {
        name: shown_name(keys.get(name, name)).removeprefix(HIDDEN) for name in stored if name not in told
    }
    return dict(zip(names, distinct(names.values()), strict=True))


def window_columns(stored: pa.Schema) -> dict[str, pa.Field]:
    """Return the columns of windows in tables, by their names in the checkpoint."""
    local = pa.timestamp("us")
    bounds = {SLICE_END: pa.field("slice_end", local)}
    if SESSION_START in stored.names:
        bounds = {
            SESSION_START: pa.field("session_start", local),
            SLICE_END: pa.field("session_end", local),
        }
    found = dict(bounds)
    for field in stored:
        if field.name not in (KEY_HASH, *bounds):
            number, _, name = field.name.removeprefix(ACCUMULATOR).partition(".")
            found[field.name] = field.with_name(f"{name}_{number}")
    return found


def numbered_operator(number: int, name: str | None) -> str:
    """Return what an operator is called in messages."""
    return f"operator {number}" if name is None else f"operator {number} {name!r}"


def described_operator(survey: Survey) -> str:
    """Return a description of an operator by its keys, states and windows."""
    keys = ", ".join(field.name for field in survey.keys)
    parts = [f"key ({keys})" if keys else "no key"]
    if survey.states:
        parts.append(f"states {', '.join(sorted(survey.states))}")
    if survey.windows is not None:
        parts.append(survey.windows.name)
    return ", ".join(parts)
