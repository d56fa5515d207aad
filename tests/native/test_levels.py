"""Levels of processors, and the code images that wheels carry for them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from test_code_images import SOME, TWO, Compiler, compiler, fresh, linked, object_file

from fedsparsify.errors import ConfigError
from fedsparsify.native import code_images, levels, machine
from fedsparsify.native.code_images import PACKAGE
from fedsparsify.native.image_files import keep
from fedsparsify.native.levels import LEVELS, VARIABLE, levels_of
from fedsparsify.native.linking import link
from fedsparsify.native.machine import lanes_here
from fedsparsify.notices import Notice

__all__ = ["compiler"]

HASWELL = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "sse4_2"}
SKYLAKE = HASWELL | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("features", "names"),
    [
        ({"sse2", "sse4_2"}, ["x86-64"]),
        (HASWELL, ["x86-64-v3", "x86-64"]),
        (HASWELL - {"fma"}, ["x86-64"]),
        (HASWELL | {"avx512f"}, ["x86-64-v3", "x86-64"]),  # a Xeon Phi
        (SKYLAKE, ["x86-64-v4", "x86-64-v3", "x86-64"]),
        (SKYLAKE | {"avx512_vnni"}, ["x86-64-v4-vnni", "x86-64-v4", "x86-64-v3", "x86-64"]),
        (HASWELL | {"avx_vnni"}, ["x86-64-v3-vnni", "x86-64-v3", "x86-64"]),  # an Alder Lake
    ],
)
def test_a_processor_runs_the_levels_whose_instructions_it_has(
    monkeypatch: pytest.MonkeyPatch, features: set[str], names: list[str]
) -> None:
    monkeypatch.setattr(levels, "highest_allowed", lambda: None)
    assert [level.name for level in levels_of(features)] == names


def test_the_environment_sets_the_best_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "highest_allowed", levels.highest_allowed.__wrapped__)
    monkeypatch.setattr(machine, "_features", lambda: SKYLAKE)
    for level in LEVELS:
        monkeypatch.setenv(VARIABLE, level.name)
        assert lanes_here() == level.lanes
    monkeypatch.setattr(machine, "_features", lambda: {"sse2"})
    monkeypatch.setenv(VARIABLE, "x86-64-v4")
    assert lanes_here() == 4
    monkeypatch.setenv(VARIABLE, "avx2")
    with pytest.raises(ConfigError, match=r"is one of x86-64-v4-vnni, x86-64-v4, .*, x86-64\. Received: 'avx2'"):
        lanes_here()


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installation whose wheel had one code image, for the best level here."""
    monkeypatch.setattr(code_images, "SHIPPED", tmp_path / "images")
    monkeypatch.setattr(code_images, "_folders", lambda: [tmp_path / "kept"])
    path = tmp_path / "images" / SOME.shipped_name(machine.levels_here()[0].name)
    keep(path, *link(object_file(TWO), ["first", "second"]))
    return path


@linked
def test_a_shipped_image_is_taken_before_anything_is_compiled(compiler: type[Compiler], shipped: Path) -> None:
    _, second = fresh(lanes_here())
    found = np.zeros(1, np.int64)
    second(3, found.ctypes.data)
    assert (compiler.count, found[0]) == (0, 40)
    shipped.chmod(0o664)  # as packages of a group that shares an environment are
    fresh(lanes_here())
    assert compiler.count == 0


@linked
@pytest.mark.parametrize("what", ["edited", "damaged", "another width"])
def test_a_shipped_image_that_does_not_fit_is_not_taken(
    compiler: type[Compiler], shipped: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = lanes_here()
    match what:
        case "edited":
            monkeypatch.setattr(code_images, "sources_of", lambda code: "edited")
        case "damaged":
            shipped.write_bytes(shipped.read_bytes()[:-1] + b"?")
        case _:
            lanes = 2
    fresh(lanes)
    assert compiler.count == 1


@linked
def test_compiling_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fedsparsify.native import codegen

    (tmp_path / "announced.py").write_text("def entries(lanes):\n    return [lambda a, b: None]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = "compiling the kernels for some, once on this machine"
    with pytest.warns(Notice, match=said):
        codegen.Code(code_images.CodeImage("some", "announced", (2,), ()), 4)


def test_every_code_image_is_shipped() -> None:
    tool = (Path(__file__).parents[2] / "tools" / "make_images.py").read_text()
    (listed,) = re.findall(r"codes = \((.*)\)", tool)
    found = [
        name for path in PACKAGE.rglob("*.py") for name in re.findall(r"^(\w+) = CodeImage\(", path.read_text(), re.M)
    ]
    assert sorted(found) == sorted(listed.split(", "))
