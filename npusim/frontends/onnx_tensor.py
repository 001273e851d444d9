"""ONNX's tensors, types and attributes in npusim's words; weights are read when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.errors import ModelError, UnsupportedError
from npusim.ir import Constant, DType, TensorType

if TYPE_CHECKING:
    from onnx import AttributeProto, TensorProto

#: ONNX's element type numbers (TensorProto.DataType).
ELEMENT_TYPES: dict[int, DType] = {
    1: DType.FLOAT32,
    2: DType.UINT8,
    3: DType.INT8,
    4: DType.UINT16,
    5: DType.INT16,
    6: DType.INT32,
    7: DType.INT64,
    9: DType.BOOL,
    10: DType.FLOAT16,
    11: DType.FLOAT64,
    12: DType.UINT32,
    13: DType.UINT64,
    16: DType.BFLOAT16,
    17: DType.FLOAT8E4M3FN,
    18: DType.FLOAT8E4M3FNUZ,
    19: DType.FLOAT8E5M2,
    20: DType.FLOAT8E5M2FNUZ,
    21: DType.UINT4,
    22: DType.INT4,
    23: DType.FLOAT4E2M1,
    24: DType.FLOAT8E8M0,
    25: DType.UINT2,
    26: DType.INT2,
}
ELEMENT_NUMBERS: dict[DType, int] = {d: n for n, d in ELEMENT_TYPES.items()}

#: Bits of an element in a file, where several share a byte.
_PACKED: dict[DType, int] = {
    DType.INT4: 4,
    DType.UINT4: 4,
    DType.FLOAT4E2M1: 4,
    DType.INT2: 2,
    DType.UINT2: 2,
}
_EXTERNAL = 1  # TensorProto.EXTERNAL
_TYPED_FIELDS: dict[DType, str] = {
    DType.FLOAT32: "float_data",
    DType.FLOAT64: "double_data",
    DType.INT64: "int64_data",
    DType.UINT32: "uint64_data",
    DType.UINT64: "uint64_data",
}


def element_type(number: int, where: str) -> DType:
    """The DType of an ONNX element type number.

    Raises:
        UnsupportedError: npusim has no such type; `where` says what has it.
    """
    found = ELEMENT_TYPES.get(number)
    if found is None:
        from onnx import TensorProto

        known = TensorProto.DataType.items()
        name = next((k for k, v in known if v == number), str(number))
        raise UnsupportedError(
            f"element type {name} of {where}",
            ", ".join(d.value for d in DType),
            "convert the model to one of these types",
        )
    return found


def constant(proto: TensorProto, base: Path | None) -> Constant:
    """A lazy Constant of an ONNX tensor.

    Args:
        proto: the tensor.
        base: directory of the model file, which external data is relative to.

    Raises:
        ModelError: its external data is missing or too short.
    """
    where = f"tensor {proto.name!r}"
    type_ = TensorType(tuple(proto.dims), element_type(proto.data_type, where))
    if min(type_.shape, default=0) < 0:
        raise ModelError(
            f"{where} has shape {type_.shape}", "extents of 0 and more", "export the model again"
        )
    if proto.data_location == _EXTERNAL:
        path, offset = _external(proto, type_, base)
        return Constant(type_, lambda: _read(path, offset, type_))
    return Constant(type_, lambda: _decode(proto, type_))


def array(proto: TensorProto) -> np.ndarray:
    """The elements of a small inline tensor (an attribute), now."""
    return constant(proto, None).value()


def _decode(proto: TensorProto, type_: TensorType) -> np.ndarray:
    dtype = type_.dtype
    if proto.HasField("raw_data"):
        if len(proto.raw_data) != _file_bytes(type_):
            raise ModelError(
                f"tensor {proto.name!r} holds {len(proto.raw_data)} bytes for shape {type_.shape}",
                f"{_file_bytes(type_)} bytes",
                "the model file is damaged; export it again",
            )
        flat = _elements(np.frombuffer(proto.raw_data, np.uint8), type_)
    elif dtype.is_narrow:
        flat = _elements(np.array(proto.int32_data, np.int32).astype(np.uint8), type_)
    elif dtype in (DType.FLOAT16, DType.BFLOAT16):
        flat = np.array(proto.int32_data, np.int64).astype(np.uint16).view(dtype.np)
    else:
        flat = np.array(getattr(proto, _TYPED_FIELDS.get(dtype, "int32_data"))).astype(dtype.np)
    if flat.size != type_.size:
        raise ModelError(
            f"tensor {proto.name!r} holds {flat.size} elements for shape {type_.shape}",
            f"{type_.size} elements",
            "the model file is damaged; export it again",
        )
    return flat.reshape(type_.shape)


def _elements(data: np.ndarray, type_: TensorType) -> np.ndarray:
    """Elements from a file's bytes; small types are unpacked, the first from the lowest bits."""
    bits = _PACKED.get(type_.dtype)
    if bits is None:
        whole = data.size - data.size % type_.dtype.size
        return data[:whole].view(type_.dtype.np)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (data[:, None] >> shifts & (1 << bits) - 1).reshape(-1)
    if 0 <= codes.size - type_.size < len(shifts):
        codes = codes[: type_.size]
    if type_.dtype in (DType.INT4, DType.INT2):
        half = 1 << bits - 1
        return ((codes.astype(np.int8) ^ half) - half).astype(type_.dtype.np)
    if type_.dtype is DType.FLOAT4E2M1:
        return codes.view(type_.dtype.np)
    return codes.astype(type_.dtype.np)


def _file_bytes(type_: TensorType) -> int:
    """Bytes of a tensor in a file."""
    bits = _PACKED.get(type_.dtype, 8 * type_.dtype.size)
    return -(-type_.size * bits // 8)


def _external(proto: TensorProto, type_: TensorType, base: Path | None) -> tuple[Path, int]:
    """File and offset of external data, checked to be there."""
    entries = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    if base is None:
        raise ModelError(
            f"tensor {proto.name!r} of a model in memory lies in a file, {location!r}",
            "models in memory that have all their weights",
            "load the model from its path, or load its data first (onnx.load_external_data)",
        )
    path = base / location
    try:
        beside = path.resolve().is_relative_to(base.resolve())
        have = path.stat().st_size if path.is_file() else -1
    except (OSError, ValueError) as e:
        raise ModelError(
            f"tensor {proto.name!r} lies in {location[:80]!r}: {e.args[-1]}",
            "a file beside the model",
            "the model file is damaged; export it again",
        ) from None
    if not beside or Path(location).is_absolute() or ".." in Path(location).parts:
        raise ModelError(
            f"tensor {proto.name!r} lies in {location!r}, outside the model's directory",
            "external data beside the model, no links to elsewhere",
            "save the model anew with its data beside it",
        )
    start = entries.get("offset", "0")
    if not start.isdecimal():
        raise ModelError(
            f"tensor {proto.name!r} starts at offset {start!r} of {location!r}",
            "0 and more",
            "the model file is damaged; export it again",
        )
    offset = int(start)
    need = offset + _file_bytes(type_)
    if have < need:
        found = "which does not exist" if have < 0 else f"which has {have} bytes"
        raise ModelError(
            f"tensor {proto.name!r} lies in {str(path)!r}, {found}",
            f"a file of at least {need} bytes beside the model",
            "copy the model's external data file next to the .onnx file",
        )
    return path, offset


def _read(path: Path, offset: int, type_: TensorType) -> np.ndarray:
    if type_.size == 0:
        return np.zeros(type_.shape, type_.dtype.np)
    if type_.dtype.is_narrow:
        data = np.memmap(path, np.uint8, "r", offset, (_file_bytes(type_),))
        return _elements(data, type_).reshape(type_.shape)
    return np.memmap(path, type_.dtype.np, "r", offset, type_.shape)


def attribute(proto: AttributeProto, where: str) -> Any:
    """An attribute's value: number, text, tuple, or array.

    Raises:
        UnsupportedError: it holds a subgraph, or another kind npusim has no use for.
    """
    kind = proto.type
    if kind == 1:
        return proto.f
    if kind == 2:
        return proto.i
    if kind == 3:
        return _text(proto.s, proto.name, where)
    if kind == 4:
        return array(proto.t)
    if kind == 6:
        return tuple(proto.floats)
    if kind == 7:
        return tuple(proto.ints)
    if kind == 8:
        return tuple(_text(s, proto.name, where) for s in proto.strings)
    raise UnsupportedError(
        f"attribute {proto.name!r} of {where} holds a subgraph, a sparse tensor or a type",
        "numbers, text, dense tensors and lists of them",
        "export the model without control flow (fixed shapes often remove it)",
    )


def _text(value: bytes, name: str, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ModelError(
            f"attribute {name!r} of {where} is {value!r}",
            "text in UTF-8",
            "the model file is damaged; export it again",
        ) from None
