"""One model on the held-out samples of many clients.

In: a model, and which samples each client holds out. Out: one `Evaluation` per client. All samples are evaluated in
large batches, independent of the client; only then are they divided by client.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from ..data.partition import Indices
from ..model import SparseModel
from .flat import FlatModule
from .objective import Evaluation, Objective
from .worker import Samples, evaluation_batch


@torch.no_grad()
def evaluate_clients(
    network: FlatModule,
    model: SparseModel,
    samples: Samples,
    held: Mapping[int, Indices],
    objective: Objective | None = None,
) -> dict[int, Evaluation]:
    """Client → accuracy, mean loss and further metrics of a model on the samples that the client holds out."""
    objective = objective or Objective()
    network.load(model)
    network.module.eval()
    rows = torch.from_numpy(np.concatenate(list(held.values()))).to(network.device)
    targets, counts = samples.y[rows], False
    by_sample = objective.summed and targets.ndim == 1  # whether every sample has a loss of its own
    right, losses, outputs = [], [], []
    for batch in torch.split(rows, evaluation_batch(network, samples)):
        x, y = samples.x[batch], samples.y[batch]
        if network.device.type == "cuda" and isinstance(x, torch.Tensor) and x.ndim == 4 and x.is_floating_point():
            x = x.contiguous(memory_format=torch.channels_last)
        output = network.logits(x)
        if by_sample:
            losses.append(cross_entropy(output, y, reduction="none"))
        if counts := objective.has_accuracy(output):
            right.append((output.argmax(1) == y).reshape(len(y), -1).double().mean(1))
        if objective.metrics or not by_sample:
            outputs.append(output.float().cpu())
    sizes = [part.size for part in held.values()]
    accuracies = _means(right, sizes) if counts else None
    means = _means(losses, sizes) if by_sample else None
    whole, target = torch.cat(outputs) if outputs else None, targets.cpu() if outputs else targets
    found = {}
    for place, (client, end) in enumerate(zip(held, accumulate(sizes), strict=True)):
        mine = slice(end - sizes[place], end)
        measured = {} if whole is None else {one.name: one(whole[mine], target[mine]) for one in objective.metrics}
        if means is not None:
            loss = float(means[place])
        else:
            assert whole is not None
            loss = float(objective.total(whole[mine], target[mine])) / sizes[place]
        accuracy = measured.pop("accuracy", None)
        found[client] = Evaluation(accuracy if accuracies is None else float(accuracies[place]), loss, measured)
    return found


def _means(values: list[torch.Tensor], sizes: list[int]) -> NDArray[np.float64]:
    """The mean of each client's values, in float64.

    They are summed on the host: a GPU adds by index in no fixed order, and a resumed run must end with the same bytes.
    """
    sums = np.add.reduceat(torch.cat(values).double().cpu().numpy(), [0, *accumulate(sizes[:-1])])
    return np.asarray(sums / np.asarray(sizes), np.float64)
