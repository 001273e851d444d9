"""Reference values by onnxruntime, from the model's own file or an export of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from npusim.errors import UnsupportedError
from npusim.ir import Graph


def reference_values(
    graph: Graph,
    onnx_path: Path | None,
    inputs: Mapping[str, np.ndarray],
    wanted: Sequence[str],
) -> tuple[dict[str, np.ndarray], str]:
    """(tensor → value by onnxruntime, name and version of the reference).

    Of `wanted`, tensors that the reference model has as well are returned.

    Raises:
        UnsupportedError: onnxruntime is not installed.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        raise UnsupportedError(
            "--check needs onnxruntime, which is not installed",
            "the extra `check`",
            "pip install 'npusim[check]'",
        ) from None
    name = f"onnxruntime {ort.__version__}"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "reference.onnx"
        model, known = _with_outputs(graph, onnx_path, wanted, path)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        feeds = {i.name: inputs[i.name] for i in session.get_inputs() if i.name in inputs}
        values = session.run(known, feeds)
    return dict(zip(known, values, strict=True)), name


def _with_outputs(
    graph: Graph, onnx_path: Path | None, wanted: Sequence[str], path: Path
) -> tuple[str, list[str]]:
    """A model file with the wanted tensors as outputs, and which of them it has."""
    import onnx

    from npusim.frontends.onnx_export import save_onnx

    if onnx_path is None:
        save_onnx(graph, path)
        source = path
    else:
        source = onnx_path
    structure: Any = onnx.load(str(source), load_external_data=False)
    outputs = {o.name for o in structure.graph.output}
    made = {o for n in structure.graph.node for o in n.output}
    known = [t for t in dict.fromkeys(wanted) if t in outputs or t in made]
    extra = [t for t in known if t not in outputs]
    if not extra:
        return str(source), known
    model = onnx.load(str(source))
    for name in extra:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    target = path.with_name("with_outputs.onnx")
    onnx.save(model, str(target))
    return str(target), known
