"""`acl.op` and `acl.nn`: single operators against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npusim.acl as acl
from npusim.acl.constants import DTYPE_NUMBERS
from npusim.acl.op_types import known_types
from npusim.ir import DType, Layout, pack
from npusim.ops.registry import operator_names

Start = Callable[..., None]
Attrs = dict[str, Any]
F16, F32, I32 = np.float16, np.float32, np.int32


def values(*shape: int, dtype: Any = F16, seed: int = 0) -> np.ndarray:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def device(array: np.ndarray) -> tuple[int, int]:
    """Description and buffer of device memory that holds an array."""
    ptr, ret = acl.rt.malloc(array.nbytes, 0)
    assert ret == 0
    assert acl.rt.memcpy(ptr, array.nbytes, array.ctypes.data, array.nbytes, 1) == 0
    number = DTYPE_NUMBERS[DType.of(array.dtype)]
    desc = acl.create_tensor_desc(number, list(array.shape), 2)
    return desc, acl.create_data_buffer(ptr, array.nbytes)


def attributes(values: Attrs) -> int:
    """Attributes, each by the setter of its type."""
    attr = acl.op.create_attr()
    for name, value in values.items():
        setter = {
            bool: acl.op.set_attr_bool,
            int: acl.op.set_attr_int,
            float: acl.op.set_attr_float,
            str: acl.op.set_attr_string,
            list: acl.op.set_attr_list_int,
        }[type(value)]
        assert setter(attr, name, value) == 0
    return attr


def launch(
    op_type: str, inputs: list[np.ndarray], out: np.ndarray, attrs: Attrs | None = None
) -> int:
    """Queue an operator, wait, and fetch its output; the code of the first of them that fails."""
    given, (desc, buffer) = [device(x) for x in inputs], device(out)
    ret = acl.op.execute_v2(
        op_type, [d for d, _ in given], [b for _, b in given], [desc], [buffer],
        attributes(attrs or {}), 0,
    ) or acl.rt.synchronize_stream(0)  # fmt: skip
    ptr = acl.get_data_buffer_addr(buffer)
    return ret or acl.rt.memcpy(out.ctypes.data, out.nbytes, ptr, out.nbytes, 2)


A, B = values(8, 48), values(8, 48, seed=1)
M, N = values(32, 64), values(64, 48, seed=1)
SUM = np.exp(A.astype(F32)) / np.exp(A.astype(F32)).sum(0, keepdims=True)
CASES: list[tuple[str, list[np.ndarray], Attrs, np.ndarray]] = [
    ("Add", [A, B], {}, A + B),
    ("Add", [np.arange(16, dtype=I32), np.arange(16, dtype=I32)], {}, 2 * np.arange(16, dtype=I32)),
    ("Sub", [A, B], {}, A - B),
    ("Mul", [A, B], {}, A * B),
    ("RealDiv", [A, B + F16(4)], {}, A / (B + F16(4))),
    ("Maximum", [A, B], {}, np.maximum(A, B)),
    ("Minimum", [A, B], {}, np.minimum(A, B)),
    ("AddN", [A, B, A], {"N": 3}, A + B + A),
    ("Relu", [A], {}, np.maximum(A, 0)),
    ("SoftmaxV2", [A], {"axes": [0]}, SUM.astype(F16)),
    ("LogSoftmaxV2", [A], {"axes": [0]}, np.log(SUM).astype(F16)),
    ("Cast", [A], {"dst_type": 0}, A.astype(F32)),
    ("Transpose", [A], {"perm": [1, 0]}, np.ascontiguousarray(A.T)),
    ("ConcatD", [A, B], {"concat_dim": 1, "N": 2}, np.concatenate([A, B], 1)),
    ("MatMul", [M, N], {}, M.astype(F32) @ N.astype(F32)),
    ("MatMulV2", [M, N.T.copy()], {"transpose_x2": True}, M.astype(F32) @ N.astype(F32)),
    ("MatMulV2", [M.T.copy(), N], {"transpose_x1": True}, M.astype(F32) @ N.astype(F32)),
    ("BatchMatMul", [M[None], N[None]], {"adj_x1": False}, (M.astype(F32) @ N.astype(F32))[None]),
]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "expected"),
    CASES,
    ids=[f"{c[0]}{i}" for i, c in enumerate(CASES)],
)
def test_operators_compute(
    start: Start, op_type: str, inputs: list[np.ndarray], attrs: Attrs, expected: np.ndarray
) -> None:
    start()
    out = np.empty(expected.shape, F16 if "Mat" in op_type else expected.dtype)
    assert launch(op_type, inputs, out, attrs) == 0, acl.get_recent_err_msg()
    assert np.allclose(out.astype(F32), expected.astype(F32), rtol=4e-3, atol=4e-3)


def test_a_convolution_computes(start: Start) -> None:
    import onnxruntime
    from onnx import TensorProto, helper

    start()
    x, w = values(1, 16, 9, 9), values(32, 16, 3, 3, seed=1)
    out = np.empty((1, 32, 5, 4), F16)
    attrs = {"strides": [1, 1, 2, 2], "pads": [1, 1, 0, 0], "dilations": [1, 1, 1, 1], "groups": 1}
    assert launch("Conv2D", [x, w], out, attrs) == 0, acl.get_recent_err_msg()
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1, 0, 1, 0])
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in
             (("x", x), ("w", w), ("y", out))]  # fmt: skip
    graph = helper.make_graph([node], "g", types[:2], types[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x.astype(F32), "w": w.astype(F32)})
    assert np.abs(out - expected).max() < 0.05


def test_operators_in_fp32_use_the_cube_in_fp16_as_cann_does(start: Start) -> None:
    start()
    x, w, out = values(32, 64, dtype=F32), values(64, 48, dtype=F32), np.empty((32, 48), F32)
    assert launch("MatMulV2", [x, w], out) == 0
    assert 0 < np.abs(out - x @ w).max() < 0.05


@pytest.mark.parametrize(
    ("op_type", "inputs", "out", "attrs", "code", "text"),
    [
        ("Adder", [A], A, {}, 100024, "did you mean"),
        ("Add", [A, values(7, 48)], A, {}, 100021, "do not broadcast"),
        ("Add", [A, B], values(3), {}, 100022, "float16 (8, 48)"),
        ("Relu", [A], A, {"alpha": 1}, 100023, "attribute 'alpha'"),
        ("MatMul", [M, N], values(32, 48), {"x": 1}, 100023, "transpose_x1"),
        ("SoftmaxV2", [A], A, {"axes": [0, 1]}, 100023, "one axis"),
        ("Cast", [A], A, {"dst_type": 99}, 100023, "dst_type 99"),
        ("Transpose", [A], A, {}, 100023, "without 'perm'"),
        ("Conv2D", [A], A, {"data_format": "NHWC"}, 100027, "NHWC"),
    ],
)
def test_what_does_not_fit_says_why(
    start: Start,
    op_type: str,
    inputs: list[np.ndarray],
    out: np.ndarray,
    attrs: Attrs,
    code: int,
    text: str,
) -> None:
    start()
    assert launch(op_type, inputs, out.copy(), attrs) == code
    assert text in (acl.get_recent_err_msg() or "")


def test_buffers_and_formats_are_checked(start: Start) -> None:
    start()
    (x, buffer), (y, target) = device(A), device(A)
    small = acl.create_data_buffer(acl.get_data_buffer_addr(buffer), 10)
    assert acl.op.execute_v2("Relu", [x], [small], [y], [target], 0, 0) == 100021
    assert acl.op.execute_v2("Relu", [x], [buffer], [y], [small], 0, 0) == 100022
    blocked = acl.create_tensor_desc(1, [1, 1, 16, 16], 29)
    unknown = acl.create_tensor_desc(1, [16, 16], 77)
    for bad in (blocked, unknown):
        assert acl.op.execute_v2("Relu", [bad], [buffer], [y], [target], 0, 0) == 100027
    assert acl.op.execute_v2("Relu", [x + 1], [buffer], [y], [target], 0, 0) == 107017
    assert acl.op.execute_v2("Relu", [x], [], [y], [target], 0, 0) == 100000


def test_operators_are_compiled_once_and_enqueued_each_time(start: Start) -> None:
    start()
    given, (y, target) = [device(A), device(B)], device(A)
    descs, buffers = [d for d, _ in given], [b for _, b in given]
    assert acl.op.set_model_dir("anywhere") == 0
    assert acl.op.update_params("Add", descs, [y], 0) == 0
    free = acl.rt.get_mem_info(1)[0]
    for _ in range(3):
        assert acl.op.compile_and_execute(
            "Add", descs, buffers, [y], [target], 0, 0, 0, "", 0
        ) == 0  # fmt: skip
    acl.rt.synchronize_stream(0)
    assert acl.rt.get_mem_info(1)[0] == free
    timeline = acl.timeline()
    assert timeline is not None
    ops = [op for op in timeline.ops if op.op_type == "Add"]
    enqueue = [s for s in timeline.host.spans if s.name == "Add"] if timeline.host else []
    assert len(ops) == len(enqueue) == 3
    assert all(op.start >= span.end for op, span in zip(ops, enqueue, strict=True))


def test_a_cast_has_a_call_of_its_own(start: Start) -> None:
    start()
    out = np.empty(A.shape, F32)
    (x, source), (y, target) = device(A), device(out)
    assert acl.op.cast(x, source, y, target, 0, 0) == 0
    acl.rt.synchronize_stream(0)
    ptr = acl.get_data_buffer_addr(target)
    acl.rt.memcpy(out.ctypes.data, out.nbytes, ptr, out.nbytes, 2)
    assert np.array_equal(out, A.astype(F32))


def described(array: np.ndarray, form: int) -> tuple[int, int]:
    """As `device`, in a format."""
    desc, buffer = device(array)
    return acl.create_tensor_desc(acl.get_tensor_desc_type(desc), list(array.shape), form), buffer


@pytest.mark.parametrize(
    ("form", "layout", "shape"),
    [(29, "FRACTAL_NZ", (40, 50)), (3, "NC1HWC0", (1, 20, 4, 4)), (4, "FRACTAL_Z", (32, 20, 3, 3))],
)
def test_layouts_change_and_change_back(
    start: Start, form: int, layout: str, shape: tuple[int, ...]
) -> None:
    start()
    x = values(*shape)
    expected, back = pack(x, Layout(layout)), np.empty_like(x)
    blocked = np.empty(expected.shape, F16)
    (plain, source), (there, middle), (again, end) = (
        device(x), described(blocked, form), device(back),
    )  # fmt: skip
    assert acl.op.execute_v2("TransData", [plain], [source], [there], [middle], 0, 0) == 0
    assert acl.op.execute_v2("TransData", [there], [middle], [again], [end], 0, 0) == 0
    assert acl.rt.synchronize_stream(0) == 0
    for array, buffer in ((blocked, middle), (back, end)):
        ptr = acl.get_data_buffer_addr(buffer)
        acl.rt.memcpy(array.ctypes.data, array.nbytes, ptr, array.nbytes, 2)
    assert np.array_equal(blocked, expected) and np.array_equal(back, x)


def test_layouts_that_do_not_fit_say_why(start: Start) -> None:
    start()
    (x, source), (y, target) = device(A), device(A)
    assert acl.op.execute_v2("TransData", [x], [source], [y], [target], 0, 0) == 100027
    wrong, buffer = described(np.zeros((3, 1, 16, 15), F16), 29)
    assert acl.op.execute_v2("TransData", [x], [source], [wrong], [buffer], 0, 0) == 100022
    assert "(3, 1, 16, 16) for a tensor of shape (8, 48)" in (acl.get_recent_err_msg() or "")
    assert acl.op.execute_v2("TransData", [wrong], [buffer], [x], [source], 0, 0) == 100021
    other, room = described(np.zeros((8, 3, 1, 1, 16), F16), 3)
    assert acl.op.execute_v2("TransData", [x], [source], [other], [room], 0, 0) == 100027


def test_an_operator_s_constant_is_given_by_value(start: Start) -> None:
    start()
    axes, out = np.array([1]), np.empty((8, 1), F16)
    (x, source), (y, target) = device(A), device(out)
    desc = acl.create_tensor_desc(9, [1], 2)
    assert acl.set_tensor_const(desc, axes.ctypes.data, 4) == 100000
    assert acl.set_tensor_const(desc, axes.ctypes.data, 8) == 0
    none = acl.create_data_buffer(0, 0)
    ret = acl.op.execute_v2("ReduceSum", [x, desc], [source, none], [y], [target], 0, 0)
    assert ret == 0, acl.get_recent_err_msg()
    acl.rt.synchronize_stream(0)
    ptr = acl.get_data_buffer_addr(target)
    acl.rt.memcpy(out.ctypes.data, out.nbytes, ptr, out.nbytes, 2)
    assert np.allclose(out, A.astype(F32).sum(1, keepdims=True), atol=0.02)


def test_attributes_have_an_end(start: Start) -> None:
    start()
    attr = acl.op.create_attr()
    assert (
        acl.op.set_attr_list_float(attr, "f", [1.0]) == 0 == acl.op.set_attr_data_type(attr, "t", 1)
    )
    acl.op.destroy_attr(attr)
    assert acl.op.set_attr_int(attr, "x", 1) == 107017


def test_rules_are_for_names_of_cann() -> None:
    """A rule that only repeats a name of npusim would be of no use."""
    shared = {"MatMul", "MatMulV2", "SoftmaxV2", "LogSoftmaxV2", "Cast", "Transpose"}
    assert set(known_types()) & set(operator_names()) <= shared


# -- two phases --------------------------------------------------------------------------------


def tensor(array: np.ndarray) -> int:
    """A tensor of aclnn's in device memory that holds an array."""
    desc, buffer = device(array)
    shape, number = list(array.shape), acl.get_tensor_desc_type(desc)
    return acl.nn.create_tensor(shape, number, None, 0, 2, shape, acl.get_data_buffer_addr(buffer))


NN: list[tuple[str, list[np.ndarray], list[int], np.ndarray]] = [
    ("mul", [A, B], [], A * B),
    ("matmul", [M, N], [1], M.astype(F32) @ N.astype(F32)),
    ("softmax", [A], [0], SUM),
    ("relu", [A], [], np.maximum(A, 0)),
]


@pytest.mark.parametrize(("name", "inputs", "extra", "expected"), NN, ids=[c[0] for c in NN])
def test_operators_run_in_two_phases(
    start: Start, name: str, inputs: list[np.ndarray], extra: list[int], expected: np.ndarray
) -> None:
    start()
    out = np.empty(expected.shape, F16)
    target = tensor(out)
    tensors = [tensor(x) for x in inputs]
    order = [*tensors, target, *extra] if name == "matmul" else [*tensors, *extra, target]
    size, executor, ret = getattr(acl.nn, f"aclnn_{name}_get_workspace_size")(*order)
    assert ret == 0, acl.get_recent_err_msg()
    workspace = acl.rt.malloc(size, 0)[0] if size else 0
    run = getattr(acl.nn, f"aclnn_{name}")
    assert run(workspace, size, executor, 0) == 0
    assert run(workspace, size, executor, 0) == 107017  # an executor is for one run
    acl.rt.synchronize_stream(0)
    from npusim.acl.nn import NnTensor
    from npusim.acl.state import PROCESS

    ptr = PROCESS.handles.get(target, NnTensor).address
    acl.rt.memcpy(out.ctypes.data, out.nbytes, ptr, out.nbytes, 2)
    assert np.allclose(out.astype(F32), expected.astype(F32), rtol=4e-3, atol=4e-3)
    assert acl.nn.destroy_tensor(target) == 0


def test_a_workspace_is_the_caller_s(start: Start) -> None:
    """A product in fp32 needs memory for its operands in fp16."""
    start()
    x, w, y = tensor(M.astype(F32)), tensor(N.astype(F32)), tensor(np.empty((32, 48), F32))
    size, executor, ret = acl.nn.aclnn_matmul_get_workspace_size(x, w, y, 1)
    assert ret == 0 and size > 0
    assert acl.nn.aclnn_matmul(0, size - 1, executor, 0) == 161002
    workspace, _ = acl.rt.malloc(size, 0)
    assert acl.nn.aclnn_matmul(workspace, size, executor, 0) == 0
    assert acl.rt.synchronize_stream(0) == 0
    _, executor, _ = acl.nn.aclnn_matmul_get_workspace_size(x, w, y, 1)
    acl.rt.free(workspace)
    assert acl.nn.aclnn_matmul(workspace, size, executor, 0) == 0
    assert acl.rt.synchronize_stream(0) == 507015
    assert "freed" in (acl.get_recent_err_msg() or "")


def test_two_phase_arguments_are_checked(start: Start) -> None:
    start()
    x, y = tensor(A), tensor(A)
    one, two = acl.nn.create_scalar(1.0, 0), acl.nn.create_scalar(2.0, 0)
    assert acl.nn.aclnn_add_get_workspace_size(x, x, one, y)[2] == 0
    assert acl.nn.aclnn_add_get_workspace_size(x, x, two, y) == (0, 0, 161002)
    assert acl.nn.aclnn_matmul_get_workspace_size(x, x, y, 0) == (0, 0, 161002)
    assert acl.nn.destroy_scalar(two) == 0
    assert acl.nn.create_tensor([2, 2], 1, [1, 2], 0, 2, [2, 2], 4096) == 0
    assert "contiguous tensors" in (acl.get_recent_err_msg() or "")
    assert acl.nn.create_tensor([2, 2], 1, [2, 1], 0, 2, [2, 2], 4096) > 0
