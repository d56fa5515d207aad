"""Data sets with 5,000 training samples in the place of the test set, for choosing a recipe without looking at the test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsparsify import load_dataset
from fedsparsify.data import Dataset

HELD_BACK = 5000


def held_back(name: str) -> Dataset:
    """The data set without its test samples; 5,000 training samples, the same in every run, are the test samples."""
    dataset = load_dataset(name)
    order = np.random.default_rng(0).permutation(len(dataset.y_train))
    test, train = order[:HELD_BACK], np.sort(order[HELD_BACK:])
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


def cifar100() -> Dataset:
    """CIFAR-100."""
    return held_back("cifar100")
