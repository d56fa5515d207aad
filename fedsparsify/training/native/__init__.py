"""Perceptrons on a CPU, by compiled kernels."""
