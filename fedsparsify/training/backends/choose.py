"""Which back end trains a network, and the comparison with autograd that it must pass.

In: a `Setup`. Out: the first back end of `BACKENDS` that takes the network and trains it as autograd does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch

from ...data.inputs import Inputs
from ...data.partition import Indices
from ...methods import Fit, Update
from ...model import Floats, SparseModel
from ...notices import notice
from ..flat import FlatModule
from ..inputs import Samples
from ..settings import Training
from ..worker import Worker
from .autograd import OneByOne, Threads
from .base import Backend, Setup
from .native import Native
from .sparse import Sparse
from .stacked import Dense, Gpu, Mapped

BACKENDS: tuple[type[Backend], ...] = (Native, Sparse, Gpu, Dense, Mapped, Threads, OneByOne)  # fastest first
BY_AUTOGRAD: tuple[type[Backend], ...] = (Threads, OneByOne)  # on the module itself
# The largest difference from autograd's, of a tensor's update and of the loss, relative to them. On a CPU, products in
# another order. On a GPU, thirteen layers amplify the rounding of their products: for vgg16 of noise, updates of the
# first layer were measured to differ by 0.01 in fp32, 0.2 in tf32 and 0.5 in bf16. Another network differs by about 1.
ROUNDING = {"cpu": (1e-3, 1e-4), "fp32": (5e-2, 1e-3), "tf32": (0.4, 1e-2), "bf16": (0.8, 5e-2)}
SMALL = 1e-2  # a tensor whose update is a smaller share of all updates is compared as if it had this share
PROBES = 2  # rounding may decide whether a ReLU is active in one comparison, hardly in two
# In deep networks rounding decides about some of millions of ReLUs in every comparison, and one decision may move an
# update by 0.01. How far it does so is measured where updates differ: autograd trains again from weights that are
# nudged by a few units in their last place. Twice the largest move counts as rounding, too, up to a limit.
NUDGE, NUDGES = 2.0**-20, 4  # relative size; how many times
DECISIONS, MOST_BY_DECISIONS = 2.0, 0.05


def choose(setup: Setup, autograd: bool = False) -> Backend:
    """The first back end that takes the network and trains it as autograd does; or that trains it by autograd."""
    for kind in BACKENDS:
        if (autograd and kind not in BY_AUTOGRAD) or kind.refusal(setup) is not None:
            continue
        backend = kind(setup)
        reason = _checked(kind, backend, setup) if backend.checked else None
        if reason is None:
            return backend
        notice(f"this network is not trained by the {backend.name} back end: {reason}. A slower one takes its place.")
    raise AssertionError("the last back end takes every network")


def _checked(kind: type[Backend], backend: Backend, setup: Setup) -> str | None:
    """How a back end's gradients differ from autograd's; None where they do not.

    Adam's first steps have the size of the learning rate wherever the gradient is not zero, be it nothing but rounding
    (as that of a bias before a batch norm). So the network is compared by SGD.
    """
    if setup.training.optimizer == "sgd":
        return disagreement(backend, setup)
    plain = replace(setup.training, optimizer="sgd", lr=0.01, weight_decay=0.0)
    by_sgd = replace(setup, training=plain)
    return disagreement(kind(by_sgd), by_sgd)


def disagreement(backend: Backend, setup: Setup) -> str | None:
    """How a back end's training differs from autograd's on the module itself; None where it does not."""
    usual = replace(setup.training, fixed_norms=0.0)
    fixed = [replace(setup.training, fixed_norms=1.0)] if setup.training.fixed_norms else []
    reasons = (_disagreement(backend, setup, training) for training in (usual, *fixed))
    return next((reason for reason in reasons if reason is not None), None)


def _disagreement(backend: Backend, setup: Setup, training: Training) -> str | None:
    reason = None
    for probe in range(PROBES):
        try:
            reason = _difference(backend, setup, training, probe)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError, IndexError) as error:
            return (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        if reason is None:
            return None
    return reason


def _difference(backend: Backend, setup: Setup, training: Training, probe: int) -> str | None:
    """Train two clients for one epoch, by the back end and by autograd, and compare."""
    rng = np.random.default_rng([0xC4EC, probe])
    count = min(training.batch_size, 16) if setup.device.type == "cuda" else min(training.batch_size, 8) + 3
    network = FlatModule(setup.make(), torch.device("cpu"))  # autograd in float32, whatever the device is
    start = SparseModel.dense(network.layout, network.values())
    start = start.under(rng.random(start.layout.trainable) < 0.75)
    labels = setup.samples.y.cpu().numpy()
    order = rng.permutation(len(labels))
    if labels.ndim == 1:
        # Samples of one class first: their gradients do not cancel out, which would leave little but rounding.
        order = order[np.argsort(labels[order] != labels[order[0]], kind="stable")]
    mine = order[:count]
    picked = _on_cpu(setup.samples, mine)

    def by_autograd(model: SparseModel, client: int) -> Update:
        worker = Worker(network, picked, np.arange(mine.size), training, probe + 1, client)
        return worker.answer(Fit(model, epochs=1))

    expected = [by_autograd(start, client) for client in range(2)]  # each client has its own order of the samples
    lent = setup.flat()
    workers = [Worker(lent, setup.samples, mine, training, probe + 1, client) for client in range(2)]
    with backend.kernels_only() if isinstance(backend, Sparse) else nullcontext():
        received = backend.fit(workers, [Fit(start, epochs=1)] * 2)
    rounding, loss_rounding = ROUNDING["cpu" if setup.device.type == "cpu" else training.precision]
    pairs = list(zip(received, expected, strict=True))
    if all(_compare(start, *pair, rounding, loss_rounding) is None for pair in pairs):
        return None
    decided = _by_decisions(start, expected[0], lambda model: by_autograd(model, 0), rng)
    reasons = (_compare(start, *pair, rounding, loss_rounding, decided) for pair in pairs)
    return next((reason for reason in reasons if reason is not None), None)


def _by_decisions(
    start: SparseModel, expected: Update, train: Callable[[SparseModel], Update], rng: np.random.Generator
) -> float:
    """How far rounding may move autograd's own update of a tensor: measured from weights that are nudged."""
    moved = 0.0
    for _ in range(NUDGES):
        factors = 1 + NUDGE * rng.standard_normal(start.layout.trainable).astype(np.float32)
        weights = start.host_weights.copy()
        weights[: factors.size] *= factors
        nudged = start.with_weights(weights, True)
        update = train(nudged)
        if not np.isfinite(update.model.host_weights).all():
            return 0.0
        shares = _shares(_moves(nudged, update), _moves(start, expected), start)
        moved = max(moved, *(shares[spec.name] for spec in start.layout.tensors))
    return min(DECISIONS * moved, MOST_BY_DECISIONS)


def _on_cpu(samples: Samples, mine: Indices) -> Samples:
    picked = torch.from_numpy(mine).to(samples.y.device)
    x = samples.x[picked]
    return Samples(x.map(torch.Tensor.cpu) if isinstance(x, Inputs) else x.cpu(), samples.y[picked].cpu())


def _compare(
    start: SparseModel, received: Update, expected: Update, rounding: float, loss_rounding: float, decided: float = 0.0
) -> str | None:
    """How an update differs from the one expected; trainable tensors may differ by `decided`, if that is more."""
    mine, theirs = (_moves(start, update) for update in (received, expected))
    if not np.isfinite(theirs).all():
        return None  # the run diverges at once, and says so
    if not abs(received.loss - expected.loss) <= loss_rounding * (1 + abs(expected.loss)):
        return f"its loss is {received.loss:.4g} where autograd's is {expected.loss:.4g}"
    trainable = {spec.name for spec in start.layout.tensors}
    for name, share in _shares(mine, theirs, start).items():
        if not share <= (max(rounding, decided) if name in trainable else rounding):
            return f"its update of {name!r} differs from autograd's by {share:.2g} of it"
    return None


def _moves(start: SparseModel, update: Update) -> Floats:
    """By how much an update moved the model it started from."""
    with np.errstate(invalid="ignore"):  # of a model that diverged
        return update.model.host_weights - start.host_weights


def _shares(mine: Floats, theirs: Floats, start: SparseModel) -> dict[str, float]:
    """Of every tensor: how far two updates are apart, beyond the precision of float32, relative to the second."""
    split, before, found = start.layout.trainable, start.host_weights, {}
    wholes = _norm(theirs[:split]), _norm(theirs[split:])
    for name, place in start.layout.slices.items():
        gap = _norm(mine[place] - theirs[place]) - 1e-6 * _norm(before[place])
        size = max(_norm(theirs[place]), SMALL * wholes[place.start >= split])
        found[name] = gap / size if size > 0 else 0.0 if gap <= 0 else np.inf
    return found


def _norm(values: Floats) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))  # a diverging model's would overflow float32
