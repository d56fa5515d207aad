"""Gates: values of one pixel that scale or shift whole images, as squeeze-and-excite makes them.

Input: steps with the shapes of their values. Output: the names of such values. A gate is made from the mean of an
image and comes back to it soon. Where lanes are blocks of an image, every lane of the image holds the gate, so that the
steps between need no other layout. The mean at the end of a network is a gate too: one float per channel is moved to
the layers after it, not the whole image.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..frontend.fusion import Shape
from ..frontend.steps import Activation, Add, Affine, Conv, Flatten, Pool, Step


def gates_of(steps: Sequence[Step], shapes: Mapping[str, Shape]) -> frozenset[str]:
    """Values of one pixel that are made from means of images, pixel by pixel, and that a gated step needs.

    Where some steps of a network are given, gates from before them count too.
    """
    made = {step.name for step in steps}
    possible: set[str] = set()
    for step in steps:
        entering = {name for name in step.inputs if name not in made and shapes[name][1:] == (1, 1)}
        alone = shapes[step.name][1:] == (1, 1) and all(name in possible or name in entering for name in step.inputs)
        if _is_mean(step, shapes) or (alone and _pointwise(step)):
            possible.add(step.name)
        if isinstance(step, Add) and step.gated:
            possible |= entering & {step.inputs[1]}
        if alone and _pointwise(step):
            possible |= entering
    wanted = _last_means(steps, shapes)
    for step in reversed(steps):
        if isinstance(step, Add) and step.gated:
            wanted.add(step.inputs[1])
        if step.name in wanted and shapes[step.name][1:] == (1, 1):
            wanted.update(name for name in step.inputs if shapes[name][1:] == (1, 1))
    return frozenset(wanted & possible) if wanted <= possible else _closed(steps, wanted & possible, made)


def images_of(steps: Sequence[Step], gates: Collection[str]) -> dict[str, str]:
    """By gate, the image that it scales or shifts, at once or through functions of each value alone."""
    images: dict[str, str] = {}
    for step in reversed(steps):
        if isinstance(step, Add) and step.gated and step.inputs[1] in gates:
            images[step.inputs[1]] = step.inputs[0]
        if step.name in images and isinstance(step, Activation | Affine):
            images[step.inputs[0]] = images[step.name]
    return images


def private_gates(steps: Sequence[Step], gates: Collection[str]) -> set[str]:
    """Gates that every worker computes as a whole: small layers between the mean and the last one before an image.

    Waiting for what another worker wrote takes longer than computing it twice.
    """
    images, found = images_of(steps, gates), set[str]()
    for step in steps:
        layer = isinstance(step, Conv) or (isinstance(step, Activation | Affine) and step.inputs[0] in found)
        if step.name in gates and step.name not in images and layer:
            found.add(step.name)
    return found


def _is_mean(step: Step, shapes: Mapping[str, Shape]) -> bool:
    """Whether a step gives the means of whole images."""
    mean = isinstance(step, Pool) and step.mean and step.size == (1, 1)
    return mean and shapes[step.inputs[0]][1:] != (1, 1)


def _last_means(steps: Sequence[Step], shapes: Mapping[str, Shape]) -> set[str]:
    """Means that only layers of single pixels read, which end a level in any case."""
    read = {name for step in steps for name in step.inputs}
    others = {name for step in steps if not isinstance(step, Flatten | Conv) for name in step.inputs}
    return {step.name for step in steps if _is_mean(step, shapes) and step.name in read - others}


def _closed(steps: Sequence[Step], found: set[str], made: set[str]) -> frozenset[str]:
    """Without the steps that read something of one pixel that is no gate."""
    kept = set(found)
    for step in steps:
        others = any(name in made and name not in kept for name in step.inputs)
        if step.name in kept and others and not isinstance(step, Pool):
            kept.discard(step.name)
    return frozenset(kept)


def _pointwise(step: Step) -> bool:
    """Whether a step works on each pixel alone."""
    if isinstance(step, Conv):
        return step.weight.shape[2:] == step.stride == (1, 1) and step.padding == (0, 0)
    return isinstance(step, Activation | Affine) or (isinstance(step, Add) and not step.gated)
