"""`process_all`: several functions on the same rows of a Spark DataFrame, and the results of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.cloudpickle import dumps, loads
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.types import StructField, StructType

from timerheap._arguments import instance
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import OURS, SIDE_OUTPUT
from timerheap.spark._flows import in_flows
from timerheap.spark._functions.function_work import FunctionWork
from timerheap.spark._functions.guarded.dead_letters import DeadLetters, Guard, guard_of
from timerheap.spark._functions.guarded.letter_columns import letters_tag, with_letters
from timerheap.spark._functions.side_tags import side_tags
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import marked
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import EventTime, row_order
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.named_columns import ColumnOrName, backticks, data_frame, quoted, ungrouped
from timerheap.spark._plan.state_changes import IfStored, changed_states
from timerheap.spark._query import StateChanges
from timerheap.spark._rule_timers import RuleTimersLayout, of_rule
from timerheap.spark._rules.rule import RowsRule, Rule, RulePlan
from timerheap.spark._rules.rule_columns import RuleColumns, rule_struct
from timerheap.spark._rules.rules_runner import RulesWork, in_rule
from timerheap.spark._rules.shown_results import shown_results
from timerheap.spark._state.initial_contents import start_of
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._state.read_checkpoint import CheckpointState
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.watermarks import WatermarkStrategy


@in_flows
def process_all(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    rules: Mapping[str, RowsRule] | None = None,
    event_time: ColumnOrName | EventTime | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    order: str | None = None,
    late: str | None = None,
    processing_time: bool = False,
    max_parallelism: int | None = None,
    state_changes: Mapping[str, str | None] | IfStored | None = None,
    initial_state: CheckpointState | InitialState | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
    errors: str | DeadLetters = "raise",
    name: str | None = None,
) -> DataFrame:
    """Run several functions and queries on the rows of one stream or batch DataFrame, which is read once.

    Each is a rule with a name, and has the timers, the states and the results that it would have in a
    `process`, or in a query with `sql`, of its own. The rows are read, sent to the tasks of their keys,
    and kept until the watermark passes them once for all rules.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        As in `process`.
    key : str, Column, or list of them
        As in `process`, for all rules.
    rules : dict of str to Rule or SqlRule
        The rules by their names, which are columns of the result, and begin the names of their states and
        timers in the checkpoint: "spikes/last" is the state ``last`` of the rule "spikes".
    event_time, watermark, order, late : optional
        As in `process`, for all rules.
    processing_time, max_parallelism : optional
        As in `process`.
    state_changes : dict of str to str or None, or IfStored, optional
        As in `process`, of states such as "spikes/last". The name of a rule with None drops all states and
        timers that the checkpoint has of a rule which has been removed: ``{"spikes": None}``.
    initial_state : CheckpointState or InitialState, optional
        State to start from, on a stream with a new checkpoint: that of another query with `process_all`, as
        `timerheap.spark.read_checkpoint` returns it, or tables. The names of states and timers in these begin
        with that of their rule, as in the checkpoint.
    side_outputs : list of OutputTag, optional
        The side outputs of all functions, as in `process`. Rules may share one.
    errors : {"raise", "emit"} or DeadLetters, default "raise"
        As in `process`, for the functions of all rules; each counts its errors by itself. An error of a
        `SqlRule` ends the query.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode: a column for each rule, with its name. A row is a result of one rule: a struct of its
        `Rule.output_schema` or of the columns of its query, and null in the columns of the other rules.
        `rule_results` returns those of one rule.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `process`. An error of a function names its rule.
    CheckpointMismatchError
        If the checkpoint has states or timers of a rule that is neither in `rules` nor dropped by
        `state_changes`. The query then fails, and the checkpoint stays as it is.

    Notes
    -----
    Rules may be added and removed between two runs of a query, with the checkpoint that it has. A new one
    begins without state, with the rows that wait for the watermark and those that come; a query for which
    Spark computes something of each row begins with those that come. The others go on.

    One rule after the other gets the rows of a micro-batch that have the same key group, so rules do not see
    what others have done, and the order of the results of different rules says nothing.

    Examples
    --------
    ::

        alerts = timerheap.spark.process_all(
            readings,
            key="sensor",
            rules={
                "spikes": Rule(Spikes(), "sensor string, degrees double"),
                "silence": Rule(Silent(), "sensor string, silent_at timestamp"),
            },
            event_time="at",
            watermark="5 seconds",
        )
        spikes = timerheap.spark.rule_results(alerts, "spikes")
    """
    checked = _checked_rules(rules)
    rows, grouping = ungrouped("df", df, "key", key)
    source = Input.checked(Columns("df", rows), grouping, event_time, watermark, order=order, late=late)
    plans = _plans(checked, source, row_order(order, source.df, source.event_time, source.strategy))
    functions = [rule.function for rule in checked.values() if isinstance(rule, Rule)]
    found = {name: rule_struct(name, plan) for name, plan in plans.items()}
    structs = {name: struct for name, struct in found.items() if struct is not None}
    guard = guard_of(errors)
    tag = None if guard is None else letters_tag(source, rules=True)
    if structs:
        source = replace(source, df=source.df.select("*", *structs.values()))
    query = query_of(
        RulesWork(_works(checked, plans, guard), _columns_of_rules(source, structs)),
        StructType([StructField(name, plan.emitted) for name, plan in plans.items()]),
        source,
        order=order,
        late=late,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        state_changes=_changes(state_changes, checked),
        side_outputs=with_letters(side_tags(side_outputs, *functions), tag),
        own=(RuleTimersLayout(),),
        name=name,
    )
    marks = marked(source)
    result = build(query, marks, start=start_of(initial_state, marks))
    return shown_results(result, plans, has_outputs=bool(query.side_fields))


def _plans(rules: Mapping[str, RowsRule], source: Input, order: RowOrder) -> dict[str, RulePlan]:
    """Return what each rule does with the rows; a function of several is copied, so that each has its own."""
    found: dict[str, RulePlan] = {}
    functions: list[Any] = []
    for name, rule in rules.items():
        if isinstance(rule, Rule):
            if any(rule.function is other for other in functions):
                rule = replace(rule, function=loads(dumps(rule.function)))  # type: ignore[no-untyped-call]
            functions.append(rule.function)
        with in_rule(name):
            found[name] = rule._planned(source, order)
    return found


def _works(
    rules: Mapping[str, RowsRule], plans: Mapping[str, RulePlan], guard: Guard | None
) -> dict[str, KeyedWork]:
    """Return the work of each rule; with a guard, errors of functions become dead letters."""
    works = {name: plan.work for name, plan in plans.items()}
    for name, work in works.items():
        if guard is not None and isinstance(rules[name], Rule) and isinstance(work, FunctionWork):
            works[name] = replace(work, guard=replace(guard, rule=name))
    return works


def _columns_of_rules(source: Input, structs: Mapping[str, Column]) -> dict[str, RuleColumns]:
    fields = source.df.schema.fields[len(source.df.columns) - len(structs) :]
    return {
        name: RuleColumns(field.name, field.dataType)
        for name, field in zip(structs, fields, strict=True)
        if isinstance(field.dataType, StructType)
    }


@in_flows
def rule_results(df: DataFrame, rule: str) -> DataFrame:
    """Return the results of one rule of `process_all`.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        What `process_all` returned, also after ``where()`` or in ``foreachBatch``.
    rule : str
        Its name.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the rule's `Rule.output_schema`, or of its query.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If `df` has no results of such a rule.

    Notes
    -----
    A DataFrame is a plan: if the results of two rules are written by two queries, each runs all rules, with
    state of its own. One query writes all of them with ``foreachBatch``.

    Examples
    --------
    ::

        def write(batch, batch_id):
            batch.persist()  # each write would run the rules again
            for rule in batch.columns:
                timerheap.spark.rule_results(batch, rule).write.format("delta").mode("append").save(...)
            batch.unpersist()

        alerts.writeStream.foreachBatch(write).start()
    """
    instance("rule", rule, str)
    schema = data_frame("df", df).schema
    found = [field.name for field in schema if isinstance(field.dataType, StructType)]
    found = [name for name in found if name != SIDE_OUTPUT]
    if rule not in found:
        raise ArgumentValueError(
            f"rule must be one of the rules of process_all(), whose results df has, {found}, got {rule!r}"
        )
    return df.where(quoted(rule).isNotNull()).select(f"{backticks(rule)}.*")


def _checked_rules(rules: object) -> dict[str, RowsRule]:
    wanted = "rules must be a dict of names to timerheap.spark.Rule or SqlRule"
    if not isinstance(rules, Mapping) or not all(isinstance(rule, RowsRule) for rule in rules.values()):
        raise ArgumentTypeError(
            f"{wanted}, got {rules!r}; write rules={{'spikes': Rule(Spikes(), 'x long')}}"
        )
    if not rules:
        raise ArgumentValueError(f"{wanted}, one or more, got {{}}")
    seen: set[str] = set()
    for name in rules:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"{wanted}, got the name {name!r}")
        if not name or "/" in name or name.startswith(OURS) or name.lower() in seen | {SIDE_OUTPUT}:
            raise ArgumentValueError(
                f"rules must have different names, in any case of their letters, that are not empty, have no "
                f"'/', are not {SIDE_OUTPUT!r} and do not begin with {OURS!r}, got {name!r}"
            )
        seen.add(name.lower())
    return dict(rules)


def _changes(state_changes: object, rules: Collection[str]) -> StateChanges:
    """Return the argument, checked, with rules to drop apart from their states."""
    changes = changed_states(state_changes)
    gone = [name for name in changes.drop if "/" not in name]
    for name in gone:
        if name in rules:
            raise ArgumentValueError(
                f"state_changes must drop rules that have been removed, got {name!r}, which is among the "
                "rules; leave that out, or remove the rule"
            )
    renamed = [name for name in changes.rename.values() if "/" not in name]
    if renamed:
        raise ArgumentValueError(
            "state_changes must give a state a name such as 'spikes/last', with that of its rule, got "
            f"{renamed[0]!r}; a rule itself keeps its name"
        )
    drop = tuple(name for name in changes.drop if name not in gone)
    expected = tuple(name for name in changes.expected if name not in gone)
    return replace(changes, drop=drop, drop_below=tuple(map(of_rule, gone)), expected=expected)
