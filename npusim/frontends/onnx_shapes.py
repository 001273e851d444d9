"""Binding the inputs of an ONNX model to static shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from npusim.errors import ModelError, nearest
from npusim.frontends.onnx_tensor import element_type
from npusim.ir import TensorType

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from onnx import GraphProto, ValueInfoProto

Dim = int | str  #: an extent, or the name of a symbolic one
Declared = list[Dim] | None  #: a declared shape; None when the model gives none


@dataclass(frozen=True)
class Bound:
    """The graph's inputs with static shapes.

    Attributes:
        types: name → type, in the graph's order; initializers are not among them.
        rebatched: a batch size fixed in the file was replaced by another.
        open: inputs with dimensions that are not known yet.
    """

    types: dict[str, TensorType]
    rebatched: bool
    open: tuple[str, ...] = ()


def bind_inputs(
    graph: GraphProto,
    batch: int | None,
    shapes: Mapping[str, tuple[int, ...]],
    may_be_open: bool = False,
) -> Bound:
    """Static types of the graph's inputs; of those with unbound dimensions none, if they may be.

    A whole shape given for one input also binds the symbols it replaces, in every input.

    Raises:
        ModelError: an unknown input, a wrong rank, contradictory or unbound dimensions.
    """
    weights = {t.name for t in graph.initializer}
    protos = {i.name: i for i in graph.input if i.name not in weights}
    declared = {name: _declared(p) for name, p in protos.items()}
    symbols = _given_symbols(declared, shapes)
    rebatched = _bind_batch(declared, symbols, batch, shapes)
    types, unbound = {}, []
    for name, proto in protos.items():
        dims = declared[name]
        if may_be_open and name not in shapes and not _is_bound(dims, symbols):
            unbound.append(name)
            continue
        shape = tuple(shapes[name]) if name in shapes else _resolve(name, dims, symbols)
        number = proto.type.tensor_type.elem_type
        types[name] = TensorType(shape, element_type(number, f"input {name!r}"))
    return Bound(types, rebatched, tuple(unbound))


def given_arrays(graph: GraphProto, values: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Elements of inputs as arrays; plain numbers take the declared type, and shape if static.

    Raises:
        ModelError: the model has no such input.
    """
    weights = {t.name for t in graph.initializer}
    protos = {i.name: i for i in graph.input if i.name not in weights}
    found = {}
    for name, value in values.items():
        if name not in protos:
            raise _no_input(name, protos)
        if isinstance(value, np.ndarray | np.generic):
            found[name] = np.asarray(value)
            continue
        dims = _declared(protos[name])
        number = protos[name].type.tensor_type.elem_type
        array = np.array(value).astype(element_type(number, f"input {name!r}").np)
        static = [d for d in dims or () if isinstance(d, int)]
        if dims is not None and len(static) == len(dims) and prod(static) == array.size:
            array = array.reshape(static)
        found[name] = array
    return found


def _no_input(name: str, names: Iterable[str]) -> ModelError:
    near = nearest(name, names)
    return ModelError(
        f"the model has no input {name!r}",
        ", ".join(names),
        f"did you mean {near!r}?" if near else "use one of these names",
    )


def _declared(proto: ValueInfoProto) -> Declared:
    """Dimensions of an input as the model declares them; anonymous ones get a unique name."""
    if not proto.type.HasField("tensor_type"):
        kind = proto.type.WhichOneof("value")
        raise ModelError(
            f"input {proto.name!r} is a {kind or 'value of unknown type'}",
            "tensors",
            "export the model with tensor inputs only",
        )
    if not proto.type.tensor_type.HasField("shape"):
        return None
    dims: list[Dim] = []
    for i, d in enumerate(proto.type.tensor_type.shape.dim):
        if d.WhichOneof("value") == "dim_value" and d.dim_value >= 0:
            dims.append(d.dim_value)
        else:
            known = d.dim_param.strip("?")  # some exporters call every unknown one "?"
            dims.append(d.dim_param if known else f"{proto.name}.dim{i}")
    return dims


def _given_symbols(
    declared: Mapping[str, Declared], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Symbols that explicit shapes bind."""
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in declared:
            raise _no_input(name, declared)
        dims = declared[name]
        if dims is None:
            continue
        if len(dims) != len(shape) or min(shape, default=0) < 0:
            raise ModelError(
                f"shape {tuple(shape)} for input {name!r}",
                f"{len(dims)} extents: {_text(dims)}",
                f"--shape {name}=" + ",".join(str(d) for d in dims),
            )
        for dim, extent in zip(dims, shape, strict=True):
            if isinstance(dim, str) and symbols.setdefault(dim, extent) != extent:
                raise ModelError(
                    f"dimension {dim!r} is both {symbols[dim]} and {extent} in the shapes given",
                    "one extent per symbolic dimension",
                    "make the shapes agree",
                )
    return symbols


def _bind_batch(
    declared: dict[str, Declared],
    symbols: dict[str, int],
    batch: int | None,
    shapes: Mapping[str, tuple[int, ...]],
) -> bool:
    """Bind symbolic first dimensions to `batch`; else replace the first dimension of all inputs.

    Returns True when a fixed batch size was replaced.
    """
    if batch is None:
        return False
    if batch < 1:
        raise ModelError(f"batch {batch}", "1 and more", "give a positive batch")
    open_inputs = [d for name, d in declared.items() if name not in shapes and d]
    symbolic = [d for d in open_inputs if isinstance(d[0], str)]
    for dims in symbolic:
        symbols.setdefault(str(dims[0]), batch)
    firsts = {d[0] for d in open_inputs}
    if symbolic or not open_inputs or firsts == {batch}:
        return False
    if len(firsts) > 1:
        seen = ", ".join(f"{name} {_text(d)}" for name, d in declared.items() if d)
        raise ModelError(
            f"batch {batch} for a model whose inputs have different first dimensions: {seen}",
            "a symbolic first dimension, or one first dimension common to all inputs",
            "give whole shapes: --shape name=…",
        )
    for dims in open_inputs:
        dims[0] = batch
    return True


def _is_bound(dims: Declared, symbols: Mapping[str, int]) -> bool:
    return dims is not None and all(not isinstance(d, str) or d in symbols for d in dims)


def _resolve(name: str, dims: Declared, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The static shape of an input.

    Raises:
        ModelError: a dimension is unbound; says how to bind it.
    """
    if dims is None:
        raise ModelError(
            f"input {name!r} has no shape in the model",
            "a static shape for every input",
            f"--shape {name}=1,3,224,224 (its actual extents)",
        )
    unbound = [d for d in dims if isinstance(d, str) and d not in symbols]
    if unbound:
        example = ",".join(str(symbols.get(d, "N") if isinstance(d, str) else d) for d in dims)
        raise ModelError(
            f"input {name!r} {_text(dims)} has unbound dimensions: {', '.join(unbound)}",
            "a static extent for every dimension",
            f"--shape {name}={example} with a number for each N (or --batch for the first)",
        )
    return tuple(symbols[d] if isinstance(d, str) else d for d in dims)


def _text(dims: list[Dim]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"
