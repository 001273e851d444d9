"""The shipped figures, and the page that is written about them."""

from __future__ import annotations

import re
from pathlib import Path

from npusim.explore.validation import shipped_figures, validate
from npusim.frontends.recorded import chip_of
from npusim.profiling.validation_report import ASSUMPTIONS, accuracy_page, family
from npusim.timeline.replayed import ReplayedOp

TABLE = (
    "op,shape,dtype,device,duration_us,GB/s,source,block_dim,note\n"
    '{op},"64,64;64,64 -> 64,64",FLOAT16;FLOAT16,{device},5.0,,here,1,fmt=ND;ND\n'
)


def test_every_shipped_figure_has_a_source_and_a_chip() -> None:
    figures = shipped_figures()
    assert len(figures) > 50
    for op in figures:
        assert op.source and chip_of(op.device) == op.device and op.measured_us > 0, op


def test_figures_go_to_their_chips(tmp_path: Path) -> None:
    for i, device in enumerate(("Ascend910B2", "Ascend910B4", "Ascend910B (Atlas A2)")):
        text = TABLE.format(op="MatMul", device=device)
        (tmp_path / f"{i}.csv").write_text(text)
    found = validate(tmp_path)
    assert list(found.chips) == ["ascend910b2", "ascend910b4"]
    assert found.left_out == 1
    page = accuracy_page(found.chips)
    row = next(line for line in page.splitlines() if line.startswith("| MatMul |"))
    assert re.search(r"64,64; 64,64 → 64,64 \| 1 \| 5 \| [\d.]+ \| [\d.]+ \|.*\| here \|$", row)
    assert all(text in page for _, text in ASSUMPTIONS)


def test_families() -> None:
    def of(op_type: str, net: str = "vit") -> str:
        return family(ReplayedOp(net, "", op_type, 1, 1.0, None, "", "", 0.0, 1, 1.0))

    assert of("FusionOp_Conv2D_BNTrainingReduce") == "convolution"
    assert of("MatMulV2") == "matmul" and of("MatMulV2", "bert_32_32") == "matmul of BERT"
    assert of("LpNormV2") == of("ReduceSumD") == "reduction"
    assert of("RmsNormGrad") == of("BNTrainingUpdate") == "normalisation"
    assert of("ZerosLike") == of("TransData") == "copies, layout"
    assert of("ApplyAdamWV2") == "optimiser" and of("Relu") == "elementwise"
