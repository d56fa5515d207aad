"""Coverage-guided fuzzing of everything that reads bytes from outside, with atheris (`pip install atheris`).

    python tests/fuzz/fuzz_wire.py NEW_CORPUS tests/fuzz/corpus -max_total_time=600 -max_len=2048

`python tests/fuzz/fuzz_wire.py --seeds` writes the inputs that fuzzing starts from into the kept corpus.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["fedsparsify"]):
    from wire_target import check, seeds


def main() -> None:
    if sys.argv[1:] == ["--seeds"]:
        for name, data in seeds().items():
            (Path(__file__).parent / "corpus" / name).write_bytes(data)
        return
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
