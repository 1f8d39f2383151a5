"""Operators without Spark: order, copies, errors, a plain-Python model of state, and PyFlink's output."""

import json
import re
import threading
from collections import Counter
from pathlib import Path

import pyflink_body
import pytest

from timerheap import MAX_WATERMARK, MIN_WATERMARK, KeyedProcessFunction, OutputTag, TimeDomain, Types
from timerheap.flink import (
    ManualProcessingTimeService,
    StreamRecord,
    SystemProcessingTimeService,
    Watermark,
)
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.watermarks.output import WatermarkStatus

LONG = 60  # seconds; a timeout that no test reaches

README = Path(__file__).resolve().parents[2] / "README.md"
RECORDED = Path(__file__).resolve().parents[1] / "spark" / "data"


def first(value):
    return value[0]


def values(elements):
    return [element.value for element in elements if isinstance(element, StreamRecord)]


class Script(KeyedProcessFunction):
    """Performs the action of each value (key, action, argument, ...); a timer yields itself, then `then`."""

    def __init__(self, then=lambda timestamp, ctx: ()):
        self.then = then
        self.life = []

    def open(self, runtime_context):
        self.life.append("open")
        self.context = runtime_context

    def close(self):
        self.life.append("close")

    def process_element(self, value, ctx):
        _, action, *arguments = value
        if action == "yield":
            yield from arguments
        elif action == "see":
            yield ctx.get_current_key(), ctx.timestamp(), ctx.timer_service().current_watermark()
        elif action == "at":
            yield "before"
            for timestamp in arguments:
                ctx.set_output_timestamp(timestamp)
                yield timestamp
        elif action == "fail":
            yield "before"
            raise KeyError("in the function")
        else:
            getattr(ctx.timer_service(), action)(*arguments)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, ctx.time_domain(), ctx.timestamp()
        yield from self.then(timestamp, ctx)


@pytest.fixture
def operator():
    with KeyedProcessOperator(Script(), first) as operator:
        yield operator


def test_the_function_of_the_readme_runs():
    source = re.search(
        r"^class Silent\b.*?(?=^\w)", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    names = {"KeyedProcessFunction": KeyedProcessFunction}
    exec(source[0], names)
    with KeyedProcessOperator(names["Silent"](), key_selector=first) as operator:
        for sensor, seconds in [("a", 0), ("b", 10), ("a", 40)]:
            assert operator.process_element((sensor,), timestamp=seconds * 1_000) == []
        assert operator.num_event_time_timers() == 2
        silent = values(operator.process_watermark(180_000))
        assert silent == [("b", 70_000), ("a", 100_000)]
        operator.process_element(("a",), timestamp=180_000)
        assert values(operator.process_watermark(MAX_WATERMARK)) == [("a", 240_000)]


def test_records_have_the_timestamp_of_their_element(operator):
    assert operator.process_element(("k", "yield", 1, None, (2, 3)), 50) == [
        StreamRecord(1, 50),
        StreamRecord(None, 50),
        StreamRecord((2, 3), 50),
    ]
    assert operator.process_element(("k", "yield", 1)) == [StreamRecord(1, None)]
    assert values(operator.process_element(("k", "see"))) == [("k", None, MIN_WATERMARK)]
    operator.process_watermark(7)
    assert values(operator.process_element(("k", "see"), 5)) == [("k", 5, 7)]


@pytest.mark.promises("PyFlink", "added", "KeyedProcessFunction.Context.set_output_timestamp")
def test_a_function_may_set_the_timestamps_of_its_records(operator):
    assert operator.process_element(("k", "at", 10, None, 30), 5) == [
        StreamRecord("before", 5),
        StreamRecord(10, 10),
        StreamRecord(None, None),
        StreamRecord(30, 30),
    ]
    assert operator.process_element(("k", "yield", 1), 6) == [StreamRecord(1, 6)]  # reset after each call
    with pytest.raises(OverflowError, match="timestamp"):
        operator.process_element(("k", "at", 2**63), 5)


def test_timers_fire_before_the_watermark_is_emitted(operator):
    for key, timestamp in [("a", 30), ("b", 10), ("a", 20), ("a", 20), ("b", 31)]:
        assert operator.process_element((key, "register_event_time_timer", timestamp), 0) == []
    operator.process_element(("a", "delete_event_time_timer", 20))
    assert operator.num_event_time_timers() == 3
    assert operator.process_watermark(30) == [
        StreamRecord(("b", 10, TimeDomain.EVENT_TIME, 10), 10),
        StreamRecord(("a", 30, TimeDomain.EVENT_TIME, 30), 30),
        Watermark(30),
    ]
    assert operator.process_watermark(30) == [Watermark(30)]
    assert operator.process_watermark(29) == [Watermark(29)]  # Flink's operator also emits a lower watermark
    assert operator.num_event_time_timers() == 1


def test_a_due_timer_registered_by_a_timer_fires_at_once():
    def register(timestamp, ctx):
        if timestamp == 10:
            for again in (3, 11, 50):
                ctx.timer_service().register_event_time_timer(again)
        return ()

    with KeyedProcessOperator(Script(register), first) as operator:
        operator.process_element(("a", "register_event_time_timer", 10))
        operator.process_element(("a", "register_event_time_timer", 12))
        fired = operator.process_watermark(20)
    assert [value[1] for value in values(fired)] == [10, 3, 11, 12]  # measured in PyFlink's thread mode


@pytest.mark.promises("PyFlink", "supported", "TimeDomain.PROCESSING_TIME")
def test_records_of_processing_time_timers_have_no_timestamp(operator):
    operator.process_element(("a", "register_processing_time_timer", 100), 5)
    assert operator.num_processing_time_timers() == 1
    assert operator.set_processing_time(99) == []
    assert operator.set_processing_time(100) == [
        StreamRecord(("a", 100, TimeDomain.PROCESSING_TIME, 100), None)
    ]
    operator.process_watermark(1_000)
    assert operator.num_processing_time_timers() == 0


def test_the_watermark_status_is_emitted(operator):
    assert operator.process_watermark_status(WatermarkStatus.IDLE) == [WatermarkStatus.IDLE]
    assert operator.process_watermark_status(WatermarkStatus.ACTIVE) == [WatermarkStatus.ACTIVE]


def test_output_receives_each_element_when_it_is_emitted():
    elements = []
    with KeyedProcessOperator(Script(), first, output=elements.append) as operator:
        assert operator.process_element(("k", "yield", 1, 2), 5) == []
        assert operator.process_watermark(5) == []
    assert elements == [StreamRecord(1, 5), StreamRecord(2, 5), Watermark(5)]


class Silent(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return None


class Listing(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return [value, value]


def test_functions_need_not_be_generators():
    with KeyedProcessOperator(Silent(), first) as operator:
        assert operator.process_element("k", 1) == []
        assert operator.process_watermark(1) == [Watermark(1)]
    with KeyedProcessOperator(Listing(), first) as operator:
        assert values(operator.process_element("k", 1)) == ["k", "k"]


@pytest.mark.parametrize("bare", [5, "record", b"record", {"plane": "N14228"}, ("N14228", 5)])
def test_returning_a_single_record_raises(bare):
    class Bare(KeyedProcessFunction):
        def process_element(self, value, ctx):
            return bare

    with KeyedProcessOperator(Bare(), lambda value: value) as operator:
        with pytest.raises(
            TypeError, match=r"process_element must yield records or return an iterable of them, got"
        ):
            operator.process_element("key")
        assert operator.process_watermark(5) == [Watermark(5)]


def test_a_system_clock_fires_timers_between_calls():
    fired = threading.Event()
    elements = []

    def output(element):
        elements.append((element, threading.current_thread() is not threading.main_thread()))
        fired.set()

    with (
        SystemProcessingTimeService() as clock,
        KeyedProcessOperator(Script(), first, clock=clock, output=output) as operator,
    ):
        timestamp = clock.get_current_processing_time() + 5
        operator.process_element(("a", "register_processing_time_timer", timestamp))
        assert fired.wait(LONG)
    assert elements == [(StreamRecord(("a", timestamp, TimeDomain.PROCESSING_TIME, timestamp), None), True)]


def test_the_next_call_returns_the_output_of_timers_first():
    clock = ManualProcessingTimeService()
    with KeyedProcessOperator(Script(), first, clock=clock) as operator:
        operator.process_element(("a", "register_processing_time_timer", 5))
        clock.set_current_time(6)
        assert values(operator.process_element(("b", "yield", 1))) == [
            ("a", 5, TimeDomain.PROCESSING_TIME, 5),
            1,
        ]


def test_setting_a_system_clock_raises():
    with (
        SystemProcessingTimeService() as clock,
        KeyedProcessOperator(Script(), first, clock=clock) as operator,
        pytest.raises(TypeError, match="ManualProcessingTimeService"),
    ):
        operator.set_processing_time(5)


@pytest.mark.promises("PyFlink", "supported", "RuntimeContext.get_max_number_of_parallel_subtasks")
def test_an_operator_must_be_open_and_opens_its_function_once():
    function = Script()
    operator = KeyedProcessOperator(function, first, max_parallelism=16)
    for call in (
        lambda: operator.process_element(("k", "yield", 1)),
        lambda: operator.process_watermark(1),
        lambda: operator.set_processing_time(1),
        lambda: operator.process_watermark_status(WatermarkStatus.IDLE),
    ):
        with pytest.raises(RuntimeError, match="open"):
            call()
    assert function.life == []
    assert operator.open() is operator
    assert operator.open().process_element(("k", "yield", 1)) == [StreamRecord(1)]
    assert function.context.get_max_number_of_parallel_subtasks() == 16
    operator.close()
    operator.close()
    assert function.life == ["open", "close"]


def test_a_closed_operator_fires_no_timer():
    clock = ManualProcessingTimeService()
    with KeyedProcessOperator(Script(), first, clock=clock) as operator:
        operator.process_element(("a", "register_processing_time_timer", 5))
        operator.process_element(("a", "register_event_time_timer", 5))
    clock.set_current_time(100)
    assert operator.num_processing_time_timers() == operator.num_event_time_timers() == 1
    with pytest.raises(RuntimeError, match="closed"):
        operator.open()


class Does(KeyedProcessFunction):
    """Calls what an element has with the timer service."""

    def process_element(self, value, ctx):
        yield value[1](ctx.timer_service())

    def on_timer(self, timestamp, ctx):
        yield ctx.time_domain(), timestamp


def done(operator, key, act):
    ((result, _),) = operator.process_element((key, act))
    return result


@pytest.mark.promises(
    "PyFlink",
    "added",
    "TimerService.event_time_timers",
    "TimerService.processing_time_timers",
    "TimerService.next_event_time_timer",
    "TimerService.next_processing_time_timer",
    "TimerService.delete_all_timers",
)
def test_a_timer_service_lists_the_timers_of_the_current_key():
    def register(timers):
        for timestamp in (30, 10):
            timers.register_event_time_timer(timestamp)
            timers.register_processing_time_timer(timestamp + 1)

    def times(timers):
        return timers.event_time_timers(), timers.processing_time_timers()

    def heads(timers):
        return timers.next_event_time_timer(), timers.next_processing_time_timer()

    with KeyedProcessOperator(Does(), first) as operator:
        done(operator, "key", lambda timers: timers.register_event_time_timer(20, name="of the other key"))
        for key in ("a", "b"):
            done(operator, key, register)
        assert done(operator, "b", times) == ([10, 30], [11, 31])
        assert done(operator, "b", heads) == (10, 11)
        assert done(operator, "b", lambda timers: timers.delete_all_timers()) == 4
        assert done(operator, "b", times) == ([], [])
        assert done(operator, "b", heads) == (None, None)
        assert done(operator, "a", times) == ([10, 30], [11, 31])
        assert done(operator, "key", times) == ([20], [])
        assert operator.num_event_time_timers() == 3


@pytest.mark.promises("PyFlink", "supported", "TimerService.delete_processing_time_timer")
def test_a_timer_service_registers_and_deletes_timers():
    def act(timers):
        timers.register_event_time_timer(5)
        timers.register_event_time_timer(6)
        timers.delete_event_time_timer(6)
        timers.register_processing_time_timer(150)
        timers.register_processing_time_timer(160)
        timers.delete_processing_time_timer(160)
        return timers.current_processing_time(), timers.current_watermark()

    with KeyedProcessOperator(Does(), first, clock=ManualProcessingTimeService(100)) as operator:
        assert done(operator, "key", act) == (100, MIN_WATERMARK)
        fired = [*operator.process_watermark(10), *operator.set_processing_time(200)]
        assert values(fired) == [(TimeDomain.EVENT_TIME, 5), (TimeDomain.PROCESSING_TIME, 150)]
        assert done(operator, "key", lambda timers: timers.current_watermark()) == 10
    assert [domain.value for domain in TimeDomain] == [0, 1]  # as in PyFlink


def test_keys_without_timers_are_forgotten():
    def next_ms(timers):
        timers.register_event_time_timer(timers.current_watermark() + 1)

    with KeyedProcessOperator(Does(), first) as operator:
        done(operator, "kept", lambda timers: timers.register_event_time_timer(9_000))
        for key in range(3_000):
            done(operator, key, next_ms)
            assert len(operator.process_watermark(key)) == 2
        assert len(operator._keys._ids) < 2_000
        assert len(operator._event.single) < 2_000
        assert values(operator.process_watermark(9_000)) == [(TimeDomain.EVENT_TIME, 9_000)]


@pytest.mark.parametrize("name", [None, "once"])
def test_a_timer_that_the_clock_refuses_is_not_registered(name):
    class Refusing(ManualProcessingTimeService):
        def register_timer(self, timestamp, callback):
            if timestamp < 10:
                raise RuntimeError("not now")
            return super().register_timer(timestamp, callback)

    with KeyedProcessOperator(Does(), first, clock=Refusing()) as operator:
        done(operator, "a", lambda timers: timers.register_processing_time_timer(20, name=name))
        with pytest.raises(RuntimeError, match="not now"):
            done(operator, "a", lambda timers: timers.register_processing_time_timer(5, name=name))
        assert done(operator, "a", lambda timers: timers.processing_time_timers()) == [20]
        assert values(operator.set_processing_time(20)) == [(TimeDomain.PROCESSING_TIME, 20)]


def test_an_exception_in_the_function_loses_no_output(operator):
    with pytest.raises(KeyError, match="in the function") as caught:
        operator.process_element(("k", "fail"), 5)
    assert caught.value.__notes__ == ["timerheap: in process_element, key 'k', timestamp 5"]
    assert operator.process_element(("k", "yield", 1), 6) == [StreamRecord("before", 5), StreamRecord(1, 6)]


def test_an_exception_in_a_timer_loses_only_that_timer():
    def fail(timestamp, ctx):
        if timestamp == 2:
            raise KeyError("in a timer")
        return ()

    with KeyedProcessOperator(Script(fail), first) as operator:
        for timestamp in (1, 2, 3):
            operator.process_element(("k", "register_event_time_timer", timestamp))
        with pytest.raises(KeyError) as caught:
            operator.process_watermark(9)
        assert caught.value.__notes__ == ["timerheap: in on_timer, key 'k', timestamp 2"]
        elements = operator.process_watermark(9)
    assert [value[1] for value in values(elements)] == [1, 2, 3]
    assert elements[-1] == Watermark(9)
    assert elements.count(Watermark(9)) == 1


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ([1], TypeError, r"key must be hashable, got \[1\]"),
        (None, ValueError, "key must not be None"),
        (float("nan"), ValueError, "got nan"),
    ],
)
def test_an_invalid_key_raises(operator, key, error, message):
    with pytest.raises(error, match=message):
        operator.process_element((key, "yield", 1), 5)
    assert operator.process_watermark(1) == [Watermark(1)]


@pytest.mark.parametrize(("timestamp", "error"), [("5", TypeError), (5.0, TypeError), (2**63, OverflowError)])
def test_an_invalid_timestamp_or_watermark_raises(operator, timestamp, error):
    with pytest.raises(error, match="timestamp"):
        operator.process_element(("k", "yield", 1), timestamp)
    with pytest.raises(error, match="watermark"):
        operator.process_watermark(timestamp)
    assert operator.process_element(("k", "see")) == [StreamRecord(("k", None, MIN_WATERMARK))]


def test_invalid_arguments_raise(operator):
    with pytest.raises(TypeError, match="function must be a KeyedProcessFunction"):
        KeyedProcessOperator(first, first)
    with pytest.raises(ValueError, match="max_parallelism"):
        KeyedProcessOperator(Script(), first, max_parallelism=0)
    with pytest.raises(TypeError, match="status must be a WatermarkStatus, got True"):
        operator.process_watermark_status(True)


class NeverOpens(Script):
    def open(self, runtime_context):
        raise KeyError("in open")


def test_an_operator_whose_function_fails_to_open_is_not_open():
    function = NeverOpens()
    operator = KeyedProcessOperator(function, first)
    with pytest.raises(KeyError, match="in open"):
        operator.open()
    with pytest.raises(RuntimeError, match="not open"):
        operator.process_element(("a", "yield", 1))
    operator.close()
    assert function.life == []


@pytest.mark.promises("PyFlink", "added", "KeyedProcessOperator.get_side_output")
def test_side_outputs_are_collected_apart():
    tag = OutputTag("odd", Types.LONG())

    class Odd(KeyedProcessFunction):
        def process_element(self, value, ctx):
            if value % 2:
                yield tag, value
                ctx.output(tag, -value)
            else:
                yield value

    with KeyedProcessOperator(Odd(), key_selector=str) as operator:
        assert operator.process_element(4, timestamp=1) == [StreamRecord(4, 1)]
        assert operator.process_element(3, timestamp=2) == []
        assert operator.get_side_output(tag) == [StreamRecord(3, 2), StreamRecord(-3, 2)]
        assert operator.get_side_output(OutputTag("even", Types.LONG())) == []


def test_a_body_written_for_pyflink_yields_the_same_as_in_pyflink():
    row = pytest.importorskip("pyspark.sql").Row
    lines = (RECORDED / "pyflink_input.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row(**json.loads(line)) for line in lines]
    recorded = (RECORDED / "pyflink_output.jsonl").read_text(encoding="utf-8").splitlines()
    bound = 5 * pyflink_body.MINUTE  # as in the recording

    yielded = []
    latest = MIN_WATERMARK + bound + 1
    with KeyedProcessOperator(pyflink_body.CourierWatch(), lambda value: value.k) as operator:
        for value in rows:
            yielded += values(operator.process_element(value, value["at"]))
            latest = max(latest, value["at"])
            yielded += values(operator.process_watermark(latest - bound - 1))
        yielded += values(operator.process_watermark(MAX_WATERMARK))
        assert operator.num_event_time_timers() == 0
    assert Counter(yielded) == Counter(tuple(json.loads(line).values()) for line in recorded)
