"""The data sets by name, with the paper's settings for each, and data sets of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..model import Floats
from ..plugins import call_named, load_named
from .files import Home

PARTS = ("x_train", "y_train", "x_test", "y_test")
MOST_CLASSES = 2**20


@dataclass(frozen=True)
class Preprocessing:
    """From raw pixels to the network's input: x / divisor, then (x − mean) / std per channel."""

    divisor: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __call__(self, raw: NDArray[Any]) -> Floats:
        """Raw samples (n, channels, …) as the network takes them."""
        x = raw.astype(np.float32) / np.float32(self.divisor)
        if self.mean:
            shape = (1, -1) + (1,) * (x.ndim - 2)
            x -= np.asarray(self.mean, np.float32).reshape(shape)
            x /= np.asarray(self.std, np.float32).reshape(shape)
        return x


@dataclass(frozen=True)
class Dataset:
    """Samples as the network takes them, (n, *shape), and labels 0 … classes − 1.

    Samples become float32, integer labels of any type int64. Test samples may be absent (n = 0) where clients evaluate.
    """

    name: str
    x_train: Floats
    y_train: NDArray[np.int64]
    x_test: Floats
    y_test: NDArray[np.int64]
    preprocessing: Preprocessing = Preprocessing()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in PARTS:
            given = as_array(getattr(self, part), f"{self.name}: {part}")
            object.__setattr__(self, part, _labels(given, self.name, part) if part[0] == "y" else _floats(given))
        for x, y, part in ((self.x_train, self.y_train, "train"), (self.x_test, self.y_test, "test")):
            if x.ndim < 2 or y.shape != (len(x),) or (part == "train" and not len(x)):
                raise DataError(
                    f"{self.name}: x_{part} must be (n, …) and y_{part} (n,), n > 0. Received: {x.shape} and {y.shape}."
                )
            if not len(x):
                continue
            if not np.isfinite(x).all():
                raise DataError(f"{self.name}: x_{part} holds values that are not numbers.")
            if self.classes > MOST_CLASSES:
                raise DataError(
                    f"{self.name}: labels must be 0 … classes − 1, of at most {MOST_CLASSES:,} classes. "
                    f"Received: {self.classes - 1:,} in y_train."
                )
            if y.min() < 0 or y.max() >= self.classes:
                raise DataError(
                    f"{self.name}: y_{part} must lie in 0 … {self.classes - 1}, the classes of y_train. "
                    f"Received: {y.min()} … {y.max()}."
                )
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise DataError(
                f"{self.name}: train and test samples differ in shape: "
                f"{self.x_train.shape[1:]} and {self.x_test.shape[1:]}."
            )

    def __repr__(self) -> str:
        counts = f"{len(self.x_train):,} + {len(self.x_test):,} samples of shape {self.shape}"
        return f"Dataset({self.name!r}, {counts}, {self.classes} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.x_train.shape[1:]

    @property
    def examples(self) -> Floats:
        """The test samples, or the training samples where there are none."""
        return self.x_test if len(self.x_test) else self.x_train

    @property
    def classes(self) -> int:
        """How many classes the training labels name."""
        return int(self.y_train.max()) + 1


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
    "digits": Source(digits, Preset(rounds=30, lr=0.1), "1,442 + 355 handwritten digits, 8×8; shipped with us"),
    "fashion-mnist": Source(
        fashion_mnist, Preset(rounds=200), "60,000 + 10,000 pictures of clothes, 28×28", FASHION_MNIST
    ),
    "cifar10": Source(
        cifar10,
        Preset(network="cnn", rounds=200, lr=0.005, momentum=0.75),
        "50,000 + 10,000 pictures of ten things, 32×32",
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
        CIFAR100,
    ),
}


def preset_of(name: str) -> Preset:
    """The paper's settings for a data set of ours; `Preset()` for your own."""
    return DATASETS[name].preset if name in DATASETS else Preset()


def load_dataset(name: str) -> Dataset:
    """Load a data set by name.

    Args:
        name: `digits`, `fashion-mnist`, `cifar10` or `cifar100`; the path of an `.npz` file with x_train, y_train,
            x_test and y_test; or `module:function` of your own, which returns these four arrays or a `Dataset`. The
            two of the test half may be absent where clients evaluate.

    Returns:
        A `Dataset`: float32 samples `x_train`, `x_test` and int64 labels `y_train`, `y_test`. Bytes of your own
        files are divided by 255.

    Raises:
        ConfigError: if there is no such data set, or your function fails.
        DataError: if files are absent or damaged, or the arrays do not fit together.

    Example:
        >>> from fedsparsify import load_dataset
        >>> load_dataset("digits")
        Dataset('digits', 1,442 + 355 samples of shape (1, 8, 8), 10 classes)
    """
    if name in DATASETS:
        return DATASETS[name].load()
    if name.endswith(".npz"):
        return _own(name, _read_npz(Path(name)))
    made = _call(name)
    if isinstance(made, Dataset):
        return made
    if not isinstance(made, Mapping):
        if not isinstance(made, tuple | list) or len(made) not in (2, 4):
            raise DataError(f"{name} must return {', '.join(PARTS)}. Received: {type(made).__name__}.")
        made = dict(zip(PARTS, made, strict=False))
    return _own(name, made)


def load_samples(name: str) -> tuple[Floats, NDArray[np.int64]]:
    """The training samples and labels of a data set. Your own needs no test half."""
    if name in DATASETS:
        dataset = load_dataset(name)
        return dataset.x_train, dataset.y_train
    made = _read_npz(Path(name), PARTS[:2]) if name.endswith(".npz") else _call(name)
    if isinstance(made, Dataset):
        return made.x_train, made.y_train
    if isinstance(made, tuple | list):
        made = dict(zip(PARTS, made, strict=False))
    if not isinstance(made, Mapping) or not {*PARTS[:2]} <= made.keys():
        raise DataError(f"{name} must return x_train and y_train. Received: {type(made).__name__}.")
    x, y = made["x_train"], made["y_train"]
    own = _own(name, dict(zip(PARTS, (x, y, x, y), strict=True)))
    return own.x_train, own.y_train


def check_known(name: str) -> None:
    """Refuse a name that cannot be a data set, before anything is loaded."""
    if name not in DATASETS and not name.endswith(".npz") and ":" not in name:
        load_named(name, DATASETS, "data set")


def _read_npz(path: Path, parts: tuple[str, ...] = PARTS) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            given = PARTS[:2] if not {*PARTS[2:]} & {*file} else parts
            return {part: file[part] for part in given}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}.") from None
    except KeyError as error:
        raise DataError(f"{path} must hold {', '.join(parts)}. Missing: {error.args[0].split()[0]}.") from None
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} cannot be read as an .npz of plain arrays: {error}") from error


def _call(name: str) -> object:
    """The value of a user's function."""
    return call_named(load_named(name, DATASETS, "data set"), name, "data set")


def _own(name: str, parts: Mapping[str, object]) -> Dataset:
    """A data set of a user's arrays: bytes are divided by 255, other numbers stay as they are.

    It may lack both test parts.
    """
    if {*PARTS[:2]} <= parts.keys() and not {*PARTS[2:]} & parts.keys():
        x, y = (as_array(parts[part], f"{name}: {part}") for part in PARTS[:2])
        parts = {**parts, "x_test": x[:0], "y_test": y[:0]}
    if missing := [part for part in PARTS if part not in parts]:
        raise DataError(f"{name} must give {', '.join(PARTS)}. Missing: {', '.join(missing)}.")
    arrays = {part: as_array(parts[part], f"{name}: {part}") for part in PARTS}
    scale = Preprocessing(255 if arrays["x_train"].dtype == np.uint8 else 1)
    x_train, x_test = (scale(_floats(arrays[part])) for part in ("x_train", "x_test"))
    return Dataset(name, x_train, arrays["y_train"], x_test, arrays["y_test"], scale)


def as_array(value: object, what: str) -> NDArray[Any]:
    """An array of real numbers, or an error that says what was received."""
    try:
        array = np.asarray(value)
    except Exception as error:  # numpy and a value's own conversion may raise anything
        raise DataError(f"{what} must be an array of numbers. Received: {type(value).__name__}; {error}") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what} must hold numbers. Received: {array.dtype}.")
    return array


def _floats(array: NDArray[Any]) -> Floats:
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused
        return np.ascontiguousarray(array, np.float32) if array.ndim else array.astype(np.float32)


def _labels(array: NDArray[Any], name: str, part: str) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu":
        raise DataError(f"{name}: {part} must hold integer classes. Received: {array.dtype}.")
    if array.size and int(array.max()) >= 2**63:
        raise DataError(f"{name}: {part} must hold classes from 0 on. Received: {array.max()}.")
    return np.ascontiguousarray(array, np.int64) if array.ndim else array.astype(np.int64)
