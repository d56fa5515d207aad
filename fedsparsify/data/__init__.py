"""Data sets and how they are divided among clients."""

from ..preprocessing import Preprocessing
from .dataset import Dataset
from .datasets import DATASETS, Preset, preset_of
from .load import as_dataset, check_known, load_dataset, load_samples
from .partition import check_seed, holdings, parse_split, partition

__all__ = [
    "DATASETS",
    "Dataset",
    "Preprocessing",
    "Preset",
    "as_dataset",
    "check_known",
    "check_seed",
    "holdings",
    "load_dataset",
    "load_samples",
    "parse_split",
    "partition",
    "preset_of",
]
