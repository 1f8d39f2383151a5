"""`Rule`: a function for `process_all`; and what a rule of any kind tells of itself, given the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._functions.sendable import sendable
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.schemas import arrow_schema, parsed_ddl
from timerheap.spark._worker.keyed_work import KeyedWork

Shown: TypeAlias = Callable[[DataFrame, Sequence[str]], DataFrame]
"""Makes the result of a rule of the columns that its work emits.

It gets them beside others, whose names follow, and `KEPT`, and returns these with its own.
"""


@dataclass(frozen=True)
class RulePlan:
    """What a rule does with the rows of one input.

    work: runs it
    emitted: the type of what the work emits
    columns: what Spark computes of each row for the work alone, by name
    where: which rows reach the work; None for all
    computed: what these two mean, in a text that is the same in each run
    shown: what becomes of what the work emits; None to leave it as it is
    """

    work: KeyedWork
    emitted: StructType
    columns: Mapping[str, Column] = field(default_factory=dict)
    where: Column | None = None
    computed: str = ""
    shown: Shown | None = None


class RowsRule(ABC):
    """What `process_all` runs under a name: any kind of rule."""

    @abstractmethod
    def _planned(self, source: Input, order: RowOrder) -> RulePlan:
        """Return what the rule does with rows that reach it in an order; raise if it cannot."""


@dataclass(frozen=True)
class Rule(RowsRule):
    """A function for `process_all`, with the schema of its results.

    Parameters
    ----------
    function : KeyedProcessFunction or BatchProcessFunction
        As in `process`.
    output_schema : str or pyspark.sql.types.StructType
        Schema of its results.

    Examples
    --------
    ::

        Rule(Silent(), "sensor string, silent_at timestamp")
    """

    function: KeyedProcessFunction | BatchProcessFunction
    output_schema: str | StructType

    def _planned(self, source: Input, order: RowOrder) -> RulePlan:
        sendable(self.function, KeyedProcessFunction, BatchProcessFunction)
        type_ = parsed_ddl("output_schema", self.output_schema)
        arrow_schema("output_schema", type_)
        assert isinstance(type_, StructType)
        return RulePlan(work_of(self.function), type_)
