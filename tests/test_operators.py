"""Operators without Spark: order, copies, errors, a plain-Python model of state, and PyFlink's output."""

import json
import threading
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pyflink_body
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_model import QueueModel

from timerheap import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    BatchValueState,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ReducingStateDescriptor,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)
from timerheap.flink import (
    KeyContext,
    ManualProcessingTimeService,
    StreamRecord,
    SystemProcessingTimeService,
    Watermark,
    create_timer_queue,
)
from timerheap.flink.operators import KeyedCoProcessOperator, KeyedProcessOperator, MemoryRuntimeContext
from timerheap.functions import KeyedCoProcessFunction
from timerheap.watermarks.output import WatermarkStatus

LONG = 60  # seconds; a timeout that no test reaches
RECORDED = Path(__file__).resolve().parent / "spark" / "data"


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


# ---- output and its order ----


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


# ---- clocks ----


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


# ---- open and close ----


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


def test_a_closed_operator_fires_no_timer_and_loses_none():
    clock = ManualProcessingTimeService()
    queues = {name: create_timer_queue() for name in ("event_time_timers", "processing_time_timers")}
    with KeyedProcessOperator(Script(), first, clock=clock, **queues) as operator:
        operator.process_element(("a", "register_processing_time_timer", 5))
        operator.process_element(("a", "register_event_time_timer", 5))
    clock.set_current_time(100)
    assert operator.num_processing_time_timers() == operator.num_event_time_timers() == 1
    with pytest.raises(RuntimeError, match="closed"):
        operator.open()
    with KeyedProcessOperator(Script(), first, clock=clock, **queues) as operator:
        assert values(operator.set_processing_time(102)) == [("a", 5, TimeDomain.PROCESSING_TIME, 5)]
        assert values(operator.process_watermark(5)) == [("a", 5, TimeDomain.EVENT_TIME, 5)]


@pytest.mark.parametrize("make", [create_timer_queue, QueueModel])
def test_an_operator_may_use_given_queues(make):
    event_time, processing_time = make(), make()
    event_time.add((5, "a", None))
    processing_time.add((7, "b", None))
    with KeyedProcessOperator(
        Script(), first, event_time_timers=event_time, processing_time_timers=processing_time
    ) as operator:
        operator.process_element(("a", "register_event_time_timer", 6))
        operator.process_element(("b", "register_processing_time_timer", 6))
        assert len(event_time) == len(processing_time) == 2
        assert [value[:2] for value in values(operator.process_watermark(10))] == [("a", 5), ("a", 6)]
        assert [value[:2] for value in values(operator.set_processing_time(10))] == [("b", 6), ("b", 7)]


# ---- errors ----


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
    with pytest.raises(TypeError, match="key_selector must be a callable"):
        KeyedProcessOperator(Script(), "plane")
    with pytest.raises(TypeError, match="output must be callable"):
        KeyedProcessOperator(Script(), first, output=[])
    with pytest.raises(ValueError, match="max_parallelism"):
        KeyedProcessOperator(Script(), first, max_parallelism=0)
    with pytest.raises(TypeError, match="status must be a WatermarkStatus, got True"):
        operator.process_watermark_status(True)
    with pytest.raises(TypeError, match="function must be a KeyedCoProcessFunction"):
        KeyedCoProcessOperator(Script(), first, first)
    with pytest.raises(TypeError, match="key_selector2"):
        KeyedCoProcessOperator(Two(), first, "plane")


class NeverOpens(Script):
    def open(self, runtime_context):
        raise KeyError("in open")


def test_an_operator_whose_function_fails_to_open_fires_no_timer():
    clock, queue = ManualProcessingTimeService(), create_timer_queue()
    queue.add((5, "a", None))
    function = NeverOpens()
    operator = KeyedProcessOperator(function, first, clock=clock, processing_time_timers=queue)
    with pytest.raises(KeyError, match="in open"):
        operator.open()
    clock.set_current_time(10)
    assert len(queue) == 1
    operator.close()
    assert function.life == []


# ---- two inputs ----


class Two(KeyedCoProcessFunction):
    """Records the rows of both inputs in one state; a row (key, timer) registers the timer."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.INT()))

    def process_element1(self, value, ctx):
        return self.take(1, value, ctx)

    def process_element2(self, value, ctx):
        return self.take(2, value, ctx)

    def take(self, input_, value, ctx):
        self.seen.add(input_)
        for timestamp in value[1:]:
            ctx.timer_service().register_event_time_timer(timestamp)
        yield ctx.get_current_key(), list(self.seen), ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), list(self.seen), timestamp
        self.seen.clear()


@pytest.fixture
def two():
    with KeyedCoProcessOperator(Two(), first, lambda value: value[0].lower()) as operator:
        yield operator


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "KeyedCoProcessFunction.process_element1",
    "KeyedCoProcessFunction.process_element2",
    "KeyedCoProcessFunction.on_timer",
    "KeyedCoProcessFunction.Context",
    "KeyedCoProcessFunction.OnTimerContext",
)
def test_both_inputs_share_the_state_and_the_timers_of_a_key(two):
    assert two.process_element1(("a", 10), 1) == [StreamRecord(("a", [1], 1), 1)]
    assert two.process_element2(("A", 10), 2) == [StreamRecord(("a", [1, 2], 2), 2)]
    assert two.process_element2(("B",)) == [StreamRecord(("b", [2], None), None)]
    assert two.num_event_time_timers() == 1
    assert two.num_keyed_state_entries() == 2
    assert two.process_watermark1(20) == []
    assert two.process_watermark2(9) == [Watermark(9)]
    assert two.process_watermark2(15) == [StreamRecord(("a", [1, 2], 10), 10), Watermark(15)]
    assert two.num_keyed_state_entries() == 1


def test_the_combined_watermark_is_the_minimum_of_both_inputs(two):
    assert two.process_watermark1(5) == []
    assert two.process_watermark2(3) == [Watermark(3)]
    assert two.process_watermark2(2) == []  # the watermark of an input never decreases
    assert two.process_watermark2(MAX_WATERMARK) == [Watermark(5)]
    assert two.process_watermark1(MAX_WATERMARK) == [Watermark(MAX_WATERMARK)]


def test_an_idle_input_does_not_hold_the_watermark_back(two):
    two.process_element1(("a", 10), 1)
    two.process_watermark1(12)
    assert two.process_watermark_status2(WatermarkStatus.IDLE) == [
        StreamRecord(("a", [1], 10), 10),
        Watermark(12),
    ]
    assert two.process_watermark_status1(WatermarkStatus.IDLE) == [WatermarkStatus.IDLE]
    assert two.process_watermark_status1(WatermarkStatus.IDLE) == []
    assert two.process_watermark_status2(WatermarkStatus.ACTIVE) == [WatermarkStatus.ACTIVE]
    assert two.process_watermark2(20) == [Watermark(20)]
    with pytest.raises(TypeError, match="status"):
        two.process_watermark_status1("idle")


def test_a_watermark_stopped_by_an_exception_is_processed_again():
    function = Two()
    with KeyedCoProcessOperator(function, first, first) as two:
        two.process_element1(("a", 5, 6), 1)
        two.process_watermark1(MAX_WATERMARK)
        seen, function.seen = function.seen, None
        with pytest.raises(TypeError):
            two.process_watermark2(MAX_WATERMARK)
        function.seen = seen
        assert two.process_watermark2(MAX_WATERMARK) == [
            StreamRecord(("a", [1], 6), 6),
            Watermark(MAX_WATERMARK),
        ]


# ---- state ----


def test_states_store_and_return_copies():
    keys = KeyContext()
    context = MemoryRuntimeContext(keys)
    keys.current_key = "k"
    value = context.get_state(ValueStateDescriptor("value", Types.LIST(Types.LONG())))
    listed = context.get_list_state(ListStateDescriptor("list", Types.LIST(Types.LONG())))
    mapped = context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LIST(Types.LONG())))
    given = [1]
    value.update(given)
    listed.add(given)
    mapped.put(1, given)
    given.append(2)

    def got():
        yield value.value()
        yield from listed
        yield mapped.get(1)
        yield from mapped.values()
        yield from (entry for _, entry in mapped.items())

    for copy in got():
        assert copy == [1]
        copy.append(3)
    assert [copy == [1] for copy in got()] == [True] * 5


def test_a_name_is_used_by_one_state_only():
    context = MemoryRuntimeContext(KeyContext())
    state = context.get_state(ValueStateDescriptor("n", Types.LONG()))
    assert context.get_state(ValueStateDescriptor("n", "bigint")) is state
    with pytest.raises(ValueError, match="already in use as a value state"):
        context.get_state(ValueStateDescriptor("n", Types.INT()))
    with pytest.raises(ValueError, match="already in use as a value state"):
        context.get_list_state(ListStateDescriptor("n", Types.LONG()))
    with pytest.raises(TypeError, match="state_descriptor must be a MapStateDescriptor, got ListState"):
        context.get_map_state(ListStateDescriptor("m", Types.LONG()))
    with pytest.raises(ValueError, match="value state of int64; it cannot also be a reducing state"):
        context.get_reducing_state(ReducingStateDescriptor("n", max, Types.LONG()))
    with pytest.raises(TypeError, match="state_descriptor must be an AggregatingStateDescriptor, got 'n'"):
        context.get_aggregating_state("n")
    with pytest.raises(RuntimeError, match="'n': there is no current key"):
        state.value()
    assert not isinstance(state, BatchValueState)


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


def test_invalid_values_raise_and_change_nothing():
    keys = KeyContext()
    context = MemoryRuntimeContext(keys)
    keys.current_key = "k"
    listed = context.get_list_state(ListStateDescriptor("list", Types.LONG()))
    mapped = context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LONG()))
    listed.add(1)
    mapped.put(1, 1)
    for refused in (
        lambda: listed.add(None),
        lambda: listed.add_all([2, None]),
        lambda: listed.update([None]),
    ):
        with pytest.raises(ValueError, match="'list': an element of a list state must not be None"):
            refused()
    with pytest.raises(ValueError, match="'map': a key of a map state must not be None"):
        mapped.put_all({2: 2, None: 3})
    refused_by_any = (TypeError, ValueError)  # without pyarrow it is not checked, and cannot be copied
    with pytest.raises(refused_by_any):
        listed.add_all([3, threading.Lock()])
    with pytest.raises(refused_by_any):
        mapped.put_all({3: 3, 4: threading.Lock()})
    assert list(listed) == [1]
    assert dict(mapped.items()) == {1: 1}


KEYS = st.sampled_from("abc")
SMALL = st.integers(0, 3)
LISTS = st.lists(SMALL, max_size=3)
STATE_OPS = st.lists(
    st.one_of(
        st.tuples(KEYS, st.sampled_from(["clear value", "clear list", "clear map"]), st.none()),
        st.tuples(KEYS, st.just("update value"), st.none() | LISTS),
        st.tuples(KEYS, st.just("add"), SMALL),
        st.tuples(KEYS, st.sampled_from(["add_all", "update list"]), LISTS),
        st.tuples(KEYS, st.just("put"), st.tuples(SMALL, st.none() | LISTS)),
        st.tuples(KEYS, st.just("put_all"), st.dictionaries(SMALL, LISTS, max_size=3)),
        st.tuples(KEYS, st.just("remove"), SMALL),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(STATE_OPS)
def test_states_equal_a_model_of_python_dicts(ops):
    keys = KeyContext()
    context = MemoryRuntimeContext(keys)
    value = context.get_state(ValueStateDescriptor("value", Types.LIST(Types.LONG())))
    listed = context.get_list_state(ListStateDescriptor("list", Types.LONG()))
    mapped = context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LIST(Types.LONG())))
    model = {key: {"value": None, "list": [], "map": {}} for key in "abc"}
    for key, op, argument in ops:
        keys.current_key = key
        here = model[key]
        before = deepcopy(argument)
        match op.split():
            case ["clear", name]:
                {"value": value, "list": listed, "map": mapped}[name].clear()
                here[name] = {"value": None, "list": [], "map": {}}[name]
            case ["update", "value"]:
                value.update(argument)
                here["value"] = argument
            case ["add"]:
                listed.add(argument)
                here["list"] = [*here["list"], argument]
            case ["add_all"]:
                listed.add_all(iter(argument))
                here["list"] = here["list"] + argument
            case ["update", "list"]:
                listed.update(tuple(argument))
                here["list"] = argument
            case ["put"]:
                mapped[argument[0]] = argument[1]
                here["map"] = here["map"] | {argument[0]: argument[1]}
            case ["put_all"]:
                mapped.put_all(argument)
                here["map"] = here["map"] | argument
            case ["remove"]:
                del mapped[argument]
                here["map"] = {k: v for k, v in here["map"].items() if k != argument}
        assert argument == before
        for key_ in "abc":
            keys.current_key = key_
            expected = model[key_]
            assert value.value() == expected["value"]
            assert list(listed) == list(listed.get()) == expected["list"]
            assert list(mapped.items()) == list(expected["map"].items())
            assert list(mapped) == list(mapped.keys()) == list(expected["map"])
            assert list(mapped.values()) == list(expected["map"].values())
            assert mapped.is_empty() is (not expected["map"])
            for k in range(4):
                assert mapped[k] == expected["map"].get(k)
                assert (k in mapped) is (k in expected["map"])
        kept = sum(
            v is not None if name == "value" else bool(v) for m in model.values() for name, v in m.items()
        )
        assert context.num_keyed_state_entries() == kept


# ---- PyFlink's recorded output ----


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
