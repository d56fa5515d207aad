"""A user's own modules and functions: what goes wrong in them is named, and chained."""

from __future__ import annotations

import numpy as np
import pytest

from fedsparsify.data import Dataset, load_dataset, load_samples
from fedsparsify.errors import ConfigError, DataError
from fedsparsify.methods import method_class
from fedsparsify.networks import build

MODULE = """
import numpy as np
from fedsparsify.methods import Gradual

def breaks(*arguments):
    return {}["samples"]

def nothing():
    return None

def ragged():
    return [[1, 2], [3]], [0, 1], [[1, 2]], [0]

class Outer:
    class Inner(Gradual):
        pass

number = 3
"""


@pytest.fixture
def own(elsewhere):
    (elsewhere / "own_things.py").write_text(MODULE)
    (elsewhere / "own_unwritten.py").write_text("def f(:\n")
    (elsewhere / "own_broken.py").write_text("import no_such_package\n")
    (elsewhere / "own_failing.py").write_text("1 / 0\n")
    (elsewhere / "own_option.py").write_text(
        "from fedsparsify.methods import Method\nfrom fedsparsify.options import option\n"
        "class Odd(Method):\n    odd: dict = option(None, 'odd')\n"
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "own_things:breaks",
            r"'own_things:breaks': own_things:breaks\(\) raised KeyError: 'samples' \(.*line",
        ),
        ("own_things:nothing", "own_things:nothing must give x_train, .*Received: NoneType"),
        ("own_things:number", "data set 'own_things:number' must name a function. Received: int"),
        ("own_things:ragged", "x_train must be an array of numbers. Received: list"),
        ("own_unwritten:f", "importing 'own_unwritten' raised SyntaxError: .*line 1"),
        ("own_broken:f", "importing 'own_broken' raised ModuleNotFoundError: No module named 'no_such_package'"),
        (
            "own_failing:f",
            r"importing 'own_failing' raised ZeroDivisionError: .*zero \(.*own_failing.py, line 1",
        ),
        ("own_nowhere:f", "there is no module 'own_nowhere'"),
        (":f", "importing '' raised ValueError"),
        ("own_things:", "has no ''"),
    ],
)
def test_a_data_set(own, name, says):
    for load in (load_dataset, load_samples):
        with pytest.raises((ConfigError, DataError), match=says.replace("x_train, ", "x_train")) as caught:
            load(name)
        assert caught.value.__cause__ is not None or "raised" not in says


def test_a_network(own):
    with pytest.raises(ConfigError, match=r"network .*: own_things:breaks\(\(3,\), 2\) raised KeyError"):
        build("own_things:breaks", (3,), 2, 0)
    with pytest.raises(ConfigError, match=r"must make a torch.nn.Module. Received: NoneType"):
        build("own_things:nothing", (3,), 2, 0)


def test_a_method(own):
    assert method_class("own_things:Outer.Inner").__name__ == "Inner"
    with pytest.raises(ConfigError, match=r"method 'own_option:Odd': the option 'odd' of own_option.Odd has a type"):
        method_class("own_option:Odd")


X = np.zeros((4, 2), np.float32)


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4"])
def test_labels_of_every_integer_type(kind):
    y = np.array([0, 1, 0, 1], kind)
    made = Dataset("mine", X, y, X, y)
    assert made.y_train.dtype == made.y_test.dtype == np.int64
    assert made.y_train.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (np.array([0.0, 1.0, 0.5, 1.0]), "mine: y_train must hold integer classes.* Received: 0.5. For regression"),
        (np.array([0.0, 1.0, np.nan, 1.0]), "integer classes.* Received: nan"),
        (np.array(["a", "b", "a", "b"]), r"must hold numbers. Received: text \(<U1\).*numpy.unique"),
        (np.array([0, 1, 2, 2**40]), "of at most 1,048,576 classes. Received: 1,099,511,627,776 in y_train"),
        (np.array([0, 1, 2, 2**64 - 1], np.uint64), "classes from 0 on. Received: 18446744073709551615"),
        (np.array([0, 1, 2, -1]), "must lie in 0 … 2.*Received: -1 … 2"),
        ([0, 1, [2]], "y_train must be an array of numbers. Received: list"),
    ],
)
def test_other_labels(y, says):
    with pytest.raises(DataError, match=says):
        Dataset("mine", X, y, X, y, targets="classes")


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (X.astype(complex), "x_train must hold numbers. Received: complex128"),
        (np.full((4, 2), 1e300), "values that are not numbers"),
        (X[0, 0], r"x_train must be \(n, …\)"),
        (object(), "x_train must hold numbers. Received: object"),
    ],
)
def test_other_samples(x, says):
    with pytest.raises(DataError, match=says):
        Dataset("mine", x, np.zeros(4, int), X, np.zeros(4, int))


def test_samples_of_other_types_become_float32():
    for kind in ("f2", "f8", "i4", "u1", "?"):
        assert Dataset("mine", X.astype(kind), np.zeros(4, int), X, np.zeros(4, int)).x_train.dtype == np.float32


def test_integers_stay_integers():
    y = np.zeros(4, int)
    made = Dataset("tokens", X.astype("u2"), y, X.astype("i4"), y)
    assert made.x_train.dtype == made.x_test.dtype == np.int64
    assert made.with_floats().x_train.dtype == np.float32
