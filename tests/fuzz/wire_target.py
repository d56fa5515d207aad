"""What the fuzzer calls, and the suite replays: any bytes decode to a model that round-trips, or are a WireError."""

from __future__ import annotations

import zlib

import numpy as np

from fedsparsify.errors import WireError
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.wire.artefact import MAGIC as FILE
from fedsparsify.wire.artefact import pack, unpack
from fedsparsify.wire.codec import MAGIC as BLOB
from fedsparsify.wire.codec import PRECISIONS, decode, decode_survivors, encode
from fedsparsify.wire.graphs import parse_graph

LIMIT = 1 << 12
LAYOUT = Layout((TensorSpec("w", (30, 20)), TensorSpec("b", (20,))), (TensorSpec("s", (3,)),))
KNOWN = np.random.default_rng(0).random(LAYOUT.trainable) < 0.5


def sealed(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


def check(data: bytes) -> None:
    """The first byte says how to read the rest; magic and checksum are put on, so that the fuzzer gets past them."""
    way, body = data[:1], data[1:]
    try:
        if way == b"f":
            model, facts, arrays = unpack(sealed(FILE + body), LIMIT)
            assert unpack(pack(model, facts, arrays), LIMIT)[0].same_as(model)
            parse_graph(facts.get("graph"), model.layout)
        else:
            model = decode(sealed(BLOB + body), KNOWN, LAYOUT if way == b"k" else None, LIMIT)
            assert decode(encode(model), max_values=LIMIT).same_as(model)
            if way == b"w":
                tensors = decode_survivors(sealed(BLOB + body), LIMIT)[1]
                assert all(tensors[name].dense().tobytes() == view.tobytes() for name, view in model.tensors().items())
    except WireError:
        return


def seeds() -> dict[str, bytes]:
    """Well-formed inputs of every kind, for the fuzzer to start from."""
    rng = np.random.default_rng(1)
    model = SparseModel.masked(LAYOUT, rng.normal(0, 0.1, LAYOUT.total).astype(np.float32), KNOWN)
    pruned, grown = model.under(rng.random(KNOWN.size) < 0.9), SparseModel.dense(LAYOUT, model.weights)
    found = {}
    for name, each in (("same", model), ("pruned", pruned), ("grown", grown)):
        for precision in PRECISIONS:
            found[f"update-{name}-{precision}"] = b"k" + encode(each, KNOWN, precision, True)[4:-4]
        found[f"difference-{name}"] = b"d" + encode(each, KNOWN)[4:-4]
        found[f"whole-{name}"] = b"w" + encode(each)[4:-4]
    facts = {"graph": [{"op": "relu", "output": "y", "inputs": ["input"], "tensors": {}, "attributes": {}}]}
    arrays = {"a": rng.normal(size=9).astype(np.float32), "b": np.arange(9, dtype=np.uint8)}
    found["file"] = b"f" + pack(pruned, facts, arrays)[5:-4]
    return found
