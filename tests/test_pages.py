"""Every block of code on the site and in the README runs, or says why not; what pages name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from pages import BLOCK, CODE, NOT_CODE, PAGES, ROOT, blocks, fences, play

from fedsparsify.cli import cli

WITH_CODE = [page for page in PAGES if any(block.language in CODE for block in blocks(page))]
SLOW = [page for page in WITH_CODE if any(block.marker == "slow" for block in blocks(page))]
TUTORIAL = ROOT / "docs" / "tutorial.md"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def fedsparsify(here, elsewhere, monkeypatch):
    """The command line, in a folder where modules are found, as where a user stands."""
    monkeypatch.syspath_prepend(elsewhere)
    return here


@pytest.mark.filterwarnings("ignore::fedsparsify.notices.Notice")
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_blocks_run(page, fedsparsify, elsewhere):
    play(page, elsewhere, fedsparsify)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedsparsify.notices.Notice")
@pytest.mark.parametrize("page", [page for page in SLOW if page != TUTORIAL], ids=name_of)
def test_slow_blocks_run(page, fedsparsify, elsewhere):
    play(page, elsewhere, fedsparsify, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_seen_and_has_a_known_language(page):
    assert page.read_text().count("```") == 2 * len([*fences(page)])
    assert len(BLOCK.findall(page.read_text())) == len([*fences(page)])
    for block in blocks(page):
        assert block.language in (*CODE, *NOT_CODE, ""), f"{name_of(page)}: ```{block.language}"
        assert block.language or not re.search(r"^(\$|fedsparsify |import |from )", block.text, re.MULTILINE)


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_every_command_and_flag_exists(page):
    """Of blocks that are not run, too."""
    for block in blocks(page):
        for line in block.text.splitlines() if block.language == "bash" else ():
            for words in re.findall(r"^ *fedsparsify (.+?)(?: +#.*| *[|>&].*)?$", line):
                check_flags(words.split())


def check_flags(words: list[str]) -> None:
    command = cli
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    assert command is not cli or words[0].startswith("-"), f"there is no command {words[0]}"
    if command.name == "keys" and words and not words[0].startswith("-"):
        command = command.commands["make"]  # keys FOLDER
    known = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert flag in known or flag in ("--version", "--help"), f"{command.name} has no {flag}"


@pytest.mark.slow
@pytest.mark.flower
def test_the_federation_of_the_tutorial(elsewhere, fedsparsify):
    """Its server and its three clients as processes, as a reader starts them."""
    play(TUTORIAL, elsewhere, fedsparsify)
    parts = {"bench": [], "server": [], "client": [], "after": []}
    for block in blocks(TUTORIAL):
        if block.marker == "slow":
            parts[block.reason].append(block)
    assert [len(part) for part in parts.values()] == [1, 1, 3, 1]
    assert fedsparsify(*parts["bench"][0].commands[0][1:])[0] == 0
    started = []
    try:
        for block in (*parts["server"], *parts["client"]):
            [words] = block.commands
            with (elsewhere / f"log-{len(started)}").open("wb") as log:
                started.append(subprocess.Popen([sys.executable, "-m", *words], stdout=log, stderr=log))
        assert started[0].wait(400) == 0, (elsewhere / "log-0").read_text()
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)
    names: dict[str, object] = {}
    exec(parts["after"][0].text, names)
    assert (names["served"].mask == names["simulated"].mask).all()
    assert abs(names["served"].weights - names["simulated"].weights).max() < 1e-5
