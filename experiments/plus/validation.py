"""Data sets with 5,000 training samples in the place of their test samples: a recipe is chosen on these."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsparsify import load_dataset
from fedsparsify.data import Dataset

HELD_BACK = 5000


def held_back(name: str) -> Dataset:
    """The data set without its test samples; as many training samples of every class are the test samples instead."""
    dataset = load_dataset(name)
    order = np.random.default_rng(0).permutation(len(dataset.y_train))
    each = HELD_BACK // dataset.classes
    test = np.concatenate([order[dataset.y_train[order] == label][:each] for label in range(dataset.classes)])
    train = np.setdiff1d(order, test)
    return replace(
        dataset,
        x_train=dataset.x_train[train],
        y_train=dataset.y_train[train],
        x_test=dataset.x_train[test],
        y_test=dataset.y_train[test],
    )


def fashion_mnist() -> Dataset:
    """FashionMNIST."""
    return held_back("fashion-mnist")


def cifar10() -> Dataset:
    """CIFAR-10."""
    return held_back("cifar10")


def cifar10_third() -> Dataset:
    """CIFAR-10 with 15,000 training samples, for a processor without a GPU."""
    dataset = held_back("cifar10")
    kept = np.sort(np.random.default_rng(1).permutation(len(dataset.y_train))[:15_000])
    return replace(dataset, x_train=dataset.x_train[kept], y_train=dataset.y_train[kept])


def cifar100() -> Dataset:
    """CIFAR-100."""
    return held_back("cifar100")
