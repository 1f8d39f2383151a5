"""Slice assigners and time zones compared with traces of Flink's SliceAssigners and TimeWindowUtil."""

from typing import Any

from slice_traces import assigner

from timerheap.tvf import WindowedSliceAssigner


def replay(trace: dict[str, Any]) -> None:
    slices = assigner(trace)
    zone = slices.zone
    assert (slices.interval, zone.uses_dst) == (trace["slice_interval"], trace["uses_dst"])

    instants, local, ends = map(list, zip(*trace["ts"], strict=True))
    assert zone.to_local(instants).tolist() == local
    assert slices.assign_slice_ends(instants).tolist() == ends
    assert [slices.get_slice_end(instant) for instant in instants[:5]] == ends[:5]

    (ends, last, starts, expired, into, parts, following, if_empty, timers, timers_at, epoch, times) = map(
        list, zip(*trace["slices"], strict=True)
    )
    assert slices.last_window_ends(ends).tolist() == last
    assert slices.window_starts(ends).tolist() == starts
    assert [slices.expired_slices(end) for end in ends] == expired
    if trace["kind"] != "TUMBLE":
        assert [slices.merged_slices(end) for end in ends] == list(zip(into, parts, strict=True))
        assert [slices.get_next_window_end(end, is_empty=False) for end in ends] == following
        assert [slices.get_next_window_end(end, is_empty=True) for end in ends] == if_empty
    assert zone.to_epoch_for_timer([end - 1 for end in ends]).tolist() == timers
    assert zone.to_epoch_for_timer(ends).tolist() == timers_at
    assert zone.to_epoch(ends).tolist() == epoch
    assert slices.window_times(ends).tolist() == times

    for watermark, trigger in trace["next_watermark"]:
        assert slices.get_next_trigger_watermark(watermark) == trigger
    for end, progress, fired in trace["fired"]:
        assert slices.is_window_fired(end, progress) is fired

    windowed = WindowedSliceAssigner(slices)
    for window_end, end, last_end, start, expired_ends in trace["windowed"]:
        assert windowed.get_slice_end(window_end) == end
        assert windowed.get_last_window_end(end) == last_end
        assert windowed.get_window_start(end) == start
        assert windowed.expired_slices(end) == expired_ends


def test_slices_equal_flinks(traces: list[dict[str, Any]]) -> None:
    for line, trace in enumerate(traces, 1):
        try:
            replay(trace)
        except AssertionError as error:
            raise AssertionError(f"line {line}: {trace['kind']} {trace['tz']}") from error
