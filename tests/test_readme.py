"""The README is short, its example ends in a running engine, and its two commands exist."""

from __future__ import annotations

import re

import numpy as np
import pytest
from pages import ROOT, blocks

from fedsparsify.data import load_dataset

PAGE = ROOT / "README.md"
README = PAGE.read_text()


def test_the_python_example_predicts_as_well_as_its_last_round(elsewhere, capsys):
    [example] = [block.text for block in blocks(PAGE) if block.language == "python"]
    assert len(example.strip().splitlines()) <= 5
    names: dict[str, object] = {}
    exec(example, names)
    classes = np.array([int(word) for word in re.findall(r"\d", capsys.readouterr().out)])
    accuracy = names["result"].history[-1].accuracy
    assert (classes == load_dataset("digits").y_test).mean() == pytest.approx(accuracy, abs=0.001)


def test_it_is_a_screen_and_a_half():
    assert len(README.splitlines()) < 90


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_two_commands_are_in_the_makefile(target):
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
