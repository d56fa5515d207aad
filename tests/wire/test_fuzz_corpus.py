"""The corpus that fuzzing left, replayed: `tests/fuzz/fuzz_wire.py` makes more of it."""

from __future__ import annotations

import sys
from pathlib import Path

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
sys.path.insert(0, str(FUZZ))

from wire_target import check, seeds  # noqa: E402


def test_the_kept_corpus_is_clean():
    kept = sorted((FUZZ / "corpus").iterdir())
    assert len(kept) >= len(seeds())
    for path in kept:
        check(path.read_bytes())


def test_todays_well_formed_inputs_are_clean():
    for data in seeds().values():
        check(data)
