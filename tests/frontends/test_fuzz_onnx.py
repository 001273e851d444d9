"""Real models with something changed: a result, or three lines; nothing else."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx_building import model, node

from npusim import api
from npusim.chip import load_chip
from npusim.errors import NpusimError

CHIP = load_chip("ascend910a")
DATA = Path(onnx.backend.test.__file__).parent / "data"
MODELS = (
    "pytorch-converted/test_BatchNorm2d_eval",
    "pytorch-converted/test_Conv2d_groups",
    "pytorch-converted/test_MaxPool2d",
    "pytorch-operator/test_operator_repeat_dim_overflow",
    "pytorch-operator/test_operator_addmm",
    "simple/test_expand_shape_model1",
    "attention",
)


@cache
def base(name: str) -> bytes:
    """A model's bytes."""
    if name == "attention":
        return attention().SerializeToString()
    return (DATA / name / "model.onnx").read_bytes()


def attention() -> onnx.ModelProto:
    """Embedding, one head of attention, a branch and a loop."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.normal(size=(9, 8)).astype(np.float32),
        "qkv": rng.normal(size=(8, 24)).astype(np.float32),
        "gain": np.ones(8, np.float32),
        "heads": np.array([0, -1, 2, 4]),
        "rows": np.array([4, 8]),
        "from": np.array([1]),
        "to": np.array([4]),
        "yes": np.array(True),
        "three": np.array(3),
    }
    value = functools.partial(onnx.helper.make_tensor_value_info, shape=None)
    branch, other = (
        onnx.helper.make_graph([node(op, "cut", "b")], op, [], [value("b", 1)])
        for op in ("Relu", "Neg")
    )
    turn = onnx.helper.make_graph(
        [node("Add", "v v", "w"), node("Identity", "go", "again")],
        "turn",
        [value("i", 7), value("go", 9), value("v", 1)],
        [value("again", 9), value("w", 1)],
    )
    nodes = [
        node("Gather", "table ids", "x", axis=0),
        node("MatMul", "x qkv", "all"),
        node("Split", "all", "q k v", axis=-1, num_outputs=3),
        node("Reshape", "q heads", "q4"),
        node("Transpose", "q4", "qt", perm=[0, 2, 1, 3]),
        node("Reshape", "qt rows", "q2"),
        node("Transpose", "k", "kt", perm=[1, 0]),
        node("MatMul", "q2 kt", "scores"),
        node("Softmax", "scores", "p", axis=-1),
        node("MatMul", "p v", "mixed"),
        node("LayerNormalization", "mixed gain", "n", epsilon=1e-5),
        node("Slice", "n from to", "cut"),
        node("If", "yes", "chosen", then_branch=branch, else_branch=other),
        node("Loop", "three _ chosen", "y", body=turn),
    ]
    proto = model(nodes, {"ids": [4]}, ["y"], weights)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return proto


@pytest.fixture(autouse=True, scope="module")
def few_turns() -> Iterator[None]:
    """A loop that does not end shall not take the time of its limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npusim.frontends.onnx_importer.MOST_NODES", 1000)
        yield


def attempt(path: Path) -> None:
    """Load, compile, and compute what is small; an error in three lines is as good."""
    try:
        loaded = api.load_model(str(path))
        exe = api.compile_graph(loaded.graph, CHIP)
        if exe.memory.arena_bytes < 1 << 24 and sum(t.flops for t in exe.tasks) < 10**8:
            api.run(exe, CHIP, inputs=api.make_inputs(loaded))
    except NpusimError as e:
        assert [line.split(":")[0] for line in str(e).splitlines()] == ["error", "allowed", "fix"]


@pytest.mark.parametrize("name", MODELS)
def test_unchanged_models_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "whole.onnx"
    path.write_bytes(base(name))
    loaded = api.load_model(str(path))
    exe = api.compile_graph(loaded.graph, CHIP)
    assert api.run(exe, CHIP, inputs=api.make_inputs(loaded)).outputs


# Changes to the bytes of a file.


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def drop(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 7, 30))]


def repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((1, 5, 100))]


def noise(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at : at + 6] = rng.randbytes(6)


# Changes to a model's parts.

NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 1000, 2**20, 2**31, 2**40, 2**63 - 1)


def some_node(proto: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(proto.graph.node)


def dimension(proto: onnx.ModelProto, rng: random.Random) -> None:
    """Of an input, or of a weight."""
    value = rng.choice([*proto.graph.input, *proto.graph.initializer])
    if isinstance(value, onnx.TensorProto):
        if value.dims:
            value.dims[rng.randrange(len(value.dims))] = rng.choice(NUMBERS)
        return
    dims = value.type.tensor_type.shape.dim
    rng.choice(list(dims) or [dims.add()]).dim_value = rng.choice(NUMBERS)


def element_type(proto: onnx.ModelProto, rng: random.Random) -> None:
    value = rng.choice([*proto.graph.input, *proto.graph.initializer])
    if isinstance(value, onnx.TensorProto):
        value.data_type = rng.randrange(30)
    else:
        value.type.tensor_type.elem_type = rng.randrange(30)


def operator(proto: onnx.ModelProto, rng: random.Random) -> None:
    known = [s.name for s in onnx.defs.get_all_schemas()]
    some_node(proto, rng).op_type = rng.choice(sorted(known))


def attribute(proto: onnx.ModelProto, rng: random.Random) -> None:
    found = [a for n in proto.graph.node for a in n.attribute]
    if not found:
        return
    a = rng.choice(found)
    what = rng.randrange(4)
    if what == 0:
        a.i, a.type = rng.choice(NUMBERS), onnx.AttributeProto.INT
    elif what == 1:
        a.f, a.type = rng.choice((0.0, -1.0, float("nan"), float("inf"))), onnx.AttributeProto.FLOAT
    elif what == 2:
        a.ints.extend(rng.choices(NUMBERS, k=rng.randrange(4)))
        a.type = onnx.AttributeProto.INTS
    else:
        a.name = rng.choice(("axis", "axes", "perm", "pads", "strides", "to", "nothing", "body"))


def operand(proto: onnx.ModelProto, rng: random.Random) -> None:
    node = some_node(proto, rng)
    names = sorted({"", *(n for m in proto.graph.node for n in (*m.input, *m.output))})
    what = rng.randrange(3)
    if what == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif what == 1:
        node.input.append(rng.choice(names))
    elif node.input:
        del node.input[-1]


def result(proto: onnx.ModelProto, rng: random.Random) -> None:
    node = some_node(proto, rng)
    names = sorted({"", "new", *(n for m in proto.graph.node for n in (*m.input, *m.output))})
    if rng.randrange(2) and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(names)
    else:
        node.output.append(rng.choice(names))


def order(proto: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(proto.graph.node)
    rng.shuffle(nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def weight(proto: onnx.ModelProto, rng: random.Random) -> None:
    """Numbers that are used as shapes, axes and indices are among them."""
    tensors = list(proto.graph.initializer)
    tensors += [a.t for n in proto.graph.node for a in n.attribute if a.type == 4]
    small = [t for t in tensors if t.data_type == onnx.TensorProto.INT64 and len(t.raw_data) < 128]
    if not small:
        return
    tensor = rng.choice(small)
    values = np.frombuffer(tensor.raw_data, np.int64).copy()
    if values.size:
        values[rng.randrange(values.size)] = rng.choice(NUMBERS)
    tensor.raw_data = values.tobytes()


def opset(proto: onnx.ModelProto, rng: random.Random) -> None:
    proto.opset_import[0].version = rng.choice((-1, 0, 1, 5, 7, 9, 11, 13, 18, 21, 28, 29, 2**40))


def loss(proto: onnx.ModelProto, rng: random.Random) -> None:
    graph = proto.graph
    part = rng.choice((graph.node, graph.input, graph.initializer, graph.output))
    if len(part):
        del part[rng.randrange(len(part))]


OF_BYTES = (flip, cut, drop, repeat, noise)
OF_PARTS = (
    dimension, element_type, operator, attribute, operand, result, order, weight, opset, loss,
)  # fmt: skip
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", OF_BYTES, ids=lambda c: c.__name__)
@FEW
@given(name=st.sampled_from(MODELS), seed=st.integers(0, 2**32))
def test_changed_bytes(
    change: Callable[[bytearray, random.Random], None],
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    seed: int,
) -> None:
    data = bytearray(base(name))
    change(data, random.Random(seed))
    path = tmp_path_factory.getbasetemp() / "changed.onnx"
    path.write_bytes(data)
    attempt(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", OF_PARTS, ids=lambda c: c.__name__)
@FEW
@given(name=st.sampled_from(MODELS), seed=st.integers(0, 2**32))
def test_changed_parts(
    change: Callable[[onnx.ModelProto, random.Random], None],
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    seed: int,
) -> None:
    proto = onnx.ModelProto.FromString(base(name))
    change(proto, random.Random(seed))
    path = tmp_path_factory.getbasetemp() / "changed.onnx"
    path.write_bytes(proto.SerializeToString())
    attempt(path)
