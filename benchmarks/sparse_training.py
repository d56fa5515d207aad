"""Training steps of sparse convolutional networks on one core: our kernels beside PyTorch's dense steps.

    python benchmarks/sparse_training.py [--networks cnn vgg16 resnet18] [--sparsities 0 0.8 0.9 0.95 0.99] [--compile]
    python benchmarks/sparse_training.py --layers --networks cnn --sparsities 0.95
    python benchmarks/sparse_training.py --networks resnet18 --sparsities 0.95 --uniform --sparseprop

All sides take turns in one process, with one thread each; times are that thread's own processor time, medians of single
steps, so that other processes disturb little. `--quantile 0.1` takes each side's fast steps instead, on a machine where
other processes empty the caches. Ours is what a client does: samples picked, forward, loss, backward, SGD
with momentum; what a round does once per client is not a step's.
PyTorch's is the usual loop with `torch.optim.SGD`. Masks are those of `results/models/` where there is one of that
sparsity; below 0.9, layers' densities lie between dense and those of the file at 0.90; masks of resnet18 keep the
largest of He-normal weights of all layers together. `--model FILE`: masks keep the largest weights of that model.
`--uniform`: every convolution but the first has the same sparsity. `--sparseprop`: SparseProp (Nikdan et al., 2023)
takes turns, too, where its package is installed; it replaces the layers that it measures to be faster.
`--cores 2`: PyTorch with two threads, beside two clients of ours at the same time; times are of the clock on the wall,
ours divided by two. It needs a quiet machine.
`--layers`: milliseconds and share of the machine's peak of every kernel of a step.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from machine_peak import fma_gflops
from torch import nn

from fedsparsify import RunConfig, load
from fedsparsify.methods import Fit
from fedsparsify.model import SparseModel
from fedsparsify.networks import build, model_of
from fedsparsify.training.backends.base import Setup
from fedsparsify.training.backends.sparse import Sparse
from fedsparsify.training.inputs import Samples
from fedsparsify.training.native.conv.rows import OPERATIONS, ROW
from fedsparsify.training.worker import Worker

MODELS = Path(__file__).parents[1] / "results" / "models"
FILES = {"cnn": "cifar10-cnn", "vgg16": "cifar100-vgg16"}
CLASSES = {"cnn": 10, "vgg16": 100, "resnet18": 10}
SHAPE = (3, 32, 32)
BATCH = 32
STEPS = 3  # of PyTorch in a turn, and in an epoch of ours
EPOCHS = 3  # of ours in a turn
CPU = torch.device("cpu")


def network(name: str) -> nn.Module:
    """A network with fixed initial weights."""
    return build(name, SHAPE, CLASSES[name], 0)


def pruned(name: str, sparsity: float, uniform: bool = False, file: str = "") -> SparseModel:
    """The model that a step starts from."""
    model = model_of(network(name))
    if sparsity == 0:
        return model
    if file:
        sizes = abs(np.asarray(load(file).weights[: model.layout.trainable]))
        return model.under(sizes > np.quantile(sizes, sparsity))
    if uniform:
        kept, rng = np.ones(model.layout.trainable, bool), np.random.default_rng(0)
        for spec in model.layout.tensors:
            if len(spec.shape) == 4 and spec.shape[1] > SHAPE[0]:
                kept[model.layout.slices[spec.name]] = rng.random(spec.size) >= sparsity
        return model.under(kept)
    path = MODELS / f"{FILES.get(name)}-{sparsity:.2f}.fsz"
    if path.exists():
        return model.under(load(path).mask)
    rng = np.random.default_rng(0)
    sparser = MODELS / f"{FILES.get(name)}-0.90.fsz"
    if sparser.exists() and sparsity < 0.9:
        known = load(sparser)
        kept = np.ones(model.layout.trainable, bool)
        for place, density in densities_between(known, sparsity):
            kept[place] = rng.random(place.stop - place.start) < density
        return model.under(kept)
    scores = np.full(model.layout.trainable, np.inf)
    for spec in model.layout.tensors:
        if len(spec.shape) > 1:
            width = (2 / np.prod(spec.shape[1:])) ** 0.5
            scores[model.layout.slices[spec.name]] = abs(rng.normal(0, width, spec.size))
    return model.under(scores > np.quantile(scores, sparsity))


def densities_between(known: SparseModel, sparsity: float) -> list[tuple[slice, float]]:
    """The place of every layer and its density: the known ones to a power between 0 and 1."""
    places = [known.layout.slices[spec.name] for spec in known.layout.tensors]
    densities = np.array([max(known.host_mask[place].mean(), 1e-9) for place in places])
    sizes = np.array([place.stop - place.start for place in places])
    low, high = 0.0, 1.0
    for _ in range(40):
        power = (low + high) / 2
        left = (densities**power * sizes).sum() / sizes.sum()
        low, high = (power, high) if left > 1 - sparsity else (low, power)
    return list(zip(places, (densities**power).tolist(), strict=True))


def sparseprop_step(name: str, model: SparseModel) -> Callable[[], None]:
    """PyTorch's step with SparseProp's layers in place of those that are slower."""
    import backend  # the package installs its extension beside itself
    import sparseprop

    sys.modules["sparseprop.backend"] = sparseprop.backend = backend
    from sparseprop.utils import swap_modules_with_sparse

    module = network(name)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(model.tensors()[key])))
    return torch_step(name, False, False, swap_modules_with_sparse(module, (BATCH, *SHAPE)).train())


def torch_step(name: str, channels_last: bool, compiled: bool, module: nn.Module | None = None) -> Callable[[], None]:
    """PyTorch's usual training step on one batch."""
    module = module or network(name).train()
    x, y = torch.randn(BATCH, *SHAPE), torch.randint(0, CLASSES[name], (BATCH,))
    if channels_last:
        module, x = module.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    run: Any = torch.compile(module) if compiled else module

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(run(x), y).backward()
        optimiser.step()

    return step


class Stamped(Worker):
    """A worker that notes when each of its steps begins."""

    began: list[float]
    clock: Callable[[], float]

    def _backward(self, batch: torch.Tensor) -> torch.Tensor:
        self.began.append(self.clock())
        return super()._backward(batch)


class Ours:
    """Clients of the back end, one per core."""

    def __init__(self, name: str, model: SparseModel, by_rule: bool, cores: int = 1) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(STEPS * BATCH, *SHAPE)).astype(np.float32)
        self.samples = Samples.on(CPU, x, rng.integers(0, CLASSES[name], len(x)))
        self.training = RunConfig(batch_size=BATCH, lr=1e-3, momentum=0.9, epochs=EPOCHS, augment="none")
        self.backend = Sparse(Setup(lambda: network(name), self.samples, self.training, CPU))
        self.model, self.by_rule, self.cores = model, by_rule, cores
        self.flat = self.backend._setup.flat()

    def __call__(self) -> list[float]:
        """Some epochs; the seconds of each step but a client's last, divided by the number of clients."""
        mine = np.arange(len(self.samples.y))
        workers = [Stamped(self.flat, self.samples, mine, self.training, 1, k) for k in range(self.cores)]
        for worker in workers:
            worker.began, worker.clock = [], clock_of(self.cores)
        with nullcontext() if self.by_rule else self.backend.kernels_only():
            self.backend.fit(workers, [Fit(self.model)] * self.cores)
        return (np.concatenate([np.diff(worker.began) for worker in workers]) / self.cores).tolist()


def clock_of(cores: int) -> Callable[[], float]:
    """The thread's own processor time; of several threads, the time of day."""
    return time.thread_time if cores == 1 else time.perf_counter


def timed(call: Callable[[], None], times: int, cores: int = 1) -> float:
    """Seconds per call."""
    clock = clock_of(cores)
    began = clock()
    for _ in range(times):
        call()
    return (clock() - began) / times


def compare(name: str, sparsities: list[float], args: argparse.Namespace) -> None:
    """Medians of all sides, and ratios within turns."""
    theirs = {"default": torch_step(name, False, False), "channels last": torch_step(name, True, False)}
    if args.compile:
        theirs["compile"] = torch_step(name, False, True)
        theirs["compile, channels last"] = torch_step(name, True, True)
    for sparsity in sparsities:
        model = pruned(name, sparsity, args.uniform, args.model)
        if args.sparseprop:
            theirs["sparseprop"] = sparseprop_step(name, model)
        ours = Ours(name, model, by_rule=True, cores=args.cores)
        ours()
        for step in theirs.values():
            step()
        rows = []
        for _ in range(args.turns):
            sides = [[timed(step, 1, args.cores) for _ in range(STEPS)] for step in theirs.values()]
            rows.append([np.quantile(steps, args.quantile) for steps in (*sides, ours())])
        table = np.array(rows) * 1e3
        ratios = [median(table[:, k] / table[:, -1]) for k in range(len(theirs))]
        columns = "  ".join(
            f"{side} {median(table[:, k]):.1f} ms ({ratio:.2f}×)"
            for k, (side, ratio) in enumerate(zip(theirs, ratios, strict=True))
        )
        how = "kernels" if ours.backend.takes(ours.model) else "autograd"
        best = median(table[:, :-1].min(1) / table[:, -1])
        line = f"ours {median(table[:, -1]):.1f} ms by {how}  best {best:.2f}×"
        print(f"{name} {sparsity:.2f}  {columns}  {line}", flush=True)


def layers(name: str, sparsity: float, turns: int) -> None:
    """Every row of the program."""
    ours = Ours(name, pruned(name, sparsity), by_rule=False)
    ours()
    program = ours.backend._programs[0]
    peak = fma_gflops()
    images, logits = np.zeros((BATCH, *SHAPE), np.float32), np.zeros((BATCH, CLASSES[name]), np.float32)
    program._given[0], program._given_back[0] = images.ctypes.data, logits.ctypes.data  # the last step's are gone
    spent = np.array([[_row_time(program, k) for k in range(len(program.table))] for _ in range(turns)])
    total = 0.0
    for k, row in enumerate(program.table):
        ms = median(spent[:, k]) * 1e3
        total += ms
        if ms < 0.01:
            continue
        op, share = OPERATIONS[row["op"]], ""
        if row["blocks"]:
            numbers = (ctypes.c_int32 * int(row["blocks"] * row["channels"])).from_address(int(row["counts"]))
            survivors = int(np.ctypeslib.as_array(numbers).sum())
            pixels = int(row["groups"] * row["rows"] * row["columns"]) * program.planes.vector // 4
            flops = 2.0 * survivors * pixels
            share = f"{survivors:8d} survivors {flops / ms / 1e6 / peak:5.0%} of peak"
        print(f"{k:3d} {op:16s} {row['channels']:4d} × {row['rows']:2d} × {row['columns']:2d} {ms:8.3f} ms {share}")
    print(f"{name} {sparsity}: {total:.2f} ms in kernels, peak {peak:.0f} GFLOP/s in registers")


def _row_time(program: Any, k: int) -> float:
    return timed(lambda: program._run(program.table.ctypes.data + k * ROW.itemsize, 1), 1)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["cnn"], choices=[*CLASSES])
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0, 0.8, 0.9, 0.95, 0.99])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--cores", type=int, default=1, help="threads of PyTorch, and clients of ours")
    parser.add_argument("--quantile", type=float, default=0.5, help="of the single steps of a turn, on all sides")
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    parser.add_argument("--uniform", action="store_true", help="the same sparsity in all convolutions but the first")
    parser.add_argument("--model", default="", help="masks keep the largest weights of this .fsz")
    parser.add_argument("--sparseprop", action="store_true", help="also SparseProp")
    parser.add_argument("--layers", action="store_true", help="every kernel of a step")
    args = parser.parse_args()
    torch.set_num_threads(args.cores)
    for name in args.networks:
        if args.layers:
            for sparsity in args.sparsities:
                layers(name, sparsity, args.turns)
        else:
            compare(name, args.sparsities, args)


if __name__ == "__main__":
    main()
