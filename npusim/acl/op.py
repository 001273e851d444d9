"""`acl.op`: single operators, compiled when they are first called with a shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from npusim.acl.base import DataBuffer, TensorDesc
from npusim.acl.single_op import compiled as _compiled
from npusim.acl.single_op import launch as _launch
from npusim.acl.state import PROCESS, plain, status


@dataclass(eq=False)
class OpAttr:
    """Attributes of an operator."""

    values: dict[str, Any] = field(default_factory=dict)


@plain(0)
def create_attr() -> int:
    """Attributes, none so far."""
    return PROCESS.handles.new(OpAttr())


@plain(None)
def destroy_attr(attr: int) -> None:
    """The end of attributes."""
    PROCESS.handles.pop(attr, OpAttr)


def _set(attr: int, name: str, value: Any) -> None:
    PROCESS.handles.get(attr, OpAttr).values[name] = value


@status
def set_attr_bool(attr: int, attr_name: str, attr_value: bool) -> None:
    """Set a bool."""
    _set(attr, attr_name, bool(attr_value))


@status
def set_attr_int(attr: int, attr_name: str, attr_value: int) -> None:
    """Set an int."""
    _set(attr, attr_name, int(attr_value))


@status
def set_attr_float(attr: int, attr_name: str, attr_value: float) -> None:
    """Set a float."""
    _set(attr, attr_name, float(attr_value))


@status
def set_attr_string(attr: int, attr_name: str, attr_value: str) -> None:
    """Set a string."""
    _set(attr, attr_name, str(attr_value))


@status
def set_attr_data_type(attr: int, attr_name: str, attr_value: int) -> None:
    """Set an aclDataType."""
    _set(attr, attr_name, int(attr_value))


@status
def set_attr_list_int(attr: int, attr_name: str, values: list[int]) -> None:
    """Set a list of ints."""
    _set(attr, attr_name, [int(v) for v in values])


@status
def set_attr_list_float(attr: int, attr_name: str, values: list[float]) -> None:
    """Set a list of floats."""
    _set(attr, attr_name, [float(v) for v in values])


@status
def set_model_dir(model_dir: str) -> None:
    """Where compiled operators are: not needed, they are compiled when called."""
    PROCESS.require_init()


@status
def update_params(op_type: str, input_desc: list[int], output_desc: list[int], attr: int) -> None:
    """Compile an operator for the shapes of its descriptions."""
    _compiled(op_type, _descs(input_desc), _descs(output_desc), _attrs(attr))


@status
def execute_v2(
    op_type: str,
    input_desc: list[int],
    inputs: list[int],
    output_desc: list[int],
    outputs: list[int],
    attr: int,
    stream: int,
) -> None:
    """Queue an operator."""
    _launch(
        op_type,
        list(zip(_descs(input_desc), _buffers(inputs), strict=True)),
        list(zip(_descs(output_desc), _buffers(outputs), strict=True)),
        _attrs(attr),
        stream,
    )


@status
def compile_and_execute(
    op_type: str,
    input_desc: list[int],
    inputs: list[int],
    output_desc: list[int],
    outputs: list[int],
    attr: int,
    engine_type: int,
    compile_flag: int,
    op_path: str,
    stream: int,
) -> None:
    """Queue an operator; engine, flag and path change nothing here."""
    _launch(
        op_type,
        list(zip(_descs(input_desc), _buffers(inputs), strict=True)),
        list(zip(_descs(output_desc), _buffers(outputs), strict=True)),
        _attrs(attr),
        stream,
    )


@status
def cast(
    src_desc: int, src_buffer: int, dst_desc: int, dst_buffer: int, truncate: int, stream: int
) -> None:
    """Queue a Cast."""
    (target,) = _descs([dst_desc])
    _launch(
        "Cast",
        list(zip(_descs([src_desc]), _buffers([src_buffer]), strict=True)),
        [(target, _buffers([dst_buffer])[0])],
        {"dst_type": target.number},
        stream,
    )


def _descs(handles: list[int]) -> list[TensorDesc]:
    return [PROCESS.handles.get(h, TensorDesc) for h in handles]


def _buffers(handles: list[int]) -> list[DataBuffer]:
    return [PROCESS.handles.get(h, DataBuffer) for h in handles]


def _attrs(attr: int) -> dict[str, Any]:
    return dict(PROCESS.handles.get(attr, OpAttr).values) if attr else {}
