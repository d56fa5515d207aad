"""FedRTS by hand: what clients name, how posteriors grow, what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import kernel_model

from fedsparsify import RunConfig, run
from fedsparsify.errors import ConfigError
from fedsparsify.methods import FedRTS, Fit, Score, ServerContext, Update, check_fits

MASK = [1, 1, 1, 1, 0, 0, 0, 0]
# Eight links of which four stay, and a last layer that is never pruned. Round 1 of T_end 2 moves k = ⌊¼ · 4⌋ = 1.
METHOD = FedRTS(rounds=4, sparsity=0.4, alpha=0.5, readjust=1, end=2, scale=10, trust=0.5)


def model(weights, mask=MASK):
    return kernel_model(np.reshape(weights, (2, 4)), [[1, 1]], masks=[np.reshape(mask, (2, 4)), [[1, 1]]])


class Highest:
    """In place of a generator: the mean of each posterior."""

    def beta(self, a, b):
        return a / (a + b)


def test_budgets_and_moves():
    layout = model([0] * 8).layout
    assert METHOD.budgets(layout) == [4, 2]
    assert METHOD.moved(1, layout) == [1, 0]
    assert METHOD.moved(2, layout) == [0, 0]
    assert [round for round in range(1, 5) if METHOD.adjusts(round)] == [1, 2]
    assert FedRTS(rounds=500).last == 300
    usual = FedRTS(rounds=500)
    assert [round for round in range(1, 501) if usual.adjusts(round)] == list(range(10, 301, 10))


def test_it_starts_at_its_budgets_by_magnitude():
    dense = kernel_model([[1, -8, 2, -7], [3, 6, -4, 5]], [[9, 9]])
    assert METHOD.begin(dense).weights.tolist() == [0, -8, 0, -7, 0, 6, 0, 5, 9, 9]


def test_a_client_names_the_pruned_links_with_the_largest_gradients():
    client = METHOD.client(1, model([1, 1, 1, 1, 0, 0, 0, 0]))
    assert isinstance(next(client), Fit)
    trained = model([4, -3, 2, 1, 0, 0, 0, 0])
    question = client.send(Update(trained, 5))
    assert isinstance(question, Score) and (question.by, question.samples) == ("gradient", 64)
    assert question.model is trained
    with pytest.raises(StopIteration) as done:
        client.send(Update(trained, 5, scores=np.float32([9, 9, 9, 9, 1, -7, 2, 0, 5, 5])))
    update = done.value.value
    assert update.model is trained
    assert update.scores.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert update.params == 6 + 1  # six weights and one name


def test_posteriors_by_hand():
    one = Update(model([4, -3, 2, 1, 0, 0, 0, 0]), 1, scores=np.float32([0, 0, 0, 0, 0, 1, 0, 0, 0, 0]))
    two = Update(model([4, -3, 1, 2, 0, 0, 0, 0]), 3, scores=np.float32([0, 0, 0, 0, 0, 1, 0, 0, 0, 0]))
    merged, state = METHOD.merge(1, model([1, 1, 1, 1, 0, 0, 0, 0]), iter([one, two]), Highest())
    wins, losses = np.split(state["posterior"], 2)
    # κ = 3. Mean: [4, −3, 1.25, 1.75]: its third is out. Clients: the fourth is out for one, the third for two.
    # X = ½ · [1, 1, 0, 1] + ½ · [1, 1, ¼, ¾]; of the pruned, ½ · ½ + ½ · [0, 1, 0, 0].
    assert wins[:8].tolist() == [11, 11, 2.25, 9.75, 3.5, 8.5, 3.5, 3.5]
    assert (wins + losses)[:8].tolist() == [12] * 8
    # The four highest means: the sixth takes the third's place, and starts at zero.
    assert merged.mask.tolist() == [True, True, False, True, False, True, False, False, True, True]
    assert merged.weights.tolist() == [4, -3, 0, 1.75, 0, 0, 0, 0, 1, 1]


def test_posteriors_persist_and_rest_after_the_end():
    start = model([4, 3, 2, 1, 0, 0, 0, 0])
    quiet = FedRTS(rounds=4, sparsity=0.4, alpha=0.5, readjust=3, end=3)
    update = Update(start, 2)
    merged, state = quiet.merge(1, start, iter([update]), Highest())
    assert merged.mask.tolist() == start.mask.tolist()
    _, state = quiet.merge(2, start, iter([update]), Highest(), ServerContext(state))
    wins, losses = np.split(state["posterior"], 2)
    assert (wins + losses)[:8].tolist() == [22] * 4 + [2] * 4  # pruned links are not counted in quiet rounds
    after = quiet.merge(4, start, iter([update]), Highest(), ServerContext(state))
    assert after.mask.tolist() == start.mask.tolist()


def test_pruned_links_have_a_posterior_in_the_checkpoint(tmp_path):
    config = RunConfig(method={"name": "fedrts", "readjust": 2, "end": 3}, rounds=3, epochs=1, clients=3)
    result = run(config, tmp_path / "run")
    assert result.model.pruned == int(0.8 * result.model.layout.trainable)


def test_names_take_few_bytes():
    """Three rounds of the same size, of which one also sends names: a set of places, and no values."""
    method = {"name": "fedrts", "sparsity": 0.8, "readjust": 2, "end": 3, "alpha": 0.4}
    result = run(RunConfig(method=method, rounds=3, epochs=1, clients=3, wire=True))
    quiet, adjusting, _ = (entry.upload_bytes for entry in result.history)
    named = (result.history[1].upload_params - result.history[0].upload_params) / 3
    assert named > 100
    assert 0 < (adjusting - quiet) / 3 < 1.5 * named  # bytes per client; a value would be four


def test_mistakes():
    wrong = ({"alpha": 1.0}, {"readjust": 0}, {"end": -1}, {"samples": 0}, {"scale": 0}, {"trust": 2}, {"sparsity": 80})
    for settings in wrong:
        with pytest.raises(ConfigError, match="Received"):
            RunConfig(method={"name": "fedrts", **settings})
    with pytest.raises(ConfigError, match="fewer than the 2 of biases"):
        check_fits(FedRTS(sparsity=0.95), model([0] * 8))
