"""Runs queries of lake_jobs.py to their ends, while what they consist of is killed."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kafka_broker import Broker
from kill_driver import EXPECTED, Child, kill_executor
from lake_jobs import PARTITIONS, Reading
from processes import below, command, kill
from standalone import Cluster

__all__ = ["Run", "Sender"]

PROGRAM = Path(__file__).with_name("lake_child.py")
PATIENCE = 300  # seconds without a micro-batch
HOPELESS = 20  # failures
OUTAGE = ("TimeoutException", "DisconnectException", "org.apache.kafka")  # how a query may fail beside it


class Sender:
    """Sends readings to a topic, each once, also while the broker is away for a while."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.topic = topic
        self.ends = Counter(dict.fromkeys(range(PARTITIONS), 0))
        self.errors: list[Any] = []
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "delivery.timeout.ms": 300_000,
                "log_level": 0,
            }
        )

    def send(self, readings: Iterable[Reading]) -> None:
        """Begin to send."""
        for reading in readings:
            self._producer.produce(
                self.topic, reading.value(), partition=reading.partition, on_delivery=self._delivered
            )
            self.ends[reading.partition] += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error)

    def flush(self) -> None:
        """Wait until all messages are in the topic."""
        left = self._producer.flush(300)
        assert (left, self.errors) == (0, [])


class Run:
    """Queries in a driver that is started again whenever it ends.

    Parameters
    ----------
    work : pathlib.Path
        The queries `spec["queries"]` have their checkpoints in its folder `checkpoints`.
    spec : dict
        What the driver is told; see `program`.
    broker : Broker
        What may be killed.
    where : Cluster, optional
        The cluster on which it runs.
    program : pathlib.Path, optional
        The driver, by default lake_child.py.

    Attributes
    ----------
    kills : collections.Counter
        By what was killed.
    starts : int
    failures : list of str
        What the driver has told when it ended by itself.
    """

    def __init__(
        self,
        work: Path,
        spec: dict[str, Any],
        broker: Broker,
        where: Cluster | None = None,
        program: Path = PROGRAM,
    ) -> None:
        self.work, self.broker = work, broker
        self._spec, self._where, self._program = spec, where, program
        self._checkpoints = [work / "checkpoints" / name.replace(" ", "_") for name in spec["queries"]]
        self.kills = Counter[str]()
        self.starts = 0
        self.failures: list[str] = []
        self._child: Child | None = None

    @contextmanager
    def started(self) -> Iterator[Run]:
        """Run until the end of the block."""
        self._start()
        try:
            yield self
        except BaseException as error:
            error.add_note((self.work / "log").read_text(errors="replace")[-5_000:])
            raise
        finally:
            if self._child is not None:
                self._child.end()

    def _start(self) -> None:
        self._child = Child(self.work, self._spec, self._program)
        self.starts += 1

    def batches(self) -> list[int]:
        """Return how many micro-batches each query has committed."""
        commits = (checkpoint / "commits" for checkpoint in self._checkpoints)
        return [max((int(file.name) + 1 for file in folder.glob("[0-9]*")), default=0) for folder in commits]

    def offsets(self) -> list[dict[int, int]]:
        """Return how far each query has read and committed."""
        found = []
        for checkpoint, batches in zip(self._checkpoints, self.batches(), strict=True):
            if not batches:
                found.append({})
                continue
            text = (checkpoint / "offsets" / str(batches - 1)).read_text()
            (topic,) = json.loads(text.splitlines()[-1]).values()
            found.append({int(partition): end for partition, end in topic.items()})
        return found

    def began(self) -> list[float]:
        """Return when the last committed micro-batch of each query began, in seconds since 1970."""
        found = []
        for checkpoint, batches in zip(self._checkpoints, self.batches(), strict=True):
            text = (checkpoint / "offsets" / str(batches - 1)).read_text()
            found.append(json.loads(text.splitlines()[1])["batchTimestampMs"] / 1000)
        return found

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until something has come to pass; start the driver again when it fails."""
        batches, until = self.batches(), time.monotonic() + PATIENCE
        while not done():
            assert self._child is not None
            # Its workers may keep its output open for a minute after it was killed.
            if self._child.listen(0.05) == "end" or self._child.process.poll() is not None:
                self.failures.append(self._child.failure())
                (self.work / f"failure-{len(self.failures)}").write_text(self.failures[-1])
                assert len(self.failures) < HOPELESS, self.failures[-1]
                self._child.end()
                self._start()
            if (now := self.batches()) != batches:
                batches, until = now, time.monotonic() + PATIENCE
            assert time.monotonic() < until, batches

    def wait_for_batches(self, count: int) -> None:
        """Wait until there are so many more micro-batches, of any queries."""
        wanted = sum(self.batches()) + count
        self.wait(lambda: sum(self.batches()) >= wanted)

    def finish(self, sender: Sender, seconds: float = 0) -> None:
        """Wait until all that was sent is read, and each query has a micro-batch that began seconds later."""
        sender.flush()
        self.wait(lambda: all(read == sender.ends for read in self.offsets()))
        after = time.time() + seconds
        self.wait(lambda: all(began > after for began in self.began()))

    def surprises(self) -> list[str]:
        """Return failures for which no kill is a reason."""
        reasons = (f"exit code -{signal.SIGKILL:d}\n", *EXPECTED, *OUTAGE)
        return [failure for failure in self.failures if not any(reason in failure for reason in reasons)]

    # ---- Kills

    def kill(self, what: str, draw: random.Random) -> None:
        """Kill a driver, worker, executor or the broker, as soon as there is one."""
        self.wait(lambda: bool(getattr(self, f"_kill_{what}")(draw)))
        self.kills[what] += 1

    def _kill_driver(self, draw: random.Random) -> bool:
        assert self._child is not None
        self._child.end()
        self._start()
        return True

    def _kill_worker(self, draw: random.Random) -> bool:
        above = [*self._where.workers] if self._where else [self._child.jvm]  # type: ignore[union-attr]
        every = [process for one in above if one for process in below(one)]
        workers = [process for process in every if ".daemon pyspark." in command(process)]
        if workers:
            kill(draw.choice(workers))
        return bool(workers)

    def _kill_executor(self, draw: random.Random) -> bool:
        assert self._child is not None
        return kill_executor(self._child, draw, self._where)

    def _kill_broker(self, draw: random.Random) -> bool:
        self.broker.kill()
        time.sleep(draw.uniform(0, 3))
        self.broker.start()
        return True
