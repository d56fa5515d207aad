"""Machine code of our own: what kernels are written with, and how they are kept. A leaf that knows no kernel."""
