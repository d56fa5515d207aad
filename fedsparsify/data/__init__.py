"""Data sets and how they are divided among clients."""

from .datasets import DATASETS, Dataset, Preprocessing, Preset, check_known, load_dataset, load_samples, preset_of
from .partition import check_seed, holdings, parse_split, partition

__all__ = [
    "DATASETS",
    "Dataset",
    "Preprocessing",
    "Preset",
    "check_known",
    "check_seed",
    "holdings",
    "load_dataset",
    "load_samples",
    "parse_split",
    "partition",
    "preset_of",
]
