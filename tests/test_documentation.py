"""Examples of public docstrings and pages run; links and lists of functions are right."""

from __future__ import annotations

import contextlib
import doctest
import io
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

import jax_mgpu as mgpu
import jax_mgpu.numpy
import jax_mgpu.ops

ROOT = pathlib.Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(REFERENCE.glob("*.md"))]
FENCE = re.compile(r"^```(pycon|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARSER = doctest.DocTestParser()
# Some platforms add a running program's origin to errors, which therefore end in "...".
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.fixture(autouse=True)
def no_word_on_tracebacks():
    """Turns off JAX's note about hidden frames, which would be part of the error."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


def run_session(text, namespace, where, line):
    failures: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    session = PARSER.get_doctest(text, namespace, where, where, line)
    session.globs = namespace  # the next block of a page uses what this one defines
    runner.run(session, out=failures.append, clear_globs=False)
    assert not failures, "".join(failures)


def run_script(text, namespace, where, line):
    """Runs a program, and checks that each `print` prints what the comment of its line says."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * line + text, where, "exec"), namespace)
    said = [code.partition("  # ")[2] for code in text.splitlines() if code.startswith("print(")]
    assert printed.getvalue().splitlines() == said


NAMED = {name: getattr(mgpu, name) for name in mgpu.__all__} | {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (jax_mgpu.numpy, jax_mgpu.ops)
    for name in module.__all__
}


@pytest.mark.parametrize("name", NAMED)
def test_docstring(name):
    text = NAMED[name].__doc__
    assert any(example.want for example in PARSER.get_examples(text)), f"{name} has no example"
    run_session(text, {}, name, 0)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if FENCE.search(page.read_text(encoding="utf-8"))], ids=lambda page: page.name
)
def test_page(page):
    text, namespace = page.read_text(encoding="utf-8"), {}
    for block in FENCE.finditer(text):
        run = run_session if block[1] == "pycon" else run_script
        run(block[2], namespace, str(page), text[: block.start(2)].count("\n"))


def test_the_first_pages_have_examples():
    with_examples = {page.name for page in PAGES if FENCE.search(page.read_text(encoding="utf-8"))}
    assert {"README.md", "quickstart.md", "coming_from.md"} <= with_examples


def test_documented_key_types_are_those_accepted():
    texts = [getattr(mgpu, name).__doc__ for name in mgpu.__all__]
    texts += [page.read_text(encoding="utf-8") for page in [*PAGES, *REFERENCE.glob("*.md"), ROOT / "CHANGELOG.md"]]
    assert any("floats of 16 to 64 bits" in " ".join(text.split()) for text in texts)
    assert not any("floats of 8 " in " ".join(text.split()) for text in texts)
    with pytest.raises(TypeError, match="got float8"):
        mgpu.sort(jnp.zeros(2, jnp.float8_e5m2))


def test_every_public_name_is_on_one_reference_page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference_pages

    listed = [
        name
        for page in REFERENCE.glob("*.md")
        for name in reference_pages.names_of_page(page.read_text(encoding="utf-8"))
    ]
    assert sorted(listed) == sorted(mgpu.__all__)


def test_the_list_of_functions_on_github_is_current(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference_pages

    written = (REFERENCE / "README.md").read_text(encoding="utf-8")
    assert written == reference_pages.on_github(), "run python docs/reference_pages.py"


def anchors_of(text):
    """Returns the anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_links_lead_somewhere():
    """Links to files and headings of the repository exist; Sphinx checks only those of the site."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("notebooks/*.ipynb")]
    pages = [page for page in pages if not {"_build", "generated"} & set(page.parts)]
    broken = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
        for target in targets:
            path, _, anchor = target.partition("#")
            if re.match(r"\w+:", target) or target == "...":
                continue
            file = page.parent / path if path else page
            is_page = file.suffix == ".md" and file.is_file()
            if not file.exists() or (anchor and is_page and anchor not in anchors_of(file.read_text(encoding="utf-8"))):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken
    assert len(pages) > 30
