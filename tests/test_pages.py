"""The documentation does what it says: its commands print what it shows."""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pages
import pytest
from pages import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
READMES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md"]
EXAMPLES = [ROOT / "examples" / name / "README.md" for name in ("gemm", "gemv")]
ALL = [*PAGES, *READMES, *EXAMPLES]
RUN = [path for path in [*PAGES, ROOT / "README.md"] if pages.read(path).steps]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def told(differences: list[str]) -> None:
    if differences:
        pytest.fail("\n\n".join(differences), pytrace=False)


@pytest.mark.parametrize("path", RUN, ids=named)
def test_a_page_does_what_it_shows(path, tmp_path):
    """A reader who writes its files and types its commands sees its output."""
    told(pages.run(pages.read(path), tmp_path))


@pytest.mark.skipif(
    version("triton") < "3.9", reason="the records' Triton is told from the present one, a newer"
)
@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_an_examples_page_does_what_it_shows(path, tmp_path):
    """In a copy of the repository, which its export changes."""
    folder = pages.copied(named(path.parent), tmp_path)
    told(pages.run(pages.read(path), tmp_path, PYTHONPATH=str(folder)))


@pytest.mark.parametrize("path", ALL, ids=named)
def test_fragments_are_python(path):
    """Those that only show a part, too."""
    for fragment in pages.read(path).fragments:
        ast.parse(fragment)


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_no_line_is_taken_for_a_comment(path):
    """MyST leaves out what begins with a percent sign, such as a broken "0.1 %"."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("%")] in ([], ["% commands"])


@pytest.mark.parametrize("path", ALL, ids=named)
def test_links_between_files_lead_somewhere(path):
    """Those of the pages that a code host shows; Sphinx follows links to headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"(?:\]\(|<img [^>]*src=\")([^)\s\"#]+)", text):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{named(path)} links to {target}"
