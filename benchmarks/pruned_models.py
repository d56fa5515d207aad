"""Stand-ins for trained models: normal weights of He's width, the smallest of all layers together set to zero.

Trained weights are nearly normal too, and layers differ in width as here; uniform initial weights would leave the
deep layers empty at high sparsity. Real model files replace these wherever there are any.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedsparsify.networks import build, model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.scores import keep_top
from fedsparsify.wire.artefact import save

NETWORKS = {"fc": ((1, 28, 28), 10), "cnn": ((3, 32, 32), 10), "vgg16": ((3, 32, 32), 100)}


def write_model(name: str, sparsity: float, folder: Path) -> Path:
    """A pruned model file of one of the paper's networks; made once."""
    path = folder / f"{name}-{sparsity:g}.fsz"
    if path.exists():
        return path
    shape, classes = NETWORKS[name]
    module = build(name, shape, classes, seed=1990)
    initialise(module)
    write_pruned(module, sparsity, path)
    return path


def initialise(module: nn.Module) -> None:
    """Normal weights of He's width; batch norms and layer scales as after some training."""
    key = torch.Generator().manual_seed(1990)
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(layer.weight, 0, (2 / layer.weight[0].numel()) ** 0.5, generator=key)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, 0, 0.05, generator=key)
        elif isinstance(layer, nn.MultiheadAttention):
            nn.init.normal_(layer.in_proj_weight, 0, (2 / layer.embed_dim) ** 0.5, generator=key)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.7, 1.3, generator=key)
            nn.init.uniform_(layer.running_var, 0.7, 1.4, generator=key)
    for name, parameter in module.named_parameters():
        if name.endswith("layer_scale"):  # begins at 1e-6, with which a wrong block would not be seen
            nn.init.uniform_(parameter, 0.1, 0.5, generator=key)


def write_pruned(module: nn.Module, sparsity: float, path: Path, sample: tuple[int, ...] | None = None) -> None:
    """The module's largest weights, over all layers together, as a model file."""
    model = model_of(module.eval())
    scores = abs(model.trainable_weights)
    for spec in model.layout.tensors:  # engines fold biases and norms, and add embeddings: only kernels are pruned
        if len(spec.shape) == 1 or not spec.name.endswith("weight"):
            scores[model.layout.slices[spec.name]] = float("inf")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(
        path,
        model.under(keep_top(scores, sparsity)),
        {"graph": [node.to_json() for node in trace(module, sample=sample)]},
    )
