"""Accuracy against ε at several sparsities: FashionMNIST, 1,000 clients, a tenth of them per round. Three steps:

    python benchmarks/privacy.py noise                    # the noise for each ε; needs Opacus
    python benchmarks/privacy.py run --device cuda        # the runs that are missing; needs no Opacus
    python benchmarks/privacy.py draw docs/figures/privacy.png    # needs matplotlib

All of them read and write `--out` (results/privacy.json). `run` stops after `--minutes`; a second call goes on.
Cohort and noise of a private run come from the operating system: its accuracy differs a little from call to call.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SPARSITIES = (0.0, 0.9, 0.99)
DELTA, RATE, CLIENTS = 1e-5, 0.1, 1000


def noise(found: dict[str, Any], rounds: int) -> None:
    """Find the noise for each ε."""
    from fedsparsify.aggregation.accountant import noise_for

    found["rounds"] = rounds
    found["noise"] = {f"{epsilon:g}": noise_for(epsilon, DELTA, RATE, rounds) for epsilon in EPSILONS}
    print(found["noise"])


def run(found: dict[str, Any], out: Path, device: str, minutes: float, seeds: int, clip: float) -> None:
    """Run what is missing: with each noise, and without."""
    from fedsparsify import RunConfig, load_dataset
    from fedsparsify.aggregation import Aggregator
    from fedsparsify.aggregation.accountant import Accountant
    from fedsparsify.aggregation.privacy import Privacy
    from fedsparsify.federation.environment import Environment
    from fedsparsify.federation.rounds import run_rounds
    from fedsparsify.federation.simulated import Simulated

    class Known(Accountant):
        """The rounds' ε is not asked for: that of the whole run is known."""

        def epsilon(self, releases: int) -> float:
            return 0.0

    runs, began, shared = found.setdefault("runs", {}), time.monotonic(), None
    dataset = load_dataset("fashion-mnist")
    wanted = [
        (seed, epsilon, sparsity)
        for seed in range(1990, 1990 + seeds)
        for epsilon in (*found["noise"], "none")
        for sparsity in SPARSITIES
    ]
    for seed, epsilon, sparsity in wanted:
        name = f"epsilon {epsilon} sparsity {sparsity:g} seed {seed}"
        if name in runs:
            continue
        if time.monotonic() - began > 60 * minutes:
            print("stopped: call again for the rest")
            return
        config = RunConfig(
            data="fashion-mnist",
            method={"name": "fedsparsify-global", "sparsity": sparsity} if sparsity else "fedavg",
            clients=CLIENTS,
            participation=RATE,
            rounds=found["rounds"],
            epochs=4,
            batch_size=20,
            lr=0.1,
            seed=seed,
            device=device,
            wire=False,
            dp_noise=found["noise"].get(epsilon, 0.0),
            dp_clip=clip,
            delta=DELTA,
        )
        shared = shared or Environment(config, dataset)
        federation, started = Simulated(config, dataset, shared), time.perf_counter()
        privacy = None
        if config.private:
            privacy = Privacy(config, CLIENTS, RATE, config.rounds)
            privacy._accountant = Known(RATE, config.dp_noise, DELTA, config.rounds)
        rounds = run_rounds(
            federation,
            config.method,
            federation.initial(),
            1,
            config.rounds,
            seed,
            clients=CLIENTS,
            aggregator=Aggregator(config, privacy=privacy),
        )
        history = [played.entry for played in rounds]
        runs[name] = {
            "accuracy": float(np.mean([entry.accuracy for entry in history[-3:]])),
            "by round": [round(entry.accuracy, 4) for entry in history],
            "noise": config.dp_noise,
            "clip": clip,
            "seconds": round(time.perf_counter() - started, 1),
        }
        out.write_text(json.dumps(found, indent=1))
        print(name, runs[name]["accuracy"], f"{runs[name]['seconds']} s", flush=True)


def draw(found: dict[str, Any], path: Path) -> None:
    """Accuracy against ε, a line per sparsity; to the right, without privacy. Also as a Markdown table."""
    import matplotlib.pyplot as plt

    def accuracies(epsilon: str, sparsity: float) -> list[float]:
        begin = f"epsilon {epsilon} sparsity {sparsity:g} seed"
        return [one["accuracy"] for name, one in found["runs"].items() if name.startswith(begin)]

    names = [name for name in found["noise"] if all(accuracies(name, sparsity) for sparsity in SPARSITIES)]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    print("| sparsity | " + " | ".join(f"ε = {name}" for name in names) + " | no privacy |")
    print("|---|" + "---|" * (len(names) + 1))
    for sparsity, colour in zip(SPARSITIES, ("#7a7a7a", "#2f6fb0", "#b5432b"), strict=True):
        cells = [accuracies(name, sparsity) for name in (*names, "none")]
        print(f"| {sparsity:g} | " + " | ".join(f"{np.mean(cell):.3f}" if cell else "?" for cell in cells) + " |")
        points = [(float(name), cell) for name, cell in zip(names, cells, strict=False) if cell]
        label = f"sparsity {sparsity:g}" if sparsity else "dense"
        axes.plot([x for x, _ in points], [np.mean(cell) for _, cell in points], "o-", color=colour, label=label)
        if cells[-1]:
            axes.axhline(float(np.mean(cells[-1])), color=colour, linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks([float(name) for name in names], names)
    axes.set_xlabel(f"ε at δ = {DELTA:g} after {found['rounds']} rounds (dotted: without privacy)")
    axes.set_ylabel("test accuracy")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """One of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("noise", "run", "draw"))
    parser.add_argument("figure", nargs="?", type=Path, default=Path("docs/figures/privacy.png"))
    parser.add_argument("--out", type=Path, default=Path("results/privacy.json"))
    parser.add_argument("--rounds", type=int, default=60, help="of `noise`")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clip", type=float, default=0.5)
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    if args.step == "noise":
        noise(found, args.rounds)
        args.out.write_text(json.dumps(found, indent=1))
    elif args.step == "run":
        run(found, args.out, args.device, args.minutes, args.seeds, args.clip)
    else:
        draw(found, args.figure)


if __name__ == "__main__":
    main()
