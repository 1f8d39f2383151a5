"""What is known of one key, for a terminal and as a page with a timeline that needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape

from rich.console import Console
from rich.text import Text

from timerheap._inspect import printable
from timerheap._inspect.one_key import KeyReport, changes, duration, moment, waits_for

_MOST = 20  # lines of each part in a terminal
_WIDE, _HIGH, _LEFT = 900, 320, 170  # of the timeline, in pixels
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
h2 { font-size: 1.1em; margin-top: 1.6em } li { margin: .3em 0 }
svg { width: 100%; height: auto; font-size: 11px } code { white-space: pre-wrap; overflow-wrap: anywhere }
.mark { fill: none; stroke: #c33; stroke-width: 2 } .timer { stroke: #37a; stroke-width: 2 }
.grid { stroke: #ddd } .fired { fill: #37a }
"""


def _parts(found: KeyReport) -> Iterator[tuple[str, list[str]]]:
    """Yield what both views show: the heads and the lines of their parts."""
    now = found.now
    yield "Why has it not fired?", list(waits_for(found))
    timers = []
    for timer in now.timers:
        past = found.read_at - timer["due"]
        by_clock = f"{duration(past)} ago by the clock" if past >= 0 else f"in {duration(-past)} by the clock"
        name = f" {timer['name']}" if timer["name"] else ""
        timers.append(f"{timer['of'].replace('_', '-')}{name}: {moment(timer['due'])}, {by_clock}")
    yield "Pending timers", timers
    yield "States", [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in now.states.items()]
    yield (
        "Rows that wait for the watermark",
        [json.dumps(row, ensure_ascii=False) for row in now.buffered_rows],
    )
    yield (
        "What has changed in the last micro-batches",
        [
            f"{after.batch_id} (began {moment(after.began)}, watermark {moment(after.watermark)}): "
            + ("; ".join(texts) or "nothing")
            for after, texts in changes(found)
        ],
    )


def _title(found: KeyReport) -> str:
    key = ", ".join(f"{name}={value}" for name, value in found.key.items())
    return f"Key {key}, operator {found.operator}, after micro-batch {found.now.batch_id}"


def print_key(found: KeyReport, console: Console) -> None:
    console.print(Text(printable(_title(found)), "bold"), soft_wrap=True)
    for head, lines in _parts(found):
        if lines:
            console.print(Text(f"\n{head}"))
            for line in lines[-_MOST:] if "changed" in head else lines[:_MOST]:
                console.print(Text(f"  {printable(line)}"), soft_wrap=True)
            if len(lines) > _MOST:
                console.print(Text(f"  and {len(lines) - _MOST} more"))


def page(found: KeyReport) -> str:
    """Return a static page of HTML."""
    title = escape(_title(found))
    sections = []
    for head, lines in _parts(found):
        if lines:
            items = "".join(f"<li><code>{escape(line)}</code></li>" for line in lines)
            sections.append(f"<h2>{escape(head)}</h2><ul>{items}</ul>")
    timeline = f"<h2>Timers and watermark</h2>{_timeline(found)}" if len(found.history) > 1 else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{escape(found.checkpoint)}, read "
        f"{moment(found.read_at)}</p>{sections[0] if sections else ''}{timeline}{''.join(sections[1:])}"
        "</body></html>\n"
    )


def _timeline(found: KeyReport) -> str:
    """Draw the watermark over the micro-batches, and each event-time timer while it was pending."""
    history = found.history
    pending: dict[int, list[int]] = {}  # numbers of moments, by when a timer is due
    for number, each in enumerate(history):
        for timer in each.timers:
            if timer["of"] == "event_time":
                pending.setdefault(timer["due"], []).append(number)
    marks = {number: each.watermark for number, each in enumerate(history) if each.watermark is not None}
    times = sorted([*marks.values(), *pending])
    if not times:
        return "<p>No event time.</p>"
    low, high = times[0], max(times[-1], times[0] + 1)
    step = (_WIDE - _LEFT - 20) / (len(history) - 1)

    def x(number: int) -> str:
        return f"{_LEFT + number * step:.1f}"

    def y(time: int) -> str:
        return f"{20 + (_HIGH - 50) * (high - time) / (high - low):.1f}"

    drawn = []
    for time in (low, (low + high) // 2, high):
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDE}" y1="{y(time)}" y2="{y(time)}"/>')
        drawn.append(f'<text x="0" y="{y(time)}">{escape(moment(time))}</text>')
    for number in range(0, len(history), max(1, len(history) // 10)):
        drawn.append(f'<text x="{x(number)}" y="{_HIGH - 5}">{history[number].batch_id}</text>')
    for due, numbers in pending.items():
        last, ended = numbers[-1], numbers[-1] < len(history) - 1
        title = f"<title>due {escape(moment(due))}</title>"
        until, at = x(last + ended), y(due)
        drawn.append(
            f'<line class="timer" x1="{x(numbers[0])}" x2="{until}" y1="{at}" y2="{at}">{title}</line>'
        )
        if ended and marks.get(last + 1, due - 1) >= due:
            drawn.append(f'<circle class="fired" cx="{until}" cy="{at}" r="4"><title>fired</title></circle>')
    points = " ".join(f"{x(number)},{y(mark)}" for number, mark in marks.items())
    drawn.append(f'<polyline class="mark" points="{points}"><title>watermark</title></polyline>')
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img">{"".join(drawn)}</svg><p>By micro-batch: the '
        "watermark in red, a line for each event-time timer while it was pending, a dot where it fired.</p>"
    )
