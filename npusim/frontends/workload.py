"""Workloads: a model with its batch, shapes and precision, by name, from YAML, or from ONNX.

A workload file, `workloads/NAME.yaml`:

    description: BERT-Base, one sequence of 384 tokens
    source: bert-base            # a built-in model, or an .onnx path relative to this file
    batch: 1                     # all keys but `source` may be left out
    shapes: {input_ids: [1, 384]}
    requests: []                 # shapes of one request after the other, for `npusim run`
    options: {}                  # of the built-in model, e.g. {m: 8192}
    dtype: float32               # weights and float inputs of the built-in model
    precision: fp16              # what the compiler makes of it: fp32, bf16, a mode of CANN's
    seed: 0                      # weights of the built-in model, and inputs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_args

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from npusim.data import data_dir
from npusim.errors import ModelError, NeedsValuesError, NpusimError, nearest
from npusim.frontends.onnx_import import load_onnx, survey_onnx
from npusim.frontends.onnx_values import LIMIT
from npusim.frontends.shipped import shipped_data
from npusim.ir import DType, Graph
from npusim.models import build_model, get_model, list_models, random_inputs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: npusim's short names, then CANN's precision modes (`npusim.compiler.precision_modes`).
Precision = Literal[
    "fp16",
    "bf16",
    "fp32",
    "must_keep_origin_dtype",
    "allow_fp32_to_bf16",
    "allow_fp32_to_fp16",
    "allow_mix_precision_bf16",
    "allow_mix_precision",
    "allow_mix_precision_fp16",
    "force_fp16",
]
FloatType = Literal["float16", "bfloat16", "float32"]
Size = Annotated[int, Field(strict=True, ge=1)]
Shapes = Mapping[str, tuple[int, ...]]

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Workload:
    """What to run.

    Attributes:
        name: how reports call it.
        source: name of a built-in model, or path of an .onnx file.
        batch: None leaves an ONNX model's batch as the file has it.
        shapes: shapes of inputs, where they differ from the model's own.
        options: sizes of a built-in model.
        dtype: element type of a built-in model's weights and float inputs.
        precision: the default precision of its runs.
        seed: of a built-in model's weights, and of random inputs.
        description: one line.
        requests: shapes of one request after the other, each over `shapes`; () for a single one.
    """

    name: str
    source: str
    batch: int | None = None
    shapes: Shapes = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)
    dtype: DType = DType.FLOAT32
    precision: str = "fp16"
    seed: int = 0
    description: str = ""
    requests: tuple[Shapes, ...] = ()

    @property
    def is_onnx(self) -> bool:
        """True when the source is a file, False when it is a built-in model."""
        return self.source.endswith(".onnx")


def _key(text: str, default: object = ...) -> Any:
    """A key of the file: what it is, and what holds where it is left out."""
    return Field(default, description=text)


class WorkloadFile(BaseModel):
    """The keys of a workload file."""

    model_config = ConfigDict(extra="forbid")

    source: Annotated[str, Field(min_length=1)] = _key(
        "a built-in model, or the path of an .onnx file, from this file's folder"
    )
    description: str = _key("one line, for `npusim workloads`", "")
    batch: Size | None = _key("samples at once", None)
    shapes: dict[str, tuple[Size, ...]] = _key(
        "shapes of inputs, where they differ from the model's own", {}
    )
    options: dict[str, Size] = _key("sizes of a built-in model", {})
    dtype: FloatType = _key("type of a built-in model's weights and float inputs", "float32")
    precision: Precision = _key("what the compiler makes of it", "fp16")
    seed: Annotated[int, Field(strict=True, ge=0)] = _key(
        "of a built-in model's weights, and of inputs", 0
    )
    requests: tuple[dict[str, tuple[Size, ...]], ...] = _key(
        "shapes of one request after the other, each over `shapes`", ()
    )


def load_workload(
    spec: str,
    *,
    batch: int | None = None,
    shapes: Shapes | None = None,
    seed: int | None = None,
    precision: str | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
) -> tuple[Workload, Graph]:
    """Find a workload and build its graph.

    Args:
        spec: a workload's name, a built-in model's name, or a path to a .yaml or .onnx file.
        batch: replaces the workload's batch.
        shapes: shapes of inputs, over the workload's own; for built-in models also sizes by
            name, e.g. `{"seq": (384,)}`.
        seed: replaces the workload's seed.
        precision: replaces the workload's precision; asking for "fp32" makes a built-in model
            with fp32 weights and inputs.
        inputs: elements of inputs that an ONNX model's shapes follow from (default: the inputs
            that ship beside it, or random ones).

    Raises:
        ModelError: no such workload, a wrong file, or shapes that do not fit the model.
    """
    found = find_workload(spec)
    work = replace(
        found,
        batch=found.batch if batch is None else batch,
        shapes={**found.shapes, **(shapes or {})},
        seed=found.seed if seed is None else seed,
        precision=found.precision if precision is None else _precision(precision),
        dtype=DType.FLOAT32 if precision == "fp32" else found.dtype,
    )
    graph = _load_onnx(work, inputs or {}) if work.is_onnx else _build(work)
    graph.name = work.name
    return (work if work.is_onnx else _resolved(work)), graph


def list_workloads() -> list[Workload]:
    """The shipped workloads, by name."""
    return [read_workload(path) for _, path in sorted(_shipped().items())]


def find_workload(spec: str) -> Workload:
    """The workload that `spec` names, its graph not built yet.

    Raises:
        ModelError: there is none.
    """
    if spec.endswith((".yaml", ".yml")):
        return read_workload(Path(spec))
    if spec.endswith(".onnx"):
        return Workload(Path(spec).stem, spec)
    shipped, models = _shipped(), {m.name: m for m in list_models()}
    if spec in shipped:
        return read_workload(shipped[spec])
    if spec in models:
        return Workload(spec, spec, description=models[spec].description)
    names = sorted({*shipped, *models})
    near = nearest(spec, names)
    raise ModelError(
        f"no workload or model {spec!r}",
        f"{', '.join(names)}, or a path to a .yaml or .onnx file",
        f"did you mean {near}?" if near else "use one of these names",
    )


def read_workload(path: Path) -> Workload:
    """The workload a YAML file describes, named as the file.

    Raises:
        ModelError: the file cannot be read, or has a wrong key or value.
    """
    keys = ", ".join(WorkloadFile.model_fields)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not a text file"
        raise ModelError(
            f"workload {path}: {reason}", "a readable YAML file", "check the path"
        ) from None
    except yaml.YAMLError as e:
        reason = " ".join(str(e).split())
        raise ModelError(f"workload {path}: {reason}", "valid YAML", "fix the syntax") from None
    if not isinstance(content, dict):
        raise ModelError(f"workload {path}: no keys", keys, "write one `key: value` a line")
    try:
        file = WorkloadFile.model_validate(content)
    except ValidationError as e:
        _raise_invalid(path, e)
    source = file.source
    if source.endswith(".onnx"):
        _refuse_model_keys(path, file)
        source = str(path.parent / source)
    else:
        _check_sizes(path, file)
    values = file.model_dump(exclude={"source", "dtype"})
    return Workload(path.stem, source, dtype=DType(file.dtype), **values)


def _shipped() -> dict[str, Path]:
    return {p.stem: p for p in data_dir("workloads").glob("*.yaml")}


def _raise_invalid(path: Path, error: ValidationError) -> NoReturn:
    """The first complaint of pydantic, in our three lines."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    keys = list(WorkloadFile.model_fields)
    if first["type"] == "extra_forbidden":
        near = nearest(key, keys)
        raise ModelError(
            f"workload {path}: unknown key {key!r}",
            ", ".join(keys),
            f"did you mean {near}?" if near else f"remove {key!r}",
        ) from None
    if first["type"] == "missing":
        raise ModelError(
            f"workload {path}: key {key!r} is missing",
            "a built-in model's name, or a path to an .onnx file",
            f"add `{key}: …`",
        ) from None
    reason = first["msg"].removeprefix("Input should be ")
    raise ModelError(
        f"workload {path}: {key} is {first['input']!r}", reason, f"correct {key!r}"
    ) from None


def _refuse_model_keys(path: Path, file: WorkloadFile) -> None:
    for key in file.model_fields_set & {"options", "dtype"}:
        raise ModelError(
            f"workload {path}: key {key!r} with an .onnx source",
            "`options` and `dtype` belong to built-in models",
            f"remove {key!r}; `shapes` and `batch` serve both",
        )


def _check_sizes(path: Path, file: WorkloadFile) -> None:
    """The built-in model exists and takes the file's sizes; else an error that names the file."""
    try:
        for request in file.requests or ({},):
            get_model(file.source).bind({**file.shapes, **request}, file.batch, file.options)
    except ModelError as e:
        raise ModelError(f"workload {path}: {e.what}", e.allowed, e.fix) from None


def _precision(name: str) -> str:
    allowed = get_args(Precision)
    if name not in allowed:
        near = nearest(name, allowed)
        raise ModelError(
            f"precision {name!r}",
            ", ".join(allowed),
            f"did you mean {near}?" if near else "use one of these",
        )
    return name


def _build(work: Workload) -> Graph:
    return build_model(
        work.source,
        batch=work.batch,
        seed=work.seed,
        dtype=work.dtype,
        shapes=work.shapes,
        **work.options,
    )


def _resolved(work: Workload) -> Workload:
    """The workload of a built-in model with its batch and all options as they came out."""
    model = get_model(work.source)
    sizes = {**model.options, **model.bind(work.shapes, work.batch, work.options)}
    return replace(work, batch=sizes.pop("batch", 1), options=sizes)


def _load_onnx(work: Workload, inputs: Mapping[str, ArrayLike]) -> Graph:
    for name, shape in work.shapes.items():
        if work.batch is not None and shape and shape[0] != work.batch:
            raise ModelError(
                f"batch {work.batch}, but shape {name}={','.join(map(str, shape))}",
                f"shapes whose first dimension is {work.batch}",
                "give the batch or the shapes, not both",
            )
    try:
        return load_onnx(work.source, batch=work.batch, shapes=work.shapes, values=inputs)
    except NeedsValuesError as e:
        return _load_with_run_inputs(work, inputs, e)


def _load_with_run_inputs(
    work: Workload, inputs: Mapping[str, ArrayLike], reason: NeedsValuesError
) -> Graph:
    """The graph for the inputs that a run would take."""
    values = {**run_inputs(work, inputs), **inputs}
    try:
        return load_onnx(work.source, batch=work.batch, shapes=work.shapes, values=values)
    except NpusimError:
        raise NeedsValuesError(
            f"{reason.what}; with random inputs the shapes do not fit",
            reason.allowed,
            "give the elements: --input NAME=1,2,3 or --input NAME=FILE.npy",
        ) from None


def run_inputs(work: Workload, inputs: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Inputs that ship beside an ONNX model, else random ones, though not all shapes are known.

    None at all when they would be larger than an import may compute with.
    """
    graph, _ = survey_onnx(work.source, batch=work.batch, shapes=work.shapes, values=inputs)
    shipped = shipped_data(Path(work.source), graph.inputs, graph.outputs)
    if shipped is not None:
        return shipped.inputs
    few = sum(graph.tensors[name].nbytes for name in graph.inputs) <= LIMIT
    return random_inputs(graph, work.seed) if few else {}
