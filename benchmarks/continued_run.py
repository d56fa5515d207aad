"""More rounds of the GPU's CIFAR-10 Non-IID run at 0.95, on the CPU: does the accuracy stay where it was?

    FEDSPARSIFY_DATA=DIR python benchmarks/continued_run.py --out DIR [--rounds 4] [--limit SECONDS]

A whole run would take days on two cores, most of them in dense rounds. This one begins with the model that the GPU's
run ended with after 200 rounds (`results/models/cifar10-cnn-0.95.fsz`) and goes on with the same ten clients of 5,000
samples, 4 epochs and settings; the target sparsity stays. The accuracies of the GPU's last twenty rounds are printed
beside. It stops before a round that might pass the limit, and goes on from what it has kept.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from fedsparsify import METHODS, RunConfig, load, save
from fedsparsify.data import load_dataset
from fedsparsify.federation.rounds import run_rounds
from fedsparsify.federation.simulated import Simulated

RESULTS = Path(__file__).parents[1] / "results"
SEED, LAST = 1990, 200


def main() -> None:
    """Print the accuracy of every round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where models and accuracies are kept")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--limit", type=float, default=330, help="seconds")
    args = parser.parse_args()
    began = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    runs = json.loads((RESULTS / "cifar10-10-classes-5.json").read_text())["runs"]
    (there,) = (run for run in runs if run["name"] == f"FedSparsify-Global 0.95, seed {SEED}")
    last = there["accuracy"][-20:]
    print(f"GPU, rounds {LAST - 19} to {LAST}: {min(last):.4f} to {max(last):.4f}, last {last[-1]:.4f}", flush=True)
    log = args.out / "rounds.json"
    kept = json.loads(log.read_text()) if log.exists() else []
    for line in kept:
        print(line)
    model = load(args.out / f"{LAST + len(kept)}.fsz" if kept else RESULTS / "models" / "cifar10-cnn-0.95.fsz")
    config = RunConfig(
        data="cifar10",
        split="classes:5",
        clients=10,
        rounds=LAST + 100,
        seed=SEED,
        wire=False,
        device="cpu",
        method=METHODS["fedsparsify-global"](sparsity=0.95, end=LAST),
    )
    federation = Simulated(config, load_dataset("cifar10"))
    print(federation.environment.cohort.backend.name, f"epochs {config.epochs}, lr {config.lr}", flush=True)
    if not kept:
        print(f"before: {federation.evaluate(model).accuracy:.4f}", flush=True)
    longest = 0.0
    while len(kept) < args.rounds and time.perf_counter() - began + 1.1 * longest < args.limit:
        started, round = time.perf_counter(), LAST + len(kept) + 1
        (played,) = run_rounds(federation, config.method, model, round, round, SEED)
        model, longest = played.model, max(longest, time.perf_counter() - started)
        save(args.out / f"{round}.fsz", model)
        kept.append({"round": round, "accuracy": played.entry.accuracy, "sparsity": model.sparsity, "s": longest})
        log.write_text(json.dumps(kept))
        print(kept[-1], flush=True)


if __name__ == "__main__":
    main()
