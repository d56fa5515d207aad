"""Federated runs: the round loop, simulated or over Flower, and the files that a run leaves."""
