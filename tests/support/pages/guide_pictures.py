"""Draws the pictures of late rows, channels and the order of rows in the guides, into docs/images.

Run as ``python tests/support/pages/guide_pictures.py``. Rows go through `timerheap.testing`, so that
watermarks, late rows and calls are those of a query; a test compares the files with what this module draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from timerheap import KeyedProcessFunction
from timerheap.spark import EventTime
from timerheap.testing import ProcessTester, QueryTester

FOLDER = Path(__file__).resolve().parents[3] / "docs/images"
WIDTH = 1000
INK, LINE, FAINT, ROW, OTHER, LATE, GOOD = (
    "#1b1f27", "#3b4252", "#d8dce3", "#2f6fb5", "#b5772f", "#a03a2e", "#2d7d46"
)  # fmt: skip
SECOND = 1_000
Point = tuple[float, float]


@dataclass
class Picture:
    """An SVG that grows."""

    title: str
    height: int
    parts: list[str] = field(default_factory=list)

    def text(self, at: Point, words: str, anchor: str = "start", colour: str = INK, **style: str) -> None:
        more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
        self.parts.append(
            f'<text x="{at[0]:g}" y="{at[1]:g}" text-anchor="{anchor}" fill="{colour}"{more}>'
            f"{escape(words)}</text>"
        )

    def path(self, points: list[Point], colour: str, width: float = 1.5, dashes: str = "") -> None:
        steps = " L".join(f"{x:g} {y:g}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(
            f'<path d="M{steps}" stroke="{colour}" stroke-width="{width}" fill="none"{dashed}/>'
        )

    def dot(self, at: Point, colour: str) -> None:
        self.parts.append(f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="6" fill="{colour}"/>')

    def ring(self, at: Point, colour: str, radius: int = 10) -> None:
        self.parts.append(
            f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="{radius}" stroke="{colour}" stroke-width="1.5" '
            'fill="none"/>'
        )

    def box(self, at: Point, size: Point, colour: str, round_: int = 0) -> None:
        self.parts.append(
            f'<rect x="{at[0]:g}" y="{at[1]:g}" width="{size[0]:g}" height="{size[1]:g}" rx="{round_}" '
            f'fill="{colour}"/>'
        )

    def svg(self) -> str:
        """Return the file: on white, as the other pictures are."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" role="img" aria-label="{escape(self.title)}" '
            f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="13" fill="{INK}">'
        )
        ground = f'<rect width="{WIDTH}" height="{self.height}" rx="8" fill="#ffffff"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", ground, *self.parts, "</svg>", ""])


@dataclass
class Chart:
    """Rows by their arrival, from left to right, and their event time, upwards."""

    picture: Picture
    batches: int
    times: tuple[int, int]  # the lowest and the highest, ms
    left: int = 90
    right: int = 760
    top: int = 44
    bottom: int = 300

    def x(self, batch: float) -> float:
        """Return where a micro-batch begins."""
        return self.left + (self.right - self.left) * batch / self.batches

    def y(self, time: float) -> float:
        low, high = self.times
        return round(self.bottom - (self.bottom - self.top) * (time - low) / (high - low), 1)

    def axes(self, step: int) -> None:
        """Draw both axes, the micro-batches, and a line for each `step` of event time."""
        draw, (low, high) = self.picture, self.times
        for time in range(-(-low // step) * step, high + 1, step):
            draw.path([(self.left, self.y(time)), (self.right, self.y(time))], FAINT, 1)
            draw.text((self.left - 8, self.y(time) + 4), f"12:00:{time // SECOND:02}", "end")
        for batch in range(self.batches):
            if batch:
                ends = [(self.x(batch), self.top - 8), (self.x(batch), self.bottom + 8)]
                draw.path(ends, LINE, 1, "4 3")
            draw.text(
                ((self.x(batch) + self.x(batch + 1)) / 2, self.bottom + 24), f"micro-batch {batch}", "middle"
            )
        draw.text((24, self.top - 18), "event time")
        draw.text((self.right, self.bottom + 44), "rows as they arrive, from left to right", "end")

    def steps(self, marks: list[int], colour: str, width: float, dashes: str = "") -> None:
        """Draw a watermark, given its values after each micro-batch; it counts from the next one on."""
        low, points = self.times[0], list[Point]()
        for batch, mark in enumerate(marks):
            if mark > low:
                points += [(self.x(batch + 1), self.y(mark))]
                points += [(self.x(min(batch + 2, self.batches)), self.y(mark))]
        rises = [point for n, point in enumerate(points) if n == 0 or point != points[n - 1]]
        self.picture.path(rises, colour, width, dashes)

    def places(self, batch: int, n: int) -> list[float]:
        """Return where the n rows of a micro-batch are."""
        width = self.x(batch + 1) - self.x(batch)
        return [self.x(batch) + width * (number + 1) / (n + 1) for number in range(n)]


class Pass(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        yield value.k, value.at


def late_rows() -> Picture:
    """Rows out of order, and a watermark ten seconds behind the largest time."""
    batches = [[2, 9, 5, 14], [12, 21, 8, 26], [24, 11, 33, 29], [31, 38, 20, 44]]
    query = QueryTester()
    rows = query.source("k string, at bigint")
    delay = 10 * SECOND
    passed = query.process(rows, "k", Pass(), "k string, at bigint", "at", watermark=delay, late="emit")
    late: dict[int, int] = {}  # by how many ms, by the time of the row
    marks = []
    for batch in batches:
        query.push({rows: [("a", time * SECOND) for time in batch]})
        late |= {row.at: row.late_by for row in passed.late_rows().take()}
        marks.append(passed.watermark)
    title = "Late rows: those at or behind the watermark before their micro-batch"
    chart = Chart(Picture(title, 384), len(batches), (0, 50 * SECOND))
    chart.axes(10 * SECOND)
    chart.steps(marks, GOOD, 2.5)
    draw = chart.picture
    for number, batch in enumerate(batches):
        for x, time in zip(chart.places(number, len(batch)), batch, strict=True):
            at = time * SECOND
            draw.dot((x, chart.y(at)), LATE if at in late else ROW)
            if at in late:
                draw.text((x, chart.y(at) + 22), f"late by {late[at] / SECOND:g} s", "middle", LATE)
    top, end = max(map(max, batches)) * SECOND, chart.right + 14
    draw.path([(end, chart.y(top)), (end, chart.y(marks[-1]))], LINE, 1)
    draw.text((end + 8, chart.y(top) + 5), "largest time so far")
    draw.text((end + 8, chart.y((top + marks[-1]) / 2) + 5), "the delay: 10 seconds")
    draw.text((end + 8, chart.y(marks[-1]) + 5), "watermark", colour=GOOD, font_weight="bold")
    legend(
        draw, 24, chart.bottom + 68, [("a row", ROW), ("a late row: it is dropped, or emitted apart", LATE)]
    )
    return draw


def channels() -> Picture:
    """Two airports, one of which is behind: the watermark of each, and one over all rows."""
    batches = [
        [("JFK", 8), ("EWR", 4), ("JFK", 12)],
        [("JFK", 18), ("JFK", 24)],
        [("EWR", 9), ("JFK", 30), ("EWR", 14)],
        [("EWR", 19), ("JFK", 38), ("EWR", 27)],
    ]
    schema, strategy = "k string, at bigint", 2 * SECOND
    query = QueryTester()
    rows = query.source(schema)
    by_channel = query.process(
        rows, "k", Pass(), schema, EventTime("at", channel="k"), watermark=strategy, late="emit"
    )
    overall = query.process(rows, "k", Pass(), schema, "at", watermark=strategy, late="emit")
    alone = {
        name: query.process(
            query.flat_map(rows, lambda row, name=name: [row] if row.k == name else [], schema),
            "k", Pass(), schema, "at", watermark=strategy,
        )
        for name in ("JFK", "EWR")
    }  # fmt: skip
    marks: dict[str, list[int]] = {name: [] for name in ("all", "lowest", *alone)}
    late = set()
    for batch in batches:
        query.push({rows: [(name, time * SECOND) for name, time in batch]})
        marks["all"].append(overall.watermark)
        marks["lowest"].append(by_channel.watermark)
        for name, each in alone.items():
            marks[name].append(each.watermark)
        late |= {(row.k, row.at) for row in overall.late_rows().take()}
        assert not by_channel.late_rows().take()
    title = "Each channel has a watermark, and the lowest is that of the query"
    chart = Chart(Picture(title, 384), len(batches), (0, 42 * SECOND))
    chart.axes(10 * SECOND)
    draw = chart.picture
    colours = {"JFK": ROW, "EWR": OTHER}
    chart.steps(marks["lowest"], GOOD, 6)
    for name in alone:
        chart.steps(marks[name], colours[name], 2)
    chart.steps(marks["all"], LATE, 1.5, "3 4")
    for number, batch in enumerate(batches):
        for x, (name, time) in zip(chart.places(number, len(batch)), batch, strict=True):
            at = (x, chart.y(time * SECOND))
            draw.dot(at, colours[name])
            if (name, time * SECOND) in late:
                draw.ring(at, LATE)
    end = chart.right + 14
    draw.text((end, chart.y(marks["JFK"][-1]) - 6), "watermark of JFK,", colour=ROW)
    draw.text((end, chart.y(marks["JFK"][-1]) + 11), "and of all rows together", colour=LATE)
    draw.text((end, chart.y(marks["EWR"][-1]) - 6), "watermark of EWR,", colour=OTHER)
    draw.text((end, chart.y(marks["EWR"][-1]) + 11), "and of the query", colour=GOOD, font_weight="bold")
    legend(draw, 24, chart.bottom + 68, [("a row of JFK", ROW), ("of EWR", OTHER)])
    draw.ring((270, chart.bottom + 64), LATE, 8)
    draw.text((284, chart.bottom + 68), "late, if there were one watermark")
    return draw


class Abandoned(KeyedProcessFunction):
    """The function of the guide, which says what it is called with."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        timers = ctx.timer_service()
        if value.action == "add":
            timers.register_event_time_timer(ctx.timestamp() + 600_000, name="abandoned")
        else:
            timers.delete_event_time_timer(name="abandoned")
        yield value.action, ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield "timer", timestamp


def order() -> Picture:
    """The calls of one function in both orders, with all rows in one micro-batch."""
    rows = [("ann", "add", 0), ("ann", "buy", 900_000)]
    words = {
        "add": ("process_element: add", "sets a timer for 12:10", ROW),
        "buy": ("process_element: buy", "deletes the timer", ROW),
        "timer": ("on_timer", "the cart is abandoned", GOOD),
    }
    draw = Picture("The calls of a function in event-time order, and in order of arrival", 330)
    left, width, end = 260, 215, 960
    minutes = 15

    def x(ms: int) -> float:
        return left + 40 + (end - left - 150) * ms / (minutes * 60_000)

    draw.text((24, 54), "Ann's cart", font_weight="bold", font_size="15")
    draw.text((24, 73), "one micro-batch has both rows")
    draw.path([(left, 58), (end, 58)], LINE)
    draw.path([(end - 8, 53), (end, 58), (end - 8, 63)], LINE)
    for _, action, at in rows:
        draw.dot((x(at), 58), ROW)
        draw.text((x(at), 44), action, "middle")
        draw.text((x(at), 84), f"12:{at // 60_000:02}", "middle")
    draw.path([(x(600_000), 49), (x(600_000), 67)], GOOD, 2)
    draw.text((x(600_000), 44), "timer due", "middle", GOOD)
    draw.text((x(600_000), 84), "12:10", "middle")
    for number, name in enumerate(("event_time", "arrival")):
        tester = ProcessTester(
            Abandoned(), "user", "user string, action string, at bigint", "call string, at bigint", "at",
            order=name,
        )  # fmt: skip
        calls = [*tester.push(rows), *tester.advance_watermark(1_000_000)]
        top = 130 + 100 * number
        draw.text((24, top + 24), f'order="{name}"', font_weight="bold", font_size="15")
        draw.text((24, top + 43), ("rows and timers by time", "rows first, then timers")[number])
        for place, (call, at) in enumerate(calls):
            what, effect, colour = words[call]
            if call == "buy" and ("timer", 600_000) in map(tuple, calls[:place]):
                effect = "the timer has fired"
            begin = left + place * (width + 20)
            draw.box((begin, top), (width, 64), colour, 6)
            draw.text((begin + width / 2, top + 22), what, "middle", "#ffffff", font_weight="bold")
            draw.text((begin + width / 2, top + 40), f"at 12:{at // 60_000:02}", "middle", "#ffffff")
            draw.text((begin + width / 2, top + 56), effect, "middle", "#ffffff")
            if place:
                draw.path([(begin - 17, top + 32), (begin - 4, top + 32)], LINE)
                draw.path([(begin - 9, top + 27), (begin - 4, top + 32), (begin - 9, top + 37)], LINE)
        if all(call != "timer" for call, _ in calls):
            begin = left + len(calls) * (width + 20)
            draw.text((begin, top + 29), "no timer is left to fire:", colour=LATE)
            draw.text((begin, top + 46), "nobody hears of the cart", colour=LATE)
    return draw


def legend(draw: Picture, x: float, y: float, entries: list[tuple[str, str]]) -> None:
    for words, colour in entries:
        draw.dot((x, y - 4), colour)
        draw.text((x + 12, y), words)
        x += 36 + 7.6 * len(words)


PICTURES: dict[str, Callable[[], Picture]] = {
    "late-rows.svg": late_rows,
    "channels.svg": channels,
    "order.svg": order,
}


if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        (FOLDER / name).write_text(drawn().svg())
