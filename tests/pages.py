"""The code blocks of the pages that readers follow, and how tests run them.

A page's blocks run in order, in one empty folder and one Python namespace. A block whose first line is a comment with
a file's name is written to that file. What `print(…)  # shown` says is looked for in the output. An HTML comment above
a block says why it does not run (`not run: REASON`), or that it runs with the slow tests (`slow: REASON`).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from fedsparsify.native.levels import VARIABLE
from fedsparsify.native.machine import levels_here

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"(?:<!-- (not run|slow): ([^>]+?) -->\n)?^ *```([\w{}-]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:#|//) ([\w/.-]+\.(?:py|toml|c))\n")
CODE = ("python", "bash", "toml", "c")
SHELL = 'fedsparsify() { "$PYTHON" -m fedsparsify "$@"; }; python() { "$PYTHON" "$@"; }; set -e\n'
NOT_CODE = ("text", "diff", "{toctree}", "{eval-rst}", "{container}")  # tests/test_extending.py applies the diffs


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    marker: str  # "", "not run" or "slow"
    reason: str
    language: str
    text: str

    @property
    def file(self) -> str:
        """The name of the file that the block is; empty: it is none."""
        found = FILE.match(self.text)
        return found[1] if found else ""

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a block in bash."""
        return [words for line in self.text.splitlines() if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(*found.groups(default="")) for found in BLOCK.finditer(page.read_text())]


def fences(page: Path) -> Iterator[str]:
    """The language of every fence that opens a block."""
    yield from re.findall(r"^ *```([\w{}-]*)\n.*?^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)


def in_a_shell(block: Block, folder: Path) -> None:
    """Run a block as it stands; kernels are made for a level that plans can take."""
    level = {VARIABLE: next(level.name for level in levels_here() if not level.name.endswith("-vnni"))}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, **level, "PYTHON": sys.executable, "PYTHONPATH": path}
    done = subprocess.run(["bash", "-c", SHELL + block.text], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"class \d", done.stdout.splitlines()[-1]), done.stdout


def play(page: Path, folder: Path, fedsparsify: Callable[..., tuple[int, str, str]], slow: bool = False) -> int:
    """Run a page's blocks in `folder`; returns how many were run."""
    names: dict[str, object] = {"__name__": "__main__"}
    done = 0
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}: {block.text[:60]!r}"
        if block.language == "toml":
            tomllib.loads(block.text)
        if block.language not in CODE or block.marker == "not run" or (block.marker == "slow" and not slow):
            continue
        done += 1
        if block.file:
            if not block.file.startswith("fedsparsify/"):  # tests/test_extending.py has those
                (folder / block.file).write_text(block.text)
        elif block.language == "python":
            with redirect_stdout(StringIO()) as said:
                exec(compile(block.text, where, "exec"), names)
            for line, expected in re.findall(r"(print\(.*\))  # (.+)", block.text):
                assert expected in said.getvalue(), f"{where}, {line}: {said.getvalue()}"
        elif block.language == "bash" and "gcc " in block.text:
            in_a_shell(block, folder)
        elif block.language == "bash":
            for words in block.commands:
                if words[0] == "python":
                    exec(compile((folder / words[1]).read_text(), words[1], "exec"), {"__name__": "__main__"})
                    continue
                assert words[0] == "fedsparsify", f"{where} runs {words[0]}: say why it is not run"
                code, _, errors = fedsparsify(*words[1:])
                assert code == 0, f"{where}\n{errors}"
    return done
