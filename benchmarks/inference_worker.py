"""One engine in a process of its own: `inference_worker.py ENGINE MODEL ONNX SHAPE BATCH THREADS`, orders on stdin.

`time SECONDS` answers the milliseconds of each call, by the clock and of the processor; `memory` the bytes that the
process holds, held at most and held before the model was read; `logits PATH` writes what the engine gives for a fixed
batch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter, process_time

ENGINE, MODEL, ONNX, SHAPE, BATCH, THREADS = sys.argv[1:7]
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NM_NUM_CORES"):
    os.environ[variable] = THREADS
answers = os.fdopen(os.dup(1), "w")  # engines print banners
os.dup2(2, 1)

import numpy as np  # noqa: E402

from fedsparsify.engines import Subject, installed  # noqa: E402


def memory(field: str) -> int:
    """Bytes that this process holds (VmRSS) or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def answer(value: object) -> None:
    """One line of JSON."""
    print(json.dumps(value), file=answers, flush=True)


def main() -> None:
    """Prepare the engine, then obey."""
    shape = tuple(int(side) for side in SHAPE.split("x"))
    batch = np.sin(np.arange(int(BATCH) * np.prod(shape), dtype=np.float32) * 0.7).reshape(int(BATCH), *shape)
    if ENGINE.startswith("fedsparsify"):
        from fedsparsify.inference import Engine

        before, started = memory("VmRSS"), perf_counter()
        engine = Engine(MODEL, int(THREADS), kernels=ENGINE.partition(":")[2] or "auto")
        run = engine.run
    elif ENGINE in installed():
        before, started = memory("VmRSS"), perf_counter()
        subject = Subject(Path(MODEL), Path(ONNX), int(BATCH), int(THREADS))
        run = installed()[ENGINE](subject)
    else:
        answer({"missing": ENGINE})
        return
    run(batch)
    answer({"ready_seconds": perf_counter() - started})
    for line in sys.stdin:
        order, _, argument = line.strip().partition(" ")
        if order == "time":
            times: list[float] = []
            own: list[float] = []
            end = perf_counter() + float(argument)
            while perf_counter() < end or not times:
                used, start = process_time(), perf_counter()
                run(batch)
                times.append(1e3 * (perf_counter() - start))
                own.append(1e3 * (process_time() - used))
            answer({"ms": times, "own": own})
        elif order == "memory":
            answer({"peak": memory("VmHWM"), "serving": memory("VmRSS"), "before": before})
        else:
            np.save(argument, np.array(run(batch)))
            answer({})


main()
