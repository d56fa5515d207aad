"""A small PyTorch app for Flower."""
