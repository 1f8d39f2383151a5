"""The metrics of a function's own, without Spark."""

import pytest

from timerheap import DistributionResult, MetricGroup
from timerheap.metrics import Metrics


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "MetricGroup.counter",
    "MetricGroup.add_group",
    "MetricGroup.get_scope_components",
    "MetricGroup.get_all_variables",
    "MetricGroup.get_metric_identifier",
    "Counter.inc",
    "Counter.dec",
    "Counter.get_count",
)
def test_a_metric_has_the_names_of_its_groups():
    metrics = Metrics()
    group = MetricGroup(metrics)
    country = group.add_group("country", "de").add_group("visits")
    country.counter("late").inc()
    country.counter("late").inc(4)
    group.counter("rows").dec(2)

    assert country.get_scope_components() == ["country", "de", "visits"]
    assert country.get_all_variables() == {"country": "de"}
    assert country.get_metric_identifier("late") == "country.de.visits.late"
    assert country.counter("late").get_count() == 5
    assert metrics.take_counters() == {"country.de.visits.late": 5, "rows": -2}
    country.counter("late").inc()
    assert metrics.take_counters() == {"country.de.visits.late": 1, "rows": 0}
    assert country.counter("late").get_count() == 6


@pytest.mark.promises(
    "PyFlink",
    "different",
    "MetricGroup.meter",
    "Meter.mark_event",
    "Meter.get_count",
    note="its events are reported among the counters",
)
@pytest.mark.promises("PyFlink", "supported", "MetricGroup.distribution", "Distribution.update")
def test_meters_count_and_distributions_have_their_least_and_greatest_value():
    metrics = Metrics()
    group = MetricGroup(metrics)
    meter, sizes = group.meter("events", time_span_in_seconds=120), group.distribution("sizes")
    group.distribution("none")
    meter.mark_event()
    meter.mark_event(2)
    for size in (3, -1, 7):
        sizes.update(size)

    assert meter.get_count() == 3
    assert metrics.take_counters() == {"events": 3}
    assert metrics.take_distributions() == {"sizes": DistributionResult(count=3, sum=9, min=-1, max=7)}
    assert metrics.take_distributions() == {}


@pytest.mark.promises(
    "PyFlink",
    "refused",
    "MetricGroup.gauge",
    "Meter.get_rate",
    note="a task lasts one micro-batch; update a distribution, or count",
)
@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda group: group.gauge("g", lambda: 1), NotImplementedError, "gauge 'g' is not supported"),
        (lambda group: group.meter("m").get_rate(), NotImplementedError, "get_rate is not supported"),
        (lambda group: group.counter(""), ValueError, "name must be a non-empty str, got ''"),
        (lambda group: group.add_group("a", 5), ValueError, "extra must be a non-empty str, got 5"),
        (lambda group: group.counter("c").inc(0.5), TypeError, "float"),
        (
            lambda group: (group.counter("c"), group.meter("c")),
            ValueError,
            "name must be that of a Meter, got that of a Counter, 'c'",
        ),
    ],
)
def test_a_wrong_use_of_a_metric_raises(use, error, message):
    with pytest.raises(error, match=message):
        use(MetricGroup(Metrics()))
