"""Inputs and expected outputs that ship beside a model, in the ONNX model zoo's form:
`test_data_set_0/input_0.pb …, output_0.pb …` in the folder of the .onnx file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npusim.errors import ModelError

FOLDER = "test_data_set_0"


@dataclass(frozen=True)
class ShippedData:
    """Arrays by tensor name, and the folder they came from."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    folder: Path


def shipped_data(
    onnx_path: Path | None, inputs: Sequence[str], outputs: Sequence[str]
) -> ShippedData | None:
    """The model's own test data, None when it has none.

    Args:
        inputs, outputs: names of the graph's inputs and outputs, in the model's order.

    Raises:
        ModelError: a file cannot be read.
    """
    if onnx_path is None or not (folder := onnx_path.parent / FOLDER).is_dir():
        return None
    found_in = {n: _tensor(folder / f"input_{i}.pb") for i, n in enumerate(inputs)}
    found_out = {n: _tensor(folder / f"output_{i}.pb") for i, n in enumerate(outputs)}
    present_in = {n: a for n, a in found_in.items() if a is not None}
    present_out = {n: a for n, a in found_out.items() if a is not None}
    if len(present_in) < len(inputs) or not present_out:
        return None
    return ShippedData(present_in, present_out, folder)


def _tensor(path: Path) -> np.ndarray | None:
    if not path.is_file():
        return None
    import onnx
    from onnx import numpy_helper

    try:
        return np.asarray(numpy_helper.to_array(onnx.load_tensor(str(path))))
    except Exception as e:  # protobuf raises many kinds on a corrupt file
        raise ModelError(
            f"{path} is not a tensor file: {type(e).__name__}",
            "ONNX TensorProto files",
            "remove the folder, or fetch it again",
        ) from None
