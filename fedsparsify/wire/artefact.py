"""`model.fsz`: a JSON header with everything that is known about a model, then the model in the wire's encoding.

`save` and `load` are public. Checkpoints are the same kind of file, with further arrays after the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import WireError
from ..graph import Node
from ..model import Layout, SparseModel, Survivors
from .binary import Bytes, Reader, Writer
from .codec import MAX_VALUES, decode, decode_survivors, encode
from .files import atomic
from .graphs import parse_graph
from .values import Precision, read_values, write_values

MAGIC = b"FSZM\x01"  # the last byte is the version
MAX_HEADER = 1 << 24
MAX_FILE = 1 << 34
Arrays = Mapping[str, np.ndarray]  # flat, of float32 or uint8
Unpacked = TypeVar("Unpacked")


def save(path: str | Path, model: SparseModel, facts: Mapping[str, object] | None = None) -> None:
    """Write a bare model, its tensors and masks, to one file, atomically.

    A model does not know what its network computes, so neither `Engine` nor `fedsparsify export --to onnx` can use the
    file; nor does it say how the model was trained. `Result.save` writes all of that.

    Args:
        path: the file; replaced if it exists.
        model: the model; `load` returns it to the bit.
        facts: JSON values that describe it; `fedsparsify.wire.artefact.load_facts` returns them.

    Returns:
        None.

    Raises:
        RunError: if the file cannot be written.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel, load, save
        >>> save("mine.fsz", SparseModel.of({"w": np.ones(3)}))
        >>> load("mine.fsz").weights
        array([1., 1., 1.], dtype=float32)
    """
    write(Path(path), model, facts or {}, {})


def load(path: str | Path) -> SparseModel:
    """Read a model from its file, to the bit.

    Args:
        path: a file that `save`, `Result.save` or a run wrote.

    Returns:
        The model: its tensors and masks. `Engine(path)` runs the network.

    Raises:
        WireError: if there is no such file, or it is damaged or not a model file.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel, load, save
        >>> save("mine.fsz", SparseModel.of({"w": np.zeros((2, 3))}))
        >>> load("mine.fsz")
        SparseModel(1 tensor, 6 of 6 values, sparsity 0.0000)
    """
    return read(Path(path))[0]


def load_facts(path: str | Path) -> dict[str, Any]:
    """What the file says about its model.

    Args:
        path: a file that `save`, `Result.save` or a run wrote.

    Returns:
        JSON values: the graph, classes, preprocessing and how it was trained, as far as the file states them.

    Raises:
        WireError: if there is no such file, or it is damaged or not a model file.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel, save
        >>> from fedsparsify.wire.artefact import load_facts
        >>> save("mine.fsz", SparseModel.of({"w": np.ones(3)}), {"note": "three ones"})
        >>> load_facts("mine.fsz")["note"]
        'three ones'
    """
    return _open(Path(path), unpack_survivors)[2]


def load_graph(path: str | Path) -> tuple[Node, ...]:
    """What the network computes, checked against the model's tensors."""
    return load_network(path)[0]


def load_network(path: str | Path) -> tuple[tuple[Node, ...], dict[str, Survivors]]:
    """What the network computes, and its tensors without their zeros."""
    return load_network_and_facts(path)[:2]


def load_network_and_facts(path: str | Path) -> tuple[tuple[Node, ...], dict[str, Survivors], dict[str, Any]]:
    """What the network computes, its tensors without their zeros, and what else the file says."""
    layout, tensors, facts = _open(Path(path), unpack_survivors)
    if "graph" not in facts:
        reason = facts.get("graph_missing", "it was saved without one")
        raise WireError(f"{path} does not say what its network computes: {reason}.")
    try:
        return parse_graph(facts["graph"], layout), tensors, facts
    except WireError as error:
        raise WireError(f"{path}: {error}") from error


def write(
    path: Path, model: SparseModel, facts: Mapping[str, object], arrays: Arrays, precision: Precision = "fp32"
) -> None:
    """`save`, with further flat arrays of float32 or uint8 after the model."""
    data = pack(model, facts, arrays, precision)
    with atomic(path) as file:
        file.write(data)


def read(path: Path) -> tuple[SparseModel, dict[str, Any], dict[str, np.ndarray]]:
    """Model, facts and further arrays of a file."""
    return _open(path, unpack)


def _open(path: Path, unpack: Callable[[bytes], Unpacked]) -> Unpacked:
    """The result of `unpack` on a file's bytes; its errors name the file."""
    try:
        if (size := path.stat().st_size) > MAX_FILE:
            raise WireError(f"a model file has at most {MAX_FILE:,} bytes. Received: {size:,}.")
        return unpack(path.read_bytes())
    except FileNotFoundError:
        raise WireError(f"there is no file {path}.") from None
    except OSError as error:
        raise WireError(f"{path} cannot be read: {error.strerror or error}.") from error
    except WireError as error:
        raise WireError(f"{path} is not a model file, or is damaged: {error}") from error


def pack(model: SparseModel, facts: Mapping[str, object], arrays: Arrays, precision: Precision = "fp32") -> bytes:
    """The bytes of a model file."""
    listed = [[name, str(array.dtype), array.size] for name, array in arrays.items()]
    header = {"facts": dict(facts), "arrays": listed}
    writer = Writer(MAGIC)
    writer.section(json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode())
    blob = encode(model, precision=precision)
    writer.varint(len(blob))
    writer.buffer += blob
    for array in arrays.values():
        if array.dtype == np.uint8:
            writer.section(array.tobytes())
        else:
            write_values(writer, array, np.array([array.size]), "fp32")
    return writer.sealed()


def unpack(data: Bytes, max_values: int = MAX_VALUES) -> tuple[SparseModel, dict[str, Any], dict[str, np.ndarray]]:
    """Model, facts and further arrays from the bytes of a file."""
    reader, facts, listed, blob = _opened(data, max_values)
    model = decode(blob, max_values=max_values)
    arrays: dict[str, np.ndarray] = {}
    for name, kind, count in listed:
        if kind == "uint8":
            arrays[name] = np.frombuffer(reader.section(f"array {name!r}", count), np.uint8)
        else:
            arrays[name] = read_values(reader, np.array([count]), "fp32")
    reader.end()
    return model, facts, arrays


def unpack_survivors(data: Bytes) -> tuple[Layout, dict[str, Survivors], dict[str, Any]]:
    """Layout, tensors without their zeros, and facts from the bytes of a file; further arrays are left alone."""
    _, facts, _, blob = _opened(data, MAX_VALUES)
    return *decode_survivors(blob), facts


def _opened(data: Bytes, most: int) -> tuple[Reader, dict[str, Any], list[tuple[str, str, int]], memoryview]:
    """A reader that stands after the model, the facts, the arrays that follow, and the model's blob."""
    reader = Reader.sealed(data, MAGIC, "a model file")
    facts, listed = _header(reader, reader.section("the header", MAX_HEADER, exact=False), most)
    return reader, facts, listed, reader.take(reader.varint("length of the model", len(data)), "the model")


def _header(reader: Reader, text: Bytes, most: int) -> tuple[dict[str, Any], list[tuple[str, str, int]]]:
    """Facts, and the arrays that follow: name, type and size."""
    try:
        header = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise reader.fail(f"the header is not JSON: {error}") from None
    match header:
        case {"facts": dict() as facts, "arrays": list() as arrays}:
            pass
        case _:
            raise reader.fail("the header must hold facts and a list of arrays")
    listed = []
    for item in arrays:
        match item:
            case [str() as name, "float32" | "uint8" as kind, int() as count] if 0 <= count <= most:
                listed.append((name, kind, count))
            case _:
                raise reader.fail(f"an array must be a name, a type and a size. Received: {str(item)[:80]}")
    return facts, listed
