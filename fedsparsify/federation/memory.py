"""What the server remembers of its clients: which mask each of them saw last, so that only what died since is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..model import Mask


@dataclass
class Memory:
    """A mask's version is the round that sent it. Masks are kept as bitmaps, as long as a client has them."""

    seen: dict[int, int] = field(default_factory=dict)  # client → version
    bitmaps: dict[int, NDArray[np.uint8]] = field(default_factory=dict)  # version → bitmap

    def mask(self, version: int | None, size: int) -> Mask | None:
        """The mask of a version; None where there is none, and the whole model must be sent."""
        bitmap = self.bitmaps.get(version) if version is not None else None
        if bitmap is None or bitmap.size != (size + 7) // 8:
            return None
        return np.unpackbits(bitmap, count=size).view(np.bool_)

    def copy(self) -> Memory:
        """What it holds now; bitmaps themselves never change."""
        return Memory(dict(self.seen), dict(self.bitmaps))

    def sent(self, client: int, version: int, mask: Mask) -> None:
        """A client has seen this mask."""
        if version not in self.bitmaps:
            self.bitmaps[version] = np.packbits(mask)
        before = self.seen.get(client)
        self.seen[client] = version
        if before is not None and before not in self.seen.values():
            self.bitmaps.pop(before, None)
