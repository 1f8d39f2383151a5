"""The timer services of one operator: advanced together, snapshot and restored together."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from timerheap.clock import ProcessingTimeService
from timerheap.hashing import java_hash_code
from timerheap.key_groups import OwnedKeyGroups
from timerheap.keys import KeyGroupRange
from timerheap.queue import TimerQueue
from timerheap.serializers import TypeSerializer
from timerheap.service import InternalTimerService, KeyContext, Triggerable
from timerheap.snapshot import KeyGroupSnapshot, ServiceSnapshot
from timerheap.timer import MIN_WATERMARK, InternalTimer, KeyedTimerQueue, all_or_none, int64, positive
from timerheap.timer_bytes import TimerSerializer

__all__ = ["InternalTimeServiceManager"]

K = TypeVar("K", bound=Hashable)
_Queues = tuple[KeyedTimerQueue[K, Any], KeyedTimerQueue[K, Any]]  # event time, processing time
_Timers = tuple[list[InternalTimer[K, Any]], list[InternalTimer[K, Any]]]


class InternalTimeServiceManager(Generic[K]):
    """Named timer services of one operator, on one key context and one clock.

    Timers come first: a watermark goes to every service, in the order of their creation, and downstream when
    all that it makes due has fired.

    Parameters
    ----------
    processing_time_service : ProcessingTimeService
        The clock of all services.
    key_context : KeyContext, optional
        Where the operator's current key is; by default one of its own, as `key_context`.
    max_parallelism : int, default 128
        The number of key groups, 1 to 32768.
    key_group_range : KeyGroupRange, optional
        The key groups of this operator; by default all.
    hash_code : callable, default java_hash_code
        key -> int, whose low 32 bits give the key group, as in `TimerQueue`.
    create_queue : callable, optional
        name -> a `KeyedTimerQueue` of the same key groups and hash code; called for
        ``<service>/event_time`` and ``<service>/processing_time``. By default a `TimerQueue`; on disk
        ``lambda name: create_timer_queue("rocksdb", path=directory / name)``, for instance.
    emit_watermark : callable, optional
        Takes each watermark that goes downstream, epoch ms, each higher than the one before.

    Raises
    ------
    TypeError, ValueError
        If `max_parallelism` or `key_group_range` is no such thing, or they do not go together.

    Notes
    -----
    Flink: ``InternalTimeServiceManagerImpl``, and ``AbstractStreamOperator.processWatermark``, which has
    the order: timers, then the watermark. One thread at a time: with a `SystemProcessingTimeService` hold its
    ``lock``.

    Examples
    --------
    An operator with two services; what the timers print comes before the watermark:

    >>> from timerheap import InternalTimeServiceManager, KeyGroupRange, ManualProcessingTimeService
    >>> class Fires:
    ...     def __init__(self, what): self.what = what
    ...     def on_event_time(self, timer): print(self.what, timer.key, timer.timestamp)
    ...     def on_processing_time(self, timer): ...
    >>> manager = InternalTimeServiceManager(
    ...     ManualProcessingTimeService(), emit_watermark=lambda watermark: print("downstream", watermark)
    ... )
    >>> silence = manager.get_internal_timer_service("silence", Fires("silent"))
    >>> cleanup = manager.get_internal_timer_service("cleanup", Fires("forget"))
    >>> manager.key_context.current_key = "N14228"
    >>> cleanup.register_event_time_timer(None, 2_000)
    >>> silence.register_event_time_timer(None, 3_000)
    >>> manager.advance_watermark(5_000)
    silent N14228 3000
    forget N14228 2000
    downstream 5000

    Two operators take over, with half of the key groups each:

    >>> silence.register_event_time_timer(None, 9_000)
    >>> snapshot = manager.snapshot()
    >>> halves = []
    >>> for owned in (KeyGroupRange(0, 63), KeyGroupRange(64, 127)):
    ...     half = InternalTimeServiceManager(ManualProcessingTimeService(), key_group_range=owned)
    ...     half.restore(snapshot)
    ...     _ = half.get_internal_timer_service("silence", Fires("silent"))
    ...     halves.append(half)
    >>> [half.num_event_time_timers() for half in halves]
    [1, 0]
    >>> halves[0].advance_watermark(10_000)
    silent N14228 9000
    """

    def __init__(
        self,
        processing_time_service: ProcessingTimeService,
        key_context: KeyContext[K] | None = None,
        *,
        max_parallelism: int = 128,
        key_group_range: KeyGroupRange | None = None,
        hash_code: Callable[[K], int] = java_hash_code,
        create_queue: Callable[[str], KeyedTimerQueue[K, Any]] | None = None,
        emit_watermark: Callable[[int], object] | None = None,
    ) -> None:
        for name, value in (("create_queue", create_queue), ("emit_watermark", emit_watermark)):
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be callable, got {value!r}")
        self.key_context: KeyContext[K] = KeyContext() if key_context is None else key_context
        self._clock = processing_time_service
        self._key_groups = OwnedKeyGroups(max_parallelism, key_group_range, hash_code)
        self._create_queue = create_queue or (
            lambda name: TimerQueue(max_parallelism, key_group_range, hash_code)
        )
        self._emit_watermark = emit_watermark
        self._services: dict[str, InternalTimerService[K, Any]] = {}
        self._stored: dict[str, tuple[TimerSerializer, _Queues[K]]] = {}  # of each service
        self._restored: dict[int, list[ServiceSnapshot]] = {}  # by key group: what nobody has asked for yet
        self._is_advancing = False
        self._unfinished: deque[tuple[InternalTimerService[K, Any] | None, int]] = deque()  # None: downstream
        self._current_watermark = MIN_WATERMARK
        self._output_watermark = MIN_WATERMARK

    def get_internal_timer_service(
        self,
        name: str,
        triggerable: Triggerable[K, Any],
        key_serializer: str | TypeSerializer = "any",
        namespace_serializer: str | TypeSerializer = "any",
    ) -> InternalTimerService[K, Any]:
        """Give the service of that name: a new one at first, with the timers that were restored for it.

        Parameters
        ----------
        name : str
        triggerable : Triggerable
            Who is called when a timer fires. The first one stays: a service that is there already keeps
            its own, as Flink's does.
        key_serializer, namespace_serializer : str or TypeSerializer, default "any"
            How a snapshot writes keys and namespaces: as in `TimerSerializer`. Always the same for a name.

        Raises
        ------
        TypeError
            If `name` is no string, or a serializer none, or `create_queue` gives no queue.
        ValueError
            If the service, or the snapshot it was restored from, has other serializers; or if a restored
            timer's key is none of this operator's.
        RuntimeError
            If restored processing-time timers find the clock shut down.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r}")
        serializer = TimerSerializer(key_serializer, namespace_serializer)
        if name in self._services:
            _expect(serializer, name, *_names(self._stored[name][0]))
        else:
            restored = self._restored_timers(name, serializer)
            queues = self._new_queue(f"{name}/event_time"), self._new_queue(f"{name}/processing_time")
            with all_or_none(*zip(queues, restored, strict=True)):
                self._services[name] = InternalTimerService(
                    triggerable,
                    self._clock,
                    self.key_context,
                    event_time_timers=queues[0],
                    processing_time_timers=queues[1],
                )
            self._stored[name] = serializer, queues
            for services in self._restored.values():
                services[:] = [service for service in services if service.name != name]
        return self._services[name]

    def advance_watermark(self, watermark: int) -> None:
        """Advance every service, in the order of their creation; then the watermark goes downstream.

        A timer that a callback registers for another service, whose turn is over, fires at the next
        advance. A higher watermark that a callback advances to follows when this one is done.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is no int64.
        Exception
            What a callback raises; then the watermark is held, and the next advance goes on from there.
        """
        self._begin(int64("watermark", watermark))
        self._go_on(None)

    def try_advance_watermark(self, watermark: int, limit: int) -> bool:
        """Do what `advance_watermark` does, but fire at most `limit` timers of all services together.

        Call it again until it says True; then the watermark has gone downstream. Limits change nothing but
        when: the same timers fire in the same order, and watermarks go downstream between the same ones. A
        higher watermark that comes too early waits until the one before it is done.

        Parameters
        ----------
        watermark : int
            As in `advance_watermark`.
        limit : int
            1 or more.

        Returns
        -------
        bool
            Whether all that is due has fired.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If `watermark` is no int64, or `limit` no such number.
        Exception
            As `advance_watermark`.

        Examples
        --------
        >>> from timerheap import InternalTimeServiceManager, ManualProcessingTimeService
        >>> class Print:
        ...     def on_event_time(self, timer): print("fires", timer.timestamp)
        >>> manager = InternalTimeServiceManager(
        ...     ManualProcessingTimeService(), emit_watermark=lambda watermark: print("downstream", watermark)
        ... )
        >>> service = manager.get_internal_timer_service("timers", Print())
        >>> manager.key_context.current_key = "N14228"
        >>> for timestamp in (10, 20, 30):
        ...     service.register_event_time_timer(None, timestamp)
        >>> while not manager.try_advance_watermark(50, limit=2):
        ...     print("time for something else")
        fires 10
        fires 20
        time for something else
        fires 30
        downstream 50
        """
        watermark, limit = int64("watermark", watermark), positive("limit", limit)
        self._begin(watermark)
        self._go_on(limit)
        return not self._unfinished

    def current_output_watermark(self) -> int:
        """Return the watermark that has gone downstream, epoch ms; before the first, ``MIN_WATERMARK``.

        All timers up to it have fired, but those that came when their service had passed it already.
        """
        return self._output_watermark

    def num_event_time_timers(self) -> int:
        """Count the event-time timers of all services. O(services)."""
        return sum(service.num_event_time_timers() for service in self._services.values())

    def num_processing_time_timers(self) -> int:
        """Count the processing-time timers of all services. O(services)."""
        return sum(service.num_processing_time_timers() for service in self._services.values())

    def snapshot(self) -> dict[int, bytes]:
        """Return the timers of all services as bytes, for each key group of this operator; all go on.

        Restored services that nobody has asked for are in it as they came. The watermark is not.

        Returns
        -------
        dict
            key group -> bytes: versioned, checksummed, no pickle. O(n log n).

        Raises
        ------
        TypeError, OverflowError, ValueError
            If a service's serializers do not take a key or a namespace.
        """
        services: dict[int, list[ServiceSnapshot]] = {key_group: [] for key_group in self._key_groups.range}
        for name, (serializer, queues) in self._stored.items():
            event, processing = (self._by_key_group(queue, serializer) for queue in queues)
            for key_group, found in services.items():
                columns = event.get(key_group, []), processing.get(key_group, [])
                found.append(ServiceSnapshot(name, *_names(serializer), *columns))
        for key_group, restored in self._restored.items():
            services[key_group] += restored
        count = self._key_groups.max_parallelism
        return {group: KeyGroupSnapshot(group, count, found).to_bytes() for group, found in services.items()}

    def restore(self, snapshot: Mapping[int, bytes]) -> None:
        """Take over the timers of this operator's key groups, before its services are asked for.

        Each service gets its timers when it is asked for; until then they wait, whatever the watermark.
        Watermarks begin at ``MIN_WATERMARK``. May be called again with further key groups.

        Parameters
        ----------
        snapshot : mapping
            key group -> bytes, what one or many operators gave as `snapshot`; other operators' key groups
            are passed over.

        Raises
        ------
        RuntimeError
            If a service has been asked for already.
        TypeError, ValueError
            If `snapshot` is no such mapping, its bytes are damaged or of another key group, a newer format
            or another `max_parallelism`, or a key group has been restored already. Then nothing has been
            restored.
        """
        if self._services:
            raise RuntimeError(f"restore must come before the services {list(self._services)} are asked for")
        if not isinstance(snapshot, Mapping):
            raise TypeError(f"snapshot must be a mapping of key groups to bytes, got {snapshot!r}")
        for key_group in snapshot:
            if not isinstance(key_group, int):
                raise TypeError(
                    f"snapshot must be a mapping of key groups, which are ints, got {key_group!r}"
                )
        owned = [key_group for key_group in self._key_groups.range if key_group in snapshot]
        read = {key_group: self._read(key_group, snapshot[key_group]) for key_group in owned}
        self._restored.update(read)

    def _by_key_group(
        self, queue: KeyedTimerQueue[K, Any], serializer: TimerSerializer
    ) -> dict[int, list[bytes]]:
        """Write a queue's timers in one scan; those of a key group are sorted."""
        timers = list(queue)
        key_groups = self._key_groups.of_many([timer.key for timer in timers]).tolist()
        found = defaultdict(list)
        for key_group, data in sorted(zip(key_groups, map(serializer.serialize, timers), strict=True)):
            found[key_group].append(data)
        return found

    def _read(self, key_group: int, data: bytes) -> list[ServiceSnapshot]:
        if key_group in self._restored:
            raise ValueError(f"snapshot must hold no key group twice, got {key_group} again")
        found, count, services = KeyGroupSnapshot.from_bytes(data)
        if (found, count) != (key_group, self._key_groups.max_parallelism):
            raise ValueError(
                f"snapshot must hold, for key group {key_group}, that of {self._key_groups.max_parallelism} "
                f"key groups, got key group {found} of {count}"
            )
        return services

    def _restored_timers(self, name: str, serializer: TimerSerializer) -> _Timers[K]:
        """Read the event-time and the processing-time timers that were restored for a service."""
        event: list[InternalTimer[K, Any]] = []
        processing: list[InternalTimer[K, Any]] = []
        for services in self._restored.values():
            for service in services:
                if service.name == name:
                    _expect(serializer, name, service.key_serializer, service.namespace_serializer)
                    event += serializer.deserialize_many(service.event_time_timers)
                    processing += serializer.deserialize_many(service.processing_time_timers)
        return event, processing

    def _new_queue(self, name: str) -> KeyedTimerQueue[K, Any]:
        queue = self._create_queue(name)
        if queue is None:  # for which a service would take a queue of its own
            raise TypeError(f"create_queue must give a KeyedTimerQueue, got None for {name!r}")
        return queue

    def _begin(self, watermark: int) -> None:
        if not self._unfinished or watermark > self._current_watermark:
            self._current_watermark = watermark
            self._unfinished.extend((service, watermark) for service in self._services.values())
            self._unfinished.append((None, watermark))

    def _go_on(self, limit: int | None) -> None:
        if self._is_advancing:  # a callback called: whoever called it goes on
            return
        self._is_advancing = True
        try:
            while self._unfinished:
                service, watermark = self._unfinished[0]
                if service is None:
                    self._emit(watermark)
                else:
                    fired = service._advance(watermark, limit)
                    if limit is not None:
                        limit -= fired
                        if service._is_due():
                            break
                self._unfinished.popleft()
        finally:
            self._is_advancing = False

    def _emit(self, watermark: int) -> None:
        if watermark > self._output_watermark:
            if self._emit_watermark is not None:
                self._emit_watermark(watermark)
            self._output_watermark = watermark


def _names(serializer: TimerSerializer) -> tuple[str, str]:
    return serializer.key_serializer.name, serializer.namespace_serializer.name


def _expect(serializer: TimerSerializer, service: str, key: str, namespace: str) -> None:
    if _names(serializer) != (key, namespace):
        raise ValueError(
            f"key_serializer and namespace_serializer of the service {service!r} must be {key!r} and "
            f"{namespace!r}, as before, got {serializer}"
        )
