"""The documentation site: `make docs` builds it into docs/_build/html, with warnings as errors and without a network.

The pages are written for GitHub too: their links are plain Markdown. What the site adds happens here: links to files of
the repository become addresses, and names in backticks become links to the API reference.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

from api_examples import EXAMPLES  # noqa: E402 - found by the line above

from vecenvs import __version__  # noqa: E402

REPOSITORY = "https://github.com/vecenvs/vecenvs"
log = logging.getLogger(__name__)

project = "vecenvs"
author = "The vecenvs developers"
project_copyright = "The vecenvs developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4  # named as GitHub names them
smartquotes_action = "D"  # dashes alone: "same_step" is an argument
default_role = "literal"  # docstrings use single backticks, as Markdown does
suppress_warnings = ["config.cache"]

napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as a list, not as members beside those that autodoc finds
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_typehints_description_target = "documented_params"
autodoc_inherit_docstrings = True
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"vecenvs {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
html_copy_source = False
html_show_copyright = False
pygments_style = "default"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp, .go"


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Return the address of an object's source, for its link "[source]"."""
    thing: Any = import_module(info["module"])
    for part in info["fullname"].split("."):
        thing = getattr(thing, part, None)
    thing = inspect.unwrap(getattr(thing, "fget", thing))
    try:
        file, (_, line) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
    except (TypeError, OSError):
        return None  # a constant, an attribute
    path = Path(file or "")
    return f"{REPOSITORY}/blob/main/{path.relative_to(ROOT)}#L{line}" if path.is_relative_to(ROOT) else None


def link_to_repository(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace a page's links to files outside docs/ by their addresses. A file that does not exist is a warning."""
    folder = (HERE / docname).parent

    def replaced(link: re.Match[str]) -> str:
        path, anchor = link[1], link[2] or ""
        target = (folder / path).resolve()
        if target.is_relative_to(HERE):
            return link[0]
        if not target.exists():
            log.warning("no such file: %s", path, location=docname)
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{anchor})"

    # Where a page names another one by its file, the site says its title.
    source[0] = re.sub(r"\[[\w/]+\.md\]\((\w+\.md(#[^)]*)?)\)", r"[](\1)", source[0])
    source[0] = re.sub(r"\]\((\.\.[^)#\s]*)(#[^)\s]*)?\)", replaced, source[0])


def show_example(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put an example below the first paragraph, and name what a docstring refers to as links."""
    lines[:] = [re.sub(r"docs/(\w+)\.md", r":doc:`/\1`", line) for line in lines]
    lines[:] = [line.replace("vecenvs/vec_env.py", ":doc:`/api/vec_env`") for line in lines]
    code = EXAMPLES.get(name, "").strip().splitlines()
    if code:
        end = lines.index("") if "" in lines else len(lines)
        lines[end:end] = ["", ".. code-block:: python", "", *(f"   {line}" for line in code), ""]


def list_arguments(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """List the arguments that all engines take where an engine's docstring has `**common`, as entries of their own."""
    text, common = "\n".join(lines), re.compile(r"^ {4}\*\*common: .*\n(?:(?: {5}.*)?\n)*", re.MULTILINE)
    if what == "class" and common.search(text):
        told = inspect.getdoc(import_module("vecenvs").DummyVecEnv) or ""
        entries = re.findall(r"^ +\* `(\w+)`: ((?:.*\n)(?: {10}.*\n)*)", told, re.MULTILINE)
        listed = "".join(f"    {each}: {' '.join(words.split())}\n" for each, words in entries)
        lines[:] = common.sub(lambda _: listed + "\n", text).splitlines()


def mark_code(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Mark the indented programs of a docstring as code, which reStructuredText takes for quotations otherwise."""
    for number, line in reversed(list(enumerate(lines))):
        before = next((other for other in reversed(lines[:number]) if other.strip()), "")
        starts = line.startswith("    ") and not lines[number - 1].strip()
        if starts and before and not before.startswith((" ", "* ", "- ")) and not re.fullmatch(r"\w+:", before):
            lines[number:number] = ["::", ""]


class LinkNames(SphinxPostTransform):
    """Make names of the API in backticks links to it: `VecEnv.recv`, `make_vec_env(...)`, `vecenvs.views.as_sb3`."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        """Replace each literal of this page that is such a name."""
        names = self._names()
        for literal in list(self.document.findall(nodes.literal)):
            if isinstance(literal.parent, nodes.reference | nodes.title):
                continue
            name = re.match(r"([A-Za-z_][\w.]*)(\(.*\))?$", literal.astext())
            page, anchor = names.get(name[1], ("", "")) if name else ("", "")
            if page and page != self.env.current_document.docname:
                docname = self.env.current_document.docname
                link = make_refnode(self.app.builder, docname, page, anchor, literal.deepcopy())
                literal.replace_self(link)

    def _names(self) -> dict[str, tuple[str, str]]:
        """Return page and anchor of each object by its full name, and without its module where only one is named so."""
        objects = self.env.domains["py"].objects  # type: ignore[attr-defined]
        found: dict[str, tuple[str, str]] = {}
        short: dict[str, list[tuple[str, str]]] = {}
        for full, entry in objects.items():
            if entry.objtype == "module" or entry.aliased:
                continue
            place = (entry.docname, entry.node_id)
            found[full] = place
            parts = full.split(".")
            start = 2 if entry.objtype in ("method", "attribute", "property", "classmethod", "staticmethod") else 1
            short.setdefault(".".join(parts[-start:]), []).append(place)
        return {name: places[0] for name, places in short.items() if len(places) == 1} | found


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what this file adds."""
    app.connect("source-read", link_to_repository)
    app.connect("autodoc-process-docstring", list_arguments, priority=80)
    app.connect("autodoc-process-docstring", show_example, priority=90)
    app.connect("autodoc-process-docstring", mark_code, priority=100)  # before Google's sections are read
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
