"""A plain Flower client: torch.optim, a state_dict each way."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsparsify.networks import build

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """One round of local training."""
    run, node = context.run_config, context.node_config
    shape = tuple(int(side) for side in run["shape"].split(","))
    net = build(run["network"], shape, run["classes"], 0)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with np.load(run["data"], allow_pickle=False) as file:
        mine = slice(node["client"], None, node["clients"])
        x, y = torch.from_numpy(file["x_train"][mine]), torch.from_numpy(file["y_train"][mine])
    optimizer = torch.optim.SGD(net.parameters(), lr=run["lr"])
    net.train()
    for _ in range(run["epochs"]):
        for batch in torch.split(torch.randperm(len(y)), run["batch"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
