from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import small_model

from fedsparsify import RunConfig, Update, load_dataset, run
from fedsparsify.aggregation import Aggregator, MergeSettings, accountant
from fedsparsify.aggregation.entropy import normal, poisson_cohort
from fedsparsify.aggregation.privacy import Privacy, clipped_sum
from fedsparsify.aggregation.releases import Releases
from fedsparsify.errors import ConfigError, MethodError, RunError
from fedsparsify.federation import wired
from fedsparsify.federation.environment import participants
from fedsparsify.federation.simulated import Simulated
from fedsparsify.methods import FedAvg, ServerContext, merged
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.notices import Notice
from fedsparsify.wire.codec import decode

pytestmark = pytest.mark.filterwarnings("ignore:the noise of a round is")
PRIVATE = {"clients": 8, "participation": 0.5, "rounds": 2, "epochs": 1, "dp_noise": 1.0, "delta": 1e-3}


@pytest.fixture
def cheap(monkeypatch):
    """An accountant that is not asked for real: a tenth per release."""
    monkeypatch.setattr(accountant.Accountant, "_computed", lambda self, releases: 0.1 * releases)


# ——— noise and cohorts


def test_noise_is_normal_and_never_the_same():
    drawn = normal(300_001)
    assert abs(drawn.mean()) < 0.01 and drawn.std() == pytest.approx(1, abs=0.01)
    assert np.mean(abs(drawn) > 2) == pytest.approx(0.0455, abs=0.003)
    assert (drawn**4).mean() == pytest.approx(3, abs=0.1)
    assert abs(np.corrcoef(drawn[: drawn.size // 2], drawn[-(drawn.size // 2) :])[0, 1]) < 0.015
    assert not np.array_equal(normal(5), normal(5))


def test_cohorts_are_poisson_and_do_not_follow_from_the_seed(cheap):
    sizes = [len(poisson_cohort(1000, 0.1)) for _ in range(300)]
    assert np.mean(sizes) == pytest.approx(100, abs=3) and np.std(sizes) == pytest.approx(9.5, abs=2)
    assert (poisson_cohort(5, 1.0), poisson_cohort(0, 0.5)) == ([0, 1, 2, 3, 4], [])
    config = RunConfig(**PRIVATE | {"clients": 200})
    assert participants(config, 1) != participants(config, 1)
    with pytest.raises(ConfigError, match="cohorts of its own"):
        participants(config, 1, 3)


# ——— sensitivity, on real updates


def test_one_client_more_or_less_moves_the_sum_by_the_clipping_norm_at_most():
    config = RunConfig(clients=6, epochs=1, rounds=1, lr=0.5)
    federation = Simulated(config, load_dataset("digits"))
    model = federation.initial()
    updates = list(federation.ask(config.method, 1, model, {}))
    norms = [np.linalg.norm(update.model.weights.astype(float) - model.weights) for update in updates]
    for clip in (0.01, float(np.median(norms)), 100.0):
        whole = clipped_sum(updates, model, clip)
        for left_out in range(len(updates)):
            others = clipped_sum(updates[:left_out] + updates[left_out + 1 :], model, clip)
            moved = np.linalg.norm(whole - others)
            assert moved == pytest.approx(min(clip, norms[left_out]), rel=1e-6)


def test_statistics_are_clipped_with_the_weights_and_samples_have_no_weight():
    model = small_model([0, 0], statistics=[0, 0])
    update = Update(small_model([3, 0], statistics=[0, 4]), samples=10**12)
    assert clipped_sum([update], model, 1.0).tolist() == pytest.approx([0.6, 0, 0, 0.8])
    assert clipped_sum([update, update], model, 100.0).tolist() == [6, 0, 0, 8]
    assert clipped_sum([Update(model, 1)], model, 1.0).tolist() == [0, 0, 0, 0]
    huge = Update(small_model([3e38, 0], statistics=[0, 0]), 1)
    assert np.linalg.norm(clipped_sum([huge], model, 1.0)) == pytest.approx(1)


def test_a_clients_own_mask_scores_and_other_arrays_do_not_get_through():
    model = small_model([1, 2], mask=[True, True])
    pruned = Update(model.under(np.array([True, False])), 1)
    assert clipped_sum([pruned], model, 9.0).tolist() == [0, -2]  # a zero like any other
    for extra in (Update(model, 1, scores=np.ones(2, np.float32)), Update(model, 1).send(control=np.ones(2, "f"))):
        with pytest.raises(MethodError, match="nothing beside them"):
            clipped_sum([extra], model, 1.0)


# ——— the noised mean


def privacy(clients=4, rate=0.5, **settings):
    made = MergeSettings(**{"dp_noise": 1.0, "dp_clip": 1.0} | settings)
    return Aggregator(made, privacy=Privacy(made, clients, rate, 10))


def test_the_denominator_is_fixed_and_an_empty_round_is_noise(cheap):
    model = small_model([0.0] * 4)
    quiet = privacy(dp_noise=1e-9)
    for answers in (0, 1, 3):
        step = quiet.begin(1, model)
        found = [Update(small_model([1, 1, 1, 1]), samples=5 + i, client=i) for i in range(answers)]
        made, _ = merged(
            FedAvg(rounds=1), 1, model, step.combined(found), np.random.default_rng(0), ServerContext({}, 4)
        )
        assert made.weights.tolist() == pytest.approx([answers * 0.5 / 2] * 4, abs=1e-6)  # norm 2 → 1, over q · N = 2
        assert step.least(3) == 0
    assert quiet.privacy.releases.count == 3
    assert quiet.privacy.epsilon == pytest.approx(0.3)


def test_noise_is_on_the_sum_and_shrinks_with_the_number_of_clients(cheap):
    model = small_model([0.0] * 20_000)
    for clients, rate in ((100, 1.0), (400, 0.5)):
        [first, *_] = privacy(clients, rate, dp_noise=2.0, dp_clip=3.0).begin(1, model).combined([])
        assert first.model.weights.std() == pytest.approx(2 * 3 / (clients * rate), rel=0.03)


def test_pruned_entries_get_no_noise_and_variances_stay_above_zero(cheap):
    layout = Layout((TensorSpec("w", (2,)),), (TensorSpec("bn.running_var", (500,)),))
    model = SparseModel(layout, np.zeros(502, np.float32), np.array([True, False]))
    [first, *_] = privacy(dp_noise=5.0).begin(1, model).combined([])
    assert first.model.weights[1] == 0 != first.model.weights[0]
    assert first.model.weights[2:].min() == 0 < first.model.weights[2:].max()


def test_a_run_that_cannot_learn_says_so(cheap):
    with pytest.warns(Notice, match="the noise of a round is 5e\\+03 times as long as any update may be"):
        privacy(dp_noise=1000.0, clients=40, rate=0.5).begin(1, small_model([0.0] * 10_000))


# ——— a run


def test_the_ledger_says_nothing_of_one_client(cheap, tmp_path):
    result = run(RunConfig(**PRIVATE), tmp_path / "run")
    assert [entry.epsilon for entry in result.history] == [0.1, 0.2]
    for line in map(json.loads, (tmp_path / "run" / "history.jsonl").read_text().splitlines()):
        assert not {"train_loss", "updates", "bounded", "client_bytes", "phases"} & line.keys()
        assert (line["clients"], line["refused"], line["upload_bytes"]) == (4, {}, None)
        assert line["upload_params"] == 4 * result.model.layout.total == line["download_params"] or line["round"] == 2
    other = run(RunConfig(**PRIVATE))
    assert not np.array_equal(result.model.weights, other.model.weights)  # cohort and noise are not the seed's


def test_what_travels_is_the_noised_model(cheap, monkeypatch):
    sent = []

    class Watched(wired.Encoder):
        def __init__(self, *args):
            super().__init__(*args)
            sent.append(self.blob())

    monkeypatch.setattr(wired, "Encoder", Watched)
    settings = PRIVATE | {"method": "fedavg", "participation": 1.0, "lr": 1e-12, "dp_clip": 4.0}
    result = run(RunConfig(**settings))  # clients move nothing: what moves is noise
    start = Simulated(RunConfig(**settings), load_dataset("digits")).initial()
    moved = sorted({round(float(np.std(decode(blob).weights - start.weights)), 9) for blob in sent})
    assert moved[0] < 1e-6  # round 1 sends the start
    second = [std for std in moved if std > 1e-6]
    assert second and all(std == pytest.approx(4.0 / 8, rel=0.05) for std in second)  # z · C / (q · N)
    assert np.std(result.model.weights - start.weights) == pytest.approx(2**0.5 * 4 / 8, rel=0.05)


def test_a_replayed_round_is_counted(cheap, tmp_path):
    config = RunConfig(**PRIVATE | {"rounds": 3, "checkpoint_every": 2})
    out = tmp_path / "run"
    run(config, out)
    lines = (out / "privacy.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    other = tmp_path / "killed"
    with pytest.raises(ZeroDivisionError):
        run(config, other, on_round=lambda entry: 1 // (2 - entry.round))
    with (other / "privacy.jsonl").open("a") as file:
        file.write('{"round": 3, "noise": 1.0, "rate": 0.5}\n{"rou')  # killed in round 3, and again
    resumed = run(config, other, resume=True)
    assert [entry.epsilon for entry in resumed.history] == pytest.approx([0.1, 0.2, 0.5])
    assert Releases(other / "privacy.jsonl").count == 5
    (other / "privacy.jsonl").unlink()
    with pytest.raises(RunError, match="What was spent is unknown"):
        run(config, other, resume=True)


def test_the_budget_ends_a_run_and_may_be_raised(cheap, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsparsify.aggregation.privacy.noise_for", lambda *arguments: 1.25)
    config = RunConfig(**PRIVATE | {"rounds": 3, "dp_noise": 0.0, "epsilon": 0.2})
    with pytest.raises(RunError, match=r"round 3 would spend ε = 0.3, and epsilon is 0.2: 2 noised sums .*--epsilon"):
        run(config, tmp_path / "run")
    assert "dp_noise = 1.25" in (tmp_path / "run" / "config.toml").read_text()
    raised = RunConfig(**PRIVATE | {"rounds": 3, "dp_noise": 1.25, "epsilon": 0.35})
    assert run(raised, tmp_path / "run", resume=True).history[-1].epsilon == pytest.approx(0.3)
    with pytest.raises(RunError, match=r"3 rounds with dp_noise 1 cost ε = 0.3"):
        run(RunConfig(**PRIVATE | {"rounds": 3, "dp_noise": 1.0, "epsilon": 0.2}))


def test_which_settings_make_another_run():
    asked = RunConfig(**PRIVATE | {"dp_noise": 0.0, "epsilon": 8.0})
    found = RunConfig(**PRIVATE | {"dp_noise": 1.25, "epsilon": 8.0})
    assert asked.differences(found) == []  # what a sweep asks for, and what its run has
    assert RunConfig(**PRIVATE | {"dp_noise": 1.25, "epsilon": 9.0}).differences(found) == []
    assert RunConfig(**PRIVATE | {"dp_noise": 0.0, "epsilon": 9.0}).differences(found) == ["epsilon 8.0 is now 9.0"]
    assert RunConfig(**PRIVATE | {"dp_noise": 1.5}).differences(found) == ["dp_noise 1.25 is now 1.5"]
    assert len(RunConfig(**PRIVATE | {"dp_noise": 0.0}).differences(found)) == 2


# ——— what would void it


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"method": "fedsparsify-local"}, "clients send masks"),
        ({"method": "feddst"}, "clients send masks"),
        ({"method": "prunefl"}, "clients send masks"),
        ({"method": "snip"}, "clients are asked for scores"),
        ({"method": "grasp"}, "clients are asked for scores"),
        ({"method": FedAvg(correction="scaffold")}, "clients send control beside"),
        ({"merge": "median"}, "needs merge 'mean'"),
        ({"diagnose": True}, "diagnose False: it looks at training samples"),
        ({"min_clients": 2}, "min_clients 1"),
        ({"evaluate": "clients"}, "evaluate 'server': what clients measure is published without noise"),
        ({"evaluate": "both"}, "evaluate 'server'"),
        ({"max_samples": 5}, "max_samples 0: clients have equal weights"),
        ({"delta": 0.5}, "delta must be below 1 / clients = 0.125"),
        ({"delta": 0.0}, "delta must lie"),
        ({"dp_clip": 0.0}, "dp_clip must be positive"),
        ({"dp_noise": -1.0}, "dp_noise must be positive"),
        ({"epsilon": float("inf")}, "epsilon must be positive"),
    ],
)
def test_what_would_void_it_is_refused_by_name(settings, why):
    with pytest.raises(ConfigError, match=why):
        RunConfig(**PRIVATE | settings)


# ——— the accountant


def test_without_opacus_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opacus.accountants.analysis", None)
    with pytest.raises(ConfigError, match=r"fedsparsify\[privacy\]"):
        accountant.Accountant(0.1, 1.0, 1e-5, 10).epsilon(1)


# dp-accounting 0.6.0: PLDAccountant, PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), composed `rounds` times.
GOOGLES = [
    (0.1, 1.0, 1e-5, 200, 9.97128),
    (0.1, 1.0, 1e-5, 1, 1.68454),
    (0.1, 2.0, 1e-5, 50, 1.65250),
    (0.05, 0.7, 1e-6, 100, 9.21239),
    (1.0, 10.0, 1e-3, 200, 4.84525),
    (1.0, 1.0, 1e-3, 200, 142.79903),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise", "delta", "rounds", "epsilon"), GOOGLES)
def test_a_second_accountant_agrees_within_a_hundredth(rate, noise, delta, rounds, epsilon):
    ours = accountant.Accountant(rate, noise, delta, rounds)
    assert epsilon * 0.999 < ours.epsilon(rounds) < epsilon * 1.01


@pytest.mark.slow
def test_the_noise_for_a_budget_is_the_least():
    noise = accountant.noise_for(4.0, 1e-5, 0.1, 20)
    assert accountant.Accountant(0.1, noise, 1e-5, 20).epsilon(20) <= 4.0
    assert accountant.Accountant(0.1, 0.99 * noise, 1e-5, 20).epsilon(20) > 4.0


def delta_by_hand(epsilon: float, rate: float, noise: float) -> float:
    """δ(ε) of one release, by summing the two densities on a grid: with one client more, and with one less."""
    x = np.linspace(-40 * noise, 1 + 40 * noise, 400_001)
    without = np.exp(-(x**2) / (2 * noise**2))
    mixed = (1 - rate) * without + rate * np.exp(-((x - 1) ** 2) / (2 * noise**2))
    scale = (x[1] - x[0]) / (noise * np.sqrt(2 * np.pi))
    pairs = (mixed, without), (without, mixed)
    return max(float(np.maximum(p - np.exp(epsilon) * q, 0).sum() * scale) for p, q in pairs)


@pytest.mark.slow
def test_epsilon_of_one_release_is_what_its_definition_says():
    for rate, noise in ((0.1, 1.0), (0.3, 2.0)):
        epsilon = accountant.Accountant(rate, noise, 1e-5, 1).epsilon(1)
        assert delta_by_hand(epsilon, rate, noise) <= 1e-5 < delta_by_hand(epsilon * 0.985, rate, noise)
