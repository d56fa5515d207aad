"""ONNX models of other tools: read, run, and refused where they are damaged or say what no graph has."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from fedsparsify.cli.infer import command as infer
from fedsparsify.cli.inspect import command as inspect
from fedsparsify.errors import WireError
from fedsparsify.export.onnx_import import read_onnx
from fedsparsify.inference import Engine

RNG = np.random.default_rng(3)


def write(path, nodes, tensors, sample=(3, 8, 8), batch="batch"):
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *sample])
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "g", [given], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def network():
    """A convolution with batch norm, a gate, a hard swish written out, and Gemm; half of the weights are pruned."""
    weight = normal(8, 3, 3, 3)
    weight[np.abs(weight) < 0.7] = 0
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"]),
        helper.make_node("Add", ["n", "three"], ["n3"]),
        helper.make_node("Clip", ["n3", "zero", "six"], ["clipped"]),
        helper.make_node("Mul", ["n", "clipped"], ["product"]),
        helper.make_node("Div", ["product", "six"], ["swish"]),
        helper.make_node("GlobalAveragePool", ["swish"], ["pooled"]),
        helper.make_node("Conv", ["pooled", "gate"], ["gated"]),
        helper.make_node("Sigmoid", ["gated"], ["share"]),
        helper.make_node("Mul", ["swish", "share"], ["scaled"]),
        helper.make_node("MaxPool", ["scaled"], ["largest"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["largest"], ["flat"]),
        helper.make_node("Gemm", ["flat", "out", "bias"], ["y"], transB=1, alpha=0.5),
    ]
    tensors = {"w": weight, "b": normal(8), "scale": normal(8), "shift": normal(8), "mean": normal(8)}
    tensors |= {"var": np.abs(normal(8)) + 0.5, "gate": normal(8, 8, 1, 1), "out": normal(5, 32), "bias": normal(5)}
    tensors |= {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    return nodes, tensors


RESIZES = [
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
]
IMAGES = {
    **{
        f"{way['mode']} {number} {by}": ([helper.make_node("Resize", ["x", "", *given], ["y"], **way)], tensors)
        for number, way in enumerate(RESIZES)
        for by, given, tensors in (
            ("scales", ["s"], {"s": np.array([1, 1, 2, 1.5], np.float32)}),
            ("sizes", ["", "s"], {"s": np.array([1, 4, 5, 13])}),
        )
    },
    "DCR": ([helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2)], {}),
    "CRD": ([helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode="CRD")], {}),
    "SpaceToDepth": ([helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)], {}),
    "GlobalMaxPool": ([helper.make_node("GlobalMaxPool", ["x"], ["y"])], {}),
    "InstanceNormalization": (
        [helper.make_node("InstanceNormalization", ["x", "scale", "shift"], ["y"], epsilon=0.1)],
        {"scale": np.array([1, -2, 3, 0.5], np.float32), "shift": np.arange(4, dtype=np.float32)},
    ),
    "ConvTranspose": (
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 1], pads=[1, 0, 1, 0], group=2)],
        {"w": np.random.default_rng(5).standard_normal((4, 3, 4, 3)).astype(np.float32)},
    ),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_other_sizes(name, tmp_path):
    path = write(tmp_path / "model.onnx", *IMAGES[name], sample=(4, 6, 8), batch=1)
    x = RNG.standard_normal((1, 4, 6, 8)).astype(np.float32)
    expected = onnxruntime.InferenceSession(path).run(None, {"x": x})[0]
    found = read_onnx(path)
    assert np.allclose(Engine(found.model, 1, found.graph).run(x), expected, rtol=1e-5, atol=1e-5)


def attention():
    """Tokens of an image, attention over them, layer norm and a mean."""
    shapes = {"tokens": [0, 16, 16], "pooled": [0, 16]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2]),
        helper.make_node("Reshape", ["c", "tokens"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("LayerNormalization", ["t", "scale", "shift"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "q"], ["query"]),
        helper.make_node("MatMul", ["n", "k"], ["key"]),
        helper.make_node("Transpose", ["key"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["query", "turned"], ["scores"]),
        helper.make_node("Mul", ["scores", "factor"], ["small"]),
        helper.make_node("Softmax", ["small"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "n"], ["mixed"]),
        helper.make_node("Add", ["t", "mixed"], ["sum"]),
        helper.make_node("ReduceMean", ["sum", "axes"], ["mean"], keepdims=1),
        helper.make_node("Reshape", ["mean", "pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "out"], ["y"]),
    ]
    tensors = {"w": normal(16, 3, 2, 2), "scale": normal(16), "shift": normal(16), "q": normal(16, 8)}
    tensors |= {"k": normal(16, 8), "out": normal(16, 4), "factor": np.float32(0.3), "axes": np.array([1])}
    return nodes, tensors | {name: np.array(sides) for name, sides in shapes.items()}


def exported():
    """As exporters of PyTorch write it: shapes worked out, GELU in several nodes, several slices at once."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("ReduceMean", ["t", "last"], ["mean"]),
        helper.make_node("Sub", ["t", "mean"], ["apart"]),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Pow", ["apart", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "last"], ["spread"]),
        helper.make_node("Add", ["spread", "eps"], ["more"]),
        helper.make_node("Sqrt", ["more"], ["root"]),
        helper.make_node("Div", ["apart", "root"], ["normal"]),
        helper.make_node("Div", ["normal", "sqrt2"], ["scaled"]),
        helper.make_node("Erf", ["scaled"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["erf1"]),
        helper.make_node("Mul", ["normal", "erf1"], ["product"]),
        helper.make_node("Mul", ["product", "half"], ["gelu"]),
        helper.make_node("Slice", ["gelu", "starts", "stops", "axes"], ["cut"]),
        helper.make_node("Shape", ["cut"], ["sides"]),
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Gather", ["sides", "zero"], ["samples"], axis=0),
        helper.make_node("Unsqueeze", ["samples", "first"], ["samples1"]),
        helper.make_node("Shape", ["cut"], ["width"], start=3),
        helper.make_node("Mul", ["width", "ones"], ["width1"]),
        helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
        helper.make_node("Concat", ["samples1", "rest", "width1"], ["shape"], axis=0),
        helper.make_node("Reshape", ["cut", "shape"], ["tokens"]),
        helper.make_node("ReduceMean", ["tokens", "ones"], ["pooled"], keepdims=0),
        helper.make_node("Identity", ["out"], ["same"]),
        helper.make_node("Gemm", ["pooled", "same"], ["y"], transB=1),
    ]
    tensors = {"w": normal(16, 3, 3, 3), "out": normal(4, 16), "eps": np.float32(1e-5), "one": np.float32(1)}
    tensors |= {"sqrt2": np.float32(2**0.5), "half": np.float32(0.5), "last": np.array([-1]), "ones": np.array([1])}
    sides = {"starts": [1, 0], "stops": [7, 2**31], "axes": [1, 2], "first": [0]}
    return nodes, tensors | {name: np.array(numbers) for name, numbers in sides.items()}


@pytest.mark.parametrize("batch", ["batch", 5])
@pytest.mark.parametrize("made", [network, attention, exported])
def test_the_engine_agrees_with_onnx_runtime(made, batch, tmp_path):
    path = write(tmp_path / "model.onnx", *made(), batch=batch)
    x = normal(5, 3, 8, 8)
    expected = onnxruntime.InferenceSession(path).run(None, {"x": x})[0]
    found = read_onnx(path)
    assert found.shape == (3, 8, 8)
    received = Engine(found.model, 1, found.graph).run(x)
    assert np.abs(received - expected).max() <= 1e-4 * np.abs(expected).max()


def test_commands_take_onnx_models(tmp_path):
    path = write(tmp_path / "model.onnx", *network())
    np.save(tmp_path / "images.npy", normal(2, 3, 8, 8))
    ran = CliRunner().invoke(infer, [str(path), str(tmp_path / "images.npy")])
    assert ran.exit_code == 0, ran.output
    shown = CliRunner().invoke(inspect, [str(path)])
    assert shown.exit_code == 0, shown.output


def test_gelu_is_one_node(tmp_path):
    found = read_onnx(write(tmp_path / "model.onnx", *exported()))
    assert [node.op for node in found.graph if node.op in ("gelu", "erf", "sqrt", "slice")] == [
        "sqrt",
        "gelu",
        "slice",
        "slice",
    ]


USE = helper.make_node("Reshape", ["x", "s"], ["y"])
SHAPE = helper.make_node("Shape", ["x"], ["sides"])


@pytest.mark.parametrize(
    ("nodes", "tensors", "message"),
    [
        ([helper.make_node("LSTM", ["x"], ["y"])], {}, "LSTM.*no graph has this operation"),
        ([helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=0)], {}, "blocksize must be at least 1"),
        (
            [helper.make_node("Resize", ["x", "", "s"], ["y"])],
            {"s": np.array([1, 1, np.inf, 2], np.float32)},
            "constant sizes or by constant factors",
        ),
        (
            [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="cubic")],
            {"s": np.array([1, 1, 2, 2], np.float32)},
            "nearest and linear interpolation",
        ),
        ([helper.make_node("Relu", ["z"], ["y"])], {}, "reads 'z', which does not depend on the input"),
        ([helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0, 2, 3])], {}, "keeps the batch"),
        ([helper.make_node("Conv", ["x", "x"], ["y"])], {}, "its weight must be a constant"),
        ([helper.make_node("Conv", ["x", "w"], ["y"])], {"w": normal(2, 5, 1, 1)}, "it takes 5 channels. Received: 3"),
        ([helper.make_node("MaxPool", ["x"], ["y"])], {}, "is damaged: KeyError"),
        ([helper.make_node("Reshape", ["x", "s"], ["y"])], {"s": np.array([0, -7, 2])}, "reshapes|does not fit"),
        ([], {}, "does not depend on the input"),
        ([helper.make_node("Erf", ["x"], ["y"])], {}, "node 0 .Erf.*no graph has this operation"),
        ([helper.make_node("Pow", ["x", "p"], ["y"])], {"p": np.float32(3)}, "squares and square roots"),
        ([SHAPE, helper.make_node("Mul", ["sides", "n"], ["s"]), USE], {"n": np.array([2])}, "size of the batch"),
        ([helper.make_node("ConstantOfShape", ["n"], ["s"]), USE], {"n": np.array([1 << 40])}, "at most 16,777,216"),
    ],
)
def test_what_no_graph_has_is_refused(nodes, tensors, message, tmp_path):
    path = write(tmp_path / "model.onnx", nodes, tensors)
    with pytest.raises(WireError, match=message):
        read_onnx(path)


def test_hostile_files_are_refused(tmp_path):
    path = write(tmp_path / "model.onnx", *network())
    whole = path.read_bytes()
    for data, message in ((whole[:-40], "not an ONNX model|damaged|holds|hold"), (b"\xff" * 64, "not an ONNX model")):
        path.write_bytes(data)
        with pytest.raises(WireError, match=message):
            read_onnx(path)
    proto = onnx.load_model_from_string(whole)
    proto.graph.initializer[0].dims[0] = 1 << 40
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(WireError, match="which it does not hold"):
        read_onnx(path)
    proto = onnx.load_model_from_string(whole)
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(WireError, match="lies in another file"):
        read_onnx(path)
    with pytest.raises(WireError, match="there is no file"):
        read_onnx(tmp_path / "none.onnx")
