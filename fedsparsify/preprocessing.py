"""From raw samples to a network's input. A model's file states it, so that a device can repeat it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError
from .model import Floats


@dataclass(frozen=True)
class Preprocessing:
    """From raw pixels to the network's input: x / divisor, then (x − mean) / std per channel.

    Args:
        divisor: 255 for bytes.
        mean: one number per channel, or one for all; empty: neither mean nor deviation is used.
        std: the same for the standard deviation.

    Example:
        >>> import numpy as np
        >>> from fedsparsify.data import Preprocessing
        >>> Preprocessing(divisor=255.0, mean=(0.5,), std=(0.5,))(np.full((1, 1, 1, 2), 255, np.uint8))
        array([[[[1., 1.]]]], dtype=float32)
    """

    divisor: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __call__(self, raw: NDArray[Any]) -> Floats:
        """Raw samples as the network takes them.

        Args:
            raw: an array (n, channels, …).

        Returns:
            A float32 array of the same shape.
        """
        x = raw.astype(np.float32) / np.float32(self.divisor)
        if self.mean:
            shape = (1, -1) + (1,) * (x.ndim - 2)
            x -= np.asarray(self.mean, np.float32).reshape(shape)
            x /= np.asarray(self.std, np.float32).reshape(shape)
        return x

    def facts(self) -> dict[str, object]:
        """As a model's file states it.

        Returns:
            JSON values.
        """
        return {"divisor": self.divisor, "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def read(cls, said: object, channels: int) -> Preprocessing:
        """The preprocessing that a file states.

        Args:
            said: what `facts` returned.
            channels: of the samples.

        Returns:
            The preprocessing.

        Raises:
            ModelError: if it cannot be used for samples of so many channels.
        """
        match said:
            case {"divisor": int() | float() as divisor, "mean": list() as mean, "std": list() as std}:
                numbers = [divisor, *mean, *std]
                known = all(isinstance(number, int | float) and abs(number) < 1e38 for number in numbers)
                if known and all([divisor, *std]) and len(mean) == len(std) in (0, 1, channels):
                    return cls(float(divisor), tuple(mean), tuple(std))
        raise ModelError(
            "the file's preprocessing must be a divisor and, for each channel, mean and std, none of them 0 but the "
            f"mean. Received: {said!r:.80}. Give prepared floats instead of bytes."
        )
