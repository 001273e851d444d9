"""The shipped figures, and the page that is written about them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions
from npusim.explore.validation import shipped_figures, validate
from npusim.frontends.recorded import chip_of
from npusim.models import build_model
from npusim.profiling.validation_report import (
    ASSUMPTIONS,
    accuracy_page,
    family,
    validation_json,
)
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


def test_whole_models_stand_beside_their_figures(tmp_path: Path) -> None:
    (tmp_path / "models.csv").write_text(
        "model,device,precision,batch,metric,value,source\n"
        "Resnet18_for_PyTorch,Ascend310P3,fp16 (ATC default),2,inference throughput,4000,here\n"
        "Resnet18_for_PyTorch,Ascend310P3,int8,2,inference throughput,8000,here\n"
    )
    found = validate(tmp_path / "models.csv")
    assert not found.chips and found.models_left_out == 1
    (model,) = found.models
    assert model.measured_per_s == 4000
    chip = load_chip("ascend310p3")
    graph = build_model("resnet18", batch=2)
    exe = api.compile_graph(graph, chip, options=CompileOptions("fp16", small_channel=True))
    seconds = api.run(exe, chip, timing_only=True).timeline.total_us / 1e6
    assert model.simulated_per_s == 2 / seconds
    assert "| resnet18 small_channel | ascend310p3 | 2 | 4000 |" in accuracy_page(
        found.chips, found.models
    )
    data = validation_json(found.chips, found.models, models_left_out=1)
    assert json.loads(json.dumps(data))["models"][0]["ratio"] == model.ratio
