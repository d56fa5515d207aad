"""How large each value is: (channels, height, width). A flat value of n features is (n, 1, 1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...errors import ModelError
from ...graph import INPUT
from .steps import Add, Affine, Conv, Flatten, Pair, Pool, Softmax, Step

Shape = tuple[int, int, int]


def shapes_of(steps: Sequence[Step], shape: tuple[int, ...]) -> dict[str, Shape]:
    """Shape of every value for one shape of samples; what does not fit is an error that names the layer."""
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise ModelError(f"a sample is (features,) or (channels, height, width). Received: {shape}.")
    flat = {INPUT: len(shape) == 1}
    shapes: dict[str, Shape] = {INPUT: (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, 1)}
    for step in steps:
        if len({flat[name] for name in step.inputs}) > 1:
            raise ModelError(f"layer {step.name!r} adds flat values to images.")
        shapes[step.name] = _shape_of(step, shapes, flat[step.inputs[0]])
        flat[step.name] = flat[step.inputs[0]] or isinstance(step, Flatten)
    return shapes


def is_flat(steps: Sequence[Step], dimensions: int) -> bool:
    """Whether the network gives rows of features rather than images."""
    flat = {INPUT: dimensions == 1}
    for step in steps:
        flat[step.name] = flat[step.inputs[0]] or isinstance(step, Flatten)
    return flat[steps[-1].name]


def weight_vectors(steps: Sequence[Step], shapes: dict[str, Shape], lanes: int) -> float:
    """About how many vector multiplications one image takes."""
    convolutions = [step for step in steps if isinstance(step, Conv)]
    return sum(s.weight.places.size * prod(shapes[s.name][1:]) for s in convolutions) / lanes


def _shape_of(step: Step, shapes: dict[str, Shape], flat: bool) -> Shape:
    channels, height, width = shape = shapes[step.inputs[0]]
    if flat and (isinstance(step, Pool) or (isinstance(step, Conv) and not step.flat)):
        raise ModelError(f"layer {step.name!r} takes images. Received: flat values of {channels:,} features.")
    match step:
        case Conv():
            if step.flat and not flat:
                raise ModelError(f"layer {step.name!r} is linear and takes flat values. Received: images of {shape}.")
            _expect(step, step.weight.shape[1] * step.groups, channels, "channels")
            _expect_even(step, step.weight.shape[0], step.groups)
            spans = [(kernel - 1) * gap + 1 for kernel, gap in zip(step.weight.shape[2:], step.dilation, strict=True)]
            sides = _windows(step, (height, width), (spans[0], spans[1]), step.stride, step.padding, False)
            return step.weight.shape[0], *sides
        case Pool(size=None):
            if step.affine:
                _expect(step, step.affine[0].size, channels, "channels")
            return channels, *_windows(step, (height, width), step.kernel, step.stride, step.padding, step.ceil)
        case Pool():
            assert step.size is not None
            return channels, *step.size
        case Affine(affine=affine) if affine is not None:
            _expect(step, affine[0].size, channels, "channels")
        case Add():
            if shape != shapes[step.inputs[1]]:
                raise ModelError(f"layer {step.name!r} adds values of shapes {shape} and {shapes[step.inputs[1]]}.")
        case Flatten():
            return channels * height * width, 1, 1
        case Softmax():
            if step.axis not in ((1, -1) if flat else (1, -3)):
                raise ModelError(
                    f"layer {step.name!r}: softmax runs over the channels only. Received axis: {step.axis}."
                )
    return shape


def _windows(step: Step, sides: Pair, spans: Pair, strides: Pair, paddings: Pair, ceil: bool) -> Pair:
    """How many windows fit along each side."""
    counts = []
    for side, span, stride, padding in zip(sides, spans, strides, paddings, strict=True):
        room = side + 2 * padding - span
        if room < 0:
            raise ModelError(f"layer {step.name!r} needs at least {span} pixels a side. Received: {side} (+{padding}).")
        count = (room + (stride - 1 if ceil else 0)) // stride + 1
        if ceil and (count - 1) * stride >= side + padding:
            count -= 1  # a window must begin inside the image or its left padding
        counts.append(count)
    return counts[0], counts[1]


def _expect(step: Step, expected: int, received: int, what: str) -> None:
    if expected != received:
        raise ModelError(f"layer {step.name!r} takes {expected:,} {what}. Received: {received:,}.")


def _expect_even(step: Step, channels: int, groups: int) -> None:
    if channels % groups:
        raise ModelError(f"layer {step.name!r} divides {channels} channels into {groups} groups.")
