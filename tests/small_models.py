"""Sizes at which the built-in families are small, and still made of what they are made of."""

from __future__ import annotations

IMAGE = {"height": 64, "width": 64}
DECODER = {"layers": 2, "hidden": 128, "heads": 4, "head_size": 32, "intermediate": 352}
SMALL: dict[str, dict[str, int]] = {
    "resnet34": IMAGE,
    "mobilenetv2": {**IMAGE, "batch": 2},
    "vgg16": {"height": 32, "width": 32, "classes": 10},
    "inceptionv3": {"height": 75, "width": 75},
    "vit-b16": {**IMAGE, "layers": 2, "hidden": 192, "heads": 3},
    "gpt2-small": {"seq": 32, "layers": 2, "hidden": 128, "heads": 4, "vocab": 1000},
    "llama": {**DECODER, "seq": 32, "vocab": 1000},
    "llama-decode": {**DECODER, "past": 31, "batch": 2, "vocab": 1000},
    "unet": {"height": 32, "width": 48},
    "yolov8n": {**IMAGE, "classes": 20},
    "deepfm": {"batch": 8, "features": 1000},
}
