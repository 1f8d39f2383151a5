"""The documentation, built by Sphinx: `make docs`."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from inspect import isclass
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

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
autodoc_typehints = "none"  # numpydoc's sections have them
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"timerheap {release}"
html_show_sourcelink = False
html_css_files = ["timerheap.css"]
html_theme_options: dict[str, Any] = {
    "logo": {"text": "timerheap"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
alone = ["first-steps", "operating", "how-it-works", "performance", "limits", "developing", "changelog"]
html_sidebars: dict[str, list[str]] = {page: [] for page in alone}
copyright = "the timerheap developers. Apache License 2.0"


def is_in_a_docstring(app: Sphinx, domain: object, node: nodes.Element) -> bool | None:
    """Accept single backticks that name an argument; links that a page writes out must all resolve."""
    return True if node["reftype"] == "obj" else None


def is_inherited_class(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave a nested class to the page of the class that defines it."""
    page = app.env.docname.rpartition(".")[2]
    return True if isclass(member) and member.__qualname__ != f"{page}.{name}" else None


def setup(app: Sphinx) -> None:
    """Connect what stands above."""
    app.connect("warn-missing-reference", is_in_a_docstring)
    app.connect("autodoc-skip-member", is_inherited_class)
