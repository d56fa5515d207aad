"""One model on the held-out samples of many clients.

In: a model, and which samples each client holds out. Out: one `Evaluation` per client. All samples are evaluated in
large batches, whoever holds them; only then are they summed by client.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from ..data.partition import Indices
from ..model import SparseModel
from .flat import FlatModule
from .worker import Evaluation, Samples, evaluation_batch


@torch.no_grad()
def evaluate_clients(
    network: FlatModule, model: SparseModel, samples: Samples, held: Mapping[int, Indices]
) -> dict[int, Evaluation]:
    """Client → accuracy and mean loss of a model on the samples that the client holds out."""
    network.load(model)
    network.module.eval()
    rows = torch.from_numpy(np.concatenate(list(held.values()))).to(network.device)
    found = []
    for batch in torch.split(rows, evaluation_batch(network, samples)):
        x, y = samples.x[batch], samples.y[batch]
        if network.device.type == "cuda" and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        logits = network.logits(x)
        loss = nn.functional.cross_entropy(logits, y, reduction="none")
        found.append(torch.stack([(logits.argmax(1) == y).double(), loss.double()]))
    # Summed on the host: a GPU adds by index in no fixed order, and a resumed run must end with the same bytes.
    values = torch.cat(found, 1).cpu().numpy()  # (2, samples)
    sizes = [part.size for part in held.values()]
    sums = np.add.reduceat(values, np.cumsum([0, *sizes[:-1]]), axis=1)
    return {
        client: Evaluation(float(right) / size, float(loss) / size)
        for client, size, right, loss in zip(held, sizes, *sums, strict=True)
    }
