"""Every name of the reference is documented, its example runs, and its repr is short."""

from __future__ import annotations

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from pages import PAGES, blocks

import fedsparsify
from fedsparsify import GradualSchedule, Method, RunConfig, SparseModel, Update, load_dataset
from fedsparsify.federation.ledger import Entry
from fedsparsify.methods import METHODS
from fedsparsify.model import Layout, TensorSpec
from fedsparsify.options import settings

REFERENCE = "\n".join(page.read_text() for page in (Path(__file__).parents[1] / "docs" / "reference").glob("*.md"))
NAMES = sorted(  # errors are told apart by their names
    name
    for mark in re.findall(r"<!-- made from: names (.*) -->", REFERENCE)
    for name in mark.split()
    if not name.startswith("fedsparsify.errors.")
)


def public_of(name: str) -> object:
    home, _, attribute = name.rpartition(".")
    return getattr(import_module(home), attribute)


def texts(public: object) -> list[str]:
    """The docstrings of a public name and, of a class, of its constructor and its methods."""
    members = (
        [value for name, value in vars(public).items() if name == "__init__" or name[0] != "_"]
        if (isinstance(public, type))
        else []
    )
    return [text for text in map(inspect.getdoc, [public, *filter(callable, members)]) if text]


def test_the_reference_has_every_public_name():
    public = {f"fedsparsify.{name}" for name in fedsparsify.__all__}
    assert public - {*NAMES} == {"fedsparsify.METHODS", "fedsparsify.errors"}  # which have texts of their own


def test_the_reference_has_every_name_that_pages_import():
    code = "\n".join(block.text for page in PAGES for block in blocks(page) if block.language == "python")
    imported = {
        f"{home}.{name}"
        for home, names in re.findall(r"^from (fedsparsify[\w.]*) import (.+)$", code, re.MULTILINE)
        for name in names.split(", ")
    }
    homes = {name.rpartition(".")[2]: name for name in NAMES}
    missing = {name for name in imported if name.rpartition(".")[2] not in homes}
    assert missing <= {"fedsparsify.METHODS"}


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_says_what_it_takes_and_shows_an_example(name):
    public = public_of(name)
    text = "\n".join(texts(public))
    assert ">>> " in text
    source = inspect.getsource(public)
    assert "Raises:" in source or "raise " not in source
    if inspect.isfunction(public):
        for parameter in inspect.signature(public).parameters:
            assert f"{parameter}: " in text, parameter
        assert "Returns:" in text


@pytest.mark.parametrize("name", NAMES)
def test_methods_of_public_classes_say_what_they_take(name):
    """Except those that override a documented method, and fields."""
    public = public_of(name)
    for member, value in vars(public).items() if isinstance(public, type) else ():
        function = getattr(value, "__func__", value)
        known = member in getattr(public, "__dataclass_fields__", ())
        known |= any(hasattr(base, member) for base in public.__mro__[1:])
        if not inspect.isfunction(function) or (member[0] == "_" and member != "__call__") or known:
            continue
        text, signature = inspect.getdoc(function) or "", inspect.signature(function)
        for parameter in {*signature.parameters} - {"self", "cls"}:
            assert f"{parameter}: " in text, f"{member}, {parameter}"
        assert "Returns:" in text or signature.return_annotation == "None", member


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name, elsewhere):
    public = public_of(name)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    for text in texts(public):
        runner.run(parser.get_doctest(text, {}, name, None, 0), out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_help_shows_what_each_setting_means():
    text = inspect.getdoc(RunConfig) or ""
    for name, setting in settings(RunConfig).items():
        assert f"\n    {name}: {setting.help}  [default: " in text
    assert "lr: local learning rate  [default: the data set's; 0.001 for adam and adamw]" in text


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_help_shows_what_each_setting_of_a_method_means(kind):
    text = inspect.getdoc(kind) or ""
    assert text.count("Settings:") == bool(settings(kind))
    for name, setting in settings(kind).items():
        assert f"\n    {name}: {setting.help}  [default: {setting.shown_default}]" in text


def test_a_method_without_a_docstring_has_its_settings():
    class Silent(Method):
        shy: int = fedsparsify.option(1, "how shy")

    assert "shy: how shy  [default: 1]" in (inspect.getdoc(Silent) or "")


def test_reprs_are_short():
    layout = Layout((TensorSpec("w", (200, 300)),), (TensorSpec("mean", (300,)),))
    model = SparseModel.dense(layout, np.ones(60_300, np.float32))
    entry = Entry(
        **dict.fromkeys(("round", "clients", "nonzero", "download_params", "upload_params", "paper_params"), 3),
        **dict.fromkeys(("accuracy", "loss", "target_sparsity", "sparsity", "train_loss", "seconds"), 0.5),
        empty=[f"layer{number}.weight" for number in range(100)],
    )
    assert repr(layout) == "Layout(1 tensors, 1 statistics, 60,300 values)"
    assert repr(model) == "SparseModel(2 tensors, 60,300 of 60,300 values, sparsity 0.0000)"
    assert repr(entry) == "Entry(round=3, accuracy=0.5, loss=0.5, sparsity=0.5, nonzero=3, clients=3, …)"
    assert repr(fedsparsify.Result(model, [entry], {"graph": ["node"] * 1000})) == (
        "Result(accuracy 0.5000 after round 3, SparseModel(2 tensors, 60,300 of 60,300 values, sparsity 0.0000))"
    )
    assert repr(fedsparsify.Result(model, [])) == f"Result(no round, {model!r})"
    update = Update(model, 5, scores=np.ones(60_000, np.float32), client=2, fault="\x1b[2J" * 100)
    config = RunConfig(data="x" * 300 + ".npz", method="fedavg")
    for shown in (repr(update), repr(config), repr(load_dataset("digits")), repr(GradualSchedule(0.9, 10))):
        assert len(shown) < 500
        assert shown.isprintable()
    assert "method='fedavg', rounds=30" in repr(config)
