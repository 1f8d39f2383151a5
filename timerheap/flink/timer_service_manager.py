"""All timer services of an operator, with their snapshots by key group."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple

from timerheap._arguments import instance, int64, positive_int
from timerheap._contents import KeyContext
from timerheap._native._core import seal, unseal
from timerheap.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CheckpointMismatchError,
    DamagedCheckpointError,
)
from timerheap.flink.internal_timer_service import InternalTimerService, Triggerable
from timerheap.flink.java_hashes import java_hash_code
from timerheap.flink.key_groups import KeyGroupRange, OwnedKeyGroups
from timerheap.flink.processing_time import ProcessingTimeService
from timerheap.flink.timer_bytes import SERIALIZERS, TimerSerializer, TypeSerializer
from timerheap.flink.timer_queue import InternalTimer, K, KeyedTimerQueue, TimerQueue, all_or_none
from timerheap.timer import MIN_WATERMARK

_Queues = tuple[KeyedTimerQueue[K, Any], KeyedTimerQueue[K, Any]]  # event time, processing time
_Timers = tuple[list[InternalTimer[K, Any]], list[InternalTimer[K, Any]]]

_KIND = 3
_ANY = SERIALIZERS["any"]


class ServiceSnapshot(NamedTuple):
    """The timers of one service in a key group, as the named serializers wrote them."""

    name: str
    key_serializer: str
    namespace_serializer: str
    event_time_timers: list[bytes]
    processing_time_timers: list[bytes]


class KeyGroupSnapshot(NamedTuple):
    """The timers of all services in a key group; as bytes, a tuple of the serializer "any" in an envelope."""

    key_group: int
    max_parallelism: int
    services: list[ServiceSnapshot]

    def to_bytes(self) -> bytes:
        """Serialize the snapshot. O(its size)."""
        services = tuple((*service[:3], *map(tuple, service[3:])) for service in self.services)
        return seal(_KIND, _ANY.serialize((self.key_group, self.max_parallelism, services)))

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyGroupSnapshot:
        """Deserialize a snapshot; raise a DamagedCheckpointError for other bytes."""
        payload = bytes(unseal(_KIND, data))
        try:
            (key_group, max_parallelism, found), _ = _ANY.deserialize(payload, 0)
            services = [
                ServiceSnapshot(name, key, namespace, list(event), list(processing))
                for name, key, namespace, event, processing in found
            ]
            snapshot = cls(key_group, max_parallelism, services)
            if snapshot.to_bytes() != bytes(data):
                raise ValueError("they are of something else")
        except (struct.error, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            raise DamagedCheckpointError(
                f"data must be the timers of a key group, got invalid bytes: {error}"
            ) from error
        return snapshot


class InternalTimeServiceManager(Generic[K]):
    """Named timer services of one operator, with a common key context and clock.

    A watermark advances every service in order of creation, and is emitted downstream after all timers that
    it makes due have fired.

    Parameters
    ----------
    processing_time_service : ProcessingTimeService
        The clock of all services.
    key_context : KeyContext, optional
        The current key of the operator; by default a new one, available as `key_context`.
    max_parallelism : int, default 128
        The number of key groups, 1 to 32768.
    key_group_range : KeyGroupRange, optional
        The key groups of this operator; by default all of them.
    hash_code : callable, default java_hash_code
        A function from a key to an int, whose low 32 bits determine the key group, as in `TimerQueue`.
    create_queue : callable, optional
        A function from a name to a `KeyedTimerQueue` with the same key groups and hash code. It is called for
        ``<service>/event_time`` and ``<service>/processing_time``. The default creates a `TimerQueue`; for
        timers on disk, use ``lambda name: RocksDBTimerQueue(directory / name)``.
    emit_watermark : callable, optional
        Receives each watermark emitted downstream, epoch ms; each is higher than the one before.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If `max_parallelism` or `key_group_range` is invalid, or the range exceeds `max_parallelism`.

    Notes
    -----
    Flink: ``InternalTimeServiceManagerImpl``, and ``AbstractStreamOperator.processWatermark``, which also
    fires timers before it emits the watermark. A manager must be used by one thread at a time; with a
    `SystemProcessingTimeService`, hold its ``lock``.

    Examples
    --------
    Create an operator with two services; the timers fire before the watermark is emitted:

    >>> from timerheap.flink import InternalTimeServiceManager, KeyGroupRange, ManualProcessingTimeService
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

    Split the operator into two, with half of the key groups each:

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
        self.key_context: KeyContext[K] = KeyContext() if key_context is None else key_context
        self._clock = processing_time_service
        self._key_groups = OwnedKeyGroups(max_parallelism, key_group_range, hash_code)
        self._create_queue = create_queue or (
            lambda name: TimerQueue(max_parallelism, key_group_range, hash_code)
        )
        self._emit_watermark = emit_watermark
        self._services: dict[str, InternalTimerService[K, Any]] = {}
        self._stored: dict[str, tuple[TimerSerializer, _Queues[K]]] = {}  # by service
        self._restored: dict[int, list[ServiceSnapshot]] = {}  # by key group: services not yet requested
        self._is_advancing = False
        self._unfinished: deque[tuple[InternalTimerService[K, Any] | None, int]] = deque()  # None: emit
        self._current_watermark = MIN_WATERMARK
        self._output_watermark = MIN_WATERMARK

    def get_internal_timer_service(
        self,
        name: str,
        triggerable: Triggerable[K, Any],
        key_serializer: str | TypeSerializer = "any",
        namespace_serializer: str | TypeSerializer = "any",
    ) -> InternalTimerService[K, Any]:
        """Return the service with that name; create it with its restored timers if it does not exist.

        Parameters
        ----------
        name : str
            The name of the service, unique in the operator.
        triggerable : Triggerable
            The object to call when a timer fires. An existing service keeps its first one, as in Flink.
        key_serializer, namespace_serializer : str or TypeSerializer, default "any"
            The serializers of keys and namespaces in snapshots, as in `RocksDBTimerQueue`. They must be the
            same in every call for a name.

        Raises
        ------
        ArgumentTypeError
            If `name` is not a str, a serializer is invalid, or `create_queue` does not return a queue.
        ArgumentValueError
            If the service, or the restored snapshot, has other serializers, or the key of a restored timer
            does not belong to this operator.
        RuntimeError
            If there are restored processing-time timers and the clock is shut down.
        """
        instance("name", name, str)
        serializer = TimerSerializer(key_serializer, namespace_serializer)
        if name in self._services:
            _expect_serializers(serializer, name, *_names(self._stored[name][0]))
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
        """Advance every service in order of creation, and then emit the watermark downstream.

        If a callback registers a timer for a service that has already advanced, the timer fires at the next
        advance. If a callback advances to a higher watermark, that advance follows this one.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If `watermark` is not an int64.
        Exception
            If a callback raises; the watermark is then not emitted, and the next advance continues there.
        """
        self._begin(int64("watermark", watermark))
        self._go_on(None)

    def try_advance_watermark(self, watermark: int, limit: int) -> bool:
        """Advance like `advance_watermark`, but fire at most `limit` timers of all services together.

        Call it until it returns True, when the watermark has been emitted. A limit only changes when timers
        fire: their order, and the order of timers and watermarks, stays the same. A higher watermark waits
        until the advance in progress has finished.

        Parameters
        ----------
        watermark : int
            As in `advance_watermark`.
        limit : int
            The maximum number of timers to fire, 1 or more.

        Returns
        -------
        bool
            Whether all due timers have fired.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError
            If `watermark` is not an int64, or `limit` is not an int of 1 or more.
        Exception
            As for `advance_watermark`.

        Examples
        --------
        >>> from timerheap.flink import InternalTimeServiceManager, ManualProcessingTimeService
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
        watermark, limit = int64("watermark", watermark), positive_int("limit", limit)
        self._begin(watermark)
        self._go_on(limit)
        return not self._unfinished

    def current_output_watermark(self) -> int:
        """Return the last watermark emitted downstream, epoch ms, or ``MIN_WATERMARK`` before the first.

        All timers up to it have fired, except those registered after their service had passed them.
        """
        return self._output_watermark

    def num_event_time_timers(self) -> int:
        """Return the number of event-time timers of all services. O(services)."""
        return sum(service.num_event_time_timers() for service in self._services.values())

    def num_processing_time_timers(self) -> int:
        """Return the number of processing-time timers of all services. O(services)."""
        return sum(service.num_processing_time_timers() for service in self._services.values())

    def snapshot(self) -> dict[int, bytes]:
        """Return the timers of all services as bytes, for each key group of this operator.

        The services keep their timers. Restored services that have not been requested are included as they
        were restored. The watermark is not included.

        Returns
        -------
        dict
            Bytes by key group, versioned and checksummed, without pickle. O(n log n).

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError, ArgumentValueError
            If a service's serializers cannot write a key or a namespace.
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
        """Restore the timers of this operator's key groups, before its services are requested.

        Each service receives its timers when it is requested; until then none of them fire. Watermarks start
        at ``MIN_WATERMARK``. Further calls may restore other key groups.

        Parameters
        ----------
        snapshot : mapping
            Bytes by key group, from the `snapshot` of one or more operators; key groups of other operators
            are ignored.

        Raises
        ------
        RuntimeError
            If a service has already been requested.
        ArgumentTypeError, ArgumentValueError, CheckpointError
            If `snapshot` is not a mapping, its bytes are damaged or belong to another key group, to a newer
            format or to another `max_parallelism`, or a key group has already been restored. Nothing is then
            restored.
        """
        if self._services:
            raise RuntimeError(
                f"restore must be called before services are requested, got {list(self._services)}"
            )
        if not isinstance(snapshot, Mapping):
            raise ArgumentTypeError(f"snapshot must be a mapping of key groups to bytes, got {snapshot!r}")
        for key_group in snapshot:
            if not isinstance(key_group, int):
                raise ArgumentTypeError(
                    f"snapshot must be a mapping of key groups, which are ints, to bytes, got {key_group!r}"
                )
        owned = [key_group for key_group in self._key_groups.range if key_group in snapshot]
        read = {key_group: self._read(key_group, snapshot[key_group]) for key_group in owned}
        self._restored.update(read)

    def _by_key_group(
        self, queue: KeyedTimerQueue[K, Any], serializer: TimerSerializer
    ) -> dict[int, list[bytes]]:
        """Serialize the timers of a queue in one scan, sorted within each key group."""
        timers = list(queue)
        key_groups = self._key_groups.of_many([timer.key for timer in timers]).tolist()
        found = defaultdict(list)
        for key_group, data in sorted(zip(key_groups, map(serializer.serialize, timers), strict=True)):
            found[key_group].append(data)
        return found

    def _read(self, key_group: int, data: bytes) -> list[ServiceSnapshot]:
        if key_group in self._restored:
            raise ArgumentValueError(f"snapshot must not contain restored key groups, got {key_group} again")
        found, count, services = KeyGroupSnapshot.from_bytes(data)
        if (found, count) != (key_group, self._key_groups.max_parallelism):
            raise CheckpointMismatchError(
                f"snapshot must contain key group {key_group} of {self._key_groups.max_parallelism} at that "
                f"key, got key group {found} of {count}"
            )
        return services

    def _restored_timers(self, name: str, serializer: TimerSerializer) -> _Timers[K]:
        event: list[InternalTimer[K, Any]] = []
        processing: list[InternalTimer[K, Any]] = []
        for services in self._restored.values():
            for service in services:
                if service.name == name:
                    _expect_serializers(
                        serializer, name, service.key_serializer, service.namespace_serializer
                    )
                    event += map(serializer.deserialize, service.event_time_timers)
                    processing += map(serializer.deserialize, service.processing_time_timers)
        return event, processing

    def _new_queue(self, name: str) -> KeyedTimerQueue[K, Any]:
        queue = self._create_queue(name)
        if queue is None:  # otherwise the service would create its own queue
            raise ArgumentTypeError(f"create_queue must return a KeyedTimerQueue, got None for {name!r}")
        return queue

    def _begin(self, watermark: int) -> None:
        if not self._unfinished or watermark > self._current_watermark:
            self._current_watermark = watermark
            self._unfinished.extend((service, watermark) for service in self._services.values())
            self._unfinished.append((None, watermark))

    def _go_on(self, limit: int | None) -> None:
        if self._is_advancing:  # called from a callback; the outer call continues
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


def _expect_serializers(serializer: TimerSerializer, service: str, key: str, namespace: str) -> None:
    if _names(serializer) != (key, namespace):
        raise ArgumentValueError(
            f"key_serializer and namespace_serializer of the service {service!r} must be {key!r} and "
            f"{namespace!r}, as before, got {serializer}"
        )
