"""Short messages about four topics, made of words at random: tokens, topics and authors.

Every author has favourite topics, so that a division by author is not even. Words are numbered; 0 fills up a message.
"""

import numpy as np
from torch import nn

TOPICS = ("weather", "football", "cooking", "music")
WORDS = (
    ["rain", "cloud", "sunny", "storm", "wind", "snow", "forecast", "cold", "warm", "umbrella"],
    ["goal", "match", "team", "player", "coach", "referee", "penalty", "league", "score", "fans"],
    ["oven", "salt", "onion", "recipe", "butter", "slice", "boil", "garlic", "dinner", "spoon"],
    ["guitar", "song", "concert", "drummer", "melody", "album", "singer", "chorus", "piano", "tune"],
)
COMMON = ["the", "a", "is", "was", "and", "very", "today", "we", "they", "with", "about", "this", "that", "not", "more"]
VOCABULARY = ["", *COMMON, *(word for topic in WORDS for word in topic)]
LENGTH = 12
AUTHORS = 8


def messages(samples: int = 2000, seed: int = 0):
    """A dictionary with training and test samples and, for training, who wrote each message."""
    rng = np.random.default_rng(seed)
    favourites = rng.dirichlet(np.full(len(TOPICS), 0.5), AUTHORS)
    author = rng.integers(AUTHORS, size=samples)
    topic = np.array([rng.choice(len(TOPICS), p=favourites[one]) for one in author])
    common = 1 + rng.integers(len(COMMON), size=(samples, LENGTH))
    special = 1 + len(COMMON) + topic[:, None] * 10 + rng.integers(10, size=(samples, LENGTH))  # ten words per topic
    tokens = np.where(rng.random((samples, LENGTH)) < 0.3, special, common)
    tokens[np.arange(LENGTH) >= rng.integers(5, LENGTH + 1, samples)[:, None]] = 0
    train = samples * 4 // 5
    return {
        "x_train": tokens[:train],
        "y_train": topic[:train],
        "x_test": tokens[train:],
        "y_test": topic[train:],
        "client": author[:train],
        "labels": TOPICS,
    }


class BagOfWords(nn.Module):
    """The mean of the words' vectors, then two layers."""

    def __init__(self, shape, classes):
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), 32, padding_idx=0)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, tokens):
        """Logits of the topics."""
        there = (tokens > 0).unsqueeze(2)
        return self.layers((self.words(tokens) * there).sum(1) / there.sum(1).clamp(min=1))
