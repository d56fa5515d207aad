from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify.errors import ConfigError, ModelError
from fedsparsify.keyed import KeyedDropout, pad_crop_flip, uniform
from fedsparsify.networks import build, layout_of, model_of


@pytest.mark.parametrize(
    ("name", "shape", "classes", "trainable", "statistics"),
    [
        ("fc", (1, 28, 28), 10, 118_282, 0),
        ("cnn", (3, 32, 32), 10, 1_609_930, 384),
        ("vgg16", (3, 32, 32), 100, 14_774_436, 8_448),
        ("resnet18", (3, 32, 32), 10, 11_173_962, 9_600),  # torchvision's 11,689,512 with this stem and ten classes
        ("resnet18-gn", (3, 32, 32), 100, 11_220_132, 0),
    ],
)
def test_parameter_counts(name, shape, classes, trainable, statistics):
    module = build(name, shape, classes, seed=0)
    layout = layout_of(module)
    assert (layout.trainable, layout.total - layout.trainable) == (trainable, statistics)
    assert module.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_glorot_kernels_and_zero_biases():
    weights = model_of(build("fc", (1, 28, 28), 10, seed=0)).tensors()
    bound = (6 / (784 + 128)) ** 0.5
    assert 0.98 * bound < np.abs(weights["1.weight"]).max() <= bound
    assert not weights["1.bias"].any()


def test_resnet18_has_torchvisions_names_and_initialisation():
    module = build("resnet18", (3, 32, 32), 10, seed=0)
    names = [spec.name for spec in layout_of(module).tensors]
    assert names[:6] == [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        *(f"layer1.0.{x}" for x in ("conv1.weight", "bn1.weight", "bn1.bias")),
    ]
    assert "layer2.0.downsample.0.weight" in names and names[-2:] == ["fc.weight", "fc.bias"]
    weights = model_of(module).tensors()
    assert weights["layer3.1.conv1.weight"].std() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.01)
    assert weights["bn1.weight"].min() == 1


def test_the_seed_decides():
    assert model_of(build("fc", (4,), 2, seed=1)).same_as(model_of(build("fc", (4,), 2, seed=1)))
    assert not model_of(build("fc", (4,), 2, seed=1)).same_as(model_of(build("fc", (4,), 2, seed=2)))


def test_your_own_factory(elsewhere):
    (elsewhere / "my_net.py").write_text(
        "from torch import nn\n"
        "def plain():\n    return nn.Sequential(nn.Linear(4, 2))\n"
        "def shaped(shape, classes):\n    return nn.Sequential(nn.Linear(shape[0], classes), nn.Dropout(0.5))\n"
        "def wrong():\n    return 3\n"
    )
    assert layout_of(build("my_net:plain", (4,), 2, 0)).trainable == 10
    assert isinstance(build("my_net:shaped", (4,), 2, 0)[1], KeyedDropout)
    with pytest.raises(ConfigError, match="Received: int"):
        build("my_net:wrong", (4,), 2, 0)
    with pytest.raises(ConfigError, match="Did you mean 'shaped'"):
        build("my_net:shape", (4,), 2, 0)
    with pytest.raises(ConfigError, match="no module"):
        build("their_net:plain", (4,), 2, 0)


def test_images_of_the_wrong_shape():
    with pytest.raises(ConfigError, match=r"Received: samples of shape \(64,\)"):
        build("cnn", (64,), 10, 0)


def test_frozen_parameters_travel_but_are_never_pruned():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    layout = layout_of(module)
    assert [spec.name for spec in layout.tensors] == ["1.weight", "1.bias"]
    assert [spec.name for spec in layout.statistics] == ["0.weight", "0.bias"]
    with pytest.raises(ModelError, match="float64"):
        layout_of(nn.Linear(2, 2).double())


def test_keyed_numbers_are_uniform_and_depend_on_key_and_salt_alone():
    draws = uniform(torch.tensor(42), 100_000)
    assert torch.equal(draws[:10], uniform(torch.tensor(42), 10))
    assert not torch.equal(draws[:10], uniform(torch.tensor(43), 10))
    assert not torch.equal(draws[:10], uniform(torch.tensor(42), 10, salt=1))
    counts = torch.histc(draws, 100, 0, 1)
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert 50 < chi_squared < 170  # 99 degrees of freedom
    assert abs(torch.corrcoef(torch.stack([draws[1:], draws[:-1]]))[0, 1]) < 0.02


def test_neighbouring_keys_share_nothing():
    one, two = uniform(torch.tensor(7), 10_000), uniform(torch.tensor(8), 10_000)
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 0.05
    assert not torch.equal(one[1:], two[:-1])


def test_dropout_of_everything_gives_zeros_as_in_torch():
    x = torch.ones(3, requires_grad=True)
    KeyedDropout(1.0, salt=0)(x).sum().backward()
    assert KeyedDropout(1.0, salt=0)(x).tolist() == x.grad.tolist() == [0, 0, 0]


def test_keyed_dropout():
    layer = KeyedDropout(0.25, salt=0)
    x = torch.ones(100, 100)
    layer.key.fill_(5)
    first = layer(x)
    assert first.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (first == 0).float().mean() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(first, layer(x))
    assert torch.equal(layer.eval()(x), x)


def test_pad_crop_flip_moves_whole_pictures():
    picture = torch.arange(1, 17.0).reshape(1, 1, 4, 4).expand(64, 3, 4, 4)
    moved = pad_crop_flip(picture, torch.tensor(3), pad=1)
    assert moved.shape == picture.shape
    assert torch.equal(moved[:, 0], moved[:, 1])
    padded = nn.functional.pad(picture[0, 0], (1, 1, 1, 1))
    possible = [padded[i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
    possible += [crop.flip(1) for crop in possible]
    found = [next(i for i, crop in enumerate(possible) if torch.equal(crop, image[0])) for image in moved]
    assert len(set(found)) > 10  # nearly all of the 18 turn up among 64
