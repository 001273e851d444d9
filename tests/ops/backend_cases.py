"""ONNX's own node test cases, as (model, inputs, expected outputs) for npusim to run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.onnx_tensor import ELEMENT_TYPES
from npusim.frontends.reference import evaluate
from npusim.ops import operator_names

#: Operands that an output shape depends on: a Graph is static, so they must be constants.
SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "STFT": (1, 2, 3),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}


#: Relative and absolute tolerance where the type is coarser than ONNX's default of 1e-3.
TOLERANCE = {"float16": (2e-3, 2e-3), "bfloat16": (2e-2, 2e-2)}


@dataclass
class Case:
    """One case of the ONNX backend test suite."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]

    @property
    def op_types(self) -> set[str]:
        """Operators of the model, constants aside."""
        return {n.op_type for n in self.model.graph.node} - {"Constant"}

    def run(self) -> None:
        """Import and evaluate the model; raise when a result differs from the expected."""
        results = evaluate(load_onnx(self.model), self.inputs)
        for name, want in self.outputs.items():
            got = results[name]
            assert got.dtype == want.dtype, f"{name}: {got.dtype}, expected {want.dtype}"
            assert got.shape == want.shape, f"{name}: {got.shape}, expected {want.shape}"
            rtol, atol = TOLERANCE.get(want.dtype.name, (1e-3, 1e-7))
            if want.dtype.name == "bfloat16":
                got, want = got.astype(np.float32), want.astype(np.float32)
            np.testing.assert_allclose(got, want, rtol, atol)


def _array(value: np.ndarray | onnx.TensorProto) -> np.ndarray:
    return (
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    )


def _bake(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A copy of the model whose shape-defining inputs (and what they follow from) are constants."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    reduces = {o: (1,) for o in operator_names() if o.startswith("Reduce")}
    wanted: set[str] = set()
    for node in reversed(copy.graph.node):
        if set(node.output) & wanted:
            wanted.update(node.input)
        for i in (SHAPE_OPERANDS | reduces).get(node.op_type, ()):
            wanted.update(node.input[i : i + 1])
    for value in list(copy.graph.input):
        if value.name in wanted and arrays[value.name].size <= 64:
            array = arrays.pop(value.name)
            copy.graph.initializer.append(numpy_helper.from_array(array, value.name))
            copy.graph.input.remove(value)
    return copy


def cases() -> list[Case]:
    """Every node case all of whose operators are registered, all of whose types npusim has."""
    from onnx.backend.test.case.node import collect_testcases

    known = set(operator_names()) | {"Constant", "Upsample", "Scatter"}
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    for case in collected:
        model = case.model
        if model is None or any(n.op_type not in known or n.domain for n in model.graph.node):
            continue
        values = [*model.graph.input, *model.graph.output]
        if not all(v.type.tensor_type.elem_type in ELEMENT_TYPES for v in values):
            continue
        ((given, expected),) = case.data_sets
        inputs = dict(zip((i.name for i in model.graph.input), map(_array, given), strict=True))
        outputs = dict(
            zip((o.name for o in model.graph.output), map(_array, expected), strict=True)
        )
        found.append(Case(case.name, _bake(model, inputs), inputs, outputs))
    return found
