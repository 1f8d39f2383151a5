"""The documentation, built by Sphinx: `make docs`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed_version
from inspect import isclass
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import signature as inspect_signature
from sphinx.util.inspect import stringify_signature

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.append(str(TESTS / "support" / "pages"))
from promises import markdown  # noqa: E402

project = "timerheap"
version = release = installed_version("timerheap")

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
templates_path = ["_templates"]
html_static_path = ["_static"]

# Pages are Markdown; the reference is made from the docstrings, whose `names` link to what they name.
myst_heading_anchors = 3
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # numpydoc's sections have them; see with_types
python_maximum_signature_line_length = 88
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"timerheap {release}"
html_show_sourcelink = False
html_css_files = ["timerheap.css"]
html_theme_options: dict[str, Any] = {
    "logo": {"text": "timerheap"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    # `make docs-site` puts the versions side by side; each looks up what there is above its own folder.
    "switcher": {"json_url": "../switcher.json", "version_match": os.environ.get("DOCS_VERSION", "dev")},
    "check_switcher": False,
    "navbar_start": ["navbar-logo", "version-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
alone = ["first-steps", "performance", "limits", "how-it-works", "glossary", "developing"]
alone += ["roadmap", "changelog"]
html_sidebars: dict[str, list[str]] = {page: [] for page in alone}
copyright = "the timerheap developers. Apache License 2.0"


def is_in_a_docstring(app: Sphinx, domain: object, node: nodes.Element) -> bool | None:
    """Accept single backticks that name an argument, and types of others; all other links must resolve."""
    target = node["reftarget"]
    is_type = node["reftype"] == "class" and (not target.startswith("timerheap.") or "._" in target)
    return True if is_type or node["reftype"] == "obj" else None


def with_types(
    app: Sphinx, what: str, name: str, value: Any, options: object, signature: str, returns: str
) -> tuple[str, str] | None:
    """Show the types in the signatures of the functions for DataFrames, short names without modules."""
    if what != "function" or not name.startswith("timerheap.spark."):
        return None
    arguments, _, returned = stringify_signature(
        inspect_signature(value), unqualified_typehints=True
    ).rpartition(" -> ")
    return arguments, returned


def is_inherited_class(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave a nested class to the page of the class that defines it."""
    page = app.env.docname.rpartition(".")[2]
    return True if isclass(member) and member.__qualname__ != f"{page}.{name}" else None


class Promises(SphinxDirective):
    """The table of what timerheap promises of an API, read off the tests: ``{promises} PyFlink``.

    With the option ``:status: different`` only what has that status.
    """

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"status": str}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Parse the table as part of the page."""
        for test in TESTS.rglob("test_*.py"):
            self.env.note_dependency(str(test))
        node = nodes.container()
        self.state.nested_parse(StringList(markdown(self.arguments[0], self.options.get("status"))), 0, node)
        return node.children


def setup(app: Sphinx) -> None:
    """Connect what stands above."""
    app.add_directive("promises", Promises)
    app.connect("warn-missing-reference", is_in_a_docstring)
    app.connect("autodoc-process-signature", with_types)
    app.connect("autodoc-skip-member", is_inherited_class)
