"""Operator lists of mixed precision, and CANN's file of changes to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim.compiler.mixlist import CANN_TYPES, Colour, MixList, names_of, read_mixlist
from npusim.errors import ModelError
from npusim.ops.registry import operator_names


@pytest.mark.parametrize(
    ("op_type", "colour"),
    [
        ("MatMul", Colour.WHITE), ("Gemm", Colour.WHITE), ("Conv", Colour.WHITE),
        ("Conv2DBackpropInput", Colour.WHITE), ("ReduceMean", Colour.BLACK),
        ("Pow", Colour.BLACK), ("LogSoftmax", Colour.BLACK), ("ApplyMomentum", Colour.BLACK),
        ("SquareSumV1", Colour.BLACK), ("Softmax", Colour.GRAY), ("RMSNormalization", Colour.GRAY),
        ("Add", Colour.GRAY), ("Relu", Colour.GRAY), ("Gelu", Colour.GRAY),
    ],
)  # fmt: skip
def test_colours(op_type: str, colour: Colour) -> None:
    assert MixList().colour(op_type) is colour


def test_cann_types_are_of_operators_that_there_are() -> None:
    assert set(CANN_TYPES) <= set(operator_names())
    assert names_of("Conv") == {"Conv", "Conv2D", "DepthwiseConv2D"}


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ops_info.json"
    path.write_text(json.dumps({
        "black-list": {"to-remove": ["Pow", "Xlog1py"], "to-add": ["MatMulV2"]},
        "white-list": {"to-remove": ["Conv2D"], "to-add": ["SoftmaxV2"]},
    }))  # fmt: skip
    found = read_mixlist(path)
    assert [found.colour(op) for op in ("Pow", "Conv", "Add")] == [Colour.GRAY] * 3
    assert found.colour("MatMul") is found.colour("Gemm") is Colour.BLACK
    assert found.colour("Softmax") is Colour.WHITE
    assert found.idle(["Softmax", "Gemm", "Pow"]) == ["Conv2D", "Xlog1py"]
    path.write_text('{"white-list": {"to-add": ["Relu"]}}')
    assert read_mixlist(path) == MixList(white=frozenset({"Relu"}))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("white", "no JSON"),
        ("[]", "no object"),
        ('{"gray-list": {}}', "key 'gray-list'"),
        ('{"black-list": ["Pow"]}', "black-list is"),
        ('{"black-list": {"add": ["Pow"]}}', "black-list is"),
        ('{"black-list": {"to-add": "Pow"}}', "to-add of black-list is"),
        ('{"black-list": {"to-add": [1]}}', "to-add of black-list is"),
        ('{"black-list": {"to-add": ["Add"]}, "white-list": {"to-add": ["Add"]}}', "both lists"),
        ('{"black-list": {"to-add": ["Add"], "to-remove": ["Add"]}}', "adds and removes Add"),
    ],
)
def test_wrong_files(text: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "ops_info.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=match) as error:
        read_mixlist(path)
    assert len(str(error.value).splitlines()) == 3


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        read_mixlist(tmp_path / "none.json")
