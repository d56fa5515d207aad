"""Other simulators of federated learning on the work of `simulation.py`, each as its own documentation would write it.

`pip install 'flwr[simulation]' 'pfl[pytorch]' fedjax jax blazefl` into the environment that runs `simulation.py`
(BlazeFL needs Python 3.12). A side is a function that plays one round of FedAvg whenever its pipe says so.
"""

from __future__ import annotations

import multiprocessing
import os
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from simulation import BATCH, CLIENTS, EPOCHS, LR, SAMPLES, data, network
from torch import nn


def fit(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """What a client does in most PyTorch examples: an optimiser and a shuffling loader."""
    from torch.utils.data import DataLoader, TensorDataset

    optimiser = torch.optim.SGD(module.parameters(), lr=LR)
    loader = DataLoader(TensorDataset(x, y), BATCH, shuffle=True)
    for _ in range(EPOCHS):
        for xs, ys in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(xs), ys).backward()
            optimiser.step()


def loader(pipe: Connection) -> None:
    """The plain loop with torch's DataLoader, client after client, one thread."""
    import copy

    torch.set_num_threads(1)
    x, y = (torch.from_numpy(array).view(CLIENTS, SAMPLES, *array.shape[1:]) for array in data())
    server = network()
    for _ in iter(pipe.recv, None):
        mean = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in server.state_dict().items()}
        for client in range(CLIENTS):
            module = copy.deepcopy(server)
            fit(module, x[client], y[client])
            for name, value in module.state_dict().items():
                mean[name] += value / CLIENTS
        server.load_state_dict(mean)
        pipe.send("done")


@cache
def shard(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One client's samples, kept by whichever of Flower's actors asked for them."""
    x, y = data()
    mine = slice(client * SAMPLES, (client + 1) * SAMPLES)
    return torch.from_numpy(x[mine]), torch.from_numpy(y[mine])


def flower(pipe: Connection) -> None:
    """Flower's simulation engine: a ServerApp that sends to ten clients in Ray actors of one core each."""
    import ray
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        module = network()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        fit(module, *shard(int(context.node_config["partition-id"])))
        metrics = MetricRecord({"num-examples": SAMPLES})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    class Told(FedAvg):
        """FedAvg that waits for its word before every round."""

        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            if server_round > 1:
                pipe.send("done")
            if pipe.recv() is None:
                ray.shutdown()
                os._exit(0)
            return super().configure_train(server_round, arrays, config, grid)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Told(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=1000, train_config=ConfigRecord({}))

    run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


def pfl(pipe: Connection) -> None:
    """Apple's pfl: a simulated backend in one process, as its PyTorch examples set it up."""
    multiprocessing.current_process().name = "MainProcess"  # pfl sets itself up in a process of that name only
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)

    class Told(TrainingProcessCallback):
        """Waits for its word before every round."""

        def on_train_begin(self, *, model: Any) -> Metrics:
            pipe.recv()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            pipe.send("done")
            return pipe.recv() is None, Metrics()

    class Module(nn.Module):
        """The network with the two methods that pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x)

        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
            return nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, Any]:
            return {}

    module = Module()
    # Before the data: it tells pfl which framework this is.
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = list(range(CLIENTS))
    made = {user: PyTorchTensorDataset(list(shard(user)), user_id=str(user)) for user in users}
    dataset = FederatedDataset(made.__getitem__, get_user_sampler("minimize_reuse", users))
    params = NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=LR, local_batch_size=BATCH)
    FederatedAveraging().run(
        NNAlgorithmParams(1000, 10_000, CLIENTS, None),
        SimulatedBackend(training_data=dataset, val_data=dataset),
        model,
        params,
        params,
        [Told()],
        send_metrics_to_platform=False,
    )


class Shards:
    """The clients' samples as BlazeFL asks for them."""

    def get_dataset(self, type_: str, cid: int) -> Any:
        """One client's samples."""
        from torch.utils.data import TensorDataset

        return TensorDataset(*shard(cid))

    def set_dataset(self, type_: str, cid: int, dataset: Any) -> None:
        """Data sets do not change."""

    def get_dataloader(self, type_: str, cid: int, batch_size: int, generator: Any) -> Any:
        """Their batches."""
        from torch.utils.data import DataLoader

        return DataLoader(self.get_dataset(type_, cid), batch_size, shuffle=True, generator=generator)


class Selector:
    """The one network, as BlazeFL asks for it."""

    def select_model(self, name: str) -> nn.Module:
        """A new copy."""
        module: nn.Module = network()
        return module


def blazefl(pipe: Connection) -> None:
    """BlazeFL's pool of processes with one thread and shared memory, as in its quick start: new ones every round."""
    import tempfile
    from pathlib import Path

    from blazefl.contrib import FedAvgProcessPoolClientTrainer
    from blazefl.core import IPCMode

    folder = Path(tempfile.mkdtemp())
    trainer = FedAvgProcessPoolClientTrainer(
        *(Selector(), "it", folder / "share", folder / "state", Shards(), "cpu", CLIENTS, EPOCHS, BATCH, LR, 0),
        *(os.cpu_count() or 1, IPCMode.SHARED_MEMORY),
    )
    play_blazefl(trainer, pipe)


def blazefl_threads(pipe: Connection) -> None:
    """BlazeFL's pool of threads, for interpreters without a lock: here they share one."""
    from blazefl.contrib import FedAvgThreadPoolClientTrainer

    trainer = FedAvgThreadPoolClientTrainer(
        Selector(), "it", Shards(), "cpu", CLIENTS, EPOCHS, BATCH, LR, 0, os.cpu_count() or 1
    )
    play_blazefl(trainer, pipe)


def play_blazefl(trainer: Any, pipe: Connection) -> None:
    """Rounds of either pool."""
    from blazefl.contrib import FedAvgBaseServerHandler

    torch.set_num_threads(1)
    server = FedAvgBaseServerHandler(Selector(), "it", Shards(), 10_000, CLIENTS, 1.0, "cpu", BATCH, 0)
    trainer.progress_fn = lambda jobs: jobs
    for _ in iter(pipe.recv, None):
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        pipe.send("done")


def fedjax(pipe: Connection) -> None:
    """Google's FedJAX with its jit backend; `jax.tree_map`, which it still calls, is put back."""
    import jax

    jax.tree_map = jax.tree_util.tree_map  # type: ignore[attr-defined]
    import fedjax as fj
    import jax.numpy as jnp

    x, y = data()
    rng = np.random.default_rng(1)
    sizes = [(784, 128), (128, 128), (128, 10)]
    weights = [(jnp.asarray(rng.normal(0, 0.05, s).astype(np.float32)), jnp.zeros(s[1])) for s in sizes]

    def loss(weights: Any, batch: Any, key: Any) -> Any:
        h = batch["x"]
        for w, b in weights[:-1]:
            h = jax.nn.relu(h @ w + b)
        logits = h @ weights[-1][0] + weights[-1][1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1).mean()

    batches = fj.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=EPOCHS)
    algorithm = fj.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fj.optimizers.sgd(LR), fj.optimizers.sgd(1.0), batches
    )
    flat = x.reshape(CLIENTS, SAMPLES, 784), y.reshape(CLIENTS, SAMPLES)
    clients = [fj.ClientDataset({"x": flat[0][i], "y": flat[1][i]}) for i in range(CLIENTS)]
    state = algorithm.init(weights)
    for round in iter(pipe.recv, None):
        keys = jax.random.split(jax.random.PRNGKey(round), CLIENTS)
        asked = [(str(i), client, keys[i]) for i, client in enumerate(clients)]
        state, _ = algorithm.apply(state, asked)
        jax.block_until_ready(state.params)
        pipe.send("done")


SIDES = {
    "loader": loader,
    "flower": flower,
    "pfl": pfl,
    "fedjax": fedjax,
    "blazefl": blazefl,
    "blazefl-threads": blazefl_threads,
}
