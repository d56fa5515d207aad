"""Networks in whole numbers against our float engine and ONNX Runtime's int8 and float models, taking turns.

    python benchmarks/int8.py results/models/cifar10-cnn-0.90.fsz …     files, whose data sets FEDSPARSIFY_DATA holds
    python benchmarks/int8.py --batches 64 1 --threads 1 --turns 9 FILE

For each file: exported to int8; the same network quantised by ONNX Runtime's own tools (static, calibrated by the same
samples, QDQ and QOperator, of which the faster counts; and in float). All run in one process, in turns; a figure is
the median of its turns, a ratio the median of the turns' ratios. Accuracy is that of the whole test set.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from fedsparsify import load_dataset
from fedsparsify.export import export
from fedsparsify.inference import Engine
from fedsparsify.model import Floats
from fedsparsify.wire.artefact import load_facts

SAMPLES = 256
Run = Callable[[Floats], Floats]


class Samples(CalibrationDataReader):
    """Calibration samples, as ONNX Runtime asks for them."""

    def __init__(self, x: Floats) -> None:
        self._batches = iter(np.split(x, range(32, len(x), 32)))

    def get_next(self) -> dict[str, Floats] | None:
        """The next batch."""
        batch = next(self._batches, None)
        return None if batch is None else {"input": batch}


def session(path: Path, threads: int) -> Run:
    """A model in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    made = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda batch: made.run(None, {"input": batch})[0]


def quantised(model: Path, samples: Floats, folder: Path) -> dict[str, Path]:
    """The float model and both int8 models of ONNX Runtime."""
    whole = export(model, "onnx", folder / "float.onnx")
    ready = folder / "ready.onnx"
    quant_pre_process(str(whole), str(ready))
    made = {"ort float": whole}
    for kind in (QuantFormat.QDQ, QuantFormat.QOperator):
        path = folder / f"{kind.name}.onnx"
        quantize_static(
            str(ready),
            str(path),
            Samples(samples),
            quant_format=kind,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        made[f"ort {kind.name}"] = path
    return made


def turns(engines: Mapping[str, Run], batch: Floats, count: int, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of a batch, per engine and turn."""
    for run in engines.values():
        run(batch)
    made: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(count):
        for name, run in engines.items():
            times: list[float] = []
            end = perf_counter() + seconds
            while not times or perf_counter() < end:
                started = perf_counter()
                run(batch)
                times.append(1e3 * (perf_counter() - started))
            made[name].append(median(times))
    return made


def accuracy(run: Run, x: Floats, y: np.ndarray) -> float:
    """Percent of the test set."""
    right = sum(int((run(x[k : k + 500]).argmax(1) == y[k : k + 500]).sum()) for k in range(0, len(x), 500))
    return 100 * right / len(x)


def measure(model: Path, arguments: argparse.Namespace, folder: Path) -> None:
    """Print the rows of one file."""
    data = load_dataset(str(load_facts(model)["data"]))
    chosen = np.sort(np.random.default_rng(0).permutation(len(data.x_train))[:SAMPLES])
    samples = np.ascontiguousarray(data.x_train[chosen], np.float32)
    path = export(model, "int8", folder / "model.int8.fsz", samples)
    size = path.stat().st_size / model.stat().st_size
    files = quantised(model, samples, folder)
    threads = arguments.threads
    engines: dict[str, Run] = {"float": Engine(model, threads).run, "int8": Engine(path, threads).run}
    engines |= {name: session(file, threads) for name, file in files.items()}
    if arguments.accuracy:
        names = ("float", "int8", "ort QDQ")
        found = {name: accuracy(engines[name], data.x_test, data.y_test) for name in names}
        print(f"{model.stem}: file {size:.3f}; " + ", ".join(f"{k} {v:.2f} %" for k, v in found.items()), flush=True)
    for count in arguments.batches:
        times = turns(engines, np.ascontiguousarray(data.x_test[:count]), arguments.turns, arguments.seconds)
        rival = min((name for name in files if name != "ort float"), key=lambda name: median(times[name]))
        shown = " | ".join(f"{name} {median(found):.3f}" for name, found in times.items())
        ratios = [
            median(a / b for a, b in zip(times[name], times["int8"], strict=True))
            for name in ("float", rival, "ort float")
        ]
        print(
            f"{model.stem}, batch {count}, threads {threads}: {shown}; int8 is {ratios[0]:.2f} × our float, "
            f"{ratios[1]:.2f} × {rival}, {ratios[2]:.2f} × ort float",
            flush=True,
        )


def main() -> None:
    """Measure each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--accuracy", action="store_true")
    arguments = parser.parse_args()
    for model in arguments.models:
        with TemporaryDirectory() as folder:
            measure(model, arguments, Path(folder))


main()
