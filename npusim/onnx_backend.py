"""npusim as an ONNX backend: `backend.prepare(model).run(inputs)`, as `onnx.backend.base` has it.

    import npusim.onnx_backend as backend
    outputs = backend.run_model(model, [x])

A device is a chip: "ascend910b2", or "CPU" and "CUDA", which the test suite names, for the default
chip. Numbers are computed in the model's own types (`must_keep_origin_dtype`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from npusim import api
from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions
from npusim.dynamic import DynamicModel
from npusim.errors import ModelError, NeedsValuesError
from npusim.frontends.onnx_import import survey_onnx
from npusim.timeline import RunResult

DEFAULT_CHIP = "ascend910b2"  #: its cube takes float32
#: The types of the model, and every node's result rounded to its own: nothing is fused (level 1).
OPTIONS = CompileOptions("must_keep_origin_dtype", level=1)
#: ONNX's reference rounds after each step of these; a chip's kernels only at the end.
BODIES = ("Softmax", "LogSoftmax")


class NpusimRep(BackendRep):
    """A model checked for a chip; it is compiled for each shape that comes, and cached.

    Attributes:
        result: the last run: its timeline beside its outputs. None before the first.
    """

    def __init__(self, model: onnx.ModelProto, names: list[str], chip: ChipSpec) -> None:
        self._names, self._chip = names, chip
        self._model = DynamicModel(model, chip, OPTIONS, BODIES)
        self.result: RunResult | None = None

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs of the model, in its order, as a named tuple.

        Args:
            inputs: arrays in the order of the model's inputs, or by name.

        Raises:
            ModelError: inputs that do not fit. UnsupportedError: as `prepare`, where shapes follow
                from the inputs' elements.
        """
        del kwargs  # part of the interface; none is known
        if isinstance(inputs, Mapping):
            given: Mapping[str, Any] = inputs
        elif len(inputs) == len(self._names):
            given = dict(zip(self._names, inputs, strict=True))
        else:
            raise ModelError(
                f"{len(inputs)} arrays for {len(self._names)} inputs",
                f"one for each of {', '.join(self._names)}",
                "give an array for every input",
            )
        arrays = {name: np.asarray(value) for name, value in given.items()}
        executable = self._model.compile(arrays).executable
        self.result = api.run(executable, self._chip, inputs=arrays)
        outputs = [self.result.outputs[name] for name in executable.outputs]
        return namedtupledict("Outputs", executable.outputs)(*outputs)


class NpusimBackend(Backend):
    """The backend interface."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> NpusimRep:
        """Check a model.

        Raises:
            UnsupportedError: names the node and what is missing. ModelError, GraphError: a model
                that cannot be read.
        """
        weights = {t.name for t in model.graph.initializer}
        names = [i.name for i in model.graph.input if i.name not in weights]
        _, problems = survey_onnx(model)
        for problem in problems:
            if not isinstance(problem.error, NeedsValuesError):
                raise problem.error
        try:
            super().prepare(model, device, **kwargs)
        except onnx.checker.ValidationError as e:
            raise ModelError(
                f"the model breaks a rule of ONNX: {str(e).strip().splitlines()[0]}",
                "models that onnx.checker.check_model accepts",
                "export the model again",
            ) from None
        return NpusimRep(model, names, _load(_chip(device)))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for a chip's name, and for "CPU" and "CUDA"."""
        from npusim.chip import list_chips

        return _chip(device) in list_chips()


@cache
def _load(name: str) -> ChipSpec:
    """A shipped chip, read once: a suite prepares thousands of models."""
    return load_chip(name)


def _chip(device: str) -> str:
    name = device.split(":")[0]
    return DEFAULT_CHIP if name in ("CPU", "CUDA") else name


prepare = NpusimBackend.prepare
run_model = NpusimBackend.run_model
supports_device = NpusimBackend.supports_device
backend: type[Backend] = NpusimBackend
