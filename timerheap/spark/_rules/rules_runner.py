"""Runs several works, each with its name, on the same rows: one exchange and one operator for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from timerheap.errors import CheckpointMismatchError
from timerheap.metrics import DistributionResult, Metrics
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._functions.row_runner import RowRunner
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query, StateChanges
from timerheap.spark._row_objects import RowSources
from timerheap.spark._rule_timers import of_rule
from timerheap.spark._rules.rule_columns import RuleColumns
from timerheap.spark._rules.rule_group import RuleGroup, stored_rules, timers_of
from timerheap.spark._worker.errors import add_call
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.work import Rehearsal


class RuleMetrics(Metrics):
    """The metrics of several functions; the name of each rule is that of a group around its own."""

    def __init__(self, metrics: Mapping[str, Metrics]) -> None:
        super().__init__()
        self._by_rule = metrics

    def take_counters(self) -> dict[str, int]:
        found = {rule: metrics.take_counters() for rule, metrics in self._by_rule.items()}
        return {f"{rule}.{name}": count for rule, counts in found.items() for name, count in counts.items()}

    def take_distributions(self) -> dict[str, DistributionResult]:
        found = {rule: metrics.take_distributions() for rule, metrics in self._by_rule.items()}
        return {f"{rule}.{name}": each for rule, results in found.items() for name, each in results.items()}


class RulesRunner(Runner):
    """Runs one runner after the other on the rows of a key group.

    Each has the states and timers of its rule, and results of its own: a struct in the column of the rule.

    columns: those of rules that have some of their own
    """

    def __init__(
        self, query: Query, runners: Mapping[str, Runner], columns: Mapping[str, RuleColumns]
    ) -> None:
        self._query = query
        self._runners = runners
        self._columns = columns
        self._results = query.result_schema
        self.any_order = all(runner.any_order for runner in runners.values())
        self._group: KeyGroup | None = None
        self._output: ResultBuffer | None = None
        sources = RowSources()
        for rule, runner in runners.items():
            if isinstance(runner, RowRunner) and rule not in columns:  # others see other rows
                runner.sources = sources

    @property
    def fired_timers(self) -> int:
        return sum(runner.fired_timers for runner in self._runners.values())

    @property
    def out_of_order_rows(self) -> int:
        return sum(runner.out_of_order_rows for runner in self._runners.values())

    @property
    def warnings(self) -> Mapping[str, str]:
        return {
            f"{about} of rule {rule}": f"rule {rule!r}: {message}"
            for rule, runner in self._runners.items()
            for about, message in runner.warnings.items()
        }

    @property
    def metrics(self) -> Metrics | None:
        found = {rule: runner.metrics for rule, runner in self._runners.items()}
        own = {rule: metrics for rule, metrics in found.items() if metrics is not None}
        return RuleMetrics(own) if own else None

    def open(self) -> None:
        self._each(lambda _, runner: runner.open())

    def close(self) -> None:
        self._each(lambda _, runner: runner.close())

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        self._forget_others(group)
        if output is not self._output:
            self._output = output
            self._buffers = {
                rule: output.beside(pa.schema(list(self._results.field(rule).type))) for rule in self._runners
            }
        if group is not self._group:
            self._group = group
            self._groups = {rule: cast(KeyGroup, RuleGroup(group, rule)) for rule in self._runners}
        for rule, runner in self._runners.items():
            with in_rule(rule):
                runner.begin(self._groups[rule], now, self._buffers[rule])

    def _forget_others(self, group: KeyGroup) -> None:
        """Remove the timers of rules that are to be dropped; raise for other rules that are not run."""
        drops = self._query.state_changes.drop_below
        for rule in sorted(stored_rules(group) - self._runners.keys()):
            if of_rule(rule) not in drops:
                raise CheckpointMismatchError(
                    f"rules must have {rule!r}, of which the checkpoint has states or timers, got "
                    f"{sorted(self._runners)}; keep it among the rules, or drop what the checkpoint has of "
                    f"it with state_changes={{{rule!r}: None}}"
                )
            group.settling.bring_all()
            timers_of(group).forget(rule)
        if len(group.event_timers) or len(group.processing_timers):
            raise CheckpointMismatchError(
                "query must be process(), as in the checkpoint, which has timers that are of no rule, got "
                "process_all(); start a new checkpoint"
            )

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        due = rows.take(order)

        def replay(rule: str, runner: Runner) -> None:
            mine = self._rows_of(rule, due)
            runner.replay(mine, np.arange(len(mine)), watermark)

        self._each(replay)

    def process(self, rows: KeyedRows, watermark: int) -> None:
        self._each(lambda rule, runner: runner.process(self._rows_of(rule, rows), watermark))

    def _rows_of(self, rule: str, rows: KeyedRows) -> KeyedRows:
        """Return the rows that reach a rule, with its columns."""
        return self._columns[rule].rows(rows) if rule in self._columns else rows

    def advance(self, watermark: int) -> None:
        self._each(lambda _, runner: runner.advance(watermark))

    def advance_clock(self, now: int) -> None:
        self._each(lambda _, runner: runner.advance_clock(now))

    def _each(self, call: Callable[[str, Runner], None]) -> None:
        """Call each runner, so that errors name its rule, and add what it has emitted to the results."""
        for rule, runner in self._runners.items():
            with in_rule(rule):
                call(rule, runner)
            if self._output is not None and len(self._buffers[rule]):
                self._emit(rule)

    def _emit(self, rule: str) -> None:
        assert self._output is not None
        for batch in self._buffers[rule].take():
            columns = [
                pa.StructArray.from_arrays(batch.columns, fields=list(field.type))
                if field.name == rule
                else pa.nulls(batch.num_rows, field.type)
                for field in self._results
            ]
            self._output.batch(pa.RecordBatch.from_arrays(columns, schema=self._results), rule)


@contextmanager
def in_rule(rule: str) -> Iterator[None]:
    """Say of an error in which rule it was raised."""
    try:
        yield
    except Exception as e:
        add_call(e, f"in rule {rule!r}")
        raise


@dataclass(frozen=True)
class RulesWork(KeyedWork):
    """Several works to run on the same rows, by the names of their rules.

    columns: those of rules that have some of their own
    """

    works: Mapping[str, KeyedWork]
    columns: Mapping[str, RuleColumns]

    @property
    def results_behind(self) -> int | None:
        behind = [work.results_behind for work in self.works.values()]
        return None if None in behind else max(each for each in behind if each is not None)

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        """Open and close a copy of each function."""
        found: dict[str, Rehearsal] = {}
        for rule, work in self.works.items():
            own = replace(
                self._query_of(rule, query), state_changes=changes_of_rule(query.state_changes, rule)
            )
            seen = None if group is None else cast(KeyGroup, RuleGroup(group, rule))
            with in_rule(rule):
                found[rule] = work.rehearse(own, max_parallelism, seen, streaming)
        has_metrics = any(each.has_metrics for each in found.values())
        ttls = {
            of_rule(rule, n): ttl for rule, each in found.items() for n, ttl in each.times_to_live.items()
        }
        states = {of_rule(rule, n): t for rule, each in found.items() for n, t in (each.states or {}).items()}
        return Rehearsal(has_metrics, ttls, states=states)

    def runner(self, query: Query, placement: Placement) -> Runner:
        runners = {
            rule: work.runner(self._query_of(rule, query), placement) for rule, work in self.works.items()
        }
        return RulesRunner(query, runners, self.columns)

    def _query_of(self, rule: str, query: Query) -> Query:
        """Return the query over the rows that reach a rule, with its results."""
        result = query.result[rule].dataType
        assert isinstance(result, StructType)
        rows = self.columns[rule].query(query) if rule in self.columns else query
        return replace(rows, result=result)


def changes_of_rule(changes: StateChanges, rule: str) -> StateChanges:
    """Return the changes of a rule's states, under the names that the rule itself has for them."""
    start = of_rule(rule)
    drop = tuple(name.removeprefix(start) for name in changes.drop if name.startswith(start))
    names = changes.rename.items()
    rename = {old.removeprefix(start): new.removeprefix(start) for old, new in names if old.startswith(start)}
    return StateChanges(drop=drop, rename=rename)
