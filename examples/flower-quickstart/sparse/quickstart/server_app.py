"""The server: starts from a fresh network and evaluates every round's model."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsparsify.federation.flower import SparseStrategy

from .task import Net, test

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy of the global model, and how many of its parameters are zero."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    values = [parameter.detach() for parameter in net.parameters()]
    zeros = sum(int((value == 0).sum()) for value in values) / sum(value.numel() for value in values)
    return MetricRecord({"accuracy": test(net), "zeros": zeros})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    rounds = context.run_config["num-rounds"]
    strategy = SparseStrategy("fedsparsify-global", sparsity=0.95, rounds=rounds, fraction_evaluate=0.0)
    strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=rounds, evaluate_fn=evaluate)
