"""Mistakes in a user's method are the same errors in the simulator and over Flower."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from fake import play

from fedsparsify import RunConfig, run
from fedsparsify.errors import ClientError, MethodError
from fedsparsify.methods import Gradual, Update


@dataclass(frozen=True, kw_only=True)
class Silent(Gradual):
    """Its client returns without a request."""

    def client(self, round, model):
        return Update(model, 1)
        yield


@dataclass(frozen=True, kw_only=True)
class Forgetful(Gradual):
    """Its merge forgets to return."""

    def merge(self, round, model, updates, rng):
        list(updates)


@dataclass(frozen=True, kw_only=True)
class Remembering(Gradual):
    """It sets an attribute of itself."""

    def scores(self, model, rng):
        self.last = np.abs(model.trainable_weights)
        return self.last


SMALL = {"rounds": 1, "epochs": 1, "clients": 2, "data": "digits"}
WRONG = [(Silent, "yield a request"), (Forgetful, "return a SparseModel"), (Remembering, "sets an attribute")]


@pytest.mark.parametrize(("kind", "says"), WRONG)
def test_in_the_simulator(kind, says):
    with pytest.raises(MethodError, match=f"{kind.__name__}.*{says}"):
        run(RunConfig(method=kind(), **SMALL))


@pytest.mark.parametrize(("kind", "says"), WRONG)
def test_over_flower(kind, says, tmp_path):
    """At a client, the class of the error is all that leaves."""
    error, said = (ClientError, "MethodError") if kind is Silent else (MethodError, f"{kind.__name__}.*{says}")
    with pytest.raises(error, match=said):
        play(tmp_path, RunConfig(method=kind(), **SMALL), retries=0)
