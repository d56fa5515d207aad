"""The data sets by name, with the paper's settings for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..model import Floats
from ..plugins import ObjectName
from ..preprocessing import Preprocessing
from .dataset import Dataset
from .files import Home


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The paper's settings for a data set: the defaults of a run."""

    network: str = "fc"
    rounds: int = 30
    batch_size: int = 32
    lr: float = 0.02
    momentum: float = 0.0
    nesterov: bool = False
    augment: Literal["none", "pad-crop-flip"] = "none"


@dataclass(frozen=True)
class Source:
    """A data set of ours: how to load it, the paper's settings for it, and its files."""

    load: Callable[[], Dataset]
    preset: Preset
    about: str
    shape: tuple[int, ...]  # of a sample
    home: Home | None = None


FASHION_MNIST = Home(
    "fashion-mnist",
    {
        "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    elsewhere=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
)
CIFAR10 = Home(
    "cifar10",
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR100 = Home(
    "cifar100",
    {
        "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    },
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    "md5:03b5dce01913d631647c71ecec9e9cb8",
)
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def digits() -> Dataset:
    """1,797 handwritten digits of 8×8 pixels (Alpaydin and Kaynak, 1998; UCI, CC BY 4.0), shipped with the package.

    They have no official split: every fifth sample of each class is for testing.
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        images, labels = file["images"][:, None], file["labels"].astype(np.int64)
    test = np.zeros(len(labels), np.bool_)
    for name in range(10):
        test[np.flatnonzero(labels == name)[4::5]] = True
    scale = Preprocessing(16)
    x = scale(images)
    return Dataset("digits", x[~test], labels[~test], x[test], labels[test], scale, tuple("0123456789"))


def fashion_mnist() -> Dataset:
    """60,000 + 10,000 pictures of clothes, 28×28 grey (Xiao et al., 2017); x / 256 as the paper's authors do."""
    scale = Preprocessing(256)

    def part(split: str) -> tuple[Floats, NDArray[np.int64]]:
        pixels = np.frombuffer(FASHION_MNIST.read(f"{split}-images-idx3-ubyte.gz"), np.uint8, offset=16)
        labels = np.frombuffer(FASHION_MNIST.read(f"{split}-labels-idx1-ubyte.gz"), np.uint8, offset=8)
        return scale(pixels.reshape(-1, 1, 28, 28)), labels.astype(np.int64)

    return Dataset("fashion-mnist", *part("train"), *part("t10k"), scale, CLOTHES)


def cifar10() -> Dataset:
    """50,000 + 10,000 pictures of ten things, 32×32 RGB (Krizhevsky, 2009)."""
    return _cifar(CIFAR10, [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], 1, THINGS)


def cifar100() -> Dataset:
    """50,000 + 10,000 pictures of a hundred things, 32×32 RGB (Krizhevsky, 2009)."""
    return _cifar(CIFAR100, ["train.bin"], ["test.bin"], 2)


def _cifar(home: Home, train: list[str], test: list[str], label_bytes: int, labels: tuple[str, ...] = ()) -> Dataset:
    """Records of label bytes (the last is the class) and 3,072 pixels; normalised by the training set's channels."""
    raw: list[NDArray[Any]] = []
    for names in (train, test):
        records = np.frombuffer(b"".join(map(home.read, names)), np.uint8).reshape(-1, label_bytes + 3072)
        raw += [records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)]
    norm = Preprocessing(255, *_channel_moments(raw[0]))
    return Dataset(home.name, norm(raw[0]), raw[1], norm(raw[2]), raw[3], norm, labels)


def _channel_moments(pixels: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exact mean and standard deviation of each channel on the 0 … 1 scale, from counts of the 256 byte values."""
    scale = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(pixels.shape[1]):
        shares = np.bincount(pixels[:, channel].ravel(), minlength=256) / pixels[:, channel].size
        means.append(float(shares @ scale))
        deviations.append(float(np.sqrt(shares @ (scale - means[-1]) ** 2)))
    return tuple(means), tuple(deviations)


DATASETS: dict[str, Source] = {
    "digits": Source(
        digits, Preset(rounds=30, lr=0.1), "1,442 + 355 handwritten digits, 8×8; shipped with us", (1, 8, 8)
    ),
    "fashion-mnist": Source(
        fashion_mnist, Preset(rounds=200), "60,000 + 10,000 pictures of clothes, 28×28", (1, 28, 28), FASHION_MNIST
    ),
    "cifar10": Source(
        cifar10,
        Preset(network="cnn", rounds=200, lr=0.005, momentum=0.75),
        "50,000 + 10,000 pictures of ten things, 32×32",
        (3, 32, 32),
        CIFAR10,
    ),
    "cifar100": Source(
        cifar100,
        Preset(
            network="vgg16",
            rounds=100,
            batch_size=128,
            lr=0.01,
            momentum=0.9,
            nesterov=True,
            augment="pad-crop-flip",
        ),
        "50,000 + 10,000 pictures of a hundred things, 32×32",
        (3, 32, 32),
        CIFAR100,
    ),
}


def preset_of(name: str) -> Preset:
    """The paper's settings for a data set of ours, also where it is given as an object; `Preset()` for your own."""
    if isinstance(name, ObjectName) and isinstance(name.value, Dataset):
        name = name.value.name
    return DATASETS[name].preset if name in DATASETS else Preset()
