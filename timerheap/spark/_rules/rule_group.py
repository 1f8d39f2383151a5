"""A key group as one rule sees it: its keys and watermark, and the states and timers of the rule."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np
import pyarrow as pa

from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.timers import JournalledTimers
from timerheap.spark._group.user_states import UserState
from timerheap.spark._rule_timers import RuleTimers, of_rule


class RuleGroup:
    """Stands for a key group to the runner of one rule, under whose name its states and timers are."""

    def __init__(self, group: KeyGroup, rule: str) -> None:
        timers = timers_of(group)
        self._group = group
        self._rule = rule
        self.keys: KeyTable = group.keys
        self.event_timers = timers.of(rule, True)
        self.processing_timers = timers.of(rule, False)
        self.timer_names = timers.names
        self.untimed: set[str] = group.untimed

    @property
    def watermark(self) -> int:
        return self._group.watermark

    def state(self, name: str, shape: str, type_: pa.DataType, *, broadcast: bool = False) -> UserState:
        return self._group.state(of_rule(self._rule, name), shape, type_, broadcast=broadcast)

    def expiries(self, event_time: bool) -> JournalledTimers:
        return self._group.expiries(event_time)

    def due_expiries(self, event_time: bool, time: int, states: Set[str]) -> Iterator[tuple[str, np.ndarray]]:
        return self._group.due_expiries(event_time, time, states)


def timers_of(group: KeyGroup) -> RuleTimers:
    """Return the timers of all rules of a key group."""
    (timers,) = group.own
    assert isinstance(timers, RuleTimers)
    return timers


def stored_rules(group: KeyGroup) -> set[str]:
    """Return the rules that have states or timers in a key group."""
    named = {name.partition("/")[0] for name in group.states if "/" in name}
    return named | timers_of(group).rules()
