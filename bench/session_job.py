"""The rows of the session-timeout job, and the results that it must have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SCHEMA = "key string, at bigint"
SPAN = 60_000  # event time of one batch, ms
GAP = (
    150_000  # more than two spans, so that the next batch moves a key's timer before the watermark passes it
)


@dataclass(frozen=True)
class Job:
    """The size of the job: `batches` batches of `events` rows, a multiple of 8.

    The keys are strings, or numbers of the type bigint, and a row has `payload` more columns, of numbers.
    A batch has `live` keys, of which `step` end and as many begin with the next batch.
    """

    events: int
    batches: int
    key: str = "string"
    payload: int = 0

    @property
    def live(self) -> int:
        """The number of keys of a batch."""
        return 5 * self.step

    @property
    def step(self) -> int:
        """The number of keys that end with a batch."""
        return self.events // 8

    @property
    def keys(self) -> int:
        """The number of keys in total."""
        return self.live + (self.batches - 1) * self.step

    @property
    def schema(self) -> str:
        """The schema of the rows."""
        return ", ".join([f"key {self.key}, at bigint", *(f"c{i} double" for i in range(self.payload))])

    @property
    def result(self) -> str:
        """The schema of the results."""
        return f"key {self.key}, at bigint"

    def write(self, directory: Path, files: int) -> None:
        """Write `files` Parquet files per batch, and one row that closes all sessions.

        A window slides over the keys, so each key appears in consecutive batches only. Every batch
        contains every key of the window at least once; the other rows are random. As in a partitioned log,
        all rows of a key are in the same file of a batch, in order of time.
        """
        directory.mkdir()
        rng = np.random.default_rng(0)
        for batch in range(self.batches):
            every = np.arange(batch * self.step, batch * self.step + self.live)
            keys = np.concatenate([every, rng.choice(every, self.events - self.live)])
            rng.shuffle(keys)
            first = batch * SPAN + 1  # not 0, where Spark's watermark begins: the row would be late
            at = np.sort(rng.integers(first, (batch + 1) * SPAN, self.events))
            for file in range(files):
                mine = keys % files == file
                self._write(directory, batch, file, keys[mine], at[mine])
        closing = self.batches * SPAN + 10 * GAP
        self._write(directory, self.batches, 0, np.array([self.keys]), np.array([closing]))

    def _write(self, directory: Path, batch: int, file: int, keys: np.ndarray, at: np.ndarray) -> None:
        path = directory / f"{batch:03}-{file:03}.parquet"
        rng = np.random.default_rng((batch, file))
        columns = {f"c{i}": rng.random(len(keys)) for i in range(self.payload)}
        names = _names(keys) if self.key == "string" else keys
        pq.write_table(pa.table({"key": names, "at": at, **columns}), path)
        os.utime(path, (batch, batch))  # a file source reads the oldest files first


def _names(keys: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(keys).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise("user-", digits, "")


def expected(directory: Path) -> pd.DataFrame:
    """Return the expected output: each key once, at its last event plus the gap, but not the closing row."""
    events = pd.read_parquet(directory, columns=["key", "at"])
    last = events[events["at"] < events["at"].max()].groupby("key", as_index=False)["at"].max()
    return last.assign(at=last["at"] + GAP)


def difference(emitted: pd.DataFrame, wanted: pd.DataFrame) -> str:
    """Describe the difference between two bags of rows; return an empty string if they are equal."""
    both = emitted.groupby(["key", "at"]).size().rename("emitted").to_frame()
    both = both.join(wanted.groupby(["key", "at"]).size().rename("wanted"), how="outer").fillna(0)
    wrong = both[both["emitted"] != both["wanted"]]
    return f"{len(wrong)} rows differ, such as\n{wrong.head()}" if len(wrong) else ""
