"""The engine against PyTorch, at every width."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from conftest import every_width
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedsparsify.errors import ModelError, WireError
from fedsparsify.graph import Node
from fedsparsify.inference import Engine
from fedsparsify.inference.frontend.fusion import fuse
from fedsparsify.inference.kernels.program_table import Kind
from fedsparsify.inference.layout.network_layout import SampleBlock
from fedsparsify.inference.lowering.program import build_program
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.networks import build, model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.wire.artefact import save


def enliven(module: nn.Module, sparsity: float, seed: int = 0) -> nn.Module:
    """Random biases and statistics, then the smallest weights of all layers together set to zero."""
    key = torch.Generator().manual_seed(seed)
    for child in module.modules():
        if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(child.weight, 0.7, 1.3, generator=key)
            nn.init.uniform_(child.running_mean, -0.2, 0.2, generator=key)
            nn.init.uniform_(child.running_var, 0.7, 1.4, generator=key)
        if getattr(child, "bias", None) is not None:
            nn.init.normal_(child.bias, 0, 0.1, generator=key)
    weights = [parameter.data for parameter in module.parameters() if parameter.ndim > 1]
    sizes = torch.cat([weight.abs().ravel() for weight in weights])
    limit = sizes.sort().values[min(int(sparsity * sizes.numel()), sizes.numel() - 1)]
    for weight in weights:
        weight[weight.abs() < limit] = 0
    return module.eval()


def engine_of(module: nn.Module, lanes: int | None = None, threads: int = 1, kernels: str = "auto") -> Engine:
    return Engine(model_of(module), threads, trace(module), lanes, kernels)


def agree(module: nn.Module, engine: Engine, *shape: int) -> None:
    batch = torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))
    with torch.no_grad():
        expected = module(batch).numpy()
    received = engine.run(batch.numpy())
    assert received.shape == expected.shape
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-4 * max(np.abs(expected).max(), 1e-6))


def linear(weight: list[list[float]], bias: list[float]) -> tuple[SparseModel, tuple[Node, ...]]:
    tensors = np.array(weight, np.float32), np.array(bias, np.float32)
    layout = Layout((TensorSpec("w", tensors[0].shape), TensorSpec("b", tensors[1].shape)))
    model = SparseModel.dense(layout, np.concatenate([t.ravel() for t in tensors]))
    return model, (Node("linear", "out", ("input",), {"weight": "w", "bias": "b"}),)


@every_width
def test_a_linear_layer_by_hand(lanes: int) -> None:
    model, graph = linear([[1, 0, 2], [0, 0, 0]], [0.5, -1])
    logits = Engine(model, 1, graph, lanes).run([[1, 2, 3], [-1, 0, 1]])
    assert logits.tolist() == [[7.5, -1], [1.5, -1]]


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.GELU()], ids=str)
def test_activations_far_from_zero_and_near(activation: nn.Module) -> None:
    """The engine has approximations of its own; what is no number stays none."""
    near = np.linspace(-12, 12, 4001)
    values = np.concatenate([near, near * 1e-3, near * 1e30, [-100, 88.5, -87.5, np.nan]]).astype(np.float32)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), activation)
    nn.init.ones_(module[0].weight)
    expected = activation(torch.from_numpy(values)).numpy()
    received = engine_of(module).run(values[:, None])[:, 0]
    np.testing.assert_allclose(received, expected, rtol=2e-6, atol=2e-6)


@every_width
@pytest.mark.parametrize("side", [4, 2])
@pytest.mark.parametrize("sparsity", [0.3, 0.9, 0.995, 1.1])
def test_small_images_meet_no_border(lanes: int, side: int, sparsity: float) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(40, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 33, 3, padding=1), nn.Flatten()]
    module = enliven(nn.Sequential(*layers), sparsity)
    engine = engine_of(module, lanes, kernels="sparse")
    agree(module, engine, lanes + 3, 40, side, side)
    assert Kind.SMALL in kinds_of(engine)


def kinds_of(engine: Engine) -> set[int]:
    return {int(row["kind"]) for program in engine._planner.programs.values() for row in program.tables[0]}


@every_width
@pytest.mark.parametrize("side", [32, 16, 12, 20, 9])
def test_winograds_tiles_of_four_and_eight_columns(lanes: int, side: int) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 20, 3, padding=1), nn.ReLU(), nn.Conv2d(20, 17, 3, padding=1), nn.Flatten()]
    module = enliven(nn.Sequential(*layers), 0)
    engine = engine_of(module, lanes, kernels="dense")
    for images in (1, lanes + 3):
        agree(module, engine, images, 3, side, side)
    rows = [
        row
        for program in engine._planner.programs.values()
        for row in program.tables[0]
        if row["kind"] == Kind.WINOGRAD
    ]
    assert (8 in {int(row["tile_columns"]) for row in rows}) == (side in (32, 16))


@every_width
@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize("side", [32, 24, 18, 8, 5, 4])
def test_convolutions_include_the_pool_after_them(lanes: int, kernels: str, side: int) -> None:
    torch.manual_seed(0)
    pool = [nn.ReLU(), nn.MaxPool2d(2)]
    layers = [nn.Conv2d(3, 18, 3, padding=1), *pool, nn.BatchNorm2d(18), nn.Conv2d(18, 17, 3, padding=1), *pool]
    module = enliven(nn.Sequential(*layers, nn.Flatten()), 0.6)
    engine = engine_of(module, lanes, kernels=kernels)
    for images in (1, lanes + 3):
        agree(module, engine, images, 3, side, side)
    if side == 32:
        assert Kind.POOL not in kinds_of(engine)


@pytest.mark.parametrize("sparsity", [0.5, 0.95, 1.1])
def test_one_images_linear_layers(sparsity: float) -> None:
    torch.manual_seed(0)
    module = enliven(nn.Sequential(nn.Linear(300, 70), nn.ReLU(), nn.Linear(70, 9)), sparsity)
    engine = engine_of(module, kernels="sparse")
    agree(module, engine, 1, 300)
    assert Kind.LINEAR in kinds_of(engine)


def test_windows_of_one_pixel_are_not_linear_layers() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(5, 7, 3, padding=1), nn.Conv2d(7, 6, 1, padding=1), nn.Conv2d(6, 8, 1, groups=2), nn.Flatten()]
    module = enliven(nn.Sequential(*layers), 0.3)
    agree(module, engine_of(module, kernels="sparse"), 1, 5, 1, 1)


@every_width
def test_a_convolution_by_hand(lanes: int) -> None:
    layout = Layout((TensorSpec("w", (1, 1, 3, 3)),))
    model = SparseModel.dense(layout, np.array([0, 0, 0, 0, 1, 0, 0, 0, 10], np.float32))
    attributes = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    engine = Engine(model, 1, (Node("conv2d", "out", ("input",), {"weight": "w"}, attributes),), lanes)
    assert engine.run([[[[1, 2], [3, 4]]]]).tolist() == [[[[41, 2], [3, 4]]]]


@every_width
@pytest.mark.parametrize(
    ("name", "shape", "classes", "sparsity"),
    [("fc", (1, 28, 28), 10, 0.9), ("cnn", (3, 32, 32), 10, 0.95)],
)
def test_the_papers_networks(lanes: int, name: str, shape: tuple[int, ...], classes: int, sparsity: float) -> None:
    module = enliven(build(name, shape, classes, seed=1), sparsity)
    engine = engine_of(module, lanes)
    for images in (1, 3, lanes + 1):
        agree(module, engine, images, *shape)


@pytest.mark.parametrize(
    "name", ["resnet18", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vgg16", "resnet18-gn"))]
)
def test_our_largest_networks(name: str) -> None:
    """At this machine's width alone, as they take seconds to prepare."""
    module = enliven(build(name, (3, 32, 32), 100, seed=1), 0.99)
    engine = engine_of(module)
    for images in (1, 3, 17):
        agree(module, engine, images, 3, 32, 32)


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.999])
def test_from_dense_to_almost_nothing(sparsity: float) -> None:
    module = enliven(build("cnn", (3, 32, 32), 10, seed=2), sparsity)
    engine = engine_of(module)
    for images in (1, 16):
        agree(module, engine, images, 3, 32, 32)


class Residual(nn.Module):
    """A stem, then blocks that add what they were given, as ResNets do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.first = self.block(12, 12, 1)
        self.second = self.block(12, 20, 2)
        self.shortcut = nn.Sequential(nn.Conv2d(12, 20, 1, 2, bias=False), nn.BatchNorm2d(20))
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.out = nn.Linear(20, 7)

    def block(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x))
        x = torch.relu(x + self.first(x))
        x = torch.relu(self.second(x) + self.shortcut(x))
        return self.out(torch.flatten(self.mean(x), 1)).softmax(1)


@every_width
@pytest.mark.parametrize("side", [32, 30, 21])
def test_a_residual_network(lanes: int, side: int) -> None:
    torch.manual_seed(3)
    module = enliven(Residual(), 0.8)
    engine = engine_of(module, lanes)
    for images in (1, 2, lanes):
        agree(module, engine, images, 3, side, side)


ACTIVATIONS = [nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.1), nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.Hardswish(), nn.GELU()]


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, int, int]]:
    """A random chain of layers and the shape of the images it takes."""
    channels, height, width = shape = draw(st.tuples(st.integers(1, 6), st.integers(5, 34), st.integers(5, 34)))
    torch.manual_seed(draw(st.integers(0, 1000)))
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["conv", "conv", "depthwise", "norm", "activation", "max", "mean", "adaptive"]))
        room = min(height, width)
        kernel = draw(st.sampled_from([k for k in (1, 2, 3, 5) if k <= room]))
        stride, padding = draw(st.integers(1, 3)), draw(st.integers(0, kernel // 2))
        before: Any = torch.zeros(1, channels, height, width)
        match kind:
            case "conv":
                outputs, groups = draw(st.integers(1, 20)), 1
                if channels % 2 == 0 and draw(st.booleans()):
                    outputs, groups = 2 * outputs, 2
                gap = 2 if (kernel - 1) * 2 + 1 <= room and draw(st.booleans()) else 1
                layer: nn.Module = nn.Conv2d(
                    channels, outputs, kernel, stride, padding, gap, groups, draw(st.booleans())
                )
            case "depthwise":
                layer = nn.Conv2d(channels, 2 * channels, kernel, stride, padding, groups=channels)
            case "norm":
                layer = nn.BatchNorm2d(channels)
            case "activation":
                layer = draw(st.sampled_from(ACTIVATIONS))
            case "max":
                layer = nn.MaxPool2d(kernel, stride, padding, ceil_mode=draw(st.booleans()))
            case "mean":
                layer = nn.AvgPool2d(kernel, stride, padding, draw(st.booleans()), draw(st.booleans()))
            case _:
                layer = nn.AdaptiveAvgPool2d((draw(st.integers(1, height)), draw(st.integers(1, width))))
        layers.append(layer)
        _, channels, height, width = layer.eval()(before).shape
    if draw(st.booleans()) or not any(list(layer.parameters()) for layer in layers):
        layers += [nn.Flatten(), nn.Linear(channels * height * width, 5)]
    return nn.Sequential(*layers), shape


@every_width
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=networks(), sparsity=st.sampled_from([0.0, 0.5, 0.9, 0.999]), images=st.integers(1, 20))
def test_random_networks(
    lanes: int, drawn: tuple[nn.Module, tuple[int, int, int]], sparsity: float, images: int
) -> None:
    module, shape = drawn
    if any(parameter.ndim > 1 for parameter in module.parameters()):
        enliven(module, sparsity)
    agree(module, engine_of(module, lanes), images, *shape)


def test_a_layer_without_survivors_gives_its_bias() -> None:
    model, graph = linear([[0, 0], [0, 0]], [3, -4])
    assert Engine(model, 1, graph).run([[5, 6]]).tolist() == [[3, -4]]


def test_an_empty_batch_gives_no_logits() -> None:
    model, graph = linear([[1, 1], [1, 1], [1, 1]], [0, 0, 0])
    assert Engine(model, 1, graph).run(np.zeros((0, 2))).shape == (0, 3)


def test_threads_share_an_engine_and_bits_do_not_change() -> None:
    module = enliven(build("cnn", (3, 32, 32), 10, seed=4), 0.95)
    engine = engine_of(module, threads=2)
    batches = [np.random.default_rng(k).normal(size=(k % 3 * 20 + 1, 3, 32, 32)).astype(np.float32) for k in range(9)]
    alone = [engine.run(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(engine.run, batches))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_run_that_was_interrupted_does_not_stop_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(enliven(build("cnn", (3, 32, 32), 10, seed=4), 0.5), threads=2)
    batch = np.random.default_rng(0).normal(size=(40, 3, 32, 32)).astype(np.float32)
    expected, pool = engine.run(batch), engine._pool
    assert pool

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine._native, "run_share", interrupt)
        engine.run(batch)
    assert all(np.array_equal(engine.run(batch), expected) for _ in range(2))
    assert engine._pool not in (None, pool)
    pool._barrier[0] += 2  # the helper that waits at the barrier


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize("images", [1, 40])
def test_a_forked_process_has_helpers_of_its_own(images: int) -> None:
    """As servers that load a model before they fork their workers do."""
    module = enliven(build("cnn", (3, 32, 32), 10, seed=4), 0.5)
    engine = engine_of(module, threads=2)
    batch = np.random.default_rng(0).normal(size=(images, 3, 32, 32)).astype(np.float32)
    expected = engine.run(batch)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # rather than wait for ever
        os._exit(0 if np.array_equal(engine.run(batch), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("kernels", "sparsity"), [("sparse", 0.6), ("dense", 0.6), ("sparse", 0.995)])
def test_the_number_of_threads_does_not_change_the_bits(kernels: str, sparsity: float) -> None:
    module = enliven(build("cnn", (3, 32, 32), 10, seed=4), sparsity)
    engines = [engine_of(module, threads=n, kernels=kernels) for n in (1, 2, 3)]
    for images in (1, 16, 35):
        batch = np.random.default_rng(images).normal(size=(images, 3, 32, 32)).astype(np.float32)
        one, two, three = (engine.run(batch) for engine in engines)
        assert np.array_equal(one, two)
        assert np.array_equal(one, three)


@pytest.mark.parametrize(("sparsity", "shared", "barriers"), [(0.5, 3, 3), (0.995, 0, 2)])
def test_layers_of_few_weights_stay_with_one_worker(sparsity: float, shared: int, barriers: int) -> None:
    """Workers wait only for what another wrote: at the end, and where they packed the input together."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(96, 96, 3, padding=1) for _ in range(3)]
    module = nn.Sequential(*(enliven(layer, sparsity) for layer in layers))
    fused = fuse(trace(module), model_of(module).tensors())
    tables = build_program(
        fused.steps, fused.shapes((96, 4, 4)), SampleBlock(16, single=True, workers=2), "sparse"
    ).tables
    assert [int(np.isin(table["kind"], (Kind.SPARSE, Kind.PIXEL_LANE)).sum()) for table in tables] == [3, shared]
    assert int((tables[0]["kind"] == Kind.BARRIER).sum()) == barriers


@every_width
def test_images_of_a_pixel_a_lane_need_no_halo(lanes: int) -> None:
    """Kernels of several sizes, and in groups, beside one layer that kept too much for it."""
    torch.manual_seed(2)
    sides = {16: (4, 4), 8: (2, 4), 4: (2, 2)}[lanes]
    single = [nn.Conv2d(20, 20, 3, padding=1), nn.Conv2d(20, 24, 1), nn.Conv2d(24, 32, (3, 1), padding=(1, 0))]
    module = enliven(nn.Sequential(*single, nn.ReLU(), nn.Conv2d(32, 20, (1, 3), padding=(0, 1), groups=4)), 0.9)
    full = nn.Conv2d(20, 9, 3, padding=1)
    engine = engine_of(nn.Sequential(*module, full), lanes)
    agree(nn.Sequential(*module, full), engine, 1, 20, *sides)
    (program,) = engine._planner.programs.values()
    kinds = [Kind(int(kind)) for kind in program.tables[0]["kind"]]
    assert kinds == [Kind.PACK, *[Kind.PIXEL_LANE] * 4, Kind.HALO, kinds[-2], Kind.UNPACK]
    assert kinds[-2] in (Kind.SPARSE, Kind.DENSE)


class Banded(nn.Module):
    """Layers of every kind that workers may divide by rows: wide kernels, strides, sums, activations, pools."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.near = nn.Conv2d(3, 8, 5, padding=2), nn.Conv2d(8, 8, 1)
        self.strided, self.last = nn.Conv2d(8, 24, 3, stride=2, padding=1), nn.Conv2d(24, 20, 3, padding=1)
        self.pool, self.mean, self.logits = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.wide(x))
        x = self.strided(torch.tanh(self.near(wide)) + wide)
        made: torch.Tensor = self.logits(torch.flatten(self.mean(self.last(self.pool(torch.relu(x)))), 1))
        return made


@every_width
@pytest.mark.parametrize(("workers", "side"), [(2, 32), (4, 64)])
def test_workers_divide_the_rows_of_first_layers(
    lanes: int, workers: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes all channels of its band, seams come from the neighbours, and the bits are those of one thread."""
    monkeypatch.setattr("fedsparsify.inference.planner.SHARED_VECTORS", 0)  # as if it were large
    torch.manual_seed(1)
    module = enliven(Banded(), 0.6)
    fused = fuse(trace(module), model_of(module).tensors())
    tables = build_program(
        fused.steps, fused.shapes((3, side, side)), SampleBlock(lanes, single=True, workers=workers), "sparse"
    ).tables
    for table in tables:
        convolutions = np.isin(table["kind"], (Kind.SPARSE, Kind.POINTWISE))
        assert table[convolutions]["channels"][:3].tolist() == [8, 8, 24]
    seams = [int((table["kind"] == Kind.FETCH).sum()) for table in tables]
    assert min(seams[1:-1], default=seams[0] + 1) > seams[0] > 0
    batch = np.random.default_rng(0).normal(size=(1, 3, side, side)).astype(np.float32)
    one, shared = (engine_of(module, lanes, threads, "sparse").run(batch) for threads in (1, workers))
    assert np.array_equal(one, shared)
    agree(module, engine_of(module, lanes, workers, "sparse"), 1, 3, side, side)


@every_width
@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_workers_share_a_batch_of_a_perceptron(lanes: int, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By channels; dense products, whose bits do not depend on it, by images where there are enough."""
    monkeypatch.setattr("fedsparsify.inference.planner.FLAT_VECTORS", 0)  # as if it were large
    module = enliven(build("fc", (1, 8, 8), 10, seed=5), 0.5)
    for images in (2 * lanes, 2 * lanes - 3, lanes - 1):
        engine = engine_of(module, lanes, 2, kernels)
        agree(module, engine, images, 1, 8, 8)
        (plan,) = engine._plans.values()
        assert (plan.threads, plan.shared is None) == (2, kernels == "dense" and images > lanes)
        batch = np.random.default_rng(images).normal(size=(images, 1, 8, 8)).astype(np.float32)
        results = [engine.run(batch) for _ in range(10)]  # shared, and alone
        one = engine_of(module, lanes, 1, kernels).run(batch)
        assert all(np.array_equal(result, one) for result in results)


def test_workers_share_one_image_of_a_residual_network(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    module = enliven(Residual(), 0.8)
    fused = fuse(trace(module), model_of(module).tensors())
    batch = np.random.default_rng(0).normal(size=(1, 3, 33, 33)).astype(np.float32)
    engine = engine_of(module, threads=3)
    monkeypatch.setattr("fedsparsify.inference.planner.SHARED_VECTORS", 0)  # as if it were large
    block = SampleBlock(16, single=True, workers=3)
    assert len(build_program(fused.steps, fused.shapes((3, 33, 33)), block).tables) == 3
    np.testing.assert_allclose(engine.run(batch), engine_of(module).run(batch), rtol=1e-5, atol=1e-7)


def test_a_file_runs(tmp_path: Any) -> None:
    module = enliven(build("fc", (1, 8, 8), 10, seed=5), 0.9)
    save(tmp_path / "model.fsz", model_of(module), {"graph": [node.to_json() for node in trace(module)]})
    agree(module, Engine(tmp_path / "model.fsz"), 5, 1, 8, 8)


def test_a_file_without_a_graph_says_why(tmp_path: Any) -> None:
    model, _ = linear([[1]], [1])
    save(tmp_path / "model.fsz", model, {"graph_missing": "the network calls fft"})
    with pytest.raises(WireError, match="does not say what its network computes: the network calls fft"):
        Engine(tmp_path / "model.fsz")


def test_wrong_inputs_are_named() -> None:
    model, graph = linear([[1, 2]], [1])
    engine = Engine(model, 1, graph)
    with pytest.raises(ModelError, match=r"layer 'out': it takes 2 features. Received: 3"):
        engine.run([[1, 2, 3]])
    with pytest.raises(ModelError, match="dimension for the images"):
        engine.run([1, 2])
    with pytest.raises(ModelError, match="give the graph too"):
        Engine(model)


@every_width
@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_sparse_and_dense_kernels_agree(lanes: int, kernels: str) -> None:
    torch.manual_seed(6)
    layers = [nn.Conv2d(3, 18, 3, padding=1), nn.ReLU(), nn.Conv2d(18, 5, 3), nn.MaxPool2d(2), nn.Flatten()]
    module = enliven(nn.Sequential(*layers, nn.Linear(5 * 13 * 13, 19), nn.ReLU6(), nn.Linear(19, 3)), 0.5)
    engine = engine_of(module, lanes, kernels=kernels)
    for images in (1, lanes, 3 * lanes):
        agree(module, engine, images, 3, 28, 28)


def test_kernels_have_names() -> None:
    model, graph = linear([[1]], [1])
    with pytest.raises(ModelError, match=r"kernels are one of auto, sparse, dense\. Received: 'fast'"):
        Engine(model, graph=graph, kernels="fast")
