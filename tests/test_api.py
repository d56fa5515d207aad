"""The public names, and who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedsparsify

PACKAGE = Path(fedsparsify.__file__).parent


def test_public_names():
    assert fedsparsify.__all__ == sorted(
        [
            *(
                "METHODS",
                "Engine",
                "Entry",
                "Fit",
                "GradualSchedule",
                "Method",
                "Result",
                "RunConfig",
                "Score",
                "SparseModel",
                "Update",
                "communication_cost",
                "errors",
            ),
            *("keep_top", "load", "load_dataset", "majority", "option", "partition", "run", "save", "weighted"),
        ],
        key=lambda name: (not name.isupper(), name),
    )
    assert all(hasattr(fedsparsify, name) for name in fedsparsify.__all__)
    assert {*fedsparsify.__all__} <= {*dir(fedsparsify)}
    with pytest.raises(AttributeError):
        _ = fedsparsify.nothing


def test_the_core_needs_numpy_alone():
    code = (
        "import sys, fedsparsify as f; f.RunConfig(); f.load_dataset('digits'); f.Method, f.Entry, f.option; "
        "sys.exit(bool({'torch', 'numba', 'matplotlib', 'click', 'rich', 'pooch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_engine_is_at_the_top_and_needs_no_training_code():
    code = (
        "import sys, fedsparsify; fedsparsify.Engine; "
        "sys.exit(fedsparsify.Engine.__name__ != 'Engine' or bool({'torch', 'numba'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_report_needs_no_training_code():
    code = "import sys, fedsparsify.report.paper_figures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_error_has_one_base():
    errors = fedsparsify.errors
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    assert all(issubclass(kind, errors.FedSparsifyError) for kind in kinds)


# Who may import whom: each part may import itself and the parts named.
CORE = {"arrays", "errors", "options", "schedule", "model", "scores", "average", "state"}
ALLOWED = {
    "errors": set(),
    "tasks": {"errors"},
    "preprocessing": {"errors", "model"},
    "text": set(),
    "toml": {"errors"},
    "options": {"errors", "toml"},
    "objects": {"data", "errors", "plugins"},
    "plugins": {"errors", "text"},
    "recipes": {"data", "errors", "methods", "networks", "options", "plugins", "tasks"},  # networks where it must look
    "graph": set(),
    "stopping": set(),
    "notices": {"text"},
    "schedule": {"errors"},
    "arrays": set(),
    "model": {"arrays", "errors"},
    "scores": {"arrays", "errors", "model", "schedule"},
    "purging": {"arrays", "errors", "model", "plugins", "scores", "text"},
    "average": {"arrays", "errors", "model"},
    "state": {"arrays", "model"},
    "methods": CORE | {"plugins", "purging", "text"},
    "aggregation": CORE | {"methods", "notices"},
    "data": {"errors", "model", "notices", "plugins", "preprocessing", "tasks"},
    # Of training, only its settings: the rest needs torch.
    "config": {
        "aggregation",
        "errors",
        "objects",
        "options",
        "plugins",
        "schedule",
        "methods",
        "data",
        "recipes",
        "tasks",
        "text",
        "toml",
        "training",
        "wire",
    },
    "ops": {"errors", "graph"},
    "wire": {"errors", "model", "graph", "ops"},
    "native": {"errors", "notices"},
    "embed": set(),
    "inference": {"arrays", "errors", "graph", "model", "native", "ops", "preprocessing", "wire"},
    "keyed": set(),
    "networks": {"errors", "graph", "inference", "keyed", "model", "notices", "ops", "plugins", "wire"},
    "training": CORE
    | {"graph", "methods", "data", "keyed", "native", "networks", "notices", "ops", "plugins", "tasks", "text"},
    "federation": CORE
    | {"objects"}
    | {
        *("aggregation", "methods", "data", "config", "keyed", "networks", "tasks", "training", "wire"),
        *("notices", "stopping", "text", "toml"),
    },
    "track": {"config", "errors", "federation"},
    # Of training, only its settings.
    "report": {"data", "errors", "methods", "options", "recipes", "tasks", "text", "toml", "training", "wire"},
    "monitor": {"errors", "federation", "report", "text"},
    "export": {"errors", "graph", "inference", "model", "native", "ops", "wire"},
    "engines": {"export", "graph", "model", "ops", "wire"},
    "cli": {
        *("aggregation", "monitor", "notices"),
        *("config", "data", "engines", "errors", "export", "federation", "inference", "methods", "model", "options"),
        *(
            "preprocessing",
            "recipes",
            "report",
            "stopping",
            "tasks",
            "text",
            "track",
            "training",
            "wire",
        ),  # training.settings alone
    },
}
HEAVY = {
    "torch": {"arrays", "keyed", "networks", "training", "federation", "export", "engines", "track"},
    "matplotlib": {"report"},
    "mlflow": {"track"},
    "wandb": {"track"},
    "flwr": {"federation/flower"},
    "cryptography": {"federation/flower"},
    "h11": {"federation/flower"},
    "prometheus_client": {"monitor"},
    "onnx": {"export", "engines"},
    "litert_torch": {"export"},
    "ai_edge_litert": {"engines"},
    "numba": {"training", "inference", "native"},
    "llvmlite": {"training", "inference", "native"},
    "safetensors": {"export"},
    "sklearn": {"training"},
    "datasets": set(),
    "torchmetrics": set(),
}


@cache
def imports(path: Path) -> frozenset[str]:
    """(part of ours, or name of a package) for every import of a file."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    inside = path.relative_to(PACKAGE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            base = [*inside[:-1]][: len(inside) - node.level]
            names = [[node.module]] if node.module else [[alias.name] for alias in node.names]
            yield from (".".join([*base, *name]).partition(".")[0] for name in names)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_who_imports_whom(path):
    where = path.relative_to(PACKAGE)
    part = where.parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return
    ours = {name for name in imports(path) if name in ALLOWED} - {part}
    assert ours <= ALLOWED[part], f"{part} must not import {ours - ALLOWED[part]}"
    for package, parts in HEAVY.items():
        here = {part, str(where.parent)}
        assert package not in imports(path) or here & parts, f"{where} must not import {package}"


def test_nothing_is_unpickled():
    for path in PACKAGE.rglob("*.py"):
        assert not {"pickle", "marshal", "shelve", "dill", "joblib"} & imports(path), path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "torch.load"):
                assert any(word.arg == "allow_pickle" for word in node.keywords), f"{path}, line {node.lineno}"


def test_files_are_short():
    long = {path.name: n for path in PACKAGE.rglob("*.py") if (n := len(path.read_text().splitlines())) > 400}
    assert not long
