"""What a node keeps across rounds, in a folder of its own: Flower forgets a node's state when the node restarts.

In: masks, the state of methods and optimisers, and samples. Out: the same ones, in a later process; a damaged file
counts as missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ...errors import RunError, WireError
from ...model import Floats, Layout, Mask, SparseModel
from ...state import State, split
from ...wire.codec import decode, known_name, mask_name
from ...wire.files import atomic

STATE, NUMBER = ".state.npz", "number:"  # the end of a file's name; the beginning of a number's name in it
MASKS = 2  # the last two: the server may not know yet that the node has the last one


class NodeStore:
    """Masks by their names, state by round, samples by where they come from. Damaged files count as missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{folder} cannot be made: {error.strerror}.") from error

    @classmethod
    def of(cls, settings: Mapping[str, object], node: int) -> NodeStore:
        """The store of a node: in the folder that it was started with, or in its own folder in Flower's home."""
        home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
        return cls(Path(str(settings.get("folder", home / "fedsparsify" / str(node)))))

    def names(self) -> list[bytes]:
        """The masks that are here, oldest first."""
        files = sorted(self._folder.glob("*.mask"), key=lambda path: path.stat().st_mtime_ns)
        return [bytes.fromhex(path.stem) for path in files]

    def mask(self, name: bytes, size: int) -> Mask | None:
        """The mask of that name, if it is here."""
        path = self._folder / f"{name.hex()}.mask"
        if not path.exists() or path.stat().st_size != (size + 7) // 8:
            return None
        return np.unpackbits(np.frombuffer(path.read_bytes(), np.uint8), count=size).view(np.bool_)

    def received(self, blob: bytes, size: int, layout: Layout | None = None) -> tuple[SparseModel | None, bytes]:
        """The model in a blob, whose mask is kept; or the name of the mask that it needs and that is not here."""
        name = known_name(blob)
        known = self.mask(name, size) if name else None
        if name and known is None:
            return None, name
        try:
            model = decode(blob, known, layout)
        except WireError:
            if name is None:
                raise
            (self._folder / f"{name.hex()}.mask").unlink(missing_ok=True)  # it is damaged
            return None, name
        self.keep_mask(mask_name(model.layout, model.host_mask), model.host_mask)
        return model, b""

    def keep_mask(self, name: bytes, mask: Mask) -> None:
        """Keep a mask, and forget all but the last ones."""
        path = self._folder / f"{name.hex()}.mask"
        if path.exists():
            path.touch()  # it is the newest again
        else:
            with atomic(path) as file:
                file.write(np.packbits(mask).tobytes())
        for old in self.names()[:-MASKS]:
            (self._folder / f"{old.hex()}.mask").unlink(missing_ok=True)

    def state(self, run: str, round: int) -> State:
        """What the client kept before `round` of that run: a round may be repeated after a crash."""
        before = [(number, path) for number, path in self._states(run) if number < round]
        return _state(max(before)[1]) if before else {}

    def keep_state(self, run: str, round: int, state: State, most: int) -> None:
        """Keep the client's state after a round, and that of the `most` rounds before it."""
        held, numbers = split(state)
        with atomic(self._folder / f"{run}-{round}{STATE}") as file:
            np.savez(file, **held, **{f"{NUMBER}{name}": np.array(value) for name, value in numbers.items()})  # type: ignore[arg-type]
        for number, path in sorted(self._states(run)):
            if number > round:
                path.unlink(missing_ok=True)  # of rounds that will be repeated
        for _, path in sorted(self._states(run))[: -most - 1]:
            path.unlink(missing_ok=True)

    def _states(self, run: str) -> list[tuple[int, Path]]:
        files = self._folder.glob(f"{run}-*{STATE}")
        return [(int(path.name.removesuffix(STATE).rpartition("-")[2]), path) for path in files]

    def samples(
        self, key: str, make: Callable[[], tuple[Floats, NDArray[np.int64]]]
    ) -> tuple[Floats, NDArray[np.int64]]:
        """The samples of that key; computed once, as every round is a new process."""
        paths = [self._folder / f"{key}.{part}.npy" for part in ("x", "y")]
        x, y = map(_array, paths)
        if x is not None and y is not None and len(x) == len(y):
            return x, y
        made = make()
        for path, array in zip(paths, made, strict=True):
            with atomic(path) as file:
                np.save(file, np.asarray(array), allow_pickle=False)
        return made


def _array(path: Path) -> NDArray[Any] | None:
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found


def _state(path: Path) -> State:
    try:
        with np.load(path, allow_pickle=False) as held:
            found = {name: held[name] for name in held.files}
    except (OSError, ValueError, EOFError, BadZipFile):
        return {}
    return {name.removeprefix(NUMBER): array if array.ndim else array.item() for name, array in found.items()}
