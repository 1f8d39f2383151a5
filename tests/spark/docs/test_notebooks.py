"""The notebooks are the pages that they were made of, whose code the tests of the pages run."""

from __future__ import annotations

import ast
import json

import pytest
from notebooks import FOLDER, PAGES, notebook
from test_docs import ELSEWHERE


@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_is_what_its_pages_say(name: str) -> None:
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert text == notebook(name), "run python tests/support/pages/notebooks.py"
    assert not set(PAGES[name]) & set(ELSEWHERE), "no test runs the code of the page"


@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_has_programs_and_what_they_print(name: str) -> None:
    cells = json.loads(notebook(name))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for cell in code:
        ast.parse(cell["source"])
    assert any(cell["outputs"] for cell in code)
    assert any("SparkSession.builder" in cell["source"] for cell in code)
    assert cells[0]["source"].startswith("# ")


def test_there_is_no_notebook_without_pages() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(PAGES)
