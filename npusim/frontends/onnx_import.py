"""ONNX models to Graphs: read, bind shapes, modernise, infer, fold what shapes alone decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npusim.errors import (
    ModelError,
    NeedsValuesError,
    NpusimError,
    UnsupportedError,
    UnsupportedNodesError,
)
from npusim.frontends import onnx_opset
from npusim.frontends.onnx_importer import STANDARD_DOMAINS, Importer, Problem
from npusim.frontends.onnx_shapes import bind_inputs, given_arrays
from npusim.ir import Graph, TensorType, verify

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from onnx import ModelProto


def load_onnx(
    source: str | Path | ModelProto,
    *,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    bodies: Collection[str] = (),
) -> Graph:
    """Read an ONNX model as a verified Graph of the newest operator forms, all shapes known.

    Args:
        source: a .onnx file, or a model in memory.
        batch: the first dimension of every input, where it is symbolic, or common to all inputs.
        shapes: whole shapes of inputs, by name; they win over `batch` and the model.
        values: elements of inputs, for shapes, branches and loops that follow from them. They stay
            inputs: `Graph.assumed` keeps those that were needed, for which alone the graph is
            right. Their shapes bind too. What shapes need is computed by numpy, in the model's
            own types (so is the number of results of NonZero and its like). Lists of numbers take
            the declared type.
        bodies: operators that are imported as the bodies ONNX defines them by, where their first
            operand is fp16 or bf16: then each step rounds as ONNX writes it.

    Raises:
        ModelError: no readable model, data missing, or dimensions left unbound.
        NeedsValuesError: elements of inputs are needed that are not among `values`.
        UnsupportedNodesError: operators or forms npusim lacks; lists all the nodes.
        GraphError: shapes that do not fit.
    """
    model, base = _read(source)
    model, opsets = _modern(model)
    given = given_arrays(model.graph, values or {})
    bound = bind_inputs(model.graph, batch, _all_shapes(given, shapes))
    _check_values(bound.types, given)
    importer = Importer(model, opsets, base, given, bodies)
    try:
        importer.run(bound.types)
    except NpusimError as e:
        if not bound.rebatched:
            problems: list[Problem] = []
            Importer(model, opsets, base, given, bodies, problems).run(bound.types)
            raise _all_of(problems, e) from None
        raise ModelError(
            f"the model does not work at batch {batch}, only at the batch in the file: {e.what}",
            "models whose nodes do not fix the batch size by constants (as in Reshape)",
            "leave out --batch, or export the model with a symbolic batch dimension",
        ) from None
    return verify(importer.graph)


def _read(source: str | Path | ModelProto) -> tuple[ModelProto, Path | None]:
    """The model and the directory that its external data is relative to."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if isinstance(source, onnx.ModelProto):
        return source, None
    path = Path(source)
    accepted = "an ONNX model (a binary .onnx file)"
    if not path.is_file():
        raise ModelError(f"no file {str(path)!r}", accepted, "check the path")
    try:
        model = onnx.load_model(path, load_external_data=False)
    except (DecodeError, OSError, ValueError) as e:
        raise ModelError(
            f"{str(path)!r} is not an ONNX model, or is damaged ({e})",
            accepted,
            "download or export the model again (a Git LFS pointer is not the model)",
        ) from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{str(path)!r} holds no graph", accepted, "export the model again")
    return model, path.parent


def survey_onnx(
    source: str | Path | ModelProto,
    *,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
) -> tuple[Graph, list[Problem]]:
    """As much of a model as can be imported, and every node that cannot, in order.

    What follows from such a node, or from an input with unbound dimensions, is looked at by its
    operator's name only.

    Raises:
        NpusimError: as `load_onnx`, when the model as a whole cannot be read.
    """
    model, base = _read(source)
    model, opsets = _modern(model)
    given = given_arrays(model.graph, values or {})
    bound = bind_inputs(model.graph, batch, _all_shapes(given, shapes), may_be_open=True)
    _check_values(bound.types, given)
    problems: list[Problem] = []
    importer = Importer(model, opsets, base, given, problems=problems)
    importer.run(bound.types, bound.open)
    return importer.graph, problems


def _all_of(problems: list[Problem], first: NpusimError) -> NpusimError:
    """The first error of an import, which lists every unsupported node where it is such a one."""
    missing = [p for p in problems if not isinstance(p.error, NeedsValuesError)]
    if not missing or not isinstance(first, UnsupportedError):
        return first
    error = missing[0].error
    several = f"{len(missing)} nodes cannot be run, the first: " if missing[1:] else ""
    return UnsupportedNodesError(several + error.what, error.allowed, error.fix, missing)


def _all_shapes(
    given: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]] | None
) -> dict[str, tuple[int, ...]]:
    return {**{name: value.shape for name, value in given.items()}, **(shapes or {})}


def _check_values(types: Mapping[str, TensorType], given: Mapping[str, np.ndarray]) -> None:
    for name, value in given.items():
        t = types[name]
        if value.shape != t.shape or value.dtype != t.dtype.np:
            raise ModelError(
                f"the value of input {name!r} is {value.dtype.name} of shape {value.shape}",
                f"{t.dtype.value} of shape {t.shape}",
                "convert the array",
            )


def _modern(model: ModelProto) -> tuple[ModelProto, dict[str, int]]:
    """The model in an opset that npusim reads, and its domains' versions.

    Raises:
        UnsupportedError: too new an opset, or so old that onnx cannot convert it.
    """
    opsets = {
        "" if o.domain in STANDARD_DOMAINS else o.domain: o.version for o in model.opset_import
    }
    version = opsets.setdefault("", onnx_opset.NEWEST)
    if version > onnx_opset.NEWEST or version < 1:
        raise UnsupportedError(
            f"a model of opset {version}",
            f"opset 1 to {onnx_opset.NEWEST}",
            "export it anew, or convert it with onnx.version_converter.convert_version",
        )
    if version >= onnx_opset.OLDEST:
        return model, opsets
    from onnx import version_converter

    try:
        converted = version_converter.convert_version(model, onnx_opset.OLDEST)
    except Exception as e:  # the converter raises many kinds on a damaged model
        raise UnsupportedError(
            f"a model of opset {version} that onnx cannot convert: {_first_line(e)}",
            f"opset {onnx_opset.OLDEST} to {onnx_opset.NEWEST}, and older ones that "
            f"onnx.version_converter converts to {onnx_opset.OLDEST}",
            "export the model anew with a newer opset",
        ) from None
    return converted, opsets  # rules for forms that the converter leaves go by the old version


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
