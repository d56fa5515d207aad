"""Plans, run by a C program that knows nothing but the header."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsparsify import Engine
from fedsparsify.errors import ConfigError, ModelError
from fedsparsify.export import export, export_plan
from fedsparsify.native import code_images
from fedsparsify.native.code_images import PACKAGE
from fedsparsify.native.levels import VARIABLE
from fedsparsify.native.machine import LINUX_X86_64, levels_here

ROOT = Path(__file__).parents[2]
EMBED = PACKAGE / "embed"
MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include "fedsparsify.h"
int main(int count, char **words) {
    const char *why;
    fedsparsify_plan *plan = fedsparsify_load(words[1], &why);
    if (!plan) return fprintf(stderr, "%s\n", why), 2;
    size_t inputs = fedsparsify_inputs(plan), outputs = fedsparsify_outputs(plan);
    float *x = malloc(4 * inputs), *y = malloc(4 * outputs);
    if (count < 2 || fread(x, 4, inputs, stdin) != inputs) return 3;
    for (int turn = 0; turn < 2; turn++) fedsparsify_run(plan, x, y);
    fwrite(y, 4, outputs, stdout);
    free(x), free(y), fedsparsify_free(plan);
    return 0;
}
"""
pytestmark = pytest.mark.skipif(not LINUX_X86_64 or shutil.which("gcc") is None, reason="Linux on x86-64 with gcc")


def compiled(folder: Path, *flags: object) -> Path:
    """The program, with strict warnings."""
    (folder / "main.c").write_text(MAIN)
    strict = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", f"-I{EMBED}", "-o", folder / "main"]
    subprocess.run(["gcc", *strict, folder / "main.c", *flags], check=True)
    return folder / "main"


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the library that wheels carry."""
    folder = tmp_path_factory.mktemp("linked")
    subprocess.run([sys.executable, ROOT / "tools" / "make_library.py", folder], check=True)
    return compiled(folder, f"-L{folder}", "-lfedsparsify", f"-Wl,-rpath,{folder}")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checks = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    return compiled(tmp_path_factory.mktemp("c"), EMBED / "fedsparsify.c", *checks)


def answer(program: Path, plan: Path, x: np.ndarray) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([program, plan], input=x.tobytes(), capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("cifar10-cnn-0.95", (1, 3, 32, 32)),
        ("cifar100-vgg16-0.99", (19, 3, 32, 32)),
        ("fashion-mnist-fc-0.95", (5, 1, 28, 28)),
    ],
)
def test_c_gives_what_the_engine_gives(
    program: Path, linked: Path, tmp_path: Path, model: str, shape: tuple[int, ...]
) -> None:
    source, plan = ROOT / "results" / "models" / f"{model}.fsz", tmp_path / "plan"
    level = next(level.name for level in levels_here() if not level.name.endswith("-vnni"))
    words = ["export", str(source), "--to", "plan", "--shape", "x".join(map(str, shape)), "--out", str(plan)]
    subprocess.run([sys.executable, "-m", "fedsparsify", *words], env={**os.environ, VARIABLE: level}, check=True)
    x = np.random.default_rng(0).random(shape, np.float32)
    done = answer(program, plan, x)
    assert done.returncode == 0, done.stderr.decode()
    found = np.frombuffer(done.stdout, np.float32)
    np.testing.assert_allclose(found, Engine(source, threads=1).run(x).ravel(), rtol=1e-4, atol=1e-4)
    assert answer(linked, plan, x).stdout == done.stdout
    whole = plan.read_bytes()
    for place in (20, 4096 + 100, len(whole) // 2, len(whole) - 1):
        plan.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert (answer(program, plan, x).returncode, answer(program, plan, x).stderr) == (2, b"it is damaged\n")
    for length in (0, 50, 5000):
        plan.write_bytes(whole[:length])
        assert answer(program, plan, x).returncode == 2
    plan.write_bytes(b"other" + whole[5:])
    assert answer(program, plan, x).stderr == b"it is no plan of this version\n"
    assert answer(program, tmp_path / "none", x).stderr == b"it cannot be read\n"
    assert answer(program, tmp_path, x).stderr == b"it is cut off, or cannot be mapped\n"


def test_the_library_asks_for_no_library(linked: Path) -> None:
    """Any libc will do: it names none, and no version of what it calls."""
    said = subprocess.run(
        ["readelf", "-dVW", linked.parent / "libfedsparsify.so"], capture_output=True, text=True, check=True
    )
    assert "SONAME" in said.stdout
    assert "NEEDED" not in said.stdout
    assert "GLIBC" not in said.stdout
    source = ROOT / "results" / "models" / "fashion-mnist-fc-0.95.fsz"
    assert answer(linked, source, np.zeros(1)).stderr == b"it is no plan of this version\n"


def test_what_is_no_plan(program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = ROOT / "results" / "models" / "fashion-mnist-fc-0.95.fsz"
    with pytest.raises(ConfigError, match="batches of one shape"):
        export(source, "plan")
    monkeypatch.setattr(code_images, "highest_allowed", lambda: None)
    monkeypatch.setattr(code_images, "SHIPPED", tmp_path)
    with pytest.raises(ModelError, match=f"compiled for this processor alone: set the environment variable {VARIABLE}"):
        export_plan(source, (1, 1, 28, 28), tmp_path / "plan")
    assert answer(program, source, np.zeros(1)).stderr == b"it is no plan of this version\n"
