"""Data sets of Hugging Face and PyTorch, and dictionaries of inputs, as arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

from fedsparsify import RunConfig
from fedsparsify.data import as_dataset, load_dataset, load_samples
from fedsparsify.errors import DataError
from fedsparsify.federation.checks import check_network
from fedsparsify.notices import Notice

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


class Pairs(TorchDataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


class Table:
    """What we use of a data set of Hugging Face."""

    def __init__(self, columns, **features):
        self.columns, self.column_names = columns, [*columns]
        self.features = {name: features.get(name, type("Value", (), {"dtype": "float32"})()) for name in columns}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __getitem__(self, rows):
        return self.columns


TEXT = type("Value", (), {"dtype": "string"})()
NAMED = type("ClassLabel", (), {"dtype": "int64", "names": ["no", "yes"]})()
IMAGE = type("Image", (), {"dtype": "image"})()


def test_a_pair_of_tensor_datasets():
    made = as_dataset((TensorDataset(X, Y), TensorDataset(X[:3], Y[:3])), "mine")
    assert made.x_train.tolist() == X.tolist()
    assert (made.x_train.dtype, made.y_test.tolist()) == (np.float32, [0, 1, 2])


def test_subsets_and_data_sets_of_pairs():
    pairs = Pairs([(x.numpy(), int(y)) for x, y in zip(X, Y, strict=True)])
    made = as_dataset({"train": pairs, "test": Subset(pairs, [0, 1, 2])}, "mine")
    assert (made.x_test.tolist(), made.classes) == (X[:3].tolist(), 3)


def test_pictures_have_their_channels_first():
    class Picture:
        def __init__(self, *shape):
            self.pixels = np.full(shape, 255, np.uint8)

        def getbands(self):
            return "RGB"

        def __array__(self, dtype=None, copy=None):
            return self.pixels

    colour = Pairs([(Picture(4, 5, 3), 0), (Picture(4, 5, 3), 1)])
    made = as_dataset((colour, colour), "pictures")
    assert (made.shape, made.x_train.max(), made.preprocessing.divisor) == ((3, 4, 5), 1.0, 255)
    grey = Pairs([(Picture(4, 5), 0), (Picture(4, 5), 1)])
    assert as_dataset((grey, grey), "pictures").shape == (1, 4, 5)


def test_several_inputs_by_name_and_by_place():
    named = Pairs(
        [({"tokens": np.arange(3), "mask": np.ones(3)}, 0), ({"tokens": np.arange(3), "mask": np.ones(3)}, 1)]
    )
    made = as_dataset((named, named), "named")
    assert made.shape == {"tokens": (3,), "mask": (3,)}
    assert (made.x_train["tokens"].dtype, made.x_train["mask"].dtype) == (np.int64, np.float32)
    placed = TensorDataset(X, X[:, :1], Y)
    assert as_dataset((placed, placed), "placed").shape == ((2,), (1,))


def test_a_dictionary_of_inputs_in_an_npz(tmp_path):
    half = {"tokens": np.arange(12).reshape(6, 2), "facts": np.ones((6, 1))}
    keys = {f"{part}.{name}": array for part in ("x_train", "x_test") for name, array in half.items()}
    np.savez(tmp_path / "mine.npz", **keys, y_train=Y, y_test=Y, client=["b", "b", "a", "a", "c", "c"])
    made = load_dataset(str(tmp_path / "mine.npz"))
    assert made.shape == {"tokens": (2,), "facts": (1,)}
    assert made.clients.tolist() == ["b", "b", "a", "a", "c", "c"]
    assert made.x_train[np.array([1])]["tokens"].tolist() == [[2, 3]]


def test_tables():
    columns = {"tokens": X.numpy().astype(int), "length": np.ones(6), "label": Y.numpy() % 2, "client": np.arange(6)}
    made = as_dataset({"train": Table(columns, label=NAMED), "test": Table(columns)}, "table")
    assert made.shape == {"tokens": (2,), "length": ()}
    assert (made.labels, made.clients.tolist()) == (("no", "yes"), [0, 1, 2, 3, 4, 5])
    with pytest.warns(Notice, match="without text"):
        text = Table({"tokens": columns["tokens"], "text": np.array(["a"] * 6), "y": Y.numpy()}, text=TEXT)
        assert as_dataset((text, text), "table").shape == (2,)
    with pytest.warns(Notice, match="evaluated on its split 'validation'"):
        as_dataset({"train": text_free(columns), "validation": text_free(columns)}, "table")
    image = Table({"image": np.zeros((6, 8, 9, 3), np.uint8), "label": Y.numpy()}, image=IMAGE)
    assert as_dataset((image, image), "images").shape == (3, 8, 9)


def text_free(columns):
    return Table({name: columns[name] for name in ("tokens", "label")})


@pytest.mark.parametrize("made", [TensorDataset(X, Y), {"train": TensorDataset(X, Y)}, {"x_train": X, "y_train": Y}])
def test_training_samples_alone_are_enough_where_clients_evaluate(made):
    data = as_dataset(made, "alone")
    assert (len(data.y_train), len(data.y_test), len(data.examples)) == (len(Y), 0, len(Y))
    with pytest.raises(DataError, match=r"has no test samples.*--evaluate clients.*train_test_split.*random_split"):
        check_network(RunConfig(), data)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"train": TensorDataset(X, Y), "more": TensorDataset(X, Y)}, "no test.*train_test_split.*random_split"),
        ({"test": TensorDataset(X, Y)}, "must have a split 'train'. Received: test"),
        ((Pairs([(X[0], 0), (X[:, 0], 1)]),) * 2, r"samples differ in shape: \(2,\) and \(6,\). Pad"),
        ((Pairs([X[0], X[1]]),) * 2, "must give pairs.*Received: Tensor"),
        ((Pairs([]),) * 2, "is empty"),
        ((Table({"a": np.ones(6)}),) * 2, "one column of targets, named label.*Received: a"),
        ((Table({"a": ["x"] * 6, "y": np.ones(6)}, a=TEXT),) * 2, "no column of numbers.*tokenize"),
        ((1, 2, 3), "must give x_train, y_train, x_test, y_test.*Received: tuple of 3"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "Missing: y_test"),
    ],
)
def test_what_is_no_data_set_is_explained(made, says):
    with pytest.raises(DataError, match=says):
        as_dataset(made, "mine")


def test_a_nodes_data_need_no_test_half(elsewhere):
    (elsewhere / "node_data.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "def load():\n    return TensorDataset(torch.zeros(4, 2), torch.tensor([1.0, 2.0, 2.0, 1.0]))\n"
    )
    assert load_samples("node_data:load", "classes").y_train.tolist() == [1, 2, 2, 1]  # a node may lack class 0
    assert load_samples("node_data:load", "values").y_train.dtype == np.float32


def test_images_with_channels_last_are_explained():
    x = np.zeros((4, 28, 28, 3), np.uint8)
    with pytest.warns(Notice, match=r"channels last.*x.transpose\(0, 3, 1, 2\)"):
        as_dataset((x, [0, 1, 0, 1], x, [0, 1, 0, 1]), "images")


@pytest.mark.slow
def test_real_data_sets_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"tokens": datasets.Sequence(datasets.Value("int64"), 3), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = {"tokens": [[1, 2, 3], [4, 5, 6]] * 10, "label": [0, 1] * 10}
    whole = datasets.Dataset.from_dict(rows, features=features)
    made = as_dataset(whole.train_test_split(test_size=0.2, seed=0), "table")
    assert (made.shape, made.x_train.dtype, made.labels, len(made.y_test)) == ((3,), np.int64, ("no", "yes"), 4)
    pictures = datasets.Dataset.from_dict(
        {"image": [np.zeros((8, 9, 3), np.uint8)] * 4, "label": [0, 1, 0, 1]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    assert as_dataset((pictures, pictures), "pictures").shape == (3, 8, 9)
    ragged = datasets.Dataset.from_dict({"tokens": [[1], [1, 2]], "label": [0, 1]})
    with pytest.raises(DataError, match=r"column 'tokens' differ in shape.*Pad"):
        as_dataset((ragged, ragged), "ragged")
