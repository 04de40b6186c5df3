"""How Sphinx builds the documentation site: `make docs` writes it to site/.

The pages are the Markdown files of this folder (MyST) and some files of the repository's root (`ELSEWHERE`); the
reference is made from docstrings (autodoc). Nothing is loaded from other servers: Furo has its own styles and system
fonts, search is an index of the site itself, and formulas become MathML, which browsers draw without a script.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

import neoteny

DOCS = Path(__file__).parent
ROOT = DOCS.parent

ELSEWHERE = {
    "changelog": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
    "evidence": ROOT / "evidence" / "README.md",
    "security": ROOT / "SECURITY.md",
}
"""Pages of the site whose text lies outside docs/; the file of that name in docs/ only holds the place."""

project = "Neoteny"
author = "The Neoteny authors"
copyright = "the Neoteny authors, MIT licence"
release = version = neoteny.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static"]
myst_heading_anchors = 3
highlight_language = "text"
smartquotes_action = "D"  # dashes alone: quotes may be code

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
default_role = "code"
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"Neoteny {version}"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#166534", "color-brand-content": "#15803d"},
    "dark_css_variables": {"color-brand-primary": "#86efac", "color-brand-content": "#4ade80"},
}
html_copy_source = False
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

_LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
_CODE_OR_FORMULA = re.compile(r"``.+?``|`(?P<code>[^`]+)`|\\\((?P<formula>.+?)\\\)", re.DOTALL)
_VERBATIM = re.compile(
    r"""(
    ^[ ]*\.\.[ ]math::\n (?:\n|[ ]+\S.*\n)*? (?=\n|\Z)  # a formula, up to an empty line after it
    | ^[ ]*>>>.*\n (?:[ ]*\S.*\n)*  # an example
    | ^[ ]*=+[ ]+=.*\n (?:[ ]*\S.*\n)*  # a table
    )""",
    re.MULTILINE | re.VERBOSE,
)
_SEVERAL_NAMES = re.compile(r"^([ ]+\w+(?:, \w+)+)(?=: )", re.MULTILINE)
_MARKUP = re.compile(r"\*\w[^*\n]*\w\*|[*|]|(?<=\w)_(?!\w)")


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """The text of a page, with links to files outside docs/ that are pages of the site turned into links to these."""
    origin = ELSEWHERE.get(page, DOCS / f"{page}.md")
    if page in ELSEWHERE:
        source[0] = origin.read_text()
        app.env.note_dependency(str(origin))
    names = {path: f"{name}.md" for name, path in ELSEWHERE.items()}

    def on_site(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(origin.parent / link[1]))
        if target in names:
            target = DOCS / names[target]
        known = target.is_relative_to(DOCS) and target.exists()
        return os.path.relpath(target, (DOCS / page).parent) if known else link[1]

    source[0] = _LINK.sub(on_site, source[0])


def read_docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    r"""Docstrings as reStructuredText: `code` and \(formulas\) are marked up, and signs such as * and | are plain."""
    parts = _VERBATIM.split("\n".join(lines) + "\n")
    lines[:] = "".join(part if index % 2 else _as_rst(part) for index, part in enumerate(parts)).splitlines()


def _as_rst(text: str) -> str:
    text = _SEVERAL_NAMES.sub(lambda found: found[0].replace(", ", ","), text)  # "a b" would be type and name
    done, start = [], 0
    for found in _CODE_OR_FORMULA.finditer(text):
        done.append(_escape(text[start : found.start()]))
        start = found.end()
        if found["formula"]:
            marked = f":math:`{' '.join(found['formula'].split())}`"
        elif found["code"]:
            marked = f"`{' '.join(found['code'].split())}`"
        else:
            marked = found[0]
        before = "" if found.start() == 0 or not text[found.start() - 1].isalnum() else r"\ "
        done += [before, marked, r"\ " if text[start : start + 1].isalnum() else ""]
    return "".join([*done, _escape(text[start:])])


def _escape(text: str) -> str:
    return _MARKUP.sub(lambda found: found[0] if len(found[0]) > 1 else "\\" + found[0], text)


def draw_formula(page: HTML5Translator, node: nodes.math) -> None:
    """A formula in a line of text."""
    page.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def draw_formula_block(page: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on a line of its own."""
    page.body.append(f'<div class="math">{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)  # before napoleon reads its sections
    app.add_html_math_renderer("mathml", (draw_formula, None), (draw_formula_block, None))
