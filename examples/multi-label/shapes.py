"""Pictures of 16 × 16 pixels with a square, a cross and a ring, each there or not.

`shapes` asks which are there (labels); `pixels` asks what each pixel is (a class per pixel).
"""

import numpy as np
from torch import nn

SIZE = 16
NAMES = ("square", "cross", "ring")


def _stamps():
    square = np.ones((5, 5), bool)
    cross = np.eye(5, dtype=bool) | np.eye(5, dtype=bool)[::-1]
    ring = square.copy()
    ring[1:-1, 1:-1] = False
    return square, cross, ring


def _pictures(samples, seed):
    """Grey pictures as bytes, (n, 1, 16, 16); labels, (n, 3); classes of pixels, (n, 16, 16), 0 where nothing is."""
    rng = np.random.default_rng(seed)
    there = rng.random((samples, len(NAMES))) < 0.5
    pixels = np.zeros((samples, SIZE, SIZE), np.int64)
    for picture, shown in zip(pixels, there, strict=True):
        for kind in np.flatnonzero(shown):
            top, left = rng.integers(0, SIZE - 5, 2)
            picture[top : top + 5, left : left + 5][_stamps()[kind]] = kind + 1
    grey = np.where(pixels > 0, 180, 40) + rng.normal(0, 25, pixels.shape)
    # A shape that others cover wholly is not there.
    there = np.stack([(pixels == kind + 1).any((1, 2)) for kind in range(len(NAMES))], 1)
    return grey.clip(0, 255).astype(np.uint8)[:, None], there, pixels


def shapes(samples=800, seed=0):
    """Which shapes are there."""
    x, there, _ = _pictures(samples, seed)
    train = samples * 4 // 5
    return {
        "x_train": x[:train],
        "y_train": there[:train],
        "x_test": x[train:],
        "y_test": there[train:],
        "labels": NAMES,
    }


def pixels(samples=400, seed=0):
    """What each pixel is."""
    x, _, classes = _pictures(samples, seed)
    train = samples * 4 // 5
    return x[:train], classes[:train], x[train:], classes[train:]


def finder(shape, labels):
    """One logit per label."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, labels),
    )


def painter(shape, classes):
    """One logit per class and pixel: (n, classes, height, width)."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, classes, 1),
    )
