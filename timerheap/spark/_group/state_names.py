"""Which names states have in a checkpoint, and which names in ``state_changes`` it and a function know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from timerheap.errors import ArgumentValueError, CheckpointMismatchError
from timerheap.spark._group.evolution import field_paths
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.stored.chunk_store import ChunkReader
from timerheap.spark._group.stored.kinds import USER_STATE
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored.stored_runs import described
from timerheap.spark._group.user_states import restored_state

BROADCAST_STATE = "broadcast:"
"""Prefix of the names of broadcast states, which a function asks for when it has rows.

They belong to the key group and not to a key: their tables have one id, which is none of `KeyGroup.keys`.
"""

BROADCAST_ID = 0x62726F6164636173
"""That id."""


def state_name(layout: GroupLayout, name: str, broadcast: bool) -> str:
    """Return the name in the checkpoint of a state that a function asks for; raise if it cannot have that."""
    if broadcast:
        name = BROADCAST_STATE + name
    elif name.startswith(BROADCAST_STATE):
        raise ArgumentValueError(
            f"a keyed state's name must not start with {BROADCAST_STATE!r}, got {name!r}"
        )
    for change, names in ("drop", layout.drop_state), ("rename", layout.rename_state):
        if name in names:
            raise ArgumentValueError(
                f"state_changes must {change} states that the function no longer has, got {name!r}, which it "
                "uses; leave that out, or give the function's state another name"
            )
    return name


def name_taken(old: str, new: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"state_changes must give {old!r} a name that no state in the checkpoint has, got {new!r}; choose "
        f"another name, or run once with state_changes={{{new!r}: None}}"
    )


_SHOWN = 20  # names in an error


def unknown(
    names: Iterable[str], states: Mapping[str, pa.DataType], renamed: Mapping[str, str]
) -> tuple[str, ...]:
    """Return which names are neither of states, by name with their types, nor of fields in them.

    renamed: new names by old ones, behind which fields are named, too
    """
    known = set(_known(states, renamed))
    return tuple(name for name in names if name not in known)


def _known(states: Mapping[str, pa.DataType], renamed: Mapping[str, str]) -> Iterator[str]:
    for name, type_ in states.items():
        plain = name.removeprefix(BROADCAST_STATE)
        for path in {plain, renamed.get(plain, plain)}:
            yield path
            yield from field_paths(type_, path, renamed)


def expect_known(names: Iterable[str], states: Mapping[str, pa.DataType], renamed: Mapping[str, str]) -> None:
    """Raise ArgumentValueError unless all names are of states in a checkpoint, or of fields in them."""
    missing = unknown(names, states, renamed)
    if missing:
        known = sorted(set(_known(states, {})))
        shown = ", ".join(map(repr, known[:_SHOWN])) + (", ..." if len(known) > _SHOWN else "")
        raise ArgumentValueError(
            f"state_changes must name states of the checkpoint, or fields in them, got {missing[0]!r}, and "
            f"it has {shown or 'none'}; correct the name, or pass timerheap.spark.IfStored(...) around the "
            "dict if it stays from an earlier run, which has made the change"
        )


def expect_stored(layout: GroupLayout, store: ChunkReader, manifest: Manifest) -> None:
    """Raise ArgumentValueError if a stored key group has no state of a name that the layout expects."""
    states = [run for run in manifest.runs if run.kind >= USER_STATE]
    types = {
        name: restored_state(run.kind, name, schema).type for run, name, schema in described(store, states)
    }
    expect_known(layout.expected, types, layout.rename_state)
