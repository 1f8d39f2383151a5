"""The flights as the demo reads them, and the pandas computation that it is judged by."""

from __future__ import annotations

import pandas as pd
import pyarrow.parquet as pq
import pytest
from flights import read_flights, write_replay
from overdue_pandas import departed, final_watermark, overdue_planes

NEW_YORK = "America/New_York"
NEVER = None


def flights(*rows: tuple[str, str, str, str, float | None]) -> pd.DataFrame:
    """Raw rows from (plane, origin, dest, scheduled on New York's clock, delay in minutes)."""
    frame = pd.DataFrame(rows, columns=["tailnum", "origin", "dest", "scheduled", "dep_delay"])
    scheduled = pd.to_datetime(frame.pop("scheduled"))
    parts = {part: getattr(scheduled.dt, part) for part in ("year", "month", "day", "hour", "minute")}
    return frame.assign(**parts, dep_delay=frame["dep_delay"].astype("float64"))


def found(*args: object, **options: object) -> list[tuple[str, str, str, str]]:
    alerts = overdue_planes(*args, **options)
    since = alerts["since"].dt.tz_convert(NEW_YORK).dt.strftime("%m-%d %H:%M")
    return list(zip(alerts["plane"], alerts["origin"], alerts["dest"], since, strict=True))


def at(text: str) -> pd.Timestamp:
    return pd.Timestamp(text, tz=NEW_YORK)


LAST = ("N1", "JFK", "LAX", "2013-06-04 12:00", 0)


def test_exactly_72_hours_is_in_time() -> None:
    first = ("N1", "EWR", "ORD", "2013-06-01 12:00", 0)
    assert found(flights(first, LAST)) == [("N1", "JFK", "LAX", "06-04 12:00")]


def test_longer_than_72_hours_is_not() -> None:
    first = ("N1", "EWR", "ORD", "2013-06-01 11:59", 0)
    assert found(flights(first, LAST)) == [
        ("N1", "EWR", "ORD", "06-01 11:59"),
        ("N1", "JFK", "LAX", "06-04 12:00"),
    ]


def test_the_limit_is_exact_to_the_millisecond() -> None:
    both = flights(("N1", "EWR", "ORD", "2013-06-01 12:00", 0), LAST)
    gap = pd.Timedelta(hours=72)
    assert len(found(both, patience=gap)) == 1
    assert len(found(both, patience=gap - pd.Timedelta(milliseconds=1))) == 2


def test_the_actual_departure_counts_not_the_scheduled_one() -> None:
    early = ("N1", "EWR", "ORD", "2013-06-01 12:00", -1)
    late = ("N1", "EWR", "ORD", "2013-06-01 11:00", 60)
    assert len(found(flights(early, LAST))) == 2
    assert len(found(flights(late, LAST))) == 1


def test_a_flight_scheduled_earlier_may_depart_later() -> None:
    delayed = ("N1", "LGA", "BOS", "2013-06-01 12:00", 600)
    punctual = ("N1", "EWR", "ORD", "2013-06-01 14:00", 0)
    assert found(flights(delayed, punctual)) == [("N1", "LGA", "BOS", "06-01 22:00")]


def test_two_departures_at_once_are_one_alert_for_the_later_row() -> None:
    twice = flights(("N1", "EWR", "ORD", "2013-06-01 12:00", 0), ("N1", "LGA", "BOS", "2013-06-01 11:50", 10))
    assert found(twice) == [("N1", "LGA", "BOS", "06-01 12:00")]


def test_planes_do_not_mix() -> None:
    other = ("N2", "EWR", "ORD", "2013-06-03 12:00", 0)
    first = ("N1", "EWR", "ORD", "2013-06-01 11:00", 0)
    assert [alert[0] for alert in found(flights(first, other, LAST))] == ["N1", "N2", "N1"]


def test_what_never_departed_is_nobodys_last_flight() -> None:
    cancelled = ("N1", "EWR", "ORD", "2013-06-05 12:00", NEVER)
    unknown = (None, "EWR", "ORD", "2013-06-05 12:00", NEVER)
    assert found(flights(LAST, cancelled, unknown)) == [("N1", "JFK", "LAX", "06-04 12:00")]


def test_only_alerts_that_the_watermark_has_passed() -> None:
    due = at("2013-06-07 12:00")
    assert len(found(flights(LAST), due)) == 1
    assert len(found(flights(LAST), due - pd.Timedelta(milliseconds=1))) == 0


def test_final_watermark_is_behind_the_latest_departure() -> None:
    both = flights(("N2", "EWR", "ORD", "2013-06-04 11:00", 90), LAST)
    assert final_watermark(both, pd.Timedelta(hours=24)) == at("2013-06-03 12:29:59.999")


def test_72_hours_are_elapsed_hours_where_the_clocks_change() -> None:
    spring = ("N1", "EWR", "ORD", "2013-03-08 12:00", 0), ("N1", "JFK", "LAX", "2013-03-11 13:00", 0)
    autumn = ("N1", "EWR", "ORD", "2013-11-01 12:00", 0), ("N1", "JFK", "LAX", "2013-11-04 11:00", 0)
    assert len(found(flights(*spring))) == 1
    assert len(found(flights(*autumn))) == 1


@pytest.fixture(scope="module")
def raw() -> pd.DataFrame:
    return read_flights()


def test_the_raw_file(raw: pd.DataFrame) -> None:
    flown = raw[raw["dep_delay"].notna()]
    assert (len(raw), len(flown)) == (336_776, 328_521)
    assert flown["tailnum"].notna().all(), "every departure has a key"
    assert flown["dep_time"].notna().all()


def test_three_ways_to_the_departure_agree(raw: pd.DataFrame) -> None:
    flown = raw[raw["dep_delay"].notna()]
    times = departed(raw)["since"]
    assert (
        times == flown["time_hour"] + pd.to_timedelta(flown["minute"] + flown["dep_delay"], unit="min")
    ).all()
    local = times.dt.tz_convert(NEW_YORK).dt
    assert (local.hour * 100 + local.minute == flown["dep_time"] % 2400).all()


def test_the_replay_is_in_scheduled_order_and_whole(raw: pd.DataFrame, tmp_path) -> None:
    some = raw.iloc[::-331]
    write_replay(some, tmp_path, 7)
    files = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime)
    assert [file.name for file in files] == [f"flights-{number:05}.parquet" for number in range(7)]
    replayed = pd.concat(pq.read_table(file).to_pandas() for file in files)
    scheduled = replayed["time_hour"] + pd.to_timedelta(replayed["minute"], unit="min")
    assert scheduled.is_monotonic_increasing
    columns = list(replayed.columns)
    given, back = (frame.sort_values(columns, ignore_index=True)[columns] for frame in (some, replayed))
    pd.testing.assert_frame_equal(
        back.fillna({"tailnum": ""}), given.fillna({"tailnum": ""}), check_dtype=False
    )


def test_no_departure_is_a_day_behind_the_schedule(raw: pd.DataFrame) -> None:
    times = departed(raw.sort_values(["time_hour", "minute"]))["since"]
    assert (times.cummax() - times).max() == pd.Timedelta(hours=21, minutes=48)


@pytest.mark.parametrize("batches", [0, 4])
def test_more_batches_than_flights_raise(batches: int, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"batches must be 1 to 3, .* got {batches}"):
        write_replay(read_flights().head(3), tmp_path / "flights", batches)
    assert not (tmp_path / "flights").exists()
