"""The network, the data and a plain training loop: nothing here knows of sparsity."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedsparsify.data import load_dataset, partition


class Net(nn.Module):
    """A perceptron for 8×8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 256)
        self.middle = nn.Linear(256, 256)
        self.output = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the ten digits."""
        return self.output(torch.relu(self.middle(torch.relu(self.hidden(x.flatten(1))))))


def load_data(number: int, clients: int) -> DataLoader:
    """One client's digits."""
    digits = load_dataset("digits")
    mine = partition(digits.y_train, clients, "iid", seed=0)[number]
    samples = TensorDataset(torch.from_numpy(digits.x_train[mine]), torch.from_numpy(digits.y_train[mine]))
    return DataLoader(samples, batch_size=32, shuffle=True)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """A training loop like any other; the mean loss of its last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    for _ in range(epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / len(loader)


def test(net: nn.Module) -> float:
    """Accuracy on the test digits."""
    digits = load_dataset("digits")
    net.eval()
    with torch.no_grad():
        predicted = net(torch.from_numpy(digits.x_test)).argmax(1)
    return (predicted == torch.from_numpy(digits.y_test)).float().mean().item()
