"""Networks in whole numbers: the kernels against numpy to the bit, and hostile files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import every_width
from int8_reference import expected

from fedsparsify.cli import cli
from fedsparsify.errors import FedSparsifyError, WireError
from fedsparsify.export import export
from fedsparsify.graph import INPUT, Node
from fedsparsify.inference import Engine
from fedsparsify.inference.frontend.fusion import fuse
from fedsparsify.inference.frontend.steps import Conv
from fedsparsify.inference.frontend.weights import Weights
from fedsparsify.inference.int8.calibration import calibrate
from fedsparsify.inference.int8.facts import parts_of, read_range, write_range
from fedsparsify.inference.int8.lowering import QuantiseRow, int_rows
from fedsparsify.inference.int8.network import int_network
from fedsparsify.inference.int8.numbers import Channels, input_channels, sum_numbers
from fedsparsify.inference.int8.parts import executor_of
from fedsparsify.inference.int8.winograd_numbers import WinogradNumbers, winograd_numbers
from fedsparsify.inference.layout.memory_budget import MemoryBudget
from fedsparsify.inference.layout.network_layout import SampleBlock
from fedsparsify.inference.lowering.rows import SpreadRow
from fedsparsify.model import SparseModel
from fedsparsify.native import codegen
from fedsparsify.native.machine import lanes_here
from fedsparsify.wire.artefact import load, load_facts, load_graph, save

RANDOM = np.random.default_rng(5)


class Drawn:
    """A random network, layer by layer."""

    def __init__(self, *sample: int) -> None:
        self.sample, self.channels = sample, sample[0]
        self.nodes: list[Node] = []
        self.tensors: dict[str, np.ndarray] = {}

    def add(self, op: str, tensors: dict[str, np.ndarray] | None = None, **attributes: object) -> Drawn:
        name, before = f"v{len(self.nodes)}", self.nodes[-1].output if self.nodes else INPUT
        held = {role: f"{name}.{role}" for role in tensors or {}}
        self.tensors |= {held[role]: tensor.astype(np.float32) for role, tensor in (tensors or {}).items()}
        self.nodes.append(Node(op, name, (before,), held, attributes))
        return self

    def weight(self, density: float, *shape: int) -> dict[str, np.ndarray]:
        values = RANDOM.normal(0, 1 / np.sqrt(density * np.prod(shape[1:])), shape)
        self.channels = shape[0]
        return {"weight": values * (RANDOM.random(shape) < density), "bias": RANDOM.normal(0, 0.2, shape[0])}

    def conv(self, outputs: int, density: float, size: int = 3, stride: int = 1, dilation: int = 1, groups: int = 1):
        tensors = self.weight(density, outputs, self.channels // groups, size, size)
        pad = [dilation * (size // 2)] * 2
        sides = {"stride": [stride] * 2, "padding": pad, "dilation": [dilation] * 2, "groups": groups}
        return self.add("conv2d", tensors, **sides)

    def norm(self):
        near = {"weight": (-0.4, 1.4), "bias": (-0.3, 0.3), "running_mean": (-0.2, 0.2), "running_var": (0.7, 1.4)}
        return self.add(
            "batch_norm", {role: RANDOM.uniform(*ends, self.channels) for role, ends in near.items()}, eps=1e-5
        )

    def pool(self):
        return self.add("max_pool2d", kernel=[2, 2], stride=[2, 2], padding=[0, 0], ceil=False)

    def linear(self, outputs: int, features: int, density: float):
        return self.add("linear", self.weight(density, outputs, features))


def usual() -> Drawn:
    """Winograd's transforms, sums, pools with batch norm, small images, linear layers."""
    net = Drawn(3, 16, 16).conv(20, 0.7).add("relu").conv(37, 0.6).norm().add("relu").pool().norm()
    net.conv(24, 0.15).add("relu").pool().conv(33, 0.2).add("relu").conv(30, 0.5).add("relu6").pool()
    return net.conv(20, 0.4).add("flatten", start=1).linear(40, 80, 0.5).add("relu").linear(7, 40, 0.9)


def strided() -> Drawn:
    return Drawn(4, 19, 23).conv(8, 0.5, 5, stride=2).add("relu").conv(12, 0.6, dilation=2, groups=2).conv(9, 0.8, 1)


def odd() -> Drawn:
    return Drawn(2, 9, 9).conv(5, 0.9).add("relu").pool().conv(6, 0.9).pool().add("flatten", start=1).linear(3, 24, 1)


def flat() -> Drawn:
    return Drawn(50).linear(30, 50, 0.3).add("relu").linear(10, 30, 0.6)


NETWORKS = pytest.mark.parametrize("make", [usual, strided, odd, flat])


def in_integers(net: Drawn, batch: np.ndarray, lanes: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """What kernels and numpy give for a network that is one part."""
    (part,) = parts_of(calibrate(net.nodes, net.tensors, batch[:20]).fact, net.nodes)
    network = fuse(part.nodes, net.tensors)
    shapes = network.shapes(net.sample)
    assert part.ranges is not None
    made = int_network(network.steps, shapes, part.ranges)
    received = executor_of(part, net.tensors, threads, lanes, MemoryBudget()).serve(batch)
    return received, expected(made, shapes, batch).reshape(received.shape)


@every_width
@NETWORKS
def test_kernels_give_what_numpy_gives(make, lanes: int) -> None:
    net = make()
    batch = RANDOM.standard_normal((2 * lanes + 5, *net.sample), np.float32)
    batch[3] *= 30  # beyond the calibrated range
    received, wanted = in_integers(net, batch, lanes, 1)
    np.testing.assert_array_equal(received, wanted)


def test_images_are_quantised_at_every_width() -> None:
    """Where lanes are the blocks of one image, floats have a row of their own for the input."""
    net = Drawn(2, 64, 64).conv(6, 0.5).add("relu").pool().conv(4, 0.5)
    batch = RANDOM.standard_normal((20, *net.sample), np.float32)
    (part,) = parts_of(calibrate(net.nodes, net.tensors, batch).fact, net.nodes)
    network = fuse(part.nodes, net.tensors)
    shapes = network.shapes(net.sample)
    assert part.ranges is not None
    made = int_network(network.steps, shapes, part.ranges)
    for lanes in (8, 16, 32):
        (rows,) = int_rows(made, shapes, SampleBlock(lanes), MemoryBudget()).finished()
        assert isinstance(rows[0], QuantiseRow)
        assert not any(isinstance(row, SpreadRow) for row in rows)


def test_threads_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsparsify.inference.int8.planner.DIVIDED_VECTORS", 0)
    net = usual()
    batch = RANDOM.standard_normal((70, *net.sample), np.float32)
    (part,) = parts_of(calibrate(net.nodes, net.tensors, batch).fact, net.nodes)
    made = [executor_of(part, net.tensors, threads, lanes_here(), MemoryBudget()) for threads in (1, 2)]
    one, two = (executor.serve(batch) for executor in made)
    assert made[1].plan(batch.shape).threads == 2
    np.testing.assert_array_equal(one, two)


@pytest.mark.skipif(not codegen.LINKED, reason="guard pages are made on Linux only")
def test_no_kernel_leaves_its_memory() -> None:
    script = Path(__file__).parent / "under_guard_pages.py"
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def conv(weight: np.ndarray, bias: list[float]) -> Conv:
    return Conv("c", (INPUT,), Weights.of(weight.astype(np.float32)), np.array(bias, np.float32), padding=(1, 1))


def test_integers_by_hand() -> None:
    step = Conv("c", (INPUT,), Weights.of(np.float32([[[[0.5]], [[-1]]]])), np.zeros(1, np.float32))
    source = Channels(np.ones(2), np.array([0, 0]), np.array([1000, 2000]))
    made = sum_numbers(step, source, np.float32([-9e9]), np.float32([9e9]))
    # At least -2000 of 32,761 that two products leave; -1 is the largest factor.
    assert made.output.scale == pytest.approx([32768 / 32767])
    assert made.multipliers.tolist() == [16384, -32767]
    assert (made.output.low.tolist(), made.output.high.tolist()) == ([-32768], [32767])


def test_no_input_in_range_exceeds_a_sum() -> None:
    """The worst inputs there are, by Winograd's transforms and without them."""
    weight = RANDOM.standard_normal((5, 18, 3, 3))
    step = conv(weight, [0.3, -0.2, 50, -70, 0])
    source = input_channels(np.zeros(18), np.full(18, 6.0))
    given = np.full(5, -1e9, np.float32), np.full(5, 1e9, np.float32)
    sums = sum_numbers(step, source, *given)
    for sign in (1, -1):
        ends = np.where(sign * weight > 0, source.high[:, None, None], source.low[:, None, None]).reshape(5, -1)
        products = ends * sums.multipliers.reshape(5, -1) + 2**14 >> 15
        assert np.abs(products.sum(1) + sums.bias).max() <= 32767
    winograd = winograd_numbers(step, source, *given)
    assert np.abs(winograd.weights).sum(2).max() * 32767 > 2**29  # no more bits are given away than need be


def test_dead_channels_and_empty_layers() -> None:
    step = conv(np.zeros((2, 16, 3, 3)), [0, 1])
    source = input_channels(np.zeros(16, np.float32), np.zeros(16, np.float32))
    ends = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for made in (sum_numbers(step, source, *ends), winograd_numbers(step, source, *ends)):
        assert np.isfinite(made.output.scale).all()
        assert (made.output.scale > 0).all()


def test_the_rule_for_winograd() -> None:
    net = usual()
    shapes = fuse(net.nodes, net.tensors).shapes(net.sample)
    ranges = {name: (-np.ones(shape[0], np.float32), np.ones(shape[0], np.float32)) for name, shape in shapes.items()}
    made = int_network(fuse(net.nodes, net.tensors).steps, shapes, ranges)
    chosen = [name for name, numbers in made.numbers.items() if isinstance(numbers, WinogradNumbers)]
    assert chosen == ["v2", "v12"]


def test_ranges_are_bytes_rounded_outwards() -> None:
    low, high = np.float32([-1, 0, -0.001]), np.float32([2, 0.5, 0])
    back = read_range("x", write_range(low, high))
    assert (back[0] <= low + 1e-5).all()
    assert (back[1] >= high - 1e-5).all()
    np.testing.assert_allclose(back, [low, high], atol=2 / 255)
    assert write_range(np.zeros(1), np.ones(1)) == [1.0, "", "/w=="]


def exported(folder: Path) -> tuple[Path, Drawn]:
    net = usual()
    whole = SparseModel.of(net.tensors)
    model = SparseModel.masked(whole.layout, whole.weights, whole.weights != 0)
    save(folder / "m.fsz", model, {"graph": [node.to_json() for node in net.nodes], "shape": list(net.sample)})
    samples = RANDOM.standard_normal((40, *net.sample), np.float32)
    return export(folder / "m.fsz", "int8", samples=samples), net


def test_an_exported_file_is_smaller_and_runs_alike(tmp_path: Path) -> None:
    path, net = exported(tmp_path)
    whole = tmp_path / "m.fsz"
    assert path.name == "m.int8.fsz"
    assert path.stat().st_size < 0.5 * whole.stat().st_size
    engine, plain = Engine(path, 1), Engine(whole, 1)
    batch = RANDOM.standard_normal((33, *net.sample), np.float32)
    for count in (33, 3):  # in whole numbers, and in float
        wanted = plain.run(batch[:count])
        assert np.abs(engine.run(batch[:count]) - wanted).max() < 0.1 * np.abs(wanted).max()
    assert "integer program" in engine.explain(batch.shape)
    assert "integer program" not in engine.explain((3, *net.sample))
    assert not Engine(path, 1, kernels="sparse")._parts
    with pytest.raises(FedSparsifyError, match="int8 model already"):
        export(path, "int8", samples=batch)
    with pytest.raises(FedSparsifyError, match="takes samples of"):
        export(whole, "int8", samples=batch[:, :2])
    with pytest.raises(FedSparsifyError, match="calibrated by samples"):
        export(whole, "int8")


def test_what_integers_do_not_know_stays_float(tmp_path: Path) -> None:
    net = Drawn(3, 8, 8).conv(8, 0.9).add("relu").conv(8, 0.9).add("sigmoid").conv(16, 0.5).conv(4, 0.5)
    batch = RANDOM.standard_normal((20, *net.sample), np.float32)
    found = calibrate(net.nodes, net.tensors, batch)
    assert [(part["input"], part["output"]) for part in found.fact] == [(INPUT, "v2"), ("v3", "v5")]
    assert [layer.name for layer in found.layers if layer.reason] == ["sigmoid after v2"]
    model = SparseModel.of(net.tensors)
    save(tmp_path / "m.fsz", model, {"graph": [node.to_json() for node in net.nodes], "int8": found.fact})
    wanted = Engine(model, 1, net.nodes).run(batch)
    assert np.abs(Engine(tmp_path / "m.fsz", 1).run(batch) - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_residual_network_stays_float() -> None:
    net = Drawn(3, 8, 8).conv(8, 0.9).conv(8, 0.9).conv(8, 0.9)
    net.nodes.append(Node("add", "sum", ("v0", "v2")))
    found = calibrate(net.nodes, net.tensors, RANDOM.standard_normal((4, 3, 8, 8), np.float32))
    assert found.fact == []
    assert any("read values from before" in layer.reason for layer in found.layers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fact: "x", "list of parts"),
        (lambda fact: [{}], "an input, an output and ranges"),
        (lambda fact: [{**fact[0], "output": "nowhere"}], "not in the graph"),
        (lambda fact: [fact[0], fact[0]], "not in its order"),
        (lambda fact: [{**fact[0], "ranges": {}}], "needs a range"),
        (lambda fact: [{**fact[0], "ranges": {**fact[0]["ranges"], "v0": [1e40, "", "AA=="]}}], "positive number"),
        (
            lambda fact: [{**fact[0], "ranges": {**fact[0]["ranges"], "v0": [float("nan"), "", "AA=="]}}],
            "positive number",
        ),
        (lambda fact: [{**fact[0], "ranges": {**fact[0]["ranges"], "v0": [1.0, "", "?"]}}], "not base64"),
        (lambda fact: [{**fact[0], "ranges": {**fact[0]["ranges"], "v0": [1.0, "AAAA", "AA=="]}}], "low ends"),
        (lambda fact: [{**fact[0], "ranges": {**fact[0]["ranges"], "v0": [1.0, "", "AA=="]}}], "range of 20 channels"),
        (lambda fact: [{**fact[0], "input": "v3"}], "needs a range|cannot be computed"),
    ],
)
def test_hostile_facts_are_refused(tmp_path: Path, change, message: str) -> None:
    path, _ = exported(tmp_path)
    facts = load_facts(path)
    save(tmp_path / "bad.fsz", load(path), {**facts, "int8": change(facts["int8"])})
    with pytest.raises(WireError, match=message):
        Engine(tmp_path / "bad.fsz", 1)


def test_hostile_weights_do_not_break_the_integers(tmp_path: Path) -> None:
    """Huge, tiny and denormal weights: refused, or results without a warning."""
    path, net = exported(tmp_path)
    facts, graph, model = load_facts(path), load_graph(path), load(path)
    assert graph
    for factor in (1e-38, 1e-20, 1e20, 1e36):
        with np.errstate(over="ignore"):
            weights = np.clip(model.weights * np.float32(factor), -3e38, 3e38)
        save(tmp_path / "bad.fsz", SparseModel(model.layout, weights, model.mask), facts)
        try:
            made = Engine(tmp_path / "bad.fsz", 1).run(np.ones((20, *net.sample), np.float32))
        except FedSparsifyError:
            continue
        assert made.shape == (20, 7)


def test_survivors_keep_their_scale_through_the_file(tmp_path: Path) -> None:
    path, net = exported(tmp_path)
    for name, tensor in load(path).tensors().items():
        steps = np.abs(net.tensors[name]).reshape(len(tensor), -1).max(1) / 63
        wrong = np.abs(tensor - net.tensors[name]).reshape(len(tensor), -1).max(1)
        assert (wrong <= np.maximum(0.51 * steps + np.abs(net.tensors[name]).max() / 63 / 256, 1e-7)).all()


def test_export_by_the_command(tmp_path: Path) -> None:
    net = Drawn(1, 8, 8).conv(6, 0.9).add("relu").conv(6, 0.9).add("sigmoid")
    facts = {"graph": [node.to_json() for node in net.nodes], "shape": [1, 8, 8], "data": "digits"}
    save(tmp_path / "m.fsz", SparseModel.of(net.tensors), facts)
    np.save(tmp_path / "x.npy", np.ones((3, 1, 8, 8), np.float32))
    for more in ([], ["--samples", str(tmp_path / "x.npy")]):
        words = ["export", str(tmp_path / "m.fsz"), "--to", "int8", *more]
        result = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert "sigmoid after v2 stays in float: it has no form in whole numbers" in result.output
        assert "in whole numbers: 2 layers with weights" in result.output
    save(tmp_path / "m.fsz", SparseModel.of(net.tensors), {"graph": facts["graph"]})
    assert "give --samples" in str(CliRunner().invoke(cli, words[:4]).exception)
