"""Every block of the README that a reader would type is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsparsify.data import load_dataset

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_example_runs(elsewhere):
    example = blocks("python")[0]
    assert len(example.strip().splitlines()) <= 12
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rounds, shape, predicted = done.stdout.partition("(128, 64)\n")
    assert shape
    accuracy = float(rounds.splitlines()[-1].split()[1])
    classes = np.array([int(word) for word in re.findall(r"\d", predicted)])
    y = load_dataset("digits").y_test
    assert (classes == y).mean() == pytest.approx(accuracy, abs=0.001)


def test_the_method_example_runs(elsewhere):
    (elsewhere / "mine.py").write_text(blocks("python")[1])
    words = ["run", "--method", "mine:Noisy", "--sparsity", "0.9", "--set", "noise=0.2", "--rounds", "2"]
    done = subprocess.run([sys.executable, "-m", "fedsparsify", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(blocks("python")[1].splitlines()) < 25


def test_every_command_shown_is_a_command():
    shown = re.findall(r"^fedsparsify (\w+)(.*?)(?:#.*)?$", "\n".join(blocks("bash")), re.MULTILINE)
    assert len(shown) >= 4
    for command, rest in shown:
        listed = subprocess.run(
            [sys.executable, "-m", "fedsparsify", command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for flag in re.findall(r"--[\w-]+", rest):
            assert flag in listed, f"{command} has no {flag}"


def test_linked_files_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_two_commands_are_in_the_makefile(target):
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
