"""Which classifiers of torchvision and timm have a graph, a file, an engine and an ONNX model, and how near they come.

    python benchmarks/network_coverage.py [--timm] [--quick] [--out coverage.md] [network …]

For each network, with random weights of which a share is pruned at random: it is traced, saved and read again; the
engine's logits and those of ONNX Runtime (of the exported file) are compared with PyTorch's. A number is the largest
difference, as a share of the largest logit. Images have 64 pixels per side where the network allows it.

--quick leaves the file and ONNX Runtime out: graph and engine are compared with PyTorch, and PyTorch with itself in
float64. Smallest networks come first. "images" is the largest difference between the logits of the two images, on the
same scale: where it is near 0, the pruned network is constant and its row says nothing.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from pruned_models import initialise
from torch import nn
from torchvision_models import models

from fedsparsify.engines import Subject, installed
from fedsparsify.errors import FedSparsifyError
from fedsparsify.export.onnx import write_onnx
from fedsparsify.inference import Engine
from fedsparsify.networks import model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.wire.artefact import save

SPARSITIES = (0.0, 0.9, 0.99)
LEAST = {"inception_v3": 160, "maxvit": 224}  # pixels per side, by the beginning of a name
MOST_WEIGHTS = 150_000_000  # larger networks are left out
LIMIT = 1e-4
TIMM = (
    *("resnet18.a1_in1k", "resnet34.a1_in1k", "resnet50.a1_in1k", "mobilenetv3_small_100", "mobilenetv3_large_100"),
    *("efficientnet_b0", "efficientnet_lite0", "tf_efficientnet_b0", "tf_efficientnetv2_b0", "mobilenetv2_100"),
    *("regnety_002", "regnetx_002", "convnext_atto", "convnext_femto", "convnextv2_atto", "ghostnet_100"),
    *("mnasnet_100", "fbnetc_100", "semnasnet_075", "hardcorenas_a", "spnasnet_100", "lcnet_050", "tinynet_e"),
    *("densenet121", "dla34", "hrnet_w18_small", "repvgg_a0", "vovnet39a", "ese_vovnet19b_dw", "cspresnet50"),
    *("rexnet_100", "skresnet18", "seresnet50", "ecaresnet26t", "resnest14d", "res2net50_26w_4s", "inception_v3"),
    *("edgenext_xx_small", "mobileone_s0", "fastvit_t8", "mobilevit_xxs", "levit_128s", "deit_tiny_patch16_224"),
    *("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "poolformer_s12", "mixer_s32_224", "efficientformer_l1"),
)


def side_of(name: str, timm: bool) -> int:
    """Pixels per side of an image."""
    if timm:
        fixed = ("vit", "deit", "swin", "mixer", "levit", "mobilevit", "efficientformer", "fastvit", "edgenext")
        return 256 if "mobilevit" in name or "fastvit" in name else 224 if name.startswith(fixed) else 64
    return next((side for begin, side in LEAST.items() if name.startswith(begin)), 64)


def made(name: str, timm: bool, side: int) -> nn.Module:
    """A network with random weights, and statistics as batch norms have them after training."""
    torch.manual_seed(1)
    if timm:
        import timm as library

        module: nn.Module = library.create_model(name, pretrained=False)
    else:
        words: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        if name.startswith("vit_"):
            words["image_size"] = side
        module = models().get_model(name, weights=None, **words)
    initialise(module)
    return module.eval()


@torch.no_grad()
def settle(module: nn.Module, x: torch.Tensor) -> None:
    """Let batch norms take the statistics of a batch, as deep networks of random weights overflow without them."""
    norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    module(x)
    for norm in norms:
        norm.eval()
        if norm.running_var is not None:
            norm.running_var.add_(1e-3)


@torch.no_grad()
def prune(module: nn.Module, sparsity: float) -> None:
    """Remove weights at random and keep each layer's norm; biases, scales and embeddings stay.

    Without the norm, layers that no batch norm follows would fade, and deep networks be constant. Equal seeds nest
    the masks of growing sparsities.
    """
    key = torch.Generator().manual_seed(2)
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.ndim > 1 and sparsity:
            norm = weight.norm()
            weight[torch.rand(weight.shape, generator=key) < sparsity] = 0
            weight.mul_(norm / weight.norm().clamp_min(1e-12))


def row(name: str, timm: bool, sparsities: Sequence[float], quick: bool, side: int) -> list[str]:
    """The row of a network: its graph, the differences by sparsity, those of the check, and how long tracing took."""
    module = made(name, timm, side)
    weights = sum(parameter.numel() for parameter in module.parameters())
    if weights > MOST_WEIGHTS:
        return [name, f"left out: {weights:,} weights"]
    x = torch.randn(8, 3, side, side)
    started = perf_counter()
    try:
        graph = trace(module, sample=(3, side, side))
    except FedSparsifyError as error:
        return [name, f"no graph: {error}"]
    took, cells = perf_counter() - started, []
    with TemporaryDirectory() as folder:
        path, onnx = Path(folder, "model.fsz"), Path(folder, "model.onnx")
        for sparsity in sparsities:
            prune(module, sparsity)
            settle(module, x)
            with torch.no_grad():
                expected = module(x[:2]).numpy()
            try:
                if quick:
                    engine = Engine(model_of(module), 1, graph)
                else:
                    save(path, model_of(module), {"graph": [node.to_json() for node in graph]})
                    engine = Engine(path, 1)
                received = engine.run(x[:2].numpy())
            except FedSparsifyError as error:
                return [name, str(len(graph)), f"no engine: {error}"]
            cells.append(_difference(received, expected))
        if quick:
            with torch.no_grad():
                exact = module.double()(x[:2].double()).numpy()
            apart = float(np.abs(exact[0] - exact[1]).max() / np.abs(exact).max())
            cells += [_difference(received, exact), _difference(expected, exact), f"{apart:.0e}"]
        else:
            write_onnx(onnx, model_of(module), {"shape": [3, side, side]}, graph)
            run = installed()["onnxruntime"](Subject(path, onnx, 2, 1))
            cells.append(_difference(run(x[:2].numpy()), expected))
    return [name, str(len(graph)), f"{side}", *cells, f"{took:.1f}"]


def weights_of(name: str) -> int:
    """Weights of a classifier of torchvision, as it states them."""
    return int(next(iter(models().get_model_weights(name))).meta["num_params"])


def _difference(received: Any, expected: Any) -> str:
    found = float(np.abs(received - expected).max() / max(float(np.abs(expected).max()), 1e-30))
    return f"{found:.0e}" + ("" if found <= LIMIT else " ✗")


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--timm", action="store_true")
    parser.add_argument("--sparsity", type=float, action="append", help="instead of 0, 0.9 and 0.99")
    parser.add_argument("--quick", action="store_true", help="neither file nor ONNX Runtime; float64 instead")
    parser.add_argument("--size", type=int, help="pixels per side, instead of 64 or the least of a network")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = words.networks or (TIMM if words.timm else sorted(models().list_models(module=models()), key=weights_of))
    sparsities = words.sparsity or SPARSITIES
    checks = ["engine, float64", "PyTorch, float64", "images"] if words.quick else ["ONNX Runtime"]
    heads = ["network", "nodes", "pixels", *(f"{sparsity:g}" for sparsity in sparsities), *checks, "traced, s"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name in names:
        side = words.size or side_of(name, words.timm)
        try:
            cells = row(name, words.timm, sparsities, words.quick, side)
        except Exception as error:  # a network that cannot be made must not end the table
            cells = [name, f"failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}"]
        cells += [""] * (len(heads) - len(cells))
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if words.out:
            words.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
