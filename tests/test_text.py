"""Text that others wrote, made fit for one line and for a file's name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify.text import file_name, plain, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 数 🙂 [b]", "größe 数 🙂 [b]"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202ea\u2028", r"\u202ea\u2028"),
        ("\udcff\x85\x7f", r"\udcff\x85\x7f"),
        (3, "3"),
        (None, "None"),
    ],
)
def test_literally(text, shown):
    assert plain(text) == shown


def test_what_is_long_loses_its_middle():
    assert plain("abcdefghij", 7) == "abcd…ij"
    assert plain("a" * 100_000 + "end").endswith("end")


@given(st.text(st.characters(), max_size=500), st.integers(5, 300))
def test_any_text_is_one_printable_line(text, limit):
    made = plain(text, limit)
    assert made.isprintable()
    assert len(made) <= limit
    assert visible(visible(text)) == visible(text)


@given(st.text(st.characters(), max_size=500))
def test_any_text_as_a_files_name(text):
    made = file_name(text)
    assert re.fullmatch(r"[\w.+-]+", made)
    assert ".." not in made
    assert made[0] != "."
    assert len(made.encode("utf-8")) <= 120
