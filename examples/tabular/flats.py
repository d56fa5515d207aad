"""Flats of a made-up city: a table of facts, and the price of each in thousands."""

import numpy as np

COLUMNS = ("area", "rooms", "floor", "age", "distance to the centre", "balcony")


def flats(samples: int = 3000, seed: int = 0):
    """Standardised facts (float32) and prices (float); every fifth flat is for testing."""
    rng = np.random.default_rng(seed)
    area = rng.gamma(9, 8, samples) + 20
    rooms = np.clip(np.round(area / 25 + rng.normal(0, 0.7, samples)), 1, 8)
    floor, age = rng.integers(0, 12, samples), rng.gamma(2, 20, samples)
    distance, balcony = rng.gamma(2, 3, samples), rng.integers(0, 2, samples)
    price = area * (6 - 0.35 * np.minimum(distance, 12)) * np.exp(-age / 150)
    price += 8 * balcony + 2 * floor + 5 * rooms + rng.normal(0, 12, samples)
    x = np.stack([area, rooms, floor, age, distance, balcony], 1)
    x, y = (x - x.mean(0)) / x.std(0), price / 100
    test = np.arange(samples) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def within_ten_percent(prices, truth):
    """The share of flats whose price is at most a tenth off."""
    return ((prices - truth).abs() <= 0.1 * truth.abs()).float().mean()


def by_price(y, clients, seed):
    """Each client sells flats of another price class: samples sorted by price, in equal parts."""
    return np.array_split(np.argsort(y.ravel(), kind="stable"), clients)
