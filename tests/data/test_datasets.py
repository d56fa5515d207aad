from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from fedsparsify.data import DATASETS, Preprocessing, load_dataset
from fedsparsify.data.files import Home, cache_folder
from fedsparsify.errors import ConfigError, DataError

GOOD = {
    "x_train": np.zeros((6, 3), np.float32),
    "y_train": np.array([0, 1, 2, 0, 1, 2]),
    "x_test": np.ones((2, 3), np.float32),
    "y_test": np.array([0, 2]),
}


def test_digits_come_with_us():
    digits = load_dataset("digits")
    assert digits.x_train.shape == (1442, 1, 8, 8)
    assert digits.x_test.shape == (355, 1, 8, 8)
    assert np.bincount(digits.y_test).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 1)
    raw = np.load(DATASETS["digits"].load.__globals__["__file__"].replace("datasets.py", "digits.npz"))
    content = raw["images"].tobytes() + raw["labels"].tobytes()
    assert hashlib.sha256(content).hexdigest() == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_preprocessing_on_literals():
    raw = np.array([[[0, 255]], [[255, 0]]], np.uint8)  # (2 samples, 1 channel, 2 pixels)
    assert Preprocessing(255, (0.5,), (0.5,))(raw).tolist() == [[[-1, 1]], [[1, -1]]]


def test_the_real_data_sets_when_they_are_here(shared, tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    subprocess.run([sys.executable, shared / "data" / "unpack.py", tmp_path, "fashion-mnist"], check=True)
    monkeypatch.setenv("FEDSPARSIFY_DATA", str(tmp_path))
    data = load_dataset("fashion-mnist")
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((60000, 1, 28, 28), (10000, 1, 28, 28), 10)
    assert data.x_train.max() == np.float32(255 / 256)
    assert np.bincount(data.y_train).tolist() == [6000] * 10


def test_your_own_npz(tmp_path):
    np.savez(tmp_path / "mine.npz", **GOOD)
    assert load_dataset(str(tmp_path / "mine.npz")).classes == 3


def test_your_own_bytes_are_scaled(tmp_path):
    pixels = {"x_train": np.full((6, 3), 255, np.uint8), "x_test": np.full((2, 3), 51, np.uint8)}
    np.savez(tmp_path / "mine.npz", **GOOD | pixels)
    made = load_dataset(str(tmp_path / "mine.npz"))
    assert (made.x_train.max(), made.x_test.max()) == (1, np.float32(0.2))
    np.savez(tmp_path / "mixed.npz", **GOOD | {"x_train": pixels["x_train"]})
    with pytest.raises(DataError, match=r"must both be bytes.*Received: uint8 and float32"):  # was divided by 255, too
        load_dataset(str(tmp_path / "mixed.npz"))


def test_your_own_function(elsewhere):
    (elsewhere / "my_data.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        "    x = np.zeros((4, 2), np.float32)\n"
        "    return x, np.array([0, 1, 0, 1]), x[:2], np.array([0, 1])\n"
    )
    assert load_dataset("my_data:load").shape == (2,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x_train": None}, "Missing: x_train"),
        ({"y_train": np.full(6, 0.5)}, "integer classes"),
        ({"y_train": np.zeros(5, int)}, "y_train (n,)"),
        ({"y_train": np.array([1, 2, 3] * 2), "y_test": np.array([1, 3])}, "subtract 1"),
        ({"y_test": np.array([0, 7])}, "0 … 2"),
        ({"x_test": np.ones((2, 4), np.float32)}, "differ in shape"),
        ({"x_train": np.full((6, 3), np.nan, np.float32)}, "not numbers"),
        ({"x_train": np.full((6, 3), "a")}, "hold numbers"),
        ({"x_train": np.full((6, 3), {}, object)}, "plain arrays"),
    ],
)
def test_your_own_mistakes(tmp_path, change, says):
    arrays = {name: array for name, array in (GOOD | change).items() if array is not None}
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError) as caught:
        load_dataset(str(tmp_path / "mine.npz"), "classes")
    assert says in str(caught.value)


def test_no_such_data(tmp_path):
    with pytest.raises(DataError, match="no file"):
        load_dataset(str(tmp_path / "none.npz"))
    with pytest.raises(ConfigError, match="Did you mean 'cifar10'"):
        load_dataset("cifar-10")


def home_of(content: bytes, **more) -> Home:
    return Home("tiny", {"a.bin": hashlib.sha256(content).hexdigest()}, "https://example.org/a.tar.gz", **more)


def test_a_truncated_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSPARSIFY_DATA", str(tmp_path))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "a.bin").write_bytes(b"hel")
    with pytest.raises(DataError, match=r"a\.bin .*truncated or altered.*Delete it"):
        home_of(b"hello").read("a.bin")


def test_a_truncated_gzip_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSPARSIFY_DATA", str(tmp_path))
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for name in DATASETS["fashion-mnist"].home.sha256:
        (folder / name).write_bytes(gzip.compress(b"hello" * 100)[:-12])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        load_dataset("fashion-mnist")


def fake_pooch(monkeypatch, retrieve):
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "retrieve", retrieve)


def test_absent_and_offline_names_file_folder_and_command(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("no network")

    fake_pooch(monkeypatch, offline)
    monkeypatch.setenv("FEDSPARSIFY_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        load_dataset("cifar10")
    for part in ("cifar-10-binary.tar.gz", str(tmp_path / "cifar10"), "fedsparsify data cifar10 --download"):
        assert part in str(caught.value)


def test_an_archive_gives_only_the_files_we_know(tmp_path, monkeypatch):
    def retrieve(url, known_hash, fname, path, **_):
        path.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path / fname, "w:gz") as tar:
            for name, content in (("../../evil.bin", b"evil"), ("folder/a.bin", b"hello")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))

    fake_pooch(monkeypatch, retrieve)
    monkeypatch.setenv("FEDSPARSIFY_DATA", str(tmp_path))
    home = home_of(b"hello", archive_hash="md5:0")
    assert not home.present
    assert home.read("a.bin") == b"hello"
    assert home.present
    assert [path.name for path in tmp_path.rglob("*.*")] == ["a.bin"]


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSPARSIFY_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("FEDSPARSIFY_DATA")
    assert "fedsparsify" in cache_folder().name
