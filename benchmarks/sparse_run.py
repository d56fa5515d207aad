"""A whole run to a sparsity, shortened: each round trained by our back end, and again by autograd from the same model.

    FEDSPARSIFY_DATA=DIR python benchmarks/sparse_run.py [--network cnn] [--rounds 10] [--steps 14] [--final 0.95]
    … --like results/models/cifar10-cnn-0.95.fsz

Real pictures, two clients on two cores, FedSparsify-Global with its cubic schedule over `--rounds`. Sides take turns,
round by round. Autograd is the back end's own, with channels last; its answers are dropped. Seconds are of the clients'
training, with what a round does once: new streams, loaded models; `--cpu-time` takes processor time, for one core of a
busy machine. A short run has more than its share of dense rounds: the last line has the sum over the sparsities of 200
rounds, each interpolated between the rounds that were measured. Its weights have hardly left their initial values, so
that purges of the smallest ones keep other layers than a run of 200 rounds does. `--like FILE` purges within layers, to
densities between 1 and those of a model that was trained for long. `--save` keeps the last model, for
`sparse_training.py --model`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sparse_training import densities_between

from fedsparsify import METHODS, RunConfig, load, save
from fedsparsify.data import Dataset, load_dataset
from fedsparsify.federation.simulated import Simulated
from fedsparsify.model import SparseModel
from fedsparsify.training.backends.sparse import Sparse

BATCH = 32
CLIENTS = 2
DATA = {"cnn": "cifar10", "vgg16": "cifar100", "resnet18": "cifar10"}


def federation(config: RunConfig, data: Dataset, by_autograd: bool) -> Simulated:
    """Both clients, trained by the sparse back end or by its autograd alone."""
    made = Simulated(config, data)
    backend = made.environment.cohort.backend
    assert isinstance(backend, Sparse), backend.name
    if by_autograd:
        backend.takes = lambda *_: False  # type: ignore[method-assign]
    return made


def purged_like(known: SparseModel, model: SparseModel, sparsity: float) -> SparseModel:
    """The largest weights of every layer, at densities on the way to those of a known model."""
    kept, sizes = np.zeros(model.layout.trainable, bool), abs(model.host_weights[: model.layout.trainable])
    for place, density in densities_between(known, sparsity):
        kept[place] = sizes[place] >= np.quantile(sizes[place], 1 - density)
    return model.under(kept)


def main() -> None:
    """Print seconds of every round, and the ratio of their sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="cnn", choices=[*DATA])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=14, help="of each client per round")
    parser.add_argument("--final", type=float, default=0.95)
    parser.add_argument("--like", help="an .fsz whose layers' densities the purges approach")
    parser.add_argument("--cpu-time", action="store_true", help="processor time; as long as it runs on one core")
    parser.add_argument("--save", help="where the last model goes, as .fsz")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    whole = load_dataset(DATA[args.network])
    picked = np.random.default_rng(0).permutation(len(whole.y_train))[: CLIENTS * args.steps * BATCH]
    data = Dataset(whole.name, whole.x_train[picked], whole.y_train[picked], whole.x_test[:200], whole.y_test[:200])
    config = RunConfig(
        data=whole.name,
        network=args.network,
        rounds=args.rounds,
        clients=CLIENTS,
        sparsity=args.final,
        epochs=1,
        batch_size=BATCH,
        lr=0.01,
        momentum=0.75,
        augment="none",
        split="iid",
    )
    merging = METHODS["fedavg"]() if args.like else config.method  # FedAvg leaves the purge to us
    sides = [federation(config, data, by_autograd) for by_autograd in (False, True)]
    model, rng = sides[0].initial(), np.random.default_rng(0)
    for side in sides:
        list(side.ask(config.method, 1, model))
    seconds: list[list[float]] = []
    sparsities: list[float] = []
    for round in range(1, args.rounds + 1):
        row, updates = [], []
        for side in sides:
            began = clock()
            updates.append(list(side.ask(config.method, round, model)))
            row.append(clock() - began)
        seconds.append(row)
        sparsities.append(model.sparsity)
        times = f"ours {row[0]:.2f} s  autograd {row[1]:.2f} s"
        print(f"round {round:3d}  sparsity {model.sparsity:.3f}  {times}", flush=True)
        model = merging.merge(round, model, iter(updates[0]), rng)
        if args.like:
            passed = (round - 1) / (args.rounds - 1)
            model = purged_like(load(args.like), model, args.final * (1 - (1 - passed) ** 3))
    if args.save:
        save(args.save, model)
    ours, theirs = np.sum(seconds, 0)
    print(f"{args.network} to {args.final}: ours {ours:.1f} s, autograd {theirs:.1f} s, {theirs / ours:.2f}×")
    passed = np.linspace(0, 1, 200)
    schedule = np.r_[0, args.final * (1 - (1 - passed) ** 3)[:-1]]  # of the model that a round starts from
    ours, theirs = (np.interp(schedule, sparsities[1:], times[1:]).sum() for times in np.transpose(seconds))
    print(f"over the sparsities of 200 rounds: {theirs / ours:.2f}×")


if __name__ == "__main__":
    main()
