"""Between a Flower app's arrays and our models.

An `ArrayRecord` does not say which arrays are trained. Running statistics of normalisation layers go by PyTorch's
names, whole numbers are counters, and everything else is trained and may be pruned.
"""

from __future__ import annotations

import json

import numpy as np
from flwr.app import Array, ArrayRecord

from ...errors import ModelError
from ...model import Floats, Layout, SparseModel, TensorSpec

STATISTICS = ("running_mean", "running_var")


def layout_of(arrays: ArrayRecord) -> tuple[Layout, str]:
    """The layout of a record, and the types of its arrays in the record's order, as JSON."""
    trainable: list[TensorSpec] = []
    statistics: list[TensorSpec] = []
    dtypes: dict[str, str] = {}
    for name, array in arrays.items():
        dtypes[name] = array.dtype
        trained = array.dtype.startswith(("float", "bfloat")) and name.rpartition(".")[2] not in STATISTICS
        (trainable if trained else statistics).append(TensorSpec(name, tuple(array.shape)))
    if not trainable:
        raise ModelError("the arrays hold nothing to train.")
    return Layout(tuple(trainable), tuple(statistics)), json.dumps(dtypes)


def weights_of(arrays: ArrayRecord, layout: Layout) -> Floats:
    """The record's values as one flat vector."""
    if {name: tuple(array.shape) for name, array in arrays.items()} != {spec.name: spec.shape for spec in layout}:
        raise ModelError("the arrays are not those that were sent: their names or shapes differ.")
    return np.concatenate([arrays[spec.name].numpy().astype(np.float32).ravel() for spec in layout])


def arrays_of(model: SparseModel, dtypes: str) -> ArrayRecord:
    """The model as a record in the order of `dtypes`, by which some loops know arrays; pruned entries are zeros."""
    tensors = model.on_host().tensors()
    # A scalar's view would become an array of one dimension on its way.
    return ArrayRecord({name: Array(np.array(tensors[name], kind)) for name, kind in json.loads(dtypes).items()})


def arrays_differ(one: Array, other: Array) -> bool:
    """Whether two arrays of Flower's have different types, shapes or bytes."""
    return one is not other and (one.dtype, one.shape, one.data) != (other.dtype, other.shape, other.data)
