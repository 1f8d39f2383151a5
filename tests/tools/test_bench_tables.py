"""The tables of the pages are those that bench/tables.py makes from the figures in bench/results/."""

import importlib.util
import json
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        spec = importlib.util.spec_from_file_location("tables", BENCH / "tables.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def test_pages_have_the_figures_of_the_files(tables):
    wrong = []
    for page in tables.pages():
        text = page.read_text(encoding="utf-8")
        if tables.filled(text) != text:
            wrong.append(page.name)
    assert not wrong, "run make tables"


def test_each_file_is_in_a_page(tables):
    texts = "".join(page.read_text(encoding="utf-8") for page in tables.pages())
    files = [file for file in tables.RESULTS.glob("*.json") if file.name != tables.RECORDED]
    unused = [file.name for file in files if f"<!-- {file.stem} -->" not in texts]
    assert not unused


ABOUT = {
    "date": "2026-11-27 18:00 UTC",
    "machine": "2 cores of EPYC",
    "memory": "23 GB",
    "load": 3.5,
    "program": "nexmark",
    "arguments": {"rounds": 3},
    "versions": {"CPython": "3.11.7"},
}


def figure(cpu, rate=1000):
    return {"cpu": cpu, "beyond": cpu, "rate": rate, "spread": [cpu * 0.9, cpu * 1.1]}


def test_nexmark_is_compared_with_the_better_plan_with_and_without_the_reader(tables, tmp_path):
    queries = {
        "q0": {"heap": figure(1.0), "timerheap": figure(0.5), "rows": "equal"},
        "q4": {
            "heap": figure(5.0),
            "heap-mini": figure(4.0),
            "rocksdb": figure(8.0),
            "rocksdb-mini": figure(10.0),
            "timerheap": figure(2.0),
            "rows": "equal",
        },
        "q6": {"timerheap": figure(2.0), "rows": "equal"},
    }
    document = {"about": ABOUT, "figures": {"queries": queries}}
    (tmp_path / "nexmark.json").write_text(json.dumps(document))
    lines = tables.filled("<!-- nexmark -->\nold\n<!-- end -->\nafter", tmp_path).splitlines()
    row = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in lines
        if "|" in line
    }
    assert row["q0"][5:9] == ["0.50x", "", "0.50x", ""]
    assert row["q4"][5:9] == ["0.50x", "0.25x", "0.50x", "0.50x"]
    assert row["q6"][5:9] == ["", "", "", ""]
    assert row["geometric mean"][5:9] == ["**0.50x**", "**0.25x**", "**0.50x**", "**0.50x**"]
    assert "medians of 3 rounds" in lines[-4]
    assert "20%" in lines[-4]
    assert lines[-1] == "after"


def test_the_heap_is_compared_with_peers_at_the_largest_size(tables):
    def group(n, unit, ours, **others):
        return {
            "n": n,
            "unit": unit,
            "ours": ours,
            "peers": {name.replace("_", " "): v for name, v in others.items()},
        }

    groups = [
        group(10, "ns", {"push_many": [9.0], "pop": [50.0]}, sortedcontainers=[90.0]),
        group(
            1000,
            "ns",
            {"push_many": [14.0, 10.0, 12.0], "pop": [100.0]},
            sortedcontainers=[480.0],
            Flink=[30.0],
        ),
        group(1000, "bytes", {"bytes a timer": [38]}, sortedcontainers=[166]),
    ]
    lines = tables.peers({"groups": groups}).splitlines()
    assert lines[0].startswith("| | 10 timers | 1,000 timers | `heapq` + `set` |")
    assert "| push many | 9 ns | 12 ns |  | 40x | 2.5x |" in lines
    assert "| bytes a timer |  | 38 bytes |  | 166 bytes |  |" in lines


def test_the_steps_of_skew_have_the_cpu_of_each(tables):
    step = {"case": "a map", "step": "load", "n": 1000, "seconds": 0.002, "written": 30_000, "peak": 1}
    last = {**step, "step": "put", "n": 10, "seconds": 0.1}
    assert tables.skew([step, last]).splitlines()[2:] == [
        "| a map | 1,000 | load | 0.002 s | 2.0 us | 0.03 MB |",
        "|  | 10 | put | 0.100 s | 10.0 ms | 0.03 MB |",
    ]


def test_a_table_without_a_file_stays(tables, tmp_path):
    text = "<!-- nexmark -->\nold\n<!-- end -->"
    assert tables.filled(text, tmp_path) == text


def test_a_ratio_that_got_worse_is_told(tables, tmp_path, monkeypatch, capsys):
    summary = importlib.import_module("summary")
    sinks = {"batches": 1, "runs": [{"sink": "spark", "rows": 9, "jvm": 2.0, "python": 0.0}]}
    before, after, larger = (tmp_path / name for name in ("before", "after", "larger"))
    for folder, ours, rows in ((before, 2.0, 9), (after, 2.4, 9), (larger, 2.4, 99)):
        folder.mkdir()
        once = {"sink": "once", "rows": 9, "jvm": ours, "python": 0.5}
        content = {
            "about": {"arguments": {"rows": [rows], "rounds": 1}},
            "figures": {**sinks, "runs": [*sinks["runs"], once]},
        }
        (folder / "kafka_sink.json").write_text(json.dumps(content))
    assert summary.worse(before, after) == [
        "`append_kafka`, 100,000 rows, beside Spark's sink: 1.25x before, 1.45x now"
    ]
    assert not summary.worse(after, before)
    assert not summary.worse(before, larger)

    monkeypatch.setattr(summary, "RESULTS", before)
    monkeypatch.setattr("sys.argv", ["summary.py", str(after)])
    with pytest.raises(SystemExit, match="more CPU beside a peer"):
        summary.main()
    assert "| 1.45x |" in capsys.readouterr().out
    for folder, told in ((before, ""), (larger, "not compared, since bench/results has {'rows': [9]}")):
        monkeypatch.setattr("sys.argv", ["summary.py", str(folder)])
        summary.main()
        assert told in capsys.readouterr().out
