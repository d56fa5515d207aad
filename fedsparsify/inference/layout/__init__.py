"""From fused steps to places in memory: levels, storage of every value, bands, offsets in the arena."""
