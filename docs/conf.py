"""Configures Sphinx with MyST for the documentation site: `sphinx-build -W --keep-going -n docs docs/_build`."""

from __future__ import annotations

import base64
import json
import logging
import pathlib
import re
import shutil
import sys
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.roles import XRefRole
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import benchmark_page  # noqa: E402
import reference_pages  # noqa: E402

import jax_mgpu  # noqa: E402

project = "jax_mgpu"
html_show_copyright = False
version = release = jax_mgpu.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "generated", "reference/README.md"]

add_module_names = False
autodoc_typehints = "none"  # the docstrings say more than the annotations, which allow any array
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_rtype = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are shown with their saved outputs
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "sphinx_book_theme"
html_title = "jax_mgpu"
html_theme_options = {"show_navbar_depth": 1, "show_toc_level": 2, "navbar_persistent": [], "footer_content_items": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]


def name_or_code(name: str, rawtext: str, text: str, lineno: int, inliner: Any, *rest: Any) -> Any:
    """Returns the meaning of single backticks in docstrings: a link to a public name, code otherwise."""
    bare = text.removeprefix("jax_mgpu.")
    if bare in jax_mgpu.__all__:
        return XRefRole()("py:obj", rawtext, f"{bare} <jax_mgpu.{bare}>", lineno, inliner)
    return [nodes.literal(rawtext, text)], []


class LinkedNames(SphinxTransform):
    """Makes code in a page's text a link if it is a public name, such as `sort`, `mgpu.sort` or `Ragged.from_rows`."""

    default_priority = 400  # before references are resolved

    def apply(self, **_: Any) -> None:
        """Replaces the names of one page by links; Sphinx calls this for each page."""
        for literal in list(self.document.findall(nodes.literal)):
            name = re.sub(r"^(jax_)?mgpu\.", "", literal.astext()).removesuffix("()")
            base, _, member = name.partition(".")
            is_public = base in jax_mgpu.__all__ and (not member or hasattr(getattr(jax_mgpu, base), member))
            if not is_public or isinstance(literal.parent, (nodes.reference, nodes.title, pending_xref)):
                continue
            link = pending_xref(
                "", refdomain="py", reftype="obj", reftarget=f"jax_mgpu.{name}", refexplicit=True, refwarn=False,
            )  # fmt: skip
            literal.replace_self(link)
            link += literal


class Family(SphinxDirective):
    """`.. family:: merge` documents the public names of families' modules, so that a page need not list them."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Returns the nodes that replace the directive."""
        lines = [".. currentmodule:: jax_mgpu", ""]
        for name in reference_pages.names_of_page(f".. family:: {self.arguments[0]}"):
            is_result = hasattr(getattr(jax_mgpu, name), "_fields")
            kind = "class" if isinstance(getattr(jax_mgpu, name), type) else "function"
            members = ["   :members:"] if kind == "class" and not is_result else []
            lines += [f".. auto{kind}:: {name}", *members, ""]
        self.state.nested_parse(
            StringList(lines, self.get_source_info()[0]), self.content_offset, top := nodes.Element()
        )
        return top.children


def is_no_empty_glob(record: logging.LogRecord) -> bool:
    """Returns False for the warning of an empty glob, which has no type for `suppress_warnings`."""
    return getattr(record, "subtype", None) != "empty_glob"


def gallery(notebooks: pathlib.Path, folder: pathlib.Path) -> str:
    """Returns a table of the notebooks in the order of notebooks/README.md, with their first pictures and topics."""
    (folder / "thumbnails").mkdir(exist_ok=True)
    rows = ["| picture | notebook |", "|---|---|"]
    listed = (notebooks / "README.md").read_text(encoding="utf-8")
    for name, shows in re.findall(r"^\| \[\w+\]\((\w+)\.ipynb\) \| (.*) \|$", listed, re.MULTILINE):
        cells = json.loads((notebooks / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        title = "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")
        data = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
        picture = next(shown["image/png"] for shown in data if "image/png" in shown)
        (folder / "thumbnails" / f"{name}.png").write_bytes(base64.b64decode(picture))
        image = f"![A picture from {title}](generated/thumbnails/{name}.png)"
        rows.append(f"| {image} | [{title}](notebooks/{name}.ipynb): {shows} |")
    return "\n".join(rows) + "\n"


def write_sources(app: Sphinx) -> None:
    """Writes the pages that are made from other files: the tables of operations and benchmarks, the notebooks."""
    folder = pathlib.Path(app.srcdir)
    benchmark_page.write(ROOT / "benchmarks" / "results", folder / "generated")
    table = reference_pages.table_of_operations(lambda name: f"{{py:obj}}`{name} <jax_mgpu.{name}>`")
    (folder / "generated" / "operations.md").write_text(table)
    shutil.rmtree(folder / "notebooks", ignore_errors=True)
    (folder / "notebooks").mkdir()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy2(notebook, folder / "notebooks")
    if (ROOT / "notebooks").is_dir():  # a source distribution has none
        (folder / "generated" / "notebooks.md").write_text(gallery(ROOT / "notebooks", folder / "generated"))


def setup(app: Sphinx) -> None:
    """Adds the parts of this file to the build; Sphinx calls this first."""
    app.add_role("name_or_code", name_or_code)
    app.add_directive("family", Family)
    app.add_transform(LinkedNames)
    app.connect("builder-inited", write_sources)
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(is_no_empty_glob)


default_role = "name_or_code"
