"""The examples of docs/extending.md that change the package work, in a copy of it; test_pages.py runs the others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fedsparsify

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()

CHECK = """
import sys
import numpy as np
from pathlib import Path
import fedsparsify
assert Path(fedsparsify.__file__).is_relative_to(Path.cwd()), fedsparsify.__file__
from fedsparsify import RunConfig, SparseModel, keep_top, save
from fedsparsify.graph import Node
from fedsparsify.ops import ACTIVATIONS, OPERATIONS, reference
from fedsparsify.wire.codec import decode, encode
from click.testing import CliRunner
from fedsparsify.cli import cli

# A precision.
model = SparseModel.of({"w": np.linspace(-3, 3, 61)})
assert RunConfig(wire_precision="fp8").wire_precision == "fp8"
back = decode(encode(model, precision="fp8"))
assert np.allclose(back.weights, model.weights, rtol=0.126), back.weights
assert back.same_as(decode(encode(back, precision="fp8")))

# A command.
for name, scores in (("a", model.weights), ("b", abs(model.weights))):
    save(f"{name}.fsz", model.under(keep_top(scores, 0.5)))
done = CliRunner().invoke(cli, ["overlap", "a.fsz", "b.fsz"], catch_exceptions=False)
assert "15 of 47 entries" in done.output, done.output

# An operation.
assert OPERATIONS["softsign"] in ACTIVATIONS
x = np.array([[-3, 0, 1]], np.float32)
assert reference([Node("softsign", "y", ("input",))], {}, x).tolist() == [[-0.75, 0, 0.5]]
kernel = OPERATIONS["softsign"].kernel(type("Plain", (), {"f32": np.float32}))
assert [kernel(value, 0) for value in x[0]] == [-0.75, 0, 0.5]
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def write_files(folder: Path) -> None:
    """Write the page's files that belong to the package."""
    for text in blocks("python"):
        path = text.partition("\n")[0].removeprefix("# ")
        if path.startswith("fedsparsify/"):
            (folder / path).write_text(text)


def test_changes_of_the_package(tmp_path):
    package = Path(fedsparsify.__file__).parent
    shutil.copytree(package, tmp_path / "fedsparsify", ignore=shutil.ignore_patterns("__pycache__", "report"))
    write_files(tmp_path)
    for text in blocks("diff"):
        apply_diff(tmp_path, text)
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def apply_diff(folder: Path, text: str) -> None:
    """Replace the lines of each hunk, wherever they are in the file by now."""
    head, *hunks = re.split(r"^@@.*\n", text, flags=re.MULTILINE)
    path = folder / head.rpartition("+++ b/")[2].strip()
    source = path.read_text()
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
        assert source.count(old) == 1, f"{path.name} no longer holds:\n{old}"
        source = source.replace(old, new)
    path.write_text(source)


def test_files_and_names_exist():
    made = {text.partition("\n")[0].removeprefix("# ") for text in blocks("python")}
    for path in {*re.findall(r"`((?:fedsparsify|tests|docs)/[\w/.]*)`", PAGE)} - made:
        assert (ROOT / path).exists(), path
    for heading in re.findall(r"\]\(#([\w-]+)\)", PAGE):
        assert f"## {heading.replace('-', ' ')}\n" in PAGE.lower()
