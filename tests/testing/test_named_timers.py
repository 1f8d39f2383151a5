"""Timers with names: a key has one of each, which moves; in rows, in columns and with two inputs."""

from __future__ import annotations

import random
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from timerheap import (
    BatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)
from timerheap.flink import (
    KeyedCoProcessOperator,
    KeyedProcessOperator,
    ManualProcessingTimeService,
    StreamRecord,
)
from timerheap.testing import PendingTimer, ProcessTester

ROWS = "k string, at bigint, act string, name string, time bigint"
OUT = "k string, at bigint, name string, domain string"


def text(value: Any) -> str:
    return "-" if value is None else value


class Acts(KeyedProcessFunction):
    """Does what each row says."""

    def process_element(self, value: Any, ctx: Any) -> None:
        act(ctx.timer_service(), value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, text(ctx.timer_name()), ctx.time_domain().name


def act(timers: Any, value: Any) -> None:
    name = None if value.name == "-" else value.name
    time = None if value.act.startswith("delete") and name else value.time
    if value.act == "register":
        timers.register_event_time_timer(time, name=name)
    elif value.act == "delete":
        timers.delete_event_time_timer(time, name=name)
    elif value.act == "register_clock":
        timers.register_processing_time_timer(time, name=name)
    elif value.act == "delete_clock":
        timers.delete_processing_time_timer(time, name=name)
    else:
        assert value.act == "delete_all"
        timers.delete_all_timers()


class ActsInColumns(BatchProcessFunction):
    """Does the same in columns."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        timers, rows = ctx.timer_service(), batch.to_pylist()
        for row in range(len(rows)):
            ids, value = ctx.ids[row : row + 1], rows[row]
            name = None if value["name"] == "-" else value["name"]
            time = None if value["act"].startswith("delete") and name else [value["time"]]
            action, _, clock = value["act"].partition("_")
            method = f"{action}_{'processing' if clock else 'event'}_time_timers"
            getattr(timers, method)(ids, time, name=name)

    def on_timers(self, due: Any, ctx: Any) -> Any:
        domain = [ctx.time_domain().name] * len(due)
        names = [text(name) for name in due.names]
        keys = ctx.keys(due.ids).column("k")
        yield pa.record_batch([keys, due.timestamps, names, domain], names=["k", "at", "name", "domain"])


class ActsOfTwo(KeyedCoProcessFunction):
    """Does the same with two inputs."""

    def process_element1(self, value: Any, ctx: Any) -> None:
        act(ctx.timer_service(), value)

    process_element2 = process_element1
    on_timer = Acts.on_timer


class ActsWithRules(KeyedBroadcastProcessFunction):
    """Does the same beside broadcast state."""

    def process_element(self, value: Any, ctx: Any) -> None:
        act(ctx.timer_service(), value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        pass

    on_timer = Acts.on_timer


class Model:
    """The timers as Flink's process table functions describe them, by identity."""

    def __init__(self) -> None:
        self.timers: dict[tuple[Any, ...], int] = {}

    def act(self, key: str, act: str, name: str, time: int) -> None:
        domain = "PROCESSING_TIME" if act.endswith("clock") else "EVENT_TIME"
        identity = (key, domain, name) if name != "-" else (key, domain, name, time)
        if act == "delete_all":
            self.timers = {timer: at for timer, at in self.timers.items() if timer[0] != key}
        elif act.startswith("register"):
            self.timers[identity] = time
        else:
            self.timers.pop(identity, None)

    def times(self, key: str, domain: str) -> list[int]:
        return [at for timer, at in self.timers.items() if timer[:2] == (key, domain)]

    def fire(self, domain: str, time: int) -> list[tuple[Any, ...]]:
        due = [(at, timer) for timer, at in self.timers.items() if timer[1] == domain and at <= time]
        for _, timer in due:
            del self.timers[timer]
        return sorted((timer[0], at, timer[2], domain) for at, timer in due)


def new_tester(function: Any) -> ProcessTester:
    options: dict[str, Any] = {"event_time": "at", "processing_time": True, "order": "arrival"}
    if isinstance(function, ActsWithRules):
        options |= {"rules_schema": "rule string"}
    if isinstance(function, ActsOfTwo):
        options |= {"right_schema": ROWS}
    return ProcessTester(function, "k", ROWS, OUT, **options)


@pytest.mark.parametrize("hashes", ["different", "one"])
@pytest.mark.parametrize("function", [Acts, ActsInColumns, ActsOfTwo, ActsWithRules])
@pytest.mark.promises(
    "PyFlink",
    "added",
    "KeyedProcessFunction.OnTimerContext.timer_name",
    note="as in Flink's process table functions, whose `registerOnTime` takes a name",
)
def test_timers_with_and_without_names_do_what_a_model_does(
    monkeypatch: pytest.MonkeyPatch, function: type[Any], hashes: str
) -> None:
    if hashes == "one":
        monkeypatch.setattr("timerheap._key_timers.namespace_of", lambda name: 7)
    for seed in range(6):
        draw = random.Random(seed)
        test, model, now = new_tester(function()), Model(), 0
        acts = ["register"] * 4 + ["delete"] + ["register_clock"] * 3 + ["delete_clock"]
        acts += [] if function is ActsInColumns else ["delete_all"]
        for _ in range(60):
            row = draw.choice("abc"), now, draw.choice(acts), draw.choice(["-", "silent", "weekly", "once"])
            row += (now + draw.randrange(1, 40),)
            push = draw.choice([test.push, test.push_right]) if function is ActsOfTwo else test.push
            fired = push([row])
            assert fired == []
            model.act(row[0], *row[2:])
            if draw.randrange(4) == 0:
                now += draw.randrange(12)
                fired = test.advance_watermark(now)
                assert [row[1] for row in fired] == sorted(row[1] for row in fired)
                assert sorted(map(tuple, fired)) == model.fire("EVENT_TIME", now)
                assert sorted(map(tuple, test.advance_clock(now))) == model.fire("PROCESSING_TIME", now - 1)
            pending = {
                (timer.key, timer.time_domain.name, text(timer.name), timer.timestamp)
                for timer in test.timers()
            }
            assert pending == {(*identity[:3], at) for identity, at in model.timers.items()}
            if draw.randrange(9) == 0:
                snapshot = test.snapshot()
                test = new_tester(function())
                test.restore(snapshot)


@pytest.mark.parametrize("function", [Acts, ActsOfTwo])
def test_an_operator_without_spark_does_what_the_model_does(function: type[Any]) -> None:
    for seed in range(6):
        draw, model, now = random.Random(seed), Model(), 0
        clock = ManualProcessingTimeService()
        operator, process, advance = opened(function(), clock)
        for _ in range(100):
            acts = ["register", "register_clock"] * 3 + ["delete", "delete_clock", "delete_all"]
            name = draw.choice(["-", "silent", "weekly", "once"])
            time = now + draw.randrange(1, 40)
            row = Row(k=draw.choice("abc"), act=draw.choice(acts), name=name, time=time)
            assert draw.choice(process)(row, now) == []
            model.act(*row)
            timers = operator._context.timer_service()
            assert timers.event_time_timers() == sorted(model.times(row.k, "EVENT_TIME"))
            assert timers.next_processing_time_timer(name="once") == model.timers.get(
                (row.k, "PROCESSING_TIME", "once")
            )
            if draw.randrange(4) == 0:
                now += draw.randrange(12)
                fired = [element.value for element in advance(now) if isinstance(element, StreamRecord)]
                assert sorted(fired) == model.fire("EVENT_TIME", now)
                fired = [element.value for element in operator.set_processing_time(now)]
                assert sorted(fired) == model.fire("PROCESSING_TIME", now)
        assert model.timers


def opened(function: Any, clock: Any) -> tuple[Any, list[Any], Any]:
    """An operator, what processes elements, and what advances its watermark."""
    if isinstance(function, Acts):
        one = KeyedProcessOperator(function, itemgetter(0), clock=clock).open()
        return one, [one.process_element], one.process_watermark
    two = KeyedCoProcessOperator(function, itemgetter(0), itemgetter(0), clock=clock).open()
    return (
        two,
        [two.process_element1, two.process_element2],
        lambda now: two.process_watermark1(now) + two.process_watermark2(now),
    )


class ByState(KeyedProcessFunction):
    """Moves a timer as a PyFlink function does, with its timestamp in a state."""

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.due.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.due.value())
        self.due.update(value.time)
        ctx.timer_service().register_event_time_timer(value.time)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.due.clear()
        yield ctx.get_current_key(), timestamp, "", ""


class ByName(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.time, name="due")

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, "", ""


@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_a_named_timer_does_what_a_timestamp_in_state_does(order: str) -> None:
    draw = random.Random(order)
    rows = [(draw.choice("abcd"), at, "", "", at + draw.randrange(-5, 60)) for at in range(400)]
    outputs = []
    for function in (ByState(), ByName()):
        test = ProcessTester(function, "k", ROWS, OUT, event_time="at", order=order)
        found = []
        for start in range(0, 400, 25):
            found += test.push(rows[start : start + 25])
            found += test.advance_watermark(start + 20)
        outputs.append(found + test.advance_watermark(1_000))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 10


class Chain(KeyedProcessFunction):
    """Registers timers of one timestamp in the order of the row; each fires once."""

    def process_element(self, value: Any, ctx: Any) -> None:
        for name in value.name.split(","):
            ctx.timer_service().register_event_time_timer(value.time, name=None if name == "-" else name)

    on_timer = Acts.on_timer


def test_the_order_of_equal_timestamps_depends_on_the_names_alone() -> None:
    names = ["-", "end", "remind", "silent", "weekly"]
    found = set()
    for seed in range(10):
        test = ProcessTester(Chain(), "k", ROWS, OUT, event_time="at")
        shuffled = random.Random(seed).sample(names, len(names))
        test.push([("a", 0, "", ",".join(shuffled), 50)])
        found.add(tuple(row.name for row in test.advance_watermark(60)))
    (order,) = found
    assert order[0] == "-", "the timer without a name fires first"
    assert sorted(order) == sorted(names)


class Faulty(KeyedProcessFunction):
    def __init__(self, call: Any) -> None:
        self.call = call

    def process_element(self, value: Any, ctx: Any) -> None:
        self.call(ctx.timer_service())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: t.register_event_time_timer(5, name=7), TypeError, "name must be a str, got 7"),
        (lambda t: t.register_event_time_timer(5, name=["x"]), TypeError, "name must be a str, got"),
        (lambda t: t.delete_event_time_timer(), TypeError, "timestamp must be an int"),
        (
            lambda t: t.delete_event_time_timer(5, name="x"),
            TypeError,
            "timestamp must be left out for the timer",
        ),
        (lambda t: t.delete_processing_time_timer(name=b"x"), TypeError, "name must be a str, got b'x'"),
        (lambda t: t.register_event_time_timer(5, name="\ud800"), ValueError, "name must be valid Unicode"),
        (lambda t: t.register_event_time_timer(2**63, name="x"), OverflowError, "timestamp"),
    ],
)
def test_misuse_has_a_clear_error(call: Any, error: type[Exception], message: str) -> None:
    test = ProcessTester(Faulty(call), "k", ROWS, OUT, event_time="at", order="arrival", processing_time=True)
    with pytest.raises(error, match=message):
        test.push([("a", 0, "", "", 0)])
    if error is not ValueError:  # outside of Spark, a name may be any str
        with (
            KeyedProcessOperator(Faulty(call), itemgetter(0)) as operator,
            pytest.raises(error, match=message.replace("an int", "an integer")),
        ):
            operator.process_element(("a",), 0)


def test_misuse_in_columns_has_a_clear_error() -> None:
    class Calls(BatchProcessFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
            timers, ids = ctx.timer_service(), ctx.ids
            with pytest.raises(TypeError, match="name must be a str, got 7"):
                timers.register_event_time_timers(ids, 5, name=7)
            with pytest.raises(TypeError, match="got None; leave them out only with a name"):
                timers.delete_event_time_timers(ids)
            with pytest.raises(TypeError, match="must be left out for the timers with the name 'x', got 5"):
                timers.delete_event_time_timers(ids, 5, name="x")
            with pytest.raises(KeyError, match="ids must be ids of live keys"):
                timers.register_event_time_timers(ids + 1, 5, name="x")
            assert timers.register_event_time_timers(ids, 5, name="x").tolist() == [True]
            assert timers.register_event_time_timers(ids, 6, name="x").tolist() == [False]
            assert timers.delete_event_time_timers(ids, name="y").tolist() == [False]

    test = ProcessTester(Calls(), "k", ROWS, OUT, event_time="at", order="arrival")
    test.push([("a", 0, "", "", 0)])
    assert test.timers() == [PendingTimer("a", 6, "x", TimeDomain.EVENT_TIME)]


def test_names_may_be_any_text_and_many() -> None:
    names = ["", " ", "ö", "\0", "名前", *(f"n{number}" for number in range(300))]
    test = ProcessTester(Chain(), "k", ROWS, OUT, event_time="at")
    test.push([("a", 0, "", name, 50) for name in names])
    restored = ProcessTester(Chain(), "k", ROWS, OUT, event_time="at")
    restored.restore(test.snapshot())
    for one in (test, restored):
        assert sorted(row.name for row in one.advance_watermark(60)) == sorted(names)
        assert one.timers() == []
