"""Every measured figure of a page comes from a file, by bench/tables.py, and none is written by hand."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest
from unfounded import not_allowed, unfounded

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "bench/README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
PAGES += sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))

# What looks like a measured figure and is none, by the reason and the page.
ALLOWED = {
    "a setting of a benchmark or of a test": {
        "docs/guides/milliseconds.md": [
            "with 1,000 rows a second)",
            "the 1.5 s after it",
            "epochs of 10 s",
            "s at 1,000 rows a second",
            "an hour with 500 rows a second",
        ],
        "docs/limits.md": [
            "its heap of 1 GB outside and 256 MB more for code and classes",
            "One group of 100x.",
            "with 100 times as many in one",
            "ten values of 1 MB",
            "20 values of 1 MB",
            "For 100 MB of timers",
            "for 100 MB of lists",
            "a heap of 2 GB and rows of 50 MB",
        ],
        "docs/native-heap.md": ["`pop_due` of the first 1 %"],
        "docs/operations/capacity.md": [
            "a heap of 4 GB. With 3 GB, the new query",
            "20 million keys and 3 GB it failed above",
        ],
        "docs/operations/checkpoints.md": ["one micro-batch every 10 s"],
        "docs/operations/troubleshooting.md": [
            "heartbeats every 2 s, a timeout of 8 s, looks every 2 s, 8 s for shuffled rows",
            "one retry after 1 s",
            "a trigger of 2 s",
        ],
        "docs/performance.md": [
            "with 1,000 rows a second",
            "every second a twentieth of them falls silent",
            "Each figure is of 10 s after a warm-up of 10 s",
            "a checkpoint every 10 s",
            "with up to 10,000 rows a second",
            "up to 100,000 rows a second",
            "With 1,000 rows a second",
            "4 GB of heap",
            "a job and every 10 s",
            "5 % more than at the base",
        ],
        "bench/README.md": [
            "(G1, 6 GB)",
            "push_many, ten times as many",
            "5 % more instructions than at the base",
            "look for input every 50 ms",
            "the goal: 6 times the changed rows of 16 bytes, and 1 KB for each key group",
            "90 s;",
            "the JVM's heap of 4 GB",
            "Every second a twentieth of the keys falls silent",
            "a heap of 3 GB",
            "100 ms of delay",
            "up to 10,000 rows a second",
            "a warm-up of 10 s",
            "a heap of 1 GB",
            "256 MB beside the limit",
            "three quarters of the auctions",
            "10,000 events a second of event time",
            "4 GB of heap",
            "2 GB of managed memory",
            "(2 s, 50,000 rows",
            "a checkpoint every 10 s",
            "less than 0.15 us of Flink's is left",
        ],
    },
    "a default, or a limit in the code": {
        "docs/guides/milliseconds.md": [
            "every 20 ms by default",
            "one step: 30 ms by default",
            "wait for up to 100 ms and its watermark moves every 200 ms",
        ],
        "docs/guides/sql.md": ["is 1 ms less, as in Flink's DataStream"],
        "docs/how-it-works.md": ["more than 4 KiB"],
        "docs/limits.md": ["up to 64 MB and one row more"],
        "docs/operations/index.md": ["10,000 rows or 64 MiB", "may exceed 2 GiB"],
        "docs/operations/troubleshooting.md": [
            "(120 s)",
            "(10 s)",
            "| 60 s |",
            "(5 s) apart",
        ],
    },
    "advice": {"docs/operations/index.md": ["two or three times as many"]},
    "the figure of another publication": {
        "docs/guides/milliseconds.md": ["[Databricks reports 432 ms"],
        "docs/native-heap.md": ["publishes 31 to 36 ns"],
    },
    "an estimate on paper, by the constants of the tables above it": {
        "docs/operations/capacity.md": [
            "2.9 GB a core | 2.9 TB |",
            "0.5 to 1 GB a core | 0.5 to 1 TB |",
            "1 to 2 TB |",
            "| 0.65 GB |",
            "30 MB; 16 of them a core | 0.5 TB in 3 hours",
            "16 to 64 ms of each task",
            "3 s of CPU in Python, 1 to 3 s in Spark, and a download of 0.5 to 1 GB.",
            "that is 6 to 13 s.",
            "to serve 0.5 to 1 TB",
            "needs 46 GB for live files",
        ],
    },
}
IN_DOCSTRINGS = {
    "a limit, a default or a rule": [
        "at most a quarter of the int64 range",
        "1 ms after its timestamp",
        "more than 0 ms",
        "0 ms or more",
        "1 ms less",
        "minus 1 ms",
        "or of 1 ms",
        "times are 1 ms",
        "column are 1 ms",
        "of them are 1 ms",
        "default 200 ms",
        '"20 milliseconds"',
        '"30 milliseconds"',
        "more than 2 GiB",
        "may exceed 2 GiB",
        "default of 64 MiB",
        "less than 4 KiB",
        "8 times the size",
        "about 1 MiB",
        "24 bytes per timer",
    ],
    "what the number of buckets gives": ["about 1.6 %"],
}


def phrases(page):
    return [phrase for pages in ALLOWED.values() for phrase in pages.get(page, [])]


def test_a_page_has_no_measured_figure_by_hand():
    found = {}
    for page in PAGES:
        wrong, unused = not_allowed((ROOT / page).read_text(encoding="utf-8"), phrases(page))
        found |= {f"{page}, {what}": "by hand" for what in wrong}
        found |= {f"{page}, {phrase}": "allows nothing" for phrase in unused}
    assert not found, "put the figure into bench/results/recorded.json, and its name behind it"


def test_the_allowed_phrases_are_of_pages():
    assert {page for pages in ALLOWED.values() for page in pages} <= set(PAGES)


def test_a_docstring_of_the_reference_has_no_measured_figure():
    texts = []
    for file in sorted((ROOT / "timerheap").rglob("*.py*")):
        if file.suffix in (".py", ".pyi"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                    texts.append(ast.get_docstring(node) or "")
    allowed = [phrase for group in IN_DOCSTRINGS.values() for phrase in group]
    wrong, unused = not_allowed("\n\n".join(texts), allowed)
    assert not wrong
    assert not unused


@pytest.mark.parametrize(
    "text",
    [
        "it is 11 times as fast",
        "40x beside",
        "about 0.4 s more",
        "takes 10 to 20 us a row",
        "1.9, 4.5 and 19 ms here",
        "7.4 MB",
        "60 %",
        "36,763 rows/s",
        "130,908 rows a second",
        "270 bytes a key",
        "takes eleven times as long",
        "two thirds of the CPU",
        "53 minutes on two cores",
        "takes about a second of CPU",
        "repeats it in seven minutes",
        "takes 119\nMB of memory",
        "119<!-- hour: least --> to 134 MB",
        "| what | n |\n|---|---|\n| a | 12 |\n| b | 13 |",
        "a `code` of 12 ns",
    ],
)
def test_a_figure_by_hand_is_found(text):
    assert list(unfounded(f"Text: {text}, and more.\n" if "|" not in text else text))


@pytest.mark.parametrize(
    "text",
    [
        "10.8<!-- session_20000: vectorized --> times as many",
        "119<!-- hour: least --> to 134<!-- hour: most --> MB",
        "<!-- hour: table -->\n\n| what | n |\n|---|---|\n| a | 12 ms |\n\n<!-- end -->",
        "<!-- kafka -->\n12 ms\n<!-- end -->",
        "```text\n12 ms\n```",
        "`sleep 12 ms`, and 10 minutes later, in 2026 with Spark 4.3",
    ],
)
def test_a_figure_of_a_file_is_not_found(text):
    assert not list(unfounded(text))


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "bench")
        spec = importlib.util.spec_from_file_location("tables", ROOT / "bench" / "tables.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def records(tables):
    return json.loads((tables.RESULTS / tables.RECORDED).read_text(encoding="utf-8"))


def test_a_record_says_when_where_and_how(records):
    for name, record in records.items():
        assert record.keys() <= {"date", "machine", "how", "figures", "tables"}, name
        assert all(record[what].strip() for what in ("date", "machine", "how")), name


def test_each_recorded_figure_is_in_a_page(tables, records):
    texts = "".join(page.read_text(encoding="utf-8") for page in tables.pages())
    unused = [
        f"{name}: {figure}"
        for name, record in records.items()
        for figure in (*record.get("figures", ()), *record.get("tables", ()))
        if f"<!-- {name}: {figure} -->" not in texts
    ]
    assert not unused


def test_each_mark_of_a_page_names_a_figure(tables, records):
    for page in tables.pages():
        text = page.read_text(encoding="utf-8")
        for _, _, name, figure in tables.FIGURE.findall(text):
            assert figure in (tables.sentences(name) or ()), f"{page.name}: {name}: {figure}"
        for name, table in tables.TABLE.findall(text):
            assert table in records[name]["tables"], f"{page.name}: {name}: {table}"


def test_a_figure_keeps_its_decimals(tables, tmp_path):
    record = {
        "date": "2026-11-28",
        "machine": "one",
        "how": "by hand",
        "figures": {"a": 1234.567, "b": 10.96},
    }
    record["tables"] = {"t": [["", "ns"], ["one", "12"]]}
    (tmp_path / tables.RECORDED).write_text(json.dumps({"r": record}))
    text = "x 0.0<!-- r: a -->, 1<!-- r: b --> to 9.99<!-- r: b --> s\n<!-- r: t -->\nold\n<!-- end -->\n"
    lines = tables.filled(text, tmp_path).splitlines()
    assert lines[0] == "x 1,234.6<!-- r: a -->, 11<!-- r: b --> to 10.96<!-- r: b --> s"
    assert lines[3:6] == ["| | ns |".replace("| |", "|  |"), "|---|---|", "| one | 12 |"]
    assert lines[-3:] == ["*2026-11-28; one; by hand.*", "", "<!-- end -->"]
    with pytest.raises(KeyError, match="unknown"):
        tables.filled("1<!-- r: unknown -->", tmp_path)
    assert tables.filled("1<!-- other: a -->", tmp_path) == "1<!-- other: a -->"
