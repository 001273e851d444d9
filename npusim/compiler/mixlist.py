"""Operator lists of mixed precision, and a user's changes to them (`--modify-mixlist`).

White operators compute in the narrow type, black ones keep fp32, all others are gray: they follow
their inputs. The file is CANN's:

    {"black-list": {"to-remove": ["Pow"], "to-add": ["MatMulV2"]},
     "white-list": {"to-remove": ["MatMulV2"], "to-add": ["SoftmaxV2"]}}

It names CANN's operator types; npusim's own names work too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from npusim.errors import ModelError

#: Source of both lists: `precision_reduce.flag` in CANN's aic-ascend910-ops-info.json (831
#: operators: 47 white, 95 black, 689 gray); those of npusim's operators, families as patterns.
WHITE = (
    "MatMul",
    "MatMulV2",
    "BatchMatMul",
    "BatchMatMulV2",
    "GEMM",
    "Conv2D",
    "Conv2DBackprop*",
    "Conv3D*",
    "DepthwiseConv2D*",
    "Deconvolution",
    "BasicLSTMCell*",
    "DynamicRNN*",
    "DynamicGRU*",
    "DiagV2",
    "LinSpace",
    "ReluGradV2",
)
BLACK = (
    "ReduceMeanD",
    "ReduceSum",
    "ReduceProd",
    "ReduceProdD",
    "ReduceStd",
    "Log",
    "Log1p",
    "Expm1",
    "Pow",
    "Power",
    "LogSoftmaxV2",
    "LogSoftmaxGrad",
    "SoftmaxGrad",
    "L2Loss",
    "BiasAddGrad",
    "BinaryCrossEntropy*",
    "SigmoidCrossEntropyWithLogits*",
    "SmoothL1Loss*",
    "MseLoss",
    "NLLLoss",
    "KLDiv",
    "Apply*D",
    "SGD",
    "SquareSum*",
    "UnsortedSegmentSum",
    "Xlogy",
)

#: npusim's operator → the CANN types that it becomes, where the names differ.
#: Source: CANN's ONNX plugins, and its fusion passes that put constant inputs into attributes (D).
CANN_TYPES: dict[str, tuple[str, ...]] = {
    "ApplyAdam": ("ApplyAdamD",),
    "ApplyMomentum": ("ApplyMomentumD",),
    "ApplyRMSProp": ("ApplyRMSPropD",),
    "AveragePool": ("AvgPoolV2", "AvgPool"),
    "BatchNormalization": ("BatchNorm", "BNInfer"),
    "Clip": ("ClipByValue",),
    "Concat": ("ConcatD", "ConcatV2"),
    "Conv": ("Conv2D", "DepthwiseConv2D"),
    "ConvTranspose": ("Deconvolution", "Conv2DTransposeD"),
    "Div": ("RealDiv",),
    "Expand": ("BroadcastTo",),
    "Gather": ("GatherV2", "GatherV2D"),
    "Gemm": ("MatMulV2", "GEMM"),
    "GroupNormalization": ("GroupNorm",),
    "InstanceNormalization": ("InstanceNorm",),
    "LayerNormalization": ("LayerNorm", "LayerNormV3", "LayerNormV4"),
    "LogSoftmax": ("LogSoftmaxV2",),
    "MatMul": ("BatchMatMulV2", "BatchMatMul", "MatMulV2"),
    "Max": ("Maximum",),
    "MaxPool": ("MaxPoolV3",),
    "Min": ("Minimum",),
    "Pad": ("PadV3", "PadD"),
    "RMSNormalization": ("RmsNorm",),
    "ReduceMax": ("ReduceMaxD",),
    "ReduceMean": ("ReduceMeanD",),
    "ReduceMin": ("ReduceMinD",),
    "ReduceProd": ("ReduceProdD",),
    "ReduceSum": ("ReduceSumD",),
    "Slice": ("StridedSliceD", "StridedSliceV2"),
    "Softmax": ("SoftmaxV2",),
    "SoftmaxGradExt": ("SoftmaxGrad",),
    "Split": ("SplitD", "SplitVD"),
    "Sum": ("AddN",),
    "Tile": ("TileD",),
    "Transpose": ("TransposeD",),
    "Where": ("SelectV2", "Select"),
}


class Colour(Enum):
    """Which list an operator is on."""

    WHITE = "white"
    BLACK = "black"
    GRAY = "gray"


_KEYS = {"black-list": Colour.BLACK, "white-list": Colour.WHITE}
_CHANGES = ("to-remove", "to-add")


@dataclass(frozen=True)
class MixList:
    """CANN's lists with a user's changes: operator types added to a list, or taken off it."""

    white: frozenset[str] = frozenset()
    black: frozenset[str] = frozenset()
    not_white: frozenset[str] = frozenset()
    not_black: frozenset[str] = frozenset()

    def colour(self, op_type: str) -> Colour:
        """Which list an operator is on; a change to one of its CANN types is one to it."""
        names = names_of(op_type)
        if names & self.black:
            return Colour.BLACK
        if names & self.white:
            return Colour.WHITE
        if _any_matches(names, BLACK) and not names & self.not_black:
            return Colour.BLACK
        if _any_matches(names, WHITE) and not names & self.not_white:
            return Colour.WHITE
        return Colour.GRAY

    def idle(self, op_types: Iterable[str]) -> list[str]:
        """Types that the user names and none of these operators is."""
        present = {name for op_type in op_types for name in names_of(op_type)}
        return sorted((self.white | self.black | self.not_white | self.not_black) - present)


def names_of(op_type: str) -> frozenset[str]:
    """An operator's name here and its types in CANN."""
    return frozenset((op_type, *CANN_TYPES.get(op_type, ())))


def _any_matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    patterns = tuple(patterns)
    return any(fnmatchcase(name, p) for name in names for p in patterns)


def read_mixlist(path: Path) -> MixList:
    """Read a user's changes to the lists.

    Raises:
        ModelError: the file cannot be read, is not of that form, or contradicts itself.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise _error(path, f"cannot be read: {why}") from None
    except ValueError as e:
        raise _error(path, f"no JSON: {e}") from None
    if not isinstance(data, dict):
        raise _error(path, "no object")
    for key in data:
        if key not in _KEYS:
            raise _error(path, f"key {key!r}")
    black, white = (_changes(path, key, data.get(key, {})) for key in _KEYS)
    both = sorted(black["to-add"] & white["to-add"])
    if both:
        raise _error(path, f"{both[0]} is added to both lists")
    return MixList(white["to-add"], black["to-add"], white["to-remove"], black["to-remove"])


def _changes(path: Path, key: str, given: Any) -> dict[str, frozenset[str]]:
    if not isinstance(given, dict) or set(given) - set(_CHANGES):
        raise _error(path, f"{key} is {json.dumps(given)}")
    for change, names in given.items():
        if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
            raise _error(path, f"{change} of {key} is {json.dumps(names)}")
    found = {change: frozenset(given.get(change, ())) for change in _CHANGES}
    both = sorted(found["to-add"] & found["to-remove"])
    if both:
        raise _error(path, f"{key} adds and removes {both[0]}")
    return found


def _error(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path}: {what}",
        '{"black-list": {"to-remove": [types], "to-add": [types]}, "white-list": {…}}',
        "correct the file",
    )
