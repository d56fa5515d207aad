"""The examples: every command of their READMEs, with fewer rounds."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from fedsparsify.federation.ledger import read_history

EXAMPLES = Path(__file__).parents[1] / "examples"
FEWER = {"--rounds": "2", "--epochs": "1", "--sparsity": "0.2"}
REACHED = {"text": ("text", 0.35), "tabular": ("flats", 0.2), "multi-label": ("pixels", 0.8)}


def shortened(command: str) -> list[str]:
    """A command of a README with two rounds of one epoch, which purge little."""
    words = shlex.split(command)[1:]
    if words[0] != "run":
        return words
    for flag, value in FEWER.items():
        words = [*words, flag, value] if flag not in words else words
        words[words.index(flag) + 1] = value
    return words


@pytest.mark.filterwarnings("ignore:.*will have no graph", "ignore:.*not trained by the native")
@pytest.mark.parametrize("name", REACHED)
def test_an_example(name, here, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.setattr(sys, "path", [str(tmp_path / name), *sys.path])
    readme = (EXAMPLES / name / "README.md").read_text()
    commands = [line for block in re.findall(r"```bash\n(.*?)```", readme, re.DOTALL) for line in block.splitlines()]
    assert commands
    for command in commands:
        code, *said = here(*shortened(command))
        assert code == 0, said
    run, least = REACHED[name]
    assert read_history(tmp_path / name / "runs" / run / "history.jsonl")[-1].score > least


def test_every_example_is_listed():
    listed = re.findall(r"\| \[[\w-]+\]\(([\w-]+)/README\.md\)", (EXAMPLES / "README.md").read_text())
    folders = {path.name for path in EXAMPLES.iterdir() if (path / "README.md").exists()}
    assert folders == {*listed}
