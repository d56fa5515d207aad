"""What the GPU back end makes of a network: its layers, who adds gradients up, and what it refuses."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig
from fedsparsify.methods import Fit
from fedsparsify.networks import build, model_of
from fedsparsify.networks.resnet import Block
from fedsparsify.training.backends import Setup
from fedsparsify.training.backends.stacked import Gpu
from fedsparsify.training.graph_layers import NotPlanned
from fedsparsify.training.inputs import Samples

pytest.importorskip("triton")

from fedsparsify.training.gpu.layers import BatchNorm, MeanPool, Product, Sum
from fedsparsify.training.gpu.plan import read_plan


def kinds(name, shape=(3, 32, 32), classes=10):
    return Counter(type(layer).__name__ for layer in read_plan(build(name, shape, classes, 0), shape).layers)


def test_the_layers_of_resnet18():
    assert kinds("resnet18") == {"Product": 21, "BatchNorm": 20, "MeanPool": 1}
    assert kinds("resnet18-gn") == {"Product": 21, "GroupNorm": 20, "MeanPool": 1}
    assert kinds("vgg16", classes=100) == {"Product": 14, "BatchNorm": 13, "MaxPool": 5}
    assert kinds("fc", (28, 28)) == {"Product": 3}  # vectors, whatever the samples' shape


def test_the_gradients_of_a_block():
    """Of x, read by the first convolution and by the sum: passed on by the sum, added to by the convolution, masked."""
    module = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), Block(4, 4, 1, nn.BatchNorm2d), Block(4, 8, 2, nn.BatchNorm2d)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)),
    )
    stem, one, norm1, two, norm2, *rest = read_plan(module, (3, 6, 6)).layers
    assert isinstance(stem, Product)
    assert (stem.padded, stem.bias_above, stem.relu, stem.mask, stem.more) == (16, False, True, False, False)
    assert isinstance(one, Product)
    assert (one.source, one.mask, one.more, one.below) == (stem.output, True, True, "")
    assert isinstance(norm1, BatchNorm)
    assert (norm1.relu, norm1.added) == (True, "")
    assert isinstance(two, Product)
    assert (two.mask, two.more) == (True, False)
    assert isinstance(norm2, BatchNorm)
    assert (norm2.added, norm2.relu, norm2.unmasked) == (stem.output, True, False)
    # A projection: the main branch comes first, so that its gradient is the last one, which adds and masks.
    first, _, _, projection, shortcut, total, mean, last = rest
    assert isinstance(first, Product)
    assert isinstance(projection, Product)
    assert first.source == projection.source == norm2.output
    assert (first.mask, first.more, projection.mask, projection.more) == (True, True, False, False)
    assert (first.geometry, projection.geometry) == ((6, 6, 3, 3, 3, 2, 1), (6, 6, 3, 3, 1, 2, 0))
    assert (total.added, total.relu, shortcut.relu) == (shortcut.output, True, False)
    assert isinstance(mean, MeanPool)
    assert mean.mask
    assert isinstance(last, Product)
    assert last.dense


def test_a_bias_below_has_its_gradient_from_the_layer_above():
    module = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)),
        *(nn.Conv2d(4, 4, 3, 2, 1), nn.Flatten(), nn.Linear(36, 2)),
    )
    layers = read_plan(module, (3, 6, 6)).layers
    assert [layer.below for layer in layers] == ["", "0.bias", "2.bias", "", ""]
    assert [getattr(layer, "bias_above", None) for layer in layers] == [True, True, None, False, False]
    assert read_plan(module, (3, 6, 6)).orders["6.weight"] == ((2, 4, 3, 3), (0, 2, 3, 1))


def test_a_relu_that_no_layer_takes_in():
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.ReLU(), nn.Linear(5, 2))
    layers = read_plan(module, (4,)).layers
    assert isinstance(layers[2], Sum)
    assert [(layer.relu, layer.mask, layer.unmasked) for layer in layers[1:3]] == [
        (True, False, True),
        (True, False, False),
    ]


CONV = nn.Conv2d(3, 4, 3, padding=1)


def network(*layers: nn.Module, features: int = 64) -> nn.Sequential:
    return nn.Sequential(CONV, *layers, nn.Flatten(), nn.Linear(features, 2))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (network(nn.Tanh()), "no kernel for tanh"),
        (network(nn.Conv2d(4, 4, 3, padding=1, groups=2)), "in groups"),
        (network(nn.Conv2d(4, 4, 3, padding=2, dilation=2)), "dilation"),
        (network(nn.Conv2d(4, 4, (1, 3), padding=(0, 1))), "square window: its kernel is 1 × 3"),
        (network(nn.AvgPool2d(2), features=16), "a mean of parts of an image"),
        (network(nn.MaxPool2d(3), features=4), "leaves out the image's last pixels"),
        (network(nn.MaxPool2d((1, 2)), features=32), "square window of at most 11"),
        (network(nn.BatchNorm2d(4, affine=False)), "without scale and shift"),
        (network(nn.Flatten(), nn.BatchNorm1d(64)), "not on flattened ones"),
        (nn.Sequential(nn.BatchNorm2d(3), CONV, nn.Flatten(), nn.Linear(64, 2)), "its first layer"),
        (nn.Sequential(CONV, nn.AdaptiveAvgPool2d(1), nn.Flatten()), "its last layer"),
        (nn.Sequential(CONV, nn.Flatten(), nn.Linear(64, 2), nn.ReLU()), "its last layer"),
        (
            nn.Sequential(Block(3, 3, 1, nn.BatchNorm2d), nn.Flatten(), nn.Linear(48, 2)),
            "several layers read its input",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_kernels_do_not_have_is_named(module, reason):
    with pytest.raises(NotPlanned, match=reason):
        read_plan(module, (3, 4, 4))


@pytest.mark.parametrize(
    ("optimizer", "first", "power", "prune", "taken"),
    [
        ("sgd", CONV, 1.25, True, True),
        ("sgd", CONV, 1.25, False, True),
        ("adam", CONV, 1.25, False, False),
        ("adam", CONV, 1, True, True),
        ("sgd", nn.Flatten(), 1, True, False),  # its first layer reads samples where they lie among all others
        ("sgd", nn.Flatten(), 1.25, False, True),
    ],
)
def test_which_unusual_steps_the_kernels_take(optimizer, first, power, prune, taken):
    features = 64 if isinstance(first, nn.Conv2d) else 48
    module = nn.Sequential(first, nn.Flatten(), nn.Linear(features, 2))
    samples = Samples.on(torch.device("cpu"), np.zeros((4, 3, 4, 4), np.float32), np.zeros(4, np.int64))
    backend = Gpu(Setup(lambda: module, samples, RunConfig(optimizer=optimizer), torch.device("cpu")))
    assert backend.takes(Fit(model_of(module), power=power, prune_inputs=prune)) is taken
