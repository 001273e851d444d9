"""Models whose shapes become known with their inputs: compiled once per shape, and cached."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npusim.chip import ChipSpec
from npusim.compiler import CompileOptions, compile_graph
from npusim.frontends.onnx_import import load_onnx
from npusim.program.executable import Executable

if TYPE_CHECKING:
    from onnx import ModelProto

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Compiled:
    """One compilation of a dynamic model.

    Attributes:
        seconds: of the host, for import and compilation.
    """

    shapes: Mapping[str, tuple[int, ...]]
    executable: Executable
    seconds: float

    def serves(self, inputs: Arrays) -> bool:
        """Whether it was compiled for these shapes, and for elements that shapes follow from."""
        return all(np.shape(a) == self.shapes.get(n) for n, a in inputs.items()) and all(
            n in inputs and inputs[n].tobytes() == value.tobytes()
            for n, value in self.executable.assumed.items()
        )


@dataclass
class DynamicModel:
    """An ONNX model that is compiled when inputs come, once for each of their shapes.

    Elements of inputs that shapes, branches or loops follow from are part of the key.

    Args:
        model: a .onnx file or a model in memory; chip, options: as `compile_graph` takes them.
        bodies: as `load_onnx` takes it.
    """

    model: str | Path | ModelProto
    chip: ChipSpec
    options: CompileOptions = field(default_factory=CompileOptions)
    bodies: Collection[str] = ()
    compiled: list[Compiled] = field(default_factory=list)

    def compile(self, inputs: Arrays) -> Compiled:
        """The program for these inputs, from the cache when it is there.

        Raises:
            NpusimError: as `load_onnx` and `compile_graph`.
        """
        found = next((c for c in self.compiled if c.serves(inputs)), None)
        if found is not None:
            return found
        start = time.perf_counter()
        graph = load_onnx(self.model, values=inputs, bodies=self.bodies)
        executable = compile_graph(graph, self.chip, self.options)
        shapes = {name: graph.type_of(name).shape for name in graph.inputs}
        made = Compiled(shapes, executable, time.perf_counter() - start)
        self.compiled.append(made)
        return made
