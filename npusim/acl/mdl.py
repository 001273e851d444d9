"""`acl.mdl`: models: loading, what they take and give, running them.

A model is an ONNX file (whatever its suffix), the name of a workload, or of a built-in model; it is
compiled for the device's chip when it is loaded. Files that ATC wrote cannot be read.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import onnx

from npusim import api
from npusim.acl.base import DataBuffer
from npusim.acl.constants import DTYPE_NUMBERS, FORMAT_NCHW, FORMAT_ND
from npusim.acl.state import PROCESS, plain, status, value
from npusim.frontends.onnx_import import load_onnx
from npusim.ir import Graph
from npusim.program.executable import Buffer, Executable
from npusim.runtime import Code, InvalidUseError, Model

T = TypeVar("T")
Dims = dict[str, Any]  #: name, dimCount, dims
_NO_DIMS: Dims = {}


@dataclass(eq=False)
class ModelDesc:
    """The description of a model, empty until `get_desc`."""

    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)


@dataclass(eq=False)
class Dataset:
    """The inputs, or the outputs, of a run: handles of data buffers."""

    buffers: list[int] = field(default_factory=list)


# -- loading -----------------------------------------------------------------------------------


@value(0)
def load_from_file(model_path: str) -> int:
    """Load a model; its number."""
    return _load(_compiled(model_path))


@value(0)
def load_from_mem(model: int, model_size: int) -> int:
    """Load the ONNX model that lies at a host address; its number."""
    return _load(_compile_onnx(ctypes.string_at(model, model_size), f"model at {model:#x}"))


@status
def unload(model_id: int) -> None:
    """Give a model's memory back."""
    _model(model_id).unload()
    del PROCESS.models[model_id]


def query_size(file_name: str) -> tuple[int, int, int]:
    """Bytes of workspace and of weights, and a code."""
    sizes, ret = _sizes(file_name)
    return (*sizes, ret)


@value((0, 0))
def _sizes(file_name: str) -> tuple[int, int]:
    memory = _compiled(file_name).memory
    return memory.activation_bytes, memory.weight_bytes


# -- descriptions ------------------------------------------------------------------------------


@plain(0)
def create_desc() -> int:
    """An empty description."""
    return PROCESS.handles.new(ModelDesc())


@status
def get_desc(model_desc: int, model_id: int) -> None:
    """Describe a model."""
    found, model = PROCESS.handles.get(model_desc, ModelDesc), _model(model_id)
    found.inputs, found.outputs = model.inputs, model.outputs


@status
def destroy_desc(model_desc: int) -> None:
    """The end of a description."""
    PROCESS.handles.pop(model_desc, ModelDesc)


@plain(0)
def get_num_inputs(model_desc: int) -> int:
    """How many inputs."""
    return len(PROCESS.handles.get(model_desc, ModelDesc).inputs)


@plain(0)
def get_num_outputs(model_desc: int) -> int:
    """How many outputs."""
    return len(PROCESS.handles.get(model_desc, ModelDesc).outputs)


@plain(0)
def get_input_size_by_index(model_desc: int, index: int) -> int:
    """Bytes of an input."""
    return _input(model_desc, index).nbytes


@plain(0)
def get_output_size_by_index(model_desc: int, index: int) -> int:
    """Bytes of an output."""
    return _output(model_desc, index).nbytes


@value(_NO_DIMS)
def get_input_dims(model_desc: int, index: int) -> Dims:
    """An input's shape."""
    return _dims(_input(model_desc, index))


@value(_NO_DIMS)
def get_output_dims(model_desc: int, index: int) -> Dims:
    """An output's shape."""
    return _dims(_output(model_desc, index))


get_input_dims_v2 = get_input_dims
get_cur_output_dims = get_output_dims  # shapes are fixed when a model is compiled


@plain("")
def get_input_name_by_index(model_desc: int, index: int) -> str:
    """An input's name."""
    return _input(model_desc, index).name


@plain("")
def get_output_name_by_index(model_desc: int, index: int) -> str:
    """An output's name."""
    return _output(model_desc, index).name


@value(0)
def get_input_index_by_name(model_desc: int, name: str) -> int:
    """The position of an input."""
    return _position(PROCESS.handles.get(model_desc, ModelDesc).inputs, name)


@value(0)
def get_output_index_by_name(model_desc: int, name: str) -> int:
    """The position of an output."""
    return _position(PROCESS.handles.get(model_desc, ModelDesc).outputs, name)


@plain(-1)
def get_input_data_type(model_desc: int, index: int) -> int:
    """An input's aclDataType."""
    return DTYPE_NUMBERS[_input(model_desc, index).dtype]


@plain(-1)
def get_output_data_type(model_desc: int, index: int) -> int:
    """An output's aclDataType."""
    return DTYPE_NUMBERS[_output(model_desc, index).dtype]


@plain(-1)
def get_input_format(model_desc: int, index: int) -> int:
    """An input's aclFormat: 0 (NCHW) of rank 4, else 2 (ND)."""
    return FORMAT_NCHW if len(_input(model_desc, index).shape) == 4 else FORMAT_ND


@plain(-1)
def get_output_format(model_desc: int, index: int) -> int:
    """An output's aclFormat: 0 (NCHW) of rank 4, else 2 (ND)."""
    return FORMAT_NCHW if len(_output(model_desc, index).shape) == 4 else FORMAT_ND


# -- data ----------------------------------------------------------------------------------------


@plain(0)
def create_dataset() -> int:
    """An empty data set."""
    return PROCESS.handles.new(Dataset())


@status
def destroy_dataset(dataset: int) -> None:
    """The end of a data set; its buffers stay."""
    PROCESS.handles.pop(dataset, Dataset)


def add_dataset_buffer(dataset: int, data_buffer: int) -> tuple[int, int]:
    """Add a buffer; the data set, and a code."""
    return dataset, _add(dataset, data_buffer)


@status
def _add(dataset: int, data_buffer: int) -> None:
    PROCESS.handles.get(data_buffer, DataBuffer)
    PROCESS.handles.get(dataset, Dataset).buffers.append(data_buffer)


@plain(0)
def get_dataset_num_buffers(dataset: int) -> int:
    """How many buffers."""
    return len(PROCESS.handles.get(dataset, Dataset).buffers)


@plain(0)
def get_dataset_buffer(dataset: int, index: int) -> int:
    """One of the buffers."""
    return _at(PROCESS.handles.get(dataset, Dataset).buffers, index, "buffer")


# -- running -------------------------------------------------------------------------------------


@status
def execute(model_id: int, input: int, output: int) -> None:
    """Run a model and wait."""
    stream = PROCESS.context.default
    _model(model_id).execute_async(*_addresses(model_id, input, output), stream)
    stream.synchronize()


@status
def execute_async(model_id: int, input: int, output: int, stream: int) -> None:
    """Queue a run of a model."""
    addresses = _addresses(model_id, input, output)
    _model(model_id).execute_async(*addresses, PROCESS.stream(stream))


def _compiled(source: str) -> Executable:
    """The model of a name or a file, for the device's chip.

    Raises:
        InvalidUseError: no such file. NpusimError: it cannot be read, or compiled.
    """
    path = Path(source)
    if path.suffix in (".onnx", ".om"):
        try:
            return _compile_onnx(path.read_bytes(), str(path))
        except OSError as error:
            raise InvalidUseError(
                Code.INVALID_FILE,
                f"the model {path}: {error.strerror}",
                "a readable ONNX file, or the name of a workload or a built-in model",
                "check the path",
            ) from None
    model = api.load_model(source)
    return _compile(model.graph, model.precision)


def _compile_onnx(content: bytes, name: str) -> Executable:
    try:
        proto = onnx.load_model_from_string(content)
    except Exception:  # whatever protobuf raises for other bytes
        raise InvalidUseError(
            Code.PARSE_FILE,
            f"{name} is no ONNX model",
            "ONNX models, under any suffix (what ATC writes cannot be read)",
            "load the ONNX file that the .om was made from",
        ) from None
    graph = load_onnx(proto)
    graph.name = Path(name).stem
    return _compile(graph, "fp16")


def _compile(graph: Graph, precision: str) -> Executable:
    chosen = PROCESS.require_init().precision or precision
    return api.compile_graph(graph, PROCESS.device.chip, precision=chosen)


def _load(exe: Executable) -> int:
    number = next(PROCESS.model_numbers)
    PROCESS.models[number] = PROCESS.device.load(exe)
    return number


def _model(number: int) -> Model:
    found = PROCESS.models.get(number)
    if found is None:
        raise InvalidUseError(
            Code.INVALID_MODEL_ID,
            f"model {number}",
            ", ".join(map(str, PROCESS.models)) or "none: no model is loaded",
            "pass what acl.mdl.load_from_file returned, until unload",
        )
    return found


def _addresses(number: int, input: int, output: int) -> tuple[list[int], list[int]]:
    """Addresses of a run's buffers; each as large as the model wants.

    Raises:
        InvalidUseError: a buffer is too small, or their number is wrong.
    """
    model = _model(number)
    sides = []
    for handle, own, code in (
        (input, model.inputs, Code.MODEL_INPUT_NOT_MATCH),
        (output, model.outputs, Code.MODEL_OUTPUT_NOT_MATCH),
    ):
        handles = PROCESS.handles.get(handle, Dataset).buffers
        given = [PROCESS.handles.get(h, DataBuffer) for h in handles]
        for have, want in zip(given, own, strict=False):
            if have.nbytes < want.nbytes:
                raise InvalidUseError(
                    code,
                    f"{have.nbytes} B for {want.name!r}",
                    f"{want.nbytes} B or more",
                    "allocate what get_input_size_by_index and get_output_size_by_index tell",
                )
        sides.append([buffer.address for buffer in given])
    return sides[0], sides[1]


def _input(model_desc: int, index: int) -> Buffer:
    return _at(PROCESS.handles.get(model_desc, ModelDesc).inputs, index, "input")


def _output(model_desc: int, index: int) -> Buffer:
    return _at(PROCESS.handles.get(model_desc, ModelDesc).outputs, index, "output")


def _at(things: list[T], index: int, what: str) -> T:
    if not 0 <= index < len(things):
        raise InvalidUseError(
            Code.INVALID_PARAM,
            f"{what} {index} of {len(things)}",
            f"0 to {len(things) - 1}",
            "ask for one of these",
        )
    return things[index]


def _position(buffers: list[Buffer], name: str) -> int:
    names = [b.name for b in buffers]
    if name not in names:
        raise InvalidUseError(
            Code.INVALID_PARAM, f"no tensor {name!r}", ", ".join(names), "use one"
        )
    return names.index(name)


def _dims(buffer: Buffer) -> Dims:
    return {"name": buffer.name, "dimCount": len(buffer.shape), "dims": list(buffer.shape)}
