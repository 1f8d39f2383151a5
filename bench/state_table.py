"""The report of state.py as text."""

from __future__ import annotations

from typing import Any

__all__ = ["table"]


def table(result: dict[str, Any]) -> str:
    """Return the report as text."""
    names = ("", "", "timers", "addBatch", "trigger", "ratio", "JVM", "Python", "written", "a row", "a group")
    lines = [_line(*names, "allowed", "loaded", "idle", "loaded")]
    for master, found in result["masters"].items():
        for job in found["jobs"]:
            idle = job["add_after_idling"]
            lines.append(
                _line(
                    *(master, job["variant"], f"{job['timers']:.0e}"),
                    *(f"{job[name]:.2f} s" for name in ("add", "trigger")),
                    f"{job['ratio']:.2f}",
                    *(f"{job[name]:.2f} s" for name in ("jvm", "python")),
                    f"{job['written'] / 1024:.0f} KB",
                    *(f"{job['written'] / job[name]:.0f} B" for name in ("changed", "groups")),
                    f"{job['written_allowed'] / 1024:.0f} KB",
                    job["loaded"],
                    "" if idle is None else f"{idle:.2f} s",
                    job["loaded_after_idling"],
                )
            )
    for master, found in result["masters"].items():
        for timers, cold in found["cold"].items():
            hundred = cold["cpu"] / cold["bytes"] * 1e8
            lines.append(
                f"{master}, cold load of {timers:.0e} timers, {cold['groups']} groups: "
                f"{cold['bytes'] / 1e6:.1f} MB in {cold['seconds']:.2f} s of the workers, "
                f"{cold['cpu']:.2f} s of their CPU, {hundred:.2f} s per 100 MB, "
                f"{cold['jvm']:.2f} s of the JVM's; "
                f"addBatch {cold['add']:.2f} s instead of {cold['add_before']:.2f} s"
            )
        for timers, read in found["read"].items():
            each = {name: read[name] / timers * 1e9 for name in ("jvm", "python")}
            lines.append(
                f"{master}, {timers:.0e} timers read from the checkpoint in {read['seconds']:.1f} s: "
                f"{each['python']:.0f} ns of Python's CPU and {each['jvm']:.0f} ns of the JVM's each"
            )
        if after := found["memory_after_restarts"]:
            for name, process in [("python", "the Python workers"), ("jvm", "the JVM")]:
                first, final = after[0][name], after[-1][name]
                lines.append(
                    f"{master}, memory of {process}: {first / 1e6:.0f} MB after the first restart, "
                    f"{final / 1e6:.0f} MB after {len(after)} ({final / first:.2f})"
                )
    return "\n".join(lines)


def _line(first: str, second: str, *rest: object) -> str:
    return f"{first:10}{second:10}" + "".join(f"{cell!s:>10}" for cell in rest)
