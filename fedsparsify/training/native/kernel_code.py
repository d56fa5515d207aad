"""What the training kernels are compiled from. Without torch: wheels are built where there is none."""

from __future__ import annotations

from ...native.code_images import CodeImage

_HERE = "training/native"
PERCEPTRONS = CodeImage(
    "training",
    "fedsparsify.training.native.kernels",
    (3,),
    tuple(f"{_HERE}/{name}.py" for name in ("kernels", "layers", "simd")),
)
CONVOLUTIONS = CodeImage(
    "convolutions",
    "fedsparsify.training.native.conv.kernels",
    (2,),
    tuple(f"{_HERE}/conv/{name}.py" for name in ("gradient_tiles", "kernels", "rows", "tile_walk", "tiles", "vectors")),
)
