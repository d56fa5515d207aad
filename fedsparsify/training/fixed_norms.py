"""Batch norms that normalise by the model's running statistics while the network is trained.

The batches of clients whose samples differ have other moments: each client trains under its own normalisation, and the
averaged model is used under none of these. With statistics that all clients share, each gradient is one of the model
that the server averages (FixBN: Zhong, Chen and Chao, "Making Batch Normalization Great in Federated Deep Learning",
2023).
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class KernelNorms(nn.Module):
    """Stands in a module for the batch norms that kernels compute: in its eval mode they take running statistics."""


def set_training(module: nn.Module, fixed_norms: bool) -> None:
    """Put a module into training mode; with `fixed_norms`, all of it but its batch norms."""
    module.train()
    for part in module.modules() if fixed_norms else ():
        if isinstance(part, _BatchNorm | KernelNorms):
            part.eval()


def why_not_fixed(module: nn.Module) -> str | None:
    """Why `set_training` fixes none of a module's norms, or not all; None where it does."""
    norms = [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm)]
    for name, part in norms:
        if part.running_mean is None:
            return f"{name!r} ({type(part).__name__}) keeps no running statistics"
    for name, part in module.named_modules():
        if "running_mean" in part._buffers and not isinstance(part, _BatchNorm):
            return f"{name!r} ({type(part).__name__}) keeps running statistics, but is no batch norm of PyTorch's"
    return None if norms else "it has no batch norm"
