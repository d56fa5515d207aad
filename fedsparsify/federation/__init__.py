"""Rounds: the one loop, whoever carries the question to the clients."""
