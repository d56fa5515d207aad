"""The engine on random graphs under guard pages: no signal, no wrong value, no memory beyond its cap.

    python tests/fuzz/fuzz_engine.py 2000 --seed 1

Graphs run in a process of their own, which goes on after the graph that ended it. Exits with 1 where one failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

CAPS = (3 * 10**6, 3 * 10**7, 3 * 10**8, 3 * 10**8, 6 * 10**9)
OVERHEAD = 3 * 10**6  # Python's own objects
SECONDS = 120  # of a graph


def one(seed: int, place: int, folder: Path) -> dict[str, Any]:
    """What became of one graph: it ran, was refused (and why), or failed."""
    import guard_pages
    import numpy as np
    from random_graphs import draw, expected, quick

    from fedsparsify.errors import FedSparsifyError
    from fedsparsify.inference import Engine, planner
    from fedsparsify.wire.artefact import save

    rng = Random(f"{seed}/{place}")
    graph = draw(rng)
    while not graph.nodes:
        graph = draw(rng)
    images = rng.choice((1, 1, 2, 5, 16, 17, 40))
    threads, lanes = rng.choice((1, 1, 2, 3)), rng.choice((16, 8, 4))
    kernels, cap, way = rng.choice(("auto", "sparse", "dense")), rng.choice(CAPS), rng.randrange(3)
    for name in ("SHARED_VECTORS", "FLAT_VECTORS", "DIVIDED_VECTORS"):
        setattr(planner, name, rng.choice((0, getattr(planner, name) or 10**5)))
    save(folder / "model.fsz", graph.model, {"graph": [node.to_json() for node in graph.nodes]})
    said = f"{graph.sample} × {images}, {threads} threads, {lanes} lanes, {kernels}, {cap:,} bytes, {graph.nodes}"
    if way < 2:
        guard_pages.install(at_end=way == 1)
    else:
        guard_pages.remove()
        tracemalloc.start()
    try:
        made = Engine(folder / "model.fsz", threads, None, lanes, kernels, cap)
        if not quick(graph, images):
            made._plan((images, *graph.sample))
            return {"became": "prepared, too long to run"}
        count = images * int(np.prod(graph.sample))
        batch = guard_pages.guarded(count, np.float32, way == 1).reshape(images, *graph.sample)
        batch[...] = np.random.default_rng(place).standard_normal(batch.shape, np.float32)
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
        received = [made.run(batch) for _ in range(2)]
        peak = tracemalloc.get_traced_memory()[1] if tracemalloc.is_tracing() else 0
        if peak > cap + OVERHEAD:
            return {"became": f"failed: took {peak:,} bytes", "graph": said}
        wanted = expected(graph, batch)
    except FedSparsifyError as error:
        return {"became": f"refused: {reason(str(error))}", "words": str(error)[:200]}
    except Exception as error:  # what must not be
        return {"became": f"failed: {type(error).__name__}: {error}", "graph": said}
    finally:
        tracemalloc.stop()
    limit = 1e-3 * max(float(np.abs(wanted).max()), 1e-3)
    for values in received:
        if values.shape != wanted.shape or not np.allclose(values, wanted, rtol=0, atol=limit):
            return {"became": "failed: wrong values", "graph": said}
    return {"became": "ran"}


def reason(text: str) -> str:
    """Which kind of refusal a message is."""
    kinds = ("32 bits", "of memory", "needs at least", "softmax runs over", "adds")
    return next((kind for kind in kinds if kind in text), text[:100])


def work(seed: int, first: int, last: int) -> None:
    """Graphs of some numbers, a line each."""
    with TemporaryDirectory() as folder:
        for place in range(first, last):
            print(json.dumps({"place": place, **one(seed, place, Path(folder))}), flush=True)


def fuzz(count: int, seed: int, first: int = 0) -> list[dict[str, Any]]:
    """What became of each graph; one that ends its process failed by a signal."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        words = [sys.executable, __file__, str(count), "--seed", str(seed), "--worker", str(first + len(found))]
        with subprocess.Popen([*words, "--until", str(first + count)], stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout
            for line in worker.stdout:
                found.append(json.loads(line))
                if len(found) % 200 == 0:
                    print(f"{len(found):6}  so far", file=sys.stderr, flush=True)
        if worker.returncode:
            found.append({"place": first + len(found), "became": f"failed: exit {worker.returncode}"})
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--worker", type=int)
    parser.add_argument("--until", type=int)
    words = parser.parse_args()
    if words.worker is not None:
        return work(words.seed, words.worker, words.until)
    started = perf_counter()
    found = fuzz(words.count, words.seed, words.first)
    for kind, times in Counter(item["became"] for item in found).most_common():
        print(f"{times:6}  {kind}")
    failed = [item for item in found if item["became"].startswith("failed")]
    for item in failed:
        print(item)
    print(f"{len(found)} graphs, seed {words.seed}, {perf_counter() - started:.0f} s, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
