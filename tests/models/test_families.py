"""What the builders say about their own families: cache, causality, factorisation, boxes."""

from __future__ import annotations

import numpy as np

from npusim.frontends.reference import evaluate
from npusim.models import build_model, random_inputs

SMALL = {"layers": 2, "hidden": 64, "heads": 4, "head_size": 16, "intermediate": 96, "vocab": 100}


def test_a_decoded_token_is_the_prompts_last() -> None:
    prompt, step = (
        build_model("llama", seq=9, **SMALL),
        build_model("llama-decode", past=8, **SMALL),
    )
    ids = random_inputs(prompt)["input_ids"]
    whole = evaluate(prompt, {"input_ids": ids})
    cache = {
        f"past_key_values.{name}": whole[f"present.{name}"][:, :, :8]
        for name in (f"{i}.{part}" for i in range(2) for part in ("key", "value"))
    }
    one = evaluate(step, {"input_ids": ids[:, 8:], **cache})
    np.testing.assert_allclose(one["logits"][:, 0], whole["logits"][:, 8], atol=1e-5)
    np.testing.assert_allclose(one["present.1.key"], whole["present.1.key"], atol=1e-5)


def test_later_tokens_do_not_change_earlier_ones() -> None:
    sizes = {"seq": 12, "layers": 2, "hidden": 64, "heads": 4, "vocab": 100}
    graph = build_model("gpt2-small", **sizes)
    ids = random_inputs(graph)["input_ids"]
    other = ids.copy()
    other[:, 7:] = (ids[:, 7:] + 1) % 100
    a, b = (evaluate(graph, {"input_ids": i})["logits"] for i in (ids, other))
    np.testing.assert_allclose(a[:, :7], b[:, :7], atol=1e-5)
    assert np.abs(a[:, 7:] - b[:, 7:]).max() > 0.1


def test_second_order_is_all_pairs_of_factors() -> None:
    graph = build_model("deepfm", batch=3, fields=7, features=50)
    found = evaluate(graph, random_inputs(graph), keep=True)
    v = found["fm.scaled"]
    pairs = sum((v[:, i] * v[:, j]).sum(-1) for i in range(7) for j in range(i + 1, 7))
    np.testing.assert_allclose(found["second_order"][:, 0], pairs, rtol=1e-4, atol=1e-5)


def test_boxes_lie_around_their_cells() -> None:
    """Every box contains its cell's middle: distances to the sides are not negative."""
    graph = build_model("yolov8n", height=64, width=96, classes=3)
    (y,) = evaluate(graph, random_inputs(graph)).values()
    assert y.shape == (1, 7, 8 * 12 + 4 * 6 + 2 * 3)
    middle, size = y[0, :2], y[0, 2:4]
    columns, rows = np.tile(np.arange(12), 8), np.repeat(np.arange(8), 12)
    cells = 8 * (np.stack([columns, rows]) + 0.5)
    assert (np.abs(middle[:, : 8 * 12] - cells) <= size[:, : 8 * 12] / 2 + 1e-3).all()
    assert (y[0, 4:] >= 0).all() and (y[0, 4:] <= 1).all()
