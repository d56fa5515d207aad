"""One client: answers a method's requests by training on its own samples.

In: requests (`Fit`, `Score`). Out: updates. Also the evaluation of a model on test samples.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import arrays
from ..arrays import FloatArray
from ..data.partition import Indices
from ..errors import DataError, ModelError
from ..keyed import client_seed, key_of, pad_crop_flip, seeded, step_key
from ..methods import Client, ClientContext, Fit, Request, Score, Update, run_client
from ..model import Floats, SparseModel
from ..state import State
from ..tasks import targets_of
from .adam import STATE, adam_step
from .fixed_norms import set_training
from .flat import FlatModule, flat_gradient, hessian_gradient
from .inputs import Samples as Samples
from .inputs import call
from .losses import Loss, loss_of
from .objective import Evaluation as Evaluation
from .objective import Objective
from .powerpropagation import Powered
from .pruned_inputs import inputs_pruned
from .settings import OPTIMIZER, Training

SINGLE_SAMPLE = (
    "Expected more than 1 value per channel"  # in the error of torch's batch norms for a batch of one sample
)
METHOD = 2**31 + 1  # the part of a client's randomness that a method draws from
PROBE = 2**31  # the part of a client's randomness that draws the batch of a `Score`; epochs have the numbers below
TINY = 1e-12  # beside the norm of a gradient that may be zero
PROBE_CLASSES = 10  # as many as this are assumed where targets are not classes


class Worker:
    """One client in one round. Its randomness depends on (seed, round, client) alone."""

    def __init__(
        self,
        network: FlatModule,
        samples: Samples,
        mine: Indices,
        training: Training,
        round: int,
        client: int,
        state: State | None = None,
    ) -> None:
        self.network, self._samples, self._mine, self._training = network, samples, mine, training
        self.client, self.round, self._loss = client, round, loss_of(training)
        self.key = key_of(client_seed(training.seed, round, client))
        self.steps = self.epochs = 0  # taken so far in this round
        self._state = state or {}
        # The local optimiser's state: `momentum`; or `first`, `second` and `steps`. Pruned entries are zero.
        self.optimizer: dict[str, torch.Tensor] = {}
        for name, value in self._state.items():
            if training.keep_optimizer and name.startswith(OPTIMIZER):
                self.optimizer[name.removeprefix(OPTIMIZER)] = beside(value, network.weights)

    @property
    def samples(self) -> int:
        """How many samples the client holds."""
        return int(self._mine.size)

    def context(self, classes: int, received: State) -> ClientContext:
        """What the client's half of a method is given."""

        def labels() -> NDArray[np.int64]:
            return np.asarray(self._samples.y[torch.from_numpy(self._mine).to(self._samples.y.device)].cpu())

        return ClientContext(
            self.client,
            {name: value for name, value in self._state.items() if not name.startswith(OPTIMIZER)},
            received,
            labels if self._samples.y.ndim == 1 and not self._samples.y.is_floating_point() else None,
            classes,
            lambda: client_seed(self._training.seed, self.round, self.client, METHOD),
            self.samples,
        )

    def kept(self, update: Update) -> State | None:
        """What the client keeps after the round; None: what it has kept so far, as after an update of no use."""
        if not update.trusted:
            return None
        state = {name: value for name, value in self._state.items() if not name.startswith(OPTIMIZER)}
        if update.state is not None:
            state = dict(update.state)
        for name, value in self.optimizer.items() if self._training.keep_optimizer else ():
            number = name == "steps"
            state[OPTIMIZER + name] = float(value) if number else arrays.placed(value, update.model.weights)
        return state or None

    @property
    def steps_per_epoch(self) -> int:
        """The batches of its samples."""
        return -(-self.samples // self._training.batch_size)

    @property
    def fixed_norms(self) -> bool:
        """Whether batch norms take the model's running statistics in this round."""
        return self._training.norms_fixed(self.round)

    def rates(self, epochs: int) -> NDArray[np.float64]:
        """The learning rate of each step that answers a request for so many epochs."""
        return self._training.rates(self.round, epochs * self.steps_per_epoch)

    def next_order(self) -> Indices:
        """The client's samples in the order of its next epoch."""
        rng = np.random.default_rng(client_seed(self._training.seed, self.round, self.client, self.epochs))
        self.epochs += 1
        return self._mine[rng.permutation(self._mine.size)]

    def run(self, client: Client, train: Callable[[Request], Update] | None = None) -> Update:
        """Answer the client's requests until it returns its update; with `train`, that answers those that train."""

        def answer(request: Request) -> Update:
            return train(request) if train and request.trains else self.answer(request)

        return replace(run_client(client, answer), client=self.client)

    def answer(self, request: Request) -> Update:
        """The answer to one request."""
        return self.score(request) if isinstance(request, Score) else self.fit(request)

    def fit(self, request: Fit, squares: torch.Tensor | None = None) -> Update:
        """Train under the model's mask: pruned entries stay exactly zero, in the weights and in the optimiser's state.

        The squared gradient of every step, pruned entries included, is added to `squares` where it is given.
        """
        network, training = self.network, self._training
        network.load(request.model)
        set_training(network.module, self.fixed_norms)
        pruned = ~torch.as_tensor(request.model.mask).to(network.device)
        masked = bool(pruned.any())
        values = network.weights[: network.layout.trainable]  # that the network takes; `weights` are trained
        powered = Powered(values, network.layout, request.power) if request.power != 1 else None
        weights = powered.weights if powered else values
        anchor = weights.clone() if request.prox else weights
        linear = None if request.linear is None else beside(request.linear, weights).masked_fill(pruned, 0)
        step, epochs = self._optimizer_step(weights, pruned), request.epochs or training.epochs
        rates = self.rates(epochs)
        left = iter(rates.tolist())
        with seeded(self.key) if network.draws else nullcontext(), inputs_pruned(request.prune_inputs):
            for _ in range(epochs):
                total = torch.zeros((), device=network.device)
                order = torch.from_numpy(self.next_order()).to(network.device)
                for batch in torch.split(order, training.batch_size):
                    total += self._backward(batch) * len(batch)
                    if training.sam:
                        self._backward_uphill(batch, pruned)
                    if squares is not None:
                        squares.addcmul_(network.gradient, network.gradient)
                    if powered:
                        powered.to_weights(network.gradient)
                    gradient = network.gradient.masked_fill_(pruned, 0) if masked else network.gradient
                    if request.prox:
                        gradient.add_(weights - anchor, alpha=request.prox)
                    if linear is not None:
                        gradient.add_(linear)
                    if training.clip_norm:
                        gradient.mul_((training.clip_norm / (gradient.norm() + 1e-6)).clamp_(max=1))
                    step(gradient, next(left))
                    if powered:
                        powered.to_values()
        model = SparseModel(network.layout, network.values(), request.model.on_host().mask)
        model = model.beside(request.model.weights)
        return Update(model, self.samples, float(total) / self.samples, rates=float(rates.sum()))

    def _backward_uphill(self, batch: torch.Tensor, pruned: torch.Tensor) -> None:
        """Fill the flat gradient with that of the same batch at w + ρ g/‖g‖ (SAM: Foret et al., 2021).

        g is the masked gradient at the weights w, which is there already. Running statistics are those at w.
        """
        network = self.network
        way, before = network.gradient.masked_fill(pruned, 0), network.weights.clone()
        network.weights[: network.layout.trainable] += way * (self._training.sam / (way.norm() + TINY))
        self.steps -= 1  # the same dropout and augmentation
        self._backward(batch)
        network.weights.copy_(before)

    def _optimizer_step(self, weights: torch.Tensor, pruned: torch.Tensor) -> Callable[[torch.Tensor, float], None]:
        """A function that moves the weights by a gradient, at a learning rate. It may change the gradient."""
        training = self._training
        names = STATE if training.optimizer != "sgd" else ("momentum",) if training.momentum else ()
        state = self.optimizer = {
            name: self.optimizer.get(name, torch.zeros_like(weights[:1] if name == "steps" else weights))
            for name in names
        }
        for name in set(names) - {"steps"}:
            state[name].masked_fill_(pruned, 0)

        def sgd(gradient: torch.Tensor, rate: float) -> None:
            if training.weight_decay:
                gradient.add_(weights, alpha=training.weight_decay)
            if training.momentum:
                velocity = state["momentum"].mul_(training.momentum).add_(gradient)
                gradient = gradient.add(velocity, alpha=training.momentum) if training.nesterov else velocity
            weights.sub_(gradient, alpha=rate)

        def adam(gradient: torch.Tensor, rate: float) -> None:
            if training.optimizer == "adamw":
                weights.mul_(1 - rate * training.weight_decay)
            elif training.weight_decay:
                gradient.add_(weights, alpha=training.weight_decay)
            state["steps"] += 1
            adam_step(weights, gradient, state["first"], state["second"], state["steps"], rate)

        return sgd if training.optimizer == "sgd" else adam

    def score(self, request: Score) -> Update:
        """Compute the scores that the request names.

        Scores from one batch depend on (seed, round, client) and the model alone, not on requests before it.
        """
        network = self.network
        if request.by == "squares":
            squares = torch.zeros_like(network.gradient)
            update = self.fit(Fit(request.model, request.epochs), squares)
            return replace(update, scores=squares.cpu().numpy())
        batch = self._probe(request.per_class, request.samples)
        network.load(request.model)
        network.module.train()  # as in training: at initialisation, running statistics mean nothing yet
        network.key.fill_(self.key)
        with seeded(self.key):
            output = call(network.module, self._samples.x[batch])
            if targets_of(self._training.loss) in ("classes", "labels"):  # outputs are logits
                output = output / request.temperature
            loss = self._loss(output, self._samples.y[batch])
            quantity = hessian_gradient if request.by == "hessian-gradient" else flat_gradient
            scores = quantity(loss, network.parameters).cpu().numpy()
        return Update(request.model, self.samples, float(loss.detach()), scores=scores)

    def _probe(self, per_class: int, samples: int) -> torch.Tensor:
        """So many random samples; 0: up to `per_class` of each class of the client, ten times that of other targets."""
        rng = np.random.default_rng(client_seed(self._training.seed, self.round, self.client, PROBE))
        mine = rng.permutation(self._mine)
        if samples:
            return torch.from_numpy(mine[:samples]).to(self.network.device)
        if self._samples.y.ndim > 1 or self._samples.y.is_floating_point():
            return torch.from_numpy(mine[: PROBE_CLASSES * per_class]).to(self.network.device)
        labels = self._samples.y[torch.from_numpy(mine).to(self.network.device)].cpu().numpy()
        picked = [mine[labels == name][:per_class] for name in np.unique(labels)]
        return torch.from_numpy(np.concatenate(picked)).to(self.network.device)

    def _backward(self, batch: torch.Tensor) -> torch.Tensor:
        """Fill the flat gradient with that of one batch, and return its mean loss."""
        network = self.network
        network.key.fill_(step_key(self.key, self.steps))
        self.steps += 1
        x: Any = self._samples.at(batch)
        if self._training.augment == "pad-crop-flip":
            x = pad_crop_flip(x, network.key)
        network.refresh()
        try:
            loss = self._loss(call(network.module, x), self._samples.y[batch])
        except ValueError as error:
            if len(batch) > 1 or SINGLE_SAMPLE not in str(error):
                raise
            who = f"client {self.client} holds {self.samples:,}"
            raise single_sample_error(who, self._training.batch_size) from error
        loss.backward()  # type: ignore[no-untyped-call]
        network.settle()
        return loss.detach()


def beside(values: FloatArray | float, weights: torch.Tensor) -> torch.Tensor:
    """A copy of flat values, or of one number, in the type and on the device of the weights."""
    copied = values.clone() if isinstance(values, torch.Tensor) else torch.tensor(values)
    return copied.to(weights).reshape(-1)


def single_sample_error(who: str, batch_size: int) -> DataError:
    """The error for a batch of one sample, which has no variance for batch norm."""
    return DataError(
        f"batch norm cannot train on a batch of one sample: {who} samples, in batches of {batch_size}. "
        f"Choose another batch_size, or leave a sample out."
    )


def evaluation_batch(network: FlatModule, samples: Samples) -> int:
    """How many samples to evaluate at a time."""
    on_cpu = network.device.type == "cpu"
    large = isinstance(samples.x, torch.Tensor) and samples.x[0].numel() > 1000
    return 1000 if on_cpu else 2500 if large else len(samples.y)


@torch.no_grad()
def evaluate(
    network: FlatModule, model: SparseModel, samples: Samples, objective: Objective | None = None
) -> Evaluation:
    """Accuracy, mean loss and further metrics of a model; accuracy and cross-entropy where no objective is given."""
    objective = objective or Objective()
    count, batch = len(samples.y), evaluation_batch(network, samples)
    network.load(model)
    network.module.eval()
    right = loss = torch.zeros((), device=network.device)
    version = samples.x._version
    outputs, counts = [], False
    for start in range(0, count, batch):
        x, y = samples.x[start : start + batch], samples.y[start : start + batch]
        logits = network.logits(x)
        loss = loss + objective.total(logits, y)
        if counts := objective.has_accuracy(logits):
            right = right + (logits.argmax(1) == y).sum()
        if objective.metrics:
            outputs.append(logits.float().cpu())
    if samples.x._version != version:
        raise ModelError("the network wrote into its input, after it had left it alone before. Give forward a copy.")
    right, loss = torch.stack([right.double(), loss.double()]).tolist()
    measured: dict[str, float] = {}
    if objective.metrics:
        output, target = torch.cat(outputs), samples.y.cpu()
        measured = {metric.name: metric(output, target) for metric in objective.metrics}
    accuracy = right / samples.y.numel() if counts else measured.get("accuracy")
    return Evaluation(accuracy, loss / count, {name: x for name, x in measured.items() if name != "accuracy"})


def loss_and_gradient(
    network: FlatModule, model: SparseModel, samples: Samples, loss_function: Loss
) -> tuple[float, Floats]:
    """Mean loss of a model and its flat gradient, pruned entries included; without dropout, like `evaluate`."""
    network.load(model)
    network.module.eval()
    loss = loss_function(call(network.module, samples.x), samples.y)
    return float(loss.detach()), flat_gradient(loss, network.parameters).cpu().numpy()
