"""FedAdam and SCAFFOLD as docs/extending.md has a user write them: resumed, batched, over Flower, and as ours."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsparsify import RunConfig, run
from fedsparsify.data import load_dataset
from fedsparsify.federation.environment import Environment
from fedsparsify.training.backends.autograd import OneByOne

sys.path.insert(0, str(Path(__file__).parents[1] / "federation" / "flower"))
PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```python\n# (adam|drift)\.py\n(.*?)```", PAGE, re.DOTALL))
OURS = {"adam:Adam": "fedadam", "drift:Drift": "scaffold"}


@pytest.fixture(autouse=True)
def written(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in FILES:
        sys.modules.pop(name, None)


def config(name: str) -> RunConfig:
    return RunConfig(method=name, clients=4, participation=0.5, rounds=4, epochs=1, momentum=0.0)


def alone(planned: RunConfig) -> Environment:
    environment = Environment(planned, load_dataset(planned.data))
    environment.cohort.backend = OneByOne(environment.cohort.setup)
    return environment


def test_they_are_short():
    assert len(FILES["adam"].split("\n\n", 1)[-1].strip().splitlines()) <= 15
    assert len(FILES["drift"].strip().splitlines()) <= 40


@pytest.mark.parametrize("name", OURS)
def test_killed_resumed_batched_networked_and_ours(name, tmp_path):
    from fake import play

    planned = config(name)
    whole = run(planned)

    def stop(entry):
        if entry.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(planned, tmp_path / "run", on_round=stop)
    assert run(planned, tmp_path / "run", resume=True).model.same_as(whole.model)

    one_by_one = run(planned, environment=alone(planned)).model
    np.testing.assert_allclose(whole.model.weights, one_by_one.weights, atol=2e-3)
    over, _ = play(tmp_path / "flower", planned)
    np.testing.assert_allclose(over.model.weights, whole.model.weights, atol=1e-5)
    assert [entry.upload_bytes for entry in over.history] == [entry.upload_bytes for entry in whole.history]

    ours = run(replace(planned, method=OURS[name]), environment=alone(planned)).model
    np.testing.assert_allclose(ours.weights, one_by_one.weights, atol=1e-5)
