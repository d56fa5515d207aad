"""Where each value lies in memory: storage, levels, bands, arena."""
