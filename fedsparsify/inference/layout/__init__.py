"""From fused steps to positions in memory: levels, storage of every value, bands, offsets in the arena."""
