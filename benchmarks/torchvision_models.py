"""Classifiers of torchvision at 224 pixels: normal weights of He's width, pruned over all layers together.

Weights are random, so that sparsity by layer is that of magnitude pruning at the start, not of a trained network.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
from pruned_models import initialise, write_pruned

SHAPE = (3, 224, 224)
NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "regnet_x_400mf",
    "convnext_tiny",
    "vit_b_16",
)
OPERATORS = ("nms", "qnms")  # that torchvision's Python code expects of its compiled part, which CPU builds may lack


def write_torchvision_model(name: str, sparsity: float, folder: Path) -> Path:
    """A pruned model file of one of torchvision's networks; made once."""
    path = folder / f"{name}-{sparsity:g}.fsz"
    if not path.exists():
        torch.manual_seed(1990)
        module = getattr(models(), name)().eval()
        initialise(module)
        write_pruned(module, sparsity, path, SHAPE)
    return path


def models() -> ModuleType:
    """torchvision.models, also where its compiled operators, which no classifier uses, do not match this torch."""
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    found: ModuleType = torchvision.models
    return found
