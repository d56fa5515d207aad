"""The GPU's kernels against torch.func, on whatever device there is; on a CPU under triton's interpreter.

Run by test_kernels.py as a process of its own, because the interpreter must be chosen before triton is imported.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
from torch import nn
from triton.runtime import interpreter

from fedsparsify import RunConfig
from fedsparsify.clients.any_stack import AnyStack
from fedsparsify.clients.batches import Batches, Turn
from fedsparsify.clients.flat import FlatModule
from fedsparsify.clients.gpu_stack import GpuStack, orders, plan
from fedsparsify.clients.stack import Stack
from fedsparsify.clients.trainer import Trainer
from fedsparsify.clients.worker import Samples, Worker
from fedsparsify.keyed import KeyedDropout
from fedsparsify.methods import Fit
from fedsparsify.networks import build, layout_of, model_of

if os.environ.get("TRITON_INTERPRET") == "1":  # it knows loops to a number it is given only with numpy before 2.4
    before = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        before(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched

torch.backends.cudnn.allow_tf32 = False  # the reference in full precision
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def small_cnn(shape, classes):
    first = [nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(16, momentum=0.01)]
    second = [nn.Conv2d(16, 24, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()]
    end = [nn.Flatten(), nn.Linear(24 * shape[1] // 2 * shape[2] // 2, 20), nn.ReLU(), KeyedDropout(0.2, 0)]
    return nn.Sequential(*first, *second, *end, nn.Linear(20, classes))


def small_vgg(shape, classes):
    layers, inputs = [], shape[0]
    for outputs in (8, 24):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
            nn.ReLU(),
        ]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24 * shape[1] // 4 * shape[2] // 4, classes))


def check(module: nn.Module, shape, classes, batch, augment, precision="fp32", tolerance=5e-5, usual=0) -> None:
    torch.manual_seed(0)
    module = module.to(DEVICE)
    for name, buffer in module.named_buffers():
        if "var" in name:
            buffer.uniform_(0.5, 2)
    samples = Samples(torch.randn(40, *shape, device=DEVICE), torch.randint(0, classes, (40,), device=DEVICE))
    batches = Batches(samples, augment)
    layers = plan(module, shape)
    assert layers, "the network is not known to our kernels"
    layout, models = layout_of(module), 3
    stacks = [Stack(layout, models, DEVICE), Stack(layout, models, DEVICE, orders(module, shape))]
    start = [model_of(build_like(module, seed)) for seed in range(models)]
    for stack in stacks:
        stack.load(start)
    mapped, ours = AnyStack(module, stacks[0], batches), GpuStack(layers, stacks[1], batches, precision, batch + usual)
    ours.refresh()
    gradients = [torch.full_like(stack.weights, float("nan")) for stack in stacks]  # every entry must be written
    rows, keys = torch.randint(0, 40, (models, batch), device=DEVICE), torch.arange(models, device=DEVICE) * 977 + 5
    losses = torch.zeros(2, models, device=DEVICE)
    mapped.step(Turn(rows, keys, 0, gradients[0], 0.1, losses[0]))
    ours.step(Turn(rows, keys, 0, gradients[1], 0.1, losses[1]))
    assert torch.allclose(losses[0], losses[1], rtol=max(tolerance, 1e-5)), (losses[0], losses[1])
    expected, found = (stack.get_rows(gradient) for stack, gradient in zip(stacks, gradients, strict=True))
    for name, span in layout.slices.items():
        if span.stop <= layout.trainable:
            error = (expected[:, span] - found[:, span]).norm() / (expected[:, span].norm() + 1e-2 * expected.norm())
            assert error < tolerance, f"{name}: {error:.2e}"
    for name, block in stacks[0].buffers.items():
        assert torch.allclose(block, stacks[1].buffers[name], rtol=max(tolerance, 1e-4), atol=tolerance), name
    if ours.plain:  # plain SGD applied at once is the same as the gradient it would have written
        ours.step(Turn(rows, keys, 0, None, 0.1, losses[1]))
        after = stacks[0].get_rows(stacks[0].weights) - 0.1 * expected
        assert torch.allclose(stacks[1].get_rows(stacks[1].weights), after, rtol=1e-4, atol=1e-5)
    print(f"{shape} batch {batch} {precision}{' augmented' if augment else ''}: equal")


def check_training(make, shape, momentum) -> None:
    """Two epochs of two clients through the trainer, against the worker."""
    torch.manual_seed(0)
    data = Samples(torch.randn(26, *shape, device=DEVICE), torch.randint(0, 4, (26,), device=DEVICE))
    module = make()
    start = model_of(module)
    start = start.under(np.arange(start.layout.trainable) % 3 > 0)
    training = RunConfig(epochs=3, batch_size=8, lr=0.05, momentum=momentum, nesterov=momentum > 0.6)

    def workers():
        parts = [np.arange(0, 13), np.arange(13, 26)]
        return [Worker(FlatModule(make(), DEVICE), data, part, training, 1, k) for k, part in enumerate(parts)]

    stack = Stack(start.layout, 2, DEVICE, orders(module, shape))
    trainer = Trainer(stack, GpuStack(plan(module, shape), stack, Batches(data, False), "fp32", 8), training, True)
    for worker, found in zip(workers(), trainer.train(workers(), [Fit(start)] * 2, 3), strict=True):
        alone = worker.fit(Fit(start))
        assert np.allclose(alone.model.weights, found.model.weights, rtol=1e-3, atol=1e-4)
        assert abs(alone.loss - found.loss) < 1e-3
    print(f"{shape} momentum {momentum}: training equal")


def build_like(module: nn.Module, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.1 if parameter.ndim == 1 else 0.0, 0.3 if parameter.ndim == 1 else 0.1)
    return module


if __name__ == "__main__":
    check(build("fc", (1, 9, 9), 10, 0), (1, 9, 9), 10, 32, False)
    check(build("fc", (37,), 3, 0), (37,), 3, 7, False)
    check(
        build("fc", (3, 4, 4), 4, 0), (3, 4, 4), 4, 9, False
    )  # colours lie behind one another, as torch flattens them
    check(build("fc", (3, 4, 4), 70, 0), (3, 4, 4), 70, 33, True)  # more than one block of rows in the loss
    check(build("fc", (6,), 3, 0), (6,), 3, 140, False)
    check(small_cnn((3, 8, 8), 10), (3, 8, 8), 10, 5, False, usual=40)
    wide = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 5))
    check(wide, (3, 8, 8), 5, 6, False)  # pixels straight into a last layer too large for one kernel
    check(small_vgg((3, 8, 4), 5), (3, 8, 4), 5, 6, True)
    check_training(lambda: small_cnn((3, 8, 8), 4), (3, 8, 8), 0.9)
    check_training(lambda: build("fc", (12,), 4, 0), (12,), 0.0)
    if DEVICE.type == "cuda":
        check(build("cnn", (3, 32, 32), 10, 0), (3, 32, 32), 10, 32, False, tolerance=5e-3)
        # In coarser arithmetic some ReLUs and maxima fall the other way, which moves the first layer's gradient most.
        check(build("cnn", (3, 32, 32), 10, 0), (3, 32, 32), 10, 32, False, "bf16", 0.3)
    sys.exit(0)
