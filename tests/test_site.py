"""The reference holds everything that is public, links lead somewhere, and figures have a source that exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT

import fedsparsify
from fedsparsify.cli import cli
from fedsparsify.config import RunConfig
from fedsparsify.methods import METHODS
from fedsparsify.ops import OPERATIONS
from fedsparsify.options import settings

DOCS = ROOT / "docs"
SOURCES = re.compile(
    r"(?<![\w/.-])(?:benchmarks|experiments|results|tests|fedsparsify|examples|deploy|docs)/[\w./-]*\w"
)
HISTORY = ("log.md",)  # tells of files that are gone
FORMULAS = ("methods.md",)  # numbers in its tables are settings, not measurements


@pytest.fixture(scope="module")
def generate():
    found = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_reference_is_complete(generate):
    texts = {page.name: generate.fill(page.read_text()) for page in (DOCS / "reference").glob("*.md")}
    every = "\n".join(texts.values())
    for name in {*fedsparsify.__all__} - {"METHODS", "errors"}:
        assert len(re.findall(rf"^\.\. auto\w+:: fedsparsify\.{name}\b", every, re.MULTILINE)) == 1, name
    for command in cli.commands:
        assert f"## fedsparsify {command}\n" in texts["command-line.md"]
    for setting in settings(RunConfig):
        assert f"| `{setting}` |" in texts["config.md"]
    for method in METHODS:
        assert f"### {method}\n" in texts["methods.md"]
    for operation in OPERATIONS:
        assert f"| `{operation}` |" in texts["operations.md"]


def test_messages_on_the_page_of_errors_exist(generate):
    page = (DOCS / "reference" / "errors.md").read_text()
    said = generate.messages().replace("\\", "")
    source = said + "\n".join(path.read_text() for path in (ROOT / "fedsparsify").rglob("*.py"))
    rows = re.findall(r"^\| `(.+?)` \| ", page, re.MULTILINE)
    assert len(rows) > 10
    for row in rows:
        for piece in filter(None, (part.strip(" .:?") for part in row.split("…"))):
            assert piece in source, f"no error says {piece!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    """Scripts, sweeps, results and tests: a figure whose source is gone is found here."""
    if page.name in HISTORY:
        return
    text = page.read_text()
    made = {*re.findall(r"^# (fedsparsify/[\w/.]+)$", text, re.MULTILINE)}
    for quoted in re.findall(r"`([^`\n]+)`", text):
        for path in SOURCES.findall(quoted):
            known = path in made or (ROOT / path).exists() or "*" in quoted or "NAME" in path
            assert known, f"{path} is gone"


def sections_with_figures(page: Path):
    """(title, text) of the sections that hold a table with figures."""
    for part in re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE):
        rows = [line for line in part.splitlines() if line.startswith("|")]
        if sum(len(re.findall(r"\d[\d.,]*", row)) for row in rows) >= 8:
            yield part.partition("\n")[0], part


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_table_of_figures_names_its_source(page):
    if page.name in HISTORY + FORMULAS:
        return
    head = page.read_text().partition("\n## ")[0]
    for title, text in sections_with_figures(page):
        sources = [*SOURCES.findall(text + head), *(["results"] if "from the runs in `results/`" in head else [])]
        assert any((ROOT / path).exists() for path in sources), f"{page.name}, {title!r}: where are these figures from?"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page, generate):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} → {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(generate.fill(file.read_text())), f"{page.name} → {target}"


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_workflow_does_what_ci_does():
    steps = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    targets = re.findall(r"^make (\w+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert len(targets) > 4
    for target in targets:
        assert f"- run: make {target}\n" in steps, target


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path):
    pytest.importorskip("furo")
    (tmp_path / "extra" / "report").mkdir(parents=True)
    (tmp_path / "extra" / "report" / "index.html").write_text("<p>made by `make docs`</p>")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", DOCS, "-d", tmp_path / "trees"]
    done = subprocess.run(
        [*map(str, command), "-D", f"html_extra_path={tmp_path / 'extra'}", str(ROOT), str(tmp_path / "site")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    check = [sys.executable, str(DOCS / "check_site.py"), str(tmp_path / "site")]
    assert subprocess.run(check).returncode == 0
