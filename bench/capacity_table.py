"""What 1, 10 and 100 billion keys need, computed from what keys were measured to take."""

from __future__ import annotations

from typing import Any

__all__ = ["billions", "loading", "phases", "settled"]

CORES, HOST = 1_000, 16  # in all, and of a host
GROUPS = 16  # key groups of a core
ABOVE = 64 << 20  # bytes of a key group in memory from which on keys settle
NETWORK = 10e9 / 8  # bytes a second that a host can read from the object store
PARTS = ("a key of 13 bytes", "a timer with a name", "a value state of a double, for each key that has one")
KEYS = {"1 billion keys": 10**9, "10 billion": 10**10, "100 billion": 10**11}


def settled(figures: dict[str, Any]) -> dict[str, float]:
    """Return the bytes of a key on a local disk, in the state store and in the checkpoint; us of a load."""
    loads, keys = figures["loads"], figures["keys"]
    return {
        "a key in a run": figures["settled"]["bytes"] / figures["settled"]["keys"],
        "files a key": figures["mapped"] / keys,
        "RocksDB a key": figures["rocksdb"] / keys,
        "snapshot a key": figures["snapshot"] / keys,
        "million keys": keys / 1e6,
        "with live files, s": loads["restart"]["seconds"],
        "RocksDB is open, s": loads["without live files"]["seconds"],
        "RocksDB opens the checkpoint, s": loads["without RocksDB"]["seconds"],
    }


def loading(figures: dict[str, Any]) -> dict[str, float]:
    """Return the CPU of loading a key into memory and into runs, us."""
    return {name: 1e6 * figures[name]["phases"]["all"] / figures["keys"] for name in ("memory", "runs")}


def billions(figures: dict[str, Any], records: dict[str, Any], load: dict[str, float]) -> list[list[str]]:
    """Return the lines of the table: its heads, then what each number of keys needs."""
    each = settled(figures)
    live = {row[0]: float(row[1]) for row in records["capacity"]["tables"]["bytes of parts"][1:]}
    in_memory = sum(live[part] for part in PARTS)
    requests = records["object_store"]["tables"]["of a micro-batch"]
    a, b = (dict(zip(requests[0][1:6], map(int, row[1:6]), strict=True)) for row in requests[1:])
    asked = {name: a[name] + b[name] * CORES for name in a}
    labels = {
        "keys of a core, in 16 key groups": lambda n: f"{n / 1e6:,.0f} million",
        "of these in memory, at most": lambda n: f"{hot(n) / 1e6:,.1f} million",
        "memory of a core for them, and for the index of the runs": lambda n: gigabytes(
            hot(n) * in_memory + cold(n) * each["a key in a run"] * 20 / 4096
        ),
        "local disk of a core, live files": lambda n: gigabytes(
            2 * hot(n) * in_memory + cold(n) * each["a key in a run"]
        ),
        "local disk of a core, RocksDB": lambda n: gigabytes(n * each["RocksDB a key"]),
        "the newest snapshot in the checkpoint, in all": lambda n: gigabytes(
            CORES * n * each["snapshot a key"]
        ),
        "requests of a micro-batch, PUT, COPY and LIST": lambda n: (
            f"{asked['PUT'] + asked['COPY'] + asked['LIST']:,}"
        ),
        "HEAD and DELETE": lambda n: f"{asked['HEAD'] + asked['DELETE']:,}",
        "recovery of a host of 16 cores: download at 10 Gbit/s": lambda n: (
            f"{HOST * n * each['snapshot a key'] / NETWORK:,.0f} s"
        ),
        "and loading, CPU of each core": lambda n: (
            f"{(hot(n) * load['memory'] + cold(n) * load['runs']) / 1e6:,.1f} s"
        ),
    }

    def hot(n: float) -> float:
        return min(n, GROUPS * ABOVE / in_memory)

    def cold(n: float) -> float:
        return n - hot(n)

    lines = [["on 1,000 cores", *KEYS]]
    return lines + [[label, *(of(n / CORES) for n in KEYS.values())] for label, of in labels.items()]


def gigabytes(size: float) -> str:
    """Return a size with two digits that count."""
    unit, size = ("TB", size / 1e12) if size >= 1e12 else ("GB", size / 1e9)
    return f"{size:,.{0 if size >= 10 else 1 if size >= 1 else 2}f} {unit}"


PHASES = {
    "read": "reading from the state store",
    "decode": "decoding",
    "sort": "sorting into ranges of ids, in a scratch file",
    "settle": "writing runs",
}


def phases(figures: dict[str, Any]) -> list[list[str]]:
    """Return the lines of the table of loads: its heads, then the CPU seconds of each phase."""
    ours, flink = [figures[name] for name in ("memory", "runs")], figures["flink"]
    heads = [f"CPU of {figures['keys']:,} keys of one key group", "into memory", "into runs"]
    lines = [
        heads,
        *([label, *(_seconds(one["phases"].get(name)) for one in ours)] for name, label in PHASES.items()),
    ]
    rest = [one["phases"]["all"] - sum(one["phases"].get(name, 0) for name in PHASES) for one in ours]
    lines.append(["putting keys, timers and values into tables", *map(_seconds, rest)])
    lines.append(["**the load**", *(_seconds(one["phases"]["all"]) for one in ours)])
    lines.append(["memory that it adds at most", *(f"{one['rise'] / 1e6:,.0f} MB" for one in ours)])
    if "skipped" not in flink:
        keys = figures["keys"]
        lines.append([f"Flink with RocksDB, up to its first rows, {keys:,} keys", _seconds(flink["all"]), ""])
        lines.append(["the same, a thousand keys", _seconds(flink["few"]), ""])
    return lines


def _seconds(time: float | None) -> str:
    return "" if time is None else f"{time:.2f} s"
