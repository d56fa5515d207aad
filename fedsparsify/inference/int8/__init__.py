"""Networks in whole numbers: int8 weights, 16-bit sums, calibrated ranges."""
