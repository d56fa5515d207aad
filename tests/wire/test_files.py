"""A file is the old one or the new one, whoever else writes it."""

from __future__ import annotations

import os
import time

import pytest

from fedsparsify.errors import RunError
from fedsparsify.wire.files import STALE_SECONDS, atomic, partials


def test_two_writers_of_one_path_never_write_into_one_file(tmp_path):
    path = tmp_path / "x [1]"
    with atomic(path) as first, atomic(path) as second:
        first.write(b"first")
        second.write(b"second")
        assert len(partials(path)) == 2
    assert path.read_bytes() == b"first"  # it ended last
    assert [found.name for found in tmp_path.iterdir()] == ["x [1]"]


def test_a_writer_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic(path) as file:
        file.write(b"ne")
        raise KeyboardInterrupt
    with pytest.raises(RunError, match="cannot be written"), atomic(tmp_path / "none" / "x"):
        pass
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_what_killed_writers_left_goes_after_a_while(tmp_path):
    path, now = tmp_path / "x", time.time()
    for name, age in ((".x.1-aa.partial", STALE_SECONDS + 60), (".x.2-bb.partial", 60), (".y.1-aa.partial", 1e6)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (now - age, now - age))
    with atomic(path) as file:
        file.write(b"whole")
    assert sorted(found.name for found in tmp_path.iterdir()) == [".x.2-bb.partial", ".y.1-aa.partial", "x"]
