"""Which classifiers of torchvision and timm have a graph, a file, an engine and an ONNX model, and how near they come.

    python benchmarks/network_coverage.py [--timm] [--results coverage.json] [--out coverage.md] [network …]

For each network, with random weights of which a share of each kernel is pruned at random: it is traced, and the
engine's logits are compared with PyTorch's. A number is the largest difference, as a share of the largest logit. At a
sparsity of 0.9 the engine reads the model's file, and ONNX Runtime the exported model; elsewhere the engine takes the
model itself. PyTorch's float32 and the engine are both compared with PyTorch's float64.

Batch norms take the statistics of a batch after pruning, each filter keeps a weight, and kernels keep their norm:
random pruning would leave deep networks constant otherwise. A cell is marked `constant` where the logits of two images
differ by less than `LEAST_APART` of the largest: it says nothing. Images have 64 pixels per side where the network
allows it.

Smallest networks come first. With --results, what the file holds is not measured again, and every network is
written as soon as it is done, so that pieces add up.
"""

from __future__ import annotations

import argparse
import json
import os
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
from fedsparsify.graph import Node
from fedsparsify.inference import Engine
from fedsparsify.networks import model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.wire.artefact import save

SPARSITIES = (0.0, 0.9, 0.99)
LEAST = {"inception_v3": 160, "maxvit": 224}  # pixels per side, by the beginning of a name
MOST_WEIGHTS = 150_000_000  # larger networks are left out
LIMIT = 1e-4
LEAST_APART = 1e-3  # of two images, as a share of the largest logit
FILED = 0.9  # the sparsity at which files are written and read
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
        if "mobilevit" in name or "fastvit" in name:
            return 256
        if name.startswith(fixed):
            return 224
    return next((side for begin, side in LEAST.items() if name.startswith(begin)), 64)


def made(name: str, timm: bool, side: int) -> nn.Module:
    """A network with random weights, and statistics as batch norms have them after training."""
    torch.manual_seed(1)
    if timm:
        models()  # timm imports torchvision, whose compiled part may be missing
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
    """Remove weights at random, but one of each filter, and keep each layer's norm; biases, scales and embeddings stay.

    Without the norm, layers that no batch norm follows would fade; without the filters' last weights, depthwise layers
    would be empty at 0.99: deep networks would be constant. Equal seeds nest the masks of growing sparsities.
    """
    key = torch.Generator().manual_seed(2)
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.ndim > 1 and sparsity:
            norm, chance = weight.norm(), torch.rand(weight.shape, generator=key).flatten(1)
            removed = chance < torch.minimum(torch.tensor(sparsity), chance.amax(1, keepdim=True))
            weight[removed.view_as(weight)] = 0
            weight.mul_(norm / weight.norm().clamp_min(1e-12))


def measured(name: str, timm: bool, sparsities: Sequence[float], side: int) -> dict[str, Any]:
    """What became of a network: `nodes`, and by sparsity the differences; or `failed`, why not."""
    module = made(name, timm, side)
    weights = sum(parameter.numel() for parameter in module.parameters())
    if weights > MOST_WEIGHTS:
        return {"failed": f"left out: {weights:,} weights"}
    x = torch.randn(8, 3, side, side)
    started = perf_counter()
    try:
        graph = trace(module, sample=(3, side, side))
    except FedSparsifyError as error:
        return {"failed": f"no graph: {error}"}
    found: dict[str, Any] = {"nodes": len(graph), "pixels": side, "traced": perf_counter() - started}
    for sparsity in sparsities:
        prune(module, sparsity)
        settle(module, x)
        try:
            found[f"{sparsity:g}"] = compared(module, graph, x[:2], sparsity == FILED)
        except FedSparsifyError as error:
            return {"failed": f"no engine: {error}"}
    return found


@torch.no_grad()
def compared(module: nn.Module, graph: Sequence[Node], x: torch.Tensor, filed: bool) -> dict[str, float]:
    """Largest differences of logits, as shares of the largest logit."""
    expected, found = module(x).numpy(), {}
    exact = module.double()(x.double()).numpy()
    module.float()
    model, batch = model_of(module), x.numpy()
    if filed:
        with TemporaryDirectory() as folder:
            path, onnx = Path(folder, "model.fsz"), Path(folder, "model.onnx")
            save(path, model, {"graph": [node.to_json() for node in graph]})
            received = Engine(path, 1).run(batch)
            write_onnx(onnx, model, {"shape": list(x.shape[1:])}, graph)
            found["onnx"] = _difference(installed()["onnxruntime"](Subject(path, onnx, 2, 1))(batch), expected)
    else:
        received = Engine(model, 1, graph).run(batch)
    found |= {"engine": _difference(received, expected), "engine64": _difference(received, exact)}
    return {**found, "torch64": _difference(expected, exact), "apart": _difference(exact[0], exact[1])}


def _difference(received: Any, expected: Any) -> float:
    return float(np.abs(received - expected).max() / max(float(np.abs(expected).max()), 1e-30))


def cells_of(found: dict[str, Any], sparsities: Sequence[float]) -> list[str]:
    """A network's differences from PyTorch by sparsity, the same of ONNX Runtime, and the worst ones from float64."""
    held = [found[key] for key in map("{:g}".format, sparsities) if key in found]
    cells = [_cell(found.get(f"{sparsity:g}"), "engine") for sparsity in sparsities]
    cells.append(_cell(found.get(f"{FILED:g}"), "onnx"))
    worst = max(held, key=lambda one: one["engine"], default=None)
    return [*cells, *(f"{worst[key]:.0e}" if worst else "" for key in ("engine64", "torch64"))]


def _cell(one: dict[str, float] | None, key: str) -> str:
    if one is None or key not in one:
        return ""
    if not one["apart"] > LEAST_APART:
        return "constant"
    return f"{one[key]:.0e}" + ("" if one[key] <= LIMIT else " ✗")


def weights_of(name: str) -> int:
    """Weights of a classifier of torchvision, as it states them."""
    return int(next(iter(models().get_model_weights(name))).meta["num_params"])


def kept(path: Path | None) -> dict[str, Any]:
    """What earlier runs measured, by network."""
    return dict(json.loads(path.read_text())) if path and path.exists() else {}


def keep(path: Path, found: dict[str, Any]) -> None:
    """Replace the file as a whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1))
    os.replace(partial, path)


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--timm", action="store_true")
    parser.add_argument("--sparsity", type=float, action="append", help="instead of 0, 0.9 and 0.99")
    parser.add_argument("--size", type=int, help="pixels per side, instead of 64 or the least of a network")
    parser.add_argument("--results", type=Path, help="a JSON file that is read, extended and written")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no network is begun")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begun, found = perf_counter(), kept(words.results)
    names = words.networks or (TIMM if words.timm else sorted(models().list_models(module=models()), key=weights_of))
    sparsities = words.sparsity or SPARSITIES
    heads = ["network", "nodes", "pixels", *(f"{sparsity:g}" for sparsity in sparsities)]
    heads += ["ONNX Runtime", "engine, float64", "PyTorch, float64"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name in names:
        known, side = found.get(name, {}), words.size or side_of(name, words.timm)
        missing = [sparsity for sparsity in sparsities if f"{sparsity:g}" not in known]
        if missing and "failed" not in known and perf_counter() - begun < words.seconds:
            try:
                known = {**known, **measured(name, words.timm, missing, side)}
            except Exception as error:  # a network that cannot be made must not end the table
                known = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"}
            found[name] = known
            if words.results:
                keep(words.results, found)
        if not known:
            continue
        cells = [known["failed"]] if "failed" in known else [str(known["nodes"]), str(known["pixels"])]
        cells += [] if "failed" in known else cells_of(known, sparsities)
        lines.append(f"| {' | '.join([name, *cells, *[''] * (len(heads) - 1 - len(cells))])} |")
        print(lines[-1], flush=True)
        if words.out:
            words.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
