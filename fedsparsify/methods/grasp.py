"""GraSP (Wang et al., 2020): remove the weights with the highest −w ⊙ H g before training, so that gradients flow.

Logits are divided by a temperature of 200 and the batch holds 10 samples of each class, as in the original; g and H are
those of the same batch. Which clients score, and which entries may be pruned, is as in `snip`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from ..model import Floats, SparseModel
from ..options import option
from ..scores import grasp
from .at_initialisation import AtInitialisation
from .requests import Score


@dataclass(frozen=True, kw_only=True)
class Grasp(AtInitialisation):
    """Fixed mask by gradient flow at initialisation; clients fit under it, the server averages."""

    temperature: float = option(200.0, "the logits are divided by it while scoring")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ConfigError(f"method.temperature must be positive. Received: {self.temperature!r}.")

    def question(self, model: SparseModel) -> Score:
        """H g on one batch."""
        return Score(model, by="hessian-gradient", per_class=self.per_class, temperature=self.temperature)

    def score(self, model: SparseModel, quantity: Floats) -> Floats:
        """w ⊙ H g."""
        return grasp(model, quantity)
