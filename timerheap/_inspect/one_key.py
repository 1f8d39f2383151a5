"""What a checkpoint holds of one key, and what its next timer waits for; for a terminal and as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import reduce
from html import escape
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.text import Text

from timerheap._inspect import escaped, printable
from timerheap._inspect.channels import judged, utc_millis
from timerheap.errors import ArgumentValueError
from timerheap.spark import CheckpointState
from timerheap.spark._compat import without_globs
from timerheap.spark._state.checkpoint_survey import numbered_operator

_SIMILAR = 10_000  # keys to look through
_SOON = timedelta(minutes=10)  # a query whose last micro-batch is older may have stopped
_HOUR = 3_600_000
_EVENT_TIME = "event_time"
_MOST = 20  # lines of each part in a terminal
_WIDE, _HIGH, _LEFT = 900, 320, 170  # of the timeline, in pixels
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
h2 { font-size: 1.1em; margin-top: 1.6em } li { margin: .3em 0 }
svg { width: 100%; height: auto; font-size: 11px } code { white-space: pre-wrap; overflow-wrap: anywhere }
.mark { fill: none; stroke: #c33; stroke-width: 2 } .timer { stroke: #37a; stroke-width: 2 }
.grid { stroke: #ddd } .fired { fill: #37a }
"""


@dataclass
class Moment:
    """What there was of the key after a micro-batch; times are epoch ms."""

    batch_id: int
    began: int | None
    watermark: int | None
    timers: list[dict[str, Any]] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)
    buffered_rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class KeyReport:
    """All that is known of one key of one operator; `asdict` of it is JSON."""

    checkpoint: str
    operator: int
    operator_name: str | None
    key: dict[str, str]
    key_types: dict[str, str]
    read_at: int
    late_rows: int
    channels: list[dict[str, Any]]
    now: Moment
    history: list[Moment] = field(default_factory=list)
    similar: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return everything, with what `waits_for` and `changes` say of it."""
        found = asdict(self) | {"waits_for": list(waits_for(self))}
        found["changes"] = {str(after.batch_id): texts for after, texts in changes_of_key(self)}
        return escaped(json.dumps(found, indent=2, ensure_ascii=False))


def read_key(spark: SparkSession, states: list[CheckpointState], key: Mapping[str, str]) -> KeyReport:
    """Read what the states hold, of micro-batches from the oldest to the last, of a key given as text.

    Raises ArgumentValueError if the key does not name the key columns.
    """
    last = states[-1]
    if set(key) != set(last.key):
        wanted = (
            " ".join(f"--key {name}=VALUE" for name in last.key) or "no --key: the query has no key columns"
        )
        raise ArgumentValueError(
            f"--key must be given once for each key column, here {wanted}; got {dict(key)}"
        )
    moments = [_moment_of_key(spark, state, key) for state in states]
    channels = judged(last.watermarks().toArrow().to_pylist())
    timers = _with_numbered_keys(last.timers(), last.key)
    found = KeyReport(
        last.checkpoint,
        last.operator_id,
        last.name,
        dict(key),
        dict(zip(last.key, (type_ for _, type_ in timers.dtypes), strict=False)),
        utc_millis(datetime.now(UTC)),
        last.groups().agg(F.sum("late_rows")).first()[0] or 0,  # type: ignore[index]
        channels,
        moments[-1],
        moments,
    )
    if not (found.now.timers or found.now.states or found.now.buffered_rows):
        found.similar = _similar(last, key)
    return found


def _with_numbered_keys(df: DataFrame, key: list[str]) -> DataFrame:
    """Return a DataFrame whose key columns are k0, k1 ...: Spark cannot find all names that keys may have."""
    return df.toDF(*(f"k{n}" for n in range(len(key))), *df.columns[len(key) :])


def _as_text(number: int) -> Any:
    return F.coalesce(F.col(f"k{number}").cast("string"), F.lit("null"))


def _moment_of_key(spark: SparkSession, state: CheckpointState, key: Mapping[str, str]) -> Moment:
    """Read one micro-batch, in one job of Spark for all tables."""
    waiting = state.buffered_rows()
    names = {"timers": state.timers(), **{f"state {name}": state.state(name) for name in state.states}}
    tables = {name: _with_numbered_keys(df, state.key) for name, df in names.items()}
    if set(state.key) <= set(waiting.columns):  # not if an expression without a name is the key
        others = [F.col(f"`{name}`") for name in waiting.columns if name not in state.key]
        shown = waiting.select(*(F.col(f"`{name}`") for name in state.key), *others)
        tables["rows"] = _with_numbered_keys(shown, state.key)
    parts = []
    for name, df in tables.items():
        mine = reduce(
            lambda a, b: a & b, (_as_text(n) == key[k] for n, k in enumerate(state.key)), F.lit(True)
        )
        columns = F.struct(*(F.col(f"`{column}`") for column in df.columns[len(state.key) :]))
        parts.append(df.where(mine).select(F.lit(name), F.to_json(columns, {"ignoreNullFields": "false"})))
    mark = state.watermarks().toArrow().column("query_watermark")[0].as_py()
    found = Moment(state.batch_id, _began(spark, state), None if mark is None else utc_millis(mark))
    for name, text in reduce(lambda a, b: a.unionAll(b), parts).collect():
        row = json.loads(text)
        if name == "rows":
            at, _ = (row.pop(column) for column in waiting.columns[-2:])  # and the key group
            found.buffered_rows.append(row | {"event_time": at})
            continue
        row = {column.removeprefix("timerheap_"): value for column, value in row.items()}  # see `added_name`
        if name == "timers":
            found.timers.append({"due": row["epoch_ms"], "of": row["time_domain"], "name": row["name"]})
        else:
            found.states[name.removeprefix("state ")] = row["value"]
    found.timers.sort(key=lambda timer: timer["due"])
    found.buffered_rows.sort(key=lambda row: str(row["event_time"]))
    return found


def _began(spark: SparkSession, state: CheckpointState) -> int | None:
    """Return when Spark planned the micro-batch; None if its log has gone."""
    path = f"{without_globs(state.checkpoint)}/offsets/{state.batch_id}"
    try:
        lines = spark.read.text(path, wholetext=True).collect()[0][0].splitlines()
        return int(json.loads(lines[1])["batchTimestampMs"])
    except (PySparkException, LookupError, ValueError):
        return None


def _similar(state: CheckpointState, key: Mapping[str, str]) -> list[str]:
    """Return keys that resemble the one that was not found."""
    tables = [state.timers(), *map(state.state, state.states)]
    texts = F.concat_ws(", ", *map(_as_text, range(len(state.key))))
    known: dict[str, str] = {}
    for df in tables:
        for row in _with_numbered_keys(df, state.key).select(texts).distinct().limit(_SIMILAR).collect():
            known.setdefault(row[0].strip().casefold(), row[0])
    wanted = ", ".join(key.values()).strip().casefold()
    return [known[each] for each in get_close_matches(wanted, known, cutoff=0.6)]


def waits_for(found: KeyReport) -> Iterator[str]:
    """Say in sentences what the next timer waits for, and what looks wrong."""
    now, watermark = found.now, found.now.watermark
    if not (now.timers or now.states or now.buffered_rows):
        yield from _unknown(found)
    elif not now.timers and now.buffered_rows:
        first = now.buffered_rows[0]["event_time"]
        yield (
            f"No timer is pending. {len(now.buffered_rows)} rows wait for the watermark to pass their event "
            f"time, the first {first}: only then does the function see them and set timers."
        )
        yield from _held(found)
    elif not now.timers:
        yield "No timer is pending: the function has set none since the last one fired or was deleted."
    of_event_time = [timer for timer in now.timers if timer["of"] == _EVENT_TIME]
    if of_event_time:
        due = of_event_time[0]["due"]
        yield from _wrong_unit(due, watermark)
        if watermark is not None and due <= watermark:
            yield "The watermark has passed the next event-time timer: it fires in the next micro-batch."
        else:
            apart = "" if watermark is None else f", {duration(due - watermark)} ahead"
            yield (
                f"The next event-time timer fires when the watermark reaches {moment(due)}; it is "
                f"{'not known yet' if watermark is None else f'at {moment(watermark)}{apart}'}."
            )
            yield from _held(found)
        if now.buffered_rows:
            yield (
                f"Before it, the function sees the {len(now.buffered_rows)} rows that wait, the first of "
                f"{now.buffered_rows[0]['event_time']}, and may move or delete it."
            )
    for timer in [timer for timer in now.timers if timer["of"] != _EVENT_TIME][:1]:
        late = found.read_at - timer["due"]
        overdue = f"overdue by {duration(late)}, and fires in the next micro-batch"
        state = f"due in {duration(-late)}" if late < 0 else overdue
        yield f"The next processing-time timer, of {moment(timer['due'])}, is {state}."
        yield from _wrong_unit(timer["due"], found.read_at)
    if now.began is not None and found.read_at - now.began > _SOON / timedelta(milliseconds=1):
        yield (
            f"The last micro-batch began {duration(found.read_at - now.began)} ago: the query has stopped, "
            "or no rows have arrived. Timers fire in micro-batches only."
        )
    yield from _wrong_zone(found)
    if found.late_rows:
        yield (
            f"{found.late_rows} rows of all keys were late so far: they came behind the watermark, and were "
            'dropped unless the query says late="emit" or "process". A row of this key may be among them.'
        )


def _unknown(found: KeyReport) -> Iterator[str]:
    named = ", ".join(f"{name}={value}" for name, value in found.key.items())
    types = ", ".join(f"{name} is {type_}" for name, type_ in found.key_types.items())
    yield f"The checkpoint has no timer, state or waiting row of the key {named} ({types})."
    if found.similar:
        yield f"Keys that resemble it: {', '.join(map(repr, found.similar))}."
    elif any(moment.timers or moment.states or moment.buffered_rows for moment in found.history):
        yield "It had some before: see its history."
    else:
        yield "No row of it has been processed, or all that it had was cleared earlier."


def _held(found: KeyReport) -> Iterator[str]:
    for channel in [channel for channel in judged(found.channels) if channel["holds"]][:5]:
        name = _rows_of(channel)
        last = channel.get("last_row")
        if channel["input"] == "spark":
            yield "The watermark is Spark's own: it advances with the rows of withWatermark()."
        elif channel["input"] == "operators":
            yield "The watermark is that of the operators before this one, whose results it processes."
        elif last is None:
            yield f"The watermark is held by {name}, from which no row has arrived yet."
        elif not channel["to_blame"]:
            yield (
                f"The watermark is that of {name}, the lowest. Nothing is wrong there: only channels "
                "whose times are ahead of the clock are far before it."
            )
        else:
            behind = channel["behind_ms"] or 0
            furthest = "the other input" if channel["channel"] is None else "the furthest channel"
            others = f" It is {duration(behind)} behind {furthest}." if behind else ""
            yield (
                f"The watermark is held by {name}: its newest event time is "
                f"{moment(channel['newest'])}, and its last row arrived {duration(found.read_at - last)} ago."
                f"{others} What advances the watermark is a newer row there, or a strategy with_idleness or "
                "with_wall_clock. A query that has had no clock from its first start gets one on a new "
                "checkpoint, by timerheap.spark.continue_from."
            )


def _rows_of(channel: Mapping[str, Any]) -> str:
    side = "" if channel["input"] in ("df", "spark") else f" of input {channel['input']}"
    if channel["channel"] is None:
        return f"the rows{side or ' of the query'}"
    return f"the channel {channel['channel_column'] or 'channel'} {channel['channel']}{side}"


def _wrong_unit(due: int, reference: int | None) -> Iterator[str]:
    """Compare the digits of a timer with those of a time that is known to be in ms."""
    if reference is None or reference <= 0 or due <= 0:
        return
    for unit, scale in (("microseconds", 1000), ("nanoseconds", 1_000_000), ("seconds", 0.001)):
        if 0.5 < due / scale / reference < 2:
            yield f"{due} looks like {unit} since 1970; timers are registered in milliseconds."


def _wrong_zone(found: KeyReport) -> Iterator[str]:
    """Compare the newest event times with when rows arrived: a zone is off by half hours."""
    for channel in found.channels:
        last, newest = channel.get("last_row"), channel.get("newest")
        if last is None or newest is None:
            continue
        ahead = newest - last
        halves = round(ahead / (_HOUR / 2))
        if halves and abs(halves) <= 28 and abs(ahead - halves * _HOUR / 2) < 120_000:
            where = "ahead of" if ahead > 0 else "behind"
            yield (
                f"Event times of {_rows_of(channel)} are {duration(abs(ahead))} {where} the clock at which "
                "the last row arrived, nearly whole half-hours: a time zone may be wrong."
            )
        elif ahead > 600_000:
            yield (
                f"The newest event time of {_rows_of(channel)} is {duration(ahead)} ahead of the clock when "
                "its row arrived: such a row advances the watermark, and rows of the present are then late. "
                "See with_max_ahead()."
            )


def changes_of_key(found: KeyReport) -> Iterator[tuple[Moment, list[str]]]:
    """Yield, for each micro-batch of the history after the first, what has changed in it."""
    for before, after in zip(found.history, found.history[1:], strict=False):
        texts = []
        earlier, later = ([(t["of"], t["name"], t["due"]) for t in each.timers] for each in (before, after))
        for of, name, due in [timer for timer in later if timer not in earlier]:
            moved = [t for t in earlier if t[:2] == (of, name) and name and t not in later]
            texts.append(f"{'moved' if moved else 'set'} {_timer(of, name)} to {moment(due)}")
        for of, name, due in [timer for timer in earlier if timer not in later]:
            if name and any(timer[:2] == (of, name) for timer in later):
                continue  # it was moved
            clock = after.watermark if of == _EVENT_TIME else after.began
            fired = clock is not None and due <= clock
            texts.append(f"{'fired' if fired else 'deleted'} {_timer(of, name)}, due {moment(due)}")
        for name in sorted({*before.states, *after.states}):
            old, new = before.states.get(name), after.states.get(name)
            if old != new:
                texts.append(f"state {name}: {json.dumps(old)} to {json.dumps(new)}")
        if len(before.buffered_rows) != len(after.buffered_rows):
            texts.append(f"waiting rows: {len(before.buffered_rows)} to {len(after.buffered_rows)}")
        yield after, texts


def _timer(of: str, name: str | None) -> str:
    return f"{of.replace('_', '-')} timer" + (f" {name!r}" if name else "")


def moment(millis: int | None) -> str:
    """Return a time as text in UTC, or as epoch ms outside the years 1 to 9999."""
    if millis is None:
        return "unknown"
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
    except OverflowError:
        return f"{millis} ms"
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d} UTC".replace(".000 ", " ")


def duration(millis: int) -> str:
    """Return a length of time as text."""
    return f"{millis} ms" if abs(millis) < 1000 else str(timedelta(seconds=millis // 1000))


def _parts_of_report(found: KeyReport) -> Iterator[tuple[str, list[str]]]:
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
            for after, texts in changes_of_key(found)
        ],
    )


def _title(found: KeyReport) -> str:
    key = ", ".join(f"{name}={value}" for name, value in found.key.items())
    operator = numbered_operator(found.operator, found.operator_name)
    return f"Key {key}, {operator}, after micro-batch {found.now.batch_id}"


def print_key(found: KeyReport, console: Console) -> None:
    console.print(Text(printable(_title(found)), "bold"), soft_wrap=True)
    for head, lines in _parts_of_report(found):
        if lines:
            console.print(Text(f"\n{head}"))
            for line in lines[-_MOST:] if "changed" in head else lines[:_MOST]:
                console.print(Text(f"  {printable(line)}"), soft_wrap=True)
            if len(lines) > _MOST:
                console.print(Text(f"  and {len(lines) - _MOST} more"))


def page(found: KeyReport) -> str:
    """Return a static page of HTML, without characters that command a terminal."""
    title = _escaped(_title(found))
    sections = []
    for head, lines in _parts_of_report(found):
        if lines:
            items = "".join(f"<li><code>{_escaped(line)}</code></li>" for line in lines)
            sections.append(f"<h2>{escape(head)}</h2><ul>{items}</ul>")
    timeline = f"<h2>Timers and watermark</h2>{_timeline(found)}" if len(found.history) > 1 else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{_escaped(found.checkpoint)}, read "
        f"{moment(found.read_at)}</p>{sections[0] if sections else ''}{timeline}{''.join(sections[1:])}"
        "</body></html>\n"
    )


def _escaped(data: str) -> str:
    """Return data as text of HTML, which may be read in a terminal, too."""
    return escape(printable(data))


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
