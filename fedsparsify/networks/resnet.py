"""ResNet-18 (He et al., 2016) for images of 8 to 64 pixels a side: a 3×3 stem of stride 1, without a pool.

Tensors have torchvision's names. Convolutions start as there (He et al., 2015, by outputs), norms as identities, the
last layer as PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Norm = Callable[[int], nn.Module]  # of a number of channels


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class Block(nn.Module):
    """Two 3×3 convolutions around which the input is added; a 1×1 convolution where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(inputs, outputs, 3, stride), norm(outputs)
        self.conv2, self.bn2 = _convolution(outputs, outputs, 3), norm(outputs)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(_convolution(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images."""
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inner + self.downsample(x))  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride, norm), Block(outputs, outputs, 1, norm))


class ResNet18(nn.Module):
    """Four stages of two blocks each, of 64, 128, 256 and 512 channels."""

    def __init__(self, channels: int, classes: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = _convolution(channels, 64, 3), norm(64), nn.ReLU()
        self.layer1 = _stage(64, 64, 1, norm)
        self.layer2 = _stage(64, 128, 2, norm)
        self.layer3 = _stage(128, 256, 2, norm)
        self.layer4 = _stage(256, 512, 2, norm)
        self.avgpool, self.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.fc = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to logits."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.flatten(self.avgpool(x)))  # type: ignore[no-any-return]
