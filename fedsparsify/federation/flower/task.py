"""What nodes are told once, in the settings of the Flower run: a question then has only a model and two numbers.

In: a run's config and the shapes of its data. Out: plain settings, and the task again from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ... import toml
from ...config import RunConfig, make_config, to_toml
from ...data.inputs import sizes_from_json
from ...errors import ConfigError


@dataclass(frozen=True)
class Task:
    """A run's config, the network's inputs and outputs, and a name that stays when the run is resumed."""

    config: RunConfig
    shape: Any  # of a sample; of several inputs, by name or in their order
    outputs: int  # of the network, per sample
    name: str

    def settings(self) -> dict[str, str | int]:
        """As settings of a Flower run, which are plain values."""
        return {
            "config": to_toml(self.config),
            "shape": json.dumps(self.shape),
            "outputs": self.outputs,
            "name": self.name,
        }

    @classmethod
    def read(cls, settings: Mapping[str, object]) -> Task:
        """Back from a Flower run's settings."""
        try:
            config = make_config(toml.loads(str(settings["config"])))
            shape = sizes_from_json(json.loads(str(settings["shape"])))
            return cls(config, shape, int(str(settings["outputs"])), str(settings["name"]))
        except (KeyError, ValueError) as error:
            raise ConfigError(f"the Flower run's settings lack something of a fedsparsify run: {error!r}.") from error
