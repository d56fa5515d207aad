"""Blocks of the networks that people use: traced, saved, run by the engine and by ONNX Runtime, against PyTorch."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from image_blocks import IMAGE_BLOCKS
from torch import nn
from torch.nn import functional as F

from fedsparsify import save
from fedsparsify.export.onnx import write_onnx
from fedsparsify.inference import Engine, planner
from fedsparsify.networks import model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.ops import reference
from fedsparsify.wire.artefact import load_graph


class SqueezeExcite(nn.Module):
    """An inverted residual with a gate (MobileNetV3, EfficientNet, RegNetY)."""

    sample = (3, 32, 32)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 5, 1, 2, groups=16)
        self.down, self.up, self.head = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), nn.Linear(16, 10)

    def forward(self, x):
        x = F.hardswish(self.stem(x))
        gate = F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        y = self.depthwise(gate * x)
        return self.head((x + y * torch.sigmoid(y)).mean((2, 3)))


class ConvNeXt(nn.Module):
    """Permutes to channels last, layer norm, a layer scale (Liu et al., 2022)."""

    sample = (3, 40, 40)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale, self.last, self.head = nn.Parameter(torch.rand(16, 1, 1)), nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        x = x + self.scale * self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)
        x = F.adaptive_avg_pool2d(x, 1).permute(0, 2, 3, 1)
        return self.head(self.last(x).permute(0, 3, 1, 2).flatten(1))


class Transformer(nn.Module):
    """Class token, position embedding, attention and a perceptron on tokens (Dosovitskiy et al., 2021)."""

    sample = (3, 32, 32)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.token = nn.Conv2d(3, 24, 8, 8), nn.Parameter(torch.randn(1, 1, 24))
        self.places, self.first, self.second = nn.Parameter(torch.randn(1, 17, 24)), nn.LayerNorm(24), nn.LayerNorm(24)
        self.attention = nn.MultiheadAttention(24, 3, batch_first=True)
        self.wide, self.narrow, self.head = nn.Linear(24, 48), nn.Linear(48, 24), nn.Linear(24, 10)

    def forward(self, x):
        n = x.shape[0]
        x = self.stem(x).reshape(n, 24, -1).permute(0, 2, 1)
        x = torch.cat([self.token.expand(n, -1, -1), x], 1) + self.places
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.narrow(F.gelu(self.wide(self.second(x))))
        return self.head(x[:, 0])


class Windows(nn.Module):
    """Shifted windows with a border, a mask and a position bias, then merged patches (Liu et al., 2021)."""

    sample = (3, 40, 40)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.qkv = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16), nn.Linear(16, 48)
        self.table, self.project = nn.Parameter(torch.randn(49, 2)), nn.Linear(16, 16)
        self.merge, self.merged = nn.Linear(64, 32, bias=False), nn.LayerNorm(64)
        self.head = nn.Linear(32, 10)
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None] + 3
        self.register_buffer("numbers", (apart[0] * 7 + apart[1]).flatten())

    def forward(self, x):
        x = self.stem(x).permute(0, 2, 3, 1)
        (b, h, w, c), y = x.shape, self.norm(x)
        y = torch.roll(F.pad(y, (0, 0, 0, -w % 4, 0, -h % 4)), (-2, -2), (1, 2))
        high, wide = y.shape[1:3]
        y = y.view(b, high // 4, 4, wide // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(y).reshape(len(y), 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        scores = (q * (c // 2) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.table[self.numbers].view(16, 16, 2).permute(2, 0, 1).unsqueeze(0)
        region = x.new_zeros((high, wide))
        region[high // 2 :] = 1
        region = region.view(high // 4, 4, wide // 4, 4).permute(0, 2, 1, 3).reshape(-1, 16)
        mask = (region[:, None] - region[:, :, None]).ne(0).float() * -100
        scores = (scores.view(b, -1, 2, 16, 16) + mask[None, :, None]).view(-1, 2, 16, 16)
        y = self.project((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c))
        y = y.view(b, high // 4, wide // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, high, wide, c)
        x = x + torch.roll(y, (2, 2), (1, 2))[:, :h, :w]
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.head(self.merge(self.merged(x)).mean((1, 2)))


class Shuffle(nn.Module):
    """Half of the channels pass by; then all are shuffled (Ma et al., 2018)."""

    sample = (3, 24, 24)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.point, self.head = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(8, 8, 1), nn.Linear(16, 10)
        self.depthwise = nn.Conv2d(8, 8, 3, 1, 1, groups=8)

    def forward(self, x):
        first, second = self.stem(x).chunk(2, 1)
        x = torch.cat((first, self.depthwise(self.point(second).relu())), 1)
        b, c, h, w = x.shape
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)
        return self.head(x.mean([2, 3]))


class Branches(nn.Module):
    """Branches that are concatenated, with pools on the way (GoogLeNet, Inception, DenseNet)."""

    sample = (3, 24, 24)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.three = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 6, 3, padding=1)
        self.after, self.norm, self.head = nn.Conv2d(8, 5, 1), nn.BatchNorm2d(15), nn.Linear(15, 10)

    def forward(self, x):
        x = self.stem(x)
        pooled = self.after(F.max_pool2d(x, 3, 1, 1))
        x = self.norm(torch.cat([self.one(x), F.relu(self.three(x)), pooled], 1))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(F.relu(x), (1, 1)), 1))


class Norms(nn.Module):
    """Group norm, PReLU, ELU, and a difference of means."""

    sample = (3, 24, 24)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.slopes = nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.PReLU(16, 0.2)
        self.second, self.head = nn.Conv2d(16, 8, 3, 2, 1), nn.Linear(8, 10)

    def forward(self, x):
        x = F.elu(self.second(self.slopes(self.norm(self.stem(x)))), 0.7)
        x = (x - x.mean((2, 3), keepdim=True)) / 3 + F.normalize(x, dim=1)
        return self.head(x.clamp(-1, 0.9).mean((2, 3)))


class Sequence(nn.Module):
    """Convolutions of a signal."""

    sample = (2, 50)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv1d(2, 8, 5, 2, 2), nn.BatchNorm1d(8), nn.Conv1d(8, 6, 3, groups=2)
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        return self.head(self.second(F.relu(self.norm(self.first(x)))).mean(-1))


BLOCKS = (SqueezeExcite, ConvNeXt, Transformer, Windows, Shuffle, Branches, Norms, Sequence, *IMAGE_BLOCKS)


def made(block, sparsity: float):
    """The module with random statistics and so many weights pruned; samples, and what PyTorch makes of them."""
    torch.manual_seed(1)
    module = block().eval()
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if "running" in name:
                tensor.uniform_(0.5, 1.5)
            elif tensor.ndim > 1 and tensor.is_floating_point():
                tensor[torch.rand_like(tensor) < sparsity] = 0
        x = torch.randn(5, *block.sample)
        return module, x.numpy(), module(x).numpy()


def near(received, expected) -> bool:
    return bool(np.abs(received - expected).max() <= 1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("sparsity", [0.0, 0.9])
@pytest.mark.parametrize("block", BLOCKS)
def test_file_engine_and_onnx_agree_with_pytorch(block, sparsity, tmp_path, monkeypatch):
    monkeypatch.setattr(planner, "SHARED_VECTORS", 0)
    module, x, expected = made(block, sparsity)
    graph, model = trace(module, sample=block.sample), model_of(module)
    save(tmp_path / "model.fsz", model, {"graph": [node.to_json() for node in graph]})
    assert load_graph(tmp_path / "model.fsz") == graph
    assert near(reference(graph, model.tensors(), x), expected)
    engines = Engine(tmp_path / "model.fsz", 1), Engine(tmp_path / "model.fsz", 2)
    for count in (5, 1):
        results = [engine.run(x[:count]) for engine in engines]
        assert near(results[0], expected[:count])
        assert np.array_equal(*results)  # bits do not depend on the threads
    write_onnx(tmp_path / "model.onnx", model, {"shape": list(block.sample)}, graph)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert near(session.run(None, {"input": x})[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [16, 8, 4])
@pytest.mark.parametrize("block", BLOCKS)
def test_all_widths(block, lanes):
    module, x, expected = made(block, 0.5)
    x, expected = np.tile(x, (5, *[1] * (x.ndim - 1))), np.tile(expected, (5, *[1] * (expected.ndim - 1)))
    engine = Engine(model_of(module), 1, trace(module, sample=block.sample), lanes)
    for count in (1, 3, 25):
        assert near(engine.run(x[:count]), expected[:count])


def test_tokens_of_any_number_fill_the_lanes():
    """A class token joins its tokens in one row, whose lanes lie side by side."""
    torch.manual_seed(3)
    module = Transformer().eval()
    engine = Engine(model_of(module), 1, trace(module, sample=module.sample), lanes=16)
    text = engine.explain((1, *module.sample))
    assert "level of 1 × 16 blocks" in text
    assert "24 × 1 × 17 in blocks of 1 × 2" in text
