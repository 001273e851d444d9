"""`acl.nn`: operators in aclnn's two phases: ask for the workspace, then run with it.

CANN has these functions in C only; here they have Python's shape: `workspace_size, executor, ret =
aclnn_add_get_workspace_size(self, other, alpha, out)`, then `ret = aclnn_add(workspace,
workspace_size, executor, stream)`. An executor is for one run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

from npusim.acl.base import TensorDesc
from npusim.acl.single_op import compiled
from npusim.acl.state import PROCESS, plain, status, value
from npusim.runtime import Code, InvalidUseError, Model

P = ParamSpec("P")


@dataclass(eq=False)
class NnTensor:
    """A tensor of aclnn's: what it is, and where."""

    desc: TensorDesc
    address: int


@dataclass(eq=False)
class NnScalar:
    """A number that is an argument."""

    value: float


@dataclass(eq=False)
class Executor:
    """An operator that is ready to run."""

    model: Model
    inputs: list[int]
    outputs: list[int]


@dataclass(frozen=True)
class NnCall:
    """What a first phase asks for."""

    op_type: str
    inputs: tuple[int, ...]
    out: int
    attrs: dict[str, Any]


@plain(0)
def create_tensor(
    view_dims: list[int],
    data_type: int,
    stride: list[int] | None,
    offset: int,
    format: int,
    storage_dims: list[int],
    tensor_data: int,
) -> int:
    """A tensor at a device address; contiguous, and as large as its storage."""
    desc = TensorDesc(data_type, tuple(view_dims), format)
    if offset or list(storage_dims) != list(view_dims) or stride not in (None, _strides(view_dims)):
        raise InvalidUseError(
            Code.NN_PARAM_INVALID,
            f"a view of strides {stride} and offset {offset} of storage {storage_dims}",
            "contiguous tensors, offset 0, as large as their storage",
            "copy the part into a tensor of its own",
        )
    return PROCESS.handles.new(NnTensor(desc, tensor_data))


@status
def destroy_tensor(tensor: int) -> None:
    """The end of a tensor; its memory stays."""
    PROCESS.handles.pop(tensor, NnTensor)


@plain(0)
def create_scalar(value: float, data_type: int) -> int:
    """A number that is an argument."""
    return PROCESS.handles.new(NnScalar(float(value)))


@status
def destroy_scalar(scalar: int) -> None:
    """The end of a scalar."""
    PROCESS.handles.pop(scalar, NnScalar)


def _first_phase(call: Callable[P, NnCall]) -> Callable[P, tuple[int, int, int]]:
    """A first phase: (workspace size, executor, code)."""

    @value((0, 0))
    def prepare(*args: P.args, **kwargs: P.kwargs) -> tuple[int, int]:
        asked = call(*args, **kwargs)
        tensors = [PROCESS.handles.get(t, NnTensor) for t in asked.inputs]
        out = PROCESS.handles.get(asked.out, NnTensor)
        model = compiled(
            asked.op_type, [t.desc for t in tensors], [out.desc], asked.attrs, lend=True
        )
        made = Executor(model, [t.address for t in tensors], [out.address])
        return model.workspace, PROCESS.handles.new(made)

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> tuple[int, int, int]:
        found, ret = prepare(*args, **kwargs)
        return (*found, ret)

    return guarded


@_first_phase
def aclnn_add_get_workspace_size(self: int, other: int, alpha: int, out: int) -> NnCall:
    """out = self + other; alpha is a scalar of 1."""
    factor = PROCESS.handles.get(alpha, NnScalar).value
    if factor != 1:
        raise InvalidUseError(
            Code.NN_PARAM_INVALID,
            f"alpha {factor} of aclnnAdd",
            "1",
            "multiply with aclnnMul first",
        )
    return NnCall("Add", (self, other), out, {})


@_first_phase
def aclnn_mul_get_workspace_size(self: int, other: int, out: int) -> NnCall:
    """out = self · other, element by element."""
    return NnCall("Mul", (self, other), out, {})


@_first_phase
def aclnn_matmul_get_workspace_size(self: int, mat2: int, out: int, cube_math_type: int) -> NnCall:
    """out = self · mat2; fp32 is computed in fp16, as ALLOW_FP32_DOWN_PRECISION (1) allows."""
    if cube_math_type != 1:
        raise InvalidUseError(
            Code.NN_PARAM_INVALID,
            f"cubeMathType {cube_math_type} of aclnnMatmul",
            "1 (ALLOW_FP32_DOWN_PRECISION)",
            "pass 1",
        )
    return NnCall("MatMulV2", (self, mat2), out, {})


@_first_phase
def aclnn_softmax_get_workspace_size(self: int, dim: int, out: int) -> NnCall:
    """out = softmax of self over a dimension."""
    return NnCall("SoftmaxV2", (self,), out, {"axes": [dim]})


@_first_phase
def aclnn_relu_get_workspace_size(self: int, out: int) -> NnCall:
    """out = max(self, 0)."""
    return NnCall("Relu", (self,), out, {})


@status
def aclnn_add(workspace: int, workspace_size: int, executor: int, stream: int) -> None:
    """The second phase of any operator: queue it, with its workspace."""
    ready = PROCESS.handles.get(executor, Executor)
    if workspace_size < ready.model.workspace:
        raise InvalidUseError(
            Code.NN_PARAM_INVALID,
            f"a workspace of {workspace_size} B",
            f"{ready.model.workspace} B, as the first phase told",
            "allocate as much",
        )
    where = PROCESS.stream(stream)
    ready.model.execute_async(ready.inputs, ready.outputs, where, workspace)
    PROCESS.handles.pop(executor, Executor)


aclnn_mul = aclnn_matmul = aclnn_softmax = aclnn_relu = aclnn_add


def _strides(dims: list[int]) -> list[int]:
    strides, step = [], 1
    for n in reversed(dims):
        strides.append(step)
        step *= n
    return strides[::-1]
