"""What `make dist` built, installed outside of the tree: without numba, at every level of processors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedsparsify import Engine, __version__
from fedsparsify.export import export
from fedsparsify.native.levels import LEVELS, VARIABLE

pytestmark = pytest.mark.dist
ROOT = Path(__file__).parents[2]
MODELS = [ROOT / "results" / "models" / f"{name}.fsz" for name in ("cifar10-cnn-0.95", "cifar100-vgg16-0.99")]
EMULATED = {"x86-64-v3": "Haswell", "x86-64": "Nehalem"}  # numpy itself needs what a Nehalem has
QEMU = shutil.which("qemu-x86_64")
RUN = """
import sys, warnings
warnings.simplefilter("error")
import numpy as np
from fedsparsify import Engine
x = np.random.default_rng(0).random((3, 3, 32, 32), np.float32)
np.savez(sys.argv[1], *(Engine(path, threads=1).run(x) for path in sys.argv[3:]))
Engine(sys.argv[2], threads=1).run(x)
assert not {"numba", "llvmlite"} & sys.modules.keys()
print({line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/native/images/inference-" in line}.pop())
"""
TRAIN = """
import sys, warnings
warnings.simplefilter("error")
sys.modules["numba"] = sys.modules["llvmlite"] = None
from fedsparsify import RunConfig, load_dataset
from fedsparsify.federation.simulated import Simulated
from fedsparsify.native.machine import lanes_here
from fedsparsify.training.native.kernel_code import CONVOLUTIONS
CONVOLUTIONS(lanes_here())
print(Simulated(RunConfig(rounds=1, epochs=1, clients=2), load_dataset("digits")).environment.cohort.backend.name)
"""


EMBED = """
import ctypes, sys
import numpy as np
from pathlib import Path
import fedsparsify
from fedsparsify.export import export_plan
x = np.random.default_rng(0).random((3, 3, 32, 32), np.float32)
plan = Path("plan")
export_plan(Path(sys.argv[2]), x.shape, plan)
library = ctypes.CDLL(fedsparsify.__path__[0] + "/embed/libfedsparsify.so")
library.fedsparsify_load.restype = ctypes.c_void_p
held = ctypes.c_void_p(library.fedsparsify_load(bytes(plan), None))
y = np.zeros((3, 10), np.float32)
assert library.fedsparsify_outputs(held) == y.size
library.fedsparsify_run(held, x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p))
library.fedsparsify_free(held)
np.savez(sys.argv[1], y)
"""


def built(pattern: str) -> Path:
    found = sorted((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"`make dist` makes one dist/{pattern}. Found: {found}"
    return found[0]


def installed(folder: Path, what: str) -> Path:
    """The Python of a new environment that has nothing but a package and what it needs."""
    venv.create(folder, with_pip=True)
    install = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(folder, *install, "--constraint", ROOT / "constraints.txt", what)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("wheel"), f"{built('*manylinux*.whl')}[infer]")


def run(folder: Path, *command: object, **more: str) -> str:
    """What a command prints, in a folder outside of the tree."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", VARIABLE)}
    env = kept | {"XDG_CACHE_HOME": str(folder / "cache")} | more
    done = subprocess.run([*map(str, command)], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def check_engine(folder: Path, *python: object, level: str) -> None:
    """The kernels of a level are taken, and give what the tree's own engine does, compiled here."""
    x = np.random.default_rng(0).random((3, 3, 32, 32), np.float32)
    whole_numbers = export(MODELS[0], "int8", folder / "int8.fsz", x)
    used = run(folder, *python, "-c", RUN, folder / "logits.npz", whole_numbers, *MODELS, **{VARIABLE: level})
    assert used.startswith(f"inference-{level.removesuffix('-vnni')}-")
    with np.load(folder / "logits.npz") as found:
        for name, model in zip(found.files, MODELS, strict=True):
            np.testing.assert_allclose(found[name], Engine(model).run(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", [level.name for level in LEVELS])
def test_the_wheel_needs_numpy_alone(python: Path, tmp_path: Path, level: str) -> None:
    packages = run(tmp_path, python, "-m", "pip", "list", "--format=freeze").lower()
    assert f"fedsparsify=={__version__}" in packages
    assert not any(name in packages for name in ("numba", "llvmlite", "torch"))
    check_engine(tmp_path, python, level=level)


@pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not here: apt-get install qemu-user")
@pytest.mark.parametrize(("level", "processor"), EMULATED.items())
def test_the_wheel_on_lesser_processors(python: Path, tmp_path: Path, level: str, processor: str) -> None:
    """An instruction too many would end the process. /proc/cpuinfo is the host's, hence the variable."""
    check_engine(tmp_path, QEMU, "-cpu", processor, python, level=level)


def test_the_c_library_of_the_wheel(python: Path, tmp_path: Path) -> None:
    """It runs a plan that the wheel makes without a compiler."""
    run(tmp_path, python, "-c", EMBED, tmp_path / "logits.npz", MODELS[0])
    x = np.random.default_rng(0).random((3, 3, 32, 32), np.float32)
    with np.load(tmp_path / "logits.npz") as found:
        np.testing.assert_allclose(found["arr_0"], Engine(MODELS[0]).run(x), rtol=1e-4, atol=1e-4)


def test_the_command_line_of_the_wheel(python: Path, tmp_path: Path) -> None:
    said = run(tmp_path, python.parent / "fedsparsify", "inspect", MODELS[0])
    assert "0.95" in said
    assert __version__ in run(tmp_path, python, "-c", "import fedsparsify; print(fedsparsify.__version__)")


@pytest.mark.parametrize("level", [level.name for level in LEVELS])
def test_training_kernels_of_the_wheel(tmp_path: Path, level: str) -> None:
    with zipfile.ZipFile(built("*manylinux*.whl")) as wheel:
        wheel.extractall(tmp_path / "unpacked")
    more = {"PYTHONPATH": str(tmp_path / "unpacked"), VARIABLE: level}
    assert run(tmp_path, sys.executable, "-c", TRAIN, **more) == "native"


def test_the_wheel_for_other_machines_has_no_machine_code() -> None:
    with zipfile.ZipFile(built("*-none-any.whl")) as wheel:
        assert not [name for name in wheel.namelist() if "/images/" in name or name.endswith(".so")]


def test_the_sdist_is_whole_and_installs(tmp_path: Path) -> None:
    """Installing it compiles the kernels, in an environment of the build's own."""
    with tarfile.open(built("*.tar.gz")) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"tests/packaging/test_dist.py", "docs/design.md", "constraints.txt", "CITATION.cff"} <= inside
    assert {"benchmarks/memory.py", "examples/nginx/fedsparsify.conf", "SECURITY.md", "tools/make_images.py"} <= inside
    assert not [name for name in inside if "__pycache__" in name or "/images/" in name]
    check_engine(tmp_path, installed(tmp_path / "env", f"{built('*.tar.gz')}[infer]"), level=LEVELS[0].name)
