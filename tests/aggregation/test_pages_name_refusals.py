"""The pages name every method that a robust rule and differential privacy refuse, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsparsify import RunConfig
from fedsparsify.errors import ConfigError
from fedsparsify.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
CASES = {
    "robustness.md": ({"merge": "median"}, r"The others are refused by name: (.*?)\."),
    "privacy.md": (
        {"epsilon": 8.0, "clients": 100, "participation": 0.5},
        r"By name, before the first round: (.*?), as a method or a",
    ),
}


def refused(method, settings):
    try:
        RunConfig(method=method, **settings)
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize("page", CASES)
def test_the_page_names_what_is_refused(page):
    settings, sentence = CASES[page]
    [said] = re.findall(sentence, (DOCS / page).read_text(), re.DOTALL)
    assert {*re.findall(r"`([\w-]+)`", said)} == {name for name in METHODS if refused(name, settings)}
