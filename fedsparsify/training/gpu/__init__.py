"""Sequential networks on a GPU, by Triton kernels."""
