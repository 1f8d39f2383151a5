"""Bounded drain: pieces of any size fire what one advance fires, and downstream hears of none too early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap.flink import InternalTimerService, ManualProcessingTimeService


class Recorder:
    """Writes down the timestamps of what fires, then does what it is told to do."""

    def __init__(self):
        self.fired = []
        self.then = lambda timer: None

    def on_event_time(self, timer):
        self.fired.append(timer.timestamp)
        self.then(timer)


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def service(recorder):
    service = InternalTimerService(recorder, ManualProcessingTimeService())
    service.key_context.current_key = "key"
    return service


class Draining:
    """A service, what fires, and the watermark that downstream is told: the highest that may go there."""

    def __init__(self, rules):
        self.rules = rules  # timestamp -> the timestamps that its callback registers and deletes
        self.service = InternalTimerService(self, ManualProcessingTimeService())
        self.fired = []
        self.downstream = MIN_WATERMARK
        self.in_time = set()  # timers that came before their watermark went downstream

    def register(self, key, timestamp):
        self.service.key_context.current_key = key
        self.service.register_event_time_timer(None, timestamp)
        (self.in_time.add if timestamp > self.downstream else self.in_time.discard)((timestamp, key))

    def on_event_time(self, timer):
        assert self.service.current_watermark() >= timer.timestamp
        self.tell()
        if (timer.timestamp, timer.key) in self.in_time:
            assert self.downstream < timer.timestamp
        self.in_time.discard((timer.timestamp, timer.key))
        self.fired.append(timer)
        for delta in self.rules.get(timer.timestamp, ()):
            if delta:
                self.register(timer.key, timer.timestamp + delta)
            else:
                self.service.delete_event_time_timer(None, timer.timestamp + 1)

    def tell(self):
        told = self.service.current_output_watermark()
        assert self.downstream <= told
        self.downstream = told

    def advance(self, watermark, limits):
        """Advance in pieces, then in one go where the limits run out."""
        for limit in limits:
            before = len(self.fired)
            done = self.service.try_advance_watermark(watermark, limit)
            assert len(self.fired) - before <= limit
            assert self.service.current_watermark() == watermark
            self.tell()
            head = self.service.event_time_timers.peek()
            assert done is (head is None or head.timestamp > watermark)
            if done:
                assert self.downstream >= watermark
                return
            assert len(self.fired) - before == limit
        self.service.advance_watermark(watermark)
        self.tell()


timer_pairs = st.tuples(st.integers(0, 3), st.integers(0, 30))
rules = st.dictionaries(
    st.integers(0, 30), st.lists(st.sampled_from([-4, -1, 0, 1, 2, 5]), max_size=3), max_size=8
)


def without_end(rules):
    """Keep only rules that register later timestamps, or earlier ones that register nothing themselves."""
    return {
        timestamp: [delta for delta in deltas if delta >= 0 or timestamp + delta not in rules]
        for timestamp, deltas in rules.items()
    }


@given(
    rules=rules.map(without_end),
    steps=st.lists(st.tuples(st.lists(timer_pairs, max_size=15), st.integers(-1, 40)), max_size=4),
    limits=st.lists(st.integers(1, 6), max_size=12),
)
def test_any_limits_fire_what_one_advance_fires_and_hold_the_watermark(rules, steps, limits):
    whole, pieces = Draining(rules), Draining(rules)
    for timers, watermark in steps:
        for key, timestamp in timers:
            whole.register(key, timestamp)
            pieces.register(key, timestamp)
        whole.advance(watermark, [])
        pieces.advance(watermark, limits)
        assert pieces.fired == whole.fired
        assert sorted(pieces.service.event_time_timers) == sorted(whole.service.event_time_timers)
        assert pieces.downstream == whole.downstream


def test_between_pieces_timers_come_and_go_and_a_higher_watermark_takes_over(service, recorder):
    for timestamp in (10, 20, 30, 40):
        service.register_event_time_timer(None, timestamp)
    assert service.try_advance_watermark(35, limit=1) is False
    assert (service.current_watermark(), service.current_output_watermark()) == (35, MIN_WATERMARK)
    service.delete_event_time_timer(None, 20)
    service.register_event_time_timer(None, 25)
    service.register_event_time_timer(None, 5)
    assert service.try_advance_watermark(45, limit=1) is False
    assert (service.current_watermark(), service.current_output_watermark()) == (45, MIN_WATERMARK)
    assert service.try_advance_watermark(45, limit=3) is True
    assert service.current_output_watermark() == 45
    assert recorder.fired == [10, 5, 25, 30, 40]
    service.advance_watermark(7)  # a watermark may go back; what downstream was told stays said
    assert (service.current_watermark(), service.current_output_watermark()) == (7, 45)


def test_an_error_in_a_callback_holds_the_watermark(service, recorder):
    def fail(timer):
        raise KeyError("in a callback")

    for timestamp in (10, 20):
        service.register_event_time_timer(None, timestamp)
    service.advance_watermark(5)
    recorder.then = fail
    with pytest.raises(KeyError):
        service.try_advance_watermark(15, limit=5)
    assert service.current_output_watermark() == 5
    recorder.then = lambda timer: None
    assert service.try_advance_watermark(15, limit=1) is True
    assert service.current_output_watermark() == 15


def test_a_drain_at_the_ends_of_time(service, recorder):
    for timestamp in (MIN_WATERMARK, MIN_WATERMARK + 1, MAX_WATERMARK):
        service.register_event_time_timer(None, timestamp)
    held = []
    while not service.try_advance_watermark(MAX_WATERMARK, limit=1):
        held.append(service.current_output_watermark())
    assert held == [MIN_WATERMARK, MIN_WATERMARK]
    assert service.current_output_watermark() == MAX_WATERMARK
    assert recorder.fired == [MIN_WATERMARK, MIN_WATERMARK + 1, MAX_WATERMARK]


@pytest.mark.parametrize(
    ("watermark", "limit", "error", "says"),
    [
        (5, 0, ValueError, "limit must be 1 or more, got 0"),
        (5, -1, ValueError, "limit must be 1 or more, got -1"),
        (5, 1.5, TypeError, r"limit must be an int, got 1\.5"),
        (5, None, TypeError, "limit must be an int, got None"),
        ("5", 1, TypeError, "watermark must be an int, got '5'"),
        (2**63, 1, OverflowError, "watermark must fit"),
    ],
)
def test_a_bad_drain_changes_nothing(service, recorder, watermark, limit, error, says):
    service.register_event_time_timer(None, 1)
    with pytest.raises(error, match=says):
        service.try_advance_watermark(watermark, limit)
    assert service.current_watermark() == service.current_output_watermark() == MIN_WATERMARK
    assert recorder.fired == []
