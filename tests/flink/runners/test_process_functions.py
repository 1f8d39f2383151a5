"""Process functions, as users run them, compared with Flink's timer services and queues.

The commands of each trace are the rows of a `KeyedProcessFunction` or a `BatchProcessFunction` in
`ProcessTester`, which is the runtime of `timerheap.spark.process` with one key group. Compared are the timers
that fire, their order where Flink defines one, the watermark and the clock that callbacks see, the pending
timers, and snapshots.

===============  ====  =======  ===========================================================================
traces           rows  columns  what cannot be said
===============  ====  =======  ===========================================================================
timer_service     400      400  Functions have no namespaces: where a trace has several, a timer has a name,
                                made of its namespace and its timestamp.
both domains      134      134  Of these: a processing-time timer behind the clock that is still pending when
                                the watermark advances. On Spark the micro-batch that registers it fires it.
                                Such traces are replayed by time domain: what callbacks of the other domain do
                                comes as rows.
pq                400      400  ``subset`` and ``adderr``: the key groups of users' keys are Spark's.
===============  ====  =======  ===========================================================================

Of the other traces, test_window_runners.py replays those of windows on what runs windows on Spark. What a
Spark query uses itself replays watermark_valve (the channels of an input), watermark_combine (the inputs of a
query), watermark_generators without idleness, and async_queue (`async_map`). Not replayed are timer_bytes,
key_groups and key_group_ranges, which are Flink's bytes and hashes, where state is Spark's here; and
idleness and the multiplexer of watermark_generators: on Spark a micro-batch says who had rows.

A watermark that goes back begins a new tester that is given the pending timers, and so does a restored
service, whose watermark is Flink's lowest: on Spark the watermark is part of the state and never goes back.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from timerheap import MAX_WATERMARK, MIN_WATERMARK, BatchProcessFunction, KeyedProcessFunction
from timerheap.testing import ProcessTester
from timerheap.time import TimeDomain

Rules = dict[tuple[Any, ...], list[tuple[str, str, int]]]


class Fired(NamedTuple):
    """A timer that fires, or kind "c": a command."""

    kind: str
    timestamp: int
    key: Any
    namespace: str


class Command(NamedTuple):
    act: str  # "re", "de", "rp" or "dp": register or delete a timer of event time or processing time
    timestamp: int
    key: Any
    namespace: str


class Advance(NamedTuple):
    kind: str  # "e": the watermark; "p": the clock
    time: int
    fired: list[Fired]


class Holds(NamedTuple):
    """Numbers or lists of pending timers, those of event time and of processing time; None is not known."""

    event: Any
    processing: Any
    namespace: str | None = None  # whose timers are counted, None for all


class Restart(NamedTuple):
    pending: list[Command]  # which register the timers that are kept


Step = Command | Advance | Holds | Restart


def namespace_of(value: Any) -> str:
    return json.dumps(value)


class Service:
    """A trace of timer_service as steps of one time domain, "e" or "p", or of both, "ep"."""

    def __init__(self, trace: dict[str, Any], domains: str = "ep") -> None:
        self.trace = trace
        self.domains = domains
        self.exact = trace["order"] == "exact"
        self.rules: Rules = defaultdict(list)
        for kind, timestamp, key, namespace, acts in trace["rules"]:
            rule = self.rules[kind, timestamp, key, namespace_of(namespace)]
            rule += [(act, namespace_of(other), at) for act, other, at in acts]

    def namespaces(self) -> list[str]:
        own = {namespace_of(op[2]) for op in self.trace["ops"] if op[0][0] in "rd" and op[0] != "restore"}
        return sorted(own | {act[1] for acts in self.rules.values() for act in acts})

    def leaves_past_timers(self) -> bool:
        """Return whether a processing-time timer is registered behind the clock before a watermark."""
        now, past = 0, False
        for op in self.trace["ops"]:
            match op:
                case ["rp", _, _, timestamp, _]:
                    past |= timestamp < now
                case ["pt", now, _, _]:
                    past = False
                case ["wm", _, fired, _]:
                    acts = [act for each in self.fired(fired) for act in self.rules.get(each, [])]
                    past |= any(act == "rp" and timestamp < now for act, _, timestamp in acts)
                    if past:
                        return True
        return False

    def fired(self, fired: list[Any]) -> list[Fired]:
        return [Fired(kind, at, key, namespace_of(namespace)) for kind, at, key, namespace in fired]

    def steps(self) -> Iterator[Step]:
        for op in self.trace["ops"]:
            match op:
                case ["re" | "de" | "rp" | "dp" as act, key, namespace, timestamp, [*counts, _, _]]:
                    if act[1] in self.domains:
                        yield Command(act, timestamp, key, namespace_of(namespace))
                        yield self.holds(*counts)
                case ["wm" | "pt" as name, time, fired, [*counts, _, _]]:
                    kind = {"wm": "e", "pt": "p"}[name]
                    timers = self.fired(fired)
                    if kind in self.domains:
                        yield Advance(kind, time, timers)
                    else:  # what these callbacks do are rows for the other domain
                        yield from (
                            Command(act, at, timer.key, namespace)
                            for timer in timers
                            for act, namespace, at in self.rules.get(timer, [])
                            if act[1] in self.domains
                        )
                    yield self.holds(*counts)
                case ["count", namespace, event, processing]:
                    yield self.holds(event, processing, namespace_of(namespace))
                case ["groups", event, processing]:
                    yield self.holds(*map(self.timers, "ep", (event, processing)))
                case ["restore", _, event, processing, _]:
                    held = zip("ep", (event, processing), strict=True)
                    yield Restart(
                        [
                            Command(f"r{kind}", timer.timestamp, timer.key, timer.namespace)
                            for kind, groups in held
                            if kind in self.domains
                            for timer in self.timers(kind, groups)
                        ]
                    )
                case _:
                    pytest.fail(f"unknown operation {op}")

    def holds(self, event: Any, processing: Any, namespace: str | None = None) -> Holds:
        known = [
            each if kind in self.domains else None
            for kind, each in zip("ep", (event, processing), strict=True)
        ]
        return Holds(*known, namespace)

    def timers(self, kind: str, groups: list[Any]) -> list[Fired]:
        return self.fired([(kind, *timer) for _, timers in groups for timer in timers])


class Queue:
    """A trace of pq as steps: to poll all timers of the first timestamp is to advance the watermark to it."""

    domains = "e"
    exact = False

    def __init__(self, trace: dict[str, Any]) -> None:
        self.trace = trace
        self.rules: Rules = {}

    def namespaces(self) -> list[str]:
        return sorted({each.namespace for each in self.steps() if isinstance(each, Command)})

    def steps(self) -> Iterator[Step]:
        for op in self.trace["ops"]:
            match op:
                case ["add" | "remove" as name, timestamp, key, namespace, _, size]:
                    act = {"add": "re", "remove": "de"}[name]
                    yield Command(act, timestamp, key, namespace_of(namespace))
                    yield Holds(size, None)
                case ["addall", timers, size]:
                    for timestamp, key, namespace in timers:
                        yield Command("re", timestamp, key, namespace_of(namespace))
                    yield Holds(size, None)
                case ["pollts", timestamp, timers, size]:
                    yield Advance("e", timestamp, self.fired(timers))
                    yield Holds(size, None)
                case ["poll", None, size] | ["peek", _, size]:
                    yield Holds(size, None)
                case ["all", timers]:
                    yield Holds(self.fired(timers), None)
                case ["clear", 0]:
                    yield Restart([])
                case ["subset" | "adderr", *_]:
                    pass
                case _:
                    pytest.fail(f"unknown operation {op}")

    def fired(self, timers: list[Any]) -> list[Fired]:
        return [Fired("e", at, key, namespace_of(namespace)) for at, key, namespace in timers]


class Names:
    """The names of the timers of a trace, which have their identities."""

    def __init__(self, trace: Service | Queue) -> None:
        self.namespaces = trace.namespaces()

    def name(self, namespace: str, timestamp: int) -> str | None:
        return f"{timestamp}@{namespace}" if len(self.namespaces) > 1 else None

    def namespace(self, name: str | None) -> str:
        return self.namespaces[0] if name is None else name.partition("@")[2]


class Rows(KeyedProcessFunction):
    """Carries out commands, and the rules of a trace, row by row."""

    def __init__(self, trace: Service | Queue) -> None:
        self.rules = dict(trace.rules)
        self.domains = trace.domains
        self.names = Names(trace)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield self.seen("c", value.due, value.namespace, ctx)
        self.act(value.act, value.namespace, value.due, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        kind = "e" if ctx.time_domain() is TimeDomain.EVENT_TIME else "p"
        seen = self.seen(kind, timestamp, self.names.namespace(ctx.timer_name()), ctx)
        for act, namespace, at in self.rules.get(seen[:4], []):
            if act[1] in self.domains:
                self.act(act, namespace, at, ctx)
        yield seen

    def act(self, act: str, namespace: str, timestamp: int, ctx: KeyedProcessFunction.Context) -> None:
        timers = ctx.timer_service()
        call = {
            "re": timers.register_event_time_timer,
            "rp": timers.register_processing_time_timer,
            "de": timers.delete_event_time_timer,
            "dp": timers.delete_processing_time_timer,
        }[act]
        name = self.names.name(namespace, timestamp)
        call(timestamp if act[0] == "r" or name is None else None, name=name)

    def seen(
        self, kind: str, timestamp: int, namespace: str, ctx: KeyedProcessFunction.Context
    ) -> tuple[Any, ...]:
        key = ctx.get_current_key()
        timers = ctx.timer_service()
        now = timers.current_processing_time() if "p" in self.domains else None
        return kind, timestamp, key, namespace, timers.current_watermark(), now, None


class Columns(BatchProcessFunction):
    """Carries out commands, and the rules of a trace, in columns."""

    def __init__(self, trace: Service | Queue, in_waves: bool) -> None:
        self.rules = dict(trace.rules)
        self.domains = trace.domains
        self.names = Names(trace)
        self.in_waves = in_waves

    def process_batch(self, batch: Any, ctx: BatchProcessFunction.Context) -> Iterable[pa.RecordBatch]:
        acts, namespaces = batch.column("act").to_pylist(), batch.column("namespace").to_pylist()
        due = batch.column("due").to_numpy()
        names = list(map(self.names.name, namespaces, due.tolist()))
        calls = list(zip(acts, names, strict=True))
        answers: list[bool] = []
        for (act, name), places in groupby(range(len(acts)), calls.__getitem__):
            same = list(places)
            answers += self.call(ctx, act, ctx.ids[same], due[same], name).tolist()
        yield self.seen("c", due, ctx.ids, namespaces, ctx, answers)

    def on_timers(self, due: Any, ctx: BatchProcessFunction.Context) -> Iterable[pa.RecordBatch]:
        kind = "e" if ctx.time_domain() is TimeDomain.EVENT_TIME else "p"
        keys = ctx.keys(due.ids).column("key").to_pylist()
        assert len(set(keys)) == len(keys) or not self.in_waves
        done = len(due)
        timers = list(zip(due.ids.tolist(), due.timestamps.tolist(), due.names.tolist(), strict=True))
        for place, (id_, timestamp, name) in enumerate(timers):
            acts = self.rules.get((kind, timestamp, keys[place], self.names.namespace(name)), [])
            acts = [act for act in acts if act[0][1] in self.domains]
            if acts and not self.in_waves:
                # The rest of the round has been taken off the heap. Put it back, so that these acts meet it
                # as they do in Flink; it is due, so that it fires in the next round.
                done = place + 1
                for other, at, name in timers[done:]:
                    self.call(ctx, f"r{kind}", [other], [at], name)
            for act, namespace, at in acts:
                self.call(ctx, act, [id_], [at], self.names.name(namespace, at))
            if done < len(due):
                break
        namespaces = [self.names.namespace(name) for _, _, name in timers[:done]]
        yield self.seen(kind, due.timestamps[:done], due.ids[:done], namespaces, ctx, [None] * done)

    def call(self, ctx: BatchProcessFunction.Context, act: str, ids: Any, due: Any, name: str | None) -> Any:
        timers = ctx.timer_service()
        call = {
            "re": timers.register_event_time_timers,
            "rp": timers.register_processing_time_timers,
            "de": timers.delete_event_time_timers,
            "dp": timers.delete_processing_time_timers,
        }[act]
        return call(ids, due if act[0] == "r" or name is None else None, name=name)

    def seen(
        self, kind: str, due: Any, ids: Any, namespaces: Any, ctx: Any, answers: list[bool | None]
    ) -> pa.RecordBatch:
        n = len(due)
        now = ctx.timer_service().current_processing_time() if "p" in self.domains else None
        return pa.record_batch(
            {
                "kind": pa.array([kind] * n),
                "due": pa.array(due),
                "key": ctx.keys(ids).column("key"),
                "namespace": pa.array(namespaces, pa.string()),
                "watermark": pa.array(ctx.watermarks[:n]),
                "now": pa.array([now] * n, pa.int64()),
                "changed": pa.array(answers, pa.bool_()),
            }
        )


class Replay:
    """Replays the steps of a trace in `ProcessTester`.

    Parameters
    ----------
    trace : Service or Queue
    function : {"rows", "columns"}
    mode : {"each", "untimed", "arrival", "event_time"}
        "each": a micro-batch for each command. The others: one for the commands up to the next advance; a
        query without event time, in which no row comes with time; in order of arrival; in event-time order.
    """

    def __init__(self, trace: Service | Queue, function: str, mode: str) -> None:
        self.trace = trace
        self.mode = mode
        self.in_columns = function == "columns"
        self.in_waves = self.in_columns and mode == "event_time"
        self.now = 0
        self.begin([])

    def begin(self, pending: list[Command]) -> None:
        """Begin a new tester with these timers, at the lowest watermark."""
        self.tester = self.new_tester()
        if "p" in self.trace.domains:
            self.tester.advance_clock(self.now)
        self.block = pending
        self.out: list[Any] = []
        if self.mode == "each":
            self.push_block()

    def new_tester(self) -> ProcessTester:
        type_ = {"long": "bigint", "string": "string"}[self.trace.trace["key"]]
        timed = self.mode in ("arrival", "event_time")
        return ProcessTester(
            Columns(self.trace, self.in_waves) if self.in_columns else Rows(self.trace),
            key="key",
            input_schema=f"number int, key {type_}, namespace string, act string, due bigint, at bigint",
            output_schema=f"kind string, due bigint, key {type_}, namespace string, watermark bigint, "
            "now bigint, changed boolean",
            event_time="at" if timed else None,
            order=self.mode if timed else "arrival",
            processing_time="p" in self.trace.domains,
        )

    def run(self) -> None:
        for step in self.trace.steps():
            match step:
                case Command() if self.mode == "each":
                    self.push([step])
                case Command():
                    self.block.append(step)
                case Advance("e"):
                    self.advance_watermark(step)
                case Advance():
                    self.push_block()
                    self.now = step.time
                    self.out += self.tester.advance_clock(step.time)
                    self.check(step.fired)
                case Holds():
                    self.check_holds(step)
                case Restart():
                    self.restart(step.pending)

    def push(self, commands: list[Command]) -> None:
        before = len(self.tester.timers())
        watermark = self.tester.watermark
        at = min(watermark, MAX_WATERMARK - 1) + 1  # the first time that is not late
        # Rows of one key and time are processed in the order of their columns, the number first.
        rows = [
            (n, each.key, each.namespace, each.act, each.timestamp, at) for n, each in enumerate(commands)
        ]
        out = self.tester.push(rows)
        if self.mode == "event_time":
            assert not out
            return
        commanded, fired = [row for row in out if row.kind == "c"], [row for row in out if row.kind != "c"]
        self.check_commands(commands, commanded, watermark)
        assert {row.watermark for row in fired} <= {watermark}
        if self.mode in ("each", "untimed"):
            assert all(row.kind == "p" for row in fired)
        if self.in_columns and not fired:
            changes = [{"r": 1, "d": -1}[each.act[0]] for each in commands]
            made = sum(way for way, row in zip(changes, commanded, strict=True) if row.changed)
            assert len(self.tester.timers()) == before + made
        self.out += fired

    def check_commands(self, commands: list[Command], rows: list[Any], watermark: int) -> None:
        got = [(row.due, row.key, row.namespace) for row in rows]
        expected = [(each.timestamp, each.key, each.namespace) for each in commands]
        assert Counter(got) == Counter(expected) if self.mode == "event_time" else got == expected
        assert {row.watermark for row in rows} <= {watermark}
        assert {row.now for row in rows} <= {self.now if "p" in self.trace.domains else None}

    def push_block(self) -> None:
        block, self.block = self.block, []
        if block:
            self.push(block)

    def advance_watermark(self, step: Advance) -> None:
        """Advance to a watermark, in a new tester if this one is already further."""
        time = max(step.time, MIN_WATERMARK + 1)
        lowest = self.tester.watermark + (self.mode != "arrival")
        if time < lowest:
            self.begin(self.pending() + self.block)
        before, commands = self.tester.watermark, self.block
        self.push_block()
        out = self.tester.advance_watermark(time)
        if self.mode == "event_time":
            self.check_commands(commands, [row for row in out if row.kind == "c"], before)
            out = [row for row in out if row.kind != "c"]
            seen: dict[Any, int] = {}  # by each key: its own time, which is the last timestamp
            for row in out:
                seen[row.key] = max(row.due, seen.get(row.key, before))
                assert row.watermark == seen[row.key]
        else:
            assert {row.watermark for row in out} <= {time}
        self.out += out
        self.check(step.fired)

    def check(self, expected: list[Fired]) -> None:
        fired, self.out = [Fired(*row[:4]) for row in self.out], []
        assert Counter(fired) == Counter(expected)
        if not self.trace.exact:
            return
        if self.in_waves:  # the order within a key is defined
            fired, expected = (sorted(each, key=lambda timer: str(timer.key)) for each in (fired, expected))
        assert fired == expected

    def timers(self) -> list[Fired]:
        """Return the pending timers as the traces write them."""
        names = Names(self.trace)
        return [
            Fired(
                "e" if timer.time_domain is TimeDomain.EVENT_TIME else "p",
                timer.timestamp,
                timer.key,
                names.namespace(timer.name),
            )
            for timer in self.tester.timers()
        ]

    def pending(self) -> list[Command]:
        return [Command(f"r{timer.kind}", *timer[1:]) for timer in self.timers()]

    def check_holds(self, expected: Holds) -> None:
        if self.block or self.out:
            return  # rows that are not pushed yet, or timers that Flink's clock fires later
        timers = self.timers()
        if expected.namespace is not None:
            timers = [timer for timer in timers if timer.namespace == expected.namespace]
        for kind, held in zip("ep", (expected.event, expected.processing), strict=True):
            own = [timer for timer in timers if timer.kind == kind]
            assert own == sorted(own, key=lambda timer: timer.timestamp)
            if isinstance(held, list):
                assert Counter(own) == Counter(held)
            elif held is not None:
                assert len(own) == held

    def restart(self, kept: list[Command]) -> None:
        """Restore a snapshot in a new tester; go on with the timers that Flink's new service owns."""
        if not self.block and not self.out:
            before = self.tester.timers(), self.tester.watermark
            other = self.new_tester()
            other.restore(self.tester.snapshot())
            assert (other.timers(), other.watermark) == before
            assert set(kept) <= set(self.pending())
        self.begin(kept)


@pytest.mark.parametrize("traces", ["timer_service"], indirect=True)
@pytest.mark.parametrize("function", ["rows", "columns"])
@pytest.mark.parametrize(
    ("domains", "mode"),
    [("e", "each"), ("e", "arrival"), ("e", "event_time"), ("p", "untimed"), ("ep", "untimed")],
)
def test_timers_fire_as_in_flink(traces: Any, function: str, domains: str, mode: str) -> None:
    def replay(trace: dict[str, Any]) -> None:
        said = Service(trace, domains)
        if domains != "ep" or not said.leaves_past_timers():
            Replay(said, function, mode).run()

    traces.replay_share(replay, function, domains, mode)


@pytest.mark.parametrize("traces", ["timer_service"], indirect=True)
def test_as_many_traces_have_both_domains_as_the_table_says(traces: Any) -> None:
    both = [trace for trace in traces if not Service(trace).leaves_past_timers()]
    assert len(both) == 134 or not traces.are_ours


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("traces", ["pq"], indirect=True)
@pytest.mark.parametrize("function", ["rows", "columns"])
@pytest.mark.parametrize("mode", ["each", "arrival", "event_time"])
def test_timers_are_polled_as_in_flink(traces: Any, function: str, mode: str) -> None:
    traces.replay_share(lambda trace: Replay(Queue(trace), function, mode).run(), function, mode)
