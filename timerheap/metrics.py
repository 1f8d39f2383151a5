"""Metrics of a function's own: counters, meters and distributions."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any, NoReturn, TypeVar

from timerheap.errors import ArgumentValueError, UnsupportedError

M = TypeVar("M", bound="Counter | Meter | Distribution")


class Counter:
    """A number that a function counts (``pyflink.metrics.Counter``); ``MetricGroup.counter`` makes it."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Add `n`, by default 1."""
        self._count += index(n)

    def dec(self, n: int = 1) -> None:
        """Subtract `n`, by default 1."""
        self._count -= index(n)

    def get_count(self) -> int:
        """Return the count of this copy of the function; on Spark, a task has one."""
        return self._count


class Meter:
    """A number of events (``pyflink.metrics.Meter``); ``MetricGroup.meter`` makes it."""

    def __init__(self) -> None:
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        """Add `value` events, by default 1."""
        self._count += index(value)

    def get_count(self) -> int:
        """Return the number of events in this copy of the function; on Spark, a task has one."""
        return self._count

    def get_rate(self) -> NoReturn:
        """Raise UnsupportedError: a task on Spark lasts one micro-batch, too short for a rate."""
        raise UnsupportedError(
            "get_rate is not supported, since a task lasts one micro-batch; divide the events of a "
            "micro-batch, timerheap.spark.progress(query).counters, by the time between triggers"
        )


@dataclass(frozen=True)
class DistributionResult:
    """The values of a distribution.

    Examples
    --------
    >>> DistributionResult(count=4, sum=10, min=1, max=4).mean
    2.5
    """

    count: int
    sum: int
    min: int
    max: int

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return self.sum / self.count

    def merged(self, other: DistributionResult) -> DistributionResult:
        """Return the result of the values of both."""
        return DistributionResult(
            self.count + other.count, self.sum + other.sum, min(self.min, other.min), max(self.max, other.max)
        )


class Distribution:
    """The number, sum, least and greatest of some ints (``pyflink.metrics.Distribution``).

    ``MetricGroup.distribution`` makes it.
    """

    def __init__(self) -> None:
        self._result: DistributionResult | None = None

    def update(self, value: int) -> None:
        """Add a value."""
        value = index(value)
        self._add(DistributionResult(1, value, value, value))

    def _add(self, more: DistributionResult) -> None:
        """Add several values."""
        self._result = more if self._result is None else self._result.merged(more)


class Metrics:
    """All metrics of one copy of a function, by their identifiers."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Meter | Distribution] = {}
        self._taken: dict[str, int] = {}

    def of(self, class_: type[M], identifier: str) -> M:
        """Return the metric of this identifier, a new one if there is none."""
        metric = self._metrics.setdefault(identifier, class_())
        if not isinstance(metric, class_):
            raise ArgumentValueError(
                f"name must be that of a {class_.__name__}, got that of a {type(metric).__name__}, "
                f"{identifier!r}; choose another"
            )
        return metric

    def take_counters(self) -> dict[str, int]:
        """Return by how much counters and meters have changed since the last call."""
        counts = {n: m.get_count() for n, m in self._metrics.items() if not isinstance(m, Distribution)}
        changes = {name: count - self._taken.get(name, 0) for name, count in counts.items()}
        self._taken = counts
        return changes

    def take_distributions(self) -> dict[str, DistributionResult]:
        """Return the values of distributions since the last call; those without values are left out."""
        taken = {}
        for name, metric in self._metrics.items():
            if isinstance(metric, Distribution) and metric._result is not None:
                taken[name], metric._result = metric._result, None
        return taken


class MetricGroup:
    """Makes the metrics of a function (``pyflink.metrics.MetricGroup``).

    A metric is reported under its identifier: the names of its groups and its own, joined by dots. Two
    requests for one identifier return the same metric.

    Parameters
    ----------
    metrics : Metrics
    scope : tuple of str
        The names of the groups.
    variables : dict of str to str

    Examples
    --------
    >>> group = MetricGroup(Metrics()).add_group("country", "de")
    >>> group.counter("visits").inc()
    >>> group.get_metric_identifier("visits"), group.counter("visits").get_count()
    ('country.de.visits', 1)
    """

    def __init__(
        self, metrics: Metrics, scope: tuple[str, ...] = (), variables: dict[str, str] | None = None
    ) -> None:
        self._metrics = metrics
        self._scope = scope
        self._variables = variables or {}

    def counter(self, name: str) -> Counter:
        """Return the counter of this name."""
        return self._metrics.of(Counter, self.get_metric_identifier(name))

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Return the meter of this name, whose events are reported among the counters, without a rate."""
        return self._metrics.of(Meter, self.get_metric_identifier(name))

    def distribution(self, name: str) -> Distribution:
        """Return the distribution of this name."""
        return self._metrics.of(Distribution, self.get_metric_identifier(name))

    def gauge(self, name: str, obj: Any) -> NoReturn:
        """Raise UnsupportedError: the values of several tasks do not make one value."""
        raise UnsupportedError(
            f"gauge {name!r} is not supported, since each task of a micro-batch would have a value of its "
            "own; update a distribution(), which has the least and the greatest of all values"
        )

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return the group of this name; with `extra`, a value, the group of that value in it."""
        scope = (*self._scope, _checked_name("name", name))
        if extra is None:
            return MetricGroup(self._metrics, scope, self._variables)
        return MetricGroup(
            self._metrics, (*scope, _checked_name("extra", extra)), {**self._variables, name: extra}
        )

    def get_scope_components(self) -> list[str]:
        """Return the names of the groups; that of a function has none around it."""
        return list(self._scope)

    def get_all_variables(self) -> dict[str, str]:
        """Return the values of groups by the names of the groups."""
        return dict(self._variables)

    def get_metric_identifier(self, metric_name: str) -> str:
        """Return the name under which a metric is reported."""
        return ".".join((*self._scope, _checked_name("name", metric_name)))


def _checked_name(argument: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ArgumentValueError(f"{argument} must be a non-empty str, got {name!r}")
    return name
