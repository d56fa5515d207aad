"""Clients: whoever answers a method's requests with training."""
