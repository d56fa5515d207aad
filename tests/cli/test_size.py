"""Amounts of memory on a command line."""

from __future__ import annotations

import click
import pytest

from fedsparsify.cli.size import Size


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2GB", 2 * 10**9),
        ("500 mb", 500 * 10**6),
        ("1.5GiB", 3 << 29),
        ("800000000", 8 * 10**8),
        ("1k", 1000),
        ("3B", 3),
    ],
)
def test_sizes_as_people_write_them(text: str, amount: int) -> None:
    assert Size().convert(text, None, None) == amount


@pytest.mark.parametrize("text", ["", "0", "-1GB", "2XB", "GB", "1e9", "2 GB GB", "iB", "5iB", "nan", "9" * 10**5])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"a size (reads like 2GB|is at least one byte)"):
        Size().convert(text, None, None)
