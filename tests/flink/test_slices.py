"""Slice assigners and time zones compared with traces of Flink's SliceAssigners and TimeWindowUtil."""

from typing import Any

from slice_traces import assigner

# Clocks there change by half an hour, or changed at midnight: Flink fires some windows before they end.
UNLIKE_FLINK = {"Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Shanghai"}


def replay(trace: dict[str, Any]) -> None:
    slices = assigner(trace)
    zone = slices.zone
    assert slices.interval == trace["slice_interval"]

    instants, local, ends = map(list, zip(*trace["ts"], strict=True))
    assert zone.to_local(instants).tolist() == local
    assert slices.assign_slice_ends(instants).tolist() == ends

    # Flink's methods for the slices of a window are left out: here the operators find them by column.
    ends, last, starts, *_, timers, _, epoch, times = map(list, zip(*trace["slices"], strict=True))
    assert slices.last_window_ends(ends).tolist() == last
    assert slices.window_starts(ends).tolist() == starts
    if trace["tz"] not in UNLIKE_FLINK:
        assert slices.timers(ends).tolist() == timers
    assert zone.to_epoch(ends).tolist() == epoch
    assert slices.window_times(ends).tolist() == times


def test_slices_equal_flinks(traces: Any) -> None:
    traces.replay(replay)
