"""A plain Flower server: FedAvg, evaluated at the server after every round."""

from __future__ import annotations

import time

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsparsify.networks import build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and write down when each ended."""
    run = context.run_config
    shape = tuple(int(side) for side in run["shape"].split(","))
    net = build(run["network"], shape, run["classes"], 0)
    with np.load(run["data"], allow_pickle=False) as file:
        x, y = torch.from_numpy(file["x_test"]), torch.from_numpy(file["y_test"])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        net.eval()
        with torch.no_grad():
            accuracy = float((net(x).argmax(1) == y).float().mean())
        with open(run["history"], "a") as history:
            history.write(f"{server_round} {time.time()} {accuracy}\n")
        return MetricRecord({"accuracy": accuracy})

    strategy = FedAvg(fraction_evaluate=0.0)
    strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=run["rounds"], evaluate_fn=evaluate)
