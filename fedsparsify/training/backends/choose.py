"""Which back end trains a network, and the comparison with autograd that it must pass.

In: a `Setup`. Out: the first back end of `BACKENDS` that takes the network and trains it as autograd does.
"""

from __future__ import annotations

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
    reason = None
    for probe in range(PROBES):
        try:
            reason = _difference(backend, setup, probe)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError, IndexError) as error:
            return (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        if reason is None:
            return None
    return reason


def _difference(backend: Backend, setup: Setup, probe: int) -> str | None:
    """Train two clients for one epoch, by the back end and by autograd, and compare."""
    training, rng = setup.training, np.random.default_rng([0xC4EC, probe])
    count = min(training.batch_size, 16) if setup.device.type == "cuda" else min(training.batch_size, 8) + 3
    network = FlatModule(setup.make(), torch.device("cpu"))  # autograd in float32, whatever the device is
    start = SparseModel.dense(network.layout, network.values())
    start = start.under(rng.random(start.layout.trainable) < 0.75)
    labels = setup.samples.y.cpu().numpy()
    order = rng.permutation(len(labels))
    if labels.ndim == 1:
        # Samples of one class first: their gradients do not cancel out, which would leave little but rounding.
        order = order[np.argsort(labels[order] != labels[order[0]], kind="stable")]
    parts, fits = [order[:count]] * 2, [Fit(start, epochs=1)] * 2  # each client has its own order of them
    expected = [
        Worker(network, _on_cpu(setup.samples, mine), np.arange(mine.size), training, probe, client).answer(fit)
        for client, (mine, fit) in enumerate(zip(parts, fits, strict=True))
    ]
    lent = setup.flat()
    workers = [Worker(lent, setup.samples, mine, training, probe, client) for client, mine in enumerate(parts)]
    with backend.kernels_only() if isinstance(backend, Sparse) else nullcontext():
        received = backend.fit(workers, fits)
    rounding = ROUNDING["cpu" if setup.device.type == "cpu" else training.precision]
    for mine, theirs in zip(received, expected, strict=True):
        if reason := _compare(start, mine, theirs, *rounding):
            return reason
    return None


def _on_cpu(samples: Samples, mine: Indices) -> Samples:
    picked = torch.from_numpy(mine).to(samples.y.device)
    x = samples.x[picked]
    return Samples(x.map(torch.Tensor.cpu) if isinstance(x, Inputs) else x.cpu(), samples.y[picked].cpu())


def _compare(
    start: SparseModel, received: Update, expected: Update, rounding: float, loss_rounding: float
) -> str | None:
    before = start.host_weights
    with np.errstate(invalid="ignore"):  # of a model that diverged
        mine, theirs = (update.model.host_weights - before for update in (received, expected))
    if not np.isfinite(theirs).all():
        return None  # the run diverges at once, and says so
    if not abs(received.loss - expected.loss) <= loss_rounding * (1 + abs(expected.loss)):
        return f"its loss is {received.loss:.4g} where autograd's is {expected.loss:.4g}"
    for part in (slice(0, start.layout.trainable), slice(start.layout.trainable, None)):
        whole = _norm(theirs[part])
        for name, place in start.layout.slices.items():
            if not part.start <= place.start < (part.stop or before.size):
                continue
            least = 1e-6 * _norm(before[place])  # the precision of float32
            gap, size = _norm(mine[place] - theirs[place]), _norm(theirs[place])
            if not gap <= rounding * max(size, SMALL * whole) + least:
                return f"its update of {name!r} differs from autograd's by {gap / max(size, 1e-30):.2g} of it"
    return None


def _norm(values: Floats) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))  # a diverging model's would overflow float32
