"""What the benchmarks' tables say of made-up figures: ratios, goals, and which of them are met."""

import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def load(name):
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report():
    return load("report")


def group(operation, n, ours, peers, unit="ns"):
    return {"operation": operation, "n": n, "unit": unit, "ours": ours, "peers": peers}


GROUPS = [
    group(
        "push",
        10**6,
        {"push": [200, 100, 300], "push_many": [20, 10, 30]},
        {"heapq + set": [500, 1, 900], "sortedcontainers": [4000], "Flink": [180]},
    ),
    group("push", 10**4, {"push_many": [20]}, {"heapq + set": [40]}),
    group("bytes a timer", 10**6, {"bytes a timer": [40]}, {"heapq + set": [160], "Flink": [80]}, "bytes"),
    group("to_bytes", 10**6, {"to_bytes": [6]}, {"memcpy": [2]}),
    group("worst", 10**6, {"push_many, descending": [32]}, {"random": [20]}),
]


def test_ratios_are_of_medians_and_meet_their_goals_or_not(report):
    ratios = [ratio for line in report.ratios(GROUPS) for ratio in line]
    found = {(r.method, r.n, r.peer): (r.value, r.goal, r.met) for r in ratios}
    assert found == {
        ("push", 10**6, "heapq + set"): (2.5, None, True),
        ("push", 10**6, "sortedcontainers"): (20, None, True),
        ("push", 10**6, "Flink"): (0.9, None, True),
        ("push_many", 10**6, "heapq + set"): (25, 20, True),
        ("push_many", 10**6, "sortedcontainers"): (200, None, True),
        ("push_many", 10**6, "Flink"): (9, 10, False),
        ("push_many", 10**4, "heapq + set"): (2, None, True),
        ("bytes a timer", 10**6, "heapq + set"): (0.25, 0.28, True),
        ("bytes a timer", 10**6, "Flink"): (0.5, 0.45, False),
        ("to_bytes", 10**6, "memcpy"): (3, 4, True),
        ("push_many, descending", 10**6, "random"): (1.6, 1.5, False),
    }


def test_the_table_has_a_line_for_each_method_and_n(report):
    lines = report.table(GROUPS).splitlines()
    assert [line.split("  ")[0] for line in lines[1:7]] == [
        "push",
        "push_many",
        "push_many",
        "bytes a timer",
        "to_bytes",
        "push_many, descending",
    ]
    assert "500 25.0x >= 20" in lines[2]
    assert "180 9.00x not >= 10" in lines[2]
    assert "memcpy 2.0 3.00x <= 4" in lines[5]
    assert lines[-1] == "3 of 6 goals are met."


def test_pytest_benchmarks_report_gives_the_same_groups(report):
    def run(operation, side, ours, **info):
        seconds = info.pop("seconds", 0)
        extra = {"operation": operation, "n": 10, "side": side, "ours": ours, **info}
        return {"extra_info": extra, "stats": {"median": seconds}}

    runs = [
        run("push", "push_many", True, timers=10, seconds=2e-7),
        run("push", "heapq + set", False, timers=10, seconds=5e-6),
        run("bytes a timer", "bytes a timer", True, bytes=40),
    ]
    push, held = report.groups_of({"benchmarks": runs})
    ours, peers = {"push_many": [pytest.approx(20)]}, {"heapq + set": [pytest.approx(500)]}
    assert push == group("push", 10, ours, peers)
    assert held == group("bytes a timer", 10, {"bytes a timer": [40]}, {}, "bytes")
    assert report.groups_of({"figures": {"groups": GROUPS}}) == GROUPS


def test_more_than_five_percent_more_instructions_is_too_much():
    base = {"pop": 1000, "push": 1000, "remove": 1000}
    text, slower = load("instructions").table({"pop": 1050, "push": 1051, "remove": 500}, base)
    assert slower == ["push"]
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["+5.0%", "MORE", "-50.0%"]
