"""The argument ``state_changes``: what becomes of states that a checkpoint has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._group.state_names import BROADCAST_STATE, unknown
from timerheap.spark._query import Query, StateChanges
from timerheap.spark._worker.work import Rehearsal


@dataclass(frozen=True)
class IfStored:
    """Changes of stored states that stay in a program for later runs.

    A plain dict as `state_changes` is for the first run of a program: a name that neither the checkpoint nor
    the function has is an error, since it may be a typing error. With this around the dict, such a name has
    no effect, so that the program can be started again after the change has been made.

    Parameters
    ----------
    changes : dict of str to str or None
        As `state_changes` of `timerheap.spark.process`.

    Examples
    --------
    ::

        timerheap.spark.process(..., state_changes=IfStored({"old": "new", "gone": None}))
    """

    changes: Mapping[str, str | None]


def changed_states(state_changes: object) -> StateChanges:
    """Return the argument, checked, with the names of broadcast states, too."""
    changes = state_changes.changes if isinstance(state_changes, IfStored) else state_changes
    changes = {} if state_changes is None else changes
    if not isinstance(changes, Mapping) or not all(
        isinstance(old, str) and isinstance(new, str | None) for old, new in changes.items()
    ):
        raise ArgumentTypeError(
            f"state_changes must be a dict of names of states, got {state_changes!r}; write "
            "state_changes={'old': 'new', 'gone': None}"
        )
    renamed = {old: new for old, new in changes.items() if new is not None}
    names = [*changes, *renamed.values()]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ArgumentValueError(
            f"state_changes must name each state once, got {twice[0]!r} more than once in {dict(changes)}"
        )
    dropped = tuple(old for old, new in changes.items() if new is None)
    every = {f"{kind}{old}": f"{kind}{new}" for kind in ("", BROADCAST_STATE) for old, new in renamed.items()}
    expected = () if isinstance(state_changes, IfStored) else tuple(changes)
    return StateChanges(dropped, every, expected)


def with_expected(query: Query, rehearsal: Rehearsal) -> Query:
    """Return a query that expects in the checkpoint those changed states that its function has not.

    Raises ArgumentValueError if the function has no state of a new name.
    """
    states, stored = rehearsal.states, query.state_changes
    if states is None or not stored.expected:
        return query
    new = [stored.rename[name] for name in stored.expected if name in stored.rename]
    if query.broadcast is None and (missing := unknown(new, states, {})):  # a broadcast state comes later
        old = next(old for old, new in stored.rename.items() if new == missing[0])
        raise ArgumentValueError(
            f"state_changes must give {old!r} a name that the function uses, got {missing[0]!r}, and the "
            f"function has {sorted(states) or 'no states'}"
        )
    expected = unknown(stored.expected, states, {})
    return replace(query, state_changes=replace(stored, expected=expected))


def without_expected(query: Query) -> Query:
    """Return a query that expects no state in a checkpoint, since a `Start` has looked for them."""
    return replace(query, state_changes=replace(query.state_changes, expected=()))
