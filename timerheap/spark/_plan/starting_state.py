"""The state of another query as the start of a new one: checked on the driver, split in tasks."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import GroupedData

from timerheap.spark._group.chunks import SLICES, USER_STATE
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._plan.checkpoint_state import CheckpointState
from timerheap.spark._query import Query
from timerheap.spark._worker.initial_state import INITIAL, Splitter

__all__ = ["starting_group", "starting_partitions"]


def starting_group(state: CheckpointState, query: Query) -> KeyGroup:
    """Return a key group of a new query with the keys and states of the checkpoint, but no contents.

    Raises
    ------
    ValueError
        If the new query has other keys, timers or windows.
    """
    group = KeyGroup(query.layout)
    for kind, name, schema in state.survey.parts:
        if kind == SLICES:
            raise ValueError(
                "initial_state must be the state of process() or process_two(), got that of "
                f"{state.checkpoint!r}, which has the windows {name}"
            )
        if kind < USER_STATE or (name not in query.drop_state and name not in group.states):
            group.part(kind, name, schema).replay(pa.RecordBatch.from_pylist([], schema))
    return group.loaded()


def starting_partitions(state: CheckpointState, query: Query) -> GroupedData:
    """Return the state split by the key groups of a new query, grouped as its packed rows are."""
    splitter = Splitter(query)
    split = state.chunks.groupBy("label").applyInArrow(lambda chunks: splitter(chunks), INITIAL)
    return split.groupBy("label")
