"""The documentation site: Sphinx with MyST. `sphinx-build -W --keep-going -n docs docs/_build`."""

from __future__ import annotations

import logging
import pathlib
import re
import shutil
import sys
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.roles import XRefRole
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
exclude_patterns = ["_build", "generated"]

add_module_names = False
autodoc_typehints = "none"  # the docstrings say more than the annotations, which are those of any array
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_rtype = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are shown with the outputs that were saved with them
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "sphinx_book_theme"
html_title = "jax_mgpu"
html_theme_options = {"show_navbar_depth": 1, "show_toc_level": 2, "navbar_persistent": [], "footer_content_items": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]


def name_or_code(name: str, rawtext: str, text: str, lineno: int, inliner: Any, *rest: Any) -> Any:
    """What single backticks mean in docstrings: a link where they hold a public name, code elsewhere."""
    bare = text.removeprefix("jax_mgpu.")
    if bare in jax_mgpu.__all__:
        return XRefRole()("py:obj", rawtext, f"{bare} <jax_mgpu.{bare}>", lineno, inliner)
    return [nodes.literal(rawtext, text)], []


class Family(SphinxDirective):
    """`.. family:: merge` documents the public names of families' modules, so that a page need not list them."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """What takes the directive's place."""
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
    """A folder without notebooks is no defect; `suppress_warnings` cannot say so, as this warning has no type."""
    return getattr(record, "subtype", None) != "empty_glob"


def table_of_operations(folder: pathlib.Path) -> str:
    """The pages of the reference in the order of the site, each with the public names that it documents."""
    rows = ["| family | operations |", "|---|---|"]
    for page in re.findall(r"^reference/(\w+)$", (folder / "index.md").read_text(encoding="utf-8"), re.MULTILINE):
        text = (folder / "reference" / f"{page}.md").read_text(encoding="utf-8")
        names = reference_pages.names_of_page(text)
        operations = [name for name in names if not hasattr(getattr(jax_mgpu, name), "_fields")]  # no types of results
        if operations:
            links = ", ".join(f"{{py:obj}}`{name} <jax_mgpu.{name}>`" for name in operations)
            rows.append(f"| [{text.partition('# ')[2].splitlines()[0]}]({page}.md) | {links} |")
    return "\n".join(rows) + "\n"


def write_sources(app: Sphinx) -> None:
    """Writes the pages that are made of other files: the tables of operations and benchmarks, the notebooks."""
    folder = pathlib.Path(app.srcdir)
    benchmark_page.write(ROOT / "benchmarks" / "results", folder / "generated")
    (folder / "generated" / "operations.md").write_text(table_of_operations(folder))
    shutil.rmtree(folder / "notebooks", ignore_errors=True)
    (folder / "notebooks").mkdir()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy2(notebook, folder / "notebooks")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_role("name_or_code", name_or_code)
    app.add_directive("family", Family)
    app.connect("builder-inited", write_sources)
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(is_no_empty_glob)


default_role = "name_or_code"
