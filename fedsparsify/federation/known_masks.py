"""Which mask each client has: the one it was sent last, so that only the changes since then are sent.

In: every mask that a client was sent. Out: the mask that a client has now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..model import Mask


@dataclass
class KnownMasks:
    """A mask's version is the round that sent it. A mask is kept, as a bitmap, for as long as a client has it."""

    seen: dict[int, int] = field(default_factory=dict)  # client → version
    bitmaps: dict[int, NDArray[np.uint8]] = field(default_factory=dict)  # version → bitmap

    def mask(self, version: int | None, size: int) -> Mask | None:
        """The mask of a version; None where there is none, and the whole model must be sent."""
        bitmap = self.bitmaps.get(version) if version is not None else None
        if bitmap is None or bitmap.size != (size + 7) // 8:
            return None
        return np.unpackbits(bitmap, count=size).view(np.bool_)

    def copy(self) -> KnownMasks:
        """What it holds now; bitmaps themselves never change."""
        return KnownMasks(dict(self.seen), dict(self.bitmaps))

    def sent(self, client: int, version: int, mask: Mask) -> None:
        """Record that a client has this mask."""
        if version not in self.bitmaps:
            self.bitmaps[version] = np.packbits(mask)
        before = self.seen.get(client)
        self.seen[client] = version
        if before is not None and before not in self.seen.values():
            self.bitmaps.pop(before, None)
