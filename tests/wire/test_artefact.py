from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from conftest import small_model

from fedsparsify import load, save
from fedsparsify.errors import WireError
from fedsparsify.wire.artefact import MAGIC, load_facts, load_graph, pack, read, unpack, write
from fedsparsify.wire.binary import Writer

MODEL = small_model([1, 0, -2], [True, False, True], statistics=[4])


def test_golden_bytes():
    text = (
        "46 53 5a 4d 01 00 18 7b 22 66 61 63 74 73 22 3a 7b 7d 2c 22 61 72 72 61 79 73 22 3a 5b 5d 7d 34"
        "46 53 5a 01 00 01 01 77 01 03 01 01 73 01 01 04 00 01 01 00 00 02 7f 80 00 02 00 00 00 02 00 00 00 02 00"
        "01 00 01 81 00 01 00 00 01 00 00 01 00 cb fb 90 e0 47 f0 df 12"
    )
    data = pack(MODEL, {}, {})
    assert data == bytes.fromhex(text)
    assert unpack(data)[0].same_as(MODEL)


def test_save_and_load(tmp_path):
    path = tmp_path / "model.fsz"
    save(path, MODEL, {"accuracy": 0.5, "labels": ["Größe", "b"]})
    assert load(path).same_as(MODEL)
    assert load_facts(str(path)) == {"accuracy": 0.5, "labels": ["Größe", "b"]}


def test_further_arrays_come_back_to_the_bit(tmp_path):
    arrays = {
        "velocity-3": np.array([0, -0.0, np.nan, 1e-40], np.float32),
        "empty": np.zeros(0, np.float32),
        "bits": np.arange(256, dtype=np.uint8),
    }
    write(tmp_path / "checkpoint.fsz", MODEL, {"round": 7}, arrays)
    model, facts, back = read(tmp_path / "checkpoint.fsz")
    assert model.same_as(MODEL) and facts == {"round": 7}
    assert [(k, v.dtype, v.tobytes()) for k, v in back.items()] == [
        (k, v.dtype, v.tobytes()) for k, v in arrays.items()
    ]


def test_files_that_are_none(tmp_path):
    with pytest.raises(WireError, match="there is no file"):
        load(tmp_path / "absent.fsz")
    with pytest.raises(WireError, match="cannot be read"):
        load(tmp_path)
    other = tmp_path / "other.fsz"
    other.write_bytes(b"PK\3\4" + bytes(60))
    with pytest.raises(WireError, match=r"other.fsz is not a model file, or is damaged: .* must begin with b'FSZM'"):
        load(other)
    save(other, MODEL)
    other.write_bytes(other.read_bytes()[:-9])
    with pytest.raises(WireError, match="cut off"):
        load(other)


def file_with(header: bytes, rest: bytes = b"") -> bytes:
    writer = Writer(MAGIC)
    writer.section(header)
    writer.buffer += rest
    return writer.sealed()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "facts and a list"),
        (b'{"facts": 1, "arrays": []}', "facts and a list"),
        (b'{"facts": {}, "arrays": [["a", "object", 1]]}', "name, a type and a size"),
        (b'{"facts": {}, "arrays": [["a", "float32", -1]]}', "name, a type and a size"),
        (b'{"facts": {}, "arrays": [["a", "float32", 99999999999]]}', "name, a type and a size"),
        (b'{"facts": {}, "arrays": []}', "length of the model"),
    ],
)
def test_headers_that_lie(header, message):
    with pytest.raises(WireError, match=message):
        unpack(file_with(header))


def test_arrays_that_are_not_there():
    data = pack(MODEL, {}, {})
    header = json.dumps({"facts": {}, "arrays": [["a", "uint8", 1 << 28]]}).encode()
    old = 5 + 2 + len(b'{"facts":{},"arrays":[]}')
    with pytest.raises(WireError, match="kind of array 'a' should have 1 bytes"):
        unpack(file_with(header, data[old:-4]))


def test_bytes_behind_the_end():
    data = pack(MODEL, {}, {})[:-4] + b"more"
    with pytest.raises(WireError, match="4 bytes follow"):
        unpack(data + zlib.crc32(data).to_bytes(4, "little"))


def test_a_file_without_a_graph_says_why(tmp_path):
    save(tmp_path / "a.fsz", MODEL)
    with pytest.raises(WireError, match="saved without one"):
        load_graph(tmp_path / "a.fsz")
    save(tmp_path / "b.fsz", MODEL, {"graph_missing": "no graph has a LSTM"})
    with pytest.raises(WireError, match="LSTM"):
        load_graph(tmp_path / "b.fsz")
    save(tmp_path / "c.fsz", MODEL, {"graph": []})
    with pytest.raises(WireError, match=r"c.fsz: a graph must be a list"):
        load_graph(tmp_path / "c.fsz")
