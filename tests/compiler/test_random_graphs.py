"""Random small graphs, compiled and run, against numpy: both levels, all kinds of precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from compiling import CHIPS, compiled
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_graphs import random_graph

from npusim import api
from npusim.frontends.reference import evaluate
from npusim.models import random_inputs

#: Largest difference of the two levels, over a tensor's largest value: roundings inside a task.
LEVELS = {"fp32": 2e-5, "fp16": 4e-3, "bf16": 3e-2}
COSINE = {"fp16": 0.999, "bf16": 0.99}
#: Modes, and the precision that they are judged as.
NARROW = {"allow_fp32_to_fp16": "fp16", "allow_mix_precision": "fp16",
          "allow_mix_precision_bf16": "bf16"}  # fmt: skip
RUNS = [
    ("ascend910b2", "fp32"), ("ascend910a", "fp16"), ("ascend910b2", "fp16"), ("toy", "fp16"),
    ("ascend910b2", "bf16"), ("toy", "fp32"), ("ascend910a", "allow_fp32_to_fp16"),
    ("ascend910a", "allow_mix_precision"), ("ascend910b2", "allow_mix_precision_bf16"),
]  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_compiled_equals_numpy(data: st.DataObject) -> None:
    def pick(options: Any) -> Any:
        return options[data.draw(st.integers(0, len(options) - 1))]

    graph = random_graph(pick, data.draw(st.integers(1, 8)))
    inputs = random_inputs(graph)
    every = evaluate(graph, inputs, keep=True)
    assume(max(float(np.abs(v).max()) for v in every.values()) < 1e4)  # fp16 would saturate
    chip, precision = data.draw(st.sampled_from(RUNS))
    exe = compiled(graph, chip, precision)
    ran = api.run(exe, CHIPS[chip], inputs=inputs, keep_tensors=True)
    judged = NARROW.get(precision, precision)
    for name in graph.outputs:
        found = api.compare(ran.outputs[name], every[name])
        if precision == "fp32":
            assert found.max_rel_err < 1e-4 or found.max_abs_err < 1e-6, found
        else:
            small = found.max_abs_err < 1e-3  # what cancels has no direction
            assert found.cosine > COSINE[judged] or small, found
    tile = api.run(exe, CHIPS[chip], inputs=inputs, keep_tensors=True, tile_level=True)
    assert tile.timeline == ran.timeline
    for name, value in ran.tensors.items():
        assert api.compare(tile.tensors[name], value).max_rel_err < LEVELS[judged], name
