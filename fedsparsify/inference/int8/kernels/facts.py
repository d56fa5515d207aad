"""Numbers of Winograd's kernels in whole numbers that lowering needs, too."""

TILE, LINE = 4, 6  # outputs and frequencies along a line
FREQUENCIES = LINE * LINE
SUM_SHIFT = 10  # bits that sums lose, so that 32 bits hold their transform: an output's factors add up to 28² < 2¹⁰
OUTPUTS = 8  # channels whose sums are kept in registers
BLOCKS = 4  # of so many channels, whose sums stay in the second-level cache
